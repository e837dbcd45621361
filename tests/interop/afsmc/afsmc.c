/* Preloaded, a TCP program uses the kernel's AF_SMC. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol)
{
	int (*libc)(int, int, int) = dlsym(RTLD_NEXT, "socket");
	int tcp = (domain == AF_INET || domain == AF_INET6) && (type & 15) == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
	return tcp ? libc(AF_SMC, type, domain == AF_INET6) : libc(domain, type, protocol);
}

/* Addresses that are nobody's memory: the kernel says EFAULT, and the connection goes on. */
#include "app.h"

#include <sys/sendfile.h>

static char *none; /* a page that may not be touched */

static void calls(int fd, void *bad, const char *how)
{
	struct msghdr m = { .msg_iov = bad, .msg_iovlen = 1 };
	struct mmsghdr mm = { .msg_hdr = { .msg_iovlen = 0 } };
	struct iovec v = { bad, 5 };
	struct epoll_event e;
	int ep = must(epoll_create1(EPOLL_CLOEXEC)), udp = must(socket(AF_INET, SOCK_DGRAM, 0));

	say("%s: read %s write %s", how, got(read(fd, bad, 5)), got(write(fd, bad, 5)));
	say("recv %s send %s", got(recv(fd, bad, 5, 0)), got(send(fd, bad, 5, 0)));
	say("readv %s %s", got(readv(fd, &v, 1)), got(readv(fd, bad, 1)));
	say("writev %s %s", got(writev(fd, &v, 1)), got(writev(fd, bad, 1)));
	say("recvmsg %s %s", got(recvmsg(fd, bad, 0)), got(recvmsg(fd, &m, 0)));
	say("sendmsg %s %s", got(sendmsg(fd, bad, 0)), got(sendmsg(fd, &m, 0)));
	say("sendmsg of another %s", got(sendmsg(udp, bad, 0)));
	say("messages %s %s", got(recvmmsg(fd, bad, 1, 0, NULL)), got(sendmmsg(fd, bad, 1, 0)));
	say("poll %s", got(poll(bad, 1, 0)));
	say("select %s", got(select(fd + 1, bad, NULL, NULL, &(struct timeval){ 0, 0 })));
	say("epoll %s", err(epoll_ctl(ep, EPOLL_CTL_ADD, fd, bad)));
	e = (struct epoll_event){ .events = EPOLLIN };
	must(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
	say("epoll %s %s", err(epoll_ctl(ep, EPOLL_CTL_MOD, fd, bad)), got(epoll_wait(ep, bad, 1, 0)));
	say("limit %s", got(recvmmsg(fd, &mm, 1, MSG_DONTWAIT, bad)));
	close(ep);
	close(udp);
}

static void server(int fd)
{
	int file = must(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), s = must(socket(AF_INET, SOCK_STREAM, 0)), pair[2];
	char c[8] = { 0 };
	struct iovec v = { c, 1 };
	struct mmsghdr mm = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } };

	none = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	check(none != MAP_FAILED);
	must(mprotect(none += 4096, 4096, PROT_NONE));
	await(); /* there is something to read */
	calls(fd, (void *)8, "low");
	calls(fd, (void *)~7ul, "high");
	calls(fd, (void *)(1ul << 62), "no address");

	say("connect %s %s %s", err(connect(s, (void *)none, sizeof(struct sockaddr_in))), err(connect(s, (void *)(none - 8), sizeof(struct sockaddr_in))),
	    err(connect(s, (void *)8, sizeof(struct sockaddr_in))));
	say("connect again %s", err(connect(fd, (void *)none, sizeof(struct sockaddr_in))));
	say("sendfile %s", got(sendfile(fd, file, (off_t *)none, 5)));
	say("options %s %s", err(getsockopt(fd, SOL_SOCKET, SO_ERROR, c, (socklen_t *)none)), err(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, none, 16)));
	say("ioctl %s %s", err(ioctl(fd, FIONREAD, none)), err(ioctl(fd, FIONBIO, none)));
	say("limit %s", got(recvmmsg(fd, &mm, 1, MSG_DONTWAIT, (void *)none)));
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = none, .msg_controllen = CMSG_SPACE(sizeof(int)) };
	must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
	say("control %s", got(sendmsg(pair[0], &m, 0)));

	say("no length %s", got(recvfrom(fd, c, 1, 0, (void *)c, NULL)));
	say("all is there %s %s", got(recv(fd, c, sizeof c, MSG_DONTWAIT)), c);
	send_all(fd, "still", 5);
	close(fd);
}

static void client(int fd)
{
	char c[8] = { 0 };

	send_all(fd, "received", 8);
	pass();
	say("end %s %s", got(recv(fd, c, sizeof c, MSG_WAITALL)), c);
	close(fd);
}

int main(void) { return two_processes(server, client); }

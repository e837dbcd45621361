/*
 * echo serve [option…]                       a server; prints "port N", ends by a signal
 * echo ask PORT CONNECTIONS BYTES [option…]  a client: each connection sends BYTES in pieces and gets every piece back
 * echo hold PORT CONNECTIONS TEXT            a client that sends TEXT on each, reads as much, prints "holding", stays until a signal
 * Options: port=N  reuseport  first (the server speaks first)  fd=N (an inherited listener)  piece=BYTES
 *          heir=exec|fork (a plain process, without the library, gets the listener: instead of us, or beside us)
 *          poll (the client polls before it receives)  defer (TCP_DEFER_ACCEPT, set once the server listens)
 *          limit=memory|processes|files|size|filter (before the first connection)
 */
#include "app.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

enum { MOST = 4096 };
static char buf[1 << 16];
static int wanted_port, reuseport, first, polls, defer, fd_given = -1, piece = 4096;

static void exhaust_files(int leave)
{
	int fds[64], n = 0;
	must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 64, 64 }));
	while ((fds[n] = dup(2)) >= 0)
		n++;
	check(errno == EMFILE && n >= leave);
	while (leave)
		close(fds[n - leave--]);
}

static void limit(const char *what, int files)
{
	if (!strcmp(what, "memory")) {
		unsigned long pages;
		FILE *f = fopen("/proc/self/statm", "re");
		check(f && fscanf(f, "%lu", &pages) == 1);
		fclose(f);
		pages = pages * 4096 + (4 << 20);
		must(setrlimit(RLIMIT_AS, &(struct rlimit){ pages, pages }));
	} else if (!strcmp(what, "processes")) {
		must(setrlimit(RLIMIT_NPROC, &(struct rlimit){ 1, 1 }));
	} else if (!strcmp(what, "files")) {
		exhaust_files(files);
	} else if (!strcmp(what, "size")) {
		must(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 8192, 8192 }));
	} else if (!strcmp(what, "filter")) {
		struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
		struct sock_fprog program = { 1, &allow };
		must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
		must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	} else {
		check(!"a known limit");
	}
}

static void bequeath(int l, const char *heir)
{
	char fd[16];
	snprintf(fd, sizeof fd, "fd=%d", l);
	if (!strcmp(heir, "fork")) {
		if (must(fork()))
			pause();
		must(prctl(PR_SET_PDEATHSIG, SIGTERM));
	}
	unsetenv("LD_PRELOAD");
	execl("/proc/self/exe", "echo", "serve", fd, NULL);
	fail(__LINE__, "execl");
}

static void serve(const char *limited, const char *heir)
{
	static struct pollfd set[MOST];
	int n = 1, l = fd_given >= 0 ? fd_given : listening(wanted_port, reuseport);
	if (heir)
		bequeath(l, heir);
	if (defer)
		must(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &defer, sizeof defer));
	printf("port %d\n", port_of(l));
	fflush(stdout);
	if (limited)
		limit(limited, 1);
	set_nonblocking(l);
	set[0] = (struct pollfd){ l, POLLIN, 0 };
	for (;;) {
		must(poll(set, n, -1));
		for (int i = n - 1; i > 0; i--) {
			if (!set[i].revents)
				continue;
			ssize_t k = recv(set[i].fd, buf, sizeof buf, 0);
			if (k > 0 && send(set[i].fd, buf, k, MSG_NOSIGNAL) == k)
				continue;
			close(set[i].fd);
			set[i] = set[--n];
		}
		int fd = set[0].revents ? accept(l, NULL, NULL) : -1; /* another process may have been faster */
		if (fd < 0)
			continue;
		if (first)
			send_all(fd, "hello\n", 6);
		check(n < MOST);
		set[n++] = (struct pollfd){ fd, POLLIN, 0 };
	}
}

static void ask(int p, int connections, int bytes, const char *limited)
{
	static char data[sizeof buf];
	uint64_t seed = 3;
	fill(&seed, (void *)data, sizeof data);
	for (int i = 0; i < connections; i++) {
		int fd = must(socket(AF_INET, SOCK_STREAM, 0));
		struct sockaddr_in a = loopback(p);
		if (limited && i == 0)
			limit(limited, 0);
		must(connect(fd, (void *)&a, sizeof a));
		if (first)
			check(receive_all(fd, buf, 6) == 6 && !memcmp(buf, "hello\n", 6));
		for (int left = bytes; left > 0; left -= piece) {
			size_t n = left < piece ? left : piece;
			send_all(fd, data, n);
			if (polls)
				check(poll_for(fd, POLLIN, 60000) & POLLIN);
			check(receive_all(fd, buf, n) == n && !memcmp(data, buf, n));
		}
		must(shutdown(fd, SHUT_WR));
		check(recv(fd, buf, 1, 0) == 0);
		close(fd);
	}
	printf("%d connections, %d bytes each: intact\n", connections, bytes);
}

static void hold(int p, int connections, const char *text)
{
	for (int i = 0; i < connections; i++) {
		int fd = connected(p);
		send_all(fd, text, strlen(text));
		check(receive_all(fd, buf, strlen(text)) == strlen(text));
	}
	puts("holding");
	fflush(stdout);
	pause();
}

int main(int argc, char **argv)
{
	const char *limited = NULL, *heir = NULL;
	for (int i = 2; i < argc; i++) {
		if (!strcmp(argv[i], "reuseport"))
			reuseport = 1;
		else if (!strcmp(argv[i], "first"))
			first = 1;
		else if (!strcmp(argv[i], "poll"))
			polls = 1;
		else if (!strcmp(argv[i], "defer"))
			defer = 5;
		else if (!strncmp(argv[i], "limit=", 6))
			limited = argv[i] + 6;
		else if (!strncmp(argv[i], "heir=", 5))
			heir = argv[i] + 5;
		else
			(void)(sscanf(argv[i], "port=%d", &wanted_port) == 1 || sscanf(argv[i], "fd=%d", &fd_given) == 1 || sscanf(argv[i], "piece=%d", &piece) == 1);
	}
	if (argc > 1 && !strcmp(argv[1], "serve"))
		serve(limited, heir);
	check(argc > 4);
	if (!strcmp(argv[1], "hold"))
		hold(atoi(argv[2]), atoi(argv[3]), argv[4]);
	else
		ask(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), limited);
}

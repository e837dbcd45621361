/*
 * joining [SCENARIO] | -left: what becomes of a connect that another thread, a handler, a jump or a child meddles with while the peer does
 * not answer yet. -left: those in which the process gives it away or closes it.
 */
#include "app.h"

#include <setjmp.h>

enum { PIECE = 100 << 10 };
static _Atomic int *slow;
static int fd, first;
static struct sockaddr_in to;

static void *echo(void *arg)
{
	int c = (int)(intptr_t)arg;
	char *got = malloc(PIECE);
	ssize_t n;
	while ((n = recv(c, got, PIECE, 0)) > 0)
		send_all(c, got, n);
	close(c);
	free(got);
	return (void *)(intptr_t)(n ? errno : 0);
}

static void *accept_all(void *unused)
{
	for (;;)
		pthread_detach(thread(echo, (void *)(intptr_t)accepted(listener)));
	return NULL;
}

/* The queue takes one connection: the next SYN is answered some time after that one is accepted. */
static void server(int meeting)
{
	char c;
	pthread_detach(thread(accept_all, NULL));
	while (receive_all(meeting, &c, 1) == 1) {
		int l = listening(0, 0), s;
		void *end;
		must(listen(l, 0));
		*slow = port_of(l);
		send_all(meeting, &c, 1);
		check(receive_all(meeting, &c, 1) == 1);
		close(accepted(l));
		s = accepted(l);
		close(l);
		check(pthread_join(thread(echo, (void *)(intptr_t)s), &end) == 0);
		say("ended: %s", end ? strerrorname_np((intptr_t)end) : "in order");
	}
}

static int meeting;

static void open_slowly(void)
{
	char c = 'o';
	send_all(meeting, &c, 1);
	check(receive_all(meeting, &c, 1) == 1);
	to = loopback(*slow);
	first = connected(*slow);
	fd = must(socket(AF_INET, SOCK_STREAM, 0));
}

static void answer(void)
{
	send_all(meeting, "a", 1);
	close(first);
}

static void *connects(void *unused)
{
	int r = connect(fd, (void *)&to, sizeof to);
	return (void *)(intptr_t)(r ? errno : 0);
}

static pthread_t begun(void)
{
	pthread_t t = thread(connects, NULL);
	while (poll_for(fd, POLLOUT, 0) & POLLHUP)
		;
	return t;
}

static const char *joined(pthread_t t)
{
	void *r;
	check(pthread_join(t, &r) == 0);
	return r == PTHREAD_CANCELED ? "cancelled" : r ? strerrorname_np((intptr_t)r) : "connected";
}

static void ask(int s)
{
	static char sent[PIECE], back[PIECE];
	uint64_t seed = 7;
	fill(&seed, (void *)sent, sizeof sent);
	send_all(s, sent, sizeof sent);
	check(receive_all(s, back, sizeof back) == sizeof back && !memcmp(sent, back, sizeof back));
}

static void talk(int s)
{
	char c;
	ask(s);
	must(shutdown(s, SHUT_WR));
	check(recv(s, &c, 1, 0) == 0);
	close(s);
}

/* The number is another socket's by the time that connect returns. */
static void reused(void)
{
	open_slowly();
	int old = fd;
	pthread_t t = begun();
	close(old);
	check(connected(port) == old);
	ask(old);
	answer();
	say("closed and used again: %s", joined(t));
	talk(old);
}

static void replaced(void)
{
	open_slowly();
	int c = connected(port), old = fd;
	pthread_t t = begun();
	ask(c);
	check(dup2(c, old) == old);
	answer();
	say("replaced: %s", joined(t));
	ask(old);
	close(c);
	talk(old);
}

static void file(void)
{
	char c;
	open_slowly();
	int p[2];
	must(pipe(p));
	pthread_t t = begun();
	check(dup2(p[0], fd) == fd);
	answer();
	say("replaced by a pipe: %s", joined(t));
	check(write(p[1], "p", 1) == 1 && read(fd, &c, 1) == 1 && c == 'p');
	close(p[0]), close(p[1]), close(fd);
}

/* Another number goes on. */
static void moved(int when)
{
	open_slowly();
	int other = -1, old = fd;
	if (!when)
		other = dup(fd);
	pthread_t t = begun();
	if (when == 1)
		other = dup(fd);
	if (when == 2)
		check((other = dup2(fd, 200)) == 200);
	close(old);
	if (when == 2)
		check(connected(port) == old);
	answer();
	ask(other);
	say("moved %d: %s", when, joined(t));
	talk(other);
	if (when == 2)
		talk(old);
}
static void moved_before(void) { moved(0); }
static void moved_meanwhile(void) { moved(1); }
static void moved_and_used(void) { moved(2); }

/* A second number is used, and there never was a call on the first but connect. */
static void second(int flags)
{
	open_slowly();
	must(fcntl(fd, F_SETFL, flags));
	int other = must(dup(fd));
	pthread_t t = begun();
	if (flags)
		say("second number: %s", joined(t));
	answer();
	check(poll_for(other, POLLOUT, 10000) == POLLOUT);
	must(fcntl(fd, F_SETFL, 0));
	ask(other);
	if (!flags)
		say("second number: %s", joined(t));
	close(fd);
	talk(other);
}
static void second_waits(void) { second(0); }
static void second_polls(void) { second(O_NONBLOCK); }

static void cancelled(void)
{
	open_slowly();
	pthread_t t = begun();
	check(pthread_cancel(t) == 0);
	say("cancelled: %s", joined(t));
	answer();
	check(poll_for(fd, POLLOUT, 10000) == POLLOUT);
	talk(fd);
}

static sigjmp_buf out;
static void jump(int sig)
{
	struct tcp_info i;
	socklen_t n = sizeof i;
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &n) == 0 && i.tcpi_state == TCP_SYN_SENT)
		siglongjmp(out, 1);
}

static void jump_out(void)
{
	struct itimerval soon = { { 0, 20000 }, { 0, 20000 } }, never = { 0 };
	open_slowly();
	handle(SIGALRM, jump, SA_RESTART);
	if (!sigsetjmp(out, 1)) {
		must(setitimer(ITIMER_REAL, &soon, NULL));
		connect(fd, (void *)&to, sizeof to);
		say("never here");
	}
	must(setitimer(ITIMER_REAL, &never, NULL));
}

static void jumped(void)
{
	jump_out();
	answer();
	check(poll_for(fd, POLLOUT, 10000) == POLLOUT);
	say("a jump out of it");
	talk(fd);
}

static void jumped_and_again(void)
{
	jump_out();
	answer();
	int r = connect(fd, (void *)&to, sizeof to);
	say("connect again: %s", err(r));
	talk(fd);
}

static void jumped_and_other(void)
{
	jump_out();
	close(fd);
	fd = must(socket(AF_INET, SOCK_STREAM, 0));
	answer();
	connect(fd, (void *)&to, sizeof to);
	say("another after the jump");
	talk(fd);
}

static _Atomic int in_handler;
static void writes(int sig)
{
	int e = errno;
	in_handler = send(fd, "h", 1, MSG_NOSIGNAL) == 1 ? 1 : -errno;
	errno = e;
}

/* The handler sleeps in send until the kernel has connected. */
static void handler_sends(int flags, const char *what)
{
	char c;
	open_slowly();
	handle(SIGUSR1, writes, flags);
	pthread_t t = begun();
	pthread_kill(t, SIGUSR1);
	usleep(50000);
	answer();
	const char *end = joined(t);
	say("%s: %s, %d", what, end, in_handler);
	check(receive_all(fd, &c, 1) == 1 && c == 'h');
	talk(fd);
}
static void handler(void) { handler_sends(SA_RESTART, "a handler sends"); }
static void interrupted(void) { handler_sends(0, "a handler sends, and connect ends"); }

static void forked(void)
{
	open_slowly();
	pthread_t t = begun();
	pid_t child = must(fork());
	if (!child) {
		close(first);
		check(poll_for(fd, POLLOUT, 10000) == POLLOUT);
		close(fd);
		_exit(0);
	}
	answer();
	say("forked: %s", joined(t));
	must(waitpid(child, NULL, 0));
	talk(fd);
}

/* The child alone uses it; and ends it when connect has returned, which would say ECONNABORTED of what is over by then. */
static void inherited(void)
{
	int status, p[2];
	char c;
	open_slowly();
	must(pipe(p));
	pthread_t t = begun();
	pid_t child = must(fork());
	if (!child) {
		close(first), close(p[1]);
		check(poll_for(fd, POLLOUT, 10000) == POLLOUT);
		ask(fd);
		check(read(p[0], &c, 1) == 0);
		talk(fd);
		_exit(0);
	}
	close(fd);
	answer();
	say("inherited: %s", joined(t));
	close(p[0]), close(p[1]);
	must(waitpid(child, &status, 0));
	check(status == 0);
}

static void passed(void)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec v = { &byte, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space };
	int pair[2], got;
	open_slowly();
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pthread_t t = begun();
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	*h = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd) };
	memcpy(CMSG_DATA(h), &fd, sizeof fd);
	check(sendmsg(pair[0], &m, 0) == 1);
	close(fd);
	m.msg_controllen = sizeof space;
	check(recvmsg(pair[1], &m, 0) == 1);
	memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof got);
	answer();
	say("passed: %s", joined(t));
	check(poll_for(got, POLLOUT, 10000) == POLLOUT);
	talk(got);
	close(pair[0]), close(pair[1]);
}

static void half_closed(void)
{
	char c;
	open_slowly();
	pthread_t t = begun();
	int r = shutdown(fd, SHUT_WR);
	say("shut down: %s", err(r));
	answer();
	say("then: %s", joined(t));
	close(fd);
	fd = must(socket(AF_INET, SOCK_STREAM, 0));
	connect(fd, (void *)&to, sizeof to);
	talk(fd);
}

static void unspecified(void)
{
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	open_slowly();
	must(fcntl(fd, F_SETFL, O_NONBLOCK));
	say("begun: %s", err(connect(fd, (void *)&to, sizeof to)));
	say("no more: %s", err(connect(fd, &none, sizeof none)));
	must(fcntl(fd, F_SETFL, 0));
	answer();
	say("once more: %s", err(connect(fd, (void *)&to, sizeof to)));
	talk(fd);
}

static void sets(void)
{
	struct epoll_event e = { .events = EPOLLOUT };
	open_slowly();
	int set = must(epoll_create1(0)), other = must(dup(fd));
	pthread_t t = begun();
	must(epoll_ctl(set, EPOLL_CTL_ADD, other, &e));
	answer();
	check(epoll_wait(set, &e, 1, 10000) == 1 && e.events == EPOLLOUT);
	say("watched: %s", joined(t));
	close(fd);
	check(epoll_wait(set, &e, 1, 10000) == 1 && e.events == EPOLLOUT);
	talk(other);
	close(set);
}

/* Z: and its last thread has ended. */
static void until_it_is(pid_t pid, char state)
{
	char path[64], line[512], now = 0;
	int threads = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	while (now != state || (state == 'Z' && threads != 1)) {
		FILE *f = fopen(path, "re");
		check(f && fgets(line, sizeof line, f));
		fclose(f);
		check(sscanf(strrchr(line, ')') + 2, "%c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &now, &threads) == 2);
	}
}

/* Accepted, and killed before the client sees it: there is nothing but a FIN. */
static void abandoned(void)
{
	char c;
	int l = listening(0, 0), p = port_of(l), go[2];
	must(pipe(go));
	pid_t self = getpid(), child = must(fork());
	if (!child) {
		check(read(go[0], &c, 1) == 1);
		must(kill(self, SIGSTOP));
		until_it_is(self, 'T');
		accepted(l);
		kill(getpid(), SIGKILL);
	}
	pid_t waker = must(fork());
	if (!waker) {
		until_it_is(child, 'Z');
		must(kill(self, SIGCONT));
		_exit(0);
	}
	close(l);
	int s = connected(p);
	struct timeval limit = { .tv_sec = 10 };
	must(setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	check(write(go[1], "g", 1) == 1);
	must(waitpid(waker, NULL, 0));
	must(waitpid(child, NULL, 0));
	say("abandoned: %s", got(recv(s, &c, 1, 0)));
	close(s), close(go[0]), close(go[1]);
}

static const struct { const char *name; void (*run)(void); int left; } all[] = {
#define S(x) { #x, x, 0 }
#define L(x) { #x, x, 1 }
	S(moved_before), S(moved_meanwhile), S(moved_and_used), S(second_waits), S(second_polls), S(cancelled), S(jumped), S(jumped_and_again),
	S(jumped_and_other), S(handler), S(interrupted), S(forked), S(half_closed), S(unspecified), S(sets), S(abandoned),
	L(reused), L(replaced), L(file), L(inherited), L(passed),
};

static const char *only;
static void client(int m)
{
	meeting = m;
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (!only ? !all[i].left : !strcmp(only, "-left") ? all[i].left : !strcmp(only, all[i].name))
			all[i].run();
	close(m);
}

int main(int argc, char **argv)
{
	only = argc > 1 ? argv[1] : NULL;
	slow = mmap(NULL, sizeof *slow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(slow != MAP_FAILED);
	return two_processes(server, client);
}

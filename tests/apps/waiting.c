/* Blocking calls: time limits, signals that end them, signals that restart them. */
#include "app.h"

static char buf[1 << 16];
static _Atomic int ticks;
static pid_t reader_tid;
static pthread_t reader;

static void tick(int sig) { ticks++; }

/* What the call took, in words: time limits are honoured, and nothing waits for ever. */
static const char *took(double since, double at_least)
{
	double t = now() - since;
	return t < at_least ? "too early" : t > at_least + 10 ? "too late" : "in time";
}

static void fill_up(int fd)
{
	while (send(fd, buf, sizeof buf, MSG_DONTWAIT | MSG_NOSIGNAL) > 0)
		;
}

static void *interrupt(void *unused)
{
	until_asleep(reader_tid);
	pthread_kill(reader, SIGUSR1);
	return NULL;
}

static void *interrupt_then_send(void *unused)
{
	interrupt(NULL);
	while (!ticks)
		usleep(1000);
	until_asleep(reader_tid);
	pass(); /* now the peer sends */
	return NULL;
}

static void one_signal(const char *name, int flags, int then_data, int fd, ssize_t (*call)(int))
{
	handle(SIGUSR1, tick, flags);
	ticks = 0;
	pthread_t t = thread(then_data ? interrupt_then_send : interrupt, NULL);
	ssize_t n = call(fd);
	say("%s%s: %s, %d signal", name, flags ? " with SA_RESTART" : "", got(n), ticks);
	pthread_join(t, NULL);
}

static ssize_t by_recv(int fd) { return recv(fd, buf, 1, 0); }
static ssize_t by_read(int fd) { return read(fd, buf, 1); }
static ssize_t by_poll(int fd) { return poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 20000); }
static ssize_t by_select(int fd)
{
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	return select(fd + 1, &set, NULL, NULL, NULL);
}
static ssize_t by_epoll(int fd)
{
	struct epoll_event e = { .events = EPOLLIN };
	int set = must(epoll_create1(0));
	must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
	ssize_t n = epoll_wait(set, &e, 1, 20000);
	int saved = errno;
	close(set);
	errno = saved;
	return n;
}
static ssize_t by_waitall(int fd) { return recv(fd, buf, 10, MSG_WAITALL); }
static ssize_t by_timed_recv(int fd)
{
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 20, 0 }, sizeof(struct timeval)));
	ssize_t n = recv(fd, buf, 1, 0);
	int saved = errno;
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0, 0 }, sizeof(struct timeval)));
	errno = saved;
	return n;
}
static ssize_t by_send(int fd) { return send(fd, buf, 1, MSG_NOSIGNAL); }

static void server(int fd)
{
	reader = pthread_self();
	reader_tid = gettid();
	struct timeval limit = { 0, 150000 }, left;
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	double t = now();
	say("receive limit: %s", got(recv(fd, buf, 1, 0)));
	say("receive limit: %s", took(t, .14));
	t = now();
	say("receive limit, readv: %s", got(readv(fd, &(struct iovec){ buf, 1 }, 1)));
	say("receive limit, readv: %s", took(t, .14));
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0, 0 }, sizeof limit));

	t = now();
	say("poll: %d", poll_for(fd, POLLIN, 120));
	say("poll: %s", took(t, .11));
	fd_set set;
	FD_ZERO(&set);
	FD_SET(fd, &set);
	left = (struct timeval){ 0, 120000 };
	t = now();
	say("select: %d", select(fd + 1, &set, NULL, NULL, &left));
	say("select: %s, left %ld %ld, set %d", took(t, .11), (long)left.tv_sec, (long)left.tv_usec, FD_ISSET(fd, &set));
	struct timespec exact = { 0, 120000000 };
	t = now();
	say("ppoll: %s", got(ppoll(&(struct pollfd){ fd, POLLIN, 0 }, 1, &exact, NULL)));
	say("ppoll: %s, limit %s", took(t, .11), exact.tv_nsec == 120000000 ? "untouched" : "changed");
	say("nothing to wait for: %s", poll_bits(poll_for(fd, POLLIN, 0)));

	one_signal("recv", 0, 0, fd, by_recv);
	one_signal("read", 0, 0, fd, by_read);
	one_signal("poll", 0, 0, fd, by_poll);
	one_signal("poll", SA_RESTART, 0, fd, by_poll);
	one_signal("select", SA_RESTART, 0, fd, by_select);
	one_signal("epoll", SA_RESTART, 0, fd, by_epoll);
	one_signal("recv with a limit", SA_RESTART, 0, fd, by_timed_recv);
	one_signal("recv", SA_RESTART, 1, fd, by_recv);
	one_signal("read", SA_RESTART, 1, fd, by_read);
	await();
	one_signal("wait for all, partly there", 0, 0, fd, by_waitall);

	/* ppoll's mask lets a blocked signal in, atomically. */
	sigset_t blocked, none;
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	handle(SIGUSR1, tick, 0);
	ticks = 0;
	raise(SIGUSR1);
	say("ppoll lets the signal in: %s", got(ppoll(&(struct pollfd){ fd, POLLIN, 0 }, 1, NULL, &none)));
	raise(SIGUSR1);
	struct epoll_event e = { .events = EPOLLIN };
	int ep = must(epoll_create1(0));
	must(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
	say("epoll_pwait too: %s", got(epoll_pwait(ep, &e, 1, -1, &none)));
	say("%d signals", ticks);
	close(ep);
	pthread_sigmask(SIG_UNBLOCK, &blocked, NULL);

	fill_up(fd);
	one_signal("send into a full socket", 0, 0, fd, by_send);
	must(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	t = now();
	say("send limit: %s", got(by_send(fd)));
	say("send limit: %s", took(t, .14));
	close(fd);
	close(listener);
	pass();
}

static void client(int fd)
{
	for (int i = 0; i < 2; i++) {
		await();
		send_all(fd, "x", 1);
	}
	send_all(fd, "part", 4);
	pass();
	await();
	close(fd);
}

int main(void) { return two_processes(server, client); }

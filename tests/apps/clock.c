/* A program that tells itself another time, as libraries that fake the clock do: time limits go by the kernel's all the same. */
#include "app.h"
#include <sys/syscall.h>

int clock_gettime(clockid_t clock, struct timespec *t)
{
	int r = syscall(SYS_clock_gettime, clock, t);
	t->tv_sec += 1 << 28;
	return r;
}

static char buf[1 << 16];

static void server(int fd)
{
	struct timeval limit = { 0, 50000 };
	struct epoll_event e = { .events = EPOLLIN };
	fd_set in;
	int set = must(epoll_create1(0));
	ssize_t n;
	alarm(20);
	meet(fd);
	check(now() > 1 << 28);
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	must(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
	must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
	say("recv %s", got(recv(fd, buf, 1, 0)));
	say("read %s", got(read(fd, buf, 1)));
	say("poll %d", poll_for(fd, POLLIN, 50));
	FD_ZERO(&in);
	FD_SET(fd, &in);
	say("select %d", select(fd + 1, &in, NULL, NULL, &limit));
	say("epoll %d", epoll_wait(set, &e, 1, 50));
	while ((n = send(fd, buf, sizeof buf, 0)) > 0)
		;
	say("send %s", got(n));
	pass();
	await();
	close(fd);
}

static void client(int fd)
{
	meet(fd);
	await();
	while (recv(fd, buf, sizeof buf, MSG_DONTWAIT) > 0)
		;
	pass();
	while (recv(fd, buf, sizeof buf, 0) > 0)
		;
	close(fd);
}

int main(void) { return two_processes(server, client); }

/* before known|unsure|racing: what a program does with a socket before it connects it: epoll sets, other numbers. */
#include "app.h"
#include <sys/epoll.h>

enum { KNOWN = 11, UNSURE = 8, RACING = 300 };
static struct sockaddr_in to;
static int set, fd;
static char buf[16];

static void fresh(int flags)
{
	set = must(epoll_create1(0));
	fd = must(socket(AF_INET, SOCK_STREAM | flags, 0));
}

static void ctl(int s, int op, int what, uint32_t events, uint32_t data)
{
	struct epoll_event e = { .events = events, .data.u32 = data };
	must(epoll_ctl(s, op, what, &e));
}

static void join(int what)
{
	int r = connect(what, (void *)&to, sizeof to);
	check(r == 0 || errno == EINPROGRESS);
	check(poll_for(what, POLLOUT, 5000));
}

static void greet(const char *how, int s, int in, int out)
{
	struct epoll_event e;
	int r;
	send_all(out, "hi", 2);
	do
		r = must(epoll_wait(s, &e, 1, 10000));
	while (r == 1 && !(e.events & EPOLLIN));
	say("%s: %d event, data %u", how, r, e.data.u32);
	check(receive_all(in, buf, 2) == 2);
	close(set), close(fd);
}

static void known(void)
{
	for (int i = 0; i < 4; i++) {
		fresh(i & 1 ? SOCK_NONBLOCK : 0);
		ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | (i & 2 ? EPOLLET : 0), 7);
		join(fd);
		greet(i & 2 ? "edge" : "level", set, fd, fd);
	}
	/* nginx: everything, before a connect that does not block */
	struct epoll_event e;
	fresh(SOCK_NONBLOCK);
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 8);
	int r = connect(fd, (void *)&to, sizeof to);
	check(r == 0 || errno == EINPROGRESS);
	r = must(epoll_wait(set, &e, 1, 10000));
	say("connected: %d event, %#x, data %u", r, e.events & EPOLLOUT, e.data.u32);
	greet("upstream", set, fd, fd);

	fresh(0);
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLOUT, 1);
	ctl(set, EPOLL_CTL_MOD, fd, EPOLLIN, 9);
	join(fd);
	greet("modified", set, fd, fd);

	fresh(0);
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLOUT, 1);
	must(epoll_ctl(set, EPOLL_CTL_DEL, fd, 0));
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 10);
	join(fd);
	say("again: %s", err(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e)));
	greet("deleted", set, fd, fd);

	fresh(0);
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 11);
	join(fd);
	must(epoll_ctl(set, EPOLL_CTL_DEL, fd, 0));
	say("gone: %s", err(epoll_ctl(set, EPOLL_CTL_DEL, fd, 0)));
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 12);
	greet("added again", set, fd, fd);

	/* one socket, several numbers: connected by one, used by the others */
	fresh(0);
	int d = must(dup(fd)), high = must(fcntl(fd, F_DUPFD, 60));
	join(fd);
	close(fd);
	fd = d;
	send_all(high, "hi", 2);
	check(receive_all(d, buf, 2) == 2);
	say("other numbers: %.2s", buf);
	close(high), close(fd), close(set);

	fresh(0);
	d = must(dup(fd));
	ctl(set, EPOLL_CTL_ADD, d, EPOLLIN, 13);
	join(fd);
	greet("registered by the other", set, fd, d);
	close(d);

	fresh(0);
	must(dup2(fd, 70));
	must(dup2(0, 70)); /* not any more */
	join(fd);
	send_all(fd, "hi", 2);
	check(receive_all(fd, buf, 2) == 2);
	close(70), close(fd), close(set);
}

static void unsure(void)
{
	fresh(0);
	int more = must(epoll_create1(0));
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1);
	ctl(more, EPOLL_CTL_ADD, fd, EPOLLIN, 2);
	join(fd);
	greet("second set", more, fd, fd);
	close(more);

	fresh(0);
	more = must(dup(set));
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 3);
	ctl(more, EPOLL_CTL_MOD, fd, EPOLLIN, 4);
	join(fd);
	greet("other name of the set", set, fd, fd);
	close(more);

	fresh(0);
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT, 5);
	join(fd);
	greet("one shot", set, fd, fd);

	fresh(0); /* a number that is closed, and still reported */
	int d = must(dup(fd));
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 6);
	close(fd);
	join(d);
	fd = d;
	greet("closed number", set, d, d);

	fresh(0);
	d = must(dup(fd));
	ctl(set, EPOLL_CTL_ADD, d, EPOLLIN, 7);
	must(dup2(0, d));
	join(fd);
	greet("replaced number", set, fd, fd);
	close(d);

	fresh(0); /* the set is closed, its number another set's */
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 8);
	close(set);
	set = must(epoll_create1(0));
	join(fd);
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 9);
	greet("another set", set, fd, fd);

	fresh(0); /* the child connects, both see it */
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 10);
	pid_t child = must(fork());
	if (!child) {
		join(fd);
		send_all(fd, "hi", 2);
		check(poll_for(fd, POLLIN, 10000) & POLLIN);
		_exit(0);
	}
	int status;
	must(waitpid(child, &status, 0));
	check(status == 0);
	struct epoll_event e;
	int n = must(epoll_wait(set, &e, 1, 10000));
	say("the child's: %d event, data %u, read %s", n, e.data.u32, got(recv(fd, buf, 2, 0)));
	close(set), close(fd);

	fresh(0);
	ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, 11);
	if (!(child = must(fork())))
		_exit(0);
	must(waitpid(child, &status, 0));
	join(fd);
	greet("after a fork", set, fd, fd);
}

static _Atomic int go;
static struct { int op; uint32_t events, data; } last;

static void *change(void *arg)
{
	while (!go)
		;
	ctl(set, last.op, fd, last.events, last.data);
	return NULL;
}

/* One thread changes the registration while another connects: what was said last counts. */
static void racing(void)
{
	for (int i = 0; i < RACING; i++) {
		int op = i % 3, wrong = 0;
		struct epoll_event e = { 0 };
		fresh(0);
		if (op)
			ctl(set, EPOLL_CTL_ADD, fd, op == 1 ? EPOLLOUT : EPOLLIN, 1);
		last.op = op == 0 ? EPOLL_CTL_ADD : op == 1 ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
		last.events = EPOLLIN, last.data = i;
		go = 0;
		pthread_t t = thread(change, NULL);
		go = 1;
		for (volatile int k = 0; k < i * 30; k++)
			;
		must(connect(fd, (void *)&to, sizeof to));
		pthread_join(t, NULL);
		send_all(fd, "hi", 2);
		if (op == 2) {
			check(poll_for(fd, POLLIN, 10000) & POLLIN);
			wrong = must(epoll_wait(set, &e, 1, 0)) != 0;
			ctl(set, EPOLL_CTL_ADD, fd, EPOLLIN, i);
		}
		wrong |= must(epoll_wait(set, &e, 1, 10000)) != 1 || e.data.u32 != (uint32_t)i || e.events != EPOLLIN;
		check(receive_all(fd, buf, 2) == 2);
		wrong |= must(epoll_wait(set, &e, 1, 0)) != 0;
		if (wrong)
			say("wrong: %d", i);
		close(set), close(fd);
	}
}

static int rounds;

static void server(int mine)
{
	close(mine);
	for (int i = 0; i < rounds; i++) {
		int c = accepted(listener);
		check(receive_all(c, buf, 2) == 2);
		send_all(c, buf, 2);
		check(recv(c, buf, 1, 0) == 0);
		close(c);
	}
}

static void client(int mine)
{
	close(mine);
	to = loopback(port);
	rounds == KNOWN ? known() : rounds == UNSURE ? unsure() : racing();
}

int main(int argc, char **argv)
{
	check(argc == 2);
	rounds = !strcmp(argv[1], "known") ? KNOWN : !strcmp(argv[1], "unsure") ? UNSURE : RACING;
	return two_processes(server, client);
}

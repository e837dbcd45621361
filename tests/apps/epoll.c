/* epoll over one connection, a pipe and a plain listener: level, edge, one shot, several sets, dups, nesting, fork. */
#include "app.h"

static char buf[1 << 16];
static int set;

static const char *bits(int e)
{
	static _Thread_local char text[64];
	snprintf(text, sizeof text, "%s%s%s%s%s%s", e & EPOLLIN ? "IN " : "", e & EPOLLOUT ? "OUT " : "", e & EPOLLRDHUP ? "RDHUP " : "",
		 e & EPOLLHUP ? "HUP " : "", e & EPOLLERR ? "ERR " : "", e & EPOLLPRI ? "PRI " : "");
	return text;
}

/* Says what one epoll_wait reports, in the order of the data words. */
static int report(const char *what, int in, int ms)
{
	struct epoll_event e[8];
	char line[256];
	int n = must(epoll_wait(in, e, 8, ms)), at = snprintf(line, sizeof line, "%s:", what);
	for (unsigned d = 0; d < 16; d++)
		for (int i = 0; i < n; i++)
			if (e[i].data.u32 == d)
				at += snprintf(line + at, sizeof line - at, " %u %s", d, bits(e[i].events));
	say("%s%s", line, n ? "" : " nothing");
	return n;
}

/* Says what is ready, each with its last events; one epoll_wait may report only some of it. */
static void report_ready(const char *what, unsigned expected)
{
	unsigned events[16] = { 0 }, seen = 0;
	char line[256];
	int at = snprintf(line, sizeof line, "%s:", what);
	for (int i = 0; i < 30 && seen != expected; i++) {
		struct epoll_event e[8];
		int n = must(epoll_wait(set, e, 8, 5000));
		for (int k = 0; k < n; k++)
			seen |= 1 << e[k].data.u32, events[e[k].data.u32] = e[k].events;
	}
	for (unsigned d = 0; d < 16; d++)
		if (seen >> d & 1)
			at += snprintf(line + at, sizeof line - at, " %u %s", d, bits(events[d]));
	say("%s", line);
}

static long control(int in, int op, int fd, int events, int data)
{
	struct epoll_event e = { .events = events, .data.u32 = data };
	return epoll_ctl(in, op, fd, &e);
}
static void add(int in, int fd, int events, int data) { must(control(in, EPOLL_CTL_ADD, fd, events, data)); }
static void mod(int in, int fd, int events, int data) { must(control(in, EPOLL_CTL_MOD, fd, events, data)); }
static void del(int in, int fd) { must(control(in, EPOLL_CTL_DEL, fd, 0, 0)); }
static void take(int fd, int n) { check(receive_all(fd, buf, n) == (size_t)n); }

/* The peer sends n bytes, now. */
static void more(void) { pass(); await(); }

static void server(int fd)
{
	int p[2];
	set = must(epoll_create1(EPOLL_CLOEXEC));
	must(pipe2(p, O_CLOEXEC | O_NONBLOCK));

	add(set, fd, EPOLLIN, 1);
	say("twice: %s", err(control(set, EPOLL_CTL_ADD, fd, EPOLLIN, 1)));
	report("level, nothing", set, 0);
	more();
	report("level", set, 5000);
	report("level, still there", set, 0);
	take(fd, 1);
	report("level, part read", set, 0);
	take(fd, 3);
	report("level, all read", set, 0);
	mod(set, fd, EPOLLIN | EPOLLOUT, 2);
	report("level, writable", set, 0);

	mod(set, fd, EPOLLIN | EPOLLET, 3);
	report("edge, nothing", set, 0);
	more();
	report("edge", set, 5000);
	report("edge, reported", set, 0);
	take(fd, 1);
	report("edge, part read", set, 0);
	more();
	report("edge, more came", set, 5000);
	mod(set, fd, EPOLLIN | EPOLLET, 4);
	report("edge, armed again by MOD", set, 0);
	take(fd, 7);
	mod(set, fd, EPOLLIN | EPOLLOUT | EPOLLET, 4);
	report("edge, writable", set, 0);
	report("edge, writable reported", set, 0);

	mod(set, fd, EPOLLIN | EPOLLONESHOT, 5);
	more();
	report("one shot", set, 5000);
	more();
	report("one shot, spent", set, 0);
	mod(set, fd, EPOLLIN | EPOLLONESHOT, 6);
	report("one shot, armed again", set, 0);
	take(fd, 8);
	mod(set, fd, EPOLLIN | EPOLLONESHOT, 6);
	report("one shot, nothing", set, 0);
	mod(set, fd, 0, 7);
	report("no events", set, 0);
	del(set, fd);
	say("deleted: %s", err(control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 1)));
	say("deleted: %s", err(control(set, EPOLL_CTL_DEL, fd, 0, 0)));

	/* A mixed set: connection, pipe, listener. */
	add(set, fd, EPOLLIN, 1);
	add(set, p[0], EPOLLIN, 2);
	add(set, p[1], EPOLLOUT | EPOLLET, 3);
	add(set, listener, EPOLLIN, 4);
	report("mixed, the pipe is writable", set, 0);
	must(write(p[1], "x", 1));
	report("mixed, the pipe", set, 5000);
	more();
	report_ready("mixed, both", 1 << 1 | 1 << 2);
	int c = connected(port);
	check(poll_for(listener, POLLIN, 5000));
	report_ready("mixed, all", 1 << 1 | 1 << 2 | 1 << 4);
	struct epoll_event one[2];
	int seen = 0; /* nobody starves with room for one event only */
	for (int i = 0; i < 30; i++) {
		check(epoll_wait(set, one, 1, 5000) == 1);
		seen |= 1 << one[0].data.u32;
	}
	say("one at a time: %#x", seen);
	int s = accepted(listener);
	send_all(c, "x", 1);
	take(s, 1);
	close(c), close(s);
	take(fd, 4);
	must(read(p[0], buf, 1));
	del(set, p[0]), del(set, p[1]), del(set, listener);

	/* Two sets, a dup, a nested set. */
	int other = must(epoll_create1(0)), d = must(dup(fd)), outer = must(epoll_create1(0));
	add(other, fd, EPOLLIN | EPOLLET, 5);
	add(set, d, EPOLLIN, 6);
	add(outer, set, EPOLLIN, 7);
	report("nested, nothing", outer, 0);
	more();
	report("outer", outer, 5000);
	report_ready("two names", 1 << 1 | 1 << 6);
	report("other set", other, 5000);
	report("other set, reported", other, 0);
	say("poll of a set: %s", poll_bits(poll_for(outer, POLLIN, 0)));
	say("loop: %s", err(control(set, EPOLL_CTL_ADD, outer, EPOLLIN, 9)));
	say("itself: %s", err(control(set, EPOLL_CTL_ADD, set, EPOLLIN, 9)));
	take(d, 4);
	report("outer, read", outer, 0);
	say("poll of a set: %s", poll_bits(poll_for(outer, POLLIN, 0)));
	close(d); /* the description lives on: so does the registration */
	more();
	report_ready("closed dup still reports", 1 << 1 | 1 << 6);
	take(fd, 4);
	close(outer);
	close(other);
	close(set);

	/* A set that sleeps is woken by data, by another thread's ADD, by the pipe. */
	set = must(epoll_create1(0));
	add(set, fd, EPOLLIN, 1);
	pass(); /* comes while we sleep */
	report("woken", set, 10000);
	await();
	take(fd, 4);

	/* A forked child waits on the inherited set. */
	pid_t child = must(fork());
	if (!child) {
		report("in the child", set, 10000);
		take(fd, 4);
		send_all(fd, "from the child", 14);
		_exit(0);
	}
	pass();
	int status;
	must(waitpid(child, &status, 0));
	say("child: %d", status);
	await();
	report("after the child", set, 0);

	/* Full, and writable again. */
	mod(set, fd, EPOLLOUT | EPOLLET, 2);
	report("writable", set, 0);
	size_t sent = 0;
	ssize_t n;
	while ((n = send(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0)
		sent += n;
	report("full", set, 0);
	must(write(turn[CLIENT][1], &sent, sizeof sent));
	report("drained", set, 10000);
	await();

	/* Half close, then close. */
	mod(set, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 3);
	pass();
	report("half closed", set, 10000);
	say("end %s", got(recv(fd, buf, 1, 0)));
	must(shutdown(fd, SHUT_WR));
	do /* RDHUP may be told once more before HUP */
		n = must(epoll_wait(set, (struct epoll_event[1]){}, 1, 10000));
	while (n && !(poll_for(fd, 0, 0) & POLLHUP));
	mod(set, fd, EPOLLIN | EPOLLRDHUP, 4);
	report("closed on both sides", set, 10000);
	close(fd); /* the registration goes with the last descriptor */
	report("gone", set, 0);

	/* An epoll set in which everything went, and a number used again. */
	fd = another();
	report("new connection, same number", set, 0);
	add(set, fd, EPOLLIN | EPOLLEXCLUSIVE, 8);
	more();
	report("exclusive", set, 5000);
	say("exclusive MOD: %s", err(control(set, EPOLL_CTL_MOD, fd, EPOLLIN, 8)));
	say("no room: %s", err(epoll_wait(set, one, 0, 0)));
	say("no set: %s", err(epoll_wait(fd, one, 1, 0)));
	say("a file: %s", err(control(set, EPOLL_CTL_ADD, must(memfd_create("file", 0)), EPOLLIN, 9)));
	close(fd);
}

static void four(int fd)
{
	await();
	send_all(fd, "four", 4);
	pass();
}

static void client(int fd)
{
	for (int i = 0; i < 8; i++)
		four(fd);
	await(); /* woken: first let it sleep */
	usleep(30000);
	send_all(fd, "four", 4);
	pass();
	await(); /* the child */
	usleep(30000);
	send_all(fd, "four", 4);
	check(receive_all(fd, buf, 14) == 14);
	pass();
	size_t sent, n = 0;
	check(read(turn[CLIENT][0], &sent, sizeof sent) == sizeof sent);
	while (n < sent)
		n += must(recv(fd, buf, sizeof buf, 0));
	pass();
	await();
	must(shutdown(fd, SHUT_WR));
	say("end %s", got(recv(fd, buf, 1, 0)));
	close(fd);
	fd = another();
	four(fd);
	say("%s", poll_bits(poll_for(fd, POLLIN, 10000)));
	close(fd);
}

int main(void) { return two_processes(server, client); }

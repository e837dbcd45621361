/* epoll.c: sets with connections of ours, each sequence beside a native run of it. build: epoll.c poll.c lane.c bell.c
 * EPOLL_TEST_LONG=n multiplies the timed parts. */
#include "ready_pair.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

static int scale = 1;

static int ctl(int ep, int op, int fd, u32 events, u64 data)
{
	struct epoll_event ev = {.events = events, .data.u64 = data};

	return h_epoll_ctl(ep, op, fd, &ev);
}
#define ADD EPOLL_CTL_ADD
#define MOD EPOLL_CTL_MOD
#define DEL EPOLL_CTL_DEL

static void pause_native(int ours)
{
	if (!ours)
		nap(500);
}

/* Notes what one wait brings, without an order. */
static void w(int ours, int ep, const char *what)
{
	struct epoll_event ev[16];

	pause_native(ours);
	int n = h_epoll_wait(ep, ev, 16, 0);
	note(" %s=", what);
	if (n < 0)
		note("%s", err(n));
	for (u64 d = 0; d < 64 && n > 0; d++)
		for (int i = 0; i < n; i++)
			if (ev[i].data.u64 == d)
				note("%d:%x,", (int)d, ev[i].events);
	for (int i = 0; i < n; i++)
		CHECK(ev[i].data.u64 < 64, "a tag of ours reached the program: %llx", (long long)ev[i].data.u64);
}

/* In a set with other fds, too, which take turns with ours: what several waits bring. */
static void wu(int ours, int ep, const char *what)
{
	struct epoll_event ev[16];
	u32 seen[64] = {0};

	pause_native(ours);
	for (int k = 0; k < 4; k++, nap(100))
		for (int n = h_epoll_wait(ep, ev, 16, 0), i = 0; i < n; i++) {
			CHECK(ev[i].data.u64 < 64);
			seen[ev[i].data.u64] |= ev[i].events;
		}
	note(" %s=", what);
	for (int d = 0; d < 64; d++)
		if (seen[d])
			note("%d:%x,", d, seen[d]);
}

static int new_set(void)
{
	int ep = h_epoll_create1(EPOLL_CLOEXEC);
	CHECK(ep >= 0);
	return ep;
}

/* ---- one socket, every trigger, every mask ---- */

static void matrix(int ours, int trigger, int mask, int before)
{
	u32 ev = (u32)trigger | (u32)mask;
	int fd[2], ep = new_set();

	x_pair(ours, fd);
	if (before)
		x_send(fd[1], "hello", 5);
	note("add %s", err(ctl(ep, ADD, fd[0], ev, 7)));
	w(ours, ep, "1");
	w(ours, ep, "2");
	x_send(fd[1], "hello", 5);
	w(ours, ep, "more");
	w(ours, ep, "again");
	x_send(fd[1], "hello", 5);
	w(ours, ep, "unread+more");
	w(ours, ep, "again");
	note(" read %d", (int)x_drain(fd[0]));
	w(ours, ep, "drained");
	x_send(fd[1], "abc", 3);
	w(ours, ep, "new");
	note(" mod %s", err(ctl(ep, MOD, fd[0], ev, 8)));
	w(ours, ep, "mod");
	w(ours, ep, "again");
	x_drain(fd[0]);
	note(" mod %s", err(ctl(ep, MOD, fd[0], ev, 9)));
	w(ours, ep, "mod");
	x_fill(fd[0]);
	w(ours, ep, "full");
	note(" mod %s", err(ctl(ep, MOD, fd[0], ev, 10)));
	w(ours, ep, "mod");
	while (x_drain(fd[1]) && !ours)
		nap(2000);
	w(ours, ep, "room");
	w(ours, ep, "again");
	note(" mod %s", err(ctl(ep, MOD, fd[0], 0, 11)));
	w(ours, ep, "nothing");
	x_send(fd[1], "abc", 3);
	w(ours, ep, "unasked");
	note(" mod %s", err(ctl(ep, MOD, fd[0], ev, 12)));
	w(ours, ep, "asked");
	x_shut(fd[1]);
	w(ours, ep, "fin");
	w(ours, ep, "again");
	note(" mod %s", err(ctl(ep, MOD, fd[0], ev, 13)));
	w(ours, ep, "mod");
	x_shut(fd[0]);
	w(ours, ep, "both");
	w(ours, ep, "again");
	note(" del %s", err(ctl(ep, DEL, fd[0], 0, 0)));
	w(ours, ep, "del");
	note(" del %s", err(ctl(ep, DEL, fd[0], 0, 0)));
	note(" mod %s", err(ctl(ep, MOD, fd[0], ev, 1)));
	x_done(fd);
	x_close(ep);
}

static void test_matrix(void)
{
	static const u32 trigger[] = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
	static const u32 mask[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP, EPOLLRDHUP, 0,
				   EPOLLIN | EPOLLRDNORM | EPOLLPRI, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI, EPOLLWRNORM};

	section("matrix");
	for (u32 t = 0; t < 4; t++)
		for (u32 m = 0; m < sizeof mask / sizeof *mask; m++)
			for (int before = 0; before < 2; before++)
				SAME(matrix, (int)trigger[t], (int)mask[m], before);
}

/* ---- errors ---- */

static void errors(int ours, int a, int b, int c)
{
	int fd[2], ep = new_set(), file = open("/dev/null", O_RDONLY), ev = eventfd(0, 0);
	struct epoll_event got;
	u32 x = EPOLLEXCLUSIVE;

	(void)a, (void)b, (void)c;
	x_pair(ours, fd);
	note("%s ", err(ctl(ep, ADD, fd[0], EPOLLIN, 1)));
	note("%s ", err(ctl(ep, ADD, fd[0], EPOLLIN, 1)));
	note("%s ", err(ctl(ep, MOD, fd[1], EPOLLIN, 1)));
	note("%s ", err(ctl(ep, DEL, fd[1], EPOLLIN, 1)));
	note("%s ", err(ctl(ep, 17, fd[0], EPOLLIN, 1)));
	note("%s ", err(h_epoll_ctl(ep, ADD, fd[1], 0)));
	note("%s ", err(h_epoll_ctl(ep, MOD, fd[0], 0)));
	note("%s ", err(ctl(-1, ADD, fd[1], EPOLLIN, 1)));
	note("%s ", err(ctl(3999, ADD, fd[1], EPOLLIN, 1)));
	note("%s ", err(ctl(ev, ADD, fd[1], EPOLLIN, 1)));
	note("%s ", err(ctl(fd[0], ADD, fd[1], EPOLLIN, 1)));
	note("%s ", err(ctl(fd[1], ADD, fd[1], EPOLLIN, 1)));
	note("%s ", err(ctl(ep, ADD, file, EPOLLIN, 1)));
	note("%s ", err(ctl(ep, ADD, ep, EPOLLIN, 1)));
	note("%s ", err(ctl(ep, MOD, fd[0], x | EPOLLIN, 1)));
	note("%s ", err(ctl(ep, ADD, fd[1], x | EPOLLIN | EPOLLONESHOT, 1)));
	note("%s ", err(ctl(ep, ADD, fd[1], x | EPOLLIN | EPOLLRDHUP, 1)));
	note("%s ", err(ctl(ep, ADD, fd[1], x | EPOLLIN | EPOLLET | EPOLLWAKEUP, 1)));
	note("%s ", err(ctl(ep, MOD, fd[1], EPOLLIN, 1)));
	note("%s ", err(ctl(ep, DEL, fd[1], 0, 1)));
	note("%s ", err(ctl(ep, ADD, fd[1], EPOLLIN, 1)));
	note("%s ", err(h_epoll_wait(ep, &got, 0, 0)));
	note("%s ", err(h_epoll_wait(ep, &got, -1, 0)));
	note("%s ", err(h_epoll_wait(ep, &got, 0x7fffffff, 0)));
	note("%s ", err(h_epoll_wait(ev, &got, 1, 0)));
	note("%s ", err(h_epoll_wait(3999, &got, 1, 0)));
	struct timespec bad = {0, 1000000000}, neg = {-1, 0};
	note("%s ", err(h_epoll_pwait2(ep, &got, 1, &bad, 0)));
	note("%s ", err(h_epoll_pwait2(ep, &got, 1, &neg, 0)));
	CHECK(h_epoll_create(0) == -1 && errno == EINVAL);
	x_close(ev);
	x_close(file);
	x_done(fd);
	x_close(ep);
}

static void not_for_the_program(void)
{
	int ep = new_set(), ev = fd_hide(eventfd(0, 0));

	section("errors");
	SAME(errors, 0, 0, 0);
	CHECK(ctl(ep, ADD, ev, EPOLLIN, 0) == -1 && errno == EBADF);
	fd_unhide(ev);
	x_close(ep);
}

/* ---- mixed sets, rotation, several sets, dups ---- */

static void mixed(int ours, int et, int b, int c)
{
	int p[8][2], ep = new_set(), ev = eventfd(0, EFD_NONBLOCK), pi[2];
	u64 one = 1;

	(void)b, (void)c;
	CHECK(pipe2(pi, O_NONBLOCK) == 0);
	ctl(ep, ADD, ev, EPOLLIN | (u32)et, 20);
	ctl(ep, ADD, pi[0], EPOLLIN | (u32)et, 21);
	for (int i = 0; i < 8; i++) {
		x_pair(ours && i != 3, p[i]);
		ctl(ep, ADD, p[i][0], EPOLLIN | (u32)et, (u64)i);
	}
	wu(ours, ep, "none");
	for (int i = 0; i < 8; i += 3)
		x_send(p[i][1], "x", 1);
	wu(ours, ep, "some");
	CHECK(write(ev, &one, 8) == 8 && write(pi[1], "x", 1) == 1);
	wu(ours, ep, "all");
	wu(ours, ep, "again");
	for (int i = 0; i < 8; i++)
		x_drain(p[i][0]);
	wu(ours, ep, "drained");
	CHECK(read(ev, &one, 8) == 8);
	wu(ours, ep, "drained");
	for (int i = 0; i < 8; i++) {
		x_send(p[i][1], "x", 1);
		x_close(p[i][0]);
		wu(ours, ep, "closed");
		x_close(p[i][1]);
	}
	x_close(ep);
	x_close(ev);
	x_close(pi[0]);
	x_close(pi[1]);
}

static void several_sets(int ours, int et, int dups, int c)
{
	int fd[2], ep[2], d = -1;

	(void)c;
	x_pair(ours, fd);
	ep[0] = new_set();
	ep[1] = new_set();
	if (dups) {
		d = x_dup(fd[0]);
		note("%s ", err(ctl(ep[0], ADD, d, EPOLLIN | (u32)et, 5)));
	}
	for (int i = 0; i < 2; i++)
		note("%s ", err(ctl(ep[i], ADD, fd[0], EPOLLIN | EPOLLOUT | (u32)et, (u64)i)));
	for (int k = 0; k < 3; k++) {
		x_send(fd[1], "x", 1);
		w(ours, ep[0], "a");
		w(ours, ep[1], "b");
		w(ours, ep[0], "a");
		x_drain(fd[0]);
	}
	ctl(ep[0], DEL, fd[0], 0, 0);
	x_send(fd[1], "x", 1);
	w(ours, ep[0], "del");
	w(ours, ep[1], "b");
	if (dups) {
		x_close(d); /* the number is gone, the registration is not */
		x_send(fd[1], "y", 1);
		w(ours, ep[0], "stale");
		note("%s ", err(ctl(ep[0], DEL, d, 0, 0)));
	}
	x_close(ep[1]);
	w(ours, ep[0], "left");
	x_done(fd);
	w(ours, ep[0], "gone");
	x_close(ep[0]);
}

static void rotation(int max)
{
	enum { N = 12 };
	int p[N][2], ep = new_set(), ev = eventfd(1, 0), seen[N + 1] = {0}, calls = 0, all = 0;
	struct epoll_event got[N + 1];

	for (int i = 0; i < N; i++) {
		x_pair(1, p[i]);
		ctl(ep, ADD, p[i][0], EPOLLIN, (u64)i);
		x_send(p[i][1], "x", 1);
	}
	ctl(ep, ADD, ev, EPOLLIN, N);
	for (; all < N + 1 && calls < 200; calls++) {
		int n = h_epoll_wait(ep, got, max, -1);
		CHECK(n > 0 && n <= max);
		for (int i = 0; i < n; i++)
			all += !seen[got[i].data.u64]++;
	}
	CHECK(all == N + 1, "some starve");
	CHECK(calls <= 2 * N / max + 80, "%d calls with maxevents %d", calls, max);
	for (int i = 0; i < N; i++)
		x_done(p[i]);
	x_close(ev);
	x_close(ep);
}

/* More sets than an arm word has room for, and no bell at all: later, but not never. */
static void crowded(void)
{
	int fd[2], ep[6];
	struct epoll_event got;

	x_pair(1, fd);
	for (int i = 0; i < 6; i++) {
		ep[i] = new_set();
		ctl(ep[i], ADD, fd[0], EPOLLIN | (i & 1 ? EPOLLET : 0), (u64)i);
		CHECK(h_epoll_wait(ep[i], &got, 1, 0) == 0);
	}
	for (int k = 0; k < 3; k++) {
		x_send(fd[1], "x", 1);
		for (int i = 0; i < 6; i++) {
			CHECK(h_epoll_wait(ep[i], &got, 1, 2000) == 1 && got.data.u64 == (u64)i, "set %d round %d", i, k);
			if (i & 1)
				CHECK(h_epoll_wait(ep[i], &got, 1, 0) == 0);
		}
		x_drain(fd[0]);
		for (int i = 0; i < 6; i++) {
			i64 t = now_ns();
			CHECK(h_epoll_wait(ep[i], &got, 1, 30) == 0 && now_ns() - t >= 30 * MS);
		}
	}
	arms_refused = 1;
	ctl(ep[0], MOD, fd[0], EPOLLIN, 9);
	CHECK(h_epoll_wait(ep[0], &got, 1, 0) == 0);
	x_drain(fd[0]);
	x_send(fd[1], "x", 1);
	CHECK(h_epoll_wait(ep[0], &got, 1, 1000) == 1 && got.data.u64 == 9);
	arms_refused = 0;
	for (int i = 0; i < 6; i++)
		x_close(ep[i]);
	x_done(fd);
}

/* dup of a set, before and after its first socket of ours. */
static void dup_of_set(int ours, int late, int b, int c)
{
	int fd[2], ep = new_set(), d = late ? x_dup(ep) : -1;

	(void)b, (void)c;
	x_pair(ours, fd);
	ctl(ep, ADD, fd[0], EPOLLIN, 1);
	if (!late)
		d = x_dup(ep);
	x_send(fd[1], "x", 1);
	w(ours, d, "dup");
	w(ours, ep, "first");
	note(" %s", err(ctl(d, ADD, fd[1], EPOLLOUT, 2)));
	x_close(ep);
	w(ours, d, "dup");
	note(" %s", err(ctl(d, MOD, fd[0], EPOLLOUT, 3)));
	w(ours, d, "dup");
	note(" %s", err(ctl(d, DEL, fd[0], 0, 3)));
	w(ours, d, "dup");
	x_close(d);
	x_done(fd);
	/* what only looks like a set */
	int e = new_set();
	close(e); /* behind our back */
	int f = eventfd(0, 0), g = x_dup(f);
	CHECK(f == e && kind_of(g) != FD_EPOLL);
	close(f);
	close(g);
}

/* ---- looked at from outside ---- */

static int poll_in(int fd)
{
	struct pollfd p = {fd, POLLIN, 0};
	return h_poll(&p, 1, 0);
}

/* how: 0 the inner set has its socket before it is nested, 1 after, 2 the outer one has a socket, too */
static void nested(int ours, int how, int et, int c)
{
	int fd[2], other[2], in = new_set(), out = new_set(), deep = new_set();

	(void)c;
	x_pair(ours, fd);
	x_pair(ours, other);
	if (how != 1)
		ctl(in, ADD, fd[0], EPOLLIN, 1);
	note("%s ", err(ctl(out, ADD, in, EPOLLIN | (u32)et, 30)));
	note("%s ", err(ctl(deep, ADD, out, EPOLLIN, 31)));
	note("%s ", err(ctl(in, ADD, deep, EPOLLIN, 31))); /* ELOOP */
	if (how == 1)
		ctl(in, ADD, fd[0], EPOLLIN, 1);
	if (how == 2)
		ctl(out, ADD, other[0], EPOLLIN, 2);
	w(ours, out, "idle");
	for (int k = 0; k < 3; k++) {
		x_send(fd[1], "x", 1);
		w(ours, deep, "deep");
		w(ours, out, "ready");
		note(" poll %d %d %d", poll_in(in), poll_in(out), poll_in(deep));
		w(ours, in, "in");
		w(ours, in, "in");
		if (!et)
			w(ours, out, "unread");
		x_drain(fd[0]);
		w(ours, in, "drained");
		w(ours, out, "drained");
		note(" poll %d %d", poll_in(in), poll_in(out));
		x_send(other[1], "y", 1);
		w(ours, out, "other");
		x_drain(other[0]);
	}
	x_done(fd);
	w(ours, out, "closed");
	x_done(other);
	x_close(in);
	x_close(out);
	x_close(deep);
}

struct nap_in {
	int ep, polls, n, ms;
	struct epoll_event ev[8];
	_Atomic int done;
};

static void *sleeper(void *p)
{
	struct nap_in *z = p;
	struct pollfd f = {z->ep, POLLIN, 0};

	pthread_cleanup_push(left_by_cancel, 0);
	z->n = z->polls ? h_poll(&f, 1, z->ms) : h_epoll_wait(z->ep, z->ev, 8, z->ms);
	pthread_cleanup_pop(0);
	z->done = 1;
	return 0;
}

/* Threads that slept in a set, or in poll on it, before it got its first socket of ours. */
static void early(int polls)
{
	enum { T = 3 };
	struct nap_in z[T];
	pthread_t t[T];
	int fd[2], ep = new_set(), ev = eventfd(0, 0);

	ctl(ep, ADD, ev, EPOLLIN, 40);
	for (int i = 0; i < T; i++) {
		z[i] = (struct nap_in){.ep = ep, .polls = polls, .ms = 10000};
		CHECK(pthread_create(&t[i], 0, sleeper, &z[i]) == 0);
	}
	nap(20000);
	x_pair(1, fd);
	ctl(ep, ADD, fd[0], EPOLLIN, 7);
	nap(20000);
	for (int i = 0; i < T; i++)
		CHECK(!z[i].done);
	x_send(fd[1], "x", 1);
	for (int i = 0; i < T; i++) {
		pthread_join(t[i], 0);
		CHECK(z[i].n == 1);
		CHECK(polls || z[i].ev[0].data.u64 == 7, "%llx", (long long)z[i].ev[0].data.u64);
	}
	x_done(fd);
	x_close(ev);
	x_close(ep);
}

/* ---- time, signals ---- */

static _Atomic int handled;
static void on_signal(int sig)
{
	(void)sig;
	handled++;
}

static void signals(void)
{
	int fd[2], ep = new_set();
	struct epoll_event got;
	sigset_t none, usr, old;
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	struct itimerval in = {{0, 0}, {0, 30000}};

	section("signals");
	x_pair(1, fd);
	ctl(ep, ADD, fd[0], EPOLLIN, 1);
	sigaction(SIGALRM, &sa, 0);
	sigaction(SIGUSR1, &sa, 0);
	for (int slices = 0; slices < 2; slices++) {
		arms_refused = slices;
		ctl(ep, MOD, fd[0], EPOLLIN, 1);
		setitimer(ITIMER_REAL, &in, 0);
		i64 t = now_ns();
		int want = slices ? 0 : 1; /* in slices it may come while we look */
		int n = h_epoll_wait(ep, &got, 1, slices ? 300 : 5000);
		CHECK((n == -1 && errno == EINTR && now_ns() - t >= 25 * MS) || (!want && n == 0), "%d", n);
	}
	arms_refused = 0;
	CHECK(handled == 2);
	/* a mask in the wait: pending before, delivered inside, blocked again after */
	sigemptyset(&none);
	sigemptyset(&usr);
	sigaddset(&usr, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr, &old);
	handled = 0;
	raise(SIGUSR1);
	CHECK(h_epoll_pwait(ep, &got, 1, 0, &usr) == 0 && handled == 0);
	CHECK(h_epoll_pwait(ep, &got, 1, 2000, &none) == -1 && errno == EINTR && handled == 1);
	raise(SIGUSR1);
	struct timespec two = {2, 0}, ten = {0, 10500000};
	CHECK(h_epoll_pwait2(ep, &got, 1, &two, &none) == -1 && errno == EINTR && handled == 2);
	/* ready events win, and leave the signal pending */
	raise(SIGUSR1);
	x_send(fd[1], "x", 1);
	CHECK(h_epoll_pwait(ep, &got, 1, 2000, &none) == 1 && handled == 2);
	x_drain(fd[0]);
	CHECK(h_epoll_pwait(ep, &got, 1, 2000, &none) == -1 && errno == EINTR && handled == 3);
	sigprocmask(SIG_SETMASK, &old, 0);
	/* times */
	for (int ms = 0; ms <= 40; ms += 20) {
		i64 t = now_ns();
		CHECK(h_epoll_wait(ep, &got, 1, ms) == 0);
		i64 d = now_ns() - t;
		CHECK(d >= ms * MS && d < (ms + 500) * MS, "%d ms took %lld ns", ms, (long long)d);
	}
	i64 t = now_ns();
	CHECK(h_epoll_pwait2(ep, &got, 1, &ten, 0) == 0 && now_ns() - t >= 10500000);
	x_done(fd);
	x_close(ep);
}

/* Nobody wakes up while nothing happens. */
static void idle(void)
{
	enum { N = 50 };
	int p[N][2], ep = new_set();
	struct epoll_event got;
	struct rusage a, b;

	section("idle");
	for (int i = 0; i < N; i++) {
		x_pair(1, p[i]);
		ctl(ep, ADD, p[i][0], EPOLLIN | EPOLLOUT | EPOLLET, (u64)i);
	}
	while (h_epoll_wait(ep, &got, 1, 0) == 1)
		;
	for (int i = 0; i < N; i++) { /* traffic the other way is no event either */
		x_send(p[i][0], "x", 1);
		x_drain(p[i][1]);
	}
	getrusage(RUSAGE_THREAD, &a);
	CHECK(h_epoll_wait(ep, &got, 1, 300) == 0);
	getrusage(RUSAGE_THREAD, &b);
	CHECK(b.ru_nvcsw - a.ru_nvcsw <= 2, "%ld wake-ups", b.ru_nvcsw - a.ru_nvcsw);
	for (int i = 0; i < N; i++)
		x_done(p[i]);
	x_close(ep);
}

/* ---- many threads ---- */

enum { SOCKS = 8 };
static struct mt {
	int ep, fd[SOCKS][2];
	u32 events;
	_Atomic u64 got[SOCKS], sent[SOCKS];
	_Atomic int stop;
	_Atomic u64 waits, empty, busy[SOCKS];
} mt;

static void *mt_worker(void *p)
{
	struct epoll_event ev[3];
	static char buf[8][4096];
	char *b = buf[(long)p];

	while (!mt.stop) {
		int n = h_epoll_wait(mt.ep, ev, 1 + (int)((long)p % 3), 200);
		mt.waits++;
		mt.empty += n == 0;
		CHECK(n >= 0 || errno == EINTR);
		for (int i = 0; i < n; i++) {
			u64 k = ev[i].data.u64;
			ssize_t r, sum = 0;
			CHECK(k < SOCKS);
			if (mt.events & EPOLLONESHOT)
				CHECK(mt.busy[k]++ == 0, "one event, two threads");
			while ((r = x_recv(mt.fd[k][0], b, 4096)) > 0)
				sum += r;
			if (mt.events & EPOLLONESHOT) {
				mt.busy[k]--;
				CHECK(ctl(mt.ep, MOD, mt.fd[k][0], mt.events, k) == 0);
			}
			mt.got[k] += (u64)sum;
		}
	}
	return 0;
}

/* Each byte is an event that must not be lost: the writer goes on only when all it sent was seen. */
static void *mt_writer(void *p)
{
	long id = (long)p;
	u32 x = (u32)id * 77 + 1;
	u64 rounds = 0;

	for (i64 end = now_ns() + 700 * MS * scale; now_ns() < end; rounds++) {
		for (long k = id; k < SOCKS; k += 2) {
			u32 n = 1 + rnd(&x) % 40;
			for (u32 i = 0; i < n; i++) {
				CHECK(x_send(mt.fd[k][1], "x", 1) == 1);
				mt.sent[k]++;
			}
		}
		i64 dead = now_ns() + 5000 * MS;
		for (long k = id; k < SOCKS; k += 2)
			while (mt.got[k] != mt.sent[k]) {
				if (now_ns() > dead) {
					u64 sum = lane_used(x_sock(mt.fd[k][0]));
					CHECK(0, "lost: socket %ld got %llu of %llu, %llu in the ring, events %x", k,
					      (long long)mt.got[k], (long long)mt.sent[k], (long long)sum, mt.events);
				}
				sched_yield();
			}
		if (rnd(&x) % 64 == 0)
			nap(rnd(&x) % 200);
	}
	return 0;
}

static void many_threads(u32 events, int threads)
{
	pthread_t t[8], wr[2];
	u64 total = 0;

	memset(&mt, 0, sizeof mt);
	mt.ep = new_set();
	mt.events = events;
	for (u64 k = 0; k < SOCKS; k++) {
		x_pair(1, mt.fd[k]);
		CHECK(ctl(mt.ep, ADD, mt.fd[k][0], events, k) == 0);
	}
	for (long i = 0; i < threads; i++)
		CHECK(pthread_create(&t[i], 0, mt_worker, (void *)i) == 0);
	for (long i = 0; i < 2; i++)
		CHECK(pthread_create(&wr[i], 0, mt_writer, (void *)i) == 0);
	pthread_join(wr[0], 0);
	pthread_join(wr[1], 0);
	mt.stop = 1;
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], 0);
	for (int k = 0; k < SOCKS; k++) {
		CHECK(mt.got[k] == mt.sent[k]);
		total += mt.got[k];
		x_done(mt.fd[k]);
	}
	x_close(mt.ep);
	if (getenv("READY_VERBOSE"))
		fprintf(stderr, "  events %x threads %d: %llu bytes, %llu waits, %llu empty\n", events, threads,
			(long long)total, (long long)mt.waits, (long long)mt.empty);
}

/* One ring wakes one thread. */
static void one_wakes_one(void)
{
	enum { T = 4 };
	struct nap_in z[T];
	pthread_t t[T];
	int fd[2], ep = new_set(), woken = 0;

	section("one wakes one");
	x_pair(1, fd);
	ctl(ep, ADD, fd[0], EPOLLIN | EPOLLET, 7);
	for (int i = 0; i < T; i++) {
		z[i] = (struct nap_in){.ep = ep, .ms = 20000};
		pthread_create(&t[i], 0, sleeper, &z[i]);
	}
	nap(50000);
	x_send(fd[1], "x", 1);
	nap(100000);
	for (int i = 0; i < T; i++)
		woken += z[i].done;
	CHECK(woken == 1, "%d", woken);
	x_send(fd[1], "x", 1);
	nap(100000);
	woken = 0;
	for (int i = 0; i < T; i++)
		woken += z[i].done;
	CHECK(woken == 2, "the others sleep on: %d", woken);
	for (int i = 0; i < T; i++) {
		x_send(fd[1], "x", 1);
		nap(20000);
	}
	for (int i = 0; i < T; i++)
		pthread_join(t[i], 0);
	x_done(fd);
	x_close(ep);
}

/* A thread that takes one of many leaves the rest to the others, and says so. */
static void leftovers(void)
{
	enum { T = 4 };
	struct { int ep; _Atomic int got; } c = {new_set(), 0};
	pthread_t t[T];
	int p[T][2];

	void *one(void *arg)
	{
		struct epoll_event ev;
		(void)arg;
		c.got += h_epoll_wait(c.ep, &ev, 1, 3000) == 1;
		return 0;
	}
	for (int i = 0; i < T; i++) {
		x_pair(1, p[i]);
		ctl(c.ep, ADD, p[i][0], EPOLLIN | EPOLLET, (u64)i);
		pthread_create(&t[i], 0, one, 0);
	}
	nap(50000);
	i64 t0 = now_ns();
	for (int i = 0; i < T; i++)
		x_send(p[i][1], "x", 1);
	for (int i = 0; i < T; i++)
		pthread_join(t[i], 0);
	CHECK(c.got == T && now_ns() - t0 < 2000 * MS);
	for (int i = 0; i < T; i++)
		x_done(p[i]);
	x_close(c.ep);
}

/* ---- another process rings ---- */

static void processes(u32 events, int napping)
{
	int p[SOCKS][2], ep = new_set();
	u64 rounds = 0;

	for (u64 k = 0; k < SOCKS; k++) {
		x_pair(1, p[k]);
		ctl(ep, ADD, p[k][0], events, k);
	}
	struct epoll_event ev[4];
	while (h_epoll_wait(ep, ev, 4, 0) > 0 && !(events & EPOLLET))
		CHECK(0);
	_Atomic u32 *stop = shared(4096);
	pid_t pid = fork();
	if (!pid) { /* echoes */
		lane_forked();
		bell_forked();
		S->pid = (u32)getpid();
		u32 x = 5;
		for (int found = 0; !*stop; found ? (void)0 : (void)sched_yield())
			for (int k = found = 0; k < SOCKS; k++) {
				char b[64];
				struct iovec v = {b, 1};
				if (lane_read(x_sock(p[k][1]), &v, 1, 0, 0) != 1)
					continue;
				found = 1;
				if (napping && rnd(&x) % 4 == 0)
					nap(rnd(&x) % 60);
				lane_write(x_sock(p[k][1]), &v, 1, 0);
			}
		_exit(0);
	}
	for (int k = 0; k < SOCKS; k++)
		x_send(p[k][0], "x", 1);
	for (i64 end = now_ns() + 500 * MS * scale; now_ns() < end; rounds++) {
		int n = h_epoll_wait(ep, ev, 4, 5000);
		CHECK(n > 0, "lost after %llu rounds", (long long)rounds);
		for (int i = 0; i < n; i++) {
			u64 k = ev[i].data.u64;
			size_t got = x_drain(p[k][0]);
			CHECK(got <= 1);
			if (events & EPOLLONESHOT)
				ctl(ep, MOD, p[k][0], events, k);
			if (got)
				x_send(p[k][0], "x", 1);
		}
	}
	*stop = 1;
	CHECK(waitpid(pid, 0, 0) == pid);
	if (getenv("READY_VERBOSE"))
		fprintf(stderr, "  events %x napping %d: %llu rounds\n", events, napping, (long long)rounds);
	for (int k = 0; k < SOCKS; k++)
		x_done(p[k]);
	x_close(ep);
}

/* A child that waits on the inherited set neither takes the parent's events nor misses its own. */
static void inherited(void)
{
	int fd[2], ev = eventfd(0, EFD_NONBLOCK), ep = new_set();
	struct epoll_event got;
	_Atomic u32 *seen = shared(4096); /* 0 child's events, 1 stop, 2 ready */

	section("inherited");
	x_pair(1, fd);
	ctl(ep, ADD, fd[0], EPOLLIN, 7);
	ctl(ep, ADD, ev, EPOLLIN, 8);
	CHECK(h_epoll_wait(ep, &got, 1, 0) == 0);
	pid_t pid = fork();
	if (!pid) {
		lane_forked();
		S->pid = (u32)getpid();
		S->engine = ENG_COLD;
		epoll_forked();
		bell_forked();
		seen[2] = 1;
		while (!seen[1])
			seen[0] += h_epoll_wait(ep, &got, 1, 50) == 1 && got.data.u64 == 7;
		/* and its own connection in it */
		int mine[2];
		S->engine = ENG_READY;
		x_pair(1, mine);
		if (ctl(ep, ADD, mine[0], EPOLLIN, 9) < 0)
			_exit(2);
		x_send(mine[1], "x", 1);
		for (int i = 0; i < 50; i++)
			if (h_epoll_wait(ep, &got, 1, 50) == 1 && got.data.u64 == 9) {
				x_close(ep);
				_exit(0);
			}
		_exit(3);
	}
	while (!seen[2])
		nap(1000);
	for (int i = 0; i < 200; i++) {
		nap(i % 7 * 100);
		x_send(fd[1], "x", 1);
		i64 t = now_ns();
		CHECK(h_epoll_wait(ep, &got, 1, 5000) == 1 && got.data.u64 == 7, "round %d", i);
		CHECK(now_ns() - t < 1000 * MS);
		for (t = now_ns(); i == 100 && !seen[0]; nap(1000)) /* left unread: the child sees it, in slices */
			CHECK(now_ns() - t < 10000 * MS);
		x_drain(fd[0]);
	}
	seen[1] = 1;
	int st;
	CHECK(waitpid(pid, &st, 0) == pid && st == 0, "child %x", st);
	x_send(fd[1], "x", 1);
	CHECK(h_epoll_wait(ep, &got, 1, 5000) == 1 && got.data.u64 == 7);
	x_done(fd);
	x_close(ev);
	x_close(ep);
}

/* ---- the other end dies ---- */

static void fin_while_asleep(u32 events)
{
	int fd[2], ep = new_set();

	x_pair(1, fd);
	ctl(ep, ADD, fd[0], events, 7);
	struct epoll_event ev;
	while (h_epoll_wait(ep, &ev, 1, 0) == 1 && (events & EPOLLET))
		;
	struct nap_in z = {.ep = ep, .ms = 5000};
	pthread_t t;
	pthread_create(&t, 0, sleeper, &z);
	nap(20000);
	i64 t0 = now_ns();
	shutdown(fd[1], SHUT_WR); /* no engine runs here: only the set's own look at the TCP fd can tell */
	pthread_join(t, 0);
	CHECK(z.n == 1 && (z.ev[0].events & EPOLLRDHUP) == (events & EPOLLRDHUP) && now_ns() - t0 < 1000 * MS);
	x_done(fd);
	x_close(ep);
}

/* ---- falling back ---- */

static void become_plain(struct sock *s)
{
	int nested = lk_lock(&s->b->lock);

	atomic_store(&s->b->state, S_FLUSH);
	sched_yield();
	epoll_sock_plain(s);
	atomic_store(&s->b->state, S_TCP);
	sock_fire(s);
	all_plain(s);
	lk_unlock(&s->b->lock, nested);
}

/* In front of every trigger and mask: afterwards the kernel answers as if we had never been there. */
static void hand_over(int ours, int trigger, int mask, int reported)
{
	int fd[2], ep = new_set();
	u32 ev = (u32)trigger | (u32)mask;

	x_pair(ours, fd);
	if (ours)
		x_sock(fd[0])->b->state = S_CLC;
	note("%s", err(ctl(ep, ADD, fd[0], ev, 7)));
	if (reported)
		w(ours, ep, "before");
	struct sock *a = ours ? x_sock(fd[0]) : 0;
	if (ours) {
		become_plain(a);
		become_plain(a + 1);
		CHECK(!a[0].eps && kind_of(fd[0]) == FD_PLAIN);
	}
	if (!(trigger & EPOLLET) && !(trigger & EPOLLONESHOT)) /* the first look after a change may repeat an edge */
		w(ours, ep, "after");
	else
		h_epoll_wait(ep, &(struct epoll_event){0}, 1, 0);
	x_send(fd[1], "hello", 5);
	w(ours, ep, "data");
	w(ours, ep, "again");
	note(" mod %s", err(ctl(ep, MOD, fd[0], EPOLLIN | ((u32)trigger & EPOLLET), 8)));
	w(ours, ep, "mod");
	x_drain(fd[0]);
	x_shut(fd[1]);
	w(ours, ep, "fin");
	note(" del %s %s", err(ctl(ep, DEL, fd[0], 0, 0)), err(ctl(ep, ADD, fd[0], EPOLLIN, 9)));
	w(ours, ep, "end");
	x_done(fd);
	x_close(ep);
}

/* The number was closed by another thread, and is another file's by now. */
static void hand_over_late(int trigger)
{
	int fd[2], p[2], ep = new_set();

	x_pair(1, fd);
	x_sock(fd[0])->b->state = S_CLC;
	CHECK(ctl(ep, ADD, fd[0], EPOLLIN | (u32)trigger, 7) == 0 && pipe(p) == 0);
	struct sock *a = x_sock(fd[0]);
	atomic_store(&S->fd_kind[fd[0]], FD_UNKNOWN);
	CHECK(dup2(p[0], fd[0]) == fd[0]);
	become_plain(a);
	CHECK(ctl(ep, ADD, fd[0], EPOLLIN, 8) == 0, "taken");
	struct epoll_event ev;
	CHECK(write(p[1], "x", 1) == 1 && h_epoll_wait(ep, &ev, 1, 0) == 1 && ev.data.u64 == 8);
	become_plain(a + 1);
	close(p[0]), close(p[1]), close(fd[0]), close(fd[1]);
	x_close(ep);
}

static struct {
	int ep, fd[2];
	_Atomic int go;
} ho;

static void *fall_back(void *p)
{
	u32 x = (u32)(long)p;

	while (!ho.go)
		;
	for (volatile u32 i = rnd(&x) % 20000; i; i--)
		;
	struct sock *a = x_sock(ho.fd[0]);
	become_plain(a);
	become_plain(a + 1);
	CHECK(send(ho.fd[1], "x", 1, MSG_NOSIGNAL) == 1);
	return 0;
}

static void hand_over_under_load(int rounds)
{
	section("hand-over under load");
	for (int i = 0; i < rounds; i++) {
		pthread_t t;
		struct epoll_event ev;
		u32 events = EPOLLIN | (i & 1 ? EPOLLET : 0) | (i % 5 == 0 ? EPOLLOUT : 0);
		ho.ep = new_set();
		ho.go = 0;
		x_pair(1, ho.fd);
		x_sock(ho.fd[0])->b->state = S_CLC;
		pthread_create(&t, 0, fall_back, (void *)(long)i);
		ho.go = 1;
		CHECK(ctl(ho.ep, ADD, ho.fd[0], events, 5) == 0);
		if (i % 3 == 0)
			CHECK(ctl(ho.ep, MOD, ho.fd[0], events, 6) == 0);
		if (i % 7 == 0) {
			CHECK(ctl(ho.ep, DEL, ho.fd[0], 0, 0) == 0 || errno == ENOENT, "%s", strerror(errno));
			CHECK(ctl(ho.ep, ADD, ho.fd[0], events, 6) == 0, "%s", strerror(errno));
		}
		for (u32 seen = 0; !(seen & EPOLLIN);) {
			CHECK(h_epoll_wait(ho.ep, &ev, 1, 5000) == 1, "round %d", i);
			CHECK(ev.data.u64 == 5 || ev.data.u64 == 6);
			seen = ev.events;
		}
		pthread_join(t, 0);
		CHECK(x_drain(ho.fd[0]) == 1);
		x_done(ho.fd);
		x_close(ho.ep);
	}
}

/* A process that shares the block decided: whoever looks, finds out. */
static void decided_elsewhere(void)
{
	int fd[2], ep = new_set();
	struct epoll_event ev;

	x_pair(1, fd);
	struct sock *a = x_sock(fd[0]);
	a->b->state = S_CLC;
	ctl(ep, ADD, fd[0], EPOLLIN, 5);
	CHECK(h_epoll_wait(ep, &ev, 1, 0) == 0);
	a->b->state = S_TCP;
	sock_fire(a);
	CHECK(h_epoll_wait(ep, &ev, 1, 0) == 0 && kind_of(fd[0]) == FD_PLAIN && !a->eps);
	all_plain(a + 1);
	CHECK(send(fd[1], "x", 1, 0) == 1 && h_epoll_wait(ep, &ev, 1, 1000) == 1 && ev.data.u64 == 5);
	x_done(fd);
	x_close(ep);
}

/* ---- coming and going ---- */

/* More registrations than there are entries, from two threads, on sets that come and go, too. */
static void *churner(void *p)
{
	u32 x = (u32)(long)p;
	int fd[2], ep = new_set();
	struct epoll_event ev[4];

	x_pair(1, fd);
	for (int i = 0; i < 80000; i++) {
		CHECK(ctl(ep, ADD, fd[0], EPOLLIN, 1) == 0);
		if (rnd(&x) % 8 == 0) {
			x_send(fd[1], "x", 1);
			CHECK(h_epoll_wait(ep, ev, 4, 1000) == 1);
			x_drain(fd[0]);
		}
		if (rnd(&x) % 64 == 0) {
			x_close(ep);
			ep = new_set();
		} else {
			CHECK(ctl(ep, DEL, fd[0], 0, 0) == 0);
		}
	}
	x_close(ep);
	return fd[0] == fd[1] ? 0 : memcpy(malloc(sizeof fd), fd, sizeof fd);
}

static void churn(void)
{
	pthread_t t[2];

	section("churn");
	u32 first = next_sock;
	for (long i = 0; i < 2; i++) {
		pthread_create(&t[i], 0, churner, (void *)(i + 1));
		while (next_sock < first + 2 * (u32)(i + 1)) /* x_pair is not for two threads at once */
			nap(100);
		nap(2000);
	}
	for (int i = 0; i < 2; i++) {
		void *fd;
		pthread_join(t[i], &fd);
		x_done(fd);
		free(fd);
	}
}

/* Close of sockets and of the set while threads wait on it. */
static void close_while_waiting(void)
{
	struct epoll_event ev;

	section("close while waiting");
	for (int i = 0; i < 200; i++) {
		int fd[2], other[2], ep = new_set();
		struct nap_in z = {.ep = ep, .ms = 3000};
		pthread_t t;
		x_pair(1, fd);
		x_pair(1, other);
		ctl(ep, ADD, fd[0], EPOLLIN, 1);
		ctl(ep, ADD, other[0], EPOLLIN, 2);
		pthread_create(&t, 0, sleeper, &z);
		nap(i * 5);
		x_done(fd);
		CHECK(h_epoll_wait(ep, &ev, 1, 0) == 0);
		x_send(other[1], "x", 1);
		pthread_join(t, 0);
		CHECK(z.n == 1 && z.ev[0].data.u64 == 2);
		x_done(other);
		x_close(ep);
	}
}

/* A cancelled thread does not count as sleeping any more: the next ring costs no system call again. */
static void cancel(void)
{
	int fd[2], ep = new_set();
	struct nap_in z = {.ep = ep, .ms = -1};
	pthread_t t;
	struct epoll_event ev;

	section("cancel");
	x_pair(1, fd);
	ctl(ep, ADD, fd[0], EPOLLIN, 1);
	CHECK(h_epoll_wait(ep, &ev, 1, 0) == 0);
	pthread_create(&t, 0, sleeper, &z);
	struct bell_word *word = 0;
	for (int i = 1; i < BELL_MAX; i++)
		if (S->bell[i].used) {
			CHECK(!word, "a bell is lost");
			word = S->bell[i].word;
		}
	CHECK(word);
	for (i64 t0 = now_ns(); !word->asleep; nap(1000))
		CHECK(now_ns() - t0 < 10000 * MS);
	nap(1000);
	void *ret;
	CHECK(pthread_cancel(t) == 0 && pthread_join(t, &ret) == 0 && ret == PTHREAD_CANCELED);
	CHECK(word->asleep == 0);
	x_send(fd[1], "x", 1);
	CHECK(h_epoll_wait(ep, &ev, 1, 1000) == 1);
	x_done(fd);
	x_close(ep);
}

/* A handler that closes, opens and changes sockets of the very set that its thread waits on. */
static struct {
	int ep, fd[2], victim[2];
	volatile int runs, step;
} hs;

static void busy_handler(int sig)
{
	int e = errno;

	(void)sig;
	hs.runs++;
	switch (hs.step++ % 4) {
	case 0: CHECK(ctl(hs.ep, MOD, hs.victim[0], EPOLLIN, 9) == 0); break;
	case 1: CHECK(ctl(hs.ep, DEL, hs.victim[0], 0, 0) == 0); break;
	case 2: CHECK(ctl(hs.ep, ADD, hs.victim[0], EPOLLIN | EPOLLET, 9) == 0); break;
	case 3: epoll_sock_full(x_sock(hs.victim[0])); break;
	}
	errno = e;
}

static void handlers(void)
{
	struct sigaction sa = {.sa_handler = busy_handler};
	struct itimerval tick = {{0, 50}, {0, 50}}, off = {0};
	struct epoll_event ev[4];
	u64 got = 0;

	section("handlers");
	hs.ep = new_set();
	x_pair(1, hs.fd);
	x_pair(1, hs.victim);
	ctl(hs.ep, ADD, hs.fd[0], EPOLLIN, 1);
	ctl(hs.ep, ADD, hs.victim[0], EPOLLIN, 9);
	x_send(hs.victim[1], "x", 1);
	sigaction(SIGALRM, &sa, 0);
	setitimer(ITIMER_REAL, &tick, 0);
	for (i64 end = now_ns() + 1000 * MS * scale; now_ns() < end; got++) {
		x_send(hs.fd[1], "x", 1);
		for (int have = 0; !have;) {
			int n = h_epoll_wait(hs.ep, ev, 4, 5000);
			CHECK(n > 0 || (n < 0 && errno == EINTR));
			for (int i = 0; i < n; i++) {
				CHECK(ev[i].data.u64 == 1 || ev[i].data.u64 == 9);
				have |= ev[i].data.u64 == 1;
			}
		}
		x_drain(hs.fd[0]);
	}
	setitimer(ITIMER_REAL, &off, 0);
	CHECK(hs.runs > 100);
	signal(SIGALRM, SIG_DFL);
	x_done(hs.fd);
	x_done(hs.victim);
	x_close(hs.ep);
}

/* ---- dormant entries: deleted by the program, kept with the kernel's registration ---- */

/* Is fd registered in the kernel's set? */
static int in_kernel(int ep, int fd)
{
	char path[64], line[256], want[32];
	int found = 0;

	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", ep);
	snprintf(want, sizeof want, "tfd: %8d ", fd);
	FILE *f = fopen(path, "r");
	CHECK(f);
	while (fgets(line, sizeof line, f))
		found |= !strncmp(line, want, strlen(want));
	fclose(f);
	return found;
}

/* Makes `to` name what fd names. */
static void dup_to(int fd, int to)
{
	CHECK(dup2(fd, to) == to);
	if (kind_of(fd) == FD_SOCK)
		name(x_sock(fd), to);
	else
		S->fd_kind[to] = FD_PLAIN;
}

static void dormant(int ours, int trigger, int mask, int fin)
{
	u32 ev = (u32)trigger | (u32)mask;
	int fd[2], ep = new_set();

	x_pair(ours, fd);
	note("add %s", err(ctl(ep, ADD, fd[0], ev, 1)));
	w(ours, ep, "start");
	note(" del %s %s", err(ctl(ep, DEL, fd[0], 0, 0)), err(ctl(ep, DEL, fd[0], 0, 0)));
	note(" mod %s", err(ctl(ep, MOD, fd[0], ev, 2)));
	CHECK(!ours || in_kernel(ep, fd[0]));
	x_send(fd[1], "abc", 3);
	w(ours, ep, "deleted");
	note(" add %s %s", err(ctl(ep, ADD, fd[0], ev, 3)), err(ctl(ep, ADD, fd[0], ev, 4)));
	w(ours, ep, "pending");
	w(ours, ep, "again");
	x_send(fd[1], "abc", 3);
	w(ours, ep, "more");
	ctl(ep, DEL, fd[0], 0, 0);
	ctl(ep, ADD, fd[0], ev, 5);
	w(ours, ep, "back");
	ctl(ep, DEL, fd[0], 0, 0);
	x_drain(fd[0]);
	ctl(ep, ADD, fd[0], ev, 6);
	w(ours, ep, "drained");
	x_send(fd[1], "abc", 3);
	w(ours, ep, "edge");
	w(ours, ep, "again");
	note(" mod %s", err(ctl(ep, MOD, fd[0], ev ^ EPOLLOUT, 7)));
	w(ours, ep, "mod");
	x_fill(fd[0]);
	ctl(ep, DEL, fd[0], 0, 0);
	while (x_drain(fd[1]) && !ours)
		nap(2000);
	ctl(ep, ADD, fd[0], ev, 8);
	w(ours, ep, "room");
	ctl(ep, DEL, fd[0], 0, 0);
	if (fin)
		x_shut(fd[1]);
	w(ours, ep, "fin");
	note(" add %s", err(ctl(ep, ADD, fd[0], EPOLLIN | EPOLLRDHUP | (u32)trigger, 9)));
	w(ours, ep, "end");
	w(ours, ep, "again");
	ctl(ep, DEL, fd[0], 0, 0);
	int n = fd[0];
	x_done(fd);
	CHECK(!in_kernel(ep, n));
	x_close(ep);
}

/* The number is closed while its entry is dormant, and comes back: for another socket, or for the same one. */
static void dormant_number(int ours, int how, int b, int c)
{
	int fd[2], other[2], d = -1, ep = new_set(), n;

	(void)b, (void)c;
	x_pair(ours, fd);
	x_pair(ours, other);
	n = fd[0];
	note("%s ", err(ctl(ep, ADD, n, EPOLLIN, 1)));
	if (how)
		d = x_dup(n);
	if (how == 2)
		note("%s ", err(ctl(ep, ADD, d, EPOLLIN, 2)));
	note("%s ", err(ctl(ep, DEL, n, 0, 0)));
	x_send(fd[1], "x", 1);
	w(ours, ep, "deleted");
	x_close(n);
	CHECK(!in_kernel(ep, n));
	dup_to(how ? d : other[0], n);
	x_send(other[1], "x", 1);
	w(ours, ep, "closed");
	note("%s ", err(ctl(ep, MOD, n, EPOLLIN, 3)));
	note("%s ", err(ctl(ep, ADD, n, EPOLLIN, 3)));
	w(ours, ep, "reused");
	note("%s %s ", err(ctl(ep, DEL, n, 0, 3)), err(ctl(ep, ADD, n, EPOLLIN | EPOLLET, 4)));
	w(ours, ep, "edge");
	w(ours, ep, "again");
	x_close(n);
	w(ours, ep, "closed");
	if (d >= 0) {
		fd[0] = d;
		x_done(fd);
	} else {
		struct sock *s = kind_of(fd[1]) == FD_SOCK ? x_sock(fd[1]) : 0;
		x_close(fd[1]);
		if (s) {
			free_pair(s - 1);
			s[-1].b = s[0].b = 0;
		}
	}
	w(ours, ep, "gone");
	x_done(other);
	x_close(ep);
}

/* The socket becomes plain: the kernel must know what the program has, and nothing that it deleted. */
static void dormant_hand_over(int ours, int trigger, int back, int c)
{
	int fd[2], ep = new_set();

	(void)c;
	x_pair(ours, fd);
	if (ours)
		x_sock(fd[0])->b->state = S_CLC;
	ctl(ep, ADD, fd[0], EPOLLIN | EPOLLOUT | (u32)trigger, 1);
	ctl(ep, DEL, fd[0], 0, 0);
	if (back)
		ctl(ep, ADD, fd[0], EPOLLIN | (u32)trigger, 2);
	if (back == 2)
		ctl(ep, DEL, fd[0], 0, 0);
	if (ours) {
		struct sock *a = x_sock(fd[0]);
		become_plain(a);
		become_plain(a + 1);
		CHECK(!a[0].eps && in_kernel(ep, fd[0]) == (back == 1));
	}
	x_send(fd[1], "x", 1);
	w(ours, ep, "data");
	note("%s ", err(ctl(ep, MOD, fd[0], EPOLLIN, 3)));
	note("%s ", err(ctl(ep, ADD, fd[0], EPOLLIN, 4)));
	w(ours, ep, "add");
	x_drain(fd[0]);
	x_shut(fd[1]);
	note("%s ", err(ctl(ep, DEL, fd[0], 0, 0)));
	w(ours, ep, "end");
	x_done(fd);
	x_close(ep);
}

/* Somebody looks at the set from outside: what was deleted must not show there, before or after. */
static void dormant_outside(int ours, int late, int polled, int c)
{
	int fd[2], keep[2], in = new_set(), out = new_set();

	(void)c;
	x_pair(ours, fd);
	x_pair(ours, keep);
	ctl(in, ADD, keep[0], EPOLLIN, 1);
	ctl(in, ADD, fd[0], EPOLLIN | EPOLLRDHUP, 2);
	if (!late)
		polled ? poll_in(in) : ctl(out, ADD, in, EPOLLIN, 30);
	ctl(in, DEL, fd[0], 0, 0);
	if (late)
		polled ? poll_in(in) : ctl(out, ADD, in, EPOLLIN, 30);
	CHECK(!ours || !in_kernel(in, fd[0]));
	x_send(fd[1], "x", 1);
	shutdown(fd[1], SHUT_WR);
	note("poll %d", poll_in(in));
	w(ours, out, "out");
	w(ours, in, "in");
	note(" add %s", err(ctl(in, ADD, fd[0], EPOLLIN, 3)));
	note("poll %d", poll_in(in));
	w(ours, out, "out");
	w(ours, in, "in");
	x_done(fd);
	x_done(keep);
	x_close(in);
	x_close(out);
}

/* More sets than entries are kept for: the rest is deleted for good. */
static void dormant_many(void)
{
	int fd[2], ep[20], kept = 0;
	struct epoll_event got;

	x_pair(1, fd);
	for (int i = 0; i < 20; i++) {
		ep[i] = new_set();
		CHECK(ctl(ep[i], ADD, fd[0], EPOLLIN, (u64)i) == 0);
	}
	for (int i = 0; i < 20; i++) {
		CHECK(ctl(ep[i], DEL, fd[0], 0, 0) == 0);
		kept += in_kernel(ep[i], fd[0]);
	}
	CHECK(kept > 0 && kept <= 8, "%d", kept);
	x_send(fd[1], "x", 1);
	for (int i = 0; i < 20; i++) {
		CHECK(ctl(ep[i], ADD, fd[0], EPOLLIN, (u64)i) == 0);
		CHECK(h_epoll_wait(ep[i], &got, 1, 1000) == 1 && got.data.u64 == (u64)i);
	}
	for (int i = 0; i < 20; i += 2)
		x_close(ep[i]);
	for (int i = 1; i < 20; i += 2) {
		CHECK(ctl(ep[i], DEL, fd[0], 0, 0) == 0 && ctl(ep[i], DEL, fd[0], 0, 0) == -1 && errno == ENOENT);
		CHECK(h_epoll_wait(ep[i], &got, 1, 0) == 0);
	}
	x_done(fd);
	for (int i = 1; i < 20; i += 2)
		x_close(ep[i]);
}

static void changes(int ep, int fd, int n)
{
	for (int i = 0; i < n; i++) {
		CHECK(ctl(ep, ADD, fd, EPOLLOUT, 2) == 0 && ctl(ep, MOD, fd, EPOLLIN | EPOLLOUT, 3) == 0);
		CHECK(ctl(ep, DEL, fd, 0, 0) == 0 && ctl(ep, DEL, fd, 0, 0) == -1 && errno == ENOENT);
	}
}

/* Added and deleted at each message, while nothing sleeps: no system call. */
static void dormant_is_free(void)
{
	int fd[2], ep = new_set(), st;

	x_pair(1, fd);
	ctl(ep, ADD, fd[0], EPOLLIN, 1);
	ctl(ep, DEL, fd[0], 0, 0);
	pid_t pid = fork();
	if (!pid) {
		struct sock_filter allow[] = { /* what CHECK and _exit need (a sanitizer asks for the signal stack); else death */
			BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_exit_group, 2, 0),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_sigaltstack, 1, 0),
			BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_write, 0, 1),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
			BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		};
		struct sock_fprog prog = {sizeof allow / sizeof *allow, allow};
		changes(ep, fd[0], 10); /* a sanitizer's own first times */
		CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) == 0);
		changes(ep, fd[0], 1000);
		_exit(0);
	}
	CHECK(waitpid(pid, &st, 0) == pid);
	CHECK(st == 0, "a system call in epoll_ctl: %x", st);
	x_done(fd);
	x_close(ep);
}

/* Over fork: both processes may add what was deleted before. */
static void dormant_forked(void)
{
	int fd[2], other[2], ep = new_set();
	struct epoll_event got;

	x_pair(1, fd);
	x_pair(1, other);
	ctl(ep, ADD, fd[0], EPOLLIN, 1);
	ctl(ep, ADD, other[0], EPOLLIN, 2);
	CHECK(h_epoll_wait(ep, &got, 1, 0) == 0);
	ctl(ep, DEL, fd[0], 0, 0);
	ctl(ep, DEL, other[0], 0, 0);
	pid_t pid = fork();
	if (!pid) {
		lane_forked();
		S->pid = (u32)getpid();
		S->engine = ENG_COLD;
		epoll_forked();
		bell_forked();
		if (ctl(ep, DEL, fd[0], 0, 0) != -1 || errno != ENOENT || ctl(ep, ADD, fd[0], EPOLLIN, 7) < 0)
			_exit(2);
		if (ctl(ep, ADD, fd[0], EPOLLIN, 7) != -1 || errno != EEXIST)
			_exit(3);
		x_send(fd[1], "x", 1);
		if (h_epoll_wait(ep, &got, 1, 5000) != 1 || got.data.u64 != 7)
			_exit(4);
		x_drain(fd[0]);
		if (ctl(ep, DEL, fd[0], 0, 0) < 0 || in_kernel(ep, fd[0]))
			_exit(5);
		x_close(other[0]); /* the parent's stays */
		_exit(in_kernel(ep, other[0]) ? 0 : 6);
	}
	int st;
	CHECK(waitpid(pid, &st, 0) == pid && st == 0, "child %x", st);
	for (int i = 0; i < 2; i++) {
		int *p = i ? other : fd;
		CHECK(ctl(ep, ADD, p[0], EPOLLIN, 8) == 0);
		x_send(p[1], "x", 1);
		CHECK(h_epoll_wait(ep, &got, 1, 5000) == 1 && got.data.u64 == 8);
		x_drain(p[0]);
	}
	struct sock *a = x_sock(fd[0]);
	a->b->state = S_CLC; /* and plain, where the child took the kernel's registration away */
	become_plain(a);
	become_plain(a + 1);
	CHECK(send(fd[1], "x", 1, 0) == 1 && h_epoll_wait(ep, &got, 1, 1000) == 1 && got.data.u64 == 8);
	x_done(fd);
	x_done(other);
	x_close(ep);
}

/*
 * epoll_ctl in a handler that interrupts epoll_ctl and epoll_wait on the same socket, and threads beside. Successful
 * ADDs less successful DELs is what is registered; what is reported was asked for as one.
 */
static struct {
	int ep, fd[2];
	_Atomic int on;
	_Atomic u64 runs, done;
	_Atomic int stop;
	int close;
} cc;

static u64 asks(u32 k, u32 *events)
{
	static const u32 mask[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLET, EPOLLOUT | EPOLLONESHOT};

	*events = mask[k % 5];
	return 10 + k % 5;
}

static void any_ctl(u32 r)
{
	u32 events;
	u64 data = asks(r >> 4, &events);

	if (r % 3 == 0 && ctl(cc.ep, ADD, cc.fd[0], events, data) == 0)
		cc.on++;
	else if (r % 3 == 1 && ctl(cc.ep, DEL, cc.fd[0], 0, 0) == 0)
		cc.on--;
	else if (r % 3 == 2)
		ctl(cc.ep, MOD, cc.fd[0], events, data);
	cc.done++;
}

static void any_wait(void)
{
	struct epoll_event ev[2];
	int n = h_epoll_wait(cc.ep, ev, 2, 0);

	CHECK(n <= 1 || cc.close, "one socket, %d events", n);
	if (n < 1)
		return;
	u32 events;
	CHECK(ev[0].data.u64 >= 10 && ev[0].data.u64 < 15);
	asks((u32)ev[0].data.u64 - 10, &events);
	CHECK(ev[0].events == (events & (EPOLLIN | EPOLLOUT)), "asked for %x, got %x", events, ev[0].events);
}

static void ctl_handler(int sig)
{
	static u32 x = 9;
	int e = errno;

	(void)sig;
	cc.runs++;
	if (cc.close && rnd(&x) % 4 == 0) {
		x_close(cc.ep);
		cc.ep = new_set();
	}
	any_ctl(rnd(&x));
	if (rnd(&x) % 4 == 0)
		any_wait();
	errno = e;
}

static void *ctl_thread(void *p)
{
	u32 x = 77 + (u32)(long)p;
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, 0);
	while (!cc.stop) {
		any_ctl(rnd(&x));
		any_wait();
	}
	return 0;
}

static void ctl_in_ctl(int threads, int close)
{
	struct sigaction sa = {.sa_handler = ctl_handler};
	struct itimerval tick = {{0, 40}, {0, 40}}, off = {0};
	pthread_t t[2];
	u32 x = 1;
	int fill[2];

	memset(&cc, 0, sizeof cc);
	cc.ep = new_set();
	cc.close = close;
	x_pair(1, cc.fd);
	x_pair(1, fill);
	CHECK(ctl(cc.ep, ADD, fill[0], 0, 63) == 0);
	x_send(cc.fd[1], "x", 1);
	for (long i = 0; i < threads; i++)
		pthread_create(&t[i], 0, ctl_thread, (void *)i);
	sigaction(SIGALRM, &sa, 0);
	setitimer(ITIMER_REAL, &tick, 0);
	for (i64 end = now_ns() + 700 * MS * scale; now_ns() < end;) {
		any_ctl(rnd(&x));
		if (rnd(&x) % 16 == 0)
			any_wait();
	}
	setitimer(ITIMER_REAL, &off, 0);
	cc.stop = 1;
	for (int i = 0; i < threads; i++)
		pthread_join(t[i], 0);
	signal(SIGALRM, SIG_DFL);
	CHECK(cc.runs > 100);
	int there = ctl(cc.ep, DEL, cc.fd[0], 0, 0) == 0;
	CHECK(close || there == cc.on, "%d added and not deleted, %d there", cc.on, there);
	any_wait();
	u32 events;
	u64 data = asks(0, &events);
	CHECK(ctl(cc.ep, ADD, cc.fd[0], events, data) == 0);
	struct epoll_event ev;
	CHECK(h_epoll_wait(cc.ep, &ev, 1, 1000) == 1 && ev.data.u64 == data);
	if (getenv("READY_VERBOSE"))
		fprintf(stderr, "  %d threads: %llu calls, %llu handlers\n", threads, (long long)cc.done, (long long)cc.runs);
	x_done(cc.fd);
	x_done(fill);
	x_close(cc.ep);
}

/* A change to what is ready already, at any moment of another thread's going to sleep: it is woken. */
static struct {
	int ep;
	_Atomic u64 got;
	_Atomic int stop;
} cs;

static void *cs_waiter(void *p)
{
	struct epoll_event ev;

	while (!cs.stop) {
		CHECK(h_epoll_wait(cs.ep, &ev, 1, 10000) == 1);
		cs.got++;
	}
	return p;
}

static void ctl_while_asleep(void)
{
	u32 x = 3;
	u64 n = 0;
	int fd[2];
	pthread_t t;

	memset(&cs, 0, sizeof cs);
	S->profile = PROFILE_SAFE; /* no spinning: it sleeps at once */
	cs.ep = new_set();
	x_pair(1, fd);
	ctl(cs.ep, ADD, fd[0], EPOLLIN | EPOLLONESHOT, 1);
	x_send(fd[1], "x", 1);
	pthread_create(&t, 0, cs_waiter, 0);
	for (i64 end = now_ns() + 500 * MS * scale; now_ns() < end; n++) {
		for (i64 t0 = now_ns(); cs.got == n;)
			CHECK(now_ns() - t0 < 3000 * MS, "asleep after %llu changes", (long long)n);
		for (volatile u32 i = rnd(&x) % 4000; i; i--)
			;
		if (n & 1)
			ctl(cs.ep, DEL, fd[0], 0, 0);
		CHECK(ctl(cs.ep, n & 1 ? ADD : MOD, fd[0], EPOLLIN | EPOLLONESHOT, n) == 0);
	}
	cs.stop = 1;
	ctl(cs.ep, MOD, fd[0], EPOLLIN, 1);
	pthread_join(t, 0);
	S->profile = PROFILE_BALANCED;
	x_done(fd);
	x_close(cs.ep);
}

static void dormants(void)
{
	static const u32 trigger[] = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
	static const u32 mask[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP, 0};

	section("dormant");
	for (u32 t = 0; t < 4; t++)
		for (u32 m = 0; m < 5; m++)
			for (int fin = 0; fin < 2; fin++)
				SAME(dormant, (int)trigger[t], (int)mask[m], fin);
	for (int how = 0; how < 3; how++)
		SAME(dormant_number, how, 0, 0);
	for (int back = 0; back < 3; back++) {
		SAME(dormant_hand_over, 0, back, 0);
		SAME(dormant_hand_over, (int)EPOLLET, back, 0);
		SAME(dormant_hand_over, (int)EPOLLEXCLUSIVE, back, 0);
	}
	for (int late = 0; late < 2; late++)
		for (int polled = 0; polled < 2; polled++)
			SAME(dormant_outside, late, polled, 0);
	dormant_many();
	dormant_is_free();
	dormant_forked();
	ctl_while_asleep();
	section("epoll_ctl in epoll_ctl");
	ctl_in_ctl(0, 0);
	ctl_in_ctl(2, 0);
	ctl_in_ctl(0, 1);
}

/* ---- cost ---- */

static double cost(int registered, u32 events)
{
	static int p[1000][2];
	int ep = new_set(), n = 20000;
	struct epoll_event ev[8];

	for (int i = 0; i < registered; i++) {
		x_pair(1, p[i]);
		ctl(ep, ADD, p[i][0], events, (u64)i);
	}
	while (h_epoll_wait(ep, ev, 8, 0) > 0)
		;
	double best = 1e18;
	for (int run = 0; run < 5; run++) {
		i64 t = now_ns();
		for (int i = 0; i < n; i++) {
			char c;
			x_send(p[3][1], "x", 1);
			CHECK(h_epoll_wait(ep, ev, 8, 1000) == 1 && ev[0].data.u64 == 3);
			CHECK(x_recv(p[3][0], &c, 1) == 1);
		}
		double d = (double)(now_ns() - t) / n;
		best = d < best ? d : best;
	}
	for (int i = 0; i < registered; i++)
		x_done(p[i]);
	x_close(ep);
	return best;
}

int main(void)
{
	if (getenv("EPOLL_TEST_LONG"))
		scale = atoi(getenv("EPOLL_TEST_LONG"));
	ready_shim();
	test_matrix();
	not_for_the_program();
	section("mixed");
	for (int et = 0; et < 2; et++) {
		SAME(mixed, et ? (int)EPOLLET : 0, 0, 0);
		for (int dups = 0; dups < 2; dups++)
			SAME(several_sets, et ? (int)EPOLLET : 0, dups, 0);
		SAME(dup_of_set, et, 0, 0);
	}
	for (int max = 1; max < 6; max += 2)
		rotation(max);
	section("crowded");
	crowded();
	section("nested");
	for (int how = 0; how < 3; how++)
		for (int et = 0; et < 2; et++)
			SAME(nested, how, et ? (int)EPOLLET : 0, 0);
	early(0);
	early(1);
	signals();
	idle();
	section("hand-over");
	for (int r = 0; r < 2; r++) {
		SAME(hand_over, 0, EPOLLIN, r);
		SAME(hand_over, 0, EPOLLIN | EPOLLOUT, r);
		SAME(hand_over, (int)EPOLLET, EPOLLIN, r);
		SAME(hand_over, (int)EPOLLET, EPOLLIN | EPOLLOUT, r);
		SAME(hand_over, (int)EPOLLONESHOT, EPOLLIN, r);
		SAME(hand_over, (int)EPOLLEXCLUSIVE, EPOLLIN, r);
	}
	hand_over_late(0);
	hand_over_late((int)EPOLLEXCLUSIVE);
	decided_elsewhere();
	hand_over_under_load(600 * scale);
	section("fin");
	fin_while_asleep(EPOLLIN | EPOLLRDHUP);
	fin_while_asleep(EPOLLRDHUP);
	fin_while_asleep(EPOLLIN | EPOLLET);
	one_wakes_one();
	leftovers();
	section("threads");
	many_threads(EPOLLIN, 1);
	many_threads(EPOLLIN, 4);
	many_threads(EPOLLIN | EPOLLET, 1);
	many_threads(EPOLLIN | EPOLLET, 4);
	many_threads(EPOLLIN | EPOLLONESHOT, 4);
	many_threads(EPOLLIN | EPOLLET | EPOLLONESHOT, 4);
	section("processes");
	processes(EPOLLIN, 0);
	processes(EPOLLIN, 1);
	processes(EPOLLIN | EPOLLET, 0);
	processes(EPOLLIN | EPOLLET | EPOLLOUT, 1);
	processes(EPOLLIN | EPOLLONESHOT, 1);
	inherited();
	churn();
	close_while_waiting();
	cancel();
	handlers();
	dormants();
	section("cost");
	double few = cost(10, EPOLLIN), many = cost(1000, EPOLLIN), edge = cost(1000, EPOLLIN | EPOLLET);
	if (getenv("READY_VERBOSE"))
		fprintf(stderr, "  send + epoll_wait + recv: %.0f ns with 10 registered, %.0f with 1000, %.0f EPOLLET\n", few, many, edge);
	CHECK(many < 5 * few, "cost grows with what is registered: %.0f, %.0f ns", few, many);
	section("end");
	return 0;
}

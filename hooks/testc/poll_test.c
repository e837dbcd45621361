/* poll.c: poll and select with connections of ours beside native runs. build: poll.c epoll.c lane.c bell.c
 * POLL_TEST_LONG=n multiplies the timed parts. */
#include "ready_pair.h"

static int scale = 1;

/* ---- every way to ask, compared ---- */

static void p1(int ours, int fd, int events, const char *what)
{
	struct pollfd v = {fd, (short)events, (short)0xdead};

	if (!ours)
		nap(500);
	int n = h_poll(&v, 1, 0);
	note(" %s=%s:%x", what, err(n), (u16)v.revents);
}

static void s1(int ours, int fd, int sets, const char *what)
{
	fd_set f[3];
	struct timeval zero = {0, 0};

	if (!ours)
		nap(500);
	for (int k = 0; k < 3; k++) {
		FD_ZERO(&f[k]);
		if (sets & 1 << k)
			FD_SET(fd, &f[k]);
	}
	int n = h_select(fd + 1, sets & 1 ? &f[0] : 0, sets & 2 ? &f[1] : 0, sets & 4 ? &f[2] : 0, &zero);
	note(" %s=%s:", what, err(n));
	for (int k = 0; k < 3; k++)
		note("%d", (sets & 1 << k) && FD_ISSET(fd, &f[k]) ? 1 : 0);
}

static void matrix(int ours, int sel, int mask, int before)
{
	void (*ask)(int, int, int, const char *) = sel ? s1 : p1;
	int fd[2];

	x_pair(ours, fd);
	if (before)
		x_send(fd[1], "hello", 5);
	ask(ours, fd[0], mask, "new");
	x_send(fd[1], "hello", 5);
	ask(ours, fd[0], mask, "data");
	ask(ours, fd[0], mask, "again");
	x_drain(fd[0]);
	ask(ours, fd[0], mask, "drained");
	x_fill(fd[0]);
	ask(ours, fd[0], mask, "full");
	while (x_drain(fd[1]) && !ours)
		nap(2000);
	ask(ours, fd[0], mask, "room");
	x_shut(fd[1]);
	ask(ours, fd[0], mask, "fin");
	x_shut(fd[0]);
	ask(ours, fd[0], mask, "both");
	x_done(fd);
}

/* Ours among pipes, eventfds, closed and negative numbers. */
static void mixed(int ours, int n, int b, int c)
{
	struct pollfd v[400];
	int p[3][2], pi[2], k = 0;

	(void)b, (void)c;
	CHECK(pipe2(pi, O_NONBLOCK) == 0);
	for (int i = 0; i < 3; i++)
		x_pair(ours && i != 1, p[i]);
	for (; k < n; k++)
		v[k] = (struct pollfd){k % 3 == 0 ? -1 : pi[0], POLLIN, 0x7f};
	for (int i = 0; i < 3; i++)
		v[k++] = (struct pollfd){p[i][0], POLLIN | POLLOUT, 0x7f};
	v[k++] = (struct pollfd){pi[1], POLLOUT, 0x7f};
	v[k++] = (struct pollfd){3998, POLLIN, 0x7f};
	v[k++] = (struct pollfd){p[0][0], POLLIN, 0x7f}; /* twice */
	for (int round = 0; round < 4; round++) {
		if (round == 1)
			x_send(p[0][1], "x", 1);
		if (round == 2)
			CHECK(write(pi[1], "x", 1) == 1);
		if (round == 3)
			for (int i = 0; i < k; i++)
				v[i].events = POLLIN;
		nap(ours ? 0 : 1000);
		struct timespec t = {0, 1000000};
		note("[%d", round & 1 ? h_ppoll(v, (nfds_t)k, &t, 0) : h_poll(v, (nfds_t)k, 1));
		for (int i = 0; i < k; i++)
			note(" %x", v[i].revents);
		note("]");
	}
	for (int i = 0; i < 3; i++)
		x_done(p[i]);
	x_close(pi[0]);
	x_close(pi[1]);
}

static void errors(int ours, int a, int b, int c)
{
	int fd[2];
	struct pollfd v;
	fd_set r;
	struct timespec bad = {0, 1000000000};
	struct timeval neg = {-1, 0}, big = {0, 1500000};

	(void)a, (void)b, (void)c;
	x_pair(ours, fd);
	v = (struct pollfd){fd[0], POLLIN, 0};
	note("%s ", err(h_ppoll(&v, 1, &bad, 0)));
	note("%s ", err(h_poll(0, 0, 0)));
	note("%s ", err(h_poll(0, 1, 0)));
	FD_ZERO(&r);
	FD_SET(fd[0], &r);
	note("%s ", err(h_select(fd[0] + 1, &r, 0, 0, &neg)));
	note("%s ", err(h_select(-1, &r, 0, 0, 0)));
	note("%s ", err(h_pselect(fd[0] + 1, &r, 0, 0, &bad, 0)));
	int gone = dup(fd[0]);
	close(gone);
	FD_SET(gone, &r);
	note("%s %d", err(h_select(1024, &r, 0, 0, &big)), FD_ISSET(fd[0], &r) && FD_ISSET(gone, &r));
	FD_CLR(gone, &r);
	big = (struct timeval){0, 1500000};
	i64 t = now_ns();
	note(" %s", err(h_select(1024, &r, 0, 0, &big)));
	CHECK(now_ns() - t >= 1500 * MS && big.tv_sec == 0 && big.tv_usec == 0);
	/* no set, an empty one, an fd beyond n */
	struct timeval zero = {0, 0};
	FD_SET(fd[0], &r);
	x_send(fd[1], "x", 1);
	nap(1000);
	note(" %s", err(h_select(fd[0], &r, 0, 0, &zero)));
	FD_SET(fd[0], &r);
	note(" %s", err(h_select(fd[0] + 1, &r, 0, 0, &zero)));
	x_done(fd);
}

static void wide(void)
{
	unsigned long r[4096 / 64] = {0}, w[4096 / 64] = {0};
	int fd[2], high, low = eventfd(1, 0);

	section("beyond FD_SETSIZE");
	x_pair(1, fd);
	high = fcntl(fd[0], F_DUPFD, 2500);
	name(x_sock(fd[0]), high);
	struct timeval t = {1, 0};
#define BIT(v, i) ((v)[(i) / 64] >> (i) % 64 & 1)
	r[high / 64] |= 1ul << high % 64;
	w[high / 64] |= 1ul << high % 64;
	r[low / 64] |= 1ul << low % 64;
	CHECK(h_select(high + 1, (void *)r, (void *)w, 0, &t) == 2 && !BIT(r, high) && BIT(w, high) && BIT(r, low));
	x_send(fd[1], "x", 1);
	memset(w, 0, sizeof w);
	r[high / 64] |= 1ul << high % 64;
	CHECK(h_select(high + 1, (void *)r, (void *)w, 0, &t) == 2 && BIT(r, high) && !BIT(w, high) && BIT(r, low));
	x_close(high);
	x_close(low);
	x_done(fd);
}

/* ---- sleeping ---- */

static struct later {
	int fd, ms, plain;
	void (*f)(struct later *);
} later;

static void *do_later(void *p)
{
	struct later *l = p;
	nap(l->ms * 1000);
	l->f(l);
	return 0;
}

static void f_send(struct later *l) { x_send(l->fd, "x", 1); }
static void f_shut(struct later *l) { shutdown(l->fd, SHUT_WR); }
static void f_drain(struct later *l) { x_drain(l->fd); }
static void f_write(struct later *l)
{
	u64 one = 1;
	CHECK(write(l->fd, &one, 8) == 8);
}

static pthread_t start(void (*f)(struct later *), int fd)
{
	pthread_t t;

	later = (struct later){.fd = fd, .ms = 30, .f = f};
	CHECK(pthread_create(&t, 0, do_later, &later) == 0);
	return t;
}

static void sleeping(int slices)
{
	int fd[2], ev = eventfd(0, EFD_NONBLOCK);
	u64 one;

	section("sleeping");
	arms_refused = slices;
	x_pair(1, fd);
	struct pollfd v[2] = {{fd[0], POLLIN, 0}, {ev, POLLIN, 0}};
	for (int k = 0; k < 3; k++) {
		i64 t = now_ns();
		pthread_t th = start(k ? f_send : f_write, k ? fd[1] : ev);
		CHECK(h_poll(v, 2, 5000) == 1 && v[!k].revents == POLLIN && v[k != 0].revents == 0);
		CHECK(now_ns() - t >= 29 * MS && now_ns() - t < 2000 * MS);
		pthread_join(th, 0);
		x_drain(fd[0]);
		if (!k)
			CHECK(read(ev, &one, 8) == 8);
	}
	/* time: not shorter, and select says what is left */
	for (int ms = 0; ms < 40; ms += 13) {
		i64 t = now_ns();
		CHECK(h_poll(v, 2, ms) == 0 && now_ns() - t >= ms * MS);
		struct timespec ts = {0, ms * MS + 300000};
		t = now_ns();
		CHECK(h_ppoll(v, 2, &ts, 0) == 0 && now_ns() - t >= ms * MS + 300000 && ts.tv_nsec == ms * MS + 300000);
	}
	fd_set r;
	FD_ZERO(&r);
	FD_SET(fd[0], &r);
	struct timeval tv = {5, 0};
	pthread_t th = start(f_send, fd[1]);
	CHECK(h_select(fd[0] + 1, &r, 0, 0, &tv) == 1 && FD_ISSET(fd[0], &r));
	CHECK(tv.tv_sec == 4 || (tv.tv_sec < 4 && tv.tv_usec >= 0), "%ld", (long)tv.tv_sec);
	pthread_join(th, 0);
	x_drain(fd[0]);
	/* room */
	x_fill(fd[0]);
	struct pollfd o = {fd[0], POLLOUT, 0};
	th = start(f_drain, fd[1]);
	CHECK(h_poll(&o, 1, 5000) == 1 && o.revents == POLLOUT);
	pthread_join(th, 0);
	/* the peer's end, which only the TCP fd knows: no engine runs here */
	o.events = POLLIN | POLLRDHUP;
	th = start(f_shut, fd[1]);
	CHECK(h_poll(&o, 1, 5000) == 1 && o.revents == (POLLIN | POLLRDHUP));
	pthread_join(th, 0);
	x_done(fd);
	x_close(ev);
	arms_refused = 0;
}

/* Nobody wakes up while nothing happens; and a kernel fd that has what select does not ask for is no reason to run. */
static void idle(void)
{
	int fd[2], pi[2];
	struct rusage a, b;

	section("idle");
	x_pair(1, fd);
	struct pollfd v = {fd[0], POLLIN, 0};
	getrusage(RUSAGE_THREAD, &a);
	CHECK(h_poll(&v, 1, 300) == 0);
	getrusage(RUSAGE_THREAD, &b);
	CHECK(b.ru_nvcsw - a.ru_nvcsw <= 3, "%ld wake-ups", b.ru_nvcsw - a.ru_nvcsw);

	tcp_pair(pi);
	x_shut(pi[0]);
	x_shut(pi[1]); /* HUP for ever */
	fd_set r, e;
	FD_ZERO(&r);
	FD_ZERO(&e);
	FD_SET(fd[0], &r);
	FD_SET(pi[0], &e);
	struct timeval tv = {0, 300000};
	getrusage(RUSAGE_THREAD, &a);
	CHECK(h_select(1024, &r, 0, &e, &tv) == 0);
	getrusage(RUSAGE_THREAD, &b);
	CHECK(b.ru_nvcsw - a.ru_nvcsw <= 40, "%ld wake-ups", b.ru_nvcsw - a.ru_nvcsw);
	i64 cpu = (b.ru_utime.tv_sec - a.ru_utime.tv_sec) * 1000000ll + b.ru_utime.tv_usec - a.ru_utime.tv_usec +
		  (b.ru_stime.tv_sec - a.ru_stime.tv_sec) * 1000000ll + b.ru_stime.tv_usec - a.ru_stime.tv_usec;
	CHECK(cpu < 100000, "%lld us of CPU", (long long)cpu);
	x_close(pi[0]);
	x_close(pi[1]);
	x_done(fd);
}

/* ---- signals ---- */

static _Atomic int handled;
static void on_signal(int sig)
{
	(void)sig;
	handled++;
}

static void signals(void)
{
	int fd[2];
	sigset_t none, usr, old;
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	struct itimerval in = {{0, 0}, {0, 30000}};

	section("signals");
	x_pair(1, fd);
	sigaction(SIGALRM, &sa, 0);
	sigaction(SIGUSR1, &sa, 0);
	struct pollfd v = {fd[0], POLLIN, 0};
	fd_set r;
	FD_ZERO(&r);
	FD_SET(fd[0], &r);
	setitimer(ITIMER_REAL, &in, 0);
	CHECK(h_poll(&v, 1, 5000) == -1 && errno == EINTR);
	setitimer(ITIMER_REAL, &in, 0);
	struct timeval tv = {5, 0};
	CHECK(h_select(fd[0] + 1, &r, 0, 0, &tv) == -1 && errno == EINTR && tv.tv_sec == 4 && FD_ISSET(fd[0], &r));
	CHECK(handled == 2);
	sigemptyset(&none);
	sigemptyset(&usr);
	sigaddset(&usr, SIGUSR1);
	sigprocmask(SIG_BLOCK, &usr, &old);
	handled = 0;
	struct timespec t = {3, 0}, short_ = {0, 30 * MS};
	raise(SIGUSR1);
	CHECK(h_ppoll(&v, 1, &short_, &usr) == 0 && handled == 0);
	CHECK(h_ppoll(&v, 1, &t, &none) == -1 && errno == EINTR && handled == 1);
	raise(SIGUSR1);
	CHECK(h_pselect(fd[0] + 1, &r, 0, 0, &t, &none) == -1 && errno == EINTR && handled == 2);
	raise(SIGUSR1);
	x_send(fd[1], "x", 1);
	CHECK(h_ppoll(&v, 1, &t, &none) == 1 && handled == 2); /* events win */
	CHECK(h_pselect(fd[0] + 1, &r, 0, 0, &t, &none) == 1 && handled == 2);
	sigprocmask(SIG_SETMASK, &old, 0);
	CHECK(handled == 3);
	x_done(fd);
}

/* ---- falling back, hiding, cancelling ---- */

static void f_plain(struct later *l)
{
	struct sock *a = x_sock(l->fd);

	for (int i = 0; i < 2; i++) {
		int nested = lk_lock(&a[i].b->lock);
		a[i].b->state = S_FLUSH;
		if (i == 0)
			nap(30000);
		epoll_sock_plain(&a[i]);
		a[i].b->state = S_TCP;
		sock_fire(&a[i]);
		all_plain(&a[i]);
		lk_unlock(&a[i].b->lock, nested);
	}
	nap(20000);
	CHECK(send(a[1].fd, "x", 1, 0) == 1);
}

/* In S_FLUSH bytes come from the kernel already. */
static void f_flush(struct later *l)
{
	CHECK(send(l->fd, "x", 1, 0) == 1);
}

static void fall_back(void)
{
	int fd[2];

	section("fall back");
	x_pair(1, fd);
	x_sock(fd[0])->b->state = S_CLC;
	struct pollfd v = {fd[0], POLLIN, 0};
	pthread_t t = start(f_plain, fd[0]);
	CHECK(h_poll(&v, 1, 5000) == 1 && v.revents == POLLIN);
	pthread_join(t, 0);
	CHECK(x_drain(fd[0]) == 1);
	x_done(fd);
	x_pair(1, fd);
	x_sock(fd[0])->b->state = S_FLUSH;
	x_sock(fd[0])->b->stage_len = 1;
	v = (struct pollfd){fd[0], POLLIN | POLLOUT, 0};
	t = start(f_flush, fd[1]);
	i64 t0 = now_ns();
	CHECK(h_poll(&v, 1, 5000) == 1 && v.revents == POLLIN && now_ns() - t0 < 2000 * MS);
	pthread_join(t, 0);
	x_done(fd);
}

static void hidden(void)
{
	int fd[2], h = fd_hide(eventfd(1, 0));
	fd_set r;

	x_pair(1, fd);
	struct pollfd v[2] = {{h, POLLIN, 0}, {fd[0], POLLIN, 0}};
	CHECK(h_poll(v, 2, 1000) == 1 && v[0].revents == POLLNVAL);
	CHECK(h_poll(v, 1, 1000) == 1 && v[0].revents == POLLNVAL);
	unsigned long w[4096 / 64] = {0};
	w[h / 64] |= 1ul << h % 64;
	struct timeval zero = {0, 0};
	CHECK(h_select(h + 1, (void *)w, 0, 0, &zero) == -1 && errno == EBADF);
	FD_ZERO(&r);
	x_done(fd);
	fd_unhide(h);
}

static void *poller(void *p)
{
	int *fd = p;
	struct pollfd v[100];

	for (int i = 0; i < 100; i++)
		v[i] = (struct pollfd){fd[0], POLLIN, 0};
	pthread_cleanup_push(left_by_cancel, 0);
	h_poll(v, 100, -1);
	pthread_cleanup_pop(0);
	return 0;
}

static void cancel(void)
{
	int fd[2];
	pthread_t t;
	void *ret;

	section("cancel");
	x_pair(1, fd);
	u32 refs = x_sock(fd[0])->refs;
	CHECK(pthread_create(&t, 0, poller, fd) == 0);
	for (i64 t0 = now_ns(); x_sock(fd[0])->refs != refs + 100; nap(1000))
		CHECK(now_ns() - t0 < 10000 * MS);
	nap(10000);
	CHECK(pthread_cancel(t) == 0 && pthread_join(t, &ret) == 0 && ret == PTHREAD_CANCELED);
	CHECK(x_sock(fd[0])->refs == refs);
	for (int i = 1; i < BELL_MAX; i++)
		CHECK(!S->bell[i].used, "bell %d is lost", i);
	x_done(fd);
}

/* ---- lost wake-ups ---- */

/* Threads and a process play ping-pong; each waits in poll or select. */
static void wait_in(int fd, u32 *x)
{
	struct pollfd v = {fd, POLLIN, 0};
	fd_set r;
	struct timespec t = {10, 0};

	FD_ZERO(&r);
	FD_SET(fd, &r);
	switch (rnd(x) % 3) {
	case 0: CHECK(h_poll(&v, 1, 10000) == 1, "lost"); break;
	case 1: CHECK(h_ppoll(&v, 1, &t, 0) == 1, "lost"); break;
	case 2: CHECK(h_pselect(fd + 1, &r, 0, 0, &t, 0) == 1, "lost"); break;
	}
}

static u64 play(int fd, int first, u32 seed, int napping)
{
	u64 rounds = 0;
	char c = 'x';

	for (i64 end = now_ns() + 700 * MS * scale; c != 'q'; rounds++) {
		if (first && now_ns() > end)
			c = 'q';
		if (!first || rounds) {
			wait_in(fd, &seed);
			char got;
			CHECK(x_recv(fd, &got, 1) == 1);
			if (got == 'q')
				break;
		}
		if (napping && rnd(&seed) % 8 == 0)
			nap(rnd(&seed) % 80);
		CHECK(x_send(fd, &c, 1) == 1);
	}
	return rounds;
}

static void *player(void *p)
{
	play(*(int *)p, 0, 11, 1);
	return 0;
}

static void ping_pong(void)
{
	pthread_t t[2];
	int a[2], b[2];

	section("ping-pong");
	x_pair(1, a);
	x_pair(1, b);
	pthread_create(&t[0], 0, player, &a[1]);
	u64 n = play(a[0], 1, 5, 1);
	pthread_join(t[0], 0);
	x_done(a);

	int idx = bell_get(); /* a bell of before the fork, which the child knows */
	bell_put(idx);
	CHECK(S->bell[idx].word);
	__atomic_store_n(&S->bell[idx].used, 1, __ATOMIC_SEQ_CST);
	pid_t pid = fork();
	if (!pid) {
		lane_forked();
		bell_forked();
		S->pid = (u32)getpid();
		u32 x = 3;
		char c = 0;
		while (c != 'q') { /* its own bells the parent does not know: it looks instead of waiting */
			struct iovec v = {&c, 1};
			if (lane_read(x_sock(b[1]), &v, 1, 0, 0) != 1) {
				sched_yield();
				continue;
			}
			if (rnd(&x) % 4 == 0)
				nap(rnd(&x) % 60);
			if (c != 'q')
				lane_write(x_sock(b[1]), &v, 1, 0);
		}
		_exit(0);
	}
	__atomic_store_n(&S->bell[idx].used, 0, __ATOMIC_SEQ_CST);
	u64 m = play(b[0], 1, 7, 0);
	int st;
	CHECK(waitpid(pid, &st, 0) == pid && st == 0);
	x_done(b);
	if (getenv("READY_VERBOSE"))
		fprintf(stderr, "  %llu rounds between threads, %llu with a process\n", (long long)n, (long long)m);
}

/* The sanitizer's own poll looks at the program's memory first. */
static int kernels_poll(struct pollfd *u, nfds_t n, int ms) { return (int)syscall(SYS_poll, u, n, ms); }
static int kernels_ppoll(struct pollfd *u, nfds_t n, const struct timespec *t, const sigset_t *mask)
{
	return (int)syscall(SYS_ppoll, u, n, t, mask, 8);
}

/* Bad addresses are the kernel's to find: any, as long as nothing is ours, and afterwards those that never are memory. */
static void nowhere(void)
{
	u8 *page = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	void *bad[] = {page, (void *)8, (void *)~7ul, (void *)(1ul << 62)};
	u32 top = atomic_load(&S->fd_top);
	struct timespec zero = {0, 0};
	struct timeval none = {0, 0};

	CHECK(page != MAP_FAILED && !atomic_load(&S->ep));
	test_real.poll = kernels_poll;
	test_real.ppoll = kernels_ppoll;
	for (u32 i = 0; i < sizeof bad / sizeof *bad; i++) {
		atomic_store(&S->fd_top, i ? 3000 : 0);
		CHECK(h_poll(bad[i], 1, 0) == -1 && errno == EFAULT);
		CHECK(h_ppoll(bad[i], 1, &zero, 0) == -1 && errno == EFAULT);
		CHECK(h_select(5, bad[i], 0, 0, &none) == -1 && errno == EFAULT);
		CHECK(h_select(5, 0, 0, bad[i], &none) == -1 && errno == EFAULT);
		CHECK(h_pselect(5, 0, bad[i], 0, &zero, 0) == -1 && errno == EFAULT);
	}
	atomic_store(&S->fd_top, top);
	test_real.poll = poll; /* a cancellation point */
	test_real.ppoll = ppoll;
	munmap(page, 4096);
}

int main(void)
{
	if (getenv("POLL_TEST_LONG"))
		scale = atoi(getenv("POLL_TEST_LONG"));
	ready_shim();
	nowhere();
	section("matrix");
	static const short mask[] = {POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLRDHUP, POLLRDHUP, 0,
				     POLLIN | POLLRDNORM | POLLPRI, POLLOUT | POLLWRNORM | POLLWRBAND};
	for (int before = 0; before < 2; before++) {
		for (u32 m = 0; m < sizeof mask / sizeof *mask; m++)
			SAME(matrix, 0, mask[m], before);
		for (int m = 1; m < 8; m++)
			SAME(matrix, 1, m, before);
	}
	section("mixed");
	SAME(mixed, 0, 0, 0);
	SAME(mixed, 10, 0, 0);
	SAME(mixed, 390, 0, 0);
	section("errors");
	SAME(errors, 0, 0, 0);
	wide();
	sleeping(0);
	sleeping(1);
	idle();
	signals();
	fall_back();
	hidden();
	cancel();
	ping_pong();
	section("end");
	return 0;
}

/* lane.c: locks, rings, waiting. build: lane.c bell.c
 * LANE_TEST_LONG=n multiplies the timed parts. */
#include "lane_pair.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>

static int posts;
int engine_post(u32 op, struct sock *s, u64 arg)
{
	(void)s, (void)arg;
	posts += op == REQ_TOUCHED;
	return 0;
}
static _Atomic int tcp_events;
void sock_tcp_event(struct sock *s, u32 events)
{
	CHECK(events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
	tcp_events++;
	atomic_fetch_or(&s->b->flags, BF_FIN);
	sock_fire(s);
}
int fd_hide(int fd) { return fd; }
int fd_unhide(int fd) { return close(fd); }

static int scale = 1;
#define MS 1000000ll
static i64 in_ms(int ms) { return now_ns() + ms * MS; }
static i64 stuck(void) { return in_ms(20000); } /* a lost wake-up shows as -ETIMEDOUT */

static u32 rnd(u32 *x) { return *x = *x * 1664525 + 1013904223, *x >> 8; }
static u8 byte_at(u64 i) { return (u8)(i * 0x9e3779b97f4a7c15ull >> 53 ^ i); }

static void nap(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	nanosleep(&t, 0);
}

static pid_t child(void (*f)(void *), void *arg)
{
	pid_t p = fork();
	CHECK(p >= 0);
	if (p)
		return p;
	lane_forked();
	f(arg);
	_exit(0);
}

static void reap(pid_t p)
{
	int st;
	CHECK(waitpid(p, &st, 0) == p);
	CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0, "child: status %x", st);
}

static pthread_t thread(void *(*f)(void *), void *arg)
{
	pthread_t t;
	CHECK(pthread_create(&t, 0, f, arg) == 0);
	return t;
}

/* ---- integrity: what goes in comes out, in order, whatever the sizes ---- */

struct flow {
	struct sock *s;
	u64 bytes;
	u32 seed;
};

static int random_iov(u32 *x, u8 *p, size_t n, struct iovec *v)
{
	int k = 0;
	while (k < 7 && n) {
		size_t part = rnd(x) % 4 ? rnd(x) % (n + 1) : 0;
		v[k++] = (struct iovec){p, part};
		p += part, n -= part;
	}
	v[k++] = (struct iovec){p, n};
	return k;
}

static void *write_flow(void *arg)
{
	struct flow *f = arg;
	u32 x = f->seed;
	static __thread u8 b[100000];
	for (u64 at = 0; at < f->bytes;) {
		struct iovec v[8];
		size_t n = rnd(&x) % 3 ? 1 + rnd(&x) % 300 : 1 + rnd(&x) % sizeof b;
		if (n > f->bytes - at)
			n = f->bytes - at;
		for (size_t i = 0; i < n; i++)
			b[i] = byte_at(at + i);
		int k = random_iov(&x, b, n, v);
		for (size_t done = 0; done < n;) {
			ssize_t r = lane_write(f->s, v, k, done);
			CHECK(r >= 0);
			done += (size_t)r;
			if (!r)
				CHECK(lane_wait(f->s, EPOLLOUT, stuck()) == 0, "writer at %lu", (unsigned long)at);
		}
		at += n;
	}
	atomic_fetch_or(&f->s->tx->wflags, RH_WDONE);
	arm_fire(&f->s->tx->rarm, f->s, 0);
	return 0;
}

static void *read_flow(void *arg)
{
	struct flow *f = arg;
	u32 x = f->seed * 7 + 1;
	static __thread u8 b[100000];
	u64 at = 0;
	for (;;) {
		struct iovec v[8];
		size_t n = rnd(&x) % 3 ? 1 + rnd(&x) % 300 : 1 + rnd(&x) % sizeof b;
		int flags = rnd(&x) % 8 == 0 ? MSG_PEEK : rnd(&x) % 8 == 0 ? MSG_TRUNC : 0;
		memset(b, 0xa5, n);
		ssize_t r = lane_read(f->s, v, random_iov(&x, b, n, v), 0, flags);
		CHECK(r >= 0 && (size_t)r <= n);
		if (!r) {
			if (atomic_load(&f->s->rx->wflags) & RH_WDONE && !lane_used(f->s))
				break;
			CHECK(lane_wait(f->s, EPOLLIN, stuck()) == 0, "reader at %lu", (unsigned long)at);
			continue;
		}
		for (ssize_t i = 0; i < r && flags != MSG_TRUNC; i++)
			CHECK(b[i] == byte_at(at + (u64)i), "byte %lu", (unsigned long)(at + (u64)i));
		if (flags == MSG_TRUNC)
			CHECK(b[0] == 0xa5, "MSG_TRUNC copied");
		if (flags != MSG_PEEK)
			at += (u64)r;
	}
	CHECK(at == f->bytes && f->s->b->rx_bytes == at);
	return 0;
}

static void both_ways(void *arg)
{
	struct sock *s = arg;
	struct flow w = {s, 20000000, 3}, r = w;
	pthread_t t = thread(write_flow, &w);
	read_flow(&r);
	pthread_join(t, 0);
	CHECK(s->b->tx_bytes == w.bytes);
}

static void test_integrity(u32 profile, u64 size)
{
	make_shim(profile);
	struct sock *a = make_pair(1, size, 2);
	pid_t p = child(both_ways, a + 1);
	both_ways(a);
	reap(p);
	free_pair(a);
}

/* ---- several threads on each side: every cell arrives once, each writer's in order ---- */

struct cell {
	u32 kind, seq;
	u64 sum;
};
static struct cell cell(u32 kind, u32 seq) { return (struct cell){kind, seq, ((u64)kind << 32 | seq) * 0x9e3779b97f4a7c15ull}; }

#define CELLS 200000
#define SIDE 3
static struct sock *many;
static _Atomic u8 *got;

static void *write_cells(void *arg)
{
	u32 kind = (u32)(uintptr_t)arg;
	for (u32 i = 0; i < CELLS; i++) {
		struct cell c = cell(kind, i);
		CHECK(send_all(many, &c, sizeof c, stuck()) == sizeof c);
	}
	return 0;
}

static void *read_cells(void *arg)
{
	u32 last[SIDE + 1] = {0};
	struct cell c[37];
	(void)arg;
	for (;;) {
		ssize_t r = recv_some(many + 1, c, sizeof c, 0, stuck());
		CHECK(r >= 0 && r % sizeof *c == 0, "%zd", r);
		if (!r)
			return 0;
		for (size_t i = 0; i < (size_t)r / sizeof *c; i++) {
			struct cell want = cell(c[i].kind, c[i].seq);
			CHECK(c[i].kind - 1 < SIDE && c[i].seq < CELLS && c[i].sum == want.sum);
			CHECK(c[i].seq >= last[c[i].kind]);
			last[c[i].kind] = c[i].seq;
			CHECK(atomic_fetch_add(&got[(c[i].kind - 1) * CELLS + c[i].seq], 1) == 0, "twice");
		}
	}
}

static void many_readers(void *arg)
{
	pthread_t t[SIDE];
	for (int i = 0; i < SIDE; i++)
		t[i] = thread(read_cells, arg);
	for (int i = 0; i < SIDE; i++)
		pthread_join(t[i], 0);
}

static void test_many(u32 profile)
{
	pthread_t t[SIDE];
	make_shim(profile);
	many = make_pair(1, 4096, 2);
	got = shared(SIDE * CELLS);
	pid_t p = child(many_readers, 0);
	for (int i = 0; i < SIDE; i++)
		t[i] = thread(write_cells, (void *)(uintptr_t)(i + 1));
	for (int i = 0; i < SIDE; i++)
		pthread_join(t[i], 0);
	atomic_fetch_or(&many->tx->wflags, RH_WDONE);
	arm_fire(&many->tx->rarm, many, 0);
	reap(p);
	for (int i = 0; i < SIDE * CELLS; i++)
		CHECK(got[i] == 1, "cell %d lost", i);
	free_pair(many);
}

/* ---- lost wake-ups: ping-pong with random pauses of all kinds ---- */

static void pause_a_bit(u32 *x)
{
	u32 r = rnd(x) % 64;
	if (r == 0)
		nap(rnd(x) % 60);
	else if (r < 4)
		sched_yield();
	else if (r < 40)
		for (u32 k = rnd(x) % 400; k; k--)
			__builtin_ia32_pause();
}

static void pong(void *arg)
{
	struct sock *s = arg;
	u32 x = 9;
	for (;;) {
		u8 c;
		CHECK(recv_some(s, &c, 1, 0, stuck()) == 1);
		pause_a_bit(&x);
		CHECK(send_all(s, &c, 1, stuck()) == 1);
		if (!c)
			return;
	}
}

static void *pong_thread(void *arg)
{
	pong(arg);
	return 0;
}

static void test_pingpong(u32 profile, int processes)
{
	make_shim(profile);
	struct sock *a = make_pair(1, 4096, processes ? 2 : SELF_PEER);
	pthread_t t = 0;
	pid_t p = 0;
	if (processes)
		p = child(pong, a + 1);
	else
		t = thread(pong_thread, a + 1);
	i64 end = in_ms(1500 * scale);
	u32 x = 4;
	u8 c, back;
	long n = 0;
	do {
		c = now_ns() < end ? (u8)(1 + n % 255) : 0;
		CHECK(send_all(a, &c, 1, stuck()) == 1);
		pause_a_bit(&x);
		CHECK(recv_some(a, &back, 1, 0, stuck()) == 1 && back == c);
		n++;
	} while (c);
	if (processes)
		reap(p);
	else
		pthread_join(t, 0);
	printf("  %ld round trips\n", n);
	free_pair(a);
}

/* State changes (dir 0): one side counts up in so_error, the other waits for each value. */
static void *count_up(void *arg)
{
	struct sock *s = arg;
	u32 x = 5;
	for (int i = 1; i <= 100000; i++) {
		atomic_store(&s->b->so_error, i);
		sock_fire(s);
		while (atomic_load(&s->b->stage_len) != (u32)i)
			CHECK(lane_wait(s, 0, stuck()) == 0);
		if (i % 16 == 0)
			pause_a_bit(&x);
	}
	return 0;
}

static void test_state(void)
{
	make_shim(PROFILE_BALANCED);
	struct sock *s = make_pair(1, 4096, 2);
	s->b->state = S_CLC;
	pthread_t t = thread(count_up, s);
	for (int i = 1; i <= 100000; i++) {
		while (atomic_load(&s->b->so_error) != i)
			CHECK(lane_wait(s, 0, stuck()) == 0);
		atomic_store(&s->b->stage_len, (u32)i);
		sock_fire(s);
	}
	pthread_join(t, 0);
	free_pair(s);
}

/* ---- a signal handler that uses the socket which it interrupts ---- */

static struct sock *sig_s;
static volatile long sig_runs, sig_inside;
static u32 sig_seq, sig_last;
static _Atomic u8 *sig_got;
#define SIG_CELLS 30000000

static void write_in_handler(int sig)
{
	struct cell c[3];
	(void)sig;
	sig_runs++;
	sig_inside += (atomic_load(&sig_s->b->tx.w) & 0x7fffffff) == my_tid();
	for (int i = 0; i < 3; i++)
		c[i] = cell(2, sig_seq + (u32)i);
	struct iovec v = {c, sizeof c};
	ssize_t r = lane_write(sig_s, &v, 1, 0);
	CHECK(r >= 0 && r % 16 == 0);
	sig_seq += (u32)r / 16;
}

static void start_timer(void (*f)(int), int us)
{
	struct sigaction sa = {.sa_handler = f, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &sa, 0);
	struct itimerval it = {{0, us}, {0, us}};
	CHECK(setitimer(ITIMER_REAL, &it, 0) == 0);
}

static void stop_timer(void)
{
	struct itimerval it = {{0, 0}, {0, 0}};
	setitimer(ITIMER_REAL, &it, 0);
}

static void sig_reader(void *arg)
{
	static struct cell c[3000];
	u32 next[3] = {0};
	size_t have = 0;
	for (;;) {
		ssize_t r = recv_some(arg, (u8 *)c + have, sizeof c - have, 0, stuck());
		CHECK(r >= 0);
		if (!r)
			break;
		have += (size_t)r;
		size_t n = have / 16;
		for (size_t i = 0; i < n; i++) {
			CHECK(c[i].kind == 1 || c[i].kind == 2, "kind %x", c[i].kind);
			CHECK(c[i].sum == cell(c[i].kind, c[i].seq).sum);
			CHECK(c[i].seq == next[c[i].kind]++, "kind %u: %u, want %u", c[i].kind, c[i].seq, next[c[i].kind] - 1);
		}
		have -= n * 16;
		memmove(c, c + n, have);
	}
}

static void test_handler_writes(void)
{
	static struct cell c[4096];
	make_shim(PROFILE_BALANCED);
	sig_s = make_pair(1, 256 << 10, 2);
	sig_runs = sig_inside = 0;
	sig_seq = 0;
	pid_t p = child(sig_reader, sig_s + 1);
	start_timer(write_in_handler, 50);
	i64 end = in_ms(2000 * scale);
	for (u32 seq = 0; now_ns() < end || sig_inside < 10;) {
		CHECK(now_ns() < end + 20000 * MS, "the handler never met the call inside");
		u32 n = seq % 5 ? 4096 : 1 + seq % 50;
		for (u32 i = 0; i < n; i++)
			c[i] = cell(1, seq + i);
		struct iovec v = {c, n * 16};
		for (size_t done = 0; done < v.iov_len;) {
			ssize_t r = lane_write(sig_s, &v, 1, done);
			CHECK(r >= 0 && r % 16 == 0);
			done += (size_t)r;
			int w = r ? 0 : lane_wait(sig_s, EPOLLOUT, 0);
			CHECK(w == 0 || w == -EINTR);
		}
		seq += n;
	}
	stop_timer();
	atomic_fetch_or(&sig_s->tx->wflags, RH_WDONE);
	arm_fire(&sig_s->tx->rarm, sig_s, 0);
	reap(p);
	printf("  %ld handlers, %ld inside lane_write\n", sig_runs, sig_inside);
	free_pair(sig_s);
}

static void mark(struct cell *c, ssize_t r, u32 *last)
{
	CHECK(r >= 0 && r % 16 == 0);
	for (ssize_t i = 0; i < r / 16; i++) {
		CHECK(c[i].kind == 1 && c[i].sum == cell(1, c[i].seq).sum && c[i].seq < SIG_CELLS);
		CHECK(c[i].seq >= *last && sig_got[c[i].seq]++ == 0, "twice or out of order");
		*last = c[i].seq;
	}
}

static void read_in_handler(int sig)
{
	struct cell c[5];
	struct iovec v = {c, sizeof c};
	(void)sig;
	sig_runs++;
	sig_inside += (atomic_load(&sig_s->b->rx.w) & 0x7fffffff) == my_tid();
	ssize_t r = lane_read(sig_s, &v, 1, 0, 0);
	mark(c, r, &sig_last);
}

static u32 *sig_sent;
static void sig_writer(void *arg)
{
	static struct cell c[4096];
	i64 end = in_ms(2000 * scale);
	u32 seq = 0;
	while (now_ns() < end && seq + 4096 <= SIG_CELLS) {
		for (u32 i = 0; i < 4096; i++)
			c[i] = cell(1, seq + i);
		CHECK(send_all(arg, c, sizeof c, stuck()) == sizeof c);
		seq += 4096;
	}
	*sig_sent = seq;
	struct sock *s = arg;
	atomic_fetch_or(&s->tx->wflags, RH_WDONE);
	arm_fire(&s->tx->rarm, s, 0);
}

static void test_handler_reads(void)
{
	static struct cell c[4096];
	u32 last = 0;
	make_shim(PROFILE_BALANCED);
	sig_s = make_pair(1, 256 << 10, 2);
	sig_got = shared(SIG_CELLS);
	sig_sent = shared(4096);
	sig_runs = sig_inside = 0;
	sig_last = 0;
	pid_t p = child(sig_writer, sig_s + 1);
	start_timer(read_in_handler, 50);
	for (;;) {
		ssize_t r = recv_some(sig_s, c, sizeof c, 0, 0);
		if (r == -EINTR)
			continue;
		if (!r)
			break;
		mark(c, r, &last);
	}
	stop_timer();
	reap(p);
	for (u32 i = 0; i < *sig_sent; i++)
		CHECK(sig_got[i] == 1, "cell %u lost", i);
	CHECK(sig_inside > 0);
	printf("  %ld handlers, %ld inside lane_read\n", sig_runs, sig_inside);
	munmap((void *)sig_got, SIG_CELLS);
	free_pair(sig_s);
}

/* ---- locks ---- */

struct counter {
	struct lk l;
	u32 pad[15];
	u64 n;
};

static void *count(void *arg)
{
	struct counter *c = arg;
	for (int i = 0; i < 300000; i++) {
		int nested = lk_lock(&c->l);
		CHECK(!nested);
		c->n++;
		lk_unlock(&c->l, nested);
	}
	return 0;
}

static void count_twice(void *arg)
{
	pthread_t t = thread(count, arg);
	count(arg);
	pthread_join(t, 0);
}

static void hold_for_ever(void *arg)
{
	lk_lock(arg);
	for (;;)
		pause();
}

static void *hold_150ms(void *arg)
{
	int n = lk_lock(arg);
	nap(150000);
	lk_unlock(arg, n);
	return 0;
}

static void test_locks(void)
{
	struct counter *c = shared(4096);
	pid_t p = child(count_twice, c);
	count_twice(c);
	reap(p);
	CHECK(c->n == 1200000);

	int outer = lk_lock(&c->l), inner = lk_lock(&c->l);
	CHECK(!outer && inner == 1);
	lk_unlock(&c->l, inner);
	CHECK((c->l.w & 0x7fffffff) == my_tid());
	lk_unlock(&c->l, outer);
	CHECK(c->l.w == 0);

	for (int reaped = 0; reaped < 2; reaped++) { /* a killed owner, as a zombie and without a trace */
		p = child(hold_for_ever, &c->l);
		while (atomic_load(&c->l.w) != (u32)p)
			nap(100);
		kill(p, SIGKILL);
		siginfo_t si;
		CHECK(waitid(P_PID, p, &si, WEXITED | (reaped ? 0 : WNOWAIT)) == 0);
		i64 t = now_ns();
		CHECK(lk_lock(&c->l) == 0 && now_ns() - t < 1000 * MS);
		lk_unlock(&c->l, 0);
		CHECK(c->l.w == 0);
		if (!reaped)
			waitpid(p, 0, 0);
	}

	p = fork(); /* its number belongs to another program by now */
	if (!p) {
		execl("/bin/sleep", "sleep", "30", (char *)0);
		_exit(1);
	}
	nap(100000);
	atomic_store(&c->l.w, (u32)p);
	CHECK(lk_lock(&c->l) == 0);
	lk_unlock(&c->l, 0);
	kill(p, SIGKILL);
	waitpid(p, 0, 0);

	pthread_t t = thread(hold_150ms, &c->l); /* a living owner is waited for */
	while (!atomic_load(&c->l.w))
		nap(100);
	i64 t0 = now_ns();
	CHECK(lk_lock(&c->l) == 0 && now_ns() - t0 > 100 * MS);
	lk_unlock(&c->l, 0);
	pthread_join(t, 0);
	munmap(c, 4096);
}

/* ---- a hostile peer ---- */

static void scribble(void *arg)
{
	struct sock *s = arg;
	u32 x = 11;
	for (;;) {
		u32 *w = (u32 *)(rnd(&x) % 2 ? s->rx : s->tx) + rnd(&x) % 64;
		u32 v = rnd(&x) % 3 ? rnd(&x) : rnd(&x) << 13;
		if (rnd(&x) % 4 == 0)
			v = *w + rnd(&x) % 9000;
		__atomic_store_n(w, v, __ATOMIC_RELAXED);
		if (rnd(&x) % 64 == 0)
			sched_yield();
	}
}

static void test_hostile(void)
{
	u8 b[70000];
	struct iovec v = {b, sizeof b};
	make_shim(PROFILE_BALANCED);
	struct sock *a = make_pair(1, 4096, 2);
	a->rx->prod = 4097;
	CHECK(lane_read(a, &v, 1, 0, 0) == -ECONNABORTED && a->b->flags & BF_BROKEN);
	CHECK(lane_read(a, &v, 1, 0, 0) == -ECONNABORTED && lane_write(a, &v, 1, 0) == -ECONNABORTED);
	free_pair(a);
	a = make_pair(1, 4096, 2);
	a->tx->cons = 1;
	CHECK(lane_room(a) == 4096 && a->b->flags & BF_BROKEN);
	free_pair(a);
	a = make_pair(1, 4096, 2);
	a->tx->cons = 100000;
	CHECK(lane_write(a, &v, 1, 0) == 4096); /* the reader's cursor is looked at when room runs short */
	CHECK(lane_write(a, &v, 1, 0) == -ECONNABORTED && a->b->flags & BF_BROKEN);
	free_pair(a);
	a = make_pair(1, 4096, 2);
	a->rx->cons = 5;
	CHECK(lane_used(a) == 0 && a->b->flags & BF_BROKEN);
	free_pair(a);

	a = make_pair(1, 4096, 2);
	/* rings between pages that trap */
	for (int i = 0; i < 2; i++) {
		u8 *m = mmap(0, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(mmap(m + 4096, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == m + 4096);
		munmap(a[i].rxbuf, 4096);
		a[i].rxbuf = a[1 - i].txbuf = m + 4096;
	}
	pid_t p = child(scribble, a + 1);
	i64 end = in_ms(1000 * scale);
	u32 x = 1;
	long n = 0;
	while (now_ns() < end) {
		v.iov_len = 1 + rnd(&x) % sizeof b;
		a->rx->token = a->tx->token = 77;
		a->tx->rflags = 0;
		lane_write(a, &v, 1, rnd(&x) % v.iov_len);
		lane_read(a, &v, 1, 0, rnd(&x) % 3 ? 0 : MSG_PEEK);
		lane_used(a), lane_room(a), lane_unsent(a);
		lane_wait(a, rnd(&x) % 2 ? EPOLLIN : EPOLLOUT, now_ns() + 100000);
		if (rnd(&x) % 2)
			a->b->flags = 0;
		if (rnd(&x) % 16 == 0)
			a->rx->prod = a->rx->cons = a->tx->prod = a->tx->cons = 0;
		n++;
	}
	kill(p, SIGKILL);
	waitpid(p, 0, 0);
	printf("  %ld rounds\n", n);
	free_pair(a);
}

static void test_facts(void)
{
	u8 b[5000] = {0};
	struct iovec v = {b, 100};
	make_shim(PROFILE_BALANCED);
	struct sock *a = make_pair(1, 4096, 2);
	/* the element is closed, or another connection's */
	a->tx->rflags = RH_RCLOSED;
	CHECK(lane_write(a, &v, 1, 0) == 0 && a->b->flags == BF_GONE && a->tx->prod == 0);
	a->tx->rflags = 0;
	a->b->flags = 0;
	a->tx->token = 78;
	CHECK(lane_write(a, &v, 1, 0) == 0 && a->b->flags == BF_GONE && a->tx->prod == 0);
	a->tx->token = 77;
	/* a punched ring is reported once */
	a->b->flags = BF_PUNCHED;
	posts = 0;
	CHECK(lane_write(a, &v, 1, 0) == 100 && lane_write(a, &v, 1, 0) == 100 && posts == 1 && a->b->flags == 0);
	/* full, room, unsent, used; the CPU is known; a quarter makes it writable */
	v.iov_len = sizeof b;
	CHECK(lane_write(a, &v, 1, 0) == 4096 - 200 && lane_write(a, &v, 1, 0) == 0);
	CHECK(lane_room(a) == 0 && lane_unsent(a) == 4096 && lane_used(a + 1) == 4096 && a->tx->wcpu > 0);
	a->tx->warm.w = 0;
	CHECK(lane_wait(a, EPOLLOUT, now_ns() + 1000) == -ETIMEDOUT);
	lane_wait(a, EPOLLOUT, in_ms(1));
	CHECK(a->tx->warm.w == ARM_FUTEX);
	v.iov_len = 1000;
	CHECK(lane_read(a + 1, &v, 1, 0, 0) == 1000 && a->tx->warm.w == ARM_FUTEX); /* not yet */
	v.iov_len = 24;
	CHECK(lane_read(a + 1, &v, 1, 0, 0) == 24 && a->tx->warm.w == 0);
	CHECK(lane_wait(a, EPOLLOUT, in_ms(1000)) == 0 && lane_room(a) == 1024);
	/* skip; an empty iovec; a wrap inside one piece */
	struct iovec w[3] = {{b, 0}, {"xyz", 3}, {"abc", 3}};
	CHECK(lane_write(a, w, 3, 4) == 2 && lane_write(a, w, 1, 0) == 0 && lane_write(a, w, 3, 6) == 0);
	v.iov_len = 4096;
	CHECK(lane_read(a + 1, &v, 1, 0, MSG_PEEK) == 3074 && lane_read(a + 1, &v, 1, 0, 0) == 3074 && !memcmp(b + 3072, "bc", 2));
	CHECK(lane_read(a + 1, &v, 1, 0, 0) == 0 && lane_used(a + 1) == 0);
	/* a sock reused for another connection forgets what it knew of the reader */
	a->gen = 5;
	a->tx->prod = 4096;
	a->tx->cons = 0;
	CHECK(lane_write(a, &v, 1, 0) == 0);
	free_pair(a);

	/* arms: three bells, no fourth, the same one again */
	struct arm arm = {0};
	CHECK(arm_bell(&arm, 0xfffff) && arm_bell(&arm, 1024) && arm_bell(&arm, 3) && !arm_bell(&arm, 4) && arm_bell(&arm, 1024));
	CHECK(arm.w == (0xfffffull << 4 | 1024ull << 24 | 3ull << 44));
}

/* ---- a handler that waits for the one whom the interrupted call was about to wake ---- */

/* A connection in the slot of an earlier one, that shows the very facts that were looked at last there. */
static void test_reused(void)
{
	struct sock *a = make_pair(100, 4096, 2);

	for (int i = 0; i < 2; i++) {
		atomic_store(&a->b->flags, BF_FIN); /* as if it came after the caller's look */
		CHECK(lane_wait(a, EPOLLIN, in_ms(100)) == 0);
		CHECK(!atomic_load(&a->rx->rarm.w), "slept over what was never looked at");
		a->gen++;
	}
	free_pair(a);
}

static void answerer(void *arg)
{
	char c;
	ssize_t r;
	while ((r = recv_some(arg, &c, 1, 0, stuck())) == 1)
		if (c == '?')
			CHECK(send_all(arg, "!", 1, stuck()) == 1);
	CHECK(r == 0, "%zd", r);
}

static void ask(int sig)
{
	char c;
	(void)sig;
	sig_runs++;
	CHECK(send_all(sig_s, "?", 1, in_ms(10000)) == 1);
	ssize_t r = recv_some(sig_s, &c, 1, 0, in_ms(10000));
	CHECK(r == 1 && c == '!', "%zd: the peer sleeps, and whoever took its place in the arm word has not rung", r);
}

static void test_handler_asks(void)
{
	make_shim(PROFILE_SAFE);
	sig_s = make_pair(1, 65536, 2);
	sig_runs = 0;
	pid_t p = child(answerer, sig_s + 1);
	start_timer(ask, 150);
	for (i64 end = in_ms(1500 * scale); now_ns() < end;) {
		CHECK(send_all(sig_s, ".", 1, stuck()) == 1);
		while (lane_unsent(sig_s)) /* it shall sleep, and be woken, each time */
			sched_yield();
	}
	stop_timer();
	atomic_fetch_or(&sig_s->tx->wflags, RH_WDONE);
	arm_fire(&sig_s->tx->rarm, sig_s, 0);
	reap(p);
	printf("  %ld handlers\n", sig_runs);
	free_pair(sig_s);
}

/* ---- interruption: as recv(2) ---- */

static _Atomic int handled;
static void nothing(int sig) { (void)sig, handled++; }

struct blocked {
	struct sock *s;
	i64 deadline;
	_Atomic int done;
	_Atomic u32 tid;
	ssize_t r;
	char c[4];
	pthread_t t;
};

static void *block(void *arg)
{
	struct blocked *b = arg;
	b->tid = my_tid();
	b->r = recv_some(b->s, b->c, 1, 0, b->deadline);
	b->done = 1;
	return 0;
}

/* Until the thread, once it has armed, sleeps in the kernel; or is done. */
static void wait_asleep(struct blocked *b)
{
	char path[64], st[256];
	i64 until = stuck();
	while (!b->done && now_ns() < until) {
		snprintf(path, sizeof path, "/proc/self/task/%u/stat", b->tid);
		int fd = b->tid && atomic_load(&b->s->rx->rarm.w) & ARM_FUTEX ? open(path, O_RDONLY) : -1;
		ssize_t n = fd < 0 ? 0 : read(fd, st, sizeof st - 1);
		close(fd);
		st[n] = 0;
		char *e = strrchr(st, ')');
		if (e && e[2] == 'S')
			return;
		nap(300);
	}
	CHECK(b->done, "neither asleep nor done");
}

/* Interrupts a blocked receiver by a handler; returns when that had its effect. */
static void poke(struct blocked *b, int flags, int ends)
{
	struct sigaction sa = {.sa_handler = nothing, .sa_flags = flags};
	sigaction(SIGUSR1, &sa, 0);
	b->done = handled = 0;
	b->tid = 0;
	b->s->rx->rarm.w = 0;
	b->t = thread(block, b);
	wait_asleep(b);
	pthread_kill(b->t, SIGUSR1);
	i64 until = stuck();
	for (int i = 1; !(ends ? b->done : handled) && now_ns() < until; i++) {
		nap(300);
		if (S->engine != ENG_READY && i % 100 == 0)
			pthread_kill(b->t, SIGUSR1); /* the first one came between two slices */
	}
	nap(60000);
	wait_asleep(b);
}

static void test_eintr(int alone)
{
	make_shim(PROFILE_BALANCED);
	S->engine = alone ? ENG_COLD : ENG_READY;
	struct blocked b = {.s = make_pair(1, 4096, 2)};

	poke(&b, 0, 1);
	CHECK(b.done && b.r == -EINTR, "%zd", b.r);
	pthread_join(b.t, 0);

	poke(&b, SA_RESTART, 0);
	CHECK(handled && !b.done, "restarted");
	CHECK(send_all(b.s + 1, "z", 1, stuck()) == 1);
	pthread_join(b.t, 0);
	CHECK(b.r == 1 && b.c[0] == 'z');

	b.deadline = in_ms(60000);
	poke(&b, SA_RESTART, 1);
	CHECK(b.done && b.r == -EINTR, "with a timeout always");
	pthread_join(b.t, 0);

	i64 t = now_ns();
	CHECK(recv_some(b.s, b.c, 1, 0, t + 80 * MS) == -ETIMEDOUT);
	i64 took = now_ns() - t;
	CHECK(took >= 80 * MS && took < 2000 * MS, "%ld", (long)took);
	CHECK(recv_some(b.s, b.c, 1, 0, t) == -ETIMEDOUT);

	/* a signal does not wake somebody whose data is short of what he wants: no busy loop, and 0 % CPU */
	struct timespec c0, c1;
	struct iovec v = {b.c, 1};
	CHECK(lane_write(b.s + 1, &v, 1, 0) == 1);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &c0);
	int rounds = 0, r;
	i64 until = in_ms(300);
	do
		rounds++;
	while ((r = lane_wait(b.s, EPOLLIN, until)) == 0); /* SO_RCVLOWAT = 2 */
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &c1);
	CHECK(r == -ETIMEDOUT && rounds < 20, "%d %d", r, rounds);
	CHECK((c1.tv_sec - c0.tv_sec) * 1000000000 + c1.tv_nsec - c0.tv_nsec < 20 * MS);
	free_pair(b.s);
}

/* Without an engine the waiter itself sees the end of the TCP connection. */
static void test_alone(void)
{
	int sv[2];
	make_shim(PROFILE_BALANCED);
	S->engine = ENG_COLD;
	struct sock *s = make_pair(1, 4096, 2);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv) == 0);
	s->fd = sv[0];
	struct blocked b = {.s = s};
	b.t = thread(block, &b);
	nap(120000);
	CHECK(!b.done && !tcp_events);
	close(sv[1]);
	i64 t = now_ns();
	while (!(atomic_load(&s->b->flags) & BF_FIN)) {
		CHECK(now_ns() - t < 1000 * MS, "nobody looked");
		nap(1000);
	}
	CHECK(tcp_events > 0);
	CHECK(send_all(s + 1, "q", 1, stuck()) == 1);
	pthread_join(b.t, 0);
	CHECK(b.r == 1);
	close(sv[0]);
	free_pair(s);
}

static void test_cancel(void)
{
	u32 x = 77;
	make_shim(PROFILE_BALANCED);
	struct sock *s = make_pair(1, 4096, 2);
	for (int i = 0; i < 200; i++) {
		struct blocked b = {.s = s};
		void *end;
		b.t = thread(block, &b);
		if (i % 2)
			nap(rnd(&x) % 300);
		CHECK(pthread_cancel(b.t) == 0 && pthread_join(b.t, &end) == 0);
		CHECK(end == PTHREAD_CANCELED, "run %d", i);
		CHECK(s->b->rx.w == 0 && s->b->tx.w == 0);
	}
	char c;
	CHECK(send_all(s + 1, "x", 1, stuck()) == 1 && recv_some(s, &c, 1, 0, stuck()) == 1);
	free_pair(s);
}

/* A child of fork reads what its parent's peer sends, and the parent goes on. */
static void fork_reader(void *arg)
{
	char c;
	CHECK(my_tid() == (u32)getpid());
	CHECK(recv_some(arg, &c, 1, 0, stuck()) == 1 && c == '1');
	CHECK(send_all(arg, "2", 1, stuck()) == 1);
}

static void test_fork(void)
{
	char c;
	make_shim(PROFILE_BALANCED);
	struct sock *s = make_pair(1, 4096, 2);
	CHECK(my_tid() == (u32)getpid());
	pid_t p = child(fork_reader, s);
	nap(30000);
	CHECK(send_all(s + 1, "1", 1, stuck()) == 1 && recv_some(s + 1, &c, 1, 0, stuck()) == 1 && c == '2');
	reap(p);
	CHECK(send_all(s + 1, "3", 1, stuck()) == 1 && recv_some(s, &c, 1, 0, stuck()) == 1 && c == '3');
	free_pair(s);
}

/* Behind a seccomp filter nothing but futex and poll is asked of the kernel; both sides on one CPU. */
static void sealed_pong(void *arg)
{
#define ALLOW(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), ALLOW(SYS_futex), ALLOW(SYS_poll), ALLOW(SYS_exit_group),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog p = {sizeof f / sizeof *f, f};
	my_tid();
	S->sealed = 1;
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) == 0);
	for (u8 c = 1; c;) {
		CHECK(recv_some(arg, &c, 1, 0, 0) == 1);
		CHECK(send_all(arg, &c, 1, 0) == 1);
	}
	sys(SYS_exit_group, 0);
}

static void test_sealed(void)
{
	cpu_set_t all, one;
	u8 back;
	make_shim(PROFILE_BALANCED);
	struct sock *s = make_pair(1, 4096, 2);
	sched_getaffinity(0, sizeof all, &all);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof one, &one);
	pid_t p = child(sealed_pong, s + 1);
	for (int i = 3000; i >= 0; i--) {
		u8 c = (u8)(i ? 1 + i % 255 : 0);
		CHECK(send_all(s, &c, 1, stuck()) == 1 && recv_some(s, &back, 1, 0, stuck()) == 1 && back == c);
	}
	sched_setaffinity(0, sizeof all, &all);
	reap(p);
	free_pair(s);
}

static const char *only;
#define RUN(f, ...)                                                                                               \
	do {                                                                                                      \
		if (only && !strstr(#f, only))                                                                    \
			break;                                                                                    \
		i64 t0 = now_ns();                                                                                \
		f(__VA_ARGS__);                                                                                   \
		printf("%s(%s) %.2f s\n", #f, #__VA_ARGS__, (double)(now_ns() - t0) / 1e9);                       \
		fflush(stdout);                                                                                   \
	} while (0)

int main(int argc, char **argv)
{
	const char *e = getenv("LANE_TEST_LONG");
	scale = e ? atoi(e) : 1;
	only = argc > 1 ? argv[1] : 0;
	make_shim(PROFILE_BALANCED);
	RUN(test_locks);
	RUN(test_facts);
	RUN(test_reused);
	RUN(test_hostile);
	RUN(test_integrity, PROFILE_BALANCED, 65536);
	RUN(test_integrity, PROFILE_SAFE, 4096);
	RUN(test_integrity, PROFILE_LATENCY, 65536);
	RUN(test_many, PROFILE_BALANCED);
	RUN(test_many, PROFILE_SAFE);
	RUN(test_pingpong, PROFILE_BALANCED, 1);
	RUN(test_pingpong, PROFILE_SAFE, 1);
	RUN(test_pingpong, PROFILE_BALANCED, 0);
	RUN(test_pingpong, PROFILE_SAFE, 0);
	RUN(test_state);
	RUN(test_handler_writes);
	RUN(test_handler_reads);
	RUN(test_handler_asks);
	RUN(test_eintr, 0);
	RUN(test_eintr, 1);
	RUN(test_alone);
	RUN(test_cancel);
	RUN(test_fork);
	RUN(test_sealed);
	return 0;
}

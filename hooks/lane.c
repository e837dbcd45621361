/*
 * An established connection at work: locks, the two rings, arms, spinning and sleeping. What may go wrong here:
 * the peer may write anything to the memory we share (so each value of it is read once and checked), a signal
 * handler of the very thread may use the same socket in the middle of a call, and the owner of a lock may be
 * killed. Cursors are positions since the connection began (RFC 7609 §4.3.1: wrap count and offset in one word).
 */
#include "shim.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <time.h>

#define TLS static __thread __attribute__((tls_model("initial-exec")))
TLS u32 tls_tid;
TLS u32 tls_looked; /* lane_wait: the facts that this thread's caller has looked at */

#define PAUSE() __builtin_ia32_pause()
#define RELAX memory_order_relaxed
#define SLICE_NS 50000000ll

i64 now_ns(void)
{
	struct timespec t;

	if (likely(S->clock))
		S->clock(CLOCK_MONOTONIC, &t);
	else
		clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static inline u32 self_tid(void)
{
	if (unlikely(!tls_tid))
		tls_tid = (u32)sys(SYS_gettid);
	return tls_tid;
}

u32 my_tid(void)
{
	return self_tid();
}

void lane_forked(void)
{
	tls_tid = 0;
	tls_looked = 0;
}

/* Head of the kernel's struct rseq; glibc registers one per thread unless told not to. */
struct rs {
	u32 cpu_start;
	volatile u32 cpu;
	u64 cs;
};
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));

static inline struct rs *rs_here(void)
{
	if (!&__rseq_size || !__rseq_size)
		return 0;
	struct rs *r = (struct rs *)((char *)__builtin_thread_pointer() + __rseq_offset);
	return (i32)r->cpu >= 0 ? r : 0;
}

static inline u32 cpu_here(void) /* +1; 0 = unknown */
{
	struct rs *r = rs_here();
	return likely(r) ? r->cpu + 1 : (u32)(sched_getcpu() + 1);
}

static inline void put_cpu(_Atomic u32 *w)
{
	u32 c = cpu_here();

	if (atomic_load_explicit(w, RELAX) != c)
		atomic_store_explicit(w, c, RELAX);
}

/* Futexes are shared ones: forked children and the peer map the words elsewhere. */
static long futex_wake(void *w, int n)
{
	return sys(SYS_futex, w, FUTEX_WAKE, n, 0, 0, 0);
}

/* ---- locks -------------------------------------------------------------------------------------------- */

#define LK_WAITERS 0x80000000u
#define LK_SPINS 64
#define LK_CHECK_NS 10000000l

static char *proc_path(char *p, u32 tid, const char *leaf)
{
	char d[10];
	int n = 0;

	memcpy(p, "/proc/", 6);
	do
		d[n++] = (char)('0' + tid % 10);
	while (tid /= 10);
	char *q = p + 6;
	while (n)
		*q++ = d[--n];
	memcpy(q, leaf, strlen(leaf) + 1);
	return p;
}

/* Killed, a zombie that nobody reaped yet, or its number now belongs to another program. */
static int owner_gone(u32 tid)
{
	char path[32], buf[128];
	struct stat mine, its;

	if (atomic_load(&S->sealed))
		return 0;
	if (sys(SYS_tkill, tid, 0) == -ESRCH)
		return 1;
	if (sys(SYS_newfstatat, AT_FDCWD, "/proc/self/exe", &mine, 0) == 0 &&
	    sys(SYS_newfstatat, AT_FDCWD, proc_path(path, tid, "/exe"), &its, 0) == 0 &&
	    (mine.st_dev != its.st_dev || mine.st_ino != its.st_ino))
		return 1;
	long fd = sys(SYS_openat, AT_FDCWD, proc_path(path, tid, "/stat"), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	long n = sys(SYS_read, fd, buf, sizeof buf);
	sys(SYS_close, fd);
	while (n > 0 && buf[n - 1] != ')') /* the name may hold anything, no later field a ')' */
		n--;
	return n > 0 && n + 1 < (long)sizeof buf && (buf[n + 1] == 'Z' || buf[n + 1] == 'X');
}

static __attribute__((noinline)) int lk_slow(struct lk *l, u32 me)
{
	static const struct timespec check = {0, LK_CHECK_NS};
	u32 mark = 0; /* having slept, we cannot know whether others still do */

	for (int spins = 0;;) {
		u32 v = atomic_load_explicit(&l->w, RELAX);
		if (!v) {
			if (atomic_compare_exchange_strong(&l->w, &v, me | mark))
				return 0;
			continue;
		}
		if ((v & ~LK_WAITERS) == me)
			return 1;
		if (spins++ < LK_SPINS) {
			PAUSE();
			continue;
		}
		if (!(v & LK_WAITERS)) {
			if (!atomic_compare_exchange_strong(&l->w, &v, v | LK_WAITERS))
				continue;
			v |= LK_WAITERS;
		}
		mark = LK_WAITERS;
		if (sys(SYS_futex, &l->w, FUTEX_WAIT, v, &check, 0, 0) == -ETIMEDOUT &&
		    atomic_load_explicit(&l->w, RELAX) == v && owner_gone(v & ~LK_WAITERS) &&
		    atomic_compare_exchange_strong(&l->w, &v, me | LK_WAITERS))
			return 0;
	}
}

int lk_lock(struct lk *l)
{
	u32 me = self_tid(), v = 0;

	if (likely(atomic_compare_exchange_strong_explicit(&l->w, &v, me, memory_order_acquire, RELAX)))
		return 0;
	return lk_slow(l, me);
}

void lk_unlock(struct lk *l, int nested)
{
	if (!nested && unlikely(atomic_exchange_explicit(&l->w, 0, memory_order_release) & LK_WAITERS))
		futex_wake(&l->w, 1);
}

/* ---- arms ---------------------------------------------------------------------------------------------- */

#define ID_MASK ((1ull << BELL_BITS) - 1)
#define ID_FIRST 4 /* fields at 4, 24, 44 */

int arm_bell(struct arm *a, u32 id)
{
	u64 w = atomic_load(&a->w);

	for (int tries = 0; tries < 1000; tries++) {
		int free = 0;
		for (int at = ID_FIRST; at < 64; at += BELL_BITS) {
			u64 f = w >> at & ID_MASK;
			if (f == id) {
				/* the full fence that arming promises */
				atomic_thread_fence(memory_order_seq_cst);
				return 1;
			}
			if (!f && !free)
				free = at;
		}
		if (!free)
			return 0;
		if (atomic_compare_exchange_weak(&a->w, &w, w | (u64)id << free))
			return 1;
	}
	return 0;
}

/* The count that sleepers of an arm wait on. */
static _Atomic u32 *wakes_of(struct arm *a, struct sock *s)
{
	if (a == &s->b->st)
		return &s->b->st_wakes;
	struct rmbe_head *h = s->rx && (a == &s->rx->rarm || a == &s->rx->warm) ? s->rx : s->tx;
	return a == &h->rarm ? &h->rwakes : &h->wwakes;
}

#define RINGERS_ONE 2ull /* in the bits of an arm word that mean nothing */
#define RINGERS_MAX (7 * RINGERS_ONE)

/* Takes what is to be rung out of the arm word, after it was written down in *owed: a handler that interrupts us before we
 * have rung it, and waits for the one whom it wakes, rings it then. */
static u64 take(struct arm *a, _Atomic u64 *owed, int own)
{
	u64 w = atomic_load(&a->w);

	for (int tries = 0; tries < 1000; tries++) {
		u64 keep = 0;
		/* State changes of this side are every process's own business: a bell of a process that shares the connection
		 * with us (fork) stays armed, for only the peer can ring it. */
		for (int at = ID_FIRST; own && at < 64; at += BELL_BITS)
			if ((w >> at & ID_MASK) >> 10 != S->salt)
				keep |= w & ID_MASK << at;
		if (w == keep)
			return 0;
		atomic_fetch_or(owed, (w & ~keep) & ~RINGERS_MAX);
		if (atomic_compare_exchange_weak(&a->w, &w, keep))
			return w & ~keep;
	}
	return atomic_exchange(&a->w, 0); /* the peer scribbles on it */
}

static void ring_all(struct arm *a, struct sock *s, u64 w, int own)
{
	u32 tag = own ? sock_idx(s) : s->tx && a == &s->tx->rarm ? s->tx->rtag : s->rx ? s->rx->wtag : 0;

	if (w & ARM_FUTEX) {
		_Atomic u32 *wakes = wakes_of(a, s);
		atomic_fetch_add(wakes, 1);
		futex_wake(wakes, INT_MAX);
	}
	for (int at = ID_FIRST; at < 64; at += BELL_BITS)
		if (w >> at & ID_MASK)
			bell_ring(s, (u32)(w >> at & ID_MASK), tag, own);
}

static __attribute__((noinline)) void fire(struct arm *a, struct sock *s, int own)
{
	struct rmbe_head *mine = s->rx && (a == &s->rx->rarm || a == &s->rx->warm) ? s->rx : s->tx;
	_Atomic u64 *owed = &s->owed[a == &s->b->st ? 0 : 1 + 2 * (mine == s->tx) + (a == &mine->warm)];
	u64 o = atomic_load(owed);

	atomic_fetch_add(&s->firing, 1);
	while ((o & RINGERS_MAX) < RINGERS_MAX && !atomic_compare_exchange_weak(owed, &o, o + RINGERS_ONE))
		;
	int counted = (o & RINGERS_MAX) < RINGERS_MAX;
	ring_all(a, s, take(a, owed, own) | (o & ~RINGERS_MAX), own);
	for (u64 left; counted;) {
		o = atomic_load(owed);
		left = o - RINGERS_ONE;
		if (!(left & RINGERS_MAX))
			left = 0;
		if (atomic_compare_exchange_weak(owed, &o, left))
			break;
	}
	atomic_fetch_sub(&s->firing, 1);
}

static inline int to_ring(struct arm *a, struct sock *s)
{
	return atomic_load(&a->w) || atomic_load_explicit(&s->firing, RELAX);
}

void arm_fire(struct arm *a, struct sock *s, int own)
{
	atomic_thread_fence(memory_order_seq_cst);
	if (to_ring(a, s))
		fire(a, s, own);
}

void sock_fire(struct sock *s)
{
	arm_fire(&s->b->st, s, 1);
	if (s->rx)
		arm_fire(&s->rx->rarm, s, 1);
	if (s->tx)
		arm_fire(&s->tx->warm, s, 1);
}

/* ---- rings ----------------------------------------------------------------------------------------------- */

#define LOST_MAX 1000 /* compare-and-swaps lost in one call: no handler does that, a peer scribbles on our cursor */
#define RS_TRIES 8

static ssize_t broken(struct sock *s)
{
	atomic_fetch_or(&s->b->flags, BF_BROKEN);
	sock_fire(s);
	return -ECONNABORTED;
}

/* A place in an iovec. */
struct at {
	const struct iovec *v, *end;
	size_t off;
};

static inline void at_move(struct at *a, size_t k)
{
	a->off += k;
	while (a->v < a->end && a->off >= a->v->iov_len) {
		a->off -= a->v->iov_len;
		a->v++;
	}
}

static inline size_t at_init(struct at *a, const struct iovec *v, int n, size_t skip)
{
	size_t sum = 0;

	*a = (struct at){v, v + n, 0};
	for (int i = 0; i < n; i++)
		if (__builtin_add_overflow(sum, v[i].iov_len, &sum) || sum > CALL_MAX)
			sum = CALL_MAX;
	if (skip >= sum)
		return 0;
	at_move(a, skip);
	return sum - skip;
}

static inline size_t min3(size_t a, size_t b, size_t c)
{
	size_t m = a < b ? a : b;
	return m < c ? m : c;
}

static void copy_out(struct at a, const u8 *ring, u64 size, u64 pos, size_t k)
{
	while (k) {
		u64 o = pos & (size - 1);
		size_t n = min3(k, a.v->iov_len - a.off, size - o);
		memcpy((u8 *)a.v->iov_base + a.off, ring + o, n);
		at_move(&a, n);
		pos += n;
		k -= n;
	}
}

/* 0 = more than the ring holds: the peer broke the cursors. Whoever looks without the lock may be overtaken by both
 * ends between the two loads, so the answer counts only while cons stood still; a peer that keeps it moving is bad too. */
static inline int used_of(const struct rmbe_head *h, u64 size, u64 *cons, u64 *prod)
{
	for (int i = 0; i < LOST_MAX; i++) {
		*cons = atomic_load_explicit(&h->cons, memory_order_acquire);
		*prod = atomic_load_explicit(&h->prod, memory_order_acquire);
		if (likely(*prod - *cons <= size))
			return 1;
		if (atomic_load(&h->cons) == *cons)
			return 0;
	}
	return 0;
}

static u64 used_or_break(struct sock *s, const struct rmbe_head *h, u64 size)
{
	u64 c, p;

	if (likely(used_of(h, size, &c, &p)))
		return p - c;
	broken(s);
	return 0;
}

u64 lane_used(struct sock *s)
{
	return used_or_break(s, s->rx, s->rxsize);
}

u64 lane_unsent(struct sock *s)
{
	return used_or_break(s, s->tx, s->txsize);
}

u64 lane_room(struct sock *s)
{
	return s->txsize - used_or_break(s, s->tx, s->txsize);
}

#define WROTE 0x80000000u /* in sock.same: we wrote since we last read, so a reader waits for an answer */

static ssize_t read_locked(struct sock *s, struct at *a, size_t left, int flags)
{
	struct rmbe_head *h = s->rx;
	u64 size = s->rxsize, c, p;
	size_t total = 0;
	u32 same = atomic_load_explicit(&s->same, RELAX);

	put_cpu(&h->rcpu);
	for (int lost = 0; left;) {
		if (!used_of(h, size, &c, &p)) {
			broken(s);
			return total ? (ssize_t)total : -ECONNABORTED;
		}
		/* A quarter at most, published at once, so that the peer fills one part while we empty another. */
		size_t k = min3(left, p - c, flags & MSG_PEEK ? size : size / 4);
		if (!k)
			break;
		if (!(flags & MSG_TRUNC))
			copy_out(*a, s->rxbuf, size, c, k);
		u64 was = c;
		if (flags & MSG_PEEK) {
			if (atomic_load(&h->cons) == c)
				return (ssize_t)k;
		} else if (atomic_compare_exchange_strong(&h->cons, &was, c + k)) {
			atomic_store_explicit(&s->b->rx_bytes, c + k, RELAX);
			/* the compare-and-swap was the fence between publishing and looking at the arm */
			if ((c + k == p || size - (p - c - k) >= size / 4) && to_ring(&h->warm, s))
				fire(&h->warm, s, 0);
			at_move(a, k);
			total += k;
			left -= k;
			continue;
		}
		/* A handler of this thread read meanwhile: what we copied is not ours. */
		if (++lost > LOST_MAX)
			return broken(s);
	}
	if (total && same & WROTE)
		atomic_store_explicit(&s->same, same & ~WROTE, RELAX);
	return (ssize_t)total;
}

ssize_t lane_read(struct sock *s, const struct iovec *iov, int n, size_t skip, int flags)
{
	struct at a;
	size_t left = at_init(&a, iov, n, skip);

	if (unlikely(atomic_load_explicit(&s->b->flags, RELAX) & BF_BROKEN))
		return -ECONNABORTED;
	int nested = lk_lock(&s->b->rx);
	ssize_t r = read_locked(s, &a, left, flags);
	lk_unlock(&s->b->rx, nested);
	return r;
}

/*
 * Copies n > 0 bytes to dst as long as *prod is p: a restartable sequence, so when a signal handler of this
 * thread runs (it may write to the same ring and publish), not one more byte is stored afterwards. A plain copy
 * that goes on after the handler would overwrite what the peer is already allowed to read.
 */
static inline int copy_rs(struct rs *rs, u8 *dst, const u8 *src, size_t n, _Atomic u64 *prod, u64 p)
{
	__asm__ goto(".pushsection __rseq_cs, \"aw\"\n\t"
		     ".balign 32\n"
		     "9:\t.long 0, 0\n\t"
		     ".quad 1f, 2f - 1f, 4f\n\t"
		     ".popsection\n\t"
		     "movq %[dst], %%rdi\n\t"
		     "movq %[src], %%rsi\n\t"
		     "movq %[n], %%rcx\n\t"
		     "leaq 9b(%%rip), %%rax\n\t"
		     "movq %%rax, %[cs]\n"
		     "1:\tcmpq %[p], %[prod]\n\t"
		     "jne %l[redo]\n\t"
		     "leaq -16(%%rcx), %%rax\n\t"
		     "cmpq $1008, %%rax\n\t"
		     "ja 6f\n\t" /* below 16, or long: string copy */
		     "movdqu (%%rsi,%%rax), %%xmm1\n\t"
		     "addq %%rdi, %%rax\n\t" /* where the last 16 go; they may overlap */
		     "5:\tmovdqu (%%rsi), %%xmm0\n\t"
		     "movdqu %%xmm0, (%%rdi)\n\t"
		     "addq $16, %%rsi\n\t"
		     "addq $16, %%rdi\n\t"
		     "cmpq %%rax, %%rdi\n\t"
		     "jb 5b\n\t"
		     "movdqu %%xmm1, (%%rax)\n\t"
		     "jmp 2f\n"
		     "6:\trep movsb\n"
		     "2:\n\t"
		     ".pushsection __rseq_abort, \"ax\"\n\t"
		     ".byte 0x0f, 0xb9, 0x3d\n\t"
		     ".long 0x53053053\n" /* glibc's RSEQ_SIG */
		     "4:\tjmp %l[redo]\n\t"
		     ".popsection"
		     :
		     : [dst] "r"(dst), [src] "r"(src), [n] "r"(n), [p] "r"(p), [prod] "m"(*prod), [cs] "m"(rs->cs)
		     : "rax", "rcx", "rdi", "rsi", "xmm0", "xmm1", "memory", "cc"
		     : redo);
	return 1;
redo:
	return 0;
}

/* 1 = [p, p + k) of the ring holds the bytes, and prod was p all the time. rs = 0: signals are blocked. */
static int copy_in(struct sock *s, struct at a, u64 p, size_t k, struct rs *rs)
{
	u64 pos = p, size = s->txsize;

	while (k) {
		u64 o = pos & (size - 1);
		size_t n = min3(k, a.v->iov_len - a.off, size - o);
		const u8 *src = (const u8 *)a.v->iov_base + a.off;
		if (likely(rs)) {
			if (!copy_rs(rs, s->txbuf + o, src, n, &s->tx->prod, p))
				return 0;
		} else {
			memcpy(s->txbuf + o, src, n);
		}
		at_move(&a, n);
		pos += n;
		k -= n;
	}
	return 1;
}

/* Room behind p, at least `want` if there is so much; the reader's line is touched only when room runs short. */
static ssize_t room_at(struct sock *s, u64 p, size_t want)
{
	u64 size = s->txsize;

	u64 c = s->tx_cons;

	if (s->tx_gen == s->gen && p - c <= size && size - (p - c) >= want)
		return (ssize_t)(size - (p - c));
	c = atomic_load_explicit(&s->tx->cons, memory_order_acquire);
	if (p - c > size)
		return -1;
	s->tx_cons = c;
	s->tx_gen = s->gen;
	return (ssize_t)(size - (p - c));
}

static ssize_t write_locked(struct sock *s, struct at *a, size_t left)
{
	struct rmbe_head *h = s->tx;
	struct block *b = s->b;
	u64 quarter = s->txsize / 4, mask, all = ~0ull;
	size_t total = 0;
	struct rs *rs = rs_here();

	/* An element that is closed or belongs to another connection by now (RFC 7609 §4.4.2) is not written to. */
	if (unlikely(atomic_load_explicit(&h->rflags, RELAX) & RH_RCLOSED ||
		     atomic_load_explicit(&h->token, RELAX) != b->tx_token)) {
		if (!(atomic_fetch_or(&b->flags, BF_GONE) & BF_GONE))
			sock_fire(s);
		return 0;
	}
	put_cpu(&h->wcpu);
	for (int lost = 0; left;) {
		u64 p = atomic_load_explicit(&h->prod, RELAX);
		size_t want = left < quarter ? left : quarter;
		ssize_t room = room_at(s, p, want);
		if (unlikely(room < 0)) {
			/* unless a handler wrote and the peer read that between the two loads */
			if (atomic_load(&h->prod) != p && ++lost <= LOST_MAX)
				continue;
			broken(s);
			return total ? (ssize_t)total : -ECONNABORTED;
		}
		size_t k = min3(want, (size_t)room, SSIZE_MAX);
		if (!k)
			break;
		if (unlikely(atomic_load_explicit(&b->flags, RELAX) & BF_PUNCHED) &&
		    atomic_fetch_and(&b->flags, ~BF_PUNCHED) & BF_PUNCHED)
			engine_post(REQ_TOUCHED, s, 0);
		u64 was = p;
		int plain = !rs || lost >= RS_TRIES, done;
		atomic_store_explicit(&b->tx_bytes, p + k, RELAX); /* first: of who is killed in between nobody has read more than he sent */
		if (unlikely(plain)) {
			int masks = !atomic_load(&S->sealed);
			if (masks)
				sys(SYS_rt_sigprocmask, SIG_BLOCK, &all, &mask, 8);
			done = atomic_load(&h->prod) == p && copy_in(s, *a, p, k, 0) &&
			       atomic_compare_exchange_strong(&h->prod, &was, p + k);
			if (masks)
				sys(SYS_rt_sigprocmask, SIG_SETMASK, &mask, 0, 8);
		} else {
			done = copy_in(s, *a, p, k, rs) && atomic_compare_exchange_strong(&h->prod, &was, p + k);
		}
		if (unlikely(!done)) {
			if (++lost > LOST_MAX)
				return total ? (ssize_t)total : broken(s);
			continue;
		}
		/* the compare-and-swap was the fence between publishing and looking at the arm */
		if (unlikely(to_ring(&h->rarm, s)))
			fire(&h->rarm, s, 0);
		at_move(a, k);
		total += k;
		left -= k;
	}
	u32 same = atomic_load_explicit(&s->same, RELAX);
	if (total && !(same & WROTE))
		atomic_store_explicit(&s->same, same | WROTE, RELAX);
	return (ssize_t)total;
}

ssize_t lane_write(struct sock *s, const struct iovec *iov, int n, size_t skip)
{
	struct at a;
	/* Both lines are in the peer's cache: fetch them at the same time, and to own, not to share. */
	__asm__ volatile("prefetchw %0" : : "m"(s->tx->prod));
	__asm__ volatile("prefetchw %0" : : "m"(s->txbuf[atomic_load_explicit(&s->tx->prod, RELAX) & (s->txsize - 1)]));
	size_t left = at_init(&a, iov, n, skip);

	if (unlikely(atomic_load_explicit(&s->b->flags, RELAX) & BF_BROKEN))
		return -ECONNABORTED;
	int nested = lk_lock(&s->b->tx);
	ssize_t r = write_locked(s, &a, left);
	lk_unlock(&s->b->tx, nested);
	return r;
}

/* ---- spinning ---------------------------------------------------------------------------------------------- */

#define SPIN_NS 20000
#define SPIN_LATENCY_NS 50000
#define NEAR_US 100 /* a wait that ended so soon would have been a hit, had both sides been awake */
#define NUDGE_NS 20000000ll
#define NUDGE_AFTER 64

static _Atomic i64 nudged; /* when; -1 = never again in this process */

/*
 * The scheduler likes to keep two that wake each other on one CPU, where each round trip costs two switches.
 * Off this CPU and back to no restriction at all; where that gives another set than before, the program (or who
 * started it) had chosen one, and is left alone from then on.
 */
static void nudge(void)
{
	u64 was[16] = {0}, now[16] = {0}, part[16], all[16];
	u32 cpu = cpu_here();
	i64 t = now_ns(), last = atomic_load_explicit(&nudged, RELAX);
	u64 any = 0;

	if (last < 0 || !cpu || cpu > 1024 || (last && t - last < NUDGE_NS) ||
	    !atomic_compare_exchange_strong(&nudged, &last, t))
		return;
	if (sys(SYS_sched_getaffinity, 0, sizeof was, was) < 0)
		goto never;
	memset(all, 0xff, sizeof all);
	memcpy(part, was, sizeof part);
	part[(cpu - 1) / 64] &= ~(1ull << (cpu - 1) % 64);
	for (int i = 0; i < 16; i++)
		any |= part[i];
	if (!any || sys(SYS_sched_setaffinity, 0, sizeof part, part) < 0)
		goto never;
	if (sys(SYS_sched_setaffinity, 0, sizeof all, all) == 0 &&
	    sys(SYS_sched_getaffinity, 0, sizeof now, now) >= 0 && !memcmp(was, now, sizeof was))
		return;
	sys(SYS_sched_setaffinity, 0, sizeof was, was);
never:
	atomic_store_explicit(&nudged, -1, RELAX);
}

/* A reader that waits for the answer to what it wrote, and again finds its peer on its own CPU. */
static void meet(struct sock *s, u32 peer_cpu)
{
	u32 same = atomic_load_explicit(&s->same, RELAX);

	if (!S->nudge || atomic_load(&S->sealed) || !(same & WROTE) || peer_cpu != cpu_here())
		return;
	if ((++same & ~WROTE) >= NUDGE_AFTER) {
		same = WROTE;
		nudge();
	}
	atomic_store_explicit(&s->same, same, RELAX);
}

/*
 * The credit word: how badly spinning paid (bits 0-3), whether the last spin missed and is not judged yet (bit 4),
 * when it ended (bits 5-31, µs). A miss is judged at the next wait: if that comes soon, the peer was merely asleep
 * itself (both sides would sleep for ever if that counted as a miss). From the third bad miss on the time
 * between two spins doubles each time, up to 16 ms: never more than 4 % of a CPU, 0.1 % in the end.
 */
#define MISS_MAX 8
#define MISS_FREE 3
#define US_MASK 0x7ffffffu

static inline u32 us_now(void)
{
	return (u32)(now_ns() / 1000) & US_MASK;
}

static inline __attribute__((always_inline)) int spin(int (*ready)(void *), void *arg, _Atomic u32 *credit,
						      const _Atomic u32 *peer_cpu, i64 deadline)
{
	u32 c = atomic_load_explicit(credit, RELAX), miss = c & 15;
	i64 limit = S->profile == PROFILE_LATENCY ? SPIN_LATENCY_NS : SPIN_NS, start = 0;

	if (S->profile == PROFILE_SAFE)
		return 0;
	if (unlikely(c & ~15u) && S->profile == PROFILE_BALANCED) {
		u32 ago = (us_now() - (c >> 5)) & US_MASK;
		if (c & 16) {
			if (ago >= NEAR_US)
				miss += miss < MISS_MAX;
			else
				miss -= miss > 0;
			c = (c & ~31u) | miss;
			atomic_store_explicit(credit, c, RELAX);
		}
		if (miss >= MISS_FREE && ago < 64u << miss)
			return 0;
	}
	for (u32 k = 0; k < 1u << 16; k++) {
		if (ready(arg)) {
			if (c)
				atomic_store_explicit(credit, miss > 2 ? (c & ~31u) | (miss - 2) : 0, RELAX);
			return 1;
		}
		u32 pc = atomic_load_explicit(peer_cpu, RELAX);
		int mine = pc && pc == cpu_here();
		if (mine && atomic_load(&S->sealed))
			break;
		if (mine)
			sys(SYS_sched_yield);
		else
			PAUSE();
		if (mine || (k & 31) == 31) {
			i64 t = now_ns();
			if (!start)
				start = t;
			if (t - start > limit || (deadline && t >= deadline))
				break;
		}
	}
	u32 us = us_now();
	atomic_store_explicit(credit, us << 5 | 16 | miss, RELAX);
	return 0;
}

int lane_spin(int (*ready)(void *), void *arg, _Atomic u32 *credit, u32 peer_cpu)
{
	_Atomic u32 pc = peer_cpu;

	return spin(ready, arg, credit, &pc, 0);
}

/* ---- waiting ------------------------------------------------------------------------------------------------- */

/* Everything that a caller looks at before it waits, in one number; `salt` tells callers apart. */
static u32 facts(struct sock *s, int dir, u64 salt)
{
	struct block *b = s->b;
	u64 h = salt;
#define MIX(x) (h = (h ^ (u64)(x)) * 0x9e3779b97f4a7c15ull, h ^= h >> 29)
	MIX((u64)atomic_load(&b->state) << 32 | atomic_load(&b->flags));
	MIX((u64)s->gen << 32 | (u32)atomic_load(&b->so_error)); /* another connection may show the same */
	if (dir == EPOLLIN) {
		MIX(atomic_load(&s->rx->prod));
		MIX(atomic_load(&s->rx->cons));
		MIX(atomic_load(&s->rx->wflags));
		MIX(atomic_load(&s->rx->urg));
	} else if (dir == EPOLLOUT) {
		MIX(atomic_load(&s->tx->prod));
		MIX(atomic_load(&s->tx->cons));
		MIX((u64)atomic_load(&s->tx->rflags) << 32 | atomic_load(&s->tx->token));
	} else {
		MIX((u64)atomic_load(&b->stage_len) << 32 | __atomic_load_n(&b->stage_done, __ATOMIC_RELAXED));
		MIX(atomic_load(&b->reason));
	}
#undef MIX
	return (u32)(h >> 32) | 1;
}

struct spin_for {
	struct sock *s;
	u32 state, flags, other;
	u64 cons;
};

static inline int in_ready(void *p)
{
	struct spin_for *w = p;
	struct rmbe_head *h = w->s->rx;

	return atomic_load_explicit(&h->prod, memory_order_acquire) != w->cons ||
	       atomic_load_explicit(&h->wflags, RELAX) != w->other ||
	       atomic_load_explicit(&w->s->b->flags, RELAX) != w->flags ||
	       atomic_load_explicit(&w->s->b->state, RELAX) != w->state;
}

static inline int out_ready(void *p)
{
	struct spin_for *w = p;
	struct rmbe_head *h = w->s->tx;
	u64 c = atomic_load_explicit(&h->cons, memory_order_acquire);

	return LANE_OUT_READY(w->s, w->s->txsize - (atomic_load_explicit(&h->prod, RELAX) - c)) ||
	       atomic_load_explicit(&h->rflags, RELAX) != w->other ||
	       atomic_load_explicit(&w->s->b->flags, RELAX) != w->flags ||
	       atomic_load_explicit(&w->s->b->state, RELAX) != w->state;
}

/* Would the kernel restart a call that a handler interrupted? A futex with a timeout cannot tell, so ask about
 * all handlers; where they disagree EINTR is the answer that no program hangs on. */
static int handlers_restart(void)
{
	struct {
		void *handler;
		u64 flags;
		void *restorer;
		u64 mask;
	} sa;
	/* glibc's own two, and what strikes the program's code, not its calls */
	const u64 not_asked = 3ull << 32 | 1 << SIGSEGV | 1 << SIGBUS | 1 << SIGFPE | 1 << SIGILL | 1 << SIGTRAP | 1u << SIGSYS;

	for (int sig = 1; sig <= 64; sig++)
		if ((sig == 64 || !(not_asked >> sig & 1)) && sys(SYS_rt_sigaction, sig, 0, &sa, 8) == 0 &&
		    (uintptr_t)sa.handler > 1 && !(sa.flags & SA_RESTART))
			return 0;
	return 1;
}

static int sleep_on(struct sock *s, _Atomic u32 *wakes, u32 val, i64 deadline)
{
	/* Without an engine nobody tells us about the TCP socket: look at it ourselves, in slices. */
	int alone = atomic_load(&S->engine) != ENG_READY ||
		    (atomic_load(&s->b->state) == S_ACTIVE && !__atomic_load_n(&s->watched, __ATOMIC_RELAXED));
	i64 until = deadline;
	long r;
	int type;

	if (alone) {
		i64 t = now_ns() + SLICE_NS;
		if (!until || t < until)
			until = t;
	}
	struct timespec ts = {until / 1000000000, until % 1000000000};
	/* As in libc's recv: a thread may be cancelled here, where it holds nothing. */
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
	if (until)
		r = sys(SYS_futex, wakes, FUTEX_WAIT_BITSET, val, &ts, 0, FUTEX_BITSET_MATCH_ANY);
	else
		r = sys(SYS_futex, wakes, FUTEX_WAIT, val, 0, 0, 0); /* restarted after SA_RESTART handlers */
	pthread_setcanceltype(type, 0);
	if (alone && s->fd >= 0) {
		struct pollfd p = {s->fd, POLLRDHUP, 0};
		if (sys(SYS_poll, &p, 1, 0) > 0)
			sock_tcp_event(s, (u32)p.revents);
	}
	if (r == -EINTR)
		return alone && !deadline && handlers_restart() ? 0 : -EINTR;
	return r == -ETIMEDOUT && deadline && now_ns() >= deadline ? -ETIMEDOUT : 0;
}

/*
 * The caller looked, then called us; what changed in between must not be slept over, and only the caller knows
 * what it looked at. So nobody sleeps before he has looked at exactly the facts that hold after arming: where
 * they are not those of this thread's last return, we return once more. The frame address tells
 * a handler's calls from those of the code that it interrupted.
 */
int lane_wait(struct sock *s, int dir, i64 deadline)
{
	struct block *b = s->b;
	struct spin_for w = {s, atomic_load_explicit(&b->state, memory_order_acquire), atomic_load(&b->flags), 0, 0};
	u64 salt = (u64)__builtin_frame_address(0) ^ (u64)(uintptr_t)s << 32 ^ (u64)(u32)dir;
	int hit = 0;

	if (w.state != S_ACTIVE || !s->rx || !s->tx)
		dir = 0;
	u32 h = facts(s, dir, salt);
	if (tls_looked != h) {
		if (dir == EPOLLIN) {
			put_cpu(&s->rx->rcpu);
			put_cpu(&s->tx->wcpu);
			w.cons = atomic_load_explicit(&s->rx->cons, RELAX);
			w.other = atomic_load_explicit(&s->rx->wflags, RELAX);
			hit = in_ready(&w);
			if (!hit) {
				meet(s, atomic_load_explicit(&s->rx->wcpu, RELAX));
				hit = spin(in_ready, &w, &s->spin_rx, &s->rx->wcpu, deadline);
			}
			__builtin_prefetch(s->rxbuf + (w.cons & (s->rxsize - 1)));
		} else if (dir == EPOLLOUT) {
			w.other = atomic_load_explicit(&s->tx->rflags, RELAX);
			hit = out_ready(&w) || spin(out_ready, &w, &s->spin_tx, &s->tx->rcpu, deadline);
		}
		tls_looked = hit ? facts(s, dir, salt) : h;
		return !hit && deadline && now_ns() >= deadline ? -ETIMEDOUT : 0;
	}
	struct arm *a = dir == EPOLLIN ? &s->rx->rarm : dir == EPOLLOUT ? &s->tx->warm : &b->st;
	_Atomic u32 *wakes = wakes_of(a, s);
	u32 val = atomic_load(wakes);
	atomic_fetch_or(&a->w, ARM_FUTEX);
	if (facts(s, dir, salt) != h)
		return 0;
	return sleep_on(s, wakes, val, deadline);
}

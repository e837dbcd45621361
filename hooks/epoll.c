/*
 * epoll for connections of ours (ARCHITECTURE "Waking"). The program's epoll fd stays the one object: our TCP fd is
 * registered there under its own number, asking for its end only, and beside it one bell. So EEXIST, ENOENT, dups,
 * the last close and everything about other fds remain the kernel's. What the program asked for is in an entry per
 * (set, fd); a set lists the entries that may be ready, all others are armed. So a wait costs what is ready.
 *
 * Locks: sock.eplk < set lock. What changes entries runs with signals blocked; only the scan inside epoll_wait can be
 * interrupted by a handler, whose changes to the same set then wait on `late` until the scan has ended.
 */
#include "../preload/real.h"
#include "shim.h"
#include "sys.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

#define SET_MAX 1024
#define ENT_BITS 17
#define ENT_MAX (1u << ENT_BITS)
#define TAGS 4096 /* bits of a bell */
#define INNER_MAX 4
#define SLICE_NS 20000000ll
#define MAX_EVENTS (INT_MAX / (int)sizeof(struct epoll_event))
#define TURN_CALLS 64	   /* the kernel's fds get their turn at least every so many rounds, */
#define TURN_CYCLES 100000 /* or when about so much time passed, or in every round while they have news */
#define HOT 16		   /* waits that spin after an event of ours was reported */

#define PRIVATE (EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE)
#define EXCLUSIVE_OK (EPOLLIN | EPOLLOUT | EPOLLERR | EPOLLHUP | EPOLLWAKEUP | EPOLLET | EPOLLEXCLUSIVE)
#define IN_BITS (EPOLLIN | EPOLLRDNORM | EPOLLRDBAND | EPOLLPRI | EPOLLRDHUP)
#define OUT_BITS (EPOLLOUT | EPOLLWRNORM | EPOLLWRBAND)
#define END_BITS (EPOLLRDHUP | EPOLLHUP | EPOLLERR)

/* ep_state.fd: what is known about any fd, also where the set has nothing of ours */
#define MADE 0x8000u	/* epoll_create gave that number once */
#define WATCHED 0x4000u /* it is inside another set, or was polled */
#define EARLY 0x3fffu	/* threads that wait on it without knowing of us */

#define A_STATE 2u /* ep_entry.armed, beside EPOLLIN and EPOLLOUT */
#define L_NEW 1u   /* ep_entry.late */
#define L_LIST 2u
#define L_DEAD 4u

struct ep_entry {
	struct ep_entry *next; /* of the same socket; under its eplk */
	struct sock *s;
	u64 tag;	  /* the data of its kernel registration: secret, generation, own index */
	u64 data;
	u64 prod;	  /* EPOLLET: the rx ring's end when last looked at */
	u32 sgen, set;	  /* generation of s; index of the set, 0 = free */
	u32 events, seen; /* the program's; EPOLLET: what held when last looked at */
	int fd;
	u32 ahead, behind; /* on the set's list; free entries: ahead */
	u32 bit;	   /* next entry with the same bell bit */
	u32 late_next;
	_Atomic u32 late;
	u8 listed, off, fresh, armed, old; /* off: ONESHOT fired; fresh: report whatever holds; old: from before fork */
};

struct ep_set {
	struct lk lk;
	u32 used, gen, fds; /* fds: numbers that name it */
	int epfd;	    /* one of them */
	int bell, evfd;	    /* -1 = none: slices */
	u32 head, tail, nlist, slow; /* slow: listed ones that are not ready but cannot be armed */
	u32 nent, sleepers, hot, cpu;
	u32 lt;		/* somebody looks at the set from outside: its bell must be readable while an entry is ready */
	u32 foreign;	/* came over fork: the bell is the parent's; 2: and it is level-triggered by now */
	_Atomic u32 turn, credit, late;
	_Atomic u64 turn_at;
	u32 inner[INNER_MAX]; /* sets of ours inside this one */
	u32 by[TAGS];	      /* entries by bell bit */
};

struct ep_tables {
	struct ep_set set[SET_MAX];
	struct ep_entry ent[ENT_MAX];
};

struct ep_state {
	struct lk lk; /* sets come and go; signals blocked */
	u32 secret, nsets;
	u32 forked;
	int parent;
	_Atomic u64 free; /* counter, index of the first free entry */
	_Atomic u32 nents;
	struct ep_tables *_Atomic t;
	_Atomic u8 etout[SOCK_MAX]; /* has or had an EPOLLET entry that asks for EPOLLOUT */
	_Atomic u16 fd[FD_MAX];
};

#define ENT(i) (&S->ep->t->ent[i])
#define IDX(e) ((u32)((e)->tag & (ENT_MAX - 1)))
#define BELL_TAG ((u64)S->ep->secret << 32)

static void adopt(struct ep_state *E);

static int fail(int e)
{
	errno = e;
	return -1;
}

static u64 quiet(void)
{
	u64 all = ~0ull, old = 0;

	sys(SYS_rt_sigprocmask, SIG_BLOCK, &all, &old, sizeof old);
	return old;
}

static void unquiet(u64 old)
{
	sys(SYS_rt_sigprocmask, SIG_SETMASK, &old, 0, sizeof old);
}

/* A vfork child borrows its parent's memory. */
static int borrowed(void)
{
	return (u32)sys(SYS_getpid) != S->pid;
}

/* ---- memory ---------------------------------------------------------------------------------------------- */

static void *map_zero(size_t len)
{
	long m = sys(SYS_mmap, 0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return m < 0 && m > -4096 ? 0 : (void *)m;
}

static struct ep_state *state_make(void)
{
	struct ep_state *E = atomic_load(&S->ep), *none = 0;

	if (E)
		return E;
	if (!(E = map_zero(sizeof *E)))
		return 0;
	if (sys(SYS_getrandom, &E->secret, sizeof E->secret, GRND_NONBLOCK) != sizeof E->secret)
		E->secret = (u32)now_ns() ^ (u32)((uintptr_t)E >> 12);
	E->secret = (E->secret & 0x3fffffff) | 0x80000000; /* neither a pointer nor a sign-extended number */
	if (atomic_compare_exchange_strong(&S->ep, &none, E))
		return E;
	sys(SYS_munmap, E, sizeof *E);
	return none;
}

static struct ep_tables *tables_make(struct ep_state *E)
{
	struct ep_tables *t = atomic_load(&E->t), *none = 0;

	if (t || !(t = map_zero(sizeof *t)))
		return t;
	if (atomic_compare_exchange_strong(&E->t, &none, t))
		return t;
	sys(SYS_munmap, t, sizeof *t);
	return none;
}

/* Without a lock: entries are freed inside the scan, too. The counter keeps an old head from fitting again. */
static struct ep_entry *ent_new(struct ep_state *E)
{
	u64 h = atomic_load(&E->free);
	u32 i;

	while ((i = (u32)h))
		if (atomic_compare_exchange_weak(&E->free, &h, ((h >> 32) + 1) << 32 | ENT(i)->ahead))
			break;
	if (!i) {
		u32 n = atomic_load(&E->nents);
		do {
			if (n + 1 >= ENT_MAX)
				return 0;
		} while (!atomic_compare_exchange_weak(&E->nents, &n, n + 1));
		i = n + 1;
	}
	struct ep_entry *e = ENT(i);
	u64 gen = (u32)e->tag >> ENT_BITS;
	*e = (struct ep_entry){.tag = (u64)E->secret << 32 | (u32)(gen + 1) << ENT_BITS | i};
	return e;
}

static void ent_free(struct ep_entry *e)
{
	struct ep_state *E = S->ep;
	u64 h = atomic_load(&E->free);

	e->set = 0;
	do
		e->ahead = (u32)h;
	while (!atomic_compare_exchange_weak(&E->free, &h, ((h >> 32) + 1) << 32 | IDX(e)));
}

/* ---- a set: its list and its lock -------------------------------------------------------------------------- */

static struct ep_set *set_of(int epfd)
{
	if (kind_of(epfd) != FD_EPOLL)
		return 0;
	struct ep_state *E = atomic_load(&S->ep);
	if (unlikely(E->forked))
		adopt(E);
	u32 i = atomic_load_explicit(&S->fd_sock[epfd], memory_order_relaxed);
	struct ep_set *st = &E->t->set[i < SET_MAX ? i : 0];
	return st->used ? st : 0;
}

static struct ep_tables *tables(void)
{
	struct ep_state *E = atomic_load(&S->ep);

	if (!E)
		return 0;
	if (unlikely(E->forked))
		adopt(E);
	return atomic_load(&E->t);
}

static u32 set_idx(const struct ep_set *st)
{
	return (u32)(st - S->ep->t->set);
}

static struct bell_word *word(const struct ep_set *st)
{
	return S->bell[st->bell].word;
}

static void list_add(struct ep_set *st, struct ep_entry *e)
{
	u32 i = IDX(e);

	if (e->listed)
		return;
	e->listed = 1;
	e->ahead = 0;
	e->behind = st->tail;
	if (st->tail)
		ENT(st->tail)->ahead = i;
	else
		st->head = i;
	st->tail = i;
	st->nlist++;
}

static void list_del(struct ep_set *st, struct ep_entry *e)
{
	if (!e->listed)
		return;
	e->listed = 0;
	if (e->behind)
		ENT(e->behind)->ahead = e->ahead;
	else
		st->head = e->ahead;
	if (e->ahead)
		ENT(e->ahead)->behind = e->behind;
	else
		st->tail = e->behind;
	if (st->slow == st->nlist--)
		st->slow--;
}

static void link_in(struct ep_set *st, struct ep_entry *e)
{
	u32 *head = &st->by[sock_idx(e->s) % TAGS];

	e->bit = *head;
	*head = IDX(e);
	st->nent++;
}

static void link_out(struct ep_set *st, struct ep_entry *e)
{
	list_del(st, e);
	for (u32 *p = &st->by[sock_idx(e->s) % TAGS]; *p; p = &ENT(*p)->bit)
		if (*p == IDX(e)) {
			*p = e->bit;
			st->nent--;
			break;
		}
	ent_free(e);
}

/* One change to an entry; under the set lock. nested: the scan that we interrupted does it when it ends. */
static void change(struct ep_set *st, struct ep_entry *e, u32 what, int nested)
{
	if (nested) {
		u32 had = atomic_fetch_or(&e->late, what);
		if ((what & ~had) & L_DEAD) /* it may be looked at this very moment */
			atomic_fetch_add(&e->s->refs, 1);
		if (had)
			return;
		u32 h = atomic_load(&st->late);
		do
			e->late_next = h;
		while (!atomic_compare_exchange_weak(&st->late, &h, IDX(e)));
		return;
	}
	if (what & L_NEW)
		link_in(st, e);
	if (what & L_DEAD)
		link_out(st, e);
	else if (what & L_LIST)
		list_add(st, e);
}

static void set_unlock(struct ep_set *st, int nested)
{
	while (!nested) {
		for (u32 i = atomic_load(&st->late) ? atomic_exchange(&st->late, 0) : 0; i;) {
			struct ep_entry *e = ENT(i);
			struct sock *s = e->s;
			i = e->late_next;
			u32 what = atomic_exchange(&e->late, 0);
			change(st, e, what, 0);
			if (what & L_DEAD)
				sock_put(s);
		}
		lk_unlock(&st->lk, 0);
		if (likely(!atomic_load(&st->late)))
			break;
		nested = lk_lock(&st->lk);
	}
}

/* ---- bells ------------------------------------------------------------------------------------------------- */

static int wanted(const struct ep_set *st)
{
	return st->sleepers || st->lt || (atomic_load(&S->ep->fd[st->epfd]) & EARLY);
}

static void bell_make(struct ep_set *st)
{
	if (st->bell >= 0 || st->foreign)
		return;
	int b = bell_get();
	if (b < 0)
		return;
	struct epoll_event ev = {EPOLLIN | (st->lt ? 0 : (u32)EPOLLET), {.u64 = BELL_TAG}};
	long r = sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_ADD, S->bell[b].fd, &ev);
	if (r == -EEXIST)
		r = sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_MOD, S->bell[b].fd, &ev);
	if (r < 0) {
		bell_put(b);
		return;
	}
	st->bell = b;
	st->evfd = S->bell[b].fd;
}

static void bell_level(struct ep_set *st)
{
	struct epoll_event ev = {EPOLLIN, {.u64 = BELL_TAG}};

	if (st->lt)
		return;
	st->lt = 1;
	if (st->bell >= 0)
		sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_MOD, st->evfd, &ev);
}

static void bell_read(const struct ep_set *st)
{
	u64 n;

	sys(SYS_read, st->evfd, &n, sizeof n);
}

/* Who goes away while others sleep, or while somebody looks at the set from outside, leaves the bell armed, and
 * rung if there is something left to find. */
static void leave(struct ep_set *st)
{
	u64 one = 1;

	if (st->bell < 0 || likely(!wanted(st)))
		return;
	atomic_store(&word(st)->asleep, 1);
	if ((st->nlist > st->slow || atomic_load(&word(st)->summary)) && atomic_exchange(&word(st)->asleep, 0))
		sys(SYS_write, st->evfd, &one, sizeof one);
}

/* Lists what was rung. The word is the ringers' to write: whatever it says costs a look and no more. */
static void drain(struct ep_set *st)
{
	if (st->bell < 0 || !atomic_load_explicit(&word(st)->summary, memory_order_acquire))
		return;
	u64 sum = atomic_exchange(&word(st)->summary, 0);
	for (; sum; sum &= sum - 1) {
		u32 k = (u32)__builtin_ctzll(sum);
		for (u64 bits = atomic_exchange(&word(st)->bits[k], 0); bits; bits &= bits - 1)
			for (u32 i = st->by[k * 64 + (u32)__builtin_ctzll(bits)]; i; i = ENT(i)->bit) {
				ENT(i)->armed = 0;
				list_add(st, ENT(i));
			}
	}
}

/* ---- is an entry ready? -------------------------------------------------------------------------------------- */

/* 0 = slices; 1 = armed, look again; 2 = was armed already. */
static int arm(struct ep_set *st, struct ep_entry *e, u32 want)
{
	u8 bits = want ? (u8)want : A_STATE;

	if ((e->armed & bits) == bits)
		return 2;
	if (st->bell < 0 || !sock_arm(e->s, bell_id(st->bell), want))
		return 0;
	e->armed |= bits;
	return 1;
}

static u64 prod_of(struct sock *s)
{
	return atomic_load_explicit(&s->b->state, memory_order_acquire) == S_ACTIVE ?
		       atomic_load_explicit(&s->rx->prod, memory_order_acquire) : 0;
}

/* The events to report now. Afterwards the entry is armed for the next ones, or *ok = 0. take: count as reported. */
static u32 due(struct ep_set *st, struct ep_entry *e, int take, int *ok)
{
	u32 m = (e->events & ~PRIVATE) | EPOLLERR | EPOLLHUP;
	u32 in = m & IN_BITS ? EPOLLIN : 0, out = m & OUT_BITS ? EPOLLOUT : 0, all;
	struct sock *s = e->s;

	*ok = 1;
	if (!(e->events & EPOLLET)) {
		if ((all = sock_events(s) & m))
			return all;
		int a = arm(st, e, in | out);
		*ok = a > 0;
		return a == 1 ? sock_events(s) & m : 0;
	}
	*ok = arm(st, e, in) > 0;
	u64 prod = prod_of(s); /* before the events: what comes between shows in both, what comes later rings */
	all = sock_events(s);
	if (out && !(all & OUT_BITS)) {
		if (!arm(st, e, out))
			*ok = 0;
		prod = prod_of(s);
		all = sock_events(s);
	}
	u32 edge = all & ~e->seen;
	if (prod != e->prod)
		edge |= all & (EPOLLIN | EPOLLRDNORM);
	if (e->fresh || (edge & END_BITS))
		edge = all; /* as the kernel: a change of state wakes for everything */
	if (take || !(edge & m)) {
		e->fresh = 0;
		e->seen = all;
		e->prod = prod;
	}
	return edge & m ? all & m : 0;
}

/* Is what the entry stands for still ours to answer? Else *give = the socket that is plain by now. */
static int live(struct ep_entry *e, struct sock **give)
{
	struct block *b = e->s->b;

	if (!b || e->s->gen != e->sgen || e->off)
		return 0;
	if (atomic_load_explicit(&b->state, memory_order_acquire) != S_TCP)
		return 1;
	*give = e->s;
	return 0;
}

/* Under the set lock. Level-triggered ones that are ready go to the end of the list: nobody starves behind maxevents. */
static int scan(struct ep_set *st, struct epoll_event *ev, int max, struct sock **give)
{
	u32 left = st->nlist;
	int n = 0;

	st->slow = 0;
	while (left-- && n < max && st->head) {
		struct ep_entry *e = ENT(st->head);
		struct sock *plain = 0;
		int ok = 1;
		u32 r = 0;
		list_del(st, e);
		if (live(e, &plain))
			r = due(st, e, 1, &ok);
		if (r) {
			struct sock *s = e->s;
			ev[n].events = r;
			ev[n++].data.u64 = e->data;
			st->hot = HOT;
			st->cpu = s->rx ? atomic_load_explicit(&s->rx->wcpu, memory_order_relaxed) : 0;
			if (e->events & EPOLLONESHOT)
				e->off = 1;
			else if (!(e->events & EPOLLET) || !ok)
				list_add(st, e);
		} else if (plain || !ok) {
			list_add(st, e);
			st->slow++;
			if (plain)
				*give = plain;
		}
	}
	return n;
}

/* Without reporting: 1 = (perhaps) ready, stays listed. */
static int probe(struct ep_set *st, struct ep_entry *e)
{
	struct sock *plain = 0;
	int ok = 1;

	if (live(e, &plain) && due(st, e, 0, &ok))
		return 1;
	if (plain || !ok)
		st->slow += st->slow < st->nlist;
	else
		list_del(st, e);
	return 0;
}

/* For those who look from outside: the bell is readable if and only if an entry is ready. 1 = slices; 2 = ready. */
static int refresh(struct ep_set *st)
{
	int nested = lk_lock(&st->lk), r = nested;

	if (!nested && st->used) {
		int is_rung = st->bell >= 0 && !atomic_load(&word(st)->asleep);
		drain(st);
		st->slow = 0;
		u32 i = st->head, next;
		for (u32 left = st->nlist; left && i && !(r & 2); left--, i = next) {
			next = ENT(i)->ahead;
			if (probe(st, ENT(i)))
				r = 2;
		}
		r |= st->slow || (st->foreign && st->nent);
		if (st->bell >= 0 && !(r & 2))
			bell_read(st);
		if (!(r & 2) || !is_rung) /* readable already: once more would be another edge for those outside */
			leave(st);
	}
	set_unlock(st, nested);
	return r;
}

/* ---- what the kernel returned ---------------------------------------------------------------------------------- */

/* Keeps the program's own events and acts on ours. Under the set lock unless nested. */
static int sift(struct ep_set *st, struct epoll_event *ev, int k, int nested)
{
	int n = 0, bell = 0;

	for (int i = 0; i < k; i++) {
		u64 d = ev[i].data.u64;
		if (likely(d >> 32 != S->ep->secret)) {
			if (n != i)
				ev[n] = ev[i];
			n++;
			continue;
		}
		u32 x = (u32)d & (ENT_MAX - 1);
		if (!x) {
			bell = 1;
			continue;
		}
		struct ep_entry *e = ENT(x);
		if (nested || e->tag != d || e->set != set_idx(st) || !e->s->b || e->s->gen != e->sgen)
			continue;
		/* Edges of this fd come once: whoever is first tells the rest of the process. And what a peer that died
		 * in the middle of ringing has taken out of the arm word is armed again. */
		sock_tcp_event(e->s, ev[i].events);
		e->armed = 0;
		list_add(st, e);
	}
	if (bell && !nested && st->bell >= 0) {
		/* Nobody has rung and it is readable: somebody we share the set with made it level-triggered. */
		if (st->lt || atomic_load(&word(st)->asleep))
			bell_read(st);
	}
	return n;
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

struct wait {
	int epfd, max;
	struct epoll_event *ev;
	i64 ns; /* < 0: for ever */
	const sigset_t *mask;
	int fine; /* epoll_pwait2 */
};

static int kernel_wait(const struct wait *w, i64 ns)
{
	if (w->fine) {
		struct timespec t = {ns / 1000000000, ns % 1000000000};
		return S->real->epoll_pwait2(w->epfd, w->ev, w->max, ns < 0 ? 0 : &t, w->mask);
	}
	i64 ms = ns < 0 ? -1 : ns / 1000000 + (ns % 1000000 > 0);
	if (ms > INT_MAX)
		ms = INT_MAX;
	return w->mask ? S->real->epoll_pwait(w->epfd, w->ev, w->max, (int)ms, w->mask) :
			 S->real->epoll_wait(w->epfd, w->ev, w->max, (int)ms);
}

struct sleeper {
	struct ep_set *st;
	u32 gen;
};

static void awake_locked(struct ep_set *st)
{
	st->sleepers--;
	if (st->bell >= 0 && !wanted(st))
		atomic_store(&word(st)->asleep, 0);
}

static void awake(void *p)
{
	struct sleeper *z = p;
	int nested = lk_lock(&z->st->lk);

	if (z->st->gen == z->gen && z->st->sleepers)
		awake_locked(z->st);
	set_unlock(z->st, nested);
}

/* Cancellation leaves by a jump into this frame: AddressSanitizer takes what it meets there for an error. */
static __attribute__((noinline, no_sanitize_address)) int sleep_counted(const struct wait *w, struct sleeper *z, i64 ns)
{
	int n;

	pthread_cleanup_push(awake, z);
	n = kernel_wait(w, ns);
	pthread_cleanup_pop(1);
	return n;
}

static int rung(void *p)
{
	return atomic_load_explicit(&((struct bell_word *)p)->summary, memory_order_acquire) != 0;
}

static int turn_due(struct ep_set *st)
{
	u64 t = __builtin_ia32_rdtsc();

	if (atomic_fetch_add_explicit(&st->turn, 1, memory_order_relaxed) < TURN_CALLS &&
	    t - atomic_load_explicit(&st->turn_at, memory_order_relaxed) < TURN_CYCLES)
		return 0;
	atomic_store_explicit(&st->turn, 0, memory_order_relaxed);
	atomic_store_explicit(&st->turn_at, t, memory_order_relaxed);
	return 1;
}

static int inner_refresh(struct ep_set *st)
{
	int slow = 0;

	for (int i = 0; i < INNER_MAX && st->inner[i]; i++)
		slow |= refresh(&S->ep->t->set[st->inner[i]]) & 1;
	return slow;
}

/* A process that shares the block decided for TCP: here, too. */
static void give_up(struct sock *s)
{
	struct sock *held = sock_at(sock_idx(s), s->gen);

	if (held) {
		sock_use(held);
		sock_drop(held);
	}
}

/* Before the first wait on a set that came over fork: it must not take the edge of the parent's bell. The parent
 * notices that the bell stays readable (sift); here it is never read. */
static void share_bell(struct ep_set *st)
{
	struct epoll_event ev = {EPOLLIN, {.u64 = BELL_TAG}};

	if (st->foreign == 1 && st->evfd >= 0)
		sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_MOD, st->evfd, &ev);
	st->foreign = 2;
}

/* Says that this thread sleeps; 0 = there is something to look at first. */
static int go_to_sleep(struct ep_set *st)
{
	if (st->nlist > st->slow)
		return 0;
	st->sleepers++;
	if (st->bell < 0)
		return 1;
	atomic_store(&word(st)->asleep, 1);
	if (!atomic_load(&word(st)->summary))
		return 1;
	awake_locked(st);
	return 0;
}

/* got: events that a plain epoll_wait brought already. */
static int wait_ours(const struct wait *w, int got)
{
	i64 until = -1;
	int looked = got > 0; /* the kernel was asked, and nothing has been reported since */

	for (;;) {
		struct ep_set *st = set_of(w->epfd);
		struct sock *give = 0;
		int slow = 0, n = 0;
		if (!st)
			return got ? got : kernel_wait(w, w->ns);
		if (unlikely(st->foreign))
			share_bell(st);
		if (unlikely(st->inner[0]))
			slow = inner_refresh(st);
		if (!got && turn_due(st)) {
			looked = 1;
			if ((got = kernel_wait(w, 0)) < 0)
				return -1;
		}
		int nested = lk_lock(&st->lk);
		n = sift(st, w->ev, got, nested);
		if (n) /* who filled all the room goes last next time */
			atomic_store_explicit(&st->turn, TURN_CALLS - (n == w->max), memory_order_relaxed);
		int only_bell = got > 0 && !n;
		got = 0;
		if (likely(!nested)) {
			drain(st);
			n += scan(st, w->ev + n, w->max - n, &give);
		}
		slow |= st->slow || nested || (st->foreign && st->nent);
		u32 cpu = st->cpu;
		struct bell_word *spin = !n && !slow && st->bell >= 0 && w->ns && st->hot && st->hot-- ? word(st) : 0;
		if (!nested)
			leave(st);
		set_unlock(st, nested);
		if (unlikely(give))
			give_up(give);
		if (n)
			return n;
		if (w->ns == 0) {
			if (looked)
				return 0;
			looked = 1;
			if ((got = kernel_wait(w, 0)) <= 0)
				return got;
			continue;
		}
		i64 left = w->ns;
		if (w->ns > 0) {
			i64 t = now_ns();
			if (until < 0)
				until = t + w->ns;
			if ((left = until - t) <= 0)
				return 0;
		}
		if (spin && lane_spin(rung, spin, &st->credit, cpu))
			continue;
		if (slow && (left < 0 || left > SLICE_NS))
			left = SLICE_NS;
		if (unlikely(st->foreign && only_bell)) {
			/* The parent's bell, not ours to read: stays readable until the parent has waited. */
			struct timespec t = {0, left < 0 || left > SLICE_NS ? SLICE_NS : left};
			if ((S->real->ppoll)(0, 0, &t, w->mask) < 0)
				return -1;
			left = 0;
		}
		looked = 1;
		if (unlikely(nested)) {
			got = kernel_wait(w, left);
		} else {
			struct sleeper z = {st, st->gen};
			nested = lk_lock(&st->lk);
			int ok = st->used && go_to_sleep(st);
			set_unlock(st, nested);
			if (!ok)
				continue;
			got = sleep_counted(w, &z, left);
		}
		if (got < 0)
			return -1;
	}
}

static int wait_any(const struct wait *w)
{
	struct ep_state *E = atomic_load(&S->ep);
	int kind = kind_of(w->epfd), n;

	if (unlikely(kind == FD_EPOLL)) {
		if (w->max <= 0 || w->max > MAX_EVENTS)
			return fail(EINVAL);
		if (!w->ev)
			return fail(EFAULT);
		pthread_testcancel();
		return wait_ours(w, 0);
	}
	if (unlikely(kind == FD_HIDDEN))
		return fail(EBADF);
	if (w->ns == 0 || !E || (unsigned)w->epfd >= FD_MAX) {
		n = kernel_wait(w, w->ns);
	} else {
		/* Should the set get its first socket of ours while we sleep, it has to know that we do. */
		atomic_fetch_add(&E->fd[w->epfd], 1);
		int late = kind_of(w->epfd) == FD_EPOLL;
		n = late ? 0 : kernel_wait(w, w->ns);
		atomic_fetch_sub(&E->fd[w->epfd], 1);
		if (unlikely(late))
			return wait_any(w);
	}
	if (unlikely(n > 0 && kind_of(w->epfd) == FD_EPOLL))
		return wait_ours(w, n);
	return n;
}

int h_epoll_wait(int epfd, struct epoll_event *ev, int max, int ms)
{
	return wait_any(&(struct wait){epfd, max, ev, ms < 0 ? -1 : ms * 1000000ll, 0, 0});
}

int h_epoll_pwait(int epfd, struct epoll_event *ev, int max, int ms, const sigset_t *mask)
{
	return wait_any(&(struct wait){epfd, max, ev, ms < 0 ? -1 : ms * 1000000ll, mask, 0});
}

int h_epoll_pwait2(int epfd, struct epoll_event *ev, int max, const struct timespec *t, const sigset_t *mask)
{
	struct wait w = {epfd, max, ev, -1, mask, 1};

	if (t && (t->tv_sec < 0 || t->tv_nsec < 0 || t->tv_nsec > 999999999))
		return fail(EINVAL);
	if (t && t->tv_sec < 9000000000ll)
		w.ns = t->tv_sec * 1000000000ll + t->tv_nsec;
	return wait_any(&w);
}

/* ---- sets come and go ---------------------------------------------------------------------------------------------- */

static void kind_set(int fd, u8 kind)
{
	u32 top = atomic_load(&S->fd_top);

	while (top <= (u32)fd && !atomic_compare_exchange_weak(&S->fd_top, &top, (u32)fd + 1))
		;
	atomic_store(&S->fd_kind[fd], kind);
}

/* Under E->lk. */
static struct ep_set *set_make(struct ep_state *E, int epfd)
{
	struct ep_set *st = set_of(epfd);

	if (st || kind_of(epfd) > FD_PLAIN || (unsigned)epfd >= FD_MAX || !tables_make(E))
		return st;
	for (u32 i = 1; i < SET_MAX; i++) {
		st = &E->t->set[i];
		if (st->used)
			continue;
		if (E->nsets <= i)
			E->nsets = i + 1;
		st->gen++;
		st->fds = 1;
		st->epfd = epfd;
		st->bell = st->evfd = -1;
		st->head = st->tail = st->nlist = st->slow = st->nent = st->sleepers = 0;
		st->hot = st->cpu = st->foreign = 0;
		atomic_store(&st->credit, 0);
		for (int k = 0; k < INNER_MAX; k++)
			st->inner[k] = 0;
		st->lt = 0;
		st->used = 1;
		atomic_store(&S->fd_sock[epfd], i);
		kind_set(epfd, FD_EPOLL);
		/* after the kind: epoll_polled and wait_any note what they do, then look at the kind once more */
		st->lt = (atomic_load(&E->fd[epfd]) & WATCHED) != 0;
		return st;
	}
	return 0;
}

static void set_free(struct ep_set *st, int epfd)
{
	if (st->bell >= 0) {
		sys(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, st->evfd, 0);
		bell_put(st->bell);
		st->bell = -1;
	}
	st->gen++;
	st->used = 0;
}

static int made(int fd)
{
	if ((unsigned)fd >= FD_MAX || borrowed())
		return fd;
	struct ep_state *E = state_make();
	if (kind_of(fd) > FD_PLAIN)
		fd_closed(fd);
	kind_set(fd, FD_PLAIN);
	if (E)
		atomic_store(&E->fd[fd], MADE);
	return fd;
}

int h_epoll_create(int size)
{
	return made(S->real->epoll_create(size));
}

int h_epoll_create1(int flags)
{
	return made(S->real->epoll_create1(flags));
}

static void unlink_sock(struct ep_entry *e)
{
	for (struct ep_entry **p = &e->s->eps; *p; p = &(*p)->next)
		if (*p == e) {
			*p = e->next;
			break;
		}
}

void epoll_set_closed(int epfd)
{
	struct ep_state *E = atomic_load(&S->ep);

	if (!E || kind_of(epfd) != FD_EPOLL || borrowed())
		return;
	u64 old = quiet();
	int nested = lk_lock(&E->lk);
	u32 idx = atomic_load(&S->fd_sock[epfd]), last;
	struct ep_set *st = &E->t->set[idx < SET_MAX ? idx : 0];
	last = st->used && st->fds && --st->fds == 0;
	atomic_store(&E->fd[epfd], 0);
	if (E->forked) { /* never used in this process: nothing but the copy goes */
		st->used &= !last;
		last = 0;
	}
	for (int fd = 0; st->fds && st->epfd == epfd && fd < FD_MAX; fd++)
		if (fd != epfd && kind_of(fd) == FD_EPOLL && atomic_load(&S->fd_sock[fd]) == idx)
			st->epfd = fd;
	lk_unlock(&E->lk, nested);

	/* Sockets are locked before sets: so one entry at a time, found, locked and found again. */
	for (u32 bit = 0; last && bit < TAGS; bit++)
		for (u32 i, tries = 0; (i = st->by[bit]) && tries < ENT_MAX; tries++) {
			struct ep_entry *e = ENT(i);
			struct sock *s = e->s;
			u64 tag = e->tag;
			int sn = lk_lock(&s->eplk), n = lk_lock(&st->lk);
			if (st->by[bit] == i && e->tag == tag && e->set == idx && e->s == s) {
				unlink_sock(e);
				change(st, e, L_DEAD, n);
				if (n)
					tries = ENT_MAX;
			}
			set_unlock(st, n);
			lk_unlock(&s->eplk, sn);
		}
	if (last) {
		int n = lk_lock(&st->lk);
		set_free(st, epfd);
		set_unlock(st, n);
	}
	unquiet(old);
}

/* A number that epoll_create gave once may be anything by now. */
static int is_epoll(int fd)
{
	long x = sys(SYS_eventfd2, 0, EFD_CLOEXEC), r;

	if (x < 0)
		return 0;
	r = sys(SYS_epoll_ctl, fd, EPOLL_CTL_DEL, x, 0);
	sys(SYS_close, x);
	return r == -ENOENT;
}

/* `to` names the same set. A set without anything of ours becomes known, too: what one name gets, all have. */
int epoll_set_dup(int from, int to)
{
	struct ep_state *E = atomic_load(&S->ep);

	if (!E || (unsigned)from >= FD_MAX || (unsigned)to >= FD_MAX || from == to)
		return 0;
	if (kind_of(from) != FD_EPOLL &&
	    (kind_of(from) > FD_PLAIN || !(atomic_load(&E->fd[from]) & MADE) || !is_epoll(from)))
		return 0;
	u64 old = quiet();
	int nested = lk_lock(&E->lk);
	struct ep_set *st = set_make(E, from);
	if (st) {
		st->fds++;
		atomic_store(&E->fd[to], atomic_load(&E->fd[from]) & ~EARLY);
		atomic_store(&S->fd_sock[to], set_idx(st));
		kind_set(to, FD_EPOLL);
	}
	lk_unlock(&E->lk, nested);
	unquiet(old);
	return st ? 1 : -ENOMEM;
}

/* Before the kernel is asked about it: is it a set of ours that now has to show outside what it holds? As refresh. */
int epoll_polled(int epfd)
{
	struct ep_state *E = atomic_load(&S->ep);
	u32 f = E && (unsigned)epfd < FD_MAX ? atomic_load_explicit(&E->fd[epfd], memory_order_relaxed) : 0;

	if (E && (f & (MADE | WATCHED)) == MADE)
		atomic_fetch_or(&E->fd[epfd], WATCHED);
	struct ep_set *st = set_of(epfd);
	if (!st)
		return 0;
	if (!st->lt) {
		u64 old = quiet();
		int nested = lk_lock(&st->lk);
		bell_level(st);
		set_unlock(st, nested);
		unquiet(old);
	}
	return refresh(st);
}

/* fd, not one of our sockets, is in the set epfd now; if it is a set itself, it is looked at from outside. */
static void nest(int epfd, int fd)
{
	struct ep_state *E = atomic_load(&S->ep);

	if (!E || (unsigned)fd >= FD_MAX || (kind_of(fd) != FD_EPOLL && !(atomic_load(&E->fd[fd]) & MADE)))
		return;
	epoll_polled(fd);
	struct ep_set *in = set_of(fd), *out;
	if (!in)
		return;
	u64 old = quiet();
	int nested = lk_lock(&E->lk);
	if ((out = set_make(E, epfd)))
		for (int i = 0; i < INNER_MAX && out->inner[i] != set_idx(in); i++)
			if (!out->inner[i]) {
				out->inner[i] = set_idx(in);
				break;
			}
	lk_unlock(&E->lk, nested);
	unquiet(old);
}

/* ---- epoll_ctl ----------------------------------------------------------------------------------------------------- */

static int ctl_kernel(int epfd, int op, int fd, struct epoll_event *ev)
{
	int r = S->real->epoll_ctl(epfd, op, fd, ev);

	if (r == 0 && op == EPOLL_CTL_ADD && atomic_load_explicit(&S->ep, memory_order_relaxed))
		nest(epfd, fd);
	return r;
}

/* Wants to be looked at: by the next epoll_wait, or, if threads sleep in one, now. */
static void news(struct ep_set *st, struct ep_entry *e, u32 what, int nested)
{
	e->fresh = 1;
	change(st, e, what | L_LIST, nested);
	if (nested)
		return;
	if (wanted(st))
		probe(st, e);
	leave(st);
}

static void et_out(struct ep_entry *e)
{
	if ((e->events & EPOLLET) && (e->events & OUT_BITS))
		atomic_store(&S->ep->etout[sock_idx(e->s)], 1);
}

static int is_plain(struct sock *s)
{
	u32 st = atomic_load(&s->b->state);

	return st == S_FLUSH || st == S_TCP;
}

#define PASS 1

/* Under s->eplk, signals blocked. 0, -errno, or PASS = the kernel's alone. */
static int add(int epfd, int fd, struct sock *s, struct ep_entry *had, const struct epoll_event *want)
{
	struct ep_state *E = state_make();

	if (had) {
		/* By what we know it is EEXIST; the kernel knows best. */
		struct epoll_event k = {EPOLLRDHUP | EPOLLET, {.u64 = had->tag}};
		long r = sys(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, fd, &k);
		return r < 0 ? (int)r : -EAGAIN;
	}
	if (is_plain(s))
		return PASS;
	if (!E)
		return -ENOMEM;
	int en = lk_lock(&E->lk);
	struct ep_set *st = set_make(E, epfd);
	struct ep_entry *e = st && st->fds ? ent_new(E) : 0;
	long r = st && !st->fds ? -EBADF : -ENOMEM;
	if (e) {
		if (!s->eps)
			atomic_store(&E->etout[sock_idx(s)], 0);
		e->s = s;
		e->sgen = s->gen;
		e->set = set_idx(st);
		e->fd = fd;
		e->events = want->events;
		e->data = want->data.u64;
		struct epoll_event k = {EPOLLRDHUP | EPOLLET, {.u64 = e->tag}};
		int nested = lk_lock(&st->lk);
		r = sys(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, fd, &k);
		if (r == 0) {
			e->next = s->eps;
			s->eps = e;
			et_out(e);
			if (!nested)
				bell_make(st);
			news(st, e, L_NEW, nested);
		} else {
			ent_free(e);
		}
		set_unlock(st, nested);
	}
	if (r < 0 && st && !st->nent && !st->inner[0] && st->fds == 1) { /* no set after all, or nothing of ours in it */
		int nested = lk_lock(&st->lk);
		set_free(st, epfd);
		kind_set(epfd, FD_PLAIN);
		set_unlock(st, nested);
	}
	lk_unlock(&E->lk, en);
	return (int)r;
}

static void mod(struct ep_entry *e, const struct epoll_event *want)
{
	struct ep_set *st = &S->ep->t->set[e->set];
	int nested = lk_lock(&st->lk);

	e->events = want->events;
	e->data = want->data.u64;
	e->off = 0;
	et_out(e);
	if (!nested)
		bell_make(st);
	news(st, e, 0, nested);
	set_unlock(st, nested);
}

static int del(int epfd, struct ep_entry *e)
{
	struct ep_set *st = &S->ep->t->set[e->set];
	int nested = lk_lock(&st->lk), r = (int)sys(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, e->fd, 0);

	unlink_sock(e);
	change(st, e, L_DEAD, nested);
	set_unlock(st, nested);
	return r;
}

static struct ep_entry *find(int epfd, int fd, struct sock *s)
{
	struct ep_set *st = set_of(epfd);
	struct ep_entry *e = st ? s->eps : 0;

	while (e && (e->set != set_idx(st) || e->fd != fd))
		e = e->next;
	return e;
}

static int ctl_ours(int epfd, int op, int fd, struct sock *s, const struct epoll_event *want)
{
	int r;

	if (op != EPOLL_CTL_DEL && !want)
		return -EFAULT;
	if (op != EPOLL_CTL_ADD && op != EPOLL_CTL_MOD && op != EPOLL_CTL_DEL)
		return PASS;
	if (kind_of(epfd) == FD_SOCK || kind_of(epfd) == FD_LISTENER)
		return -EINVAL;
	if (epfd < 0)
		return -EBADF;
	if (op != EPOLL_CTL_DEL && (want->events & EPOLLEXCLUSIVE) &&
	    (op == EPOLL_CTL_MOD || (want->events & ~EXCLUSIVE_OK)))
		return -EINVAL;

	tables(); /* not under the lock: after fork it makes all lists anew */
	u64 old = quiet();
	int sn = lk_lock(&s->eplk);
	struct ep_entry *e = find(epfd, fd, s);
	if (op == EPOLL_CTL_ADD) {
		r = add(epfd, fd, s, e, want);
		if (r == -EAGAIN) { /* closed and opened behind our back: the entry was the dead one's */
			del(epfd, e);
			r = add(epfd, fd, s, 0, want);
		}
	} else if (!e) {
		r = PASS;
	} else if (op == EPOLL_CTL_DEL) {
		r = del(epfd, e);
	} else {
		r = e->events & EPOLLEXCLUSIVE ? -EINVAL : 0;
		if (r == 0)
			mod(e, want);
	}
	lk_unlock(&s->eplk, sn);
	unquiet(old);
	return r;
}

int h_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	int kind = kind_of(fd), r = PASS;

	if (unlikely(kind == FD_HIDDEN || kind_of(epfd) == FD_HIDDEN))
		return fail(EBADF);
	struct sock *s = kind == FD_SOCK && (op == EPOLL_CTL_MOD || !borrowed()) ? sock_get(fd, op == EPOLL_CTL_ADD) : 0;
	if (s) {
		if (sock_use(s))
			r = ctl_ours(epfd, op, fd, s, ev);
		sock_put(s);
	}
	if (r == PASS)
		return ctl_kernel(epfd, op, fd, ev);
	return r < 0 ? fail(-r) : 0;
}

/* ---- what happens to the sockets ------------------------------------------------------------------------------------- */

void epoll_sock_closed(struct sock *s, int fd)
{
	(void)fd;
	struct ep_state *E = atomic_load(&S->ep);
	if (!E || !s->eps || atomic_load(&s->fds) > 1 || E->forked) /* adopt() finds out by itself */
		return;
	u64 old = quiet();
	int sn = lk_lock(&s->eplk);
	struct ep_entry *e;
	while ((e = s->eps)) {
		struct ep_set *st = &S->ep->t->set[e->set];
		int nested = lk_lock(&st->lk);
		s->eps = e->next;
		change(st, e, L_DEAD, nested);
		set_unlock(st, nested);
	}
	lk_unlock(&s->eplk, sn);
	unquiet(old);
}

void epoll_sock_plain(struct sock *s)
{
	if (!tables())
		return;
	struct ep_state *E = S->ep;
	u64 old = quiet();
	int sn = lk_lock(&s->eplk);
	struct ep_entry *e;
	while ((e = s->eps)) {
		struct ep_set *st = &E->t->set[e->set];
		struct epoll_event ev = {e->events & ~(u32)EPOLLEXCLUSIVE, {.u64 = e->data}};
		int nested = lk_lock(&st->lk), excl = (e->events & EPOLLEXCLUSIVE) != 0;
		s->eps = e->next;
		if (e->off)
			ev.events &= PRIVATE;
		/* What came over fork the parent hands over, with what it asks for by now, as long as it lives. */
		if (!e->old || (int)sys(SYS_getppid) != E->parent) {
			if (excl) { /* cannot be modified, to or from */
				ev.events = e->events;
				sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_DEL, e->fd, 0);
				sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_ADD, e->fd, &ev);
			} else {
				sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_MOD, e->fd, &ev);
			}
		}
		change(st, e, L_DEAD, nested);
		set_unlock(st, nested);
	}
	lk_unlock(&s->eplk, sn);
	unquiet(old);
}

/* Like the kernel we report EPOLLOUT edges only after a send met a full buffer: else each read of the peer rang. */
void epoll_sock_full(struct sock *s)
{
	struct ep_tables *t = tables();

	if (!t || !s->eps || !atomic_load_explicit(&S->ep->etout[sock_idx(s)], memory_order_relaxed))
		return;
	u64 old = quiet();
	int sn = lk_lock(&s->eplk);
	for (struct ep_entry *e = s->eps; e; e = e->next) {
		struct ep_set *st = &t->set[e->set];
		if (!(e->events & EPOLLET) || !(e->events & OUT_BITS) || e->off)
			continue;
		int nested = lk_lock(&st->lk);
		e->seen &= ~(u32)OUT_BITS;
		change(st, e, L_LIST, nested);
		if (!nested && wanted(st))
			probe(st, e);
		if (!nested)
			leave(st);
		set_unlock(st, nested);
	}
	lk_unlock(&s->eplk, sn);
	unquiet(old);
}

/* ---- fork ---------------------------------------------------------------------------------------------------------------- */

/* Most children never touch a set: the work waits for the first that does. */
void epoll_forked(void)
{
	struct ep_state *E = atomic_load(&S->ep);

	if (!E)
		return;
	E->forked = 1;
	E->parent = (int)sys(SYS_getppid);
	atomic_store(&E->lk.w, 0);
}

/* The kernel's set is one for both processes, entries are copies; another thread may have been in the middle of a
 * change. So all lists are made anew. There is no bell to arm: we look in slices. */
static void adopt(struct ep_state *E)
{
	struct ep_tables *t = atomic_load(&E->t);
	u64 old = quiet();
	int nested = lk_lock(&E->lk);

	if (!E->forked)
		goto out;
	for (u32 i = 1; t && i < E->nsets; i++) {
		struct ep_set *st = &t->set[i];
		atomic_store(&st->lk.w, 0);
		atomic_store(&st->late, 0);
		st->head = st->tail = st->nlist = st->slow = st->nent = st->sleepers = 0;
		for (int k = 0; k < TAGS; k++)
			if (st->by[k])
				st->by[k] = 0;
		if (!st->used)
			continue;
		st->foreign = 1;
		st->bell = -1;
	}
	u32 n = t ? atomic_load(&E->nents) : 0;
	for (u32 i = 1; i <= n; i++)
		if (t->ent[i].set) {
			t->ent[i].s->eps = 0;
			atomic_store(&t->ent[i].s->eplk.w, 0);
		}
	for (u32 i = 1; i <= n; i++) {
		struct ep_entry *e = &t->ent[i];
		if (!e->set)
			continue;
		if (!t->set[e->set].used || !e->s->b || e->s->gen != e->sgen || (atomic_load(&e->late) & L_DEAD)) {
			e->set = 0; /* one that was on its way: not worth finding out where to */
			continue;
		}
		atomic_store(&e->late, 0);
		e->listed = e->armed = 0;
		e->old = 1;
		e->next = e->s->eps;
		e->s->eps = e;
		link_in(&t->set[e->set], e);
		list_add(&t->set[e->set], e);
	}
	E->forked = 0;
out:
	lk_unlock(&E->lk, nested);
	unquiet(old);
}

/*
 * epoll for connections of ours (ARCHITECTURE "Waking"). The program's epoll fd stays the one object: our TCP fd is
 * registered there under its own number, asking for its end only, and beside it one bell. So dups, the last close and
 * everything about other fds remain the kernel's. What the program asked for is in an entry per (set, fd); a set lists
 * the entries that may be ready, all others are armed. So a wait costs what is ready.
 *
 * An entry that the program deletes is kept, dormant, and the kernel's registration with it: programs that delete and
 * add at every message then make no system call. Nobody can tell: EEXIST and ENOENT come from the entry, and the
 * kernel's edges for it end in sift(). It goes for good where a difference would show: with the fd's number, when the
 * socket becomes plain, when somebody looks at the set from outside, in a forked child.
 *
 * Locks: sock.eplk < set lock. A request (struct ep_req) changes as a whole, without the set lock, and what the change
 * means for the set's lists waits on `late` for whoever has that lock next. So epoll_ctl can be called in a signal
 * handler in the middle of epoll_ctl or epoll_wait on the same socket. What makes or ends entries blocks signals.
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
#include <sys/single_threaded.h>
#include <time.h>

#define SET_MAX 1024
#define ENT_BITS 17
#define ENT_MAX (1u << ENT_BITS)
#define TAGS 4096 /* bits of a bell */
#define INNER_MAX 4
#define SLICE_NS 20000000ll
#define ASKED_NS 200000000ll
#define MAX_EVENTS (INT_MAX / (int)sizeof(struct epoll_event))
#define TURN_CALLS 64	   /* the kernel's fds get their turn at least every so many rounds, */
#define TURN_CYCLES 100000 /* or when about so much time passed, or in every round while they have news */
#define HOT 16		   /* waits that spin after an event of ours was reported */
#define KEEP_MAX 64	   /* so many that were ready lately are looked at in each wait instead of being armed, */
#define KEEP_LOOKS 16	   /* until so many looks were in vain: arming and ringing cost both sides more */
#define DORMANT_MAX 8	   /* entries of one socket */

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

/* req.word */
#define R_ON 1u	   /* the program's registration exists; else the entry is dormant */
#define R_REG 2u   /* the kernel's exists */
#define R_OFF 4u   /* EPOLLONESHOT fired */
#define R_FRESH 8u /* report whatever holds */
#define R_LATE 16u /* on the set's `late` or about to be pushed there: not to be freed, nor pushed again; for what: */
#define R_NEW 32u  /*  link it in */
#define R_LIST 64u /*  look at it */
#define R_FULL 128u /* an EPOLLOUT edge is owed */
#define R_DEAD 256u /* link it out and free it; it holds a reference to its socket until then */
#define R_DUE (R_LATE | R_NEW | R_LIST | R_FULL | R_DEAD)
#define R_VERSION 512u /* counts in the bits above: each change shows */

/* What the program asked for, and how the entry stands. */
struct ep_req {
	u64 data;
	u32 events, word;
} __attribute__((aligned(16)));

struct ep_entry {
	struct ep_req req;	       /* req_get, req_swap */
	struct ep_entry *next; /* of the same socket; under its eplk */
	struct sock *s;
	u64 tag;	/* the data of its kernel registration: secret, generation, own index */
	u32 sgen, set;	/* generation of s; index of the set, 0 = free */
	int fd;
	u32 late_next;
	/* under the set lock */
	u64 prod;	   /* the rx ring's end when last looked at */
	u32 seen;	   /* EPOLLET: what held when last looked at */
	u32 ahead, behind; /* on the set's list; free entries: ahead */
	u32 bit;	   /* next entry with the same bell bit */
	u8 listed, armed, idle, old; /* idle: looks in vain since it was ready; old: from before fork */
};

struct ep_set {
	struct lk lk;
	u32 used, gen, fds; /* fds: numbers that name it */
	int epfd;	    /* one of them */
	int bell, evfd;	    /* -1 = none: slices */
	u32 head, tail, nlist, slow; /* slow: listed ones that are not ready but cannot be armed */
	u32 nent, hot, cpu, kept;
	_Atomic u32 sleepers;
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

/* The registration of a socket that was in a set before its connect. */
struct ep_early {
	u64 data;
	u32 events;
	int epfd;
	u32 forks; /* S->forks then: a child's set is its parent's, too */
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
	struct ep_early early[FD_MAX];
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

/* A request at one moment. */
static struct ep_req req_get(const struct ep_entry *e)
{
	const volatile struct ep_req *p = &e->req;
	struct ep_req r;

	do {
		r.word = p->word;
		atomic_signal_fence(memory_order_seq_cst); /* loads keep their order on this processor */
		r.data = p->data;
		r.events = p->events;
		atomic_signal_fence(memory_order_seq_cst);
	} while (unlikely(r.word != p->word));
	return r;
}

/* 1 = it was *was and is `now`, with the next version; else *was is what it is. */
static int req_swap(struct ep_entry *e, struct ep_req *was, struct ep_req now)
{
	u64 low = was->data, high = was->events | (u64)was->word << 32;
	u64 to = now.events | (u64)(now.word + R_VERSION) << 32;
	u8 done;

	__asm__ volatile("lock cmpxchg16b %1"
			 : "=@ccz"(done), "+m"(e->req), "+a"(low), "+d"(high)
			 : "b"(now.data), "c"(to)
			 : "memory");
	*was = (struct ep_req){low, (u32)high, (u32)(high >> 32)};
	return done;
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
	u32 word = (e->req.word & ~(R_VERSION - 1)) + R_VERSION;
	*e = (struct ep_entry){.req.word = word, .tag = (u64)E->secret << 32 | (u32)(gen + 1) << ENT_BITS | i};
	return e;
}

static void ent_free(struct ep_entry *e)
{
	struct ep_state *E = S->ep;
	u64 h = atomic_load(&E->free);

	e->set = 0;
	e->req.word = (e->req.word & ~(R_VERSION - 1)) + R_VERSION;
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
}

static int wanted(const struct ep_set *st);
static int probe(struct ep_set *st, struct ep_entry *e);
static void leave(struct ep_set *st);
static void bell_make(struct ep_set *st);

static void push(struct ep_set *st, struct ep_entry *e)
{
	u32 h = atomic_load(&st->late);

	do
		e->late_next = h;
	while (!atomic_compare_exchange_weak(&st->late, &h, IDX(e)));
}

/* Something to do for who has the set lock next. */
static void post(struct ep_set *st, struct ep_entry *e, u32 what)
{
	struct ep_req was = req_get(e), now;

	do {
		if (e->set != set_idx(st) || (!(what & (R_NEW | R_DEAD)) && !(was.word & R_ON)))
			return; /* a handler ended it a moment ago */
		now = was;
		now.word |= what | R_LATE;
	} while (!req_swap(e, &was, now));
	if (!(was.word & R_LATE))
		push(st, e);
}

/* Under the set lock: what was posted, in that order. *dead: what is to be freed without it. look: threads that sleep
 * have to hear of it. */
static void late_run(struct ep_set *st, struct ep_entry **dead, int look)
{
	u32 i = atomic_exchange(&st->late, 0), first = 0, some = 0;

	while (i) {
		u32 next = ENT(i)->late_next;
		ENT(i)->late_next = first;
		first = i;
		i = next;
	}
	while (first) {
		struct ep_entry *e = ENT(first);
		struct ep_req was = req_get(e), now;
		first = e->late_next;
		do {
			now = was;
			now.word &= ~(was.word & R_DEAD ? R_DUE | R_ON : R_DUE);
		} while (!req_swap(e, &was, now));
		if (was.word & R_NEW)
			link_in(st, e);
		if (was.word & R_DEAD) {
			link_out(st, e);
			e->late_next = *dead ? IDX(*dead) : 0;
			*dead = e;
			continue;
		}
		if (was.word & R_FULL)
			e->seen &= ~(u32)OUT_BITS;
		if (st->bell < 0 && st->used)
			bell_make(st);
		e->idle = 0;
		list_add(st, e);
		if (look && wanted(st))
			probe(st, e);
		some = 1;
	}
	if (look && some)
		leave(st);
}

static void bury(struct ep_entry *dead)
{
	while (dead) {
		struct ep_entry *e = dead;
		struct sock *s = e->s;
		dead = e->late_next ? ENT(e->late_next) : 0;
		ent_free(e);
		sock_unpin(s);
	}
}

static int set_try(struct ep_set *st)
{
	u32 none = 0;

	return atomic_compare_exchange_strong(&st->lk.w, &none, my_tid());
}

static void set_unlock(struct ep_set *st, int nested)
{
	struct ep_entry *dead = 0;

	while (!nested) {
		if (atomic_load(&st->late))
			late_run(st, &dead, 1);
		lk_unlock(&st->lk, 0);
		if (likely(!atomic_load(&st->late)) || !set_try(st))
			break;
	}
	bury(dead);
}

/* What was posted is done now; or, if somebody has the lock, when he lets it go. */
static void settle(struct ep_set *st)
{
	if (atomic_load(&st->late) && set_try(st))
		set_unlock(st, 0);
}

/* ---- bells ------------------------------------------------------------------------------------------------- */

static int wanted(const struct ep_set *st)
{
	return atomic_load_explicit(&st->sleepers, memory_order_relaxed) || st->lt || (atomic_load(&S->ep->fd[st->epfd]) & EARLY);
}

static void bell_make(struct ep_set *st)
{
	if (st->bell >= 0 || st->foreign)
		return;
	u64 old = quiet();
	int b = bell_get();
	struct epoll_event ev = {EPOLLIN | (st->lt ? 0 : (u32)EPOLLET), {.u64 = BELL_TAG}};
	long r = b < 0 ? b : sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_ADD, S->bell[b].fd, &ev);
	if (r == -EEXIST)
		r = sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_MOD, S->bell[b].fd, &ev);
	if (r == 0) {
		st->evfd = S->bell[b].fd;
		st->bell = b;
	} else if (b >= 0) {
		bell_put(b);
	}
	unquiet(old);
}

/* From now on the set shows outside what it holds: a dormant entry's edge would. Signals are blocked. */
static void bell_level(struct ep_set *st)
{
	struct epoll_event ev = {EPOLLIN, {.u64 = BELL_TAG}};

	if (st->lt)
		return;
	st->lt = 1;
	if (st->bell >= 0)
		sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_MOD, st->evfd, &ev);
	for (u32 k = 0; k < TAGS && !st->foreign; k++)
		for (u32 i = st->by[k]; i; i = ENT(i)->bit) {
			struct ep_req was = req_get(ENT(i)), now;
			do {
				now = was;
				now.word &= ~R_REG;
			} while ((was.word & (R_ON | R_REG | R_DEAD)) == R_REG && !req_swap(ENT(i), &was, now));
			if ((was.word & (R_ON | R_REG | R_DEAD)) == R_REG)
				sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_DEL, ENT(i)->fd, 0);
		}
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
	if (st->bell < 0 || likely(!wanted(st)))
		return;
	bell_sleeps(word(st));
	if (st->nlist > st->slow || atomic_load(&word(st)->summary))
		bell_wake(word(st), st->evfd);
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

static int active(const struct sock *s)
{
	return atomic_load_explicit(&s->b->state, memory_order_acquire) == S_ACTIVE;
}

static u64 prod_of(struct sock *s)
{
	return active(s) ? atomic_load_explicit(&s->rx->prod, memory_order_acquire) : 0;
}

/* As sock_events, as far as m is concerned. The line that tells the room is the peer's to write, at each of its reads:
 * who does not ask for EPOLLOUT does not fetch it. */
static u32 events_of(struct sock *s, u32 m)
{
	const u32 rare = BF_FIN | BF_GONE | BF_SHUT_RD | BF_SHUT_WR | BF_RESET | BF_BROKEN;
	struct block *b = s->b;

	if ((m & OUT_BITS) || !active(s) || (atomic_load_explicit(&b->flags, memory_order_acquire) & rare) ||
	    b->rcvlowat > 1 || atomic_load_explicit(&b->so_error, memory_order_relaxed))
		return sock_events(s);
	return lane_used(s) ? EPOLLIN | EPOLLRDNORM : 0;
}

/* The entry's word is as it was in *q, but for these bits: 1. */
static int mark(struct ep_entry *e, struct ep_req *q, u32 set, u32 clear)
{
	struct ep_req was = *q;

	q->word = (q->word | set) & ~clear;
	int done = req_swap(e, &was, *q);
	q->word += R_VERSION;
	return done;
}

#define ARMED 1
#define KEPT 2

/* The events to report now. Afterwards the entry is ARMED for the next ones, or KEPT if it may be, or *how = 0: slices.
 * take: count as reported. */
static u32 due(struct ep_set *st, struct ep_entry *e, struct ep_req *q, int take, int keep, int *how)
{
	u32 m = (q->events & ~PRIVATE) | EPOLLERR | EPOLLHUP;
	u32 in = m & IN_BITS ? EPOLLIN : 0, out = m & OUT_BITS ? EPOLLOUT : 0, all;
	struct sock *s = e->s;
	u64 prod = prod_of(s); /* before the events: what comes between shows in both, what comes later rings */

	keep = keep && in && active(s);
	*how = KEPT;
	if (!(q->events & EPOLLET)) {
		if ((all = events_of(s, m) & m))
			return all;
		e->prod = prod;
		if (keep && !out)
			return 0;
		int a = arm(st, e, in | out);
		*how = a > 0 ? ARMED : 0;
		return a == 1 ? events_of(s, m) & m : 0;
	}
	if (!keep) {
		*how = arm(st, e, in) > 0 ? ARMED : 0;
		prod = prod_of(s);
	}
	all = events_of(s, m);
	if (out && !(all & OUT_BITS)) {
		if (!arm(st, e, out))
			*how = 0;
		prod = prod_of(s);
		all = events_of(s, m);
	}
	u32 edge = all & ~e->seen;
	if (prod != e->prod)
		edge |= all & (EPOLLIN | EPOLLRDNORM);
	if ((q->word & R_FRESH) || (edge & END_BITS))
		edge = all; /* as the kernel: a change of state wakes for everything */
	if (take || !(edge & m)) {
		if (q->word & R_FRESH)
			mark(e, q, 0, R_FRESH); /* else it was changed this moment, and is to be looked at again */
		e->seen = all;
		e->prod = prod;
	}
	return edge & m ? all & m : 0;
}

/* Is what the entry stands for still ours to answer? Else *give = the socket that is plain by now. */
static int live(struct ep_entry *e, const struct ep_req *q, struct sock **give)
{
	struct block *b = e->s->b;

	if (!b || e->s->gen != e->sgen || (q->word & (R_ON | R_OFF | R_DEAD)) != R_ON)
		return 0;
	if (atomic_load_explicit(&b->state, memory_order_acquire) != S_TCP)
		return 1;
	*give = e->s;
	return 0;
}

/* Under the set lock. Level-triggered ones that are ready go to the end of the list: nobody starves behind maxevents. */
static int scan(struct ep_set *st, struct epoll_event *ev, int max, int keep, struct sock **give)
{
	u32 left = st->nlist;
	int n = 0;

	st->slow = st->kept = 0;
	while (left-- && n < max && st->head) {
		struct ep_entry *e = ENT(st->head);
		struct ep_req q = req_get(e);
		struct sock *plain = 0, *s = e->s;
		int how = ARMED;
		u32 r = 0;
		list_del(st, e);
		if (live(e, &q, &plain))
			r = due(st, e, &q, 1, keep && st->kept < KEEP_MAX && e->idle < KEEP_LOOKS, &how);
		if (r && (q.events & EPOLLONESHOT) && !mark(e, &q, R_OFF, 0)) {
			list_add(st, e); /* changed this moment */
			continue;
		}
		if (r) {
			ev[n].events = r;
			ev[n++].data.u64 = q.data;
			st->hot = HOT;
			st->cpu = s->rx ? atomic_load_explicit(&s->rx->wcpu, memory_order_relaxed) : 0;
			e->idle = 0;
			if (!(q.events & EPOLLONESHOT) && (!(q.events & EPOLLET) || how != ARMED))
				list_add(st, e);
		} else if (plain || !how) {
			list_add(st, e);
			st->slow++;
			if (plain)
				*give = plain;
		} else if (how == KEPT) {
			list_add(st, e);
			e->idle++;
		}
		st->kept += how == KEPT;
	}
	return n;
}

/* Without reporting: 1 = (perhaps) ready, stays listed. */
static int probe(struct ep_set *st, struct ep_entry *e)
{
	struct ep_req q = req_get(e);
	struct sock *plain = 0;
	int how = ARMED;

	if (live(e, &q, &plain) && due(st, e, &q, 0, 0, &how))
		return 1;
	if (plain || !how)
		st->slow += st->slow < st->nlist;
	else
		list_del(st, e);
	return 0;
}

/* For those who look from outside: the bell is readable if and only if an entry is ready. 1 = slices; 2 = ready. */
static int refresh(struct ep_set *st)
{
	struct ep_entry *dead = 0;
	int nested = lk_lock(&st->lk), r = nested;

	if (!nested && st->used) {
		int is_rung = st->bell >= 0 && !atomic_load(&word(st)->asleep);
		late_run(st, &dead, 0);
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
	bury(dead);
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
	int decided; /* wait_asked asks */
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
	atomic_fetch_sub(&st->sleepers, 1);
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

/* Is there anything to look at? */
static int news(void *p)
{
	struct ep_set *st = p;
	int yes = 0, b = __atomic_load_n(&st->bell, __ATOMIC_RELAXED);

	if (b < 0 || atomic_load_explicit(&S->bell[b].word->summary, memory_order_acquire) ||
	    atomic_load_explicit(&st->late, memory_order_relaxed))
		return 1;
	if (!st->kept || !set_try(st))
		return 0;
	for (u32 i = st->used ? st->head : 0; i && !yes; i = ENT(i)->ahead)
		yes = ENT(i)->s->b && prod_of(ENT(i)->s) != ENT(i)->prod;
	set_unlock(st, 0);
	return yes;
}

static int turn_due(struct ep_set *st)
{
	u64 t = __builtin_ia32_rdtsc();
	u32 turn = atomic_load_explicit(&st->turn, memory_order_relaxed);

	if (turn < TURN_CALLS && t - atomic_load_explicit(&st->turn_at, memory_order_relaxed) < TURN_CYCLES) {
		atomic_store_explicit(&st->turn, turn + 1, memory_order_relaxed);
		return 0;
	}
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
	atomic_fetch_add(&st->sleepers, 1);
	if (st->bell >= 0)
		bell_sleeps(word(st));
	if (!atomic_load(&st->late) && (st->bell < 0 || !atomic_load(&word(st)->summary)))
		return 1;
	awake_locked(st);
	return 0;
}

/* Under the set lock: what of ours is to be reported. */
static int collect(struct ep_set *st, const struct wait *w, int n, int keep, struct ep_entry **dead, struct sock **give)
{
	if (atomic_load(&st->late))
		late_run(st, dead, 0);
	drain(st);
	return n + scan(st, w->ev + n, w->max - n, keep, give);
}

/* got: events that a plain epoll_wait brought already. */
static int wait_ours(const struct wait *w, int got)
{
	i64 until = -1;
	int looked = got > 0; /* the kernel was asked, and nothing has been reported since */

	for (;;) {
		struct ep_set *st = set_of(w->epfd);
		struct ep_entry *dead = 0;
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
		if (likely(!nested))
			n = collect(st, w, n, !wanted(st), &dead, &give);
		slow |= st->slow || nested || (st->foreign && st->nent);
		u32 cpu = st->cpu;
		int spin = !n && !slow && st->bell >= 0 && w->ns && st->hot && st->hot--;
		if (!nested)
			leave(st);
		set_unlock(st, nested);
		bury(dead);
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
		if (spin && lane_spin(news, st, &st->credit, cpu))
			continue;
		if (unlikely(st->foreign && only_bell)) {
			/* The parent's bell, not ours to read: stays readable until the parent has waited. */
			struct timespec t = {0, left < 0 || left > SLICE_NS ? SLICE_NS : left};
			if ((S->real->ppoll)(0, 0, &t, w->mask) < 0)
				return -1;
			left = 0;
		}
		looked = 1;
		struct sleeper z = {st, st->gen};
		int ok = 0;
		dead = 0;
		give = 0;
		if (likely(!nested) && !(nested = lk_lock(&st->lk))) {
			if (st->used && st->kept)
				n = collect(st, w, 0, 0, &dead, &give);
			slow |= st->slow != 0;
			if (n)
				leave(st);
			else
				ok = st->used && go_to_sleep(st);
			set_unlock(st, 0);
			bury(dead);
			if (unlikely(give))
				give_up(give);
			if (n)
				return n;
			if (!ok)
				continue;
		}
		if (slow && (left < 0 || left > SLICE_NS))
			left = SLICE_NS;
		got = ok ? sleep_counted(w, &z, left) : kernel_wait(w, left);
		if (got < 0)
			return -1;
	}
}

static int wait_any(const struct wait *w);

/* A peer that agreed waits for us, and the set may not tell that we are connected: it is looked at now and then. */
static int wait_asked(const struct wait *w)
{
	i64 until = w->ns < 0 ? -1 : now_ns() + w->ns;
	struct wait one = *w;
	int n;

	do {
		i64 left = until < 0 ? ASKED_NS : until - now_ns();
		hook_look_all();
		if (!atomic_load(&S->asked))
			left = until < 0 ? -1 : left;
		else if (left > ASKED_NS)
			left = ASKED_NS;
		one.ns = until >= 0 && left < 0 ? 0 : left;
		one.decided = 1;
		n = wait_any(&one);
	} while (n == 0 && (until < 0 || now_ns() < until));
	return n;
}

static int wait_any(const struct wait *w)
{
	if (unlikely(atomic_load_explicit(&S->asked, memory_order_relaxed)) && w->ns && !w->decided)
		return wait_asked(w);
	struct ep_state *E = atomic_load(&S->ep);
	int kind = kind_of(w->epfd), n;

	if (unlikely(kind == FD_EPOLL)) {
		if (w->max <= 0 || w->max > MAX_EVENTS)
			return fail(EINVAL);
		if (wild(w->ev, (u64)w->max * sizeof *w->ev))
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

/* A set without anything of ours, and nobody who could put something into it meanwhile. */
static int kernels(int epfd)
{
	return kind_of(epfd) <= FD_PLAIN && !atomic_load_explicit(&S->asked, memory_order_relaxed) && (!atomic_load_explicit(&S->ep, memory_order_relaxed) || __libc_single_threaded);
}

int h_epoll_wait(int epfd, struct epoll_event *ev, int max, int ms)
{
	if (likely(kernels(epfd)))
		return S->real->epoll_wait(epfd, ev, max, ms);
	return wait_any(&(struct wait){epfd, max, ev, ms < 0 ? -1 : ms * 1000000ll, 0, 0, 0});
}

int h_epoll_pwait(int epfd, struct epoll_event *ev, int max, int ms, const sigset_t *mask)
{
	if (likely(kernels(epfd)))
		return S->real->epoll_pwait(epfd, ev, max, ms, mask);
	return wait_any(&(struct wait){epfd, max, ev, ms < 0 ? -1 : ms * 1000000ll, mask, 0, 0});
}

int h_epoll_pwait2(int epfd, struct epoll_event *ev, int max, const struct timespec *t, const sigset_t *mask)
{
	struct wait w = {epfd, max, ev, -1, mask, 1, 0};

	if (likely(kernels(epfd)))
		return S->real->epoll_pwait2(epfd, ev, max, t, mask);
	if (t && wild(t, sizeof *t))
		return fail(EFAULT);
	if (t && (t->tv_sec < 0 || t->tv_nsec < 0 || t->tv_nsec > 999999999))
		return fail(EINVAL);
	if (t && t->tv_sec < 9000000000ll)
		w.ns = t->tv_sec * 1000000000ll + t->tv_nsec;
	return wait_any(&w);
}

/* ---- sets come and go ---------------------------------------------------------------------------------------------- */

static void kind_set(int fd, u8 kind)
{
	fd_seen(fd);
	atomic_store(&S->fd_kind[fd], kind);
}

/* Under E->lk. */
static struct ep_set *set_make(struct ep_state *E, int epfd)
{
	struct ep_set *st = set_of(epfd);
	struct ep_entry *dead = 0;

	if (st || kind_of(epfd) > FD_PLAIN || (unsigned)epfd >= FD_MAX || !tables_make(E))
		return st;
	for (u32 i = 1; i < SET_MAX; i++) {
		st = &E->t->set[i];
		if (st->used || !set_try(st))
			continue;
		if (atomic_load(&st->late))
			late_run(st, &dead, 0);
		if (st->nent) { /* of a set closed by a handler: what it could not find ends with its socket */
			lk_unlock(&st->lk, 0);
			continue;
		}
		if (st->bell > 0) /* see set_free; 0: a new one */
			bell_put(st->bell);
		if (E->nsets <= i)
			E->nsets = i + 1;
		st->gen++;
		st->fds = 1;
		st->epfd = epfd;
		st->bell = st->evfd = -1;
		st->head = st->tail = st->nlist = st->slow = st->nent = 0;
		st->hot = st->cpu = st->kept = st->foreign = 0;
		atomic_store(&st->sleepers, 0);
		atomic_store(&st->credit, 0);
		for (int k = 0; k < INNER_MAX; k++)
			st->inner[k] = 0;
		st->lt = 0;
		st->used = 1;
		atomic_store(&S->fd_sock[epfd], i);
		kind_set(epfd, FD_EPOLL);
		/* after the kind: epoll_polled and wait_any note what they do, then look at the kind once more */
		st->lt = (atomic_load(&E->fd[epfd]) & WATCHED) != 0;
		lk_unlock(&st->lk, 0);
		bury(dead);
		return st;
	}
	bury(dead);
	return 0;
}

/* nested: we interrupted somebody who uses it, bell and all, for a moment yet; set_make waits for him. */
static void set_free(struct ep_set *st, int epfd, int nested)
{
	if (st->bell >= 0) {
		sys(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, st->evfd, 0);
		if (!nested) {
			bell_put(st->bell);
			st->bell = -1;
		}
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

/* Under the socket's eplk, signals blocked: no call finds the entry any more. */
static void end(struct ep_set *st, struct ep_entry *e)
{
	for (struct ep_entry **p = &e->s->eps; *p; p = &(*p)->next)
		if (*p == e) {
			*p = e->next;
			break;
		}
	post(st, e, R_DEAD);
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

	if (last) { /* what is new gets its place in by[] */
		int n = lk_lock(&st->lk);
		set_unlock(st, n);
	}
	/* Sockets are locked before sets: so one entry at a time, found, locked and looked at again. */
	for (u32 bit = 0, tries = 0; last && bit < TAGS && tries < ENT_MAX; tries++) {
		u32 i = st->by[bit];
		while (i && (req_get(ENT(i)).word & R_DEAD))
			i = ENT(i)->bit;
		if (!i) {
			bit++;
			tries = 0;
			continue;
		}
		struct ep_entry *e = ENT(i);
		struct sock *s = e->s;
		u64 tag = e->tag;
		int sn = lk_lock(&s->eplk), n = lk_lock(&st->lk);
		int lives = e->tag == tag && e->set == idx && e->s == s && !(req_get(e).word & R_DEAD);
		if (lives) {
			sock_pin(s); /* the entry may have been the last to need it, and we have its lock */
			end(st, e);
		}
		set_unlock(st, n);
		lk_unlock(&s->eplk, sn);
		if (lives)
			sock_unpin(s);
	}
	if (last) {
		int n = lk_lock(&st->lk);
		set_free(st, epfd, n);
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
	if (!in && !is_epoll(fd))
		return;
	u64 old = quiet();
	int nested = lk_lock(&E->lk);
	in = set_make(E, fd); /* what it gets later shows outside, too */
	if (in && (out = set_make(E, epfd)))
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

static void et_out(struct sock *s, u32 events)
{
	if ((events & EPOLLET) && (events & OUT_BITS) && !atomic_load(&S->ep->etout[sock_idx(s)]))
		atomic_store(&S->ep->etout[sock_idx(s)], 1);
}

static int is_plain(struct sock *s)
{
	u32 st = atomic_load(&s->b->state);

	return st == S_FLUSH || st == S_TCP;
}

#define PASS 1
#define SLOW 2

/* Under s->eplk. *len: how many come before it. A handler may end entries while we look: then once more. */
static struct ep_entry *find(const struct ep_set *st, int fd, struct sock *s, u32 *len)
{
	for (int tries = 0; tries < 100; tries++) {
		struct ep_entry *e = __atomic_load_n(&s->eps, __ATOMIC_ACQUIRE);
		*len = 0;
		while (e && e->s == s && (e->set != set_idx(st) || e->fd != fd)) {
			e = __atomic_load_n(&e->next, __ATOMIC_ACQUIRE);
			++*len;
		}
		if (!e || e->s == s)
			return e;
	}
	return 0;
}

/*
 * Under s->eplk. Changes a request that is there; no system call, so no signal need be blocked and no vfork child
 * stopped: its set is its parent's, in the kernel as here. 0, -errno, or SLOW = the kernel has to be asked.
 */
static int ctl_fast(struct ep_set *st, int op, int fd, struct sock *s, const struct epoll_event *want)
{
	for (int tries = 0; tries < 100; tries++) {
		u32 len;
		struct ep_entry *e = find(st, fd, s, &len);
		if (!e)
			return SLOW;
		struct ep_req was = req_get(e), now = was;
		if (e->s != s || e->set != set_idx(st) || e->fd != fd || (was.word & R_DEAD))
			continue;
		if (op == EPOLL_CTL_ADD ? (was.word & R_ON) || !(was.word & R_REG) || st->foreign :
		    op == EPOLL_CTL_DEL && (was.word & R_ON) && (st->lt || st->foreign || len >= DORMANT_MAX))
			return SLOW;
		if (op != EPOLL_CTL_ADD && !(was.word & R_ON))
			return -ENOENT;
		if (op == EPOLL_CTL_MOD && (was.events & EPOLLEXCLUSIVE))
			return -EINVAL;
		if (op == EPOLL_CTL_DEL)
			now.word &= ~R_ON;
		else
			now = (struct ep_req){want->data.u64, want->events,
					   (was.word & ~R_OFF) | R_ON | R_FRESH | R_LIST | R_LATE};
		if (!req_swap(e, &was, now))
			continue;
		if (op == EPOLL_CTL_DEL)
			return 0;
		et_out(s, want->events);
		if (!(was.word & R_LATE))
			push(st, e);
		if (unlikely(wanted(st) || !st->used))
			settle(st);
		return 0;
	}
	return SLOW;
}

/* A dormant entry whose registration the kernel may have lost, or may have from another process that shares the set. */
static int revive(struct ep_set *st, int epfd, struct ep_entry *e, const struct epoll_event *want)
{
	struct epoll_event k = {EPOLLRDHUP | EPOLLET, {.u64 = e->tag}};
	int nested = lk_lock(&st->lk);
	struct ep_req was = req_get(e), now;
	long r = sys(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, e->fd, &k);

	if (r == -EEXIST && (was.word & R_REG))
		r = 0;
	if (r == 0) {
		do
			now = (struct ep_req){want->data.u64, want->events, (was.word & ~R_OFF) | R_ON | R_REG | R_FRESH};
		while (!req_swap(e, &was, now));
		et_out(e->s, want->events);
		post(st, e, R_LIST);
	}
	set_unlock(st, nested);
	return (int)r;
}

/* op: EPOLL_CTL_ADD; or EPOLL_CTL_MOD, for what the kernel has for the program itself so far. */
static int add(int epfd, int op, int fd, struct sock *s, const struct epoll_event *want)
{
	struct ep_state *E = state_make();

	if (is_plain(s))
		return PASS;
	if (!E)
		return -ENOMEM;
	int en = lk_lock(&E->lk);
	struct ep_set *st = set_make(E, epfd);
	struct ep_entry *e = st && st->fds ? ent_new(E) : 0;
	long r = st && !st->fds ? -EBADF : -ENOMEM;
	int nested = st ? lk_lock(&st->lk) : 0;
	if (e) {
		if (!s->eps)
			atomic_store(&E->etout[sock_idx(s)], 0);
		e->s = s;
		e->sgen = s->gen;
		e->set = set_idx(st);
		e->fd = fd;
		struct epoll_event k = {EPOLLRDHUP | EPOLLET, {.u64 = e->tag}};
		r = sys(SYS_epoll_ctl, epfd, op, fd, &k);
		if (r == 0) {
			sock_pin(s); /* until it is buried */
			e->req = (struct ep_req){want->data.u64, want->events, e->req.word | R_ON | R_REG | R_FRESH};
			e->next = s->eps;
			__atomic_store_n(&s->eps, e, __ATOMIC_RELEASE);
			et_out(s, want->events);
			post(st, e, R_NEW | R_LIST);
		} else {
			ent_free(e);
		}
	}
	struct ep_entry *dead = 0;
	if (st && !nested)
		late_run(st, &dead, 1);
	if (r < 0 && st && !nested && !st->nent && !st->inner[0] && st->fds == 1) { /* no set after all, or nothing of ours in it */
		set_free(st, epfd, 0);
		kind_set(epfd, FD_PLAIN);
	}
	if (st)
		set_unlock(st, nested);
	lk_unlock(&E->lk, en);
	bury(dead);
	return (int)r;
}

static int del(struct ep_set *st, int epfd, struct ep_entry *e)
{
	int r = (int)sys(SYS_epoll_ctl, epfd, EPOLL_CTL_DEL, e->fd, 0);

	end(st, e);
	settle(st);
	return r;
}

/* Under s->eplk, signals blocked. 0, -errno, or PASS = the kernel's alone. */
static int ctl_slow(int epfd, int op, int fd, struct sock *s, const struct epoll_event *want)
{
	struct ep_set *st = set_of(epfd);
	u32 len;
	int r = st ? ctl_fast(st, op, fd, s, want) : SLOW;

	if (r != SLOW)
		return r;
	struct ep_entry *e = st ? find(st, fd, s, &len) : 0;
	if (op == EPOLL_CTL_DEL && e)
		return del(st, epfd, e);
	if (op != EPOLL_CTL_ADD) /* still under the lock: what another thread adds a moment later is not meant */
		return (int)sys(SYS_epoll_ctl, epfd, op, fd, want);
	if (!e)
		return add(epfd, EPOLL_CTL_ADD, fd, s, want);
	if (!(req_get(e).word & R_ON))
		return revive(st, epfd, e, want);
	/* By what we know it is EEXIST; the kernel knows best: closed and opened behind our back, the entry was the dead one's. */
	struct epoll_event k = {EPOLLRDHUP | EPOLLET, {.u64 = e->tag}};
	r = (int)sys(SYS_epoll_ctl, epfd, EPOLL_CTL_ADD, fd, &k);
	if (r < 0)
		return r;
	del(st, epfd, e);
	return add(epfd, EPOLL_CTL_ADD, fd, s, want);
}

/*
 * A socket that may be connected later: nginx registers those to its upstreams beforehand, boost.asio all. Written down is
 * one registration; with what else there may be (several sets, other names of the set) the socket will be plain.
 * 0, -errno, or PASS = connect has taken over what was written down.
 */
static int early_locked(int epfd, int op, int fd, struct epoll_event *ev)
{
	_Atomic u8 *f = &S->fd_early[fd];
	struct ep_state *E = state_make();
	struct ep_early *known = E ? &E->early[fd] : 0;
	u8 was = atomic_fetch_or(f, EARLY_EPOLL); /* connect looks at this without the lock */

	if (!(was & EARLY_TCP)) {
		atomic_store(f, 0);
		return PASS;
	}
	int first = op == EPOLL_CTL_ADD && !(was & EARLY_EPOLL);
	int r = (int)sys(SYS_epoll_ctl, epfd, op, fd, ev);
	if (r < 0) {
		if (!(was & EARLY_EPOLL))
			atomic_fetch_and(f, (u8)~EARLY_EPOLL);
		return r;
	}
	int same = known && (was & (EARLY_KNOWN | EARLY_UNSURE)) == EARLY_KNOWN && known->epfd == epfd;
	if (op == EPOLL_CTL_DEL) {
		if (same)
			atomic_fetch_and(f, (u8)~(EARLY_EPOLL | EARLY_KNOWN));
	} else if (known && (first || same)) {
		*known = (struct ep_early){ev->data.u64, ev->events, epfd, atomic_load(&S->forks)};
		atomic_fetch_or(f, EARLY_KNOWN);
	} else {
		atomic_fetch_or(f, EARLY_UNSURE);
	}
	return r;
}

static int ctl_early(int epfd, int op, int fd, struct epoll_event *ev)
{
	u8 was = atomic_load(&S->fd_early[fd]);

	if (!(was & EARLY_TCP) || borrowed()) { /* not of our socket(), or no socket at all */
		if (op == EPOLL_CTL_ADD && !(was & EARLY_UNSURE) && kind_of(fd) == FD_UNKNOWN)
			atomic_fetch_or(&S->fd_early[fd], EARLY_EPOLL | EARLY_UNSURE);
		return PASS;
	}
	if (op != EPOLL_CTL_DEL && !ev)
		return PASS;
	u64 old = quiet();
	int nested = lk_lock(&S->early_lk);
	int r = early_locked(epfd, op, fd, ev);
	lk_unlock(&S->early_lk, nested);
	unquiet(old);
	return r;
}

static int bad_ctl(int epfd, int op, const struct epoll_event *want)
{
	if (op != EPOLL_CTL_DEL && wild(want, sizeof *want))
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
	return 0;
}

static int ctl_ours(int epfd, int op, int fd, struct sock *s, const struct epoll_event *want)
{
	int r = bad_ctl(epfd, op, want);

	if (r)
		return r;
	struct ep_set *st = s->eps ? set_of(epfd) : 0;
	if (st) {
		if (!sock_use(s))
			return PASS;
		int sn = lk_lock(&s->eplk);
		r = ctl_fast(st, op, fd, s, want);
		lk_unlock(&s->eplk, sn);
		if (likely(r != SLOW))
			return r;
	}
	if (borrowed() || (op == EPOLL_CTL_DEL && !s->eps && atomic_load(&s->b->state) == S_ACCEPTED))
		return PASS; /* nothing is registered: this is no use of it, and it may be meant for another process */
	if (op == EPOLL_CTL_ADD) { /* is it still the socket that we know? */
		struct sock *now = sock_get(fd, 1);
		if (now)
			sock_put(now);
		if (now != s)
			return PASS;
	}
	if (!sock_use(s))
		return PASS;
	if (atomic_load(&S->fd_early[fd]) && (r = ctl_early(epfd, op, fd, (struct epoll_event *)want)) != PASS)
		return r; /* connect is about to take over what it finds */
	tables(); /* not under the lock: after fork it makes all lists anew */
	u64 old = quiet();
	int sn = lk_lock(&s->eplk);
	r = ctl_slow(epfd, op, fd, s, want);
	lk_unlock(&s->eplk, sn);
	unquiet(old);
	return r;
}

int epoll_early(int fd)
{
	u8 f = (unsigned)fd < FD_MAX ? atomic_load(&S->fd_early[fd]) : 0;

	if (!(f & EARLY_EPOLL))
		return 0;
	/* Has it fired already? Only the kernel knows. */
	return (f & (EARLY_KNOWN | EARLY_UNSURE)) == EARLY_KNOWN && S->ep->early[fd].forks == atomic_load(&S->forks) &&
			       !(S->ep->early[fd].events & (EPOLLONESHOT | EPOLLEXCLUSIVE)) ? 1 : -1;
}

int epoll_take(struct sock *s, int fd)
{
	if (!tables() && !S->ep)
		return -ENOENT;
	struct ep_early known = S->ep->early[fd];
	struct epoll_event want = {known.events, {.u64 = known.data}};
	u64 old = quiet();
	int sn = lk_lock(&s->eplk);
	int r = add(known.epfd, EPOLL_CTL_MOD, fd, s, &want);
	lk_unlock(&s->eplk, sn);
	unquiet(old);
	return r == PASS ? -EAGAIN : r;
}

int h_epoll_ctl(int epfd, int op, int fd, struct epoll_event *ev)
{
	int kind = kind_of(fd), r = PASS;

	if (unlikely(kind == FD_HIDDEN || kind_of(epfd) == FD_HIDDEN))
		return fail(EBADF);
	struct sock *s = kind == FD_SOCK || is_undecided(kind) ? sock_get(fd, 0) : 0;
	if (s) {
		r = ctl_ours(epfd, op, fd, s, ev);
		sock_put(s);
	}
	if (r == PASS && (kind == FD_UNKNOWN || is_undecided(kind_of(fd))) && (unsigned)fd < FD_MAX) {
		r = ctl_early(epfd, op, fd, ev);
		if (r == PASS && unlikely(kind_of(fd) == FD_SOCK))
			return h_epoll_ctl(epfd, op, fd, ev);
	}
	if (r == PASS)
		return ctl_kernel(epfd, op, fd, ev);
	return r < 0 ? fail(-r) : 0;
}

/* ---- what happens to the sockets ------------------------------------------------------------------------------------- */

void epoll_number_closed(struct sock *s, int fd, int all)
{
	struct ep_state *E = atomic_load(&S->ep);

	if (!s->eps || E->forked)
		return;
	u64 old = quiet();
	int sn = lk_lock(&s->eplk);
	for (struct ep_entry *e = s->eps, *next; e; e = next) {
		struct ep_set *st = &E->t->set[e->set];
		u32 word = req_get(e).word;
		next = e->next;
		if (e->fd != fd || ((word & R_ON) && !all))
			continue;
		if ((word & R_REG) && !st->foreign && st->used)
			sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_DEL, fd, 0);
		end(st, e);
		settle(st);
	}
	lk_unlock(&s->eplk, sn);
	unquiet(old);
}

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
		struct ep_set *st = &E->t->set[e->set];
		end(st, e);
		settle(st);
	}
	lk_unlock(&s->eplk, sn);
	unquiet(old);
}

/* The kernel's registration becomes what the program's is. Closed meanwhile, the number may be another file's by now. */
static void hand_over(const struct ep_set *st, const struct ep_entry *e, struct ep_req q)
{
	struct epoll_event ev = {q.events, {.u64 = q.data}};

	if (!st->used || kind_of(e->fd) != FD_SOCK || atomic_load(&S->fd_sock[e->fd]) != sock_idx(e->s))
		return;
	if (!(q.word & R_ON)) {
		if (q.word & R_REG)
			sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_DEL, e->fd, 0);
		return;
	}
	if (q.word & R_OFF)
		ev.events &= PRIVATE;
	if (!(q.events & EPOLLEXCLUSIVE)) {
		if (sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_MOD, e->fd, &ev) == -ENOENT) /* a process that shares it ended it */
			sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_ADD, e->fd, &ev);
		return;
	}
	/* cannot be modified, to or from */
	sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_DEL, e->fd, 0);
	sys(SYS_epoll_ctl, st->epfd, EPOLL_CTL_ADD, e->fd, &ev);
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
		int nested = lk_lock(&st->lk);
		/* What came over fork the parent hands over, with what it asks for by now, as long as it lives. */
		if (!e->old || (int)sys(SYS_getppid) != E->parent)
			hand_over(st, e, req_get(e));
		end(st, e);
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
	int sn = lk_lock(&s->eplk), again = 100;
	for (struct ep_entry *e = s->eps; e && again;) {
		struct ep_set *st = &t->set[e->set];
		struct ep_req q = req_get(e);
		if (e->s != s) { /* a handler ended one */
			e = --again ? s->eps : 0;
			continue;
		}
		if ((q.events & EPOLLET) && (q.events & OUT_BITS) && (q.word & (R_ON | R_OFF)) == R_ON) {
			post(st, e, R_FULL);
			if (wanted(st))
				settle(st);
		}
		e = __atomic_load_n(&e->next, __ATOMIC_ACQUIRE);
	}
	lk_unlock(&s->eplk, sn);
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
		st->head = st->tail = st->nlist = st->slow = st->nent = st->kept = 0;
		atomic_store(&st->sleepers, 0);
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
		u32 word = e->req.word;
		if (!t->set[e->set].used || !e->s->b || e->s->gen != e->sgen || (word & R_DEAD) || !(word & (R_ON | R_REG))) {
			e->set = 0; /* one that was on its way: not worth finding out where to */
			continue;
		}
		e->req.word = word & ~R_DUE;
		sock_pin(e->s);
		e->listed = e->armed = e->idle = 0;
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

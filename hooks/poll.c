/*
 * poll and select for connections of ours. What is ours is looked at here, the rest is asked of the kernel; both
 * sleep in one ppoll, with one bell for all that is ours and its TCP fds beside it for the peer's end. select is
 * turned into poll. A call without anything of ours goes to libc after one look at the numbers.
 */
#include "../preload/real.h"
#include "shim.h"
#include "sys.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SLICE_NS 20000000ll
#define ON_STACK 48 /* fds looked at without mapping memory */
#define SPIN_ON 4   /* that many of ours are spun for */

#define IN_BITS (POLLIN | POLLRDNORM | POLLRDBAND | POLLPRI | POLLRDHUP)
#define OUT_BITS (POLLOUT | POLLWRNORM | POLLWRBAND)
/* What makes select's three sets true, as in Linux. */
#define SEL_IN (POLLIN | POLLRDNORM | POLLRDBAND | POLLHUP | POLLERR)
#define SEL_OUT (POLLOUT | POLLWRNORM | POLLWRBAND | POLLERR)
#define SEL_EX POLLPRI

struct mine {
	struct sock *s;
	u32 at;	   /* place in u and k */
	short got; /* what holds */
	u8 quiet;  /* its TCP fd has said all: do not ask again */
};

struct look {
	struct pollfd *u; /* what is asked; the program's own, or made from its sets */
	struct pollfd *k; /* what the kernel is asked: u without ours, and the bell behind it */
	struct mine *own;
	u32 n, nown, nkern, nsets; /* nsets: of nkern, epoll sets of ours */
	u32 asked;		   /* of nkern, what may still become ours */
	int sel, bell, slow;
};

static int fail(int e)
{
	errno = e;
	return -1;
}

static int asked(const struct look *l, short events)
{
	if (!l->sel)
		return (u16)events | POLLERR | POLLHUP | POLLNVAL;
	return (events & POLLIN ? SEL_IN : 0) | (events & POLLOUT ? SEL_OUT : 0) | (events & POLLPRI ? SEL_EX : 0) | POLLNVAL;
}

static u32 state_of(const struct sock *s)
{
	return atomic_load_explicit(&s->b->state, memory_order_acquire);
}

static int not_kernels(int kind)
{
	return kind == FD_SOCK || kind == FD_EPOLL || kind == FD_HIDDEN || kind == FD_ASKED;
}

/* Where nothing ever was ours, the program's memory is the kernel's business. */
static int none_yet(void)
{
	return likely(!atomic_load_explicit(&S->fd_top, memory_order_relaxed) && !atomic_load_explicit(&S->ep, memory_order_relaxed));
}

/* Is there anything that the kernel alone cannot answer? */
static int any_ours(const struct pollfd *u, u64 n, int sleeps)
{
	if (none_yet() || n > FD_MAX || wild(u, n * sizeof *u))
		return 0;
	int ours = 0, sets = sleeps && atomic_load_explicit(&S->ep, memory_order_relaxed) != 0;

	for (u64 i = 0; i < n; i++) {
		int kind = kind_of(u[i].fd);
		ours |= not_kernels(kind);
		/* A set that gets its first socket of ours while we sleep has to know of us. */
		if (unlikely(sets) && kind <= FD_PLAIN && u[i].fd >= 0)
			epoll_polled(u[i].fd);
	}
	return ours;
}

/* ---- one look ------------------------------------------------------------------------------------------------- */

static void begin(struct look *l)
{
	for (u32 i = 0; i < l->n; i++) {
		int fd = l->u[i].fd, kind = kind_of(fd);
		struct sock *s = kind == FD_SOCK || is_undecided(kind) ? sock_get(fd, 0) : 0;
		l->k[i] = l->u[i];
		if (s && sock_use(s)) {
			l->own[l->nown++] = (struct mine){.s = s, .at = i};
			l->k[i].fd = -1;
			continue;
		}
		if (s)
			sock_put(s);
		if (kind == FD_HIDDEN)
			l->k[i].fd = INT_MAX; /* what is not there */
		l->nsets += kind == FD_EPOLL;
		l->asked += is_undecided(kind) && is_undecided(kind_of(fd));
		l->nkern += fd >= 0;
	}
}

/* Connected meanwhile. */
static void look_asked(struct look *l)
{
	l->asked = 0;
	for (u32 i = 0; i < l->n; i++) {
		if (l->k[i].fd < 0 || kind_of(l->u[i].fd) < FD_SOCK)
			continue;
		int kind = kind_of(l->u[i].fd);
		struct sock *s = kind == FD_SOCK || is_undecided(kind) ? sock_get(l->u[i].fd, 0) : 0;
		l->asked += is_undecided(kind_of(l->u[i].fd));
		if (s && sock_use(s)) {
			l->own[l->nown++] = (struct mine){.s = s, .at = i};
			l->k[i].fd = -1;
			l->nkern--;
		} else if (s) {
			sock_put(s);
		}
	}
}

static void end(struct look *l)
{
	for (u32 i = 0; i < l->nown; i++)
		if (l->own[i].s)
			sock_put(l->own[i].s);
	if (l->bell >= 0) {
		atomic_store(&S->bell[l->bell].word->asleep, 0);
		bell_put(l->bell);
	}
}

static int look_own(struct look *l)
{
	int ready = 0;

	for (u32 i = 0; i < l->nown; i++) {
		struct mine *m = &l->own[i];
		if (!m->s)
			continue;
		if (unlikely(state_of(m->s) == S_TCP) && !sock_use(m->s)) { /* plain by now: the kernel's */
			sock_put(m->s);
			m->s = 0;
			m->got = 0;
			l->k[m->at].fd = l->u[m->at].fd;
			l->nkern++;
			continue;
		}
		m->got = (short)(sock_events(m->s) & (u32)asked(l, l->u[m->at].events));
		ready += m->got != 0;
	}
	return ready;
}

/* How many are ready: ours and the kernel's; -errno. */
static int look_all(struct look *l)
{
	if (unlikely(l->asked))
		look_asked(l);
	int ready = look_own(l);
	u32 sets = 0;

	l->slow = l->asked != 0;
	for (u32 i = 0; i < l->n; i++)
		l->k[i].revents = 0;
	if (!l->nkern)
		return ready;
	for (u32 i = 0; l->nsets && i < l->n; i++)
		if (kind_of(l->u[i].fd) == FD_EPOLL) {
			int r = epoll_polled(l->u[i].fd);
			l->slow |= r & 1;
			sets |= (u32)r & 2;
		}
	/* After their bells are in order: what a set holds of ours shows as readable. */
	long r = sys(SYS_poll, l->k, l->n, 0);
	if (r < 0)
		return r == -EINTR ? ready : (int)r;
	for (u32 i = 0; (r || sets) && i < l->n; i++) {
		struct pollfd *k = &l->k[i];
		if (sets && k->fd >= 0 && !k->revents && (k->events & (POLLIN | POLLRDNORM)) &&
		    kind_of(k->fd) == FD_EPOLL && (epoll_polled(k->fd) & 2))
			k->revents = k->events & (POLLIN | POLLRDNORM);
		if (l->sel && (k->revents & POLLNVAL))
			return -EBADF;
		ready += (k->revents & asked(l, k->events)) != 0;
	}
	return ready;
}

/* ---- sleeping --------------------------------------------------------------------------------------------------- */

static int spin_ready(void *p)
{
	return look_own(p) != 0;
}

static int spin(struct look *l)
{
	struct mine *m = &l->own[0];

	if (!l->nown || l->nown > SPIN_ON || l->slow || !m->s || state_of(m->s) != S_ACTIVE)
		return 0;
	int in = (l->u[m->at].events & IN_BITS) != 0;
	return lane_spin(spin_ready, l, in ? &m->s->spin_rx : &m->s->spin_tx,
			 atomic_load_explicit(in ? &m->s->rx->wcpu : &m->s->tx->rcpu, memory_order_relaxed));
}

static void drain(struct bell_word *w, int fd, int read)
{
	u64 n;

	if (read)
		sys(SYS_read, fd, &n, sizeof n);
	for (u64 sum = atomic_exchange(&w->summary, 0); sum; sum &= sum - 1)
		atomic_store(&w->bits[__builtin_ctzll(sum)], 0);
}

static void arm_all(struct look *l)
{
	if (l->bell < 0)
		l->bell = l->nown ? bell_get() : -1;
	for (u32 i = 0; i < l->nown; i++) {
		struct mine *m = &l->own[i];
		short ev = m->s ? l->u[m->at].events : 0;
		u32 want = (ev & IN_BITS ? POLLIN : 0) | (ev & OUT_BITS ? POLLOUT : 0);
		if (m->s && (l->bell < 0 || !sock_arm(m->s, bell_id(l->bell), want)))
			l->slow = 1;
	}
}

struct rest {
	struct look *l;
	void *map;
	size_t len;
};

static void cancelled(void *p)
{
	struct rest *c = p;

	end(c->l);
	if (c->map)
		sys(SYS_munmap, c->map, c->len);
}

/* Cancellation leaves by a jump into this frame: AddressSanitizer takes what it meets there for an error. */
static __attribute__((noinline, no_sanitize_address)) int sleep_in(struct rest *c, u32 n, const struct timespec *t, const sigset_t *mask)
{
	struct look *l = c->l;
	int r;

	pthread_cleanup_push(cancelled, c);
	r = (S->real->ppoll)(l->k, n, t, mask);
	pthread_cleanup_pop(0);
	return r;
}

/* 0 = look again, -errno. left < 0: for ever. */
static int sleep_once(struct rest *c, i64 left, const sigset_t *mask)
{
	struct look *l = c->l;
	int r = 0;

	arm_all(l);
	struct bell_word *w = l->bell >= 0 ? S->bell[l->bell].word : 0;
	if (w)
		bell_sleeps(w);
	l->k[l->n] = (struct pollfd){w ? S->bell[l->bell].fd : -1, POLLIN, 0};
	if (look_own(l) || (w && atomic_load(&w->summary)))
		goto out;

	for (u32 i = 0; i < l->n; i++)
		if (l->k[i].revents) { /* true, but not what select asks for: would wake us at once */
			l->k[i].fd = -1;
			l->slow = 1;
		}
	for (u32 i = 0; i < l->nown; i++) {
		struct mine *m = &l->own[i];
		struct pollfd *k = &l->k[m->at];
		if (!m->s)
			continue;
		k->fd = m->quiet ? -1 : l->u[m->at].fd;
		k->events = POLLRDHUP;
		if (state_of(m->s) == S_FLUSH) { /* bytes come from the kernel; room is in staging, in slices */
			k->events |= l->u[m->at].events & ~OUT_BITS;
			l->slow = 1;
		} else if (atomic_load(&m->s->b->flags) & BF_FIN) {
			k->fd = -1;
		} else if (m->quiet) {
			l->slow = 1;
		}
	}
	if (l->slow && (left < 0 || left > SLICE_NS))
		left = SLICE_NS;
	struct timespec t = {left / 1000000000, left % 1000000000};
	r = sleep_in(c, l->n + 1, left < 0 ? 0 : &t, mask);
	if (r < 0 && errno == EINVAL) { /* one more than RLIMIT_NOFILE says: without the bell */
		t = (struct timespec){0, left < 0 || left > SLICE_NS ? SLICE_NS : left};
		r = sleep_in(c, l->n, &t, mask);
	}
	if (r < 0)
		r = look_own(l) ? 0 : -errno; /* events win over EINTR */
	for (u32 i = 0; r > 0 && i < l->nown; i++) {
		struct mine *m = &l->own[i];
		short got = m->s ? l->k[m->at].revents : 0;
		if (got & (POLLRDHUP | POLLHUP | POLLERR)) {
			sock_tcp_event(m->s, (u32)got);
			m->quiet = 1;
		} else if (got & POLLNVAL) {
			m->quiet = 1; /* closed by another thread: the connection still answers */
		}
	}
	for (u32 i = 0; i < l->n; i++)
		l->k[i] = (struct pollfd){kind_of(l->u[i].fd) == FD_HIDDEN ? INT_MAX : l->u[i].fd, l->u[i].events, 0};
	for (u32 i = 0; i < l->nown; i++)
		if (l->own[i].s)
			l->k[l->own[i].at].fd = -1;
out:
	if (w) {
		atomic_store(&w->asleep, 0);
		drain(w, l->k[l->n].fd, l->k[l->n].revents);
	}
	return r < 0 ? r : 0;
}

/* Number of ready ones, u's revents set; -errno. ns < 0: for ever. */
static int run(struct look *l, void *map, size_t len, i64 ns, const sigset_t *mask)
{
	struct rest c = {l, map, len};
	i64 until = -1, left = ns;
	int r;

	pthread_testcancel();
	begin(l);
	while ((r = look_all(l)) == 0 && ns) {
		if (ns > 0) {
			i64 t = now_ns();
			if (until < 0)
				until = t + ns;
			if ((left = until - t) <= 0)
				break;
		}
		if (spin(l))
			continue;
		if ((r = sleep_once(&c, left, mask)) < 0)
			break;
	}
	if (r >= 0) {
		for (u32 i = 0; i < l->n; i++)
			l->u[i].revents = (short)(l->k[i].revents & asked(l, l->u[i].events));
		for (u32 i = 0; i < l->nown; i++)
			if (l->own[i].s)
				l->u[l->own[i].at].revents = l->own[i].got;
	}
	end(l);
	return r;
}

/* Memory for n fds: k, own and, for select, u. */
#define NEED(n, sel) ((n) * (sizeof(struct pollfd) * ((sel) ? 2 : 1) + sizeof(struct mine)) + sizeof(struct pollfd))

static int with_memory(struct pollfd *u, u32 n, struct look *l, u8 *stack, size_t room, void **map, size_t *len)
{
	size_t need = NEED((size_t)n, l->sel);
	u8 *p = stack;

	*map = 0;
	*len = 0;
	if (need > room) {
		long m = sys(SYS_mmap, 0, need, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (m < 0 && m > -4096)
			return -ENOMEM;
		*map = p = (u8 *)m;
		*len = need;
	}
	l->own = (struct mine *)p;
	p += n * sizeof(struct mine);
	l->k = (struct pollfd *)p;
	p += (n + 1) * sizeof(struct pollfd);
	l->u = l->sel ? (struct pollfd *)p : u;
	l->n = n;
	l->bell = -1;
	return 0;
}

static int poll_ours(struct pollfd *u, u32 n, i64 ns, const sigset_t *mask)
{
	u8 stack[NEED(ON_STACK, 0)] __attribute__((aligned(16)));
	struct look l = {0};
	size_t len;
	void *map;
	int r = with_memory(u, n, &l, stack, sizeof stack, &map, &len);

	if (r == 0)
		r = run(&l, map, len, ns, mask);
	if (map)
		sys(SYS_munmap, map, len);
	return r < 0 ? fail(-r) : r;
}

static i64 to_ns(const struct timespec *t)
{
	return t && t->tv_sec < 9000000000ll ? t->tv_sec * 1000000000ll + t->tv_nsec : -1;
}

static int bad_time(const struct timespec *t)
{
	return t && (t->tv_sec < 0 || t->tv_nsec < 0 || t->tv_nsec > 999999999);
}

int h_poll(struct pollfd *u, nfds_t n, int ms)
{
	if (!any_ours(u, n, ms))
		return S->real->poll(u, n, ms);
	return poll_ours(u, (u32)n, ms < 0 ? -1 : ms * 1000000ll, 0);
}

int h_ppoll(struct pollfd *u, nfds_t n, const struct timespec *t, const sigset_t *mask)
{
	if (bad_time(t) || !any_ours(u, n, !t || t->tv_sec || t->tv_nsec))
		return S->real->ppoll(u, n, t, mask);
	return poll_ours(u, (u32)n, to_ns(t), mask);
}

/* ---- select -------------------------------------------------------------------------------------------------------- */

#define WORD_BITS (8 * (int)sizeof(unsigned long))
#define WORDS(n) (((size_t)(n) + WORD_BITS - 1) / WORD_BITS)

struct sets {
	unsigned long *v[3]; /* read, write, except; as long as the program's number says */
};

static const short sel_ask[3] = {POLLIN, POLLOUT, POLLPRI};
static const short sel_true[3] = {SEL_IN, SEL_OUT, SEL_EX};

/* Nothing of it is ours, or the kernel says what is wrong with it. */
static int sel_kernels(const struct sets *s, int n)
{
	if (none_yet() || n < 0 || n > FD_MAX)
		return 1;
	for (int k = 0; k < 3; k++)
		if (s->v[k] && wild(s->v[k], WORDS(n) * sizeof(long)))
			return 1;
	return 0;
}

/* Fills u, if given, with what is asked; returns how many fds that are. *ours: not the kernel's alone. */
static u32 sel_list(const struct sets *s, int n, struct pollfd *u, int *ours, int sleeps)
{
	int sets = sleeps && atomic_load_explicit(&S->ep, memory_order_relaxed) != 0;
	u32 c = 0;

	for (size_t w = 0; w < WORDS(n); w++) {
		unsigned long any = 0;
		for (int k = 0; k < 3; k++)
			any |= s->v[k] ? s->v[k][w] : 0;
		if (w == (size_t)n / WORD_BITS && n % WORD_BITS)
			any &= (1ul << n % WORD_BITS) - 1;
		for (; any; any &= any - 1, c++) {
			int b = __builtin_ctzl(any), fd = (int)w * WORD_BITS + b, kind = kind_of(fd);
			if (ours) {
				*ours |= not_kernels(kind);
				if (unlikely(sets) && kind <= FD_PLAIN)
					epoll_polled(fd);
			}
			if (!u)
				continue;
			u[c] = (struct pollfd){.fd = fd};
			for (int k = 0; k < 3; k++)
				if (s->v[k] && s->v[k][w] >> b & 1)
					u[c].events |= sel_ask[k];
		}
	}
	return c;
}

static int sel_answer(const struct sets *s, int n, const struct pollfd *u, u32 c)
{
	int total = 0;

	for (int k = 0; k < 3; k++)
		if (s->v[k])
			memset(s->v[k], 0, WORDS(n) * sizeof(long));
	for (u32 i = 0; i < c; i++)
		for (int k = 0; k < 3; k++)
			if ((u[i].events & sel_ask[k]) && (u[i].revents & sel_true[k])) {
				s->v[k][u[i].fd / WORD_BITS] |= 1ul << u[i].fd % WORD_BITS;
				total++;
			}
	return total;
}

static int select_ours(const struct sets *s, int n, u32 c, i64 ns, const sigset_t *mask)
{
	u8 stack[NEED(ON_STACK, 1)] __attribute__((aligned(16)));
	struct look l = {.sel = 1};
	size_t len;
	void *map;
	int r = with_memory(0, c, &l, stack, sizeof stack, &map, &len);

	if (r == 0) {
		sel_list(s, n, l.u, 0, 0);
		r = run(&l, map, len, ns, mask);
		if (r >= 0)
			r = sel_answer(s, n, l.u, c);
	}
	if (map)
		sys(SYS_munmap, map, len);
	return r < 0 ? fail(-r) : r;
}

int h_select(int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *tv)
{
	struct sets s = {{(void *)r, (void *)w, (void *)e}};
	int ours = 0;
	u32 c = 0;

	if (!sel_kernels(&s, n) && !(tv && (tv->tv_sec < 0 || tv->tv_usec < 0)))
		c = sel_list(&s, n, 0, &ours, !tv || tv->tv_sec || tv->tv_usec);
	if (!ours)
		return (S->real->select)(n, r, w, e, tv);
	if (!tv)
		return select_ours(&s, n, c, -1, 0);
	struct timespec t = {tv->tv_sec + tv->tv_usec / 1000000, tv->tv_usec % 1000000 * 1000};
	i64 ns = to_ns(&t), start = now_ns();
	int ret = select_ours(&s, n, c, ns, 0);
	if (ns >= 0) {
		i64 left = start + ns - now_ns();
		left = left < 0 ? 0 : left;
		tv->tv_sec = left / 1000000000;
		tv->tv_usec = left % 1000000000 / 1000;
	}
	return ret;
}

int h_pselect(int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *t, const sigset_t *mask)
{
	struct sets s = {{(void *)r, (void *)w, (void *)e}};
	int ours = 0;
	u32 c = 0;

	if (!sel_kernels(&s, n) && !bad_time(t))
		c = sel_list(&s, n, 0, &ours, !t || t->tv_sec || t->tv_nsec);
	if (!ours)
		return (S->real->pselect)(n, r, w, e, t, mask);
	return select_ours(&s, n, c, to_ns(t), mask);
}

/*
 * Which fd is what, and which connection (struct sock, struct block) is behind it. A sock lives as long as somebody
 * refers to it: fds of the program, calls under way, the engine. The map bytes are published last and withdrawn first.
 */
#include "shim.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define HIDE_AT 900 /* where our own fds go: high, but within a small fd table of the kernel */

static void kind_set(int fd, u8 kind)
{
	atomic_store_explicit(&S->fd_kind[fd], kind, memory_order_release);
}

void fd_seen(int fd)
{
	u32 top = atomic_load(&S->fd_top), n = (u32)fd + 1;

	while (top < n && !atomic_compare_exchange_weak(&S->fd_top, &top, n))
		;
}

static u32 top_now(void)
{
	u32 top = atomic_load(&S->fd_top);

	return top < FD_MAX ? top : FD_MAX;
}

u64 fd_inode(int fd)
{
	struct stat st;

	return sys(SYS_fstat, fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
}

/* ---- the library's own fds ---- */

static int dup_high(int fd)
{
	struct rlimit rl = {.rlim_cur = 1024};

	sys(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &rl);
	u64 at = rl.rlim_cur - rl.rlim_cur / 8;
	if (at > HIDE_AT)
		at = HIDE_AT;
	for (; at > 2; at = at * 3 / 4) {
		long n = sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, at);
		if (n >= 0 && n < FD_MAX) {
			atomic_store(&S->fd_sock[n], 0);
			kind_set((int)n, FD_HIDDEN);
			fd_seen((int)n);
			return (int)n;
		}
		if (n >= 0)
			sys(SYS_close, n);
		else if (n != -EMFILE && n != -EINVAL)
			return (int)n;
	}
	return -EMFILE;
}

int fd_hide(int fd)
{
	if (fd < 0)
		return fd;
	int n = dup_high(fd);
	if (n >= 0) {
		sys(SYS_close, fd);
		return n;
	}
	if (fd < FD_MAX) { /* no room above: it stays where it is */
		sys(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
		kind_set(fd, FD_HIDDEN);
		fd_seen(fd);
	}
	return fd;
}

int fd_unhide(int fd)
{
	if (fd < 0)
		return -EBADF;
	if (fd < FD_MAX)
		kind_set(fd, FD_UNKNOWN);
	return (int)sys(SYS_close, fd);
}

/* ---- blocks ---- */

/* Under map_lk. */
static struct slab *slab_grow(void)
{
	struct proc_page *p = S->proc;
	u32 n = p ? atomic_load(&p->nblocks) : 0;

	if (!p || n > SOCK_MAX || S->nslabs >= SLAB_MAX)
		return 0;
	struct block *b = reg_slab(n);
	if (!b)
		return 0;
	atomic_store(&p->nblocks, n + SLAB_BLOCKS);
	struct slab *sl = &S->slab[S->nslabs];
	*sl = (struct slab){.b = b, .home = p};
	S->nslabs++;
	return sl;
}

static struct block *slab_take(struct slab *sl)
{
	for (u32 i = 0; i < SLAB_BLOCKS; i++) {
		u32 none = 0;
		if (atomic_load(&sl->b[i].procs) == 0 && atomic_compare_exchange_strong(&sl->b[i].procs, &none, 1)) {
			sl->used++;
			return &sl->b[i];
		}
	}
	sl->used = SLAB_BLOCKS;
	return 0;
}

static struct block *block_take(u32 *slab)
{
	for (u32 pass = 0; pass < 2; pass++) {
		for (u32 k = 0; k < S->nslabs; k++) {
			u32 i = (S->slab_hint + k) % S->nslabs;
			struct slab *sl = &S->slab[i];
			if (sl->home != S->proc)
				continue;
			if (pass) { /* a forked child may have let the last hold of some go */
				u32 used = 0;
				for (u32 j = 0; j < SLAB_BLOCKS; j++)
					used += atomic_load(&sl->b[j].procs) != 0;
				sl->used = used;
			}
			struct block *b = sl->used < SLAB_BLOCKS ? slab_take(sl) : 0;
			if (b) {
				S->slab_hint = *slab = i;
				return b;
			}
		}
	}
	struct slab *sl = slab_grow();
	if (!sl)
		return 0;
	S->slab_hint = *slab = (u32)(sl - S->slab);
	return slab_take(sl);
}

/* This process's hold of a block ends; under map_lk. The last one adds the connection up. */
static void block_leave(struct block *b, u32 slab)
{
	struct slab *sl = &S->slab[slab];
	u32 n = atomic_load(&b->procs);

	while (n > 1)
		if (atomic_compare_exchange_weak(&b->procs, &n, n - 1))
			return;
	PAGE_ADD(sl->home, tx_bytes, atomic_load(&b->tx_bytes));
	PAGE_ADD(sl->home, rx_bytes, atomic_load(&b->rx_bytes));
	atomic_store(&b->state, S_FREE);
	atomic_store(&b->procs, 0);
	if (sl->home == S->proc && sl->used)
		sl->used--;
}

int block_held(const struct block *b, u64 cookie)
{
	return b->cookie == cookie && atomic_load(&b->procs) != 0;
}

int block_heir_lives(const struct block *b)
{
	u32 heir = atomic_load(&b->heir);
	siginfo_t i = {.si_pid = 0};

	if (!heir)
		return 0; /* killed before it came back from fork */
	if (heir == ~0u)
		return 1;
	long r = sys(SYS_waitid, P_PID, heir, &i, WEXITED | WNOHANG | WNOWAIT, 0);
	return r < 0 ? r != -ECHILD : !i.si_pid;
}

void block_lost(struct block *b, u32 slab, u64 cookie)
{
	int nested = lk_lock(&S->map_lk);

	if (block_held(b, cookie)) {
		atomic_store(&b->procs, 1);
		block_leave(b, slab);
	}
	lk_unlock(&S->map_lk, nested);
}

static void name_of(int fd, int peer, u8 addr[16], u16 *port, u16 *family)
{
	struct sockaddr_storage ss = {0};
	socklen_t len = sizeof ss;

	if (sys(peer ? SYS_getpeername : SYS_getsockname, fd, &ss, &len) < 0)
		return;
	*family = ss.ss_family;
	if (ss.ss_family == AF_INET) {
		struct sockaddr_in a;
		memcpy(&a, &ss, sizeof a);
		memcpy(addr, &a.sin_addr, 4);
		*port = ntohs(a.sin_port);
	} else if (ss.ss_family == AF_INET6) {
		struct sockaddr_in6 a;
		memcpy(&a, &ss, sizeof a);
		memcpy(addr, &a.sin6_addr, 16);
		*port = ntohs(a.sin6_port);
	}
}

static void block_fill(struct block *b, int fd, u32 role, u32 state)
{
	u32 gen = b->gen + 1;
	u16 family = 0;
	socklen_t len = sizeof b->cookie;
	long fl = sys(SYS_fcntl, fd, F_GETFL);

	/* Everything but `procs`, which says that the block is ours. */
	_Static_assert(offsetof(struct block, lock) == offsetof(struct block, procs) + sizeof b->procs, "procs lies before lock");
	memset(b, 0, offsetof(struct block, procs));
	memset(&b->lock, 0, sizeof *b - offsetof(struct block, lock));
	b->gen = gen;
	b->role = role;
	sys(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &b->cookie, &len);
	if (fl >= 0 && (fl & O_NONBLOCK))
		atomic_store(&b->flags, BF_NONBLOCK);
	b->fd = fd;
	b->pid = S->pid;
	name_of(fd, 1, b->paddr, &b->pport, &family);
	name_of(fd, 0, b->laddr, &b->lport, &b->family);
	b->since_ns = (u64)now_ns();
	atomic_store(&b->state, state);
}

/* ---- socks ---- */

u32 sock_idx(const struct sock *s)
{
	return (u32)(s - S->sock);
}

static struct sock *slot_take(void)
{
	u32 hint = atomic_load(&S->sock_hint);

	for (u32 k = 0; k < SOCK_MAX; k++) {
		u32 i = (hint + k) % SOCK_MAX;
		struct sock *s = &S->sock[i];
		if (i == 0 || s->b || atomic_load(&s->refs))
			continue;
		atomic_store(&S->sock_hint, i + 1);
		if (atomic_load(&S->sock_top) <= i)
			atomic_store(&S->sock_top, i + 1);
		return s;
	}
	return 0;
}

/* The hidden duplicate goes where the program's last fd went before. */
static void late_close(struct sock *s, int fd)
{
	epoll_sock_closed(s, fd);
	fd_unhide(fd);
}

#define PAYS_NS 20000000ull
#define PAYS_BYTES (256u << 10)

/* Was it worth its handshake? What lives that long does not come often enough to matter. */
static void tell_end(const struct sock *s)
{
	const struct block *b = s->b;

	if (!b->role)
		reg_ended(b, (u64)now_ns() - (s->active_ns ? (u64)s->active_ns : b->since_ns) >= PAYS_NS ||
				     atomic_load(&b->tx_bytes) + atomic_load(&b->rx_bytes) >= PAYS_BYTES);
}

/* Nobody refers to it any more. */
static void sock_end(struct sock *s)
{
	tell_end(s);
	if (atomic_exchange(&s->late, 0)) {
		int fd = s->fd;
		s->fd = -1;
		late_close(s, fd);
	}
	int nested = lk_lock(&S->map_lk);
	if (s->stage) {
		sys(SYS_munmap, s->stage, STAGE_SIZE);
		s->stage = 0;
	}
	if (!s->left)
		block_leave(s->b, s->slab);
	s->b = 0;
	if (sock_idx(s) < atomic_load(&S->sock_hint))
		atomic_store(&S->sock_hint, sock_idx(s));
	lk_unlock(&S->map_lk, nested);
}

static void arms_reset(struct sock *s)
{
	atomic_store(&s->firing, 0);
	for (u32 k = 0; k < sizeof s->owed / sizeof *s->owed; k++)
		atomic_store(&s->owed[k], 0);
}

struct sock *sock_new(int fd, u32 role, u32 state)
{
	u64 ino = fd_inode(fd);

	if ((unsigned)fd >= FD_MAX || !ino || reg_ready() < 0)
		return 0;
	if (kind_of(fd) > FD_PLAIN && !is_undecided(kind_of(fd))) /* that one is kept until it is FD_SOCK: it is for other threads to wait */
		fd_closed(fd);
	int nested = lk_lock(&S->map_lk);
	u32 slab = 0;
	struct sock *s = slot_take();
	struct block *b = s ? block_take(&slab) : 0;
	if (b) {
		u32 gen = s->gen + 1;
		block_fill(b, fd, role, state);
		/* refs stays 0, and so the slot unseen, until all is in place. */
		s->rx = s->tx = 0;
		s->rxbuf = s->txbuf = s->stage = 0;
		s->rxsize = s->txsize = s->swept = s->tx_cons = 0;
		s->peer = s->tx_gen = s->watched = s->left = 0;
		s->active_ns = 0;
		arms_reset(s);
		atomic_store(&s->spin_rx, 0);
		atomic_store(&s->spin_tx, 0);
		atomic_store(&s->same, 0);
		atomic_store(&s->eplk.w, 0);
		s->eps = 0;
		atomic_store(&s->fds, 1);
		atomic_store(&s->held, 0);
		atomic_store(&s->pins, 0);
		atomic_store(&s->closed, 0);
		atomic_store(&s->late, 0);
		s->gen = gen;
		s->fd = fd;
		s->slab = slab;
		s->ino = ino;
		s->b = b;
		atomic_store(&s->refs, 1);
		atomic_store(&S->fd_sock[fd], sock_idx(s));
		fd_seen(fd);
		kind_set(fd, FD_SOCK);
	}
	lk_unlock(&S->map_lk, nested);
	return b ? s : 0;
}

static int ref_up(struct sock *s)
{
	u32 n = atomic_load_explicit(&s->refs, memory_order_relaxed);

	do {
		if (!n)
			return 0;
	} while (!atomic_compare_exchange_weak(&s->refs, &n, n + 1));
	return 1;
}

static struct sock *forget(int fd, u32 *listener, const struct sock *want);

struct sock *sock_get(int fd, int check)
{
	int kind = kind_of(fd);

	if (unlikely(is_undecided(kind)))
		kind = hook_look(fd);
	if (kind != FD_SOCK)
		return 0;
	u32 idx = atomic_load(&S->fd_sock[fd]);
	if (idx == 0 || idx >= SOCK_MAX)
		return 0;
	struct sock *s = &S->sock[idx];
	if (!ref_up(s))
		return 0;
	if (unlikely(kind_of(fd) != FD_SOCK || atomic_load(&S->fd_sock[fd]) != idx)) {
		sock_put(s);
		return 0;
	}
	if (check && unlikely(fd_inode(fd) != s->ino)) {
		if (forget(fd, 0, s))
			sock_put(s);
		sock_put(s);
		return 0;
	}
	return s;
}

struct sock *sock_at(u32 idx, u32 gen)
{
	struct sock *s = 0;

	if (idx == 0 || idx >= SOCK_MAX)
		return 0;
	int nested = lk_lock(&S->map_lk);
	if (S->sock[idx].gen == gen && S->sock[idx].b && ref_up(&S->sock[idx])) {
		s = &S->sock[idx];
		atomic_fetch_add(&s->held, 1);
	}
	lk_unlock(&S->map_lk, nested);
	return s;
}

/* Under map_lk. */
static u32 calls_of(struct sock *s)
{
	u32 mine = atomic_load(&s->fds) + atomic_load(&s->held) + atomic_load(&s->pins), refs = atomic_load(&s->refs);

	return refs > mine ? refs - mine : 0;
}

/* Staged bytes that the kernel does not take yet: as in the kernel, they outlive the program's close. */
static int flushing(const struct sock *s)
{
	return atomic_load(&s->b->state) == S_FLUSH && atomic_load(&s->b->stage_len);
}

/* ...as far as the engine has them. */
static int stays(const struct sock *s)
{
	return flushing(s) && atomic_load(&s->held);
}

/* No fd of the program names it and none of its calls is under way: what the kernel would now do with its file, we do. */
static void sock_quiet(struct sock *s, u32 gen)
{
	int nested = lk_lock(&S->map_lk), late = -1, post = 0;

	if (s->gen == gen && s->b && !atomic_load(&s->fds) && !calls_of(s) && !flushing(s) &&
	    (atomic_load(&s->late) || !atomic_load(&s->closed)) && ref_up(s)) {
		if (atomic_exchange(&s->late, 0)) {
			late = s->fd;
			s->fd = -1;
		}
		post = !atomic_exchange(&s->closed, 1);
	}
	lk_unlock(&S->map_lk, nested);
	if (late < 0 && !post)
		return;
	if (late >= 0)
		late_close(s, late);
	if (post)
		engine_post(REQ_CLOSED, s, 0);
	sock_put(s);
}

static void put(struct sock *s, u32 gen, u32 n)
{
	if (unlikely(n == 0))
		sock_end(s);
	else if (unlikely(atomic_load(&s->fds) == 0))
		sock_quiet(s, gen); /* if the slot is another connection's by now, gen says so */
}

void sock_put(struct sock *s)
{
	u32 gen = s->gen;

	put(s, gen, atomic_fetch_sub(&s->refs, 1) - 1);
}

/* Two counts change: whoever closes between must not take ours for a call of the program, and keep the file for it. */
static void drop(struct sock *s, _Atomic u32 *count)
{
	int nested = lk_lock(&S->map_lk);
	u32 gen = s->gen, n = atomic_fetch_sub(&s->refs, 1) - 1;

	atomic_fetch_sub(count, 1);
	lk_unlock(&S->map_lk, nested);
	put(s, gen, n);
}

void sock_drop(struct sock *s)
{
	drop(s, &s->held);
}

void sock_pin(struct sock *s)
{
	int nested = lk_lock(&S->map_lk);

	atomic_fetch_add(&s->refs, 1);
	atomic_fetch_add(&s->pins, 1);
	lk_unlock(&S->map_lk, nested);
}

void sock_unpin(struct sock *s)
{
	drop(s, &s->pins);
}

/* ---- which fds name it ---- */

static int other_fd(struct sock *s, int but)
{
	u32 idx = sock_idx(s), top = top_now();

	for (u32 fd = 0; fd < top; fd++)
		if ((int)fd != but && atomic_load_explicit(&S->fd_kind[fd], memory_order_acquire) == FD_SOCK &&
		    atomic_load(&S->fd_sock[fd]) == idx)
			return (int)fd;
	return -1;
}

/* The engine's epoll set knows files by number: it must not lose the socket with the number. */
static void watch_move(struct sock *s, int from, int to)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u64 = sock_idx(s) | (u64)s->gen << 32};

	if (S->engine != ENG_READY || S->epfd < 0)
		return;
	if (sys(SYS_epoll_ctl, S->epfd, EPOLL_CTL_DEL, from, &ev) == 0 && to >= 0)
		sys(SYS_epoll_ctl, S->epfd, EPOLL_CTL_ADD, to, &ev);
}

/* want: only if it is still that connection's number */
static struct sock *forget(int fd, u32 *listener, const struct sock *want)
{
	u8 kind = (u8)kind_of(fd);

	if (listener)
		*listener = 0;
	if ((unsigned)fd >= FD_MAX || kind == FD_UNKNOWN)
		return 0;
	if (kind == FD_EPOLL)
		epoll_set_closed(fd);
	struct sock *s = kind == FD_SOCK ? sock_get(fd, 0) : 0;
	if (want && s != want) {
		if (s)
			sock_put(s);
		return 0;
	}
	if (!s) {
		u32 entry = atomic_load(&S->fd_sock[fd]);
		if (!atomic_compare_exchange_strong(&S->fd_kind[fd], &kind, FD_UNKNOWN) || kind != FD_LISTENER || !listener)
			return 0;
		for (u32 i = 0, top = top_now(); i < top; i++)
			if (atomic_load(&S->fd_kind[i]) == FD_LISTENER && atomic_load(&S->fd_sock[i]) == entry)
				return 0;
		*listener = entry;
		return 0;
	}

	int nested = lk_lock(&S->map_lk), gone = 0, flushes = stays(s) && atomic_load(&s->fds) == 1 && calls_of(s) == 1;
	lk_unlock(&S->map_lk, nested);
	epoll_number_closed(s, fd, flushes); /* the file stays, for us alone: no set of the program may see it */
	nested = lk_lock(&S->map_lk);
	/* The number may be another connection's by now: dup2 onto it in one thread, a stale look at it in another. */
	if (atomic_load(&S->fd_sock[fd]) == sock_idx(s) && atomic_compare_exchange_strong(&S->fd_kind[fd], &kind, FD_UNKNOWN)) {
		int last = atomic_fetch_sub(&s->fds, 1) == 1, to = s->fd;
		atomic_fetch_sub(&s->refs, 1); /* not the last one: ours is left */
		if (last) {
			to = -1;
			if ((calls_of(s) > 1 || stays(s)) && fd_inode(fd) == s->ino) {
				/* Somebody sleeps in a call on it: as in the kernel, the socket lives until that ends. */
				to = dup_high(fd);
				atomic_store(&s->late, to >= 0);
			}
			gone = to < 0;
			if (gone && atomic_load(&s->b->procs) == 1)
				s->b->fd = -1;
		} else if (to == fd) {
			to = other_fd(s, fd);
			s->b->fd = to;
		}
		if (to != fd) {
			watch_move(s, fd, to);
			s->fd = to;
		}
	}
	lk_unlock(&S->map_lk, nested);
	if (gone)
		epoll_sock_closed(s, fd);
	return s;
}

struct sock *fd_forget(int fd, u32 *listener)
{
	return forget(fd, listener, 0);
}

void fd_closed(int fd)
{
	u32 listener;
	struct sock *s = fd_forget(fd, &listener);

	if (listener)
		reg_gone(listener);
	if (s)
		sock_put(s);
}

int fd_dup(int from, int to)
{
	if ((unsigned)to >= FD_MAX || (unsigned)from >= FD_MAX || from == to)
		return 0;
	u8 kind = (u8)kind_of(from), none = FD_UNKNOWN;
	if (kind_of(to) != FD_UNKNOWN && !(kind == FD_SOCK && is_undecided(kind_of(to)))) /* see sock_new */
		fd_closed(to);
	switch (kind) {
	case FD_SOCK: {
		struct sock *s = sock_get(from, 0);
		if (!s)
			return 0;
		int nested = lk_lock(&S->map_lk);
		if (kind_of(from) == FD_SOCK && atomic_load(&S->fd_sock[from]) == sock_idx(s)) {
			atomic_fetch_add(&s->refs, 1);
			atomic_fetch_add(&s->fds, 1);
			atomic_store(&S->fd_sock[to], sock_idx(s));
			fd_seen(to);
			kind_set(to, FD_SOCK);
		}
		lk_unlock(&S->map_lk, nested);
		sock_put(s);
		return 0;
	}
	case FD_LISTENER:
		atomic_store(&S->fd_sock[to], atomic_load(&S->fd_sock[from]));
		fd_seen(to);
		kind_set(to, FD_LISTENER);
		return 0;
	case FD_ASKED:
	case FD_JOINING:
		fd_seen(to);
		atomic_store(&S->fd_sock[to], atomic_load(&S->fd_sock[from]));
		atomic_compare_exchange_strong(&S->fd_kind[to], &none, kind);
		if (kind_of(from) == kind)
			return 0;
		atomic_compare_exchange_strong(&S->fd_kind[to], &kind, FD_UNKNOWN); /* decided meanwhile: perhaps for the numbers that it had before */
		return fd_dup(from, to);
	default: {
		int r = epoll_set_dup(from, to); /* also what is no set of ours yet may become one under either number */
		if (kind_of(to) > FD_PLAIN)
			fd_seen(to);
		return r < 0 ? r : 0;
	}
	}
}

void sock_plain(struct sock *s)
{
	u32 idx = sock_idx(s), gone = 0;
	int nested = lk_lock(&S->map_lk);

	if (s->rx && s->fd >= 0)
		watch_move(s, s->fd, -1);
	for (u32 fd = 0, top = top_now(); fd < top && gone < atomic_load(&s->fds); fd++)
		if (atomic_load(&S->fd_kind[fd]) == FD_SOCK && atomic_load(&S->fd_sock[fd]) == idx) {
			kind_set((int)fd, FD_PLAIN);
			gone++;
		}
	/* s->fd stays: a call under way finishes over TCP. */
	atomic_fetch_sub(&s->fds, gone);
	atomic_fetch_sub(&s->refs, gone);
	lk_unlock(&S->map_lk, nested);
}

void count_tcp(u32 reason, int refused)
{
	if (!S->proc && reg_ready() < 0)
		return;
	if (!S->proc)
		return;
	if (!refused)
		PAGE_ADD(S->proc, tcp_conns, 1);
	if (reason < R_COUNT)
		PAGE_ADD(S->proc, fallbacks[reason], 1);
}

/* ---- fork ---- */

static void procs_add(int d)
{
	for (u32 i = 1, top = atomic_load(&S->sock_top); i < top && i < SOCK_MAX; i++) {
		struct sock *s = &S->sock[i];
		if (s->b && atomic_load(&s->refs) && atomic_load(&s->fds))
			atomic_fetch_add(&s->b->procs, (u32)d);
	}
}

/*
 * A forked child ends or becomes another program: the blocks in its parent's file must not count it for ever, be it that its
 * engine had no time to see the last close. What lies in our own file goes with it. An exec may fail, so a last hold is kept.
 */
void map_leave(int ends)
{
	int nested = lk_lock(&S->map_lk);

	for (u32 i = 1, top = atomic_load(&S->sock_top); i < top && i < SOCK_MAX; i++) {
		struct sock *s = &S->sock[i];
		if (ends && s->b && atomic_load(&s->refs) && atomic_load(&s->b->procs) == 1)
			tell_end(s);
		if (!s->b || s->left || !atomic_load(&s->refs) || S->slab[s->slab].home == S->proc)
			continue;
		if (ends || atomic_load(&s->b->procs) > 1) {
			s->left = 1;
			block_leave(s->b, s->slab);
		}
	}
	lk_unlock(&S->map_lk, nested);
}

u32 map_held(char *text, u32 room)
{
	static const char digit[] = "0123456789abcdef";
	u32 n = 0;

	for (u32 i = 1, top = atomic_load(&S->sock_top); i < top && i < SOCK_MAX && room > 18; i++) {
		struct sock *s = &S->sock[i];
		struct block *b = s->b;
		if (!b || !atomic_load(&s->refs) || !atomic_load(&s->fds) || !b->cookie ||
		    (atomic_load(&b->state) != S_ACTIVE && !(atomic_load(&b->flags) & BF_LOST)))
			continue;
		for (int shift = 60; shift >= 0; shift -= 4)
			*text++ = digit[b->cookie >> shift & 15];
		*text++ = ',';
		room -= 17;
		n++;
	}
	*text = 0;
	return n;
}

static int listed(const char *text, u64 cookie)
{
	u64 v = 0;

	for (; *text; text++) {
		if (*text == ',') {
			if (v == cookie)
				return 1;
			v = 0;
			continue;
		}
		v = v << 4 | (u64)(*text <= '9' ? *text - '0' : *text - 'a' + 10);
	}
	return 0;
}

#define LOST_FDS 1024 /* numbers that are looked at */

void map_lost(const char *text)
{
	struct pollfd open[LOST_FDS]; /* one call tells which numbers are */
	struct timespec none = {0, 0};

	for (int fd = 0; fd < LOST_FDS; fd++)
		open[fd] = (struct pollfd){.fd = fd};
	if (sys(SYS_ppoll, open, LOST_FDS, &none, 0, 8) < 0)
		return;
	for (int fd = 0; fd < LOST_FDS; fd++) {
		u64 cookie = 0;
		socklen_t len = sizeof cookie;
		if ((open[fd].revents & POLLNVAL) || sys(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0 || !cookie || !listed(text, cookie))
			continue;
		int first = 0;
		while (first < fd && !(kind_of(first) == FD_SOCK && S->sock[S->fd_sock[first]].b->cookie == cookie))
			first++;
		struct sock *s = first < fd ? 0 : sock_new(fd, 1, S_ACCEPTED);
		if (s)
			atomic_fetch_or(&s->b->flags, BF_LOST);
		else if (first < fd)
			fd_dup(first, fd);
	}
}

void map_stay(void)
{
	int nested = lk_lock(&S->map_lk);

	for (u32 i = 1, top = atomic_load(&S->sock_top); i < top && i < SOCK_MAX; i++)
		if (S->sock[i].left && S->sock[i].b) {
			S->sock[i].left = 0;
			atomic_fetch_add(&S->sock[i].b->procs, 1);
		}
	lk_unlock(&S->map_lk, nested);
}

/* The child's holds are counted before it exists: its parent may well close first. */
void map_prefork(void)
{
	lk_lock(&S->map_lk);
	procs_add(1);
	S->forking = 1;
}

void map_postfork(int failed)
{
	if (failed)
		procs_add(-1);
	S->forking = 0;
	lk_unlock(&S->map_lk, 0);
}

/*
 * Another thread of the parent began it after all had been settled: it is the parent's. Whatever the child did to it (its exit
 * alone withdraws) would happen to the block that both see, and to the parent's handshake.
 */
static void disown(struct sock *s)
{
	for (u32 fd = 0, top = top_now(); fd < top; fd++)
		if (atomic_load(&S->fd_kind[fd]) == FD_SOCK && atomic_load(&S->fd_sock[fd]) == sock_idx(s))
			kind_set((int)fd, FD_PLAIN);
	if (s->stage)
		sys(SYS_munmap, s->stage, STAGE_SIZE);
	s->stage = 0;
	block_leave(s->b, s->slab);
	s->b = 0;
	s->eps = 0;
	atomic_store(&s->refs, 0);
	atomic_store(&s->fds, 0);
}

void map_forked(void)
{
	u32 parent = (u32)sys(SYS_getppid);

	atomic_store(&S->map_lk.w, 0);
	if (!S->forking)
		procs_add(1);
	S->forking = 0;
	for (u32 i = 1, top = atomic_load(&S->sock_top); i < top && i < SOCK_MAX; i++) {
		struct sock *s = &S->sock[i];
		if (!s->b)
			continue;
		if (atomic_load(&s->late))
			fd_unhide(s->fd);
		u32 fds = atomic_load(&s->refs) ? atomic_load(&s->fds) : 0;
		atomic_store(&s->refs, fds);
		atomic_store(&s->held, 0);
		atomic_store(&s->pins, 0);
		atomic_store(&s->late, 0);
		atomic_store(&s->closed, 0);
		atomic_store(&s->eplk.w, 0);
		arms_reset(s); /* threads of the parent; what they owed they ring */
		s->watched = 0;
		u32 st = atomic_load(&s->b->state), none = 0;
		if (fds && !atomic_compare_exchange_strong(&s->b->heir, &none, parent == s->b->pid ? S->pid : ~0u))
			atomic_store(&s->b->heir, ~0u);
		if (!fds) { /* closed by the parent before, only its engine still had it */
			s->b = 0;
			s->eps = 0;
		} else if (st == S_OFFERED || st == S_CLC || st == S_FLUSH) {
			disown(s);
		}
	}
}

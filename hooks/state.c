/*
 * What a connection of ours is at the moment, and how it changes: first use, handshake's end in SMC-R or
 * TCP, death of the peer. The states are enum conn_state; ARCHITECTURE "Life of one connection" is the map.
 */
#include "shim.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "sys.h"

#define IN_BITS (EPOLLIN | EPOLLRDNORM)
#define OUT_BITS (EPOLLOUT | EPOLLWRNORM)
#define SETTLE_NS 300000000ll	   /* the engine finishes or declines within 100 ms; more means that it is stuck */
#define FLUSH_NS 2000000000ll	   /* staged bytes always fit a socket buffer of default size; this bounds the rest */

static u32 state_of(const struct sock *s)
{
	return atomic_load_explicit(&s->b->state, memory_order_acquire);
}

static int negotiating(u32 st)
{
	return st == S_OFFERED || st == S_CLC;
}

/* ---- becoming plain ---- */

/* Under b->lock. The last step: from here on the kernel alone answers. */
static void plain_locked(struct sock *s)
{
	if (atomic_fetch_and(&s->b->flags, ~BF_SHUT_LATER) & BF_SHUT_LATER)
		sys(SYS_shutdown, s->fd, SHUT_WR);
	epoll_sock_plain(s);
	atomic_store_explicit(&s->b->state, S_TCP, memory_order_release);
	if (s->b->source == SOURCE_KERNEL)
		hook_decided(s->fd, S_TCP);
	sock_fire(s);
	sock_plain(s);
}

/*
 * Leaves the socket in the state of one that was never connected: both sides see a reset. Who waits in the kernel's recv
 * meanwhile (the holder of a passed descriptor) gets EPIPE from Linux 6.7 on; 6.4 to 6.6 refuse while somebody waits, so he
 * is given the end first.
 */
void tcp_reset(int fd)
{
	struct linger now = {1, 0};
	struct sockaddr none = {.sa_family = AF_UNSPEC};

	sys(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
	if (sys(SYS_connect, fd, &none, sizeof none) == -EBUSY)
		sys(SYS_shutdown, fd, SHUT_RDWR);
}

static void decided_tcp(struct sock *s, u32 reason, u32 diagnosis)
{
	atomic_store(&s->b->reason, reason);
	s->b->diagnosis = diagnosis;
	int refused = (atomic_load(&s->b->flags) & BF_REQUIRE) != 0;
	count_tcp(reason, refused);
	if (refused)
		tcp_reset(s->fd);
}

/* Sends what is staged; under tx. Returns what is left. */
static u32 flush_locked(struct sock *s)
{
	struct block *b = s->b;
	u32 len = atomic_load(&b->stage_len);

	while (s->stage && b->stage_done < len) {
		long n = sys(SYS_sendto, s->fd, s->stage + b->stage_done, len - b->stage_done,
			     MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
		if (n == -EINTR)
			continue;
		if (n == -EAGAIN)
			return len - b->stage_done;
		if (n < 0) /* the peer is gone: what TCP would have lost is lost */
			break;
		b->stage_done += (u32)n;
	}
	atomic_store(&b->stage_len, 0);
	b->stage_done = 0;
	return 0;
}

static void stage_drop(struct sock *s)
{
	u8 *p = s->stage;

	s->stage = 0;
	if (p)
		sys(SYS_munmap, p, STAGE_SIZE);
}

u32 sock_flush(struct sock *s)
{
	struct block *b = s->b;
	u32 left = 0;
	int nested = lk_lock(&b->lock);

	if (state_of(s) == S_FLUSH) {
		int ntx = lk_lock(&b->tx);
		left = flush_locked(s);
		if (!left) {
			plain_locked(s);
			stage_drop(s);
		} else {
			sock_fire(s); /* room in staging */
		}
		lk_unlock(&b->tx, ntx);
	}
	lk_unlock(&b->lock, nested);
	return left;
}

u32 sock_fallback(struct sock *s, u32 reason, u32 diagnosis)
{
	struct block *b = s->b;
	int nested = lk_lock(&b->lock);
	u32 st = state_of(s), left = 0;

	if (st == S_ACCEPTED || negotiating(st)) {
		decided_tcp(s, reason, diagnosis);
		atomic_store_explicit(&b->state, S_FLUSH, memory_order_release);
		st = S_FLUSH;
	}
	if (st == S_FLUSH) /* the engine may come second: what the program's call left over is its to send */
		left = sock_flush(s);
	lk_unlock(&b->lock, nested);
	return left;
}

void sock_hand_back(struct sock *s)
{
	int nested = lk_lock(&s->b->lock);
	u32 st = state_of(s);

	if (st == S_ACTIVE || st == S_BROKEN)
		atomic_store_explicit(&s->b->state, S_FLUSH, memory_order_release);
	sock_flush(s);
	lk_unlock(&s->b->lock, nested);
}

/* What arrived instead of the handshake cannot be given to the program, nor taken back. */
void sock_broken(struct sock *s, u32 reason, int err)
{
	struct block *b = s->b;
	int nested = lk_lock(&b->lock), ntx = lk_lock(&b->tx); /* a sender may be filling what stage_drop unmaps */

	if (negotiating(state_of(s))) {
		atomic_store(&b->reason, reason);
		atomic_store(&b->so_error, err);
		atomic_fetch_or(&b->flags, BF_RESET | BF_GONE | BF_FIN);
		if (S->proc)
			PAGE_ADD(S->proc, fallbacks[reason], 1);
		tcp_reset(s->fd);
		stage_drop(s);
		atomic_store_explicit(&b->state, S_BROKEN, memory_order_release);
	}
	lk_unlock(&b->tx, ntx);
	lk_unlock(&b->lock, nested);
	sock_fire(s);
}

void sock_agreed(struct sock *s, u32 source)
{
	s->b->source = source;
	atomic_fetch_or(&s->b->flags, BF_AGREED);
}

/* ---- first use of an accepted socket ---- */

static void claim_agreed(struct sock *s)
{
	struct block *b = s->b;
	int nested = lk_lock(&b->lock), other = 0;

	if (state_of(s) == S_ACCEPTED) {
		int r = b->source == SOURCE_KERNEL ? hook_take(s->fd) : 0;
		other = r == -EBUSY; /* another image took it */
		if (r == 0)
			r = engine_start();
		if (r == 0 || other) {
			atomic_store_explicit(&b->state, S_CLC, memory_order_release);
			if (!other) { /* one too many is the engine's, too: here nobody waits for the Proposal that is to be declined */
				int half = reg_begin(-1, b->paddr);
				u32 n = half < 0 ? HALF_OPEN_NONE : (u32)half;
				if (engine_post(REQ_SERVER, s, (u64)n << 32) < 0)
					reg_over(n);
			}
		} else {
			hook_decline(s->fd, 0, (u32)-r);
			sock_fallback(s, (u32)-r, 0);
		}
	}
	lk_unlock(&b->lock, nested);
	if (other)
		sock_broken(s, R_EXEC, ECONNRESET);
}

static void claim(struct sock *s)
{
	struct block *b = s->b;
	struct diag d;
	u32 why = R_NO_CLIENT, lost = S_ACCEPTED;
	int slot = -1, half = -1, r;

	if (unlikely(atomic_load(&b->flags) & BF_LOST)) {
		atomic_compare_exchange_strong(&b->state, &lost, S_CLC);
		sock_broken(s, R_EXEC, ECONNRESET);
		return;
	}
	if (atomic_load(&b->flags) & BF_AGREED) {
		claim_agreed(s);
		return;
	}
	if (S->mode == MODE_OFF) {
		why = R_OFF;
	} else if (reg_ready() < 0) { /* a forked child looks at the tables for the first time */
		why = R_REGISTRY;
	} else if ((r = diag_mirror(s->fd, &d)) < 0) {
		why = r == -EMFILE || r == -ENFILE ? R_NO_FD : R_NO_CLIENT;
	} else if ((slot = reg_find(d.cookie)) >= 0) {
		r = engine_start();
		if (r == 0)
			r = half = reg_begin(slot, b->paddr);
		if (r < 0) {
			why = (u32)-r;
			slot = -1;
			reg_refuse(s->fd);
		}
	}

	int nested = lk_lock(&b->lock);
	if (state_of(s) == S_ACCEPTED) {
		if (slot >= 0 && reg_claim(slot, d.cookie)) {
			b->peer_cookie = d.cookie;
			b->source = SOURCE_REGISTRY;
			atomic_store_explicit(&b->state, S_CLC, memory_order_release);
			r = engine_post(REQ_SERVER, s, (u64)slot | (u64)half << 32);
			if (r == 0)
				half = -1; /* the engine's */
			else if (r == -EAGAIN) /* it is stuck: nobody would ever answer */
				sock_broken(s, R_ENGINE, ECONNRESET);
		} else {
			sock_fallback(s, why, 0);
		}
	}
	if (half >= 0)
		reg_over((u32)half);
	lk_unlock(&b->lock, nested);
}

int sock_use(struct sock *s)
{
	u32 st = state_of(s);

	if (st == S_ACCEPTED) {
		claim(s);
		st = state_of(s);
	}
	if (likely(st != S_TCP))
		return 1;
	/* Decided by a process that shares the block with us: our own map follows. */
	if (s->fd >= 0 && kind_of(s->fd) == FD_SOCK) {
		int nested = lk_lock(&s->b->lock);
		epoll_sock_plain(s);
		sock_plain(s);
		lk_unlock(&s->b->lock, nested);
	}
	return 0;
}

/* ---- from the engine ---- */

void sock_claimed(struct sock *s)
{
	int nested = lk_lock(&s->b->lock);
	u32 st = S_OFFERED;

	atomic_compare_exchange_strong(&s->b->state, &st, S_CLC);
	lk_unlock(&s->b->lock, nested);
}

int sock_shut_later(struct sock *s)
{
	int nested = lk_lock(&s->b->lock);
	u32 st = state_of(s);
	int later = negotiating(st) || st == S_FLUSH;

	if (later)
		atomic_fetch_or(&s->b->flags, BF_SHUT_WR | BF_SHUT_LATER);
	lk_unlock(&s->b->lock, nested);
	if (later)
		sock_fire(s);
	return later;
}

void sock_established(struct sock *s, const struct rings *r)
{
	struct block *b = s->b;
	int nested = lk_lock(&b->lock), ntx = lk_lock(&b->tx), late = 0;

	if (state_of(s) == S_CLC) {
		s->rx = (struct rmbe_head *)r->rx_head;
		s->tx = (struct rmbe_head *)r->tx_head;
		s->rxbuf = (u8 *)r->rx_buf;
		s->txbuf = (u8 *)r->tx_buf;
		s->rxsize = b->rx_size = r->rx_size;
		s->txsize = b->tx_size = r->tx_size;
		s->peer = b->peer = r->peer;
		s->active_ns = now_ns();
		b->rx_token = r->rx_token;
		b->tx_token = r->tx_token;
		b->rmb = r->rmb;
		b->rmbe = r->rmbe;
		b->lgr = r->lgr;
		memcpy(b->provider, r->provider, sizeof b->provider);
		b->provider[sizeof b->provider - 1] = 0;
		s->rx->rtag = sock_idx(s);
		s->tx->wtag = sock_idx(s);

		struct iovec v = {s->stage, atomic_load(&b->stage_len)};
		if (v.iov_len)
			lane_write(s, &v, 1, 0); /* an empty ring is never smaller than staging */
		atomic_store(&b->stage_len, 0);
		stage_drop(s);
		if (b->source == SOURCE_KERNEL)
			hook_decided(s->fd, S_ACTIVE);
		if (S->proc)
			PAGE_ADD(S->proc, smc_conns, 1);
		if (atomic_fetch_and(&b->flags, ~BF_SHUT_LATER) & BF_SHUT_LATER) {
			atomic_fetch_or(&s->tx->wflags, RH_WDONE);
			late = 1;
		}
		atomic_store_explicit(&b->state, S_ACTIVE, memory_order_release);
		if (late)
			sys(SYS_shutdown, s->fd, SHUT_WR);
	}
	lk_unlock(&b->tx, ntx);
	lk_unlock(&b->lock, nested);
	sock_fire(s);
}

/* The kernel says something about the TCP socket under an established connection: its end (ARCHITECTURE "End"). */
void sock_tcp_event(struct sock *s, u32 events)
{
	struct block *b = s->b;
	u32 set = 0;
	int err = 0;
	char c;

	if (state_of(s) != S_ACTIVE || s->fd < 0)
		return;
	long n = sys(SYS_recvfrom, s->fd, &c, 1, MSG_PEEK | MSG_DONTWAIT, 0, 0);
	if (events & EPOLLERR && (n == 0 || n == -EAGAIN || n == -EINTR || n == -ENOTCONN)) { /* behind a FIN the kernel reads on to the end */
		int e = 0;
		socklen_t len = sizeof e;
		if (sys(SYS_getsockopt, s->fd, SOL_SOCKET, SO_ERROR, &e, &len) == 0 && e)
			n = -e;
	}
	if (n == 1) {
		/* The peer's program wrote to the kernel's socket behind its library: its stream is broken. */
		set = BF_BROKEN | BF_RESET | BF_GONE | BF_FIN;
		err = ECONNABORTED;
		sys(SYS_shutdown, s->fd, SHUT_RDWR);
	} else if (n == 0) {
		set = BF_FIN;
		if (!(atomic_load(&s->rx->wflags) & RH_WDONE)) {
			set |= BF_GONE;
			if (lane_unsent(s)) {
				set |= BF_RESET;
				err = ECONNRESET;
			}
		}
	} else if (n != -EAGAIN && n != -EINTR && n != -ENOTCONN) {
		set = BF_RESET | BF_GONE | BF_FIN;
		err = (int)-n;
	}
	if (!set)
		return;
	u32 old = atomic_load(&b->flags);
	if (err && !(old & BF_RESET)) {
		int none = 0;
		atomic_compare_exchange_strong(&b->so_error, &none, err);
	}
	old = atomic_fetch_or(&b->flags, set);
	if ((old & set) != set)
		sock_fire(s);
}

/* The peer's engine has ended the connection at its side: nothing that we write from now on is read. */
void sock_gone(struct sock *s)
{
	int none = 0;

	atomic_compare_exchange_strong(&s->b->so_error, &none, ECONNRESET);
	atomic_fetch_or(&s->b->flags, BF_RESET | BF_GONE | BF_FIN);
	sock_fire(s);
}

/*
 * Half-closed peers send no second FIN when they close for good; sock_diag still tells whether a process
 * owns the other end. Called while somebody waits to write to a half-closed peer.
 */
void sock_half(struct sock *s)
{
	struct block *b = s->b;
	struct diag d;
	u32 f = atomic_load(&b->flags);

	/* Once both have shut down, TCP's connection is over, and the rings go on: nothing can be asked, nor does anybody wait. */
	if (state_of(s) != S_ACTIVE || !(f & BF_FIN) || (f & (BF_GONE | BF_SHUT_WR)) || s->fd < 0)
		return;
	int r = diag_mirror(s->fd, &d);
	if (r == 0 ? d.inode != 0 : r != -ENOENT)
		return;
	u32 set = BF_GONE;
	if (lane_unsent(s)) {
		int none = 0;
		set |= BF_RESET;
		atomic_compare_exchange_strong(&b->so_error, &none, ECONNRESET);
	}
	atomic_fetch_or(&b->flags, set);
	sock_fire(s);
}

int sock_sweep(struct sock *s)
{
	struct block *b = s->b;
	int again = 1;

	if (state_of(s) != S_ACTIVE || (atomic_load(&b->flags) & (BF_GONE | BF_PUNCHED)))
		return 0;
	int nested = lk_lock(&b->tx);
	u64 prod = atomic_load(&s->tx->prod);
	if (!nested && s->swept == prod) {
		/* Untouched since the last sweep. Where the peer has read all, the pages go; only the writer may do this:
		 * nothing can arrive meanwhile. The next write asks for sweeps again. */
		if (lane_unsent(s) == 0)
			sys(SYS_madvise, s->txbuf, s->txsize, MADV_REMOVE);
		atomic_fetch_or(&b->flags, BF_PUNCHED);
		again = 0;
	}
	s->swept = prod;
	lk_unlock(&b->tx, nested);
	return again;
}

/* ---- readiness ---- */

static u32 kernel_events(int fd, u32 want)
{
	struct pollfd p = {fd, (short)want, 0};
	struct timespec zero = {0, 0};

	return sys(SYS_ppoll, &p, 1, &zero, 0, 8) > 0 ? (u32)(u16)p.revents : 0;
}

u32 sock_events(struct sock *s)
{
	struct block *b = s->b;
	u32 st = state_of(s), ev = 0;

	if (st == S_FLUSH) {
		ev = kernel_events(s->fd, EPOLLIN | EPOLLRDNORM | EPOLLPRI | EPOLLRDHUP) & ~(u32)OUT_BITS;
		return atomic_load(&b->stage_len) < STAGE_SIZE / 2 ? ev | OUT_BITS : ev;
	}
	if (st == S_BROKEN)
		return IN_BITS | OUT_BITS | EPOLLRDHUP | EPOLLHUP | (atomic_load(&b->so_error) ? EPOLLERR : 0);
	if (st != S_ACTIVE)
		return atomic_load(&b->stage_len) < STAGE_SIZE * 3 / 4 ? OUT_BITS : 0;

	u32 f = atomic_load_explicit(&b->flags, memory_order_acquire); /* before the ring: BF_FIN means no more bytes */
	u64 used = lane_used(s);

	if (used && (used >= b->rcvlowat || used >= s->rxsize / 2))
		ev |= IN_BITS;
	if (f & (BF_FIN | BF_SHUT_RD | BF_GONE))
		ev |= IN_BITS | EPOLLRDHUP;
	if (f & (BF_SHUT_WR | BF_GONE) || LANE_OUT_READY(s, lane_room(s)))
		ev |= OUT_BITS;
	if (f & BF_RESET || ((f & BF_SHUT_WR) && (f & (BF_FIN | BF_SHUT_RD))))
		ev |= EPOLLHUP;
	if (atomic_load(&b->so_error))
		ev |= EPOLLERR;
	return ev;
}

int sock_arm(struct sock *s, u32 bell, u32 want)
{
	for (int i = 0; i < 8; i++) {
		u32 st = state_of(s);
		int ok = 1;

		if (st == S_TCP)
			return 1; /* the caller looks again and sees it */
		if (st != S_ACTIVE || !(want & (IN_BITS | OUT_BITS))) {
			ok = arm_bell(&s->b->st, bell);
			if (st == S_FLUSH)
				ok = 0; /* the kernel's IN is not ours to ring */
		} else {
			ok = bell_tell((int)(bell & (BELL_MAX - 1)), s->peer) == 0;
			if (want & IN_BITS)
				ok &= arm_bell(&s->rx->rarm, bell);
			if (want & OUT_BITS)
				ok &= arm_bell(&s->tx->warm, bell);
			if ((want & OUT_BITS) && (atomic_load(&s->b->flags) & (BF_FIN | BF_GONE)) == BF_FIN)
				engine_post(REQ_HALF, s, 0);
		}
		if (S->engine != ENG_READY)
			ok = 0;
		if (state_of(s) == st)
			return ok;
	}
	return 0;
}

/* ---- leaving early ---- */

static void wait_decided(struct sock *s, i64 until)
{
	while (negotiating(state_of(s)) && now_ns() < until)
		lane_wait(s, 0, until);
}

/* Blocks, bounded, until the staged bytes are the kernel's. */
static void flush_out(struct sock *s)
{
	i64 until = now_ns() + FLUSH_NS;

	while (state_of(s) == S_FLUSH && sock_flush(s) && now_ns() < until) {
		struct pollfd p = {s->fd, POLLOUT, 0};
		struct timespec t = {0, 50000000};
		sys(SYS_ppoll, &p, 1, &t, 0, 8);
	}
}

/* Withdraws, or asks the engine to finish or decline: 1 = it has to be waited for. */
static int leaving(struct sock *s, u32 reason, int decline)
{
	struct block *b = s->b;

	if (state_of(s) == S_OFFERED && reg_withdraw((int)b->slot, b->cookie)) {
		reg_done((int)b->slot, b->cookie); /* the engine may never hear of this connection: closed before its request was read */
		sock_fallback(s, reason, 0);
		engine_post(REQ_SETTLE, s, (u64)reason << 32);
	}
	if (!negotiating(state_of(s)))
		return 0;
	engine_post(REQ_SETTLE, s, (u64)reason << 32 | (u64)decline);
	return 1;
}

/* wait: what is staged is the kernel's then, or the engine goes on with it. */
static void leave(struct sock *s, u32 reason, int decline, int wait)
{
	if (leaving(s, reason, decline))
		wait_decided(s, now_ns() + SETTLE_NS);
	if (wait)
		flush_out(s);
}

/* Not used yet, and it shall be plain: a client that offered is told, or it would wait until its patience ends. */
static void leave_accepted(struct sock *s, u32 reason)
{
	struct block *b = s->b;

	if (state_of(s) != S_ACCEPTED)
		return;
	if (atomic_load(&b->flags) & BF_AGREED) {
		int nested = lk_lock(&b->lock);
		if (state_of(s) == S_ACCEPTED) {
			if (b->source != SOURCE_KERNEL || hook_take(s->fd) == 0)
				hook_decline(s->fd, 0, reason);
			sock_fallback(s, reason, 0);
		}
		lk_unlock(&b->lock, nested);
		return;
	}
	sock_fallback(s, reason, 0);
	reg_refuse(s->fd);
}

void sock_settle(struct sock *s, int wait)
{
	leave_accepted(s, R_LEFT_EARLY);
	leave(s, R_LEFT_EARLY, 0, wait);
}

void sock_leave(struct sock *s, u32 reason)
{
	leave_accepted(s, reason);
	leave(s, reason, 1, 1);
}

/* Before fork, exec and exit nothing may be half-negotiated. An accepted socket that nobody used yet is not: it
 * stays what it is for the process that will use it. All are asked before the first is waited for. */
void settle_all(void)
{
	i64 until = now_ns() + SETTLE_NS;

	for (int wait = 0; wait < 2; wait++)
		for (u32 i = 1, top = atomic_load(&S->sock_top); i < top && i < SOCK_MAX; i++) {
			struct sock *s = &S->sock[i];
			if (!atomic_load(&s->refs) || !s->b)
				continue;
			u32 st = state_of(s);
			if ((!negotiating(st) && st != S_FLUSH) || !(s = sock_at(i, s->gen)))
				continue;
			if (wait) {
				wait_decided(s, until);
				flush_out(s);
			} else {
				leaving(s, R_LEFT_EARLY, 0);
			}
			sock_drop(s);
		}
}

/* What was written and can go nowhere any more: the peer sees a reset, and not the end of a stream that lacks its end. */
void abandon_all(void)
{
	for (u32 i = 1, top = atomic_load(&S->sock_top); i < top && i < SOCK_MAX; i++) {
		struct sock *s = &S->sock[i];
		if (!atomic_load(&s->refs) || !s->b || state_of(s) != S_CLC || !(s = sock_at(i, s->gen)))
			continue;
		if (state_of(s) == S_CLC && atomic_load(&s->b->stage_len) && atomic_load(&s->b->procs) == 1 && s->fd >= 0)
			tcp_reset(s->fd);
		sock_drop(s);
	}
}

/* Does a thread or a bell of this side wait to write? */
int sock_waits(struct sock *s)
{
	return state_of(s) == S_ACTIVE && atomic_load(&s->tx->warm.w) != 0;
}

const char *reason_word(u32 reason)
{
	static const char *const words[] = {
#define X(s, w) w,
		SMCR_REASONS(X)
#undef X
	};
	return reason < R_COUNT ? words[reason] : "unknown";
}

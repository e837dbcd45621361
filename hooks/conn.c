/*
 * Rendezvous from the program's side: listen publishes, connect offers, accept marks (ARCHITECTURE "Life of
 * one connection", 1-3). Nothing here starts Go unless the other end is known to be one of ours.
 */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/types.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>

#include "../kernel/smcr.h"
#include "../preload/real.h"
#include "sys.h"

#define REQUIRE_NS 1000000000ll /* SMC-R is required: how long connect waits for the decision */
#define TCP_IS_ESTABLISHED 1	/* enum of net/tcp_states.h, as sock_diag reports it */
#define TCP_IS_SYN_RECV 3	/* our ACK is on its way through a busy CPU's backlog */
#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static int sockopt_int(int fd, int level, int name)
{
	int v = -1;
	socklen_t len = sizeof v;

	return sys(SYS_getsockopt, fd, level, name, &v, &len) == 0 ? v : -1;
}

static int is_tcp(int fd)
{
	/* a raw socket may have TCP's number, too; another family may not */
	return sockopt_int(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP &&
	       (((unsigned)fd < FD_MAX && (atomic_load(&S->fd_early[fd]) & EARLY_TCP)) || sockopt_int(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
}

static void set_kind(int fd, int kind)
{
	if ((unsigned)fd < FD_MAX)
		atomic_store_explicit(&S->fd_kind[fd], (u8)kind, memory_order_release);
}

/* What was noted of the number before its connect is about another socket, or has had its effect. */
static void early_over(int fd, int mine)
{
	if ((unsigned)fd < FD_MAX && unlikely(atomic_load_explicit(&S->fd_early[fd], memory_order_relaxed)) && (mine || !borrowed()))
		atomic_store_explicit(&S->fd_early[fd], 0, memory_order_relaxed);
}

/* ---- server ---- */

/* Our own may listen there: then the kernel hook is told, which old kernels want before listen. 1 = it has been. */
static int mark(int fd)
{
	struct verdict v;

	return rules_listen(fd, &v) == 0 && reg_ready() == 0 && !reg_shell() && hook_offer(fd) == 0;
}

static void publish(int fd, int marked)
{
	struct verdict v;
	int r = rules_listen(fd, &v);

	if (r == 0 && reg_ready() == 0 && reg_shell())
		r = -R_STREAM;
	if (r == 0)
		r = S->discovery & 1u << SOURCE_REGISTRY ? reg_listen(fd) : -R_NO_CLIENT;
	marked |= v.known;
	if (r == 0 || marked)
		fd_seen(fd);
	set_kind(fd, r == 0 || marked ? FD_LISTENER : FD_PLAIN);
}

int h_listen(int fd, int backlog)
{
	int e = errno, marked = 0, ours = kind_of(fd) <= FD_PLAIN && S->mode != MODE_OFF && !borrowed() && is_tcp(fd);

	if (ours && (unsigned)fd < FD_MAX && (atomic_load(&S->fd_early[fd]) & EARLY_OUT))
		ours = 0;
	if (ours)
		marked = mark(fd); /* and the rules are read: whoever connects before the offer is there is plain */
	errno = e;
	int r = S->real->listen(fd, backlog);

	e = errno;
	if (ours && r == 0)
		publish(fd, marked);
	else if (marked)
		hook_withdraw(fd);
	errno = e;
	return r;
}

/* must: SMC-R is required, so the connection ends here. */
static void plain(int fd, u32 reason, int must)
{
	if ((unsigned)fd < FD_MAX)
		hook_numbers(fd, 1u << FD_UNKNOWN | 1u << FD_ASKED | 1u << FD_JOINING, FD_PLAIN, 0);
	count_tcp(reason, must);
}

/* The listener may be one that offers nothing because of a rule: what it accepts is counted all the same. */
static void accepted(int listener, int fd)
{
	int offers = kind_of(listener) == FD_LISTENER;
	struct verdict v;

	rules_accepted(fd, &v);
	int verdict = offers ? hook_verdict(fd) : SMCR_UNKNOWN;
	if (verdict >= SMCR_IPSEC && !v.reason)
		v.reason = R_IPSEC;
	if (v.reason) {
		if (verdict == SMCR_YES || verdict == SMCR_DECLINE || (verdict == SMCR_IPSEC && v.known))
			hook_decline(fd, 0, v.reason);
		else if (offers)
			reg_refuse(fd);
		else if (!is_tcp(fd))
			return;
		if (v.use == USE_REQUIRE)
			tcp_reset(fd);
		plain(fd, v.reason, v.use == USE_REQUIRE);
		return;
	}
	if (!offers)
		return;
	u32 agreed = verdict == SMCR_YES ? SOURCE_KERNEL : v.known ? SOURCE_RULES : SOURCE_NONE;
	if (!agreed && v.use != USE_REQUIRE && reg_quiet()) { /* an offer is made before its SYN */
		plain(fd, R_NO_CLIENT, 0);
		return;
	}
	struct sock *s = sock_new(fd, 1, S_ACCEPTED);
	if (!s) {
		if (agreed) {
			hook_decline(fd, 0, R_MEMORY);
			hook_withdraw(listener);
		}
		long probe = sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 0);
		if (probe >= 0)
			sys(SYS_close, probe);
		int r = reg_ready(); /* another user since the fork: nginx's workers */
		count_tcp(probe == -EMFILE ? R_NO_FD : r < 0 ? (u32)-r : R_MEMORY, 0);
		return;
	}
	if (v.use == USE_REQUIRE)
		atomic_fetch_or(&s->b->flags, BF_REQUIRE);
	if ((v.eager || agreed) && (s = sock_get(fd, 0))) {
		if (agreed) {
			sock_agreed(s, agreed);
			/* Its peer gives up after a few seconds, and this thread may do something else for as long. */
			int r = engine_start();
			if (r == 0)
				engine_post(REQ_DUE, s, 0);
			else
				hook_withdraw(listener); /* the next shall not have to be told */
			v.eager |= r < 0;
		}
		if (v.eager)
			sock_use(s);
		sock_put(s);
	}
}

int h_accept4(int fd, struct sockaddr *sa, socklen_t *len, int flags)
{
	if (kind_of(fd) == FD_HIDDEN) {
		errno = EBADF;
		return -1;
	}
	if (kind_of(fd) == FD_UNKNOWN && S->mode != MODE_OFF && sockopt_int(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1) {
		/* Inherited (pre-fork over exec, inetd, socket activation): from now on its clients find us. */
		int e = errno;
		if (!borrowed() && is_tcp(fd))
			publish(fd, mark(fd));
		errno = e;
	}
	int n = flags ? S->real->accept4(fd, sa, len, flags) : S->real->accept(fd, sa, len);

	if (n < 0)
		return n;
	if (kind_of(n) != FD_UNKNOWN)
		fd_closed(n); /* closed behind our back and reused */
	early_over(n, 0);
	if (kind_of(fd) == FD_LISTENER || kind_of(fd) == FD_PLAIN) {
		int e = errno;
		if (!borrowed())
			accepted(fd, n);
		errno = e;
	}
	return n;
}

int h_accept(int fd, struct sockaddr *sa, socklen_t *len)
{
	return h_accept4(fd, sa, len, 0);
}

/* ---- client ---- */

/* IPsec, and TCP options that SMC-R cannot carry or that put data on the SYN. */
static int opted_out(int fd)
{
	char ulp[16];
	socklen_t len = sizeof ulp;

	if (atomic_load(&S->fd_early[fd]) & EARLY_OUT)
		return R_IPSEC;
	return sockopt_int(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT) == 1 || sockopt_int(fd, IPPROTO_TCP, TCP_REPAIR) == 1 ||
			       (sys(SYS_getsockopt, fd, IPPROTO_TCP, TCP_ULP, ulp, &len) == 0 && len > 0)
		       ? R_SOCKOPT
		       : 0;
}

/* Before the SYN: is somebody of ours listening there, and may we? A slot of the registry, or -1 = plain, for that reason.
 * *marked: the SYN offers. */
static int offer(int fd, const struct sockaddr *sa, socklen_t len, u64 *cookie, struct verdict *v, int *marked)
{
	int r, no = 0;

	if (S->mode == MODE_OFF || kind_of(fd) != FD_UNKNOWN || len < sizeof(struct sockaddr_in) ||
	    (sa->sa_family != AF_INET && sa->sa_family != AF_INET6) || borrowed())
		return -1;
	if (!atomic_load_explicit(&S->rules, memory_order_relaxed) && !is_tcp(fd))
		return -1; /* a name server is asked by UDP: no reason to read the rules */
	rules_connect(sa, len, v);
	if (reg_ready() < 0) {
		v->known = v->known && is_tcp(fd);
		return -1;
	}
	if (!is_tcp(fd)) {
		v->reason = v->known = 0;
		return -1;
	}
	/* What a rule knows cannot be withdrawn, so what can be is not begun. */
	if (v->reason)
		r = -(int)v->reason;
	else if (!v->known && reg_shell())
		r = no = -R_STREAM;
	else if (!v->known && v->use != USE_REQUIRE && reg_haste(sa, len))
		r = no = -R_HASTE;
	else
		r = S->discovery & 1u << SOURCE_REGISTRY && !v->known ? reg_lookup(sa, len) : -R_NO_LISTENER;
	if (r == 0)
		r = no = -opted_out(fd);
	if (r == 0 && epoll_early(fd) < 0)
		r = no = -R_EPOLL_EARLY;
	*marked = !no && !v->reason && hook_offer(fd) == 0;
	if (*marked && reg_shunned(sa, len))
		no = -R_NOT_SMC;
	if (*marked && !no && atomic_load(&S->engine) == ENG_DEAD)
		no = -(int)atomic_load(&S->engine_reason); /* it would have to decline */
	if (*marked && r < 0 && !no)
		no = -opted_out(fd);
	if (*marked && r < 0 && !no)
		no = epoll_early(fd) < 0 ? -R_EPOLL_EARLY : 0;
	if (*marked && no && !v->known) {
		hook_withdraw(fd);
		*marked = 0;
		r = r < 0 ? no : r;
	}
	if (r == 0)
		r = engine_start(); /* before the offer: once somebody has claimed it, plain TCP is no longer possible */
	if (r == 0)
		r = reg_offer(fd, cookie);
	if (r < 0) {
		v->reason = (u32)-r;
		return -1;
	}
	reg_set_gid(r, *cookie, S->gid);
	return r;
}

/* 1 = plain TCP is agreed; 0 = a server has claimed in this very moment and would take our bytes for CLC. */
static int take_back(int fd, int slot, u64 cookie, u32 reason, int must)
{
	if (!reg_withdraw(slot, cookie))
		return 0;
	reg_done(slot, cookie);
	plain(fd, reason, must);
	return 1;
}

static int take_over(struct sock *s, int fd)
{
	int early = epoll_early(fd);

	if (early > 0)
		early = epoll_take(s, fd);
	atomic_store(&S->fd_early[fd], 0);
	return early < 0 ? -1 : 0;
}

/* What the program made of the socket before its connect: other numbers, a place in an epoll set. 0, or it has to stay
 * plain. Until here epoll_ctl of another thread is written down, too, and afterwards it finds what was taken over. */
static int catch_up(struct sock *s, int fd)
{
	u8 was = EARLY_TCP;

	if (likely(atomic_compare_exchange_strong(&S->fd_early[fd], &was, 0)) || !was)
		return 0;
	u64 old = quiet();
	int nested = lk_lock(&S->early_lk), r = 0, top = was & EARLY_DUP ? (int)atomic_load(&S->fd_top) : 0;
	for (int other = 0; other < top && other < FD_MAX; other++) {
		if (other == fd || !(atomic_load_explicit(&S->fd_early[other], memory_order_relaxed) & EARLY_DUP) ||
		    (kind_of(other) != FD_UNKNOWN && !is_undecided(kind_of(other))) || fd_inode(other) != s->ino)
			continue;
		fd_dup(fd, other);
		r |= take_over(s, other);
	}
	r |= take_over(s, fd);
	lk_unlock(&S->early_lk, nested);
	unquiet(old);
	return r;
}

/* The kernel has connected (or loopback has, unless the listener's queue is full, while the program is told EINPROGRESS). 0 or an errno. */
static int offered(int fd, int slot, u64 cookie, int must)
{
	struct diag d;
	struct sock *s;
	int e = diag_mirror(fd, &d);

	if (e < 0)
		d = (struct diag){0};
	/* Claimed by now, it was ours: its program has been so quick that it has closed already. */
	if (d.tcp_state != TCP_IS_ESTABLISHED && d.tcp_state != TCP_IS_SYN_RECV &&
	    take_back(fd, slot, cookie, e == -ENOTCONN && diag_loopback(fd) ? R_QUEUE_FULL : R_REMOTE, must))
		return 0;
	s = sock_new(fd, 0, S_OFFERED) ? sock_get(fd, 0) : 0; /* another thread may close it at any time */
	if (!s) {
		if (take_back(fd, slot, cookie, R_MEMORY, must))
			return 0;
		reg_done(slot, cookie);
		plain(fd, R_MEMORY, 1);
		tcp_reset(fd);
		return ECONNREFUSED;
	}
	if (must)
		atomic_fetch_or(&s->b->flags, BF_REQUIRE);
	s->b->source = SOURCE_REGISTRY;
	s->b->slot = (u32)slot;
	s->b->peer_cookie = d.cookie;
	int bad = catch_up(s, fd);
	engine_post(REQ_CLIENT, s, (u64)slot | (bad ? REQ_LEAVE : 0));
	if (unlikely(bad))
		sock_leave(s, R_EPOLL_EARLY);
	sock_put(s);
	return 0;
}

int conn_agreed(int fd, u32 source, int must)
{
	int r = source == SOURCE_KERNEL ? hook_take(fd) : -opted_out(fd), theirs = r == -EBUSY;

	if (r == 0 && hook_verdict(fd) >= SMCR_IPSEC)
		r = -R_IPSEC;
	if (r == 0)
		r = engine_start();
	struct sock *s = (r == 0 || theirs) && sock_new(fd, 0, theirs ? S_ACCEPTED : S_CLC) ? sock_get(fd, 0) : 0;
	if (!s) {
		r = r < 0 ? -r : reg_ready() < 0 ? R_REGISTRY : R_MEMORY;
		hook_decline(fd, 1, (u32)r);
		plain(fd, (u32)r, must);
		early_over(fd, 1);
		if (must)
			tcp_reset(fd);
		return 0;
	}
	if (must)
		atomic_fetch_or(&s->b->flags, BF_REQUIRE);
	if (theirs) {
		atomic_fetch_or(&s->b->flags, BF_LOST); /* a process that shares the socket with us negotiates on it */
	} else {
		sock_agreed(s, source);
		int bad = catch_up(s, fd);
		engine_post(REQ_CLIENT, s, bad ? REQ_LEAVE : 0);
		if (unlikely(bad))
			sock_leave(s, R_EPOLL_EARLY);
	}
	sock_put(s);
	return 1;
}

/* Not connected yet: decided at the program's next call. */
static void later(int fd)
{
	fd_seen(fd);
	hook_numbers(fd, 1u << FD_UNKNOWN | 1u << FD_JOINING, FD_ASKED, 0);
	atomic_store(&S->asked, 1);
}

/* A rule says what nobody else does: the peer speaks SMC-R. That decides. */
static int known(int fd, int connected, int must)
{
	if (connected) {
		conn_agreed(fd, SOURCE_RULES, must);
	} else {
		atomic_fetch_or(&S->fd_early[fd], EARLY_AGREED);
		later(fd);
	}
	return 1;
}

/* The SYN offered. 1 = that decides; 0 = the peer does not, IPsec protects it, or a server has claimed by the registry what the kernel cannot tell yet. */
static int asked(int fd, int *slot, u64 cookie, struct verdict *v)
{
	int verdict = hook_verdict(fd);

	if (verdict == SMCR_NO || (*slot >= 0 && !reg_withdraw(*slot, cookie) && reg_state(*slot, cookie) == REG_CLAIMED))
		return 0;
	if (*slot >= 0)
		reg_done(*slot, cookie);
	if (verdict == SMCR_IPSEC) {
		*slot = -1;
		v->reason = R_IPSEC;
		return 0;
	}
	if (verdict == SMCR_YES || verdict == SMCR_DECLINE) {
		conn_agreed(fd, SOURCE_KERNEL, v->use == USE_REQUIRE);
		return 1;
	}
	later(fd);
	return 1;
}

/* SMC-R is required: the program learns from connect that there is no SMC-R. */
static int insist(int fd)
{
	i64 until = now_ns() + REQUIRE_NS;
	struct pollfd p = {fd, POLLOUT, 0};
	struct timespec t = {0, REQUIRE_NS - 1};
	int ok = 0;

	if (kind_of(fd) == FD_ASKED)
		sys(SYS_ppoll, &p, 1, &t, 0, 8);
	struct sock *s = sock_get(fd, 0);

	if (s) {
		u32 st;
		while ((st = atomic_load(&s->b->state)) == S_OFFERED || st == S_CLC) {
			if (now_ns() >= until) {
				sock_leave(s, R_UNCLAIMED);
				break;
			}
			lane_wait(s, 0, until);
		}
		ok = atomic_load(&s->b->state) == S_ACTIVE;
		sock_put(s);
	}
	if (ok)
		return 0;
	tcp_reset(fd);
	errno = ECONNREFUSED;
	return -1;
}

/*
 * connect to AF_UNSPEC: the kernel ends the connection with a reset. What the socket is connected to next is plain: in which epoll
 * sets it is by now, only the kernel knows.
 */
static int disconnect(struct sock *s, int fd, const struct sockaddr *sa, socklen_t len)
{
	int before = errno;

	sock_leave(s, R_LEFT_EARLY);
	sock_hand_back(s); /* first: the engine shall not see, and take, the error that this leaves for the program */
	sock_put(s);
	errno = before;
	int r = S->real->connect(fd, sa, len);
	if (r == 0 && kind_of(fd) == FD_PLAIN) {
		atomic_store(&S->fd_early[fd], EARLY_TCP | EARLY_EPOLL | EARLY_UNSURE);
		set_kind(fd, FD_UNKNOWN);
	}
	return r;
}

/* connect once more on a socket that is about to be connected. */
static int again(int fd, const struct sockaddr *sa, socklen_t len)
{
	int r = S->real->connect(fd, sa, len), e = errno;

	if (r < 0 && (e == EALREADY || e == EINPROGRESS || e == EINTR))
		return r;
	if (r == 0 && sa->sa_family == AF_UNSPEC) {
		conn_left(fd);
		hook_numbers(fd, 1u << FD_ASKED | 1u << FD_JOINING, FD_UNKNOWN, 0);
	} else
		hook_look(fd); /* connected, failed, or, if only the arguments were bad, still on its way */
	errno = e;
	return r;
}

/* A connect that may offer. */
struct attempt {
	int fd, slot, marked, joins;
	u64 cookie, ino;
};

static void take_slot(int slot, u64 cookie)
{
	if (slot < 0)
		return;
	reg_withdraw(slot, cookie);
	reg_done(slot, cookie);
}

/* There is no connection. */
static void give_up(const struct attempt *a)
{
	if (a->marked)
		hook_withdraw(a->fd);
	take_slot(a->slot, a->cookie);
}

/* Cancelled: the kernel connects all the same. */
static void cancelled(void *p)
{
	const struct attempt *a = p;

	if (a->joins)
		hook_orphan(a->fd, a->ino);
}

static __attribute__((noinline)) int try(struct attempt *a, const struct sockaddr *sa, socklen_t len)
{
	int r;

	pthread_cleanup_push(cancelled, a);
	r = S->real->connect(a->fd, sa, len);
	pthread_cleanup_pop(0);
	return r;
}

/* Connected, or about to be. 0, or an errno. */
static int goes_on(struct attempt *a, struct verdict *v, int connected)
{
	int must = v->use == USE_REQUIRE, bad = 0;

	/* What was noted before the connect stays until it is decided. */
	if ((a->marked && asked(a->fd, &a->slot, a->cookie, v)) || (a->slot < 0 && v->known && known(a->fd, connected, must)))
		return 0;
	if (a->slot >= 0)
		bad = offered(a->fd, a->slot, a->cookie, must);
	else if (v->reason)
		plain(a->fd, v->reason, must);
	if (!bad)
		early_over(a->fd, a->slot >= 0 || v->reason); /* no child of vfork gets one */
	return bad;
}

void conn_left(int fd)
{
	u64 cookie;
	int slot = reg_offered(fd, &cookie);

	take_slot(slot, cookie);
}

void conn_joined(int fd)
{
	struct attempt a = {.fd = fd, .marked = 1};
	struct verdict v = {.use = S->mode == MODE_REQUIRE ? USE_REQUIRE : USE_SMC};
	struct sockaddr_storage to;
	socklen_t len = sizeof to;

	a.slot = reg_offered(fd, &a.cookie);
	if (sys(SYS_getpeername, fd, &to, &len) < 0) { /* failed, or the kernel has not begun */
		give_up(&a);
	} else {
		rules_connect((const struct sockaddr *)&to, len, &v);
		a.marked = hook_verdict(fd) != SMCR_UNKNOWN;
		goes_on(&a, &v, 1);
		if (v.use == USE_REQUIRE && kind_of(fd) != FD_SOCK)
			tcp_reset(fd);
	}
	hook_joined(fd);
}

int h_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	if (kind_of(fd) == FD_HIDDEN) {
		errno = EBADF;
		return -1;
	}
	int good = kind_of(fd) != FD_PLAIN && len >= sizeof sa->sa_family && len <= sizeof(struct sockaddr_storage) && !unreadable(sa, len);
	if (unlikely(kind_of(fd) == FD_SOCK && good && sa->sa_family == AF_UNSPEC) && !borrowed()) {
		struct sock *s = sock_get(fd, 1);
		if (s)
			return disconnect(s, fd, sa, len);
	}
	if (unlikely(is_undecided(kind_of(fd))) && !borrowed() && is_undecided(hook_look(fd)))
		return again(fd, sa, len);
	int before = errno, fresh = kind_of(fd) == FD_UNKNOWN;
	struct attempt a = {.fd = fd, .slot = -1};
	struct verdict v = {.use = S->mode == MODE_REQUIRE ? USE_REQUIRE : USE_SMC};

	if (good)
		a.slot = offer(fd, sa, len, &a.cookie, &v, &a.marked);
	a.joins = a.slot >= 0 || a.marked || v.known;
	if (a.joins)
		a.ino = hook_join(fd);
	errno = before;

	int r = try(&a, sa, len), e = errno, bad = 0;
	u64 old = a.joins ? quiet() : 0; /* a handler that uses the socket would meet it undecided */
	if (a.joins)
		a.fd = hook_decides(fd, a.ino);
	/* Interrupted, the kernel connects all the same. Refused meanwhile, there is no connection, and the program may try once more. */
	int on = a.fd >= 0 && (r == 0 || ((e == EINPROGRESS || e == EINTR) && !diag_closed(a.fd)));

	if (on)
		bad = goes_on(&a, &v, r == 0);
	else if (a.fd >= 0)
		give_up(&a);
	if (a.joins) {
		if (a.fd >= 0)
			hook_joined(a.fd);
		unquiet(old);
	}
	if (bad) {
		errno = bad;
		return -1;
	}
	if (v.use == USE_REQUIRE && fresh && on && good && (sa->sa_family == AF_INET || sa->sa_family == AF_INET6) && is_tcp(a.fd))
		return insist(a.fd);
	errno = e;
	return r;
}

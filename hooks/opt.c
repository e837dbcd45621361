/*
 * Socket options, ioctl and shutdown. Nearly every option is the kernel's, which keeps the TCP socket; the table below names
 * those that mean something to the rings as well, or that SMC-R cannot carry.
 */
#include "../preload/real.h"
#include "shim.h"
#include "sys.h"

#include <errno.h>
#include <limits.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <string.h>
#include <sys/time.h>

#ifndef SO_RCVTIMEO_NEW
#define SO_RCVTIMEO_NEW 66
#define SO_SNDTIMEO_NEW 67
#endif

static u32 state_of(const struct sock *s)
{
	return atomic_load_explicit(&s->b->state, memory_order_acquire);
}

static int early(u32 st)
{
	return st == S_ACCEPTED || st == S_OFFERED || st == S_CLC || st == S_FLUSH;
}

/* ---- the table ---- */

enum action {
	KERNEL,	 /* ours to know only that the kernel does it */
	TIMES,	 /* kernel, then our copy is loaded anew */
	ERRNO,	 /* SO_ERROR: ours first, then the kernel's */
	INFO,	 /* TCP_INFO: the kernel's, with the rings' counts */
	OUT,	 /* not with SMC-R: plain TCP if there is still time, then the kernel; else `late` */
	HINT,	 /* as if the kernel did not know it: who asks goes on without, and SMC-R is worth more */
	LISTEN,	 /* its listeners are not published */
};

static const struct option {
	int level, name;
	u8 get, set;
	int late; /* OUT, established: this errno, or 0 = the kernel answers */
} options[] = {
	{SOL_SOCKET, SO_ERROR, ERRNO, KERNEL, 0},
	{SOL_SOCKET, SO_RCVTIMEO, KERNEL, TIMES, 0},
	{SOL_SOCKET, SO_SNDTIMEO, KERNEL, TIMES, 0},
	{SOL_SOCKET, SO_RCVTIMEO_NEW, KERNEL, TIMES, 0},
	{SOL_SOCKET, SO_SNDTIMEO_NEW, KERNEL, TIMES, 0},
	{SOL_SOCKET, SO_RCVLOWAT, KERNEL, TIMES, 0},
	{SOL_SOCKET, SO_ZEROCOPY, KERNEL, OUT, ENOPROTOOPT},
	{SOL_SOCKET, SO_OOBINLINE, KERNEL, OUT, 0}, /* who asks for it expects urgent data, which rings carry inline and unannounced */
	{SOL_SOCKET, SO_PEEK_OFF, KERNEL, OUT, EOPNOTSUPP},
	{IPPROTO_TCP, TCP_INFO, INFO, KERNEL, 0},
	{IPPROTO_TCP, TCP_ULP, KERNEL, OUT, ENOENT}, /* kTLS: as if the kernel did not know it, TLS libraries go on by themselves */
	{IPPROTO_TCP, TCP_MD5SIG, KERNEL, OUT, 0},
	{IPPROTO_TCP, TCP_MD5SIG_EXT, KERNEL, OUT, 0},
	{IPPROTO_TCP, TCP_REPAIR, KERNEL, OUT, EPERM},
	{IPPROTO_TCP, TCP_FASTOPEN, KERNEL, OUT, 0},
	{IPPROTO_TCP, TCP_FASTOPEN_CONNECT, KERNEL, OUT, 0},
	{IPPROTO_TCP, TCP_INQ, KERNEL, HINT, ENOPROTOOPT}, /* gRPC, on each connection */
	{IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, OUT, KERNEL, EOPNOTSUPP},
	{IPPROTO_TCP, TCP_DEFER_ACCEPT, KERNEL, LISTEN, 0},
};

static const struct option ipsec = {.set = OUT};

static const struct option *option_of(int level, int name)
{
	static const struct option other;

	if (ipsec_option(level, name))
		return &ipsec;
	for (unsigned i = 0; i < sizeof options / sizeof *options; i++)
		if (options[i].level == level && options[i].name == name)
			return &options[i];
	return &other;
}

/* 0 = let the kernel answer now; else -1 and errno. */
static int opt_out(struct sock *s, const struct option *o)
{
	u32 st = state_of(s);

	if (o->set == HINT && st != S_FLUSH) {
		errno = o->late;
		return -1;
	}
	if (early(st))
		sock_leave(s, o == &ipsec ? R_IPSEC : R_SOCKOPT);
	if (o->late && state_of(s) == S_ACTIVE) {
		errno = o->late;
		return -1;
	}
	return 0;
}

/* ---- options ---- */

i64 timeo_of(int fd, int name)
{
	struct timeval t = {0, 0};
	socklen_t len = sizeof t;

	if (sys(SYS_getsockopt, fd, SOL_SOCKET, name, &t, &len) < 0 || t.tv_sec > LLONG_MAX / 2000000)
		return 0;
	return (i64)t.tv_sec * 1000000 + t.tv_usec;
}

static void timeo_load(struct sock *s, int fd)
{
	int low = 0;
	socklen_t len = sizeof low;

	s->b->rcvtimeo_us = timeo_of(fd, SO_RCVTIMEO);
	s->b->sndtimeo_us = timeo_of(fd, SO_SNDTIMEO);
	if (sys(SYS_getsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &low, &len) == 0 && low >= 0)
		s->b->rcvlowat = (u32)low;
	atomic_fetch_or(&s->b->flags, BF_TIMEO);
}

void sock_timeo(struct sock *s)
{
	if (unlikely(!(atomic_load_explicit(&s->b->flags, memory_order_relaxed) & BF_TIMEO)) && s->fd >= 0)
		timeo_load(s, s->fd);
}

static void add(void *info, socklen_t have, size_t at, u64 n)
{
	u64 v;

	if (at + sizeof v > have)
		return;
	memcpy(&v, (u8 *)info + at, sizeof v);
	v += n;
	memcpy((u8 *)info + at, &v, sizeof v);
}

static void add_rings(struct sock *s, void *info, socklen_t have)
{
	u64 sent = atomic_load(&s->b->tx_bytes), read = atomic_load(&s->b->rx_bytes), queued = lane_unsent(s);
	u32 notsent;

	/* What lies in the peer's memory was sent; what the peer has read was acknowledged. */
	add(info, have, offsetof(struct tcp_info, tcpi_bytes_sent), sent);
	add(info, have, offsetof(struct tcp_info, tcpi_bytes_acked), sent > queued ? sent - queued : 0);
	add(info, have, offsetof(struct tcp_info, tcpi_bytes_received), read + lane_used(s));
	if (offsetof(struct tcp_info, tcpi_notsent_bytes) + sizeof notsent <= have) {
		memcpy(&notsent, (u8 *)info + offsetof(struct tcp_info, tcpi_notsent_bytes), sizeof notsent);
		notsent += (u32)queued;
		memcpy((u8 *)info + offsetof(struct tcp_info, tcpi_notsent_bytes), &notsent, sizeof notsent);
	}
}

int h_getsockopt(int fd, int level, int name, void *val, socklen_t *len)
{
	if (kind_of(fd) == FD_HIDDEN) {
		errno = EBADF;
		return -1;
	}
	const struct option *o = option_of(level, name);
	struct sock *s = o->get == KERNEL ? 0 : sock_get(fd, 1);

	if (!s)
		return S->real->getsockopt(fd, level, name, val, len);
	int r = o->get == OUT ? opt_out(s, o) : 0;
	if (r == 0)
		r = S->real->getsockopt(fd, level, name, val, len); /* checks the arguments, and clears its own error */
	if (r == 0 && o->get == ERRNO && atomic_load(&s->b->so_error)) {
		int e = atomic_exchange(&s->b->so_error, 0);
		if (e)
			memcpy(val, &e, *len < sizeof e ? *len : sizeof e);
	}
	if (r == 0 && o->get == INFO && state_of(s) == S_ACTIVE)
		add_rings(s, val, *len);
	sock_put(s);
	return r;
}

static int truth(const void *val, socklen_t len)
{
	int v = 0;

	if (val && len >= sizeof v)
		memcpy(&v, val, sizeof v);
	return v != 0;
}

int h_setsockopt(int fd, int level, int name, const void *val, socklen_t len)
{
	const struct option *o = option_of(level, name);
	int kind = kind_of(fd), r;

	if (kind == FD_HIDDEN) {
		errno = EBADF;
		return -1;
	}
	if (kind == FD_LISTENER) {
		r = S->real->setsockopt(fd, level, name, val, len);
		/* With these, clients that the registry sends would wait or bring data that belongs to nobody. */
		int protects = o == &ipsec;
		if (r == 0 && (protects || ((o->set == LISTEN || name == TCP_FASTOPEN) && level == IPPROTO_TCP && truth(val, len)))) {
			int e = errno;
			reg_unlisten(fd);
			if (protects)
				hook_withdraw(fd);
			errno = e;
		}
		return r;
	}
	if (o == &ipsec && kind <= FD_PLAIN && (unsigned)fd < FD_MAX) {
		r = S->real->setsockopt(fd, level, name, val, len);
		if (r == 0 && !borrowed())
			atomic_fetch_or(&S->fd_early[fd], EARLY_OUT);
		return r;
	}
	struct sock *s = o->set == TIMES || o->set == OUT || o->set == HINT ? sock_get(fd, 1) : 0;
	if (!s)
		return S->real->setsockopt(fd, level, name, val, len);
	r = o->set == OUT || o->set == HINT ? opt_out(s, o) : 0;
	if (r == 0)
		r = S->real->setsockopt(fd, level, name, val, len);
	if (r == 0 && o->set == TIMES) {
		int e = errno;
		timeo_load(s, fd);
		if (name == SO_RCVLOWAT)
			sock_fire(s);
		errno = e;
	}
	sock_put(s);
	return r;
}

/* ---- ioctl ---- */

static int capped(u64 n)
{
	return n > INT_MAX ? INT_MAX : (int)n;
}

/* RFC 7609 §4.8 "urgent data": at the mark means that the next byte is the urgent one, as Linux counts. */
static int at_mark(struct sock *s)
{
	u64 urg = atomic_load(&s->rx->urg);

	return (atomic_load(&s->rx->wflags) & RH_URG) && urg && atomic_load(&s->rx->cons) == urg - 1;
}

/* The kernel has checked the arguments and written its own answer; 1 = *out is ours instead. */
static int queue_answer(struct sock *s, unsigned long req, int *out)
{
	u32 st = state_of(s);

	if (st == S_TCP || st == S_ACCEPTED)
		return 0;
	if (st == S_ACTIVE) {
		*out = req == FIONREAD ? capped(lane_used(s)) : req == SIOCOUTQ ? capped(lane_unsent(s)) :
		       req == SIOCATMARK ? at_mark(s) : 0;
		return 1;
	}
	/* Before that, what the kernel has received is the handshake, and what is to be sent is staged. */
	if (req == FIONREAD || req == SIOCATMARK) {
		*out = 0;
		return st != S_FLUSH;
	}
	*out += capped(atomic_load(&s->b->stage_len));
	return 1;
}

int h_ioctl(int fd, unsigned long req, ...)
{
	va_list ap;

	va_start(ap, req);
	void *arg = va_arg(ap, void *);
	va_end(ap);
	if (kind_of(fd) == FD_HIDDEN) {
		errno = EBADF;
		return -1;
	}
	int queue = req == FIONREAD || req == SIOCOUTQ || req == SIOCOUTQNSD || req == SIOCATMARK;
	struct sock *s = queue || req == FIONBIO || req == FIOASYNC || req == FIOSETOWN || req == SIOCSPGRP ? sock_get(fd, 1) : 0;

	if (!s)
		return S->real->ioctl(fd, req, arg);
	if (queue && !sock_use(s)) {
		sock_put(s);
		return S->real->ioctl(fd, req, arg);
	}
	if (req != FIONBIO && !queue && early(state_of(s)))
		sock_leave(s, R_SOCKOPT);
	int r = S->real->ioctl(fd, req, arg), v;
	if (r == 0 && queue) {
		memcpy(&v, arg, sizeof v);
		if (queue_answer(s, req, &v))
			memcpy(arg, &v, sizeof v);
	}
	if (r == 0 && req == FIONBIO) {
		memcpy(&v, arg, sizeof v);
		if (v)
			atomic_fetch_or(&s->b->flags, BF_NONBLOCK);
		else
			atomic_fetch_and(&s->b->flags, ~BF_NONBLOCK);
	}
	sock_put(s);
	return r;
}

/* ---- shutdown ---- */

/* The kernel answers ENOTCONN for a socket in TCP_CLOSE, to getpeername and to shutdown alike. */
static int connected(int fd)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof ss;

	return sys(SYS_getpeername, fd, &ss, &len) == 0;
}

/*
 * The reading half is shut down here only: it puts nothing on the wire, and the kernel would show it to the engine as a
 * FIN. For the writing half the peer must find "sending done" (RFC 7609 §4.8) behind the last byte and before the FIN:
 * a FIN without it means that the socket is closed.
 */
static int shut(struct sock *s, int fd, int how)
{
	struct block *b = s->b;
	int r = 0;

	if (how != SHUT_WR)
		atomic_fetch_or(&b->flags, BF_SHUT_RD);
	if (how != SHUT_RD) {
		int nested = lk_lock(&b->tx);
		atomic_fetch_or(&s->tx->wflags, RH_WDONE);
		r = S->real->shutdown(fd, SHUT_WR);
		if (r == 0)
			atomic_fetch_or(&b->flags, BF_SHUT_WR);
		lk_unlock(&b->tx, nested);
		arm_fire(&s->tx->rarm, s, 0);
	}
	int e = errno;
	sock_fire(s);
	errno = e;
	return r;
}

int h_shutdown(int fd, int how)
{
	int kind = kind_of(fd), r;

	if (kind == FD_HIDDEN) {
		errno = EBADF;
		return -1;
	}
	if (kind == FD_LISTENER) {
		r = S->real->shutdown(fd, how);
		if (r == 0 && how != SHUT_WR) { /* it listens no more */
			int e = errno;
			reg_unlisten(fd);
			errno = e;
		}
		return r;
	}
	struct sock *s = how == SHUT_RD || how == SHUT_WR || how == SHUT_RDWR ? sock_get(fd, 1) : 0;
	if (!s)
		return S->real->shutdown(fd, how);
	/* A request that ends with a half close is the usual one: it does not cost the connection its SMC-R. */
	int later = how == SHUT_WR && sock_use(s) && sock_shut_later(s);
	if (!later && early(state_of(s)))
		sock_settle(s, 1);
	if (later) {
		r = 0;
	} else if (state_of(s) != S_ACTIVE) {
		r = S->real->shutdown(fd, how);
	} else if (!connected(fd)) {
		errno = ENOTCONN;
		r = -1;
	} else {
		r = shut(s, fd, how);
	}
	sock_put(s);
	return r;
}

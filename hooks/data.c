/*
 * read, write and their families on a connection of ours. Two engines, take() and put(), do the waiting;
 * everything else is argument unpacking. PASS means: plain TCP by now, the caller lets libc answer.
 */
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

#include "../preload/real.h"
#include "sys.h"

#define PASS (-1000000)
#define IOV_LIMIT 1024
#define BOUNCE_SIZE (256 * 1024)
#define LONG_NS 3600000000000ll

static u32 state_of(const struct sock *s)
{
	return atomic_load_explicit(&s->b->state, memory_order_acquire);
}

static ssize_t iov_total(const struct iovec *iov, int n, int flags)
{
	size_t sum = 0;

	if (n < 0 || n > IOV_LIMIT)
		return -EINVAL;
	if (n && wild(iov, 0))
		return -EFAULT;
	for (int i = 0; i < n; i++) {
		if (iov[i].iov_len > SSIZE_MAX)
			return -EINVAL;
		sum += iov[i].iov_len;
		if (sum > CALL_MAX)
			sum = CALL_MAX;
		if (iov[i].iov_len && !(flags & MSG_TRUNC) && wild(iov[i].iov_base, iov[i].iov_len))
			return -EFAULT;
	}
	return (ssize_t)sum;
}

static int nonblocking(const struct sock *s, int flags)
{
	return (flags & MSG_DONTWAIT) || (atomic_load(&s->b->flags) & BF_NONBLOCK);
}

static int take_error(struct sock *s)
{
	return atomic_load_explicit(&s->b->so_error, memory_order_relaxed) ? atomic_exchange(&s->b->so_error, 0) : 0;
}

static void cancelled(void *s)
{
	sock_put(s);
}

/* lane_wait reports -ETIMEDOUT where TCP reports EAGAIN (SO_RCVTIMEO), except for the artificial deadline
 * that makes a signal end a call which has already moved bytes. */
static int wait_for(struct sock *s, int dir, i64 deadline, size_t done)
{
	i64 d = deadline ? deadline : done ? now_ns() + LONG_NS : 0;
	int r;

	pthread_cleanup_push(cancelled, s); /* the call's reference must not outlive its thread */
	r = lane_wait(s, dir, d);
	pthread_cleanup_pop(0);

	return r == -ETIMEDOUT ? (deadline ? -EAGAIN : 0) : r;
}

/* ---- receiving ---- */

/* The peer is gone and everything that it sent is read: the kernel's socket shows the rest natively. */
static int hand_back(struct sock *s)
{
	u32 f = atomic_load(&s->b->flags);

	if (!(f & BF_GONE) || (f & (BF_RESET | BF_BROKEN)) || lane_used(s))
		return 0;
	sock_hand_back(s);
	return 1;
}

/* As sock_rcvlowat: how many bytes a reader that may wait waits for. */
static size_t target(const struct sock *s, size_t want, int flags)
{
	size_t low = s->b->rcvlowat;

	/* A peeker empties nothing: with as much as makes poll say IN, more may never find room. */
	if (flags & MSG_PEEK && want > s->rxsize / 2)
		want = s->rxsize / 2;
	return flags & MSG_WAITALL || low > want ? want : low ? low : 1;
}

static ssize_t take(struct sock *s, const struct iovec *iov, int n, size_t want, int flags)
{
	size_t done = 0;
	i64 deadline = 0;

	for (;;) {
		if (!sock_use(s))
			return done ? (ssize_t)done : PASS;
		u32 st = state_of(s);
		int dir = 0;

		if (st == S_FLUSH)
			return done ? (ssize_t)done : PASS;
		if (st == S_ACTIVE) {
			u32 f = atomic_load_explicit(&s->b->flags, memory_order_acquire); /* before the ring: see BF_FIN */
			size_t skip = flags & MSG_PEEK ? 0 : done;
			ssize_t r = want ? lane_read(s, iov, n, skip, flags) : lane_used(s) ? -EEXIST : 0;

			if (r == -EEXIST)
				return 0;
			if (r < 0)
				return done ? (ssize_t)done : r;
			done = skip + (size_t)r;
			if (done && (done == want || done >= target(s, want, flags)))
				return (ssize_t)done;
			if (r && !(flags & MSG_PEEK))
				continue;
			int e = done ? 0 : take_error(s);
			if (e)
				return -e;
			if (f & (BF_FIN | BF_SHUT_RD | BF_GONE)) {
				if (!done && hand_back(s))
					return PASS;
				return (ssize_t)done;
			}
			dir = EPOLLIN;
		} else if (st == S_BROKEN) {
			int e = done ? 0 : take_error(s);
			return e ? -e : (ssize_t)done;
		} else if (st != S_OFFERED && st != S_CLC) {
			continue;
		}
		if (nonblocking(s, flags))
			return done ? (ssize_t)done : -EAGAIN;
		if (!deadline) {
			sock_timeo(s);
			if (s->b->rcvtimeo_us)
				deadline = now_ns() + s->b->rcvtimeo_us * 1000;
		}
		int r = wait_for(s, dir, deadline, done);
		if (r < 0)
			return done || !want ? (ssize_t)done : r; /* who wants nothing waits once, as in the kernel, and has it */
	}
}

/* ---- sending ---- */

static ssize_t broken_pipe(int flags)
{
	if (!(flags & MSG_NOSIGNAL))
		sys(SYS_tgkill, sys(SYS_getpid), my_tid(), SIGPIPE);
	return -EPIPE;
}

static size_t stage(struct sock *s, const struct iovec *iov, int n, size_t skip)
{
	struct block *b = s->b;
	size_t put = 0;
	int nested = lk_lock(&b->tx);
	u32 st = state_of(s);

	if ((st == S_OFFERED || st == S_CLC || st == S_FLUSH) && !s->stage) {
		long p = sys(SYS_mmap, 0, STAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (p > 0 || p < -4095)
			s->stage = (u8 *)p;
	}
	if (s->stage && (st == S_OFFERED || st == S_CLC || st == S_FLUSH)) {
		u32 len = atomic_load(&b->stage_len);
		for (int i = 0; i < n; i++) {
			if (skip >= iov[i].iov_len) {
				skip -= iov[i].iov_len;
				continue;
			}
			size_t k = iov[i].iov_len - skip, room = STAGE_SIZE - len;
			if (k > room)
				k = room;
			memcpy(s->stage + len, (u8 *)iov[i].iov_base + skip, k);
			len += (u32)k;
			put += k;
			skip = 0;
			if (len == STAGE_SIZE)
				break;
		}
		atomic_store(&b->stage_len, len);
	}
	lk_unlock(&b->tx, nested);
	return put;
}

/* Fell back in the middle of a call: the rest follows the staged bytes, in order, over TCP. */
static ssize_t put_rest(struct sock *s, const struct iovec *iov, int n, size_t done, int flags)
{
	size_t skip = done;

	for (int i = 0; i < n; i++) {
		while (skip < iov[i].iov_len) {
			ssize_t r = S->real->send(s->fd, (u8 *)iov[i].iov_base + skip, iov[i].iov_len - skip, flags);
			if (r < 0)
				return (ssize_t)done; /* the next call meets the error */
			done += (size_t)r;
			skip += (size_t)r;
		}
		skip -= iov[i].iov_len;
	}
	return (ssize_t)done;
}

static ssize_t put(struct sock *s, const struct iovec *iov, int n, size_t want, int flags)
{
	size_t done = 0;
	i64 deadline = 0;

	for (;;) {
		if (!sock_use(s))
			return done ? put_rest(s, iov, n, done, flags) : PASS;
		u32 st = state_of(s), f = atomic_load(&s->b->flags);
		int dir = 0;

		if (st == S_BROKEN) {
			int e = done ? 0 : take_error(s);
			return done ? (ssize_t)done : e ? -e : broken_pipe(flags);
		}
		if (st == S_ACTIVE) {
			int e = take_error(s);
			if (e)
				return done ? (atomic_store(&s->b->so_error, e), (ssize_t)done) : e == EPIPE ? broken_pipe(flags) : -e;
			if (f & BF_SHUT_WR)
				return done ? (ssize_t)done : broken_pipe(flags);
			if (f & BF_GONE) {
				if (done)
					return (ssize_t)done;
				if (f & (BF_RESET | BF_BROKEN))
					return broken_pipe(flags);
				hand_back(s);
				return PASS; /* nobody reads: the kernel answers as it does to a closed peer */
			}
			ssize_t r = lane_write(s, iov, n, done);
			if (r < 0)
				return done ? (ssize_t)done : r;
			done += (size_t)r;
			if (done == want)
				return (ssize_t)done;
			if (r || (atomic_load(&s->b->flags) & BF_GONE))
				continue;
			dir = EPOLLOUT;
			if (f & BF_FIN)
				engine_post(REQ_HALF, s, 0);
		} else if (st == S_OFFERED || st == S_CLC || st == S_FLUSH) {
			if (f & BF_SHUT_WR)
				return done ? (ssize_t)done : broken_pipe(flags);
			done += stage(s, iov, n, done);
			if (state_of(s) == S_FLUSH)
				sock_flush(s);
			if (done == want)
				return (ssize_t)done;
			if (state_of(s) != st)
				continue;
			if (st == S_OFFERED || (st == S_CLC && s->b->role == 0))
				engine_post(REQ_STAGE_FULL, s, 0);
		} else {
			continue;
		}
		if (nonblocking(s, flags)) {
			epoll_sock_full(s);
			return done ? (ssize_t)done : -EAGAIN;
		}
		if (!deadline) {
			sock_timeo(s);
			if (s->b->sndtimeo_us)
				deadline = now_ns() + s->b->sndtimeo_us * 1000;
		}
		int r = wait_for(s, dir, deadline, done);
		if (r < 0)
			return done ? (ssize_t)done : r;
	}
}

/* ---- one call each ---- */

static ssize_t finish(ssize_t r)
{
	if (r >= 0)
		return r;
	errno = (int)-r;
	return -1;
}

/* 0 and *r: what to answer, or PASS. */
static struct sock *sock_of(int fd, int flags, int limit, ssize_t *r)
{
	*r = unlikely(is_undecided(kind_of(fd))) ? hook_wait(fd, flags, limit) : 0;
	if (unlikely(*r < 0))
		return 0;
	*r = PASS;
	return sock_get(fd, 0);
}

static ssize_t take_fd(int fd, const struct iovec *iov, int n, int flags)
{
	ssize_t want = iov_total(iov, n, flags), r = want;
	struct sock *s = want < 0 ? 0 : sock_of(fd, flags, SO_RCVTIMEO, &r);

	if (!s)
		return r;
	r = take(s, iov, n, (size_t)want, flags);
	sock_put(s);
	return r;
}

static ssize_t put_fd(int fd, const struct iovec *iov, int n, int flags)
{
	ssize_t want = iov_total(iov, n, flags), r = want;
	struct sock *s = want < 0 ? 0 : sock_of(fd, flags, SO_SNDTIMEO, &r);

	if (!s)
		return r;
	u32 st = state_of(s);
	if (unlikely(flags & MSG_OOB) && (st == S_ACCEPTED || st == S_OFFERED || st == S_CLC))
		sock_leave(s, R_SOCKOPT); /* on rings it would be as any other byte */
	r = put(s, iov, n, (size_t)want, flags);
	sock_put(s);
	return r;
}

ssize_t h_read(int fd, void *buf, size_t len)
{
	struct iovec v = {buf, len};

	if (!len)
		return S->real->read(fd, buf, 0);
	ssize_t r = take_fd(fd, &v, 1, 0);
	return r == PASS ? S->real->read(fd, buf, len) : finish(r);
}

/* The kernel's readv and writev end there, before they ask the socket; recvmsg and sendmsg do not. */
static int nothing(const struct iovec *iov, int n)
{
	return iov_total(iov, n, MSG_TRUNC) == 0;
}

ssize_t h_readv(int fd, const struct iovec *iov, int n)
{
	ssize_t r = nothing(iov, n) ? PASS : take_fd(fd, iov, n, 0);

	return r == PASS ? S->real->readv(fd, iov, n) : finish(r);
}

ssize_t h_recv(int fd, void *buf, size_t len, int flags)
{
	struct iovec v = {buf, len};
	ssize_t r = (flags & (MSG_OOB | MSG_ERRQUEUE)) ? PASS : take_fd(fd, &v, 1, flags);

	return r == PASS ? S->real->recv(fd, buf, len, flags) : finish(r);
}

ssize_t h_recvfrom(int fd, void *buf, size_t len, int flags, struct sockaddr *sa, socklen_t *salen)
{
	struct iovec v = {buf, len};
	ssize_t r = (flags & (MSG_OOB | MSG_ERRQUEUE)) ? PASS : take_fd(fd, &v, 1, flags);

	if (r == PASS)
		return S->real->recvfrom(fd, buf, len, flags, sa, salen);
	if (r >= 0 && sa) {
		if (wild(salen, sizeof *salen))
			r = -EFAULT;
		else
			*salen = 0; /* a connected TCP socket names nobody */
	}
	return finish(r);
}

ssize_t h_recvmsg(int fd, struct msghdr *m, int flags)
{
	ssize_t r = (flags & (MSG_OOB | MSG_ERRQUEUE)) || wild(m, 0) || m->msg_iovlen > IOV_LIMIT ? PASS : take_fd(fd, m->msg_iov, (int)m->msg_iovlen, flags);

	if (r == PASS)
		return S->real->recvmsg(fd, m, flags);
	if (r >= 0) {
		m->msg_namelen = 0;
		m->msg_controllen = 0;
		m->msg_flags = 0;
	}
	return finish(r);
}

int h_recvmmsg(int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *t)
{
	unsigned i = 0;

	if (pass(fd) || wild(v, 0) || (t && (unreadable(t, sizeof *t) || t->tv_sec < 0 || (u64)t->tv_nsec > 999999999))) /* EINVAL */
		return S->real->recvmmsg(fd, v, n, flags, t);
	i64 until = t ? now_ns() + t->tv_sec * 1000000000ll + t->tv_nsec : 0;
	for (; i < n && i < IOV_LIMIT; i++) {
		int f = (flags & ~MSG_WAITFORONE) | (i && (flags & MSG_WAITFORONE) ? MSG_DONTWAIT : 0);
		ssize_t r = h_recvmsg(fd, &v[i].msg_hdr, f);
		if (r < 0)
			return i ? (int)i : -1;
		v[i].msg_len = (unsigned)r;
		if (until && now_ns() >= until) {
			i++;
			break;
		}
	}
	return (int)i;
}

ssize_t h_write(int fd, const void *buf, size_t len)
{
	struct iovec v = {(void *)buf, len};
	ssize_t r = put_fd(fd, &v, 1, 0);

	return r == PASS ? S->real->write(fd, buf, len) : finish(r);
}

ssize_t h_writev(int fd, const struct iovec *iov, int n)
{
	ssize_t r = nothing(iov, n) ? PASS : put_fd(fd, iov, n, 0);

	return r == PASS ? S->real->writev(fd, iov, n) : finish(r);
}

ssize_t h_send(int fd, const void *buf, size_t len, int flags)
{
	struct iovec v = {(void *)buf, len};
	ssize_t r = put_fd(fd, &v, 1, flags);

	return r == PASS ? S->real->send(fd, buf, len, flags) : finish(r);
}

ssize_t h_sendto(int fd, const void *buf, size_t len, int flags, const struct sockaddr *sa, socklen_t salen)
{
	struct iovec v = {(void *)buf, len};
	ssize_t r = put_fd(fd, &v, 1, flags); /* TCP ignores the address of a connected socket */

	return r == PASS ? S->real->sendto(fd, buf, len, flags, sa, salen) : finish(r);
}

/*
 * A connection handed to another process, which would know nothing of its rings: not established yet, it becomes plain. Its
 * own epoll_ctl(EPOLL_CTL_DEL) before close would otherwise be its first use here.
 */
static void hand_over(const struct msghdr *m)
{
	int before = errno;

	if (unreadable(m->msg_control, m->msg_controllen))
		return;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR((struct msghdr *)m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0))
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			if (kind_of(fd) == FD_LISTENER) /* whoever gets it may be a plain program; ours offers at its first accept */
				hook_withdraw(fd);
			if (is_undecided(kind_of(fd)) && life_mine())
				hook_give(fd, 0);
			struct sock *s = kind_of(fd) == FD_SOCK && life_mine() ? sock_get(fd, 1) : 0;
			if (!s)
				continue;
			if (atomic_load(&s->b->state) != S_ACTIVE)
				sock_leave(s, R_LEFT_EARLY);
			else
				atomic_fetch_or(&s->b->flags, BF_LOST);
			sock_put(s);
		}
	}
	errno = before;
}

ssize_t h_sendmsg(int fd, const struct msghdr *m, int flags)
{
	if (wild(m, 0))
		return S->real->sendmsg(fd, m, flags);
	if (unlikely(m->msg_control && m->msg_controllen) && kind_of(fd) != FD_SOCK)
		hand_over(m);
	ssize_t r = m->msg_iovlen > IOV_LIMIT ? PASS : put_fd(fd, m->msg_iov, (int)m->msg_iovlen, flags); /* EMSGSIZE */

	return r == PASS ? S->real->sendmsg(fd, m, flags) : finish(r);
}

int h_sendmmsg(int fd, struct mmsghdr *v, unsigned n, int flags)
{
	unsigned i = 0;

	if (wild(v, 0))
		return S->real->sendmmsg(fd, v, n, flags);
	if (pass(fd)) {
		for (; i < n && i < IOV_LIMIT; i++)
			if (unlikely(v[i].msg_hdr.msg_control && v[i].msg_hdr.msg_controllen))
				hand_over(&v[i].msg_hdr);
		return S->real->sendmmsg(fd, v, n, flags);
	}
	for (; i < n && i < IOV_LIMIT; i++) {
		ssize_t r = h_sendmsg(fd, &v[i].msg_hdr, flags);
		if (r < 0)
			return i ? (int)i : -1;
		v[i].msg_len = (unsigned)r;
	}
	return (int)i;
}

/* On a socket only offset -1 ("the current position") is not ESPIPE, which libc answers. */
ssize_t h_preadv2(int fd, const struct iovec *iov, int n, off_t off, int flags)
{
	ssize_t r = off == -1 && !nothing(iov, n) ? take_fd(fd, iov, n, (flags & RWF_NOWAIT) ? MSG_DONTWAIT : 0) : PASS;

	return r == PASS ? S->real->preadv2(fd, iov, n, off, flags) : finish(r);
}

ssize_t h_pwritev2(int fd, const struct iovec *iov, int n, off_t off, int flags)
{
	ssize_t r = off == -1 && !nothing(iov, n) ? put_fd(fd, iov, n, (flags & RWF_NOWAIT) ? MSG_DONTWAIT : 0) : PASS;

	return r == PASS ? S->real->pwritev2(fd, iov, n, off, flags) : finish(r);
}

/* libc's own writes straight to the kernel's socket. */
int h_vdprintf(int fd, const char *fmt, va_list ap)
{
	char *text;
	int len = vasprintf(&text, fmt, ap), done = 0;

	while (done < len) {
		ssize_t n = h_write(fd, text + done, (size_t)(len - done));
		if (n < 0)
			break;
		done += (int)n;
	}
	if (len >= 0) {
		int e = errno;
		free(text);
		errno = e;
	}
	return len < 0 || done < len ? -1 : len;
}

int h___vdprintf_chk(int fd, int flag, const char *fmt, va_list ap)
{
	(void)flag; /* what it guards against, %n in writable memory, is the format string's reader's affair: vasprintf */
	return h_vdprintf(fd, fmt, ap);
}

/* ---- files and pipes ---- */

/* A buffer of BOUNCE_SIZE bytes. The last few are kept: a map, its faults and an unmap cost more than a small file does. */
static u8 *bounce(void)
{
	u8 *buf = 0;

	for (int i = 0; i < BOUNCES && !buf; i++)
		buf = atomic_exchange(&S->bounce[i], 0);
	if (buf)
		return buf;
	long p = sys(SYS_mmap, 0, BOUNCE_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p < 0 && p >= -4095 ? 0 : (u8 *)p;
}

static void bounce_back(u8 *buf)
{
	for (int i = 0; i < BOUNCES && buf; i++)
		buf = atomic_exchange(&S->bounce[i], buf);
	if (buf)
		sys(SYS_munmap, buf, BOUNCE_SIZE);
}

/* How much put() takes now without waiting; what was read from a pipe or file position cannot be put back. */
static size_t room_now(struct sock *s)
{
	if (state_of(s) == S_ACTIVE)
		return atomic_load(&s->b->flags) & (BF_GONE | BF_SHUT_WR) ? SIZE_MAX : lane_room(s);
	return STAGE_SIZE - atomic_load(&s->b->stage_len);
}

/* Copies from `in` (file at *off, or its own position, or a pipe) to s. */
static ssize_t pump_in(struct sock *s, int in, off_t *off, size_t count, int nowait)
{
	size_t size = BOUNCE_SIZE, done = 0;
	u8 *buf;

	if (!sock_use(s))
		return PASS;
	buf = bounce();
	if (!buf)
		return -ENOMEM;
	ssize_t err = 0;
	while (done < count) {
		size_t k = count - done < size ? count - done : size, room = room_now(s);
		if (!room && nowait) {
			err = -EAGAIN;
			break;
		}
		if (nowait && k > room)
			k = room;
		long n = off ? sys(SYS_pread64, in, buf, k, *off) : sys(SYS_read, in, buf, k);
		if (n <= 0) {
			err = n;
			break;
		}
		struct iovec v = {buf, (size_t)n};
		size_t sent = 0;
		while (sent < (size_t)n) {
			struct iovec rest = {buf + sent, (size_t)n - sent};
			ssize_t r = put(s, &rest, 1, rest.iov_len, MSG_NOSIGNAL);
			if (r == PASS)
				r = S->real->send(s->fd, rest.iov_base, rest.iov_len, MSG_NOSIGNAL);
			if (r == -EAGAIN && !nowait) { /* O_NONBLOCK and the file's bytes are read: only a file can be taken back */
				break;
			}
			if (r < 0) {
				err = r == -1 ? -errno : r;
				break;
			}
			sent += (size_t)r;
		}
		if (off)
			*off += (off_t)sent;
		else if (sent < v.iov_len)
			sys(SYS_lseek, in, (off_t)sent - (off_t)v.iov_len, SEEK_CUR);
		done += sent;
		if (sent < v.iov_len) {
			if (!err)
				err = -EAGAIN;
			break;
		}
		if (!off && n < (long)k) /* a pipe gave what it had */
			break;
	}
	bounce_back(buf);
	if (nowait && done < count)
		epoll_sock_full(s);
	if (done)
		return (ssize_t)done;
	return err == -EPIPE ? broken_pipe(0) : err;
}

ssize_t h_sendfile(int out, int in, off_t *off, size_t count)
{
	ssize_t r = PASS;
	struct sock *s = pass(out) ? 0 : sock_of(out, 0, SO_SNDTIMEO, &r);

	if (!s)
		return r == PASS ? S->real->sendfile(out, in, off, count) : finish(r);
	if (off && unreadable(off, sizeof *off)) {
		sock_put(s);
		return finish(-EFAULT);
	}
	off_t at = off ? *off : 0;
	long probe = sys(SYS_lseek, in, 0, SEEK_CUR); /* sendfile wants something that can be read at an offset */

	if (count > 0x7ffff000)
		count = 0x7ffff000;
	if (probe < 0 && off)
		r = probe == -EBADF ? -EBADF : -EINVAL;
	else
		r = pump_in(s, in, off ? &at : 0, count, nonblocking(s, 0));
	if (off && r > 0)
		*off = at;
	ssize_t ret = r == PASS ? S->real->sendfile(out, in, off, count) : finish(r);
	sock_put(s);
	return ret;
}

ssize_t h_splice(int in, off64_t *inoff, int out, off64_t *outoff, size_t len, unsigned flags)
{
	int now = flags & SPLICE_F_NONBLOCK ? MSG_DONTWAIT : 0;
	ssize_t r = PASS, r2 = PASS;
	struct sock *from = pass(in) ? 0 : sock_of(in, 0, SO_RCVTIMEO, &r), *to = pass(out) ? 0 : sock_of(out, now, SO_SNDTIMEO, &r2);

	if (r != PASS || r2 != PASS) {
		r = r != PASS ? r : r2;
	} else if (to && !from && !outoff && !inoff) {
		int wait = !(flags & SPLICE_F_NONBLOCK) && !nonblocking(to, 0);
		struct pollfd p = {in, POLLIN, 0};
		struct timespec zero = {0, 0};
		if (!wait && sys(SYS_ppoll, &p, 1, &zero, 0, 8) == 0)
			r = -EAGAIN;
		else
			r = pump_in(to, in, 0, len, !wait);
	} else if (from && !to && !inoff && !outoff && sock_use(from) && state_of(from) != S_FLUSH) {
		size_t size = len < BOUNCE_SIZE ? len : BOUNCE_SIZE;
		u8 *buf = bounce();
		struct iovec v = {buf, size};
		struct pollfd room = {out, POLLOUT, 0};
		struct timespec at_once = {0, 0};

		/* The flag is about the pipe, which the kernel looks at first. */
		if (flags & SPLICE_F_NONBLOCK && sys(SYS_ppoll, &room, 1, &at_once, 0, 8) == 0)
			r = -EAGAIN;
		else
			r = buf ? take(from, &v, 1, size, MSG_PEEK) : -ENOMEM;
		if (r > 0) {
			/* Look, hand the pipe what it has room for, and only then consume what it took. */
			struct iovec w = {buf, (size_t)r};
			long n;
			while ((n = sys(SYS_pwritev2, out, &w, 1, -1, -1, RWF_NOWAIT)) == -EAGAIN &&
			       !(flags & SPLICE_F_NONBLOCK) && (n = S->real->poll(&room, 1, -1)) >= 0)
				;
			if (n == -EOPNOTSUPP) /* an old kernel's pipes: as much as never blocks once there is room */
				n = sys(SYS_ppoll, &room, 1, &at_once, 0, 8) > 0 || !(flags & SPLICE_F_NONBLOCK)
					    ? sys(SYS_write, out, buf, r < PIPE_BUF ? r : PIPE_BUF)
					    : -EAGAIN;
			else if (n == -1)
				n = -errno; /* poll's */
			if (n > 0) {
				v.iov_len = (size_t)n;
				take(from, &v, 1, (size_t)n, MSG_TRUNC | MSG_DONTWAIT);
			}
			r = n;
		}
		bounce_back(buf);
	}
	ssize_t ret = r == PASS ? S->real->splice(in, inoff, out, outoff, len, flags) : finish(r);
	if (from)
		sock_put(from);
	if (to)
		sock_put(to);
	return ret;
}

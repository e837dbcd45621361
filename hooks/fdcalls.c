/*
 * Calls that make, duplicate and end descriptors. The kernel's call always happens; around it the map follows. A vfork
 * child has its own descriptors but its parent's memory: there, nothing but the kernel's call happens.
 */
#include "../preload/real.h"
#include "shim.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

static int fail(int err)
{
	errno = err;
	return -1;
}

static u32 state_of(const struct sock *s)
{
	return atomic_load_explicit(&s->b->state, memory_order_acquire);
}

int h_socket(int domain, int type, int proto)
{
	int fd = S->real->socket(domain, type, proto);

	if (fd >= 0 && kind_of(fd) != FD_UNKNOWN && !borrowed()) {
		int e = errno;
		fd_closed(fd); /* the number was closed behind our back */
		errno = e;
	}
	if ((unsigned)fd < FD_MAX && !borrowed()) {
		int tcp = (domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM &&
			  (proto == 0 || proto == IPPROTO_TCP);
		atomic_store_explicit(&S->fd_early[fd], tcp ? EARLY_TCP : 0, memory_order_relaxed);
	}
	return fd;
}

/* ---- close ---- */

/* A number of a socket that is not connected yet ends. Its place in an epoll set stays as long as another number names the
 * socket, which nobody could take over then: that socket will be plain. */
static void early_gone(int fd)
{
	struct stat st, other;
	u8 was = atomic_load(&S->fd_early[fd]);

	if (!was || borrowed())
		return;
	if ((was & (EARLY_DUP | EARLY_EPOLL)) == (EARLY_DUP | EARLY_EPOLL) && sys(SYS_fstat, fd, &st) == 0)
		for (int i = 0, top = (int)atomic_load(&S->fd_top); i < top && i < FD_MAX; i++)
			if (i != fd && (atomic_load(&S->fd_early[i]) & EARLY_DUP) && sys(SYS_fstat, i, &other) == 0 &&
			    other.st_ino == st.st_ino && other.st_dev == st.st_dev)
				atomic_fetch_or(&S->fd_early[i], EARLY_EPOLL | EARLY_UNSURE);
	atomic_store(&S->fd_early[fd], 0);
}

/* What has to be decided while the number still names the socket. One of several holders just leaves; an accepted
 * connection that nobody used yet is the business of whoever keeps it. 1 = the kernel's socket is to be reset. */
static int decide(int fd)
{
	int theirs = kind_of(fd) == FD_ASKED && (atomic_load(&S->fd_early[fd]) & EARLY_THEIRS);
	struct sock *s = theirs ? 0 : sock_get(fd, 1);
	int reset = 0;

	if (!s)
		return 0;
	u32 st = state_of(s), last = atomic_load(&s->fds) == 1;

	if (unlikely(atomic_load(&s->b->flags) & BF_LOST)) {
		if (st == S_ACTIVE && last && atomic_load(&s->b->procs) == 1)
			reset = 1; /* who got it in a message cannot use it */
		else if (st == S_ACCEPTED)
			st = S_TCP; /* inherited, and not wanted: nobody hears of it */
	} else if (st == S_ACTIVE && last && atomic_load(&s->b->procs) == 1 && atomic_load(&s->b->flags) & BF_SHUT_WR && lane_used(s)) {
		reset = 1; /* bytes that nobody reads; behind our FIN the peer would take the close for no more than that */
	}
	if (st == S_ACCEPTED ? last && atomic_load(&s->b->procs) == 1
			     : (st == S_OFFERED || st == S_CLC || st == S_FLUSH) && (last || s->fd == fd))
		sock_settle(s, !atomic_load(&s->held)); /* the engine goes on with what is staged, if it has it yet */
	sock_put(s);
	return reset;
}

/* Withdraws what the map says of a number that is about to be closed or replaced. Returns the listener for reg_gone. */
static u32 let_go(int fd)
{
	u32 listener = 0;

	int reset = decide(fd);
	if (unlikely(kind_of(fd) == FD_JOINING))
		hook_left(fd);
	if (unlikely(atomic_load(&S->fd_early[fd]))) /* connecting, or decided now: no longer noted for the number */
		early_gone(fd);
	struct sock *s = fd_forget(fd, &listener);
	if (reset) /* now that our loop does not watch it: its look would take the error from who holds the socket */
		tcp_reset(fd);
	/* Before the kernel's close: that is a cancellation point, and may not come back. */
	if (s)
		sock_put(s);
	return listener;
}

int h_close(int fd)
{
	int kind = kind_of(fd), before = errno;

	if (kind <= FD_PLAIN) {
		if ((unsigned)fd < FD_MAX && unlikely(atomic_load_explicit(&S->fd_early[fd], memory_order_relaxed)))
			early_gone(fd);
		if (kind == FD_PLAIN && (unsigned)fd < FD_MAX)
			atomic_store_explicit(&S->fd_kind[fd], FD_UNKNOWN, memory_order_release);
		return S->real->close(fd);
	}
	if (kind == FD_HIDDEN)
		return fail(EBADF);
	if (borrowed())
		return S->real->close(fd);

	u32 listener = let_go(fd);
	errno = before;
	int r = S->real->close(fd), e = errno;
	if (listener)
		reg_gone(listener);
	errno = e;
	return r;
}

/* The parts of [lo, hi] that the program may close. */
static int close_around(unsigned lo, unsigned hi, int flags)
{
	unsigned top = atomic_load(&S->fd_top);

	for (unsigned fd = lo; fd <= hi && fd < top; fd++)
		if (kind_of((int)fd) == FD_HIDDEN) {
			if (fd > lo && S->real->close_range(lo, fd - 1, flags) < 0)
				return -1;
			lo = fd + 1;
		}
	return lo > hi ? 0 : S->real->close_range(lo, hi, flags);
}

int h_close_range(unsigned lo, unsigned hi, int flags)
{
	int before = errno;

	if (lo > hi || (flags & ~CLOSE_RANGE_UNSHARE) || borrowed())
		return S->real->close_range(lo, hi, flags); /* an error; or CLOEXEC, which ours have; or not our table */
	if (flags & CLOSE_RANGE_UNSHARE)
		return close_around(lo, hi, flags); /* the map is that of the threads who keep the shared table */
	for (unsigned fd = lo, top = atomic_load(&S->fd_top); fd <= hi && fd < top && fd < FD_MAX; fd++) {
		int kind = kind_of((int)fd);
		if (kind == FD_PLAIN || kind > FD_HIDDEN || (kind == FD_UNKNOWN && atomic_load(&S->fd_early[fd])))
			h_close((int)fd);
	}
	errno = before;
	return close_around(lo, hi, 0);
}

void h_closefrom(int lo)
{
	struct rlimit rl = {.rlim_cur = FD_MAX};
	int before = errno;

	if (lo < 0)
		lo = 0;
	if (h_close_range((unsigned)lo, ~0u, 0) < 0) { /* a kernel before 5.9 */
		sys(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &rl);
		for (int fd = lo; fd < FD_MAX && (u64)fd < rl.rlim_cur; fd++)
			h_close(fd);
	}
	errno = before;
}

/* ---- dup ---- */

/* What is connected later by one number is ours under all. */
static void early_dup(int from, int to)
{
	if ((unsigned)from >= FD_MAX || (unsigned)to >= FD_MAX)
		return;
	int tcp = (kind_of(from) == FD_UNKNOWN || is_undecided(kind_of(from))) && (atomic_load(&S->fd_early[from]) & EARLY_TCP);
	if ((!tcp && !atomic_load(&S->fd_early[to])) || borrowed())
		return;
	atomic_store(&S->fd_early[to], tcp ? EARLY_TCP | EARLY_DUP | (atomic_load(&S->fd_early[from]) & EARLY_OUT) : 0);
	if (tcp) {
		fd_seen(from > to ? from : to);
		atomic_fetch_or(&S->fd_early[from], EARLY_DUP);
	}
}

/* A number of libc's own streams, which are about to move bytes on it, and ask nobody: while there is time it becomes plain. */
static void for_a_stream(int fd)
{
	if (is_undecided(kind_of(fd)))
		hook_give(fd, 0);
	struct sock *s = sock_get(fd, 0);

	if (!s)
		return;
	if (state_of(s) != S_ACTIVE)
		sock_leave(s, R_STREAM);
	sock_put(s);
}

static int named_too(int from, int to)
{
	if (to < 0 || from == to)
		return to;
	if (kind_of(to) == FD_PLAIN && to < FD_MAX) /* of what the number was before */
		atomic_store_explicit(&S->fd_kind[to], FD_UNKNOWN, memory_order_release);
	early_dup(from, to);
	/* Foreign fds cost no system call more, unless they may be epoll sets. */
	if ((kind_of(from) > FD_PLAIN || kind_of(to) > FD_PLAIN || atomic_load_explicit(&S->ep, memory_order_relaxed)) && !borrowed()) {
		int e = errno;
		fd_dup(from, to);
		if (kind_of(to) == FD_SOCK) /* connected while we were about to say so */
			atomic_store(&S->fd_early[to], 0);
		if (to <= STDERR_FILENO)
			for_a_stream(to);
		errno = e;
	}
	return to;
}

int h_dup(int fd)
{
	return kind_of(fd) == FD_HIDDEN ? fail(EBADF) : named_too(fd, S->real->dup(fd));
}

/* The program wants a number that one of ours has. Those that nobody remembers by number move. */
static int make_way(int fd)
{
	int *const slots[] = {&S->diag, &S->wakefd, &S->epfd};

	for (unsigned i = 0; i < sizeof slots / sizeof *slots; i++) {
		if (*slots[i] != fd)
			continue;
		long n = sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, fd + 1);
		if (n < 0 || n >= FD_MAX)
			n = sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
		if (n < 0)
			return 0;
		*slots[i] = fd_hide((int)n);
		atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
		return 1;
	}
	return 0;
}

static int dup_over(int from, int to, int flags, int three)
{
	struct rlimit rl = {.rlim_cur = 0};
	u32 listener = 0;
	int before = errno, kind = kind_of(to), early = (unsigned)to < FD_MAX && atomic_load(&S->fd_early[to]);

	if (kind_of(from) == FD_HIDDEN)
		return fail(EBADF);
	if (from != to && (kind > FD_PLAIN || early) && !borrowed()) {
		/* From here on the call must not fail: what `to` was is gone. */
		sys(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, &rl);
		if (!(flags & ~O_CLOEXEC) && (u64)to < rl.rlim_cur && sys(SYS_fcntl, from, F_GETFD) >= 0) {
			if (kind == FD_HIDDEN && !make_way(to))
				return fail(EBUSY);
			if (early)
				early_gone(to);
			if (kind > FD_PLAIN)
				listener = let_go(to);
		}
	}
	int r, e;
	do {
		errno = before;
		r = three ? S->real->dup3(from, to, flags) : S->real->dup2(from, to);
		e = errno;
	} while (r < 0 && e == EBUSY); /* Linux: another thread is opening that very number */
	if (listener)
		reg_gone(listener);
	errno = e;
	return named_too(from, r);
}

int h_dup2(int from, int to)
{
	return dup_over(from, to, 0, 0);
}

int h_dup3(int from, int to, int flags)
{
	return dup_over(from, to, flags, 1);
}

/* ---- fcntl ---- */

static int set_flags(int fd, int cmd, long arg)
{
	struct sock *s = sock_get(fd, 1);

	if (!s)
		return S->real->fcntl(fd, cmd, arg);
	if ((cmd != F_SETFL || (arg & O_ASYNC)) && state_of(s) != S_ACTIVE)
		sock_leave(s, R_SOCKOPT); /* SIGIO and SIGURG come from the kernel alone */
	int r = S->real->fcntl(fd, cmd, arg);
	if (r == 0 && cmd == F_SETFL) {
		if (arg & O_NONBLOCK)
			atomic_fetch_or(&s->b->flags, BF_NONBLOCK);
		else
			atomic_fetch_and(&s->b->flags, ~BF_NONBLOCK);
	}
	sock_put(s);
	return r;
}

int h_fcntl(int fd, int cmd, ...)
{
	va_list ap;

	va_start(ap, cmd);
	long arg = va_arg(ap, long);
	va_end(ap);
	switch (kind_of(fd)) {
	case FD_HIDDEN:
		return fail(EBADF);
	case FD_SOCK:
		if (cmd == F_SETFL || cmd == F_SETOWN || cmd == F_SETOWN_EX)
			return set_flags(fd, cmd, arg);
	}
	int r = S->real->fcntl(fd, cmd, arg);
	return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC ? named_too(fd, r) : r;
}

/* ---- stdio ---- */

/*
 * libc's streams read and write by names of their own. A stream over our read and write differs from fdopen's in one
 * thing that programs see, fileno(), and that is one public field of FILE.
 */
static ssize_t file_read(void *c, char *buf, size_t n)
{
	int fd = (int)(intptr_t)c;

	return pass(fd) ? S->real->read(fd, buf, n) : h_read(fd, buf, n);
}

static ssize_t file_write(void *c, const char *buf, size_t n)
{
	int fd = (int)(intptr_t)c;
	ssize_t r = pass(fd) ? S->real->write(fd, buf, n) : h_write(fd, buf, n);

	return r < 0 ? 0 : r; /* fopencookie(3): 0 is the error */
}

static int file_seek(void *c, off64_t *at, int whence)
{
	(void)c, (void)at, (void)whence;
	return fail(ESPIPE);
}

static int file_close(void *c)
{
	return h_close((int)(intptr_t)c);
}

FILE *h_fdopen(int fd, const char *mode)
{
	static const cookie_io_functions_t io = {file_read, file_write, file_seek, file_close};
	struct sock *s;

	if (kind_of(fd) == FD_HIDDEN) {
		errno = EBADF;
		return 0;
	}
	s = sock_get(fd, 1);
	if (!s)
		return S->real->fdopen(fd, mode);
	sock_put(s);
	FILE *f = fopencookie((void *)(intptr_t)fd, mode, io);
	if (f)
		f->_fileno = fd;
	return f;
}

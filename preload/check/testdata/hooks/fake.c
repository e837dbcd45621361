/*
 * A stand-in for package hooks: every h_ function is libc's, and listen with a negative fd asks about the library's inside.
 * The engine is a loop that answers each request with its number (fake.go). So load, start, fork, signals and exit can be
 * tested without sockets.
 */
#include "../preload/real.h"
#include "../preload/life.h"
#include "sys.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <time.h>

#define answered S->peer[4000].used
#define asked S->peer[4001].used
#define settled S->peer[4002].used

void fake_answer(u64 n)
{
	atomic_store(&answered, (u32)n);
	sys(SYS_futex, &answered, FUTEX_WAKE, INT32_MAX, 0, 0, 0);
}

static int ping(void)
{
	int r = engine_start();

	if (r)
		return -r;
	u32 me = atomic_fetch_add(&asked, 1) + 1;
	if ((r = engine_post(99, 0, me)))
		return 1000 - r;
	struct { i64 s, ns; } ms = {0, 1000000}, t;
	i64 until = 0;
	for (;;) {
		u32 n = atomic_load(&answered);

		if ((i32)(n - me) >= 0)
			return 0;
		sys(SYS_futex, &answered, FUTEX_WAIT, n, &ms, 0, 0);
		sys(SYS_clock_gettime, 1 /* MONOTONIC */, &t); /* signals shorten the sleep */
		if (!until)
			until = t.s + 10;
		else if (t.s > until)
			return 2000;
	}
}

int h_listen(int fd, int backlog)
{
	switch (fd) {
	case -77: return ping();
	case -78: return atomic_load(&S->life->next) != 0;
	case -79: return (int)atomic_load(&S->engine);
	case -80: return life_mine();
	case -81: return (int)S->pid;
	case -82: return (int)atomic_load(&settled);
	case -83: S->proc = (struct proc_page *)S->peer; return 0; /* as if connections existed: settle_all is asked for */
	case -84: return (int)S->rmbe;
	case -85: return (int)(S->mode | S->profile << 4 | S->nudge << 8);
	case -86: atomic_store(&S->fd_kind[backlog], FD_HIDDEN); return 0;
	}
	return smcr_real.listen(fd, backlog);
}

u32 sock_idx(const struct sock *s) { return (u32)(s - S->sock); }
void abandon_all(void) {}
void settle_all(void) { atomic_fetch_add(&settled, S->forking ? 1000 : 1); } /* who holds map_lk may not wait for others */
int reg_ready(void) { return 0; }
void reg_forked(void) { S->proc = 0; }
void reg_exec(void) {}
void reg_heirs(enum heir heir) { (void)heir; }
void hook_exec(void) {}
void hook_leave(void) {}
void hook_forked(void) {}
void reg_exit(void) {}
void epoll_forked(void) {}
void bell_forked(void) {}
void lane_forked(void) {}
u32 map_held(char *text, u32 room) { (void)room; *text = 0; return 0; }
void map_lost(const char *text) { (void)text; }
void map_prefork(void) { S->forking = 1, atomic_store(&S->map_lk.w, (u32)sys(SYS_gettid)); }
void map_postfork(int failed) { (void)failed, S->forking = 0, atomic_store(&S->map_lk.w, 0); }
void map_forked(void) { S->forking = 0, atomic_store(&S->map_lk.w, 0); }
void map_leave(int ends) { (void)ends; }
void map_stay(void) {}
u32 my_tid(void) { return (u32)sys(SYS_gettid); }

int fd_hide(int fd)
{
	int n = (int)sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 500);

	sys(SYS_close, fd);
	if (n >= 0)
		atomic_store(&S->fd_kind[n], FD_HIDDEN);
	return n;
}

int fd_unhide(int fd)
{
	atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
	return (int)sys(SYS_close, fd);
}

i64 now_ns(void)
{
	struct { i64 s, ns; } t;

	sys(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
	return t.s * 1000000000 + t.ns;
}

#define X(R, name, P, A, ...) R h_##name P { return kind_of(FD(A)) == FD_HIDDEN ? (R)(errno = EBADF, -1l) : smcr_real.name A; }
#define FD(A) FD_ A
#define FD_(first, ...) first
SMCR_FD(X)
#undef X
#define X(R, name, P, A) R h_##name P { return smcr_real.name A; }
X(int, socket, (int domain, int type, int proto), (domain, type, proto))
X(int, connect, (int fd, const struct sockaddr *sa, socklen_t n), (fd, sa, n))
X(int, accept, (int fd, struct sockaddr *sa, socklen_t *n), (fd, sa, n))
X(int, accept4, (int fd, struct sockaddr *sa, socklen_t *n, int flags), (fd, sa, n, flags))
X(int, dup, (int fd), (fd))
X(int, dup2, (int fd, int to), (fd, to))
X(int, dup3, (int fd, int to, int flags), (fd, to, flags))
X(int, poll, (struct pollfd * v, nfds_t n, int ms), (v, n, ms))
X(int, ppoll, (struct pollfd * v, nfds_t n, const struct timespec *t, const sigset_t *m), (v, n, t, m))
X(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *t), (n, r, w, e, t))
X(int, pselect, (int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *t, const sigset_t *m), (n, r, w, e, t, m))
X(int, epoll_create, (int n), (n))
X(int, epoll_create1, (int n), (n))
X(int, epoll_ctl, (int ep, int op, int fd, struct epoll_event *ev), (ep, op, fd, ev))
X(int, epoll_wait, (int ep, struct epoll_event *ev, int n, int ms), (ep, ev, n, ms))
X(int, epoll_pwait, (int ep, struct epoll_event *ev, int n, int ms, const sigset_t *m), (ep, ev, n, ms, m))
X(int, epoll_pwait2, (int ep, struct epoll_event *ev, int n, const struct timespec *t, const sigset_t *m), (ep, ev, n, t, m))
#undef X

int h_close(int fd)
{
	return kind_of(fd) == FD_HIDDEN ? (errno = EBADF, -1) : smcr_real.close(fd);
}

int h_close_range(unsigned lo, unsigned hi, int flags)
{
	for (unsigned i = lo; i <= hi && i < 1024; i++)
		if (kind_of((int)i) != FD_HIDDEN)
			smcr_real.close_range(i, i, flags);
	return 0;
}

void h_closefrom(int lo)
{
	h_close_range((unsigned)lo, ~0u, 0);
}

int h_fcntl(int fd, int cmd, ...)
{
	va_list ap;

	va_start(ap, cmd);
	long a = va_arg(ap, long);
	va_end(ap);
	return kind_of(fd) == FD_HIDDEN ? (errno = EBADF, -1) : smcr_real.fcntl(fd, cmd, a);
}

int h_ioctl(int fd, unsigned long req, ...)
{
	(void)fd, (void)req;
	errno = EBADF;
	return -1;
}

/* For the tests of epoll.c and poll.c: connections of ours over real TCP pairs, and what map.c, state.c and the
 * engine would do about them. The same sequence can be run natively: x_pair(0) leaves the pair plain. */
#include "../../preload/real.h"
#include "lane_pair.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>

#define RING 65536
#define MS 1000000ll

static struct real test_real = {
	.poll = poll, .ppoll = ppoll, .select = select, .pselect = pselect, .epoll_create = epoll_create,
	.epoll_create1 = epoll_create1, .epoll_ctl = epoll_ctl, .epoll_wait = epoll_wait, .epoll_pwait = epoll_pwait,
	.epoll_pwait2 = epoll_pwait2,
};

static inline void ready_shim(void)
{
	make_shim(PROFILE_BALANCED);
	S->real = &test_real;
	S->pid = (u32)getpid();
	struct rlimit rl = {4096, 4096};
	setrlimit(RLIMIT_NOFILE, &rl);
	signal(SIGPIPE, SIG_IGN);
}

static inline void nap(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	nanosleep(&t, 0);
}

static inline u32 rnd(u32 *x)
{
	return *x = *x * 1664525 + 1013904223, *x >> 8;
}

/* ---- the rest of the library ---- */

int engine_post(u32 op, struct sock *s, u64 arg)
{
	(void)op, (void)s, (void)arg;
	return 0;
}
void fd_seen(int fd);
int fd_hide(int fd)
{
	int n = fcntl(fd, F_DUPFD_CLOEXEC, 3000);

	CHECK(n >= 0);
	close(fd);
	atomic_store(&S->fd_kind[n], FD_HIDDEN);
	fd_seen(n);
	return n;
}
int fd_unhide(int fd)
{
	atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
	return close(fd);
}
void fd_seen(int fd)
{
	if (S->fd_top <= (u32)fd)
		atomic_store(&S->fd_top, (u32)fd + 1);
}
struct sock *sock_get(int fd, int check)
{
	(void)check;
	if (kind_of(fd) != FD_SOCK)
		return 0;
	struct sock *s = &S->sock[S->fd_sock[fd]];
	atomic_fetch_add(&s->refs, 1);
	return s;
}
void sock_put(struct sock *s)
{
	CHECK(atomic_fetch_sub(&s->refs, 1) > 0);
}
struct sock *sock_at(u32 idx, u32 gen)
{
	if (!atomic_load(&S->sock[idx].refs) || S->sock[idx].gen != gen)
		return 0;
	atomic_fetch_add(&S->sock[idx].refs, 1);
	return &S->sock[idx];
}
void sock_drop(struct sock *s)
{
	sock_put(s);
}
void sock_pin(struct sock *s)
{
	atomic_fetch_add(&s->refs, 1);
}
void sock_unpin(struct sock *s)
{
	sock_put(s);
}
static void x_forget(int fd)
{
	struct sock *s = sock_get(fd, 0);

	if (kind_of(fd) == FD_EPOLL)
		epoll_set_closed(fd);
	if (s) {
		epoll_number_closed(s, fd, 0);
		epoll_sock_closed(s, fd);
		atomic_fetch_sub(&s->refs, 1);
		atomic_fetch_sub(&s->fds, 1);
	}
	atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
	if (s)
		sock_put(s);
}
void fd_closed(int fd)
{
	x_forget(fd);
}
static void all_plain(struct sock *s)
{
	for (int fd = 0; fd < 4096; fd++)
		if (kind_of(fd) == FD_SOCK && S->fd_sock[fd] == sock_idx(s)) {
			atomic_store(&S->fd_kind[fd], FD_PLAIN);
			atomic_fetch_sub(&s->refs, 1);
			atomic_fetch_sub(&s->fds, 1);
		}
}
int sock_use(struct sock *s)
{
	if (atomic_load(&s->b->state) != S_TCP)
		return 1;
	int nested = lk_lock(&s->b->lock);
	if (kind_of(s->fd) == FD_SOCK) {
		epoll_sock_plain(s);
		all_plain(s);
	}
	lk_unlock(&s->b->lock, nested);
	return 0;
}
u32 sock_events(struct sock *s)
{
	struct block *b = s->b;
	u32 st = atomic_load(&b->state), ev = 0, f = atomic_load(&b->flags);

	CHECK(st != S_FREE);
	if (st == S_FLUSH) {
		struct pollfd p = {s->fd, POLLIN | POLLRDNORM | POLLRDHUP, 0};
		sys(SYS_poll, &p, 1, 0);
		return (u32)(u16)p.revents | (atomic_load(&b->stage_len) ? 0 : EPOLLOUT | EPOLLWRNORM);
	}
	if (st != S_ACTIVE)
		return EPOLLOUT | EPOLLWRNORM;
	if (lane_used(s) || (f & (BF_FIN | BF_SHUT_RD)))
		ev |= EPOLLIN | EPOLLRDNORM;
	if (f & (BF_FIN | BF_SHUT_RD))
		ev |= EPOLLRDHUP;
	if ((f & BF_SHUT_WR) || LANE_OUT_READY(s, lane_room(s)))
		ev |= EPOLLOUT | EPOLLWRNORM;
	if ((f & BF_SHUT_WR) && (f & (BF_FIN | BF_SHUT_RD)))
		ev |= EPOLLHUP;
	if (atomic_load(&b->so_error))
		ev |= EPOLLERR;
	return ev;
}
static _Atomic int arms_refused; /* sock_arm never finds a place */
int sock_arm(struct sock *s, u32 bell, u32 want)
{
	int ok = 1;

	if (arms_refused)
		return 0;
	if (atomic_load(&s->b->state) != S_ACTIVE || !(want & (EPOLLIN | EPOLLOUT)))
		return arm_bell(&s->b->st, bell) && atomic_load(&s->b->state) != S_FLUSH;
	if (want & EPOLLIN)
		ok &= arm_bell(&s->rx->rarm, bell);
	if (want & EPOLLOUT)
		ok &= arm_bell(&s->tx->warm, bell);
	return ok;
}
static _Atomic int tcp_events;
void sock_tcp_event(struct sock *s, u32 events)
{
	(void)events;
	tcp_events++;
	if (atomic_load(&s->b->state) == S_ACTIVE && !(atomic_fetch_or(&s->b->flags, BF_FIN) & BF_FIN))
		sock_fire(s);
}

/* ---- pairs ---- */

static void tcp_pair(int fd[2])
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(l >= 0 && bind(l, (void *)&a, sizeof a) == 0 && listen(l, 1) == 0 && getsockname(l, (void *)&a, &n) == 0);
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd[0] >= 0 && connect(fd[0], (void *)&a, n) == 0);
	fd[1] = accept(l, 0, 0);
	CHECK(fd[1] >= 0);
	close(l);
	for (int i = 0; i < 2; i++) {
		setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		fcntl(fd[i], F_SETFL, O_NONBLOCK);
	}
}

static u32 next_sock = 2;

static void name(struct sock *s, int fd)
{
	atomic_fetch_add(&s->refs, 1);
	atomic_fetch_add(&s->fds, 1);
	atomic_store(&S->fd_sock[fd], sock_idx(s));
	atomic_store(&S->fd_kind[fd], FD_SOCK);
	fd_seen(fd);
}

/* fd[0], fd[1]: the two ends, ours or plain. */
static void x_pair(int ours, int fd[2])
{
	tcp_pair(fd);
	if (!ours) {
		S->fd_kind[fd[0]] = S->fd_kind[fd[1]] = FD_PLAIN;
		return;
	}
	struct sock *s = make_pair(next_sock, RING, SELF_PEER);
	static u32 gens;
	next_sock += 2;
	for (int i = 0; i < 2; i++) {
		s[i].fd = fd[i];
		s[i].gen = ++gens;
		name(&s[i], fd[i]);
	}
}

static struct sock *x_sock(int fd)
{
	CHECK(kind_of(fd) == FD_SOCK);
	return &S->sock[S->fd_sock[fd]];
}

static ssize_t x_send(int fd, const void *p, size_t n)
{
	if (kind_of(fd) != FD_SOCK)
		return send(fd, p, n, MSG_NOSIGNAL);
	struct iovec v = {(void *)p, n};
	ssize_t r = lane_write(x_sock(fd), &v, 1, 0);
	if (r >= 0 && r < (ssize_t)n)
		epoll_sock_full(x_sock(fd));
	if (r == 0 && n)
		errno = EAGAIN;
	return r == 0 && n ? -1 : r;
}

static ssize_t x_recv(int fd, void *p, size_t n)
{
	if (kind_of(fd) != FD_SOCK)
		return recv(fd, p, n, 0);
	struct sock *s = x_sock(fd);
	struct iovec v = {p, n};
	ssize_t r = lane_read(s, &v, 1, 0, 0);
	if (r == 0 && !(atomic_load(&s->b->flags) & BF_FIN)) {
		errno = EAGAIN;
		return -1;
	}
	return r;
}

/* With what the engine at the other end does about it. */
static inline void x_shut(int fd)
{
	struct sock *s = kind_of(fd) == FD_SOCK ? x_sock(fd) : 0;

	if (s) {
		atomic_fetch_or(&s->tx->wflags, RH_WDONE);
		atomic_fetch_or(&s->b->flags, BF_SHUT_WR);
		sock_fire(s);
	}
	shutdown(fd, SHUT_WR);
	if (s)
		sock_tcp_event(&S->sock[sock_idx(s) ^ 1], EPOLLRDHUP);
}

static inline int x_dup(int fd)
{
	int n = dup(fd);

	if (kind_of(fd) == FD_SOCK)
		name(x_sock(fd), n);
	else
		epoll_set_dup(fd, n);
	return n;
}

static void x_close(int fd)
{
	x_forget(fd);
	close(fd);
}

/* Both ends, and their memory. */
static inline void x_done(int fd[2])
{
	struct sock *a = kind_of(fd[0]) == FD_SOCK ? x_sock(fd[0]) : 0;

	x_close(fd[0]);
	x_close(fd[1]);
	if (a) {
		CHECK(!a[0].eps && !a[1].eps);
		for (i64 t0 = now_ns(); atomic_load(&a[0].refs) || atomic_load(&a[1].refs); sched_yield())
			CHECK(now_ns() - t0 < 5000 * MS, "somebody still holds a closed socket");
		free_pair(a);
		a[0].b = a[1].b = 0;
	}
}

static inline void x_fill(int fd)
{
	static char junk[16384];

	for (int quiet = 0; quiet < 3; quiet++) {
		while (x_send(fd, junk, sizeof junk) > 0)
			quiet = 0;
		if (kind_of(fd) == FD_SOCK)
			break;
		nap(3000);
	}
}

static inline size_t x_drain(int fd)
{
	static char junk[65536];
	size_t n = 0;
	ssize_t r;

	while ((r = x_recv(fd, junk, sizeof junk)) > 0)
		n += (size_t)r;
	return n;
}

/* A cancelled thread leaves its frames without their epilogues; AddressSanitizer has to be told. */
#ifdef __SANITIZE_ADDRESS__
void __asan_unpoison_memory_region(void const volatile *p, size_t n);
static inline void left_by_cancel(void *p)
{
	(void)p;
	__asan_unpoison_memory_region((char *)__builtin_frame_address(0) - 65536, 65536 + 4096);
}
#else
static inline void left_by_cancel(void *p)
{
	(void)p;
}
#endif

/* ---- what happened, to be compared ---- */

static char trace[65536];
static size_t traced;

static inline void note(const char *f, ...)
{
	va_list ap;

	va_start(ap, f);
	traced += (size_t)vsnprintf(trace + traced, sizeof trace - traced, f, ap);
	va_end(ap);
	CHECK(traced < sizeof trace);
}

/* Runs f natively and with sockets of ours; what it notes must be the same. The kernel's ACKs are not always in
 * time on a busy machine, so a difference counts when it comes back. */
static inline void same(const char *what, void (*f)(int ours, int a, int b, int c), int a, int b, int c)
{
	static char native[sizeof trace];

	for (int tries = 0;; tries++) {
		traced = 0;
		trace[0] = 0;
		f(0, a, b, c);
		memcpy(native, trace, traced + 1);
		traced = 0;
		trace[0] = 0;
		f(1, a, b, c);
		if (!strcmp(native, trace))
			return;
		if (tries == 3 || getenv("READY_VERBOSE"))
			fprintf(stderr, "%s(%x, %x, %x)\nnative: %s\nours:   %s\n", what, a, b, c, native, trace);
		if (tries == 3)
			_exit(1);
	}
}
#define SAME(f, a, b, c) same(#f, f, a, b, c)

static inline const char *err(int r)
{
	static char buf[8][24];
	static int k;
	char *p = buf[k++ % 8];

	if (r >= 0)
		snprintf(p, 24, "%d", r);
	else
		snprintf(p, 24, "-%s", strerrorname_np(errno));
	return p;
}

static inline void section(const char *s)
{
	static i64 t0;
	i64 t = now_ns();

	if (getenv("READY_VERBOSE"))
		fprintf(stderr, "[%5lld ms] %s\n", (long long)(t0 ? (t - t0) / MS : 0), s);
	if (!t0)
		t0 = t;
}

/* map.c and fdcalls.c: which number is which connection, through every call that moves numbers. build: map.c fdcalls.c */
#include "../../preload/real.h"
#include "alone.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/close_range.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

/* ---- what other files would do ---- */

static _Atomic int posted, entries_gone, all_gone, settled, settles_later, set_closed, set_dup;
static u32 posted_sock;
int engine_post(u32 op, struct sock *s, u64 arg)
{
	CHECK(op == REQ_CLOSED && arg == 0 && s->b && atomic_load(&s->fds) == 0);
	posted_sock = sock_idx(s);
	posted++;
	return 0;
}
static u64 unread;
u64 lane_used(struct sock *s) { return (void)s, unread; }
void epoll_number_closed(struct sock *s, int fd, int all)
{
	all_gone += all;
	CHECK(kind_of(fd) == FD_SOCK && atomic_load(&S->fd_sock[fd]) == sock_idx(s), "too late: %d names something else", fd);
}
void epoll_sock_closed(struct sock *s, int fd)
{
	CHECK(s->fd == -1 && fd >= 0 && s->b);
	entries_gone++;
}
void epoll_set_closed(int fd)
{
	set_closed += kind_of(fd) == FD_EPOLL;
}
int epoll_set_dup(int from, int to)
{
	(void)to;
	set_dup++;
	return kind_of(from) == FD_EPOLL;
}
void sock_settle(struct sock *s, int wait)
{
	(void)wait;
	settled++;
	if (settles_later)
		return;
	atomic_store(&s->b->state, S_TCP);
	sock_plain(s);
}
void sock_leave(struct sock *s, u32 reason)
{
	CHECK(reason == R_SOCKOPT);
	sock_settle(s, 1);
}
static u32 listener_gone;
void reg_ended(const struct block *b, int paid) { (void)b, (void)paid; }
static int resets;
void tcp_reset(int fd) { (void)fd, resets++; }
void reg_gone(u32 l) { listener_gone = l; }
static int no_room;
int reg_ready(void) { return no_room == 1 ? -R_MEMORY : 0; }
struct block *reg_slab(u32 n)
{
	(void)n;
	if (no_room > 1)
		return 0;
	void *p = mmap(0, SLAB_BLOCKS * sizeof(struct block), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? 0 : p;
}
static int reads, writes;
ssize_t h_read(int fd, void *buf, size_t n) { return reads++, read(fd, buf, n); }
ssize_t h_write(int fd, const void *buf, size_t n) { return writes++, write(fd, buf, n); }

static int missing_close_range(unsigned lo, unsigned hi, int flags)
{
	(void)lo, (void)hi, (void)flags;
	errno = ENOSYS;
	return -1;
}

static struct real libc = {.socket = socket, .close = close, .dup = dup, .dup2 = dup2, .dup3 = dup3, .fcntl = fcntl, .close_range = close_range,
			   .closefrom = closefrom, .fdopen = fdopen, .read = read, .write = write};

/* ---- scaffolding ---- */

static int wake;

static void fresh_shim(void)
{
	S = mmap(0, sizeof *S, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(S != MAP_FAILED);
	S->pid = (u32)getpid();
	S->real = &libc;
	S->wakefd = S->dgram = S->diag = -1;
	S->proc = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	S->engine = ENG_READY;
	S->epfd = fd_hide(epoll_create1(EPOLL_CLOEXEC));
	wake = S->wakefd = fd_hide(eventfd(0, EFD_CLOEXEC));
	CHECK(S->proc != MAP_FAILED && S->epfd > 2 && S->wakefd > 2);
	posted = entries_gone = settled = 0;
}

static int server_port, server_fd;

/* A connection: the client's end is returned, *peer is the other one. */
static int connection(int family, int *peer)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((u16)server_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = in.sin_port, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	int c = h_socket(family, SOCK_STREAM, 0);
	CHECK(c >= 0 && (family == AF_INET ? connect(c, (void *)&in, sizeof in) : connect(c, (void *)&in6, sizeof in6)) == 0);
	*peer = accept(server_fd, 0, 0);
	CHECK(*peer >= 0);
	return c;
}

static struct sock *ours(int *fd, int *peer, u32 state)
{
	*fd = connection(AF_INET, peer);
	struct sock *s = sock_new(*fd, 0, state);
	CHECK(s && kind_of(*fd) == FD_SOCK && s->fd == *fd && s->refs == 1 && s->fds == 1);
	return s;
}

/* Until the kernel has closed it, the peer sees no end. */
static int ended(int peer)
{
	char c;
	for (int i = 0; i < 200; i++) {
		ssize_t n = recv(peer, &c, 1, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return 1;
		CHECK(n < 0 && errno == EAGAIN);
		if (i > 20)
			usleep(100);
	}
	return 0;
}

static int open_fd(int fd) { return fcntl(fd, F_GETFD) >= 0; }

/* Does the engine's set still know it, and under which tag? */
static int watched(struct sock *s, int peer)
{
	struct epoll_event ev[8];
	shutdown(peer, SHUT_WR);
	for (int i = 0; i < 100; i++) {
		int n = epoll_wait(S->epfd, ev, 8, 10);
		for (int k = 0; k < n; k++)
			if (ev[k].data.u64 == (sock_idx(s) | (u64)s->gen << 32) && (ev[k].events & EPOLLRDHUP))
				return 1;
		if (i > 5 && n == 0)
			return 0;
	}
	return 0;
}

static void watch(struct sock *s)
{
	struct epoll_event ev = {.events = EPOLLRDHUP | EPOLLET, .data.u64 = sock_idx(s) | (u64)s->gen << 32};
	CHECK(epoll_ctl(S->epfd, EPOLL_CTL_ADD, s->fd, &ev) == 0);
}

/* ---- one connection, its numbers ---- */

static void first_facts(void)
{
	int fd, p;
	fd = connection(AF_INET6, &p);
	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	struct sock *s = sock_new(fd, 1, S_ACCEPTED);
	struct sockaddr_in6 a;
	socklen_t len = sizeof a;
	u64 cookie;
	CHECK(s && getsockname(fd, (void *)&a, &len) == 0);
	struct block *b = s->b;
	CHECK(b->state == S_ACCEPTED && b->role == 1 && b->procs == 1 && b->fd == fd && b->pid == (u32)getpid() && b->family == AF_INET6);
	CHECK(b->flags == BF_NONBLOCK && b->lport == ntohs(a.sin6_port) && b->pport == server_port && b->gen == 1 && b->since_ns);
	CHECK(!memcmp(b->laddr, &in6addr_loopback, 16) && !memcmp(b->paddr, &in6addr_loopback, 16));
	len = sizeof cookie;
	CHECK(getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) == 0 && cookie == b->cookie && cookie);
	CHECK(sock_get(fd, 1) == s && s->refs == 2 && sock_at(sock_idx(s), s->gen) == s && s->refs == 3);
	CHECK(!sock_at(sock_idx(s), s->gen + 1) && !sock_at(0, 0) && !sock_at(SOCK_MAX, 1) && !sock_at(77, 0) && !sock_get(p, 0) && !sock_get(-1, 0));
	sock_drop(s);
	sock_put(s);
	CHECK(!sock_new(-1, 0, S_OFFERED) && !sock_new(server_fd + 1000, 0, S_OFFERED));
	int pipes[2];
	CHECK(pipe(pipes) == 0 && !sock_new(pipes[0], 0, S_OFFERED));
	close(pipes[0]), close(pipes[1]);
	no_room = 1;
	CHECK(!sock_new(p, 0, S_OFFERED) && kind_of(p) == FD_UNKNOWN);
	no_room = 0;
	atomic_store(&b->tx_bytes, 100);
	atomic_store(&b->rx_bytes, 7);
	atomic_store(&b->state, S_ACTIVE);
	CHECK(h_close(fd) == 0 && ended(p) && kind_of(fd) == FD_UNKNOWN && !s->b && s->refs == 0 && posted == 0 && entries_gone == 1);
	CHECK(b->state == S_FREE && b->procs == 0 && S->proc->tx_bytes == 100 && S->proc->rx_bytes == 7);
	close(p);

	/* 300 at once: several slabs; then all free again, and used again. */
	static int f[300], q[300];
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 300; i++) {
			s = ours(&f[i], &q[i], S_ACTIVE);
			CHECK(s->b->rx_size == 0 && s->b->flags == 0 && s->b->gen >= 1);
		}
		CHECK(S->nslabs == 5 && S->sock_top <= 302 && S->proc->nblocks == 320);
		for (int i = 0; i < 300; i++)
			CHECK(h_close(f[i]) == 0 && close(q[i]) == 0);
	}
	/* A table that cannot grow says so. */
	no_room = 2;
	for (int i = 0; i < 320; i++)
		ours(&f[i % 300], &q[i % 300], S_ACTIVE);
	fd = connection(AF_INET, &p);
	CHECK(!sock_new(fd, 0, S_OFFERED) && kind_of(fd) == FD_UNKNOWN && open_fd(fd));
	no_room = 0;
	close(fd), close(p);
	CHECK(h_close_range(4, ~0u, 0) == 0);
}

static void duplicates(void)
{
	int fd, p, a, b;
	struct sock *s = ours(&fd, &p, S_ACTIVE);
	watch(s);
	CHECK((a = h_dup(fd)) > fd && kind_of(a) == FD_SOCK && sock_get(a, 1) == s && s->fds == 2);
	sock_put(s);
	CHECK(h_dup2(fd, 100) == 100 && h_dup3(fd, 101, O_CLOEXEC) == 101 && (b = h_fcntl(fd, F_DUPFD, 110)) >= 110);
	CHECK(h_fcntl(fd, F_DUPFD_CLOEXEC, 120) >= 120 && s->fds == 6 && s->refs == 6 && fcntl(101, F_GETFD) == FD_CLOEXEC);
	CHECK(h_fcntl(a, F_SETFL, O_NONBLOCK) == 0 && (s->b->flags & BF_NONBLOCK) && h_fcntl(100, F_GETFL) & O_NONBLOCK);
	CHECK(h_fcntl(101, F_SETFL, 0) == 0 && !(s->b->flags & BF_NONBLOCK));
	CHECK(h_dup2(fd, fd) == fd && h_dup3(fd, fd, 0) == -1 && errno == EINVAL && s->fds == 6);
	CHECK(h_dup2(a, 100) == 100 && s->fds == 6); /* onto another name of itself */
	CHECK(h_close(fd) == 0 && s->fd != fd && s->b->fd == s->fd && s->fds == 5 && kind_of(fd) == FD_UNKNOWN);
	CHECK(h_close(a) == 0 && h_close(100) == 0 && h_close(101) == 0 && h_close(b) == 0 && s->fds == 1 && posted == 0 && entries_gone == 0);
	CHECK(!ended(p) && watched(s, p)); /* the engine's watch went from number to number */
	struct sock *held = sock_at(sock_idx(s), s->gen); /* the engine */
	CHECK(held == s && h_close(s->fd) == 0 && ended(p) && posted == 1 && entries_gone == 1 && s->fd == -1 && s->b->fd == -1);
	CHECK(!watched(s, p));
	sock_drop(s);
	CHECK(s->refs == 0 && !s->b);
	close(p);

	/* dup2 over it is its close; what fails changes nothing. */
	int fd2, p2;
	s = ours(&fd, &p, S_ACTIVE);
	struct sock *t = ours(&fd2, &p2, S_ACTIVE);
	CHECK(h_dup2(9999, fd) == -1 && errno == EBADF && h_dup3(fd2, fd, 0x40) == -1 && errno == EINVAL && kind_of(fd) == FD_SOCK && s->fds == 1);
	CHECK(h_dup2(S->epfd, fd) == -1 && errno == EBADF && kind_of(fd) == FD_SOCK);
	CHECK(h_dup2(fd2, fd) == fd && ended(p) && sock_get(fd, 1) == t && t->fds == 2 && !s->b);
	sock_put(t);
	CHECK(h_dup2(server_fd, fd) == fd && kind_of(fd) == FD_UNKNOWN && t->fds == 1 && !ended(p2));
	close(fd);
	CHECK(h_close(fd2) == 0 && ended(p2));
	close(p), close(p2);
	/* Over numbers that are plain, or plain again. */
	s = ours(&fd, &p, S_ACTIVE);
	atomic_store(&S->fd_kind[server_fd], FD_PLAIN);
	int d = h_dup(server_fd);
	CHECK(kind_of(d) == FD_UNKNOWN && h_dup2(fd, d) == d && kind_of(d) == FD_SOCK && s->fds == 2);
	atomic_store(&S->fd_kind[server_fd], FD_UNKNOWN);
	sock_get(d, 0);
	sock_plain(s);
	CHECK(kind_of(d) == FD_PLAIN && kind_of(fd) == FD_PLAIN && s->fds == 0 && s->refs == 1 && s->fd == fd);
	sock_put(s);
	CHECK(!s->b && h_close(d) == 0 && !ended(p) && h_close(fd) == 0 && kind_of(fd) == FD_UNKNOWN && ended(p));
	close(p);
}

static void undecided(void)
{
	static const u32 states[] = {S_OFFERED, S_CLC, S_FLUSH, S_ACCEPTED};
	for (unsigned i = 0; i < 4; i++) {
		int fd, p;
		struct sock *s = ours(&fd, &p, states[i]);
		settled = 0;
		int d = h_dup(fd);
		CHECK(h_close(d) == 0 && settled == 0); /* the engine's number stays */
		CHECK(h_close(fd) == 0 && settled == 1 && ended(p) && !s->b && kind_of(fd) == FD_UNKNOWN);
		close(p);
		s = ours(&fd, &p, states[i]);
		s->b->procs++; /* a forked child has it too */
		settled = 0;
		CHECK(h_close(fd) == 0 && settled == (states[i] != S_ACCEPTED));
		close(p);
	}
	int fd, p;
	struct sock *s = ours(&fd, &p, S_ACCEPTED);
	(void)s;
	settled = 0;
	CHECK(h_fcntl(fd, F_SETFL, O_ASYNC) == 0 && settled == 1 && kind_of(fd) == FD_PLAIN);
	CHECK(h_close(fd) == 0);
	close(p);
}

static void *sleeper(void *arg)
{
	int fd = *(int *)arg;
	char c;
	struct sock *s = sock_get(fd, 0);
	CHECK(s);
	*(_Atomic int *)((int *)arg + 1) = 1;
	ssize_t n = recv(s->fd, &c, 1, 0);
	sock_put(s);
	return (void *)n;
}

/* A reader that sleeps keeps the socket alive, as in the kernel; close and dup2 alike. */
static void sleepers(void)
{
	for (int how = 0; how < 3; how++) {
		int a[2] = {0, 0}, p;
		pthread_t t;
		struct sock *s = ours(&a[0], &p, S_ACTIVE), *held = sock_at(sock_idx(s), s->gen);
		watch(s);
		posted = entries_gone = 0;
		CHECK(held == s && pthread_create(&t, 0, sleeper, a) == 0);
		while (!*(_Atomic int *)&a[1])
			usleep(100);
		usleep(20000);
		CHECK(how == 0 ? h_close(a[0]) == 0 : how == 1 ? h_dup2(server_fd, a[0]) == a[0] : h_close_range((unsigned)a[0], (unsigned)a[0], 0) == 0);
		CHECK(kind_of(a[0]) == FD_UNKNOWN && s->fds == 0 && s->fd > 2 && kind_of(s->fd) == FD_HIDDEN && posted == 0 && entries_gone == 0);
		int late = s->fd;
		CHECK(!ended(p) && write(p, "x", 1) == 1);
		void *n;
		pthread_join(t, &n);
		CHECK((ssize_t)n == 1 && ended(p) && s->fd == -1 && !open_fd(late) && kind_of(late) == FD_UNKNOWN && posted == 1 && entries_gone == 1);
		sock_drop(s);
		CHECK(!s->b);
		if (how == 1)
			close(a[0]);
		close(p);
	}
}

/* Behind a half close TCP's own close says nothing: who leaves bytes unread resets. */
static void unread_bytes(void)
{
	for (int i = 0; i < 4; i++) {
		int fd, p;
		struct sock *s = ours(&fd, &p, S_ACTIVE);
		unread = i & 1;
		resets = 0;
		if (i & 2)
			atomic_fetch_or(&s->b->flags, BF_SHUT_WR);
		CHECK(h_close(fd) == 0 && resets == (i == 3));
		close(p);
	}
	unread = 0;
}

/* What is no call of the program keeps no file; what is staged does, but not for the program's epoll sets. */
static void leavers(void)
{
	int fd, p;
	struct sock *s = ours(&fd, &p, S_ACTIVE), *held = sock_at(sock_idx(s), s->gen);

	sock_pin(s);
	CHECK(held == s && s->refs == 3 && h_close(fd) == 0 && !s->late && s->fd == -1 && ended(p) && all_gone == 0);
	sock_drop(s);
	CHECK(s->b && s->refs == 1);
	sock_unpin(s);
	CHECK(!s->b);
	close(p);
	for (int call = 0; call < 2; call++) {
		s = ours(&fd, &p, S_FLUSH);
		held = sock_at(sock_idx(s), s->gen);
		struct sock *sleeps = call ? sock_get(fd, 0) : 0;
		s->b->stage_len = 1;
		settles_later = 1;
		all_gone = 0;
		CHECK(held == s && h_close(fd) == 0 && s->late && kind_of(s->fd) == FD_HIDDEN && !ended(p) && all_gone == !call);
		settles_later = 0;
		s->b->stage_len = 0;
		if (sleeps)
			sock_put(s);
		sock_drop(s);
		CHECK(!s->b && ended(p));
		close(p);
	}
}

/* ---- behind our back ---- */

static void reused(void)
{
	int fd, p, fd2, p2;
	struct sock *s = ours(&fd, &p, S_ACTIVE);
	close(fd);
	CHECK(sock_get(fd, 1) == 0 && kind_of(fd) == FD_UNKNOWN && !s->b);
	close(p);
	s = ours(&fd, &p, S_ACTIVE);
	close(fd);
	int pipes[2];
	CHECK(pipe(pipes) == 0 && pipes[0] == fd); /* the number is a pipe now */
	CHECK(h_fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && kind_of(fd) == FD_UNKNOWN && !s->b);
	close(pipes[0]), close(pipes[1]), close(p);
	s = ours(&fd, &p, S_ACTIVE);
	close(fd);
	fd2 = h_socket(AF_INET, SOCK_STREAM, 0);
	CHECK(fd2 == fd && kind_of(fd2) == FD_UNKNOWN && !s->b);
	close(fd2), close(p);
	s = ours(&fd, &p, S_ACTIVE);
	u32 gen = s->gen;
	close(fd);
	struct sock *t = ours(&fd2, &p2, S_ACTIVE);
	CHECK(fd2 == fd && s->b && t->b && (t != s || t->gen != gen));
	CHECK(h_close(fd2) == 0);
	close(p), close(p2);
	/* dup and close of the same number by somebody else: the close is of what is there now. */
	s = ours(&fd, &p, S_ACTIVE);
	close(fd);
	CHECK(dup2(server_fd, fd) == fd && h_dup(fd) == fd + 2 && h_close(fd) == 0 && h_close(fd + 2) == 0 && !open_fd(fd) && !s->b);
	CHECK(h_close(fd) == -1 && errno == EBADF);
	close(p);
}

/* ---- ours are spared ---- */

static void hidden(void)
{
	int e = S->epfd, fd, p;
	CHECK(kind_of(e) == FD_HIDDEN && fcntl(e, F_GETFD) == FD_CLOEXEC && e >= 800);
	CHECK(h_close(e) == -1 && errno == EBADF && h_dup(e) == -1 && errno == EBADF && h_dup2(e, 50) == -1 && errno == EBADF);
	CHECK(h_fcntl(e, F_GETFD) == -1 && errno == EBADF && h_fdopen(e, "r") == 0 && errno == EBADF && open_fd(e));
	for (int i = 3; i < 20000; i++)
		if (i != server_fd)
			h_close(i);
	CHECK(open_fd(S->epfd) && open_fd(S->wakefd) && open_fd(server_fd));
	int keep = fcntl(server_fd, F_DUPFD_CLOEXEC, 3);
	(void)keep;

	/* The program wants exactly that number: it gets it, and ours moves. Once for each that is known by name. */
	struct sock *s = ours(&fd, &p, S_ACTIVE);
	watch(s);
	CHECK(h_dup2(fd, e) == e && kind_of(e) == FD_SOCK && s->fds == 2 && S->epfd != e && kind_of(S->epfd) == FD_HIDDEN);
	CHECK(watched(s, p));
	CHECK(h_close(e) == 0 && h_close(fd) == 0 && kind_of(e) == FD_UNKNOWN);
	close(p);
	int other = fd_hide(eventfd(0, 0));
	CHECK(h_dup2(server_fd, other) == -1 && errno == EBUSY && open_fd(other) && kind_of(other) == FD_HIDDEN);
	CHECK(fd_unhide(other) == 0 && !open_fd(other) && kind_of(other) == FD_UNKNOWN);

	/* A tight limit: as high as it goes, and if nothing goes, where it is. */
	struct rlimit rl, keep_rl;
	CHECK(getrlimit(RLIMIT_NOFILE, &rl) == 0);
	keep_rl = rl;
	int low = eventfd(0, 0);
	rl.rlim_cur = 64;
	CHECK(setrlimit(RLIMIT_NOFILE, &rl) == 0);
	other = fd_hide(low);
	CHECK(other >= 40 && other < 64 && kind_of(other) == FD_HIDDEN && !open_fd(low));
	low = eventfd(0, 0);
	rl.rlim_cur = (rlim_t)low + 1;
	CHECK(setrlimit(RLIMIT_NOFILE, &rl) == 0);
	CHECK(fd_hide(low) == low && kind_of(low) == FD_HIDDEN && fcntl(low, F_GETFD) == FD_CLOEXEC);
	CHECK(setrlimit(RLIMIT_NOFILE, &keep_rl) == 0);
	fd_unhide(low), fd_unhide(other);
}

static void ranges(void)
{
	int fd[4], p[4];
	struct sock *s[4];
	for (int i = 0; i < 4; i++) {
		s[i] = ours(&fd[i], &p[i], S_ACTIVE);
		CHECK(h_dup2(fd[i], 300 + i) == 300 + i);
	}
	CHECK(h_close_range(5, 4, 0) == -1 && errno == EINVAL && h_close_range(300, 301, 64) == -1 && errno == EINVAL && kind_of(300) == FD_SOCK);
	CHECK(h_close_range(300, 301, CLOSE_RANGE_CLOEXEC) == 0 && kind_of(300) == FD_SOCK && fcntl(300, F_GETFD) == FD_CLOEXEC);
	CHECK(h_close_range(300, 302, 0) == 0 && !open_fd(300) && !open_fd(302) && open_fd(303) && kind_of(302) == FD_UNKNOWN && s[0]->fds == 1);
	CHECK(!ended(p[0]) && !ended(p[3]));
	int plain = h_dup2(server_fd, 400);
	atomic_store(&S->fd_kind[plain], FD_PLAIN);
	/* Everything, around ours. */
	int hid[3];
	for (int i = 0; i < 3; i++)
		hid[i] = fd_hide(eventfd(0, 0));
	int above = h_fcntl(server_fd, F_DUPFD, hid[2] + 1);
	int low_p = fcntl(p[0], F_DUPFD, 500);
	CHECK(low_p >= 500);
	CHECK(h_close_range((unsigned)(server_fd + 1), ~0u, 0) == 0);
	CHECK(open_fd(S->epfd) && open_fd(S->wakefd) && open_fd(hid[0]) && open_fd(hid[1]) && open_fd(hid[2]) && !open_fd(above));
	CHECK(!open_fd(fd[0]) && !open_fd(303) && !open_fd(400) && kind_of(400) == FD_UNKNOWN && kind_of(303) == FD_UNKNOWN && !open_fd(p[3]));
	for (int i = 0; i < 4; i++)
		CHECK(!s[i]->b && s[i]->refs == 0);
	/* Kernels without close_range. */
	libc.close_range = missing_close_range;
	s[0] = ours(&fd[0], &p[0], S_ACTIVE);
	errno = 77;
	h_closefrom(server_fd + 1);
	CHECK(errno == 77 && !open_fd(fd[0]) && !open_fd(p[0]) && !s[0]->b && open_fd(S->epfd) && open_fd(hid[1]));
	libc.close_range = close_range;
	s[0] = ours(&fd[0], &p[0], S_ACTIVE);
	h_closefrom(server_fd + 1);
	CHECK(!open_fd(fd[0]) && !open_fd(p[0]) && !s[0]->b && open_fd(S->wakefd) && open_fd(hid[2]));
	for (int i = 0; i < 3; i++)
		fd_unhide(hid[i]);
	/* A table of its own, in one thread only: the map stays that of the others. */
	pid_t c = fork();
	if (!c) {
		S->pid = (u32)getpid();
		s[0] = ours(&fd[0], &p[0], S_ACTIVE);
		CHECK(h_close_range((unsigned)fd[0], ~0u, CLOSE_RANGE_UNSHARE) == 0 && !open_fd(fd[0]) && kind_of(fd[0]) == FD_SOCK && open_fd(S->epfd));
		_exit(0);
	}
	int st;
	CHECK(waitpid(c, &st, 0) == c && st == 0);
}

static void kinds(void)
{
	int l = h_dup(server_fd), d;
	atomic_store(&S->fd_sock[l], 5);
	atomic_store(&S->fd_kind[l], FD_LISTENER);
	atomic_store(&S->fd_top, 1000);
	CHECK((d = h_dup(l)) >= 0 && kind_of(d) == FD_LISTENER);
	listener_gone = 0;
	CHECK(h_close(l) == 0 && listener_gone == 0 && h_close(d) == 0 && listener_gone == 5 && kind_of(d) == FD_UNKNOWN);
	listener_gone = 0;
	l = h_dup(server_fd);
	atomic_store(&S->fd_sock[l], 6);
	atomic_store(&S->fd_kind[l], FD_LISTENER);
	CHECK(h_dup2(0, l) == l && listener_gone == 6 && kind_of(l) == FD_UNKNOWN && h_close(l) == 0);

	int ep = epoll_create1(0);
	set_dup = set_closed = 0;
	atomic_store(&S->fd_kind[ep], FD_EPOLL);
	CHECK((d = h_dup(ep)) >= 0 && set_dup == 1);
	atomic_store(&S->fd_kind[d], FD_EPOLL); /* as epoll.c does */
	CHECK(h_close(ep) == 0 && set_closed == 1 && kind_of(ep) == FD_UNKNOWN && h_close_range((unsigned)d, (unsigned)d, 0) == 0 && set_closed == 2);
	count_tcp(R_NO_CLIENT, 0);
	count_tcp(R_COUNT + 5, 0);
	count_tcp(R_RULE, 1);
	CHECK(S->proc->tcp_conns == 2 && S->proc->fallbacks[R_NO_CLIENT] == 1 && S->proc->fallbacks[R_RULE] == 1);
	errno = 99;
	int x = h_dup(0);
	CHECK(h_close(x) == 0 && errno == 99);
}

/* ---- stdio ---- */

static void streams(void)
{
	int fd, p;
	char line[64];
	struct sock *s = ours(&fd, &p, S_ACTIVE);
	reads = writes = 0;
	CHECK(!h_fdopen(fd, "q") && errno == EINVAL && open_fd(fd));
	FILE *f = h_fdopen(fd, "r+");
	CHECK(f && fileno(f) == fd && !feof(f) && ftell(f) == -1 && errno == ESPIPE);
	CHECK(write(p, "hello\nworld\n12", 14) == 14 && fgets(line, sizeof line, f) && !strcmp(line, "hello\n"));
	CHECK(fgets(line, sizeof line, f) && !strcmp(line, "world\n") && fgetc(f) == '1' && fgetc(f) == '2');
	CHECK(fprintf(f, "answer %d\n", 42) == 10 && fflush(f) == 0 && read(p, line, sizeof line) == 10 && !memcmp(line, "answer 42\n", 10));
	CHECK(reads >= 1 && writes == 1);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	CHECK(fgetc(f) == EOF && ferror(f) && errno == EAGAIN);
	clearerr(f);
	CHECK(write(p, "z", 1) == 1 && fgetc(f) == 'z');
	shutdown(p, SHUT_WR);
	while (!ended(fd))
		;
	CHECK(fgetc(f) == EOF && feof(f) && !ferror(f));
	CHECK(fputs("tail", f) >= 0 && fclose(f) == 0 && !open_fd(fd) && !s->b && read(p, line, 9) == 4 && ended(p));
	close(p);
	s = ours(&fd, &p, S_ACTIVE);
	f = h_fdopen(fd, "w");
	CHECK(f && fgetc(f) == EOF && errno == EBADF);
	close(p);
	usleep(1000);
	signal(SIGPIPE, SIG_IGN);
	fputs("a", f), fflush(f), usleep(1000), fputs("b", f);
	CHECK(fflush(f) == EOF && (errno == EPIPE || errno == ECONNRESET) && ferror(f));
	fclose(f);
	/* Fell back while the stream was open. */
	s = ours(&fd, &p, S_ACTIVE);
	f = h_fdopen(fd, "r");
	sock_get(fd, 0);
	sock_plain(s);
	sock_put(s);
	reads = 0;
	CHECK(write(p, "!", 1) == 1 && fgetc(f) == '!' && reads == 0 && fclose(f) == 0 && ended(p));
	close(p);
	f = h_fdopen(h_dup(server_fd), "r"); /* not ours: libc's own */
	CHECK(f && fclose(f) == 0);
}

/* ---- fork ---- */

static void forks(void)
{
	for (int prepared = 0; prepared < 2; prepared++) {
		int fd, p, st, turn[2];
		char go = 0;
		CHECK(pipe(turn) == 0);
		struct sock *s = ours(&fd, &p, S_ACTIVE), *held = sock_at(sock_idx(s), s->gen);
		struct block *b = s->b;
		watch(s);
		u64 before = S->proc->tx_bytes;
		CHECK(held);
		if (prepared)
			map_prefork();
		pid_t c = fork();
		if (!c) {
			S->pid = (u32)getpid();
			struct proc_page *parents = S->proc;
			map_forked();
			S->proc = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
			S->engine = ENG_COLD;
			CHECK(b->procs && s->refs == 1 && s->fds == 1 && s->held == 0 && sock_get(fd, 1) == s);
			sock_put(s);
			int q, r;
			struct sock *t = ours(&r, &q, S_ACTIVE); /* in a slab of its own */
			CHECK(t != s && t->slab != s->slab && S->slab[t->slab].home == S->proc);
			CHECK(h_close(r) == 0);
			while (b->procs != 1)
				usleep(100);
			b->tx_bytes = 55;
			CHECK(read(turn[0], &go, 1) == 1 && h_close(fd) == 0 && !s->b && b->procs == 0 && b->state == S_FREE);
			CHECK(parents->tx_bytes == before + 55 && S->proc->tx_bytes == 0);
			_exit(0);
		}
		if (prepared) {
			CHECK(b->procs == 2);
			map_postfork(0);
		} else {
			while (b->procs == 1)
				usleep(100);
		}
		CHECK(h_close(fd) == 0 && s->refs == 1);
		sock_drop(s);
		CHECK(!s->b && b->procs == 1 && b->state == S_ACTIVE && !ended(p) && write(turn[1], &go, 1) == 1);
		close(turn[0]), close(turn[1]);
		CHECK(waitpid(c, &st, 0) == c && st == 0 && ended(p) && b->procs == 0);
		close(p);
		/* The block is ours again. */
		s = ours(&fd, &p, S_ACTIVE);
		CHECK(h_close(fd) == 0);
		close(p);
	}
	int fd, p;
	struct sock *s = ours(&fd, &p, S_ACTIVE);
	map_prefork();
	CHECK(s->b->procs == 2);
	map_postfork(1);
	CHECK(s->b->procs == 1);
	/* A vfork child has its parent's memory, not its descriptors. */
	pid_t v = vfork();
	if (!v) {
		if (h_close(fd) || h_dup2(server_fd, fd) != fd || h_close_range(4, ~0u, 0))
			_exit(1);
		_exit(0);
	}
	int st;
	CHECK(waitpid(v, &st, 0) == v && st == 0 && kind_of(fd) == FD_SOCK && s->fds == 1 && open_fd(fd) && open_fd(S->epfd));
	CHECK(h_close(fd) == 0);
	close(p);
}

/* ---- threads ---- */

static _Atomic int stop, calls;
static void *caller(void *arg)
{
	int *fd = arg;
	while (!stop)
		for (int i = 0; i < 4; i++) {
			struct sock *s = sock_get(fd[i], (i & 1) == 0);
			if (!s)
				continue;
			CHECK(s->b && atomic_load(&s->b->procs));
			calls++;
			sock_put(s);
		}
	return 0;
}

static void *engine(void *arg)
{
	(void)arg;
	while (!stop)
		for (u32 i = 1; i < 8; i++) {
			struct sock *s = sock_at(i, S->sock[i].gen);
			if (s) {
				CHECK(s->b);
				sock_drop(s);
			}
		}
	return 0;
}

static void storm(void)
{
	int fd[4] = {600, 601, 602, 603}, a, p;
	pthread_t t[3];
	u32 live = 0;
	stop = 0;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], 0, caller, fd) == 0);
	CHECK(pthread_create(&t[2], 0, engine, 0) == 0);
	i64 until = now_ns() + 1500000000ll;
	for (int k = 0; now_ns() < until; k++) {
		ours(&a, &p, S_ACTIVE);
		CHECK(h_dup2(a, fd[k % 4]) == fd[k % 4] && h_close(a) == 0);
		if (k % 3 == 0)
			CHECK(h_close(fd[(k + 1) % 4]) == 0 || errno == EBADF);
		close(p);
	}
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	for (int i = 0; i < 4; i++)
		h_close(fd[i]);
	for (u32 i = 1; i < S->sock_top; i++)
		live += S->sock[i].b != 0 || S->sock[i].refs;
	for (u32 i = 0; i < S->nslabs; i++)
		for (u32 k = 0; S->slab[i].home == S->proc && k < SLAB_BLOCKS; k++)
			live += S->slab[i].b[k].procs != 0;
	for (int i = 3; i < 20000; i++)
		live += open_fd(i) && kind_of(i) == FD_HIDDEN && i != S->epfd && i != S->wakefd;
	CHECK(live == 0 && calls > 100, "%u left, %d calls", live, calls);
}

int main(void)
{
	struct sockaddr_in6 a = {.sin6_family = AF_INET6};
	struct rlimit rl = {1024, 1024};
	socklen_t len = sizeof a;
	getrlimit(RLIMIT_NOFILE, &rl);
	rl.rlim_cur = 1024;
	CHECK(setrlimit(RLIMIT_NOFILE, &rl) == 0);
	server_fd = socket(AF_INET6, SOCK_STREAM, 0);
	CHECK(bind(server_fd, (void *)&a, sizeof a) == 0 && listen(server_fd, 100) == 0 && getsockname(server_fd, (void *)&a, &len) == 0);
	server_port = ntohs(a.sin6_port);
	CHECK(dup2(server_fd, 3) == 3 && (server_fd == 3 || close(server_fd) == 0));
	server_fd = 3;
	static void (*const parts[])(void) = {first_facts, duplicates, undecided, sleepers, leavers, unread_bytes, reused, hidden, ranges, kinds, streams, forks, storm};
	for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
		fresh_shim();
		parts[i]();
		fd_unhide(S->epfd);
		fd_unhide(S->wakefd);
	}
	return 0;
}

/* bell.c: the pool, handing over, ringing. build: lane.c bell.c */
#include "lane_pair.h"

#include <dirent.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

int engine_post(u32 op, struct sock *s, u64 arg) { (void)op, (void)s, (void)arg; return 0; }
void sock_tcp_event(struct sock *s, u32 events) { (void)s, (void)events; }
int fd_hide(int fd)
{
	int n = fcntl(fd, F_DUPFD_CLOEXEC, 500);
	CHECK(n >= 500);
	close(fd);
	S->fd_kind[n] = FD_HIDDEN;
	return n;
}
int fd_unhide(int fd)
{
	CHECK(S->fd_kind[fd] == FD_HIDDEN);
	S->fd_kind[fd] = FD_UNKNOWN;
	return close(fd);
}

#define OTHER 2
static i64 in_ms(int ms) { return now_ns() + ms * 1000000ll; }
static u32 rnd(u32 *x) { return *x = *x * 1664525 + 1013904223, *x >> 8; }
static void nap(long us)
{
	struct timespec t = {us / 1000000, us % 1000000 * 1000};
	nanosleep(&t, 0);
}

static int fds_open(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/fd");
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static void name(u8 gid[16], int who, int pid)
{
	memset(gid, 0, 16);
	snprintf((char *)gid, 16, "bt%d.%d", who, pid);
}

static void engine_up(int me, int pid)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	name(S->gid, me, pid);
	memcpy(a.sun_path + 1, S->gid, 16);
	S->dgram = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK(bind(S->dgram, (void *)&a, offsetof(struct sockaddr_un, sun_path) + 17) == 0);
}

static void knows(u32 peer, int who, int pid)
{
	name(S->peer[peer].gid, who, pid);
	S->peer[peer].used = 1;
}

/* One BELL datagram, as the engine takes it. 0 = none within ms. */
static int take_bell(int ms, u32 *id, int *fd, int *page)
{
	struct bell_msg m;
	char room[CMSG_SPACE(8)];
	struct iovec v = {&m, sizeof m};
	struct msghdr h = {0, 0, &v, 1, room, sizeof room, 0};
	struct pollfd p = {S->dgram, POLLIN, 0};
	if (poll(&p, 1, ms) != 1)
		return 0;
	ssize_t n = recvmsg(S->dgram, &h, MSG_CMSG_CLOEXEC);
	if (n == 16 && m.type == DGRAM_RING) { /* for a bell that was not there yet */
		u32 *body = (u32 *)m.gid;
		bell_rung(body[0], body[1]);
		return 0;
	}
	CHECK(n == 28 && m.type == DGRAM_BELL && m.len == 20);
	struct cmsghdr *c = CMSG_FIRSTHDR(&h);
	int fds[2] = {-1, -1};
	n = c ? (int)(c->cmsg_len - CMSG_LEN(0)) / 4 : 0;
	CHECK(n == 1 || n == 2);
	memcpy(fds, CMSG_DATA(c), n * 4);
	CHECK(!memcmp(m.gid, S->peer[OTHER].gid, 16));
	*id = m.id, *fd = fds[0], *page = fds[1];
	return 1;
}

static void *engine(void *arg)
{
	u32 id, x = 3;
	int fd, page;
	while (!*(volatile int *)arg)
		if (take_bell(50, &id, &fd, &page)) {
			nap(rnd(&x) % 3 ? 0 : rnd(&x) % 200); /* rings before that are dropped */
			bell_install(OTHER, id, fd, page);
		}
	return 0;
}

/* ---- two processes: the owner sleeps in epoll_wait, the ringer writes to the ring ---- */

#define BYTES 150000
#define FRESH 200 /* bells made new, one a byte, while the ringer's engine may not have them yet */

static void ringer(struct sock *s, int pid)
{
	static volatile int stop;
	pthread_t t;
	u32 x = 8;
	lane_forked();
	bell_forked();
	engine_up(2, pid);
	knows(OTHER, 1, pid);
	CHECK(pthread_create(&t, 0, engine, (void *)&stop) == 0);
	for (int i = 0; i < BYTES + FRESH; i++) {
		while (i >= BYTES && lane_unsent(s)) /* one byte per new bell */
			sched_yield();
		u32 r = rnd(&x) % 32;
		if (r == 0 || i >= BYTES)
			nap(rnd(&x) % 120);
		else if (r < 12)
			for (u32 k = rnd(&x) % 300; k; k--)
				__builtin_ia32_pause();
		CHECK(send_all(s, "b", 1, in_ms(20000)) == 1);
	}
	stop = 1;
	pthread_join(t, 0);
	_exit(0);
}

struct owner {
	int idx, ep;
};

static struct owner own_bell(void)
{
	struct owner o = {bell_get(), epoll_create1(EPOLL_CLOEXEC)};
	struct epoll_event e = {.events = EPOLLIN | EPOLLET};
	CHECK(o.idx > 0 && S->bell[o.idx].fd >= 500);
	CHECK(epoll_ctl(o.ep, EPOLL_CTL_ADD, S->bell[o.idx].fd, &e) == 0);
	return o;
}

/* Sleeps until the bell says something; returns whether `tag` is what it said. */
static int sleep_bell(struct owner *o, u32 tag, int ms)
{
	struct bell_word *w = S->bell[o->idx].word;
	struct epoll_event e;
	bell_sleeps(w);
	if (!atomic_load(&w->summary))
		CHECK(epoll_wait(o->ep, &e, 1, ms) == 1, "not rung");
	atomic_store(&w->asleep, 0);
	atomic_store(&w->summary, 0);
	u64 mine = 0;
	for (u32 i = 0; i < 64; i++) {
		u64 b = atomic_exchange(&w->bits[i], 0);
		if (i == tag / 64)
			mine = b >> tag % 64 & 1;
	}
	return (int)mine;
}

static void wait_data(struct sock *s, struct owner *o)
{
	while (!lane_used(s)) {
		CHECK(arm_bell(&s->rx->rarm, bell_id(o->idx)));
		if (lane_used(s))
			break;
		sleep_bell(o, s->rx->rtag, 5000);
	}
}

static void test_processes(void)
{
	make_shim(PROFILE_BALANCED);
	struct sock *s = make_pair(1, 4096, OTHER);
	int pid = getpid(), st;
	long sleeps = 0;
	pid_t p = fork();
	if (!p)
		ringer(s + 1, pid);
	engine_up(1, pid);
	knows(OTHER, 2, pid);
	struct owner o = own_bell();
	i64 end = in_ms(5000);
	while (bell_tell(o.idx, OTHER) == -ECONNREFUSED && now_ns() < end) /* its engine comes up */
		nap(1000);
	CHECK(bell_tell(o.idx, OTHER) == 0 && S->bell_told[OTHER] == 1);
	char b[64];
	for (int n = 0; n < BYTES;) {
		wait_data(s, &o);
		sleeps++;
		ssize_t r = recv_some(s, b, n > BYTES - 64 ? 1 : sizeof b, 0, 0);
		CHECK(r > 0);
		n += (int)r;
	}
	for (int n = 0; n < FRESH; n++) {
		struct owner f = own_bell();
		CHECK(bell_tell(f.idx, OTHER) == 0);
		wait_data(s, &f);
		CHECK(recv_some(s, b, 1, 0, 0) == 1);
		close(f.ep);
	}
	CHECK(waitpid(p, &st, 0) == p && st == 0);
	printf("  %ld waits\n", sleeps);
	close(S->dgram);
	free_pair(s);
}

/* ---- ringing an awake owner costs no system call; a wrong ring does nothing ---- */

static void test_ring(void)
{
	u64 v;
	make_shim(PROFILE_BALANCED);
	struct sock *s = make_pair(1, 4096, SELF_PEER);
	struct owner o = own_bell();
	struct bell_word *w = S->bell[o.idx].word;
	u32 id = bell_id(o.idx);
	CHECK(id >> 10 == S->salt && S->salt > 0 && S->salt < 1024);
	CHECK(bell_tell(o.idx, SELF_PEER) == 0 && bell_tell(o.idx, 0) == -EINVAL && bell_tell(o.idx, 9) == -EINVAL && bell_tell(o.idx, PEER_MAX) == -EINVAL);
	bell_ring(s, id, 4096 + 130, 0);
	CHECK(w->summary == 4 && w->bits[2] == 4 && read(S->bell[o.idx].fd, &v, 8) == -1 && errno == EAGAIN);
	w->asleep = 1;
	bell_ring(s, id, 0, 1);
	CHECK(w->summary == 5 && w->asleep == 0 && read(S->bell[o.idx].fd, &v, 8) == 8 && v == 1);
	bell_ring(s, 0, 0, 0);
	bell_ring(s, 0xfffff, 0, 0);
	bell_ring(s, S->salt << 10 | 1000, 0, 0);
	bell_ring(s, (S->salt ^ 1) << 10 | 1, 0, 1);
	CHECK(w->summary == 5);
	/* the arms of a connection of ours with itself: reader and writer, and a state change that spares foreign bells */
	struct iovec b = {"x", 1};
	w->summary = w->bits[0] = w->bits[2] = 0;
	CHECK(arm_bell(&s->rx->rarm, id) && lane_write(s + 1, &b, 1, 0) == 1);
	CHECK(w->bits[0] == 1 << 1 && s->rx->rarm.w == 0);
	CHECK(arm_bell(&(s + 1)->tx->warm, id) && lane_read(s, &b, 0, 0, 0) == 0 && recv_some(s, &v, 1, 0, 0) == 1);
	CHECK(w->bits[0] == (1 << 1 | 1 << 2));
	u32 sibling = (S->salt ^ 1) << 10 | 7;
	CHECK(arm_bell(&s->rx->rarm, sibling) && arm_bell(&s->rx->rarm, id));
	w->bits[0] = 0;
	sock_fire(s);
	CHECK(w->bits[0] == 1 << 1 && s->rx->rarm.w == (u64)sibling << 4);
	/* reuse: nothing stale */
	w->asleep = 1;
	bell_ring(s, id, 3, 1);
	bell_put(o.idx);
	CHECK(bell_get() == o.idx && w->summary == 0 && w->bits[0] == 0 && w->asleep == 0);
	CHECK(read(S->bell[o.idx].fd, &v, 8) == -1);
	int n = 1;
	while (n < 300 && bell_get() > 0)
		n++;
	CHECK(n == 300 && S->bell_hi == 300);
	free_pair(s);
}

/* ---- what a peer may send ---- */

static int page_of(size_t size, int seals)
{
	int fd = memfd_create("page", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	CHECK(ftruncate(fd, (off_t)size) == 0 && fcntl(fd, F_ADD_SEALS, seals) == 0);
	return fd;
}

static void test_install(void)
{
	int p[2];
	u64 v;
	size_t full = BELL_MAX * sizeof(struct bell_word);
	make_shim(PROFILE_BALANCED);
	struct sock *s = make_pair(1, 4096, 5);
	int before = fds_open();
	bell_install(5, 1025, eventfd(0, 0), -1); /* no page yet */
	bell_install(5, 1025, eventfd(0, 0), page_of(full, 0));
	bell_install(5, 1025, eventfd(0, 0), page_of(full - 1, F_SEAL_SHRINK));
	bell_install(5, 1025, eventfd(0, 0), fcntl(0, F_DUPFD, 3));
	CHECK(!S->peer[5].bells && S->bell_held[5] == 0);
	bell_install(SELF_PEER, 1025, eventfd(0, 0), page_of(full, F_SEAL_SHRINK));
	bell_install(PEER_MAX, 1025, eventfd(0, 0), page_of(full, F_SEAL_SHRINK));
	bell_install(5, 1024, eventfd(0, 0), page_of(full, F_SEAL_SHRINK));
	bell_install(5, 1 << 20 | 1, eventfd(0, 0), -1);
	CHECK(pipe(p) == 0);
	bell_install(5, 1025, p[0], page_of(full, F_SEAL_SHRINK));
	bell_install(5, 1025, p[1], -1);
	CHECK(S->peer[5].bells && S->bell_held[5] == 0 && fds_open() == before);

	/* installing rings once, for everything; ringing reaches it; the eventfd must not block */
	int e = eventfd(0, 0), page = page_of(full, F_SEAL_SHRINK);
	struct bell_word *w = (struct bell_word *)mmap(0, full, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0) + 1;
	w->asleep = 1;
	bell_install(5, 1025, dup(e), page);
	CHECK(w->asleep == 0 && w->summary == ~0ull && w->bits[63] == ~0ull && read(e, &v, 8) == 8);
	CHECK(fcntl(e, F_GETFL) & O_NONBLOCK);
	w->summary = 0;
	w->asleep = 1;
	bell_ring(s, 1025, 64, 0);
	CHECK(w->summary == 2 && read(e, &v, 8) == 8 && v == 1);
	s->peer = 6; /* of a forked child of the peer: another number, same id */
	bell_ring(s, 1025, 128, 0);
	CHECK(w->summary == 6);
	s->peer = 5;
	/* the same bell again takes the same number; another process's comes first for its own connections */
	int held = fds_open();
	bell_install(5, 1025, dup(e), -1);
	CHECK(fds_open() == held && S->bell_held[5] == 1);
	bell_install(7, 1025, eventfd(0, 0), page_of(full, F_SEAL_SHRINK));
	S->peer[7].bells[1].summary = 0;
	bell_ring(s, 1025, 0, 0);
	CHECK(S->peer[7].bells[1].summary == 0);
	/* not more than its share */
	for (u32 i = 2; i < 400; i++)
		bell_install(5, 1024 + i, eventfd(0, 0), -1);
	CHECK(S->bell_held[5] == BELL_PER_PEER);
	/* processes that come and go cost nothing in the end; a late ring is harmless */
	bell_forget(5);
	w->summary = 0;
	bell_ring(s, 1025, 0, 0);
	CHECK(S->bell_held[5] == 0 && w->summary == 0 && S->bell_spares == BELL_PER_PEER);
	held = fds_open();
	for (u32 gen = 0; gen < 12000; gen++) {
		u32 id = (gen % 1023 + 1) << 10 | (1 + gen % 900);
		bell_install(5, id, eventfd(0, 0), page_of(full, F_SEAL_SHRINK));
		CHECK(S->bell_held[5] == 1, "generation %u", gen);
		S->peer[5].bells[id & 1023].summary = 0;
		bell_ring(s, id, 1, 0);
		CHECK(S->peer[5].bells[id & 1023].summary == 1);
		bell_forget(5);
	}
	CHECK(fds_open() == held);
	free_pair(s);
}

/* ---- nobody reads, nobody is there ---- */

static void test_tell(void)
{
	u32 id;
	int fd, page, idx[600], n, r = 0;
	make_shim(PROFILE_BALANCED);
	idx[0] = bell_get();
	knows(OTHER, 3, getpid());
	CHECK(bell_tell(idx[0], OTHER) == -EAGAIN); /* no socket */
	engine_up(3, getpid()); /* to ourselves */
	S->engine = ENG_STARTING;
	CHECK(bell_tell(idx[0], OTHER) == -EAGAIN);
	S->engine = ENG_READY;
	for (n = 0; n < 300; n++) {
		if (n)
			idx[n] = bell_get();
		CHECK(idx[n] > 0);
		if ((r = bell_tell(idx[n], OTHER)))
			break;
		CHECK(bell_tell(idx[n], OTHER) == 0); /* once */
	}
	if (r == -EAGAIN) { /* the queue is full: not handed over, and can be later */
		CHECK(S->bell_told[OTHER] == n && !S->bell[idx[n]].told[0]);
		for (int i = 0; i < n; i++) {
			CHECK(take_bell(0, &id, &fd, &page) && id == bell_id(idx[i]) && (page >= 0) == !i);
			close(fd);
			if (page >= 0)
				close(page);
		}
		CHECK(bell_tell(idx[n], OTHER) == 0);
		while (n < BELL_PER_PEER) {
			if (S->bell_told[OTHER] == BELL_PER_PEER)
				break;
			idx[++n] = bell_get();
			CHECK(bell_tell(idx[n], OTHER) == 0);
			CHECK(take_bell(0, &id, &fd, &page));
			close(fd);
		}
		idx[++n] = bell_get();
		r = bell_tell(idx[n], OTHER);
	}
	CHECK(r == -ENOSPC && S->bell_told[OTHER] == BELL_PER_PEER, "%d", r);
	bell_forget(OTHER);
	CHECK(S->bell_told[OTHER] == 0);
	close(S->dgram);
	CHECK(bell_tell(idx[0], OTHER) < 0 && !S->bell[idx[0]].told[0]);
}

/* ---- fork: each has its own bells, and a connection of the parent with itself has an end in each ---- */

static void child_end(struct sock *s, int idx, u32 salt)
{
	u32 id = salt << 10 | (u32)idx;
	lane_forked();
	bell_forked();
	CHECK(S->salt && S->salt != salt && S->forked && !S->bell_page && S->bell_hi == 0);
	int mine = bell_get();
	CHECK(mine == 1 && S->bell[1].word != S->peer[SELF_PEER].bells + 1 && S->bell[1].fd >= 500);
	CHECK(bell_tell(mine, SELF_PEER) == -ENOTCONN);
	sock_fire(s); /* the parent's bell is not ours to take */
	CHECK(s->rx->rarm.w == (u64)id << 4);
	nap(20000);
	CHECK(send_all(s + 1, "x", 1, 0) == 1);
	pid_t p = fork(); /* and once more */
	if (!p) {
		u32 before = S->salt;
		lane_forked();
		bell_forked();
		CHECK(S->salt != before && S->salt != salt && bell_get() == 1);
		_exit(0);
	}
	int st;
	CHECK(waitpid(p, &st, 0) == p && st == 0);
	_exit(0);
}

static void test_fork(void)
{
	make_shim(PROFILE_BALANCED);
	struct sock *s = make_pair(1, 4096, SELF_PEER);
	struct owner o = own_bell(), unused = own_bell();
	bell_put(unused.idx);
	CHECK(arm_bell(&s->rx->rarm, bell_id(o.idx)));
	pid_t p = fork();
	int st;
	if (!p)
		child_end(s, o.idx, S->salt);
	S->forked = 1;
	CHECK(bell_tell(o.idx, SELF_PEER) == -ENOTCONN);
	CHECK(sleep_bell(&o, 1, 5000) == 1 && lane_used(s) == 1);
	CHECK(waitpid(p, &st, 0) == p && st == 0);
	free_pair(s);
}

/* ---- pool under threads and handlers ---- */

static void *churn(void *arg)
{
	_Atomic u8 *held = arg;
	for (int i = 0; i < 20000; i++) {
		int a = bell_get();
		CHECK(a > 0 && atomic_exchange(&held[a], 1) == 0, "two owners");
		CHECK(S->bell[a].word == S->bell_page + a);
		atomic_store(&held[a], 0);
		bell_put(a);
	}
	return 0;
}

static void test_pool(void)
{
	pthread_t t[4];
	static _Atomic u8 held[BELL_MAX];
	make_shim(PROFILE_BALANCED);
	int before = fds_open();
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], 0, churn, (void *)held) == 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	CHECK(S->bell_hi <= 4 && fds_open() == before + 1 + (int)S->bell_hi);
}

/* Another user's process gets no bell; the engines ring. */
static void test_stranger(void)
{
	u32 id;
	int fd, page, tag = 70;
	make_shim(PROFILE_BALANCED);
	engine_up(5, (int)getpid());
	knows(OTHER, 5, (int)getpid()); /* whose engine is ours, so that we see what it gets */
	S->engine = ENG_READY;
	struct sock *s = &S->sock[9];
	s->peer = OTHER;
	int a = bell_get();
	struct bell_word *w = S->bell[a].word;
	S->peer[OTHER].stranger = 1;
	CHECK(a > 0 && bell_tell(a, OTHER) == -EXDEV && !take_bell(0, &id, &fd, &page));
	bell_sleeps(w);
	bell_ring(s, bell_id(a), (u32)tag, 0);
	CHECK(atomic_load(&w->asleep) && !atomic_load(&w->summary), "not by the ringer itself");
	CHECK(!take_bell(1000, &id, &fd, &page) && !atomic_load(&w->asleep) && atomic_load(&w->bits[tag / 64]) == 1ull << tag % 64);
	struct pollfd p = {S->bell[a].fd, POLLIN, 0};
	CHECK(poll(&p, 1, 0) == 1);
	bell_rung(bell_id(a) ^ 1u << 10, 1); /* of somebody else, or of nobody */
	bell_rung(BELL_MAX - 1, 1);
	bell_rung(0, 1);
	CHECK(atomic_load(&w->bits[0]) == 0);
}

#define RUN(f)                                                                                                    \
	do {                                                                                                      \
		i64 t0 = now_ns();                                                                                \
		f();                                                                                              \
		printf("%s %.2f s\n", #f, (double)(now_ns() - t0) / 1e9);                                         \
		fflush(stdout);                                                                                   \
	} while (0)

int main(void)
{
	static struct shim none; /* whoever looks at the clock before there is one */
	smcr_shim = &none;
	RUN(test_ring);
	RUN(test_pool);
	RUN(test_install);
	RUN(test_tell);
	RUN(test_stranger);
	RUN(test_fork);
	RUN(test_processes);
	return 0;
}

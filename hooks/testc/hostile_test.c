/* What a peer can write it writes, all the time and everywhere, while poll, epoll, reads and writes go on beside an honest
 * connection: lane.c is alone in lane_test. build: poll.c epoll.c lane.c bell.c
 * HOSTILE_TEST_LONG=n multiplies the time. */
#include "ready_pair.h"

enum { PAIRS = 4, HONEST = PAIRS - 1 };
static int fd[PAIRS][2];

/* Heads of both directions, and the bells of the process, which is what the peer of a connection has mapped. */
static void scribble(void)
{
	u32 x = 7;

	for (;;) {
		struct sock *s = x_sock(fd[rnd(&x) % HONEST][0]);
		u32 *w = (u32 *)(rnd(&x) % 2 ? s->rx : s->tx) + rnd(&x) % (sizeof(struct rmbe_head) / 4), v = rnd(&x) << rnd(&x) % 24;
		if (rnd(&x) % 4 == 0)
			v = *w + rnd(&x) % (2 * RING);
		if (rnd(&x) % 4 == 0 && S->bell_page)
			w = (u32 *)S->bell_page + sizeof(struct bell_word) / 4 + rnd(&x) % (8 * sizeof(struct bell_word) / 4);
		__atomic_store_n(w, v, __ATOMIC_RELAXED);
		if (rnd(&x) % 8 == 0) /* some rounds are not disturbed, or nothing would ever move */
			nap(20);
	}
}

/* Rings between pages that trap. */
static void fence(struct sock *a)
{
	for (int i = 0; i < 2; i++) {
		u8 *m = mmap(0, RING + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(mmap(m + 4096, RING, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == m + 4096);
		munmap(a[i].rxbuf, RING);
		a[i].rxbuf = a[1 - i].txbuf = m + 4096;
	}
}

int main(void)
{
	static u8 b[2 * RING];
	int scale = getenv("HOSTILE_TEST_LONG") ? atoi(getenv("HOSTILE_TEST_LONG")) : 1, looked = 0, moved = 0;
	u32 x = 1;

	ready_shim();
	int ep = h_epoll_create1(EPOLL_CLOEXEC);
	for (int i = 0; i < PAIRS; i++) {
		x_pair(1, fd[i]);
		struct sock *s = x_sock(fd[i][0]);
		fence(s < x_sock(fd[i][1]) ? s : x_sock(fd[i][1]));
		struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | (i == 1 ? (u32)EPOLLET : 0), .data.u32 = (u32)i};
		CHECK(h_epoll_ctl(ep, EPOLL_CTL_ADD, fd[i][0], &e) == 0);
	}
	struct epoll_event e = {.events = EPOLLIN, .data.u32 = HONEST};
	CHECK(h_epoll_ctl(ep, EPOLL_CTL_MOD, fd[HONEST][0], &e) == 0);
	struct epoll_event none[PAIRS];
	struct timespec brief = {0, 2000000};
	h_epoll_pwait2(ep, none, PAIRS, &brief, 0); /* there are bells to write over */
	pid_t p = fork();
	CHECK(p >= 0);
	if (!p)
		scribble();
	for (i64 end = now_ns() + 2000 * MS * scale; now_ns() < end; looked++) {
		struct epoll_event got[PAIRS];
		struct pollfd q[PAIRS];
		struct iovec v = {b, 1 + rnd(&x) % sizeof b};
		u8 said = (u8)rnd(&x), heard;
		int k = (int)(rnd(&x) % HONEST), found = 0;
		struct sock *s = x_sock(fd[k][0]), *peer = x_sock(fd[k][1]);

		atomic_store(&peer->b->flags, 0);
		lane_write(peer, &v, 1, 0);
		lane_write(s, &v, 1, rnd(&x) % v.iov_len);
		moved += lane_read(s, &v, 1, 0, rnd(&x) % 3 ? 0 : MSG_PEEK) > 0;
		lane_used(s), lane_room(s), lane_unsent(s), sock_events(s);
		/* The honest one: what was sent is there, whole, and both ways to ask say so. */
		CHECK(x_send(fd[HONEST][1], &said, 1) == 1);
		for (int i = 0; i < PAIRS; i++)
			q[i] = (struct pollfd){fd[i][0], POLLIN | (i == HONEST ? 0 : POLLOUT), 0};
		CHECK(h_poll(q, PAIRS, rnd(&x) % 3 ? 0 : 1) >= 1 && q[HONEST].revents == POLLIN);
		for (int tries = 0; tries < 100 && !found; tries++)
			for (int i = 0, n = h_epoll_pwait2(ep, got, PAIRS, &brief, 0); i < n; i++) {
				CHECK(got[i].data.u32 < PAIRS);
				found |= got[i].data.u32 == HONEST;
			}
		CHECK(found, "epoll does not tell of the honest connection, round %d", looked);
		CHECK(x_recv(fd[HONEST][0], &heard, 1) == 1 && heard == said);
		if (rnd(&x) % 2)
			atomic_store(&s->b->flags, 0);
		if (rnd(&x) % 4 == 0)
			s->rx->prod = s->rx->cons = s->tx->prod = s->tx->cons = 0;
		s->rx->token = s->tx->token = 77;
		s->tx->rflags = 0;
	}
	kill(p, SIGKILL);
	waitpid(p, 0, 0);
	CHECK(looked > 100 && moved > 10, "%d, %d", looked, moved);
	printf("%d rounds, bytes in %d\n", looked, moved);
	return 0;
}

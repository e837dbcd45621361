/* A struct shim made by hand and connections over anonymous shared rings, for the tests of lane.c and bell.c. */
#include "check.h"
#include "../sys.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void *shared(size_t n)
{
	void *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	return p;
}

static inline void make_shim(u32 profile)
{
	S = mmap(0, sizeof *S, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(S != MAP_FAILED);
	S->engine = ENG_READY;
	S->profile = profile;
	S->nudge = 1;
	S->dgram = -1;
}

/* Sockets idx and idx + 1 are the two ends; each end's rx is the other's tx. */
static inline struct sock *make_pair(u32 idx, u64 size, u32 peer)
{
	for (u32 i = 0; i < 2; i++) {
		struct sock *s = &S->sock[idx + i];
		memset((void *)s, 0, sizeof *s);
		s->b = shared(4096);
		s->b->state = S_ACTIVE;
		s->b->tx_token = s->b->rx_token = 77;
		s->rx = shared(4096);
		s->rx->token = 77;
		s->rx->rtag = idx + i;
		s->rx->wtag = idx + (1 - i);
		s->rxbuf = shared(size);
		s->rxsize = s->txsize = size;
		s->fd = -1;
		s->watched = 1;
		s->peer = peer;
	}
	struct sock *a = &S->sock[idx], *b = a + 1;
	a->tx = b->rx, b->tx = a->rx, a->txbuf = b->rxbuf, b->txbuf = a->rxbuf;
	return a;
}

static inline void free_pair(struct sock *a)
{
	for (int i = 0; i < 2; i++) {
		munmap(a[i].b, 4096);
		munmap(a[i].rx, 4096);
		munmap(a[i].rxbuf, a[i].rxsize);
	}
}

/* Blocking calls as data.c makes them; -errno. */
static inline ssize_t recv_some(struct sock *s, void *p, size_t n, int flags, i64 deadline)
{
	struct iovec v = {p, n};
	for (;;) {
		ssize_t r = lane_read(s, &v, 1, 0, flags);
		if (r)
			return r;
		if (atomic_load(&s->rx->wflags) & RH_WDONE && !lane_used(s))
			return 0;
		int w = lane_wait(s, EPOLLIN, deadline);
		if (w < 0)
			return w;
	}
}

static inline ssize_t send_all(struct sock *s, const void *p, size_t n, i64 deadline)
{
	struct iovec v = {(void *)p, n};
	size_t done = 0;
	while (done < n) {
		ssize_t r = lane_write(s, &v, 1, done);
		if (r < 0)
			return r;
		done += (size_t)r;
		if (r)
			continue;
		if (atomic_load(&s->b->flags) & BF_GONE)
			return -EPIPE;
		int w = lane_wait(s, EPOLLOUT, deadline);
		if (w < 0)
			return done ? (ssize_t)done : w;
	}
	return (ssize_t)done;
}

/* What the other files of the library would do. */
u32 sock_idx(const struct sock *s)
{
	return (u32)(s - S->sock);
}

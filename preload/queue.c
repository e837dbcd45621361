/*
 * The queue to the engine: many writers (program threads and their signal handlers), one reader. A request is written into
 * a cell of its own and then published by one compare-and-swap: a handler that interrupts a writer anywhere, and waits for
 * the engine's answer, gets it. The reader takes all at once and turns them round. A zeroed shim is an empty queue.
 */
#include <errno.h>

#include "life.h"
#include "../hooks/sys.h"

#define FULL_TRIES 100 /* of 1 ms: how long a writer waits for the engine to make room */

/* Each writer that finds it asleep wakes it: one that first claimed to do so might be interrupted by one that waits. */
static void wake_engine(void)
{
	static const u64 one = 1;

	atomic_thread_fence(memory_order_seq_cst); /* the request is out before we look whether the engine sleeps */
	if (atomic_load_explicit(&S->engine_asleep, memory_order_relaxed))
		sys(SYS_write, S->wakefd, &one, sizeof one);
}

/* A free cell or 0. The counter keeps an old head from fitting again. */
static u32 cell_get(void)
{
	u64 h = atomic_load(&S->qfree);

	while ((u32)h)
		if (atomic_compare_exchange_weak(&S->qfree, &h, ((h >> 32) + 1) << 32 | S->q[(u32)h - 1].next))
			return (u32)h;
	u32 n = atomic_load(&S->qused);
	while (n < QUEUE_LEN)
		if (atomic_compare_exchange_weak(&S->qused, &n, n + 1))
			return n + 1;
	return 0;
}

static int put(const struct req *r)
{
	u32 i = cell_get(), head = atomic_load(&S->qhead);

	if (!i)
		return -EAGAIN;
	S->q[i - 1].r = *r;
	do
		S->q[i - 1].next = head;
	while (!atomic_compare_exchange_weak(&S->qhead, &head, i));
	return 0;
}

int engine_post(u32 op, struct sock *s, u64 arg)
{
	struct req r = {.op = op, .sock = s ? sock_idx(s) : 0, .gen = s ? s->gen : 0, .arg = arg};
	u32 st = atomic_load(&S->engine);

	if (life_orphan() || (st != ENG_READY && st != ENG_STARTING))
		return -ESRCH;
	for (int i = 0; put(&r); i++) {
		if (i == FULL_TRIES)
			return -EAGAIN;
		wake_engine();
		life_sleep(1000000);
	}
	wake_engine();
	return 0;
}

int queue_take(struct req *out)
{
	u32 i = S->qmine;

	if (!i)
		for (u32 h = atomic_exchange(&S->qhead, 0), next; h; h = next) {
			next = S->q[h - 1].next;
			S->q[h - 1].next = i;
			i = h;
		}
	if (!i)
		return 0;
	S->qmine = S->q[i - 1].next;
	*out = S->q[i - 1].r;
	u64 h = atomic_load(&S->qfree);
	do
		S->q[i - 1].next = (u32)h;
	while (!atomic_compare_exchange_weak(&S->qfree, &h, ((h >> 32) + 1) << 32 | i));
	return 1;
}

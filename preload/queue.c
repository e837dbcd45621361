/*
 * The queue to the engine: a ring of QUEUE_LEN cells, many writers (program threads and their signal handlers), one reader.
 * A cell's seq counts its half-turns: 2k = free for the writer of lap k, 2k+1 = filled in lap k. So a zeroed shim is an
 * empty queue, and a handler that interrupts a writer between taking a cell and filling it just takes the next one.
 */
#include <errno.h>

#include "life.h"
#include "../hooks/sys.h"

#define FULL_TRIES 100 /* of 1 ms: how long a writer waits for the engine to make room */

static void wake_engine(void)
{
	static const u64 one = 1;

	atomic_thread_fence(memory_order_seq_cst); /* the request is out before we look whether the engine sleeps */
	if (atomic_load_explicit(&S->engine_asleep, memory_order_relaxed) && atomic_exchange(&S->engine_asleep, 0))
		sys(SYS_write, S->wakefd, &one, sizeof one);
}

static int put(const struct req *r)
{
	u64 pos = atomic_load_explicit(&S->qtail, memory_order_relaxed);

	for (;;) {
		__typeof__(&S->q[0]) c = &S->q[pos % QUEUE_LEN];
		u64 lap = pos / QUEUE_LEN, seq = atomic_load_explicit(&c->seq, memory_order_acquire);

		if (seq < 2 * lap)
			return -EAGAIN; /* the reader is a whole lap behind */
		if (seq == 2 * lap) {
			if (atomic_compare_exchange_weak(&S->qtail, &pos, pos + 1)) {
				c->r = *r;
				atomic_store_explicit(&c->seq, 2 * lap + 1, memory_order_release);
				return 0;
			}
		} else {
			pos = atomic_load_explicit(&S->qtail, memory_order_relaxed);
		}
	}
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
	u64 pos = atomic_load_explicit(&S->qhead, memory_order_relaxed);
	__typeof__(&S->q[0]) c = &S->q[pos % QUEUE_LEN];
	u64 lap = pos / QUEUE_LEN;

	if (atomic_load_explicit(&c->seq, memory_order_acquire) != 2 * lap + 1)
		return 0;
	*out = c->r;
	atomic_store_explicit(&c->seq, 2 * lap + 2, memory_order_release);
	atomic_store_explicit(&S->qhead, pos + 1, memory_order_relaxed);
	return 1;
}

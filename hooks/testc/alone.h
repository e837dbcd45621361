/* lane.c's locks and clock, for tests that do without lane.c. */
#include "check.h"

#include "../sys.h"

#include <sched.h>
#include <time.h>

int lk_lock(struct lk *l)
{
	u32 me = my_tid(), none = 0;

	if (atomic_load(&l->w) == me)
		return 1;
	while (!atomic_compare_exchange_weak(&l->w, &none, me)) {
		none = 0;
		sched_yield();
	}
	return 0;
}
void lk_unlock(struct lk *l, int nested)
{
	if (!nested)
		atomic_store(&l->w, 0);
}
u32 my_tid(void) { return (u32)sys(SYS_gettid); }
i64 now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

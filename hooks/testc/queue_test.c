/* queue.c: order, bounds, many writers and a handler that interrupts one. build: ../preload/queue.c */
#include "../shim.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x)                                                                     \
	do {                                                                         \
		if (!(x)) {                                                          \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno); \
			exit(1);                                                     \
		}                                                                    \
	} while (0)

struct shim *smcr_shim;
static int orphan;
int life_orphan(void) { return orphan; }
u32 sock_idx(const struct sock *s) { return (u32)(s - S->sock); }
static void (*while_waiting)(void);
void life_sleep(i64 ns)
{
	struct timespec t = {0, ns / 100};

	nanosleep(&t, 0);
	if (while_waiting)
		while_waiting();
}

static void fresh(void)
{
	static const size_t size = (sizeof(struct shim) + 4095) & ~4095ul;

	S = mmap(0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(S != MAP_FAILED);
	S->engine = ENG_READY;
	S->wakefd = eventfd(0, EFD_NONBLOCK);
	while_waiting = 0;
	orphan = 0;
}

static void order_and_laps(void)
{
	struct req r;

	fresh();
	CHECK(!queue_take(&r));
	S->sock[7].gen = 3;
	for (u64 i = 0; i < 5 * QUEUE_LEN + 17; i++) {
		CHECK(engine_post(REQ_TOUCHED, &S->sock[7], i) == 0);
		if (i % 3 == 0)
			CHECK(engine_post(REQ_CLOSED, 0, i) == 0);
		CHECK(queue_take(&r) && r.op == REQ_TOUCHED && r.sock == 7 && r.gen == 3 && r.arg == i);
		if (i % 3 == 0)
			CHECK(queue_take(&r) && r.op == REQ_CLOSED && r.sock == 0 && r.gen == 0 && r.arg == i);
		CHECK(!queue_take(&r));
	}
}

static void full(void)
{
	struct req r;
	struct timespec a, b;

	fresh();
	for (u64 i = 0; i < QUEUE_LEN; i++)
		CHECK(engine_post(1, 0, i) == 0);
	clock_gettime(CLOCK_MONOTONIC, &a);
	CHECK(engine_post(1, 0, QUEUE_LEN) == -EAGAIN); /* bounded, and nothing is overwritten */
	clock_gettime(CLOCK_MONOTONIC, &b);
	CHECK(b.tv_sec - a.tv_sec < 5);
	for (u64 i = 0; i < QUEUE_LEN; i++)
		CHECK(queue_take(&r) && r.arg == i);
	CHECK(!queue_take(&r));
}

static void take_one(void)
{
	struct req r;

	CHECK(queue_take(&r));
	while_waiting = 0;
}

static void room_while_waiting(void)
{
	fresh();
	for (u64 i = 0; i < QUEUE_LEN; i++)
		CHECK(engine_post(1, 0, i) == 0);
	while_waiting = take_one;
	CHECK(engine_post(1, 0, QUEUE_LEN) == 0);
}

static void wakes_only_a_sleeper(void)
{
	u64 n;

	fresh();
	CHECK(engine_post(1, 0, 0) == 0);
	CHECK(read(S->wakefd, &n, 8) == -1 && errno == EAGAIN);
	S->engine_asleep = 1;
	CHECK(engine_post(1, 0, 0) == 0 && engine_post(1, 0, 0) == 0);
	CHECK(read(S->wakefd, &n, 8) == 8 && n == 2 && S->engine_asleep == 1); /* only the engine says that it is awake */
}

static void nobody_there(void)
{
	fresh();
	S->engine = ENG_COLD;
	CHECK(engine_post(1, 0, 0) == -ESRCH);
	S->engine = ENG_DEAD;
	CHECK(engine_post(1, 0, 0) == -ESRCH);
	S->engine = ENG_READY;
	orphan = 1;
	CHECK(engine_post(1, 0, 0) == -ESRCH);
}

#define WRITERS 4
#define EACH 30000
static _Atomic u32 by_handler;
static _Atomic int done;

static void handler(int sig)
{
	(void)sig;
	if (!atomic_load(&done) && engine_post(WRITERS, 0, 0) == 0)
		atomic_fetch_add(&by_handler, 1);
}

static void *writer(void *arg)
{
	for (u64 i = 0; i < EACH;)
		if (engine_post((u32)(size_t)arg, 0, i) == 0)
			i++;
	return 0;
}

static void storm(void)
{
	struct itimerval it = {{0, 150}, {0, 150}}, off = {{0, 0}, {0, 0}};
	u64 next[WRITERS] = {0}, got = 0;
	u32 handled = 0;
	pthread_t t[WRITERS];
	struct req r;
	sigset_t alarm_only;

	fresh();
	signal(SIGALRM, handler);
	for (size_t i = 0; i < WRITERS; i++)
		CHECK(pthread_create(&t[i], 0, writer, (void *)i) == 0);
	sigemptyset(&alarm_only);
	sigaddset(&alarm_only, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm_only, 0); /* the reader's handler would wait for the reader */
	setitimer(ITIMER_REAL, &it, 0);
	while (got < (u64)WRITERS * EACH) {
		if (!queue_take(&r))
			continue;
		CHECK(r.op <= WRITERS);
		if (r.op == WRITERS) {
			handled++;
		} else { /* each writer's in its order, none lost, none twice */
			CHECK(r.arg == next[r.op]);
			next[r.op]++;
			got++;
		}
	}
	atomic_store(&done, 1);
	setitimer(ITIMER_REAL, &off, 0);
	for (int i = 0; i < WRITERS; i++)
		pthread_join(t[i], 0);
	while (queue_take(&r))
		handled += r.op == WRITERS;
	CHECK(handled == by_handler && handled > 0);
}

int main(void)
{
	order_and_laps();
	full();
	room_while_waiting();
	wakes_only_a_sleeper();
	nobody_there();
	storm();
	return 0;
}

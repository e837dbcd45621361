/* cancel RUNS: threads that block in every way are cancelled, at once and deferred; the connection goes on. */
#include "app.h"

static int fd, full, set, empty[2];
static char buf[1 << 16];
static _Atomic pid_t tid;

static void in_recv(void) { char c; recv(fd, &c, 1, 0); }
static void in_read(void) { char c; check(read(fd, &c, 1) != 1); }
static void in_poll(void) { poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, -1); }
static void in_select(void)
{
	fd_set in;
	FD_ZERO(&in);
	FD_SET(fd, &in);
	select(fd + 1, &in, NULL, NULL, NULL);
}
static void in_epoll(void) { epoll_wait(set, &(struct epoll_event){ 0 }, 1, -1); }
static void in_send(void) { for (;;) send(full, buf, sizeof buf, MSG_NOSIGNAL); }
static void in_accept(void) { accept(listener, NULL, NULL); }
static void in_pipe(void) { char c; check(read(empty[0], &c, 1) != 1); }

static struct { const char *name; void (*block)(void); } ways[] = {
	{ "recv", in_recv }, { "read", in_read }, { "poll", in_poll }, { "select", in_select }, { "epoll_wait", in_epoll }, { "send", in_send },
	{ "accept", in_accept }, { "read of a pipe", in_pipe },
};
enum { WAYS = sizeof ways / sizeof *ways };

static _Atomic int cleaned;
static void clean(void *unused) { cleaned++; }

static void *victim(void *way)
{
	int asynchronous = (long)way >= WAYS;
	pthread_cleanup_push(clean, NULL);
	pthread_setcanceltype(asynchronous ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, NULL);
	tid = gettid();
	ways[(long)way % WAYS].block();
	pthread_cleanup_pop(0);
	return NULL;
}

static int runs;

static void server(int first)
{
	struct epoll_event e = { .events = EPOLLIN };
	fd = first;
	full = another();
	must(pipe(empty));
	set = must(epoll_create1(0));
	must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
	int expected = 0;
	for (int run = 0; run < runs; run++)
		for (long way = 0; way < 2 * WAYS; way++) {
			void *result;
			tid = 0;
			pthread_t t = thread(victim, (void *)way);
			while (!tid)
				usleep(100);
			until_asleep(tid);
			pthread_cancel(t);
			pthread_join(t, &result);
			expected++;
			if (run == 0)
				say("%s%s: %s", ways[way % WAYS].name, way < WAYS ? "" : ", asynchronously", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
			check(result == PTHREAD_CANCELED && cleaned == expected);
			pass();
			meet(fd); /* nobody holds a lock on it */
		}
	char c;
	say("and on: %s", got(recv(fd, &c, 1, MSG_DONTWAIT)));
	close(fd);
}

static void client(int fd)
{
	int other = another();
	for (int i = 0; i < runs * 2 * WAYS; i++) {
		await();
		meet(fd);
	}
	say("end %s", got(recv(fd, buf, 1, 0)));
	close(other);
}

int main(int argc, char **argv)
{
	runs = argc > 1 ? atoi(argv[1]) : 1;
	return two_processes(server, client);
}

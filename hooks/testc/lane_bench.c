/* Ping-pong and streams over the rings of lane.c beside loopback TCP, two processes. build: lane.c bell.c
 * usage: lane_bench [safe|balanced|latency] [pin] */
#include "lane_pair.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

int engine_post(u32 op, struct sock *s, u64 arg) { (void)op, (void)s, (void)arg; return 0; }
void sock_tcp_event(struct sock *s, u32 events) { (void)s, (void)events; }
int fd_hide(int fd) { return fd; }
int fd_unhide(int fd) { return close(fd); }

#define RING (256 << 10)
#define RUNS 5

static int pinned, tcp[2];
static char buf[1 << 20];

static void pin(int cpu)
{
	cpu_set_t c;

	if (!pinned)
		return;
	CPU_ZERO(&c);
	CPU_SET(cpu, &c);
	sched_setaffinity(0, sizeof c, &c);
}

static void tcp_pair(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t n = sizeof a;
	int one = 1, l = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(bind(l, (void *)&a, sizeof a) == 0 && listen(l, 1) == 0 && getsockname(l, (void *)&a, &n) == 0);
	tcp[0] = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(tcp[0], (void *)&a, n) == 0);
	tcp[1] = accept(l, 0, 0);
	close(l);
	for (int i = 0; i < 2; i++)
		setsockopt(tcp[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static ssize_t take(struct sock *s, int fd, size_t n) { return s ? recv_some(s, buf, n, 0, 0) : read(fd, buf, n); }

static void give(struct sock *s, int fd, size_t n)
{
	CHECK((s ? send_all(s, buf, n, 0) : write(fd, buf, n)) == (ssize_t)n);
}

static void take_all(struct sock *s, int fd, size_t n)
{
	while (n) {
		ssize_t r = take(s, fd, n);
		if (r <= 0)
			_exit(1);
		n -= (size_t)r;
	}
}

static int cmp(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double med(double *v, int n)
{
	qsort(v, n, sizeof *v, cmp);
	return v[n / 2];
}

static double pingpong(struct sock *s, size_t size, int n, double *p99)
{
	static double d[200000];
	pid_t p = fork();

	if (!p) {
		lane_forked();
		pin(1);
		for (int i = 0; i < n + 2000; i++) {
			take_all(s ? s + 1 : 0, tcp[1], size);
			give(s ? s + 1 : 0, tcp[1], size);
		}
		_exit(0);
	}
	pin(0);
	for (int i = -2000; i < n; i++) {
		i64 t = now_ns();
		give(s, tcp[0], size);
		take_all(s, tcp[0], size);
		if (i >= 0)
			d[i] = (double)(now_ns() - t) / 1000;
	}
	waitpid(p, 0, 0);
	qsort(d, n, sizeof *d, cmp);
	*p99 = d[n * 99 / 100];
	return d[n / 2];
}

static double stream(struct sock *s, size_t size, double secs) /* messages a second */
{
	pid_t p = fork();

	if (!p) {
		lane_forked();
		pin(1);
		while (take(s ? s + 1 : 0, tcp[1], 65536) > 0)
			;
		_exit(0);
	}
	pin(0);
	i64 t = now_ns();
	double n = 0;
	while (now_ns() - t < secs * 1e9)
		for (int i = 0; i < 16; i++, n++)
			give(s, tcp[0], size);
	double took = (double)(now_ns() - t) / 1e9;
	kill(p, SIGKILL);
	waitpid(p, 0, 0);
	return n / took;
}

static struct sock *fresh(int lane)
{
	if (!lane) {
		tcp_pair();
		return 0;
	}
	return make_pair(1, RING, 2);
}

static void done(struct sock *s)
{
	if (s) {
		free_pair(s);
	} else {
		close(tcp[0]);
		close(tcp[1]);
	}
}

int main(int argc, char **argv)
{
	make_shim(argc > 1 && !strcmp(argv[1], "safe") ? PROFILE_SAFE : argc > 1 && !strcmp(argv[1], "latency") ? PROFILE_LATENCY : PROFILE_BALANCED);
	pinned = argc > 2;
	double pp[2][RUNS], p9[2][RUNS], s64[2][RUNS], s64k[2][RUNS];
	for (int r = 0; r < RUNS; r++)
		for (int lane = 0; lane < 2; lane++) {
			struct sock *s = fresh(lane);
			pp[lane][r] = pingpong(s, 64, lane ? 100000 : 20000, &p9[lane][r]);
			done(s);
			s = fresh(lane);
			s64[lane][r] = stream(s, 64, 0.5) / 1e6;
			done(s);
			s = fresh(lane);
			s64k[lane][r] = stream(s, 65536, 0.5) * 65536 / 1e9;
			done(s);
			printf("%s: ping-pong 64 B p50 %.2f p99 %.2f us, stream 64 B %.2f M/s, 64 KiB %.2f GB/s\n", lane ? "rings" : "TCP  ",
			       pp[lane][r], p9[lane][r], s64[lane][r], s64k[lane][r]);
		}
	double t = med(pp[0], RUNS), l = med(pp[1], RUNS);
	printf("median: round trip %.2f -> %.2f us, %.1f x shorter\n", t, l, t / l);
	t = med(s64[0], RUNS), l = med(s64[1], RUNS);
	printf("median: 64 B %.2f -> %.2f M/s, %.1f x\n", t, l, l / t);
	t = med(s64k[0], RUNS), l = med(s64k[1], RUNS);
	printf("median: 64 KiB %.2f -> %.2f GB/s, %.1f x\n", t, l, l / t);
	return 0;
}

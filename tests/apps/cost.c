/*
 * cost pipe|threads|plain PORT: nanoseconds that a call which moves nothing takes longer than libc's own function, called past
 * whoever interposes it; threads: while another thread sleeps. The two take turns at random, call by call: what a processor
 * predicts depends on the calls before, and rounds of one kind settle in one case or another, which are up to 100 ns apart.
 * cost file PORT N: N small files (each the start of this program) to an echo server and back.
 */
#include "app.h"
#include <dlfcn.h>
#include <sys/sendfile.h>

static int files(int server, int n)
{
	char back[100];
	int fd = connected(server), in = must(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
	send_all(fd, "x", 1);
	check(receive_all(fd, back, 1) == 1);
	while (n--) {
		off_t at = 0;
		check(sendfile(fd, in, &at, sizeof back) == sizeof back);
		check(receive_all(fd, back, sizeof back) == sizeof back);
	}
	return 0;
}

typedef ssize_t reader(int, void *, size_t);

static int less(const void *a, const void *b)
{
	unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
	return x < y ? -1 : x > y;
}

/* Without the fastest and the slowest twentieth: interrupts, other machines. */
static double mean(unsigned *ticks, int n)
{
	double sum = 0;
	qsort(ticks, n, sizeof *ticks, less);
	for (int i = n / 20; i < n - n / 20; i++)
		sum += ticks[i];
	return sum / (n - 2 * (n / 20));
}

static void *sleeper(void *unused)
{
	pause();
	return NULL;
}

int main(int argc, char **argv)
{
	enum { CALLS = 400000 };
	static unsigned ticks[2][CALLS];
	int p[2], n[2] = { 0 };
	char c;
	if (argc == 4)
		return files(atoi(argv[2]), atoi(argv[3]));
	check(argc == 3);
	must(pipe2(p, O_NONBLOCK));
	int fd = p[0];
	if (!strcmp(argv[1], "plain")) {
		fd = connected(atoi(argv[2]));
		send_all(fd, "x", 1);
		check(receive_all(fd, &c, 1) == 1);
		set_nonblocking(fd);
	}
	if (!strcmp(argv[1], "threads"))
		thread(sleeper, NULL);
	reader *ways[2] = { (reader *)dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "read"), read };
	check(ways[0] != 0);
	double began = now();
	unsigned long first = __builtin_ia32_rdtsc();
	for (unsigned i = 0, x = 1; i < CALLS; i++) {
		x ^= x << 13, x ^= x >> 17, x ^= x << 5; /* xorshift */
		int way = x >> 16 & 1;
		unsigned long t = __builtin_ia32_rdtsc();
		ssize_t r = ways[way](fd, &c, 1);
		ticks[way][n[way]++] = __builtin_ia32_rdtsc() - t;
		check(r < 0);
	}
	double tick = (now() - began) / (__builtin_ia32_rdtsc() - first);
	printf("%.1f ns\n", (mean(ticks[1], n[1]) - mean(ticks[0], n[0])) * tick * 1e9);
}

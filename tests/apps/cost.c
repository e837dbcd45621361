/*
 * cost pipe|plain PORT: nanoseconds that a call which moves nothing takes longer than libc's own function, called past whoever
 * interposes it: the median of many pairs of short rounds, for a system call's own time varies by far more from process to process.
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

static double took(reader *f, int fd)
{
	enum { CALLS = 200 };
	double t = now();
	char c;
	for (int i = 0; i < CALLS; i++)
		check(f(fd, &c, 1) < 0);
	return (now() - t) / CALLS;
}

static int less(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	enum { ROUNDS = 2001 };
	static double more[ROUNDS];
	int p[2];
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
	reader *libc = (reader *)dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "read");
	check(libc != 0);
	for (int round = 0; round < ROUNDS; round++) {
		double own = took(libc, fd);
		more[round] = took(read, fd) - own;
	}
	qsort(more, ROUNDS, sizeof *more, less);
	printf("%.1f ns\n", more[ROUNDS / 2] * 1e9);
}

/*
 * What every contract program shares: loopback sockets, two processes that take turns, and a transcript.
 * A program prints only what must be the same natively and under the library: no port, pid, time or buffer size.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { SERVER, CLIENT, ROLES };

static struct board { /* shared by the two processes */
	_Atomic int len[ROLES];
	char text[ROLES][1 << 16];
} *board;
static int role = SERVER, turn[ROLES][2], listener = -1, port;

static _Noreturn void fail(int line, const char *what)
{
	fprintf(stderr, "%s:%d: %s: %s\n", role == SERVER ? "server" : "client", line, what, strerror(errno));
	_exit(2);
}

#define must(x) ({ __typeof__(x) r_ = (x); if ((long)r_ == -1) fail(__LINE__, #x); r_; })
#define check(x) do { if (!(x)) fail(__LINE__, "not true: " #x); } while (0)

/* One line of this role's transcript. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
	char line[512];
	va_list args;
	va_start(args, format);
	int n = vsnprintf(line, sizeof line - 1, format, args);
	va_end(args);
	line[n++] = '\n';
	int at = atomic_fetch_add(&board->len[role], n);
	check(at + n <= (int)sizeof board->text[0]);
	memcpy(board->text[role] + at, line, n);
}

static const char *err(long result) { return result < 0 ? strerrorname_np(errno) : "ok"; }

/* "12" or "ECONNRESET": what a call that transfers bytes returned. */
static const char *got(ssize_t n)
{
	static _Thread_local char text[4][24];
	static _Thread_local int next;
	char *t = text[next++ & 3];
	if (n < 0)
		return strerrorname_np(errno);
	snprintf(t, sizeof text[0], "%zd", n);
	return t;
}

static void start(void)
{
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	check(board != MAP_FAILED);
	for (int i = 0; i < ROLES; i++)
		must(pipe2(turn[i], O_CLOEXEC));
}

static void print_transcript(void)
{
	for (int i = 0; i < ROLES; i++)
		for (int at = 0; at < board->len[i];)
			at += must(write(1, board->text[i] + at, board->len[i] - at));
}

/* Gives the turn to the other role; waits for it. */
static void pass(void) { must(write(turn[!role][1], "", 1)); }
static void await(void)
{
	char c;
	ssize_t n;
	while ((n = read(turn[role][0], &c, 1)) < 0 && errno == EINTR)
		;
	check(n == 1);
}

static struct sockaddr_in loopback(int p)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(p), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int port_of(int fd)
{
	struct sockaddr_in a;
	socklen_t n = sizeof a;
	must(getsockname(fd, (void *)&a, &n));
	return ntohs(a.sin_port);
}

static int listening(int p, int reuseport)
{
	int on = 1, fd = must(socket(AF_INET, SOCK_STREAM, 0));
	struct sockaddr_in a = loopback(p);
	must(setsockopt(fd, SOL_SOCKET, reuseport ? SO_REUSEPORT : SO_REUSEADDR, &on, sizeof on));
	must(bind(fd, (void *)&a, sizeof a));
	must(listen(fd, 128));
	return fd;
}

static int connected(int p)
{
	int fd = must(socket(AF_INET, SOCK_STREAM, 0));
	struct sockaddr_in a = loopback(p);
	must(connect(fd, (void *)&a, sizeof a));
	return fd;
}

static int accepted(int l) { return must(accept(l, NULL, NULL)); }

static void set_nonblocking(int fd) { must(fcntl(fd, F_SETFL, must(fcntl(fd, F_GETFL)) | O_NONBLOCK)); }

static void send_all(int fd, const void *data, size_t n)
{
	for (const char *p = data; n;) {
		ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
		if (k < 0 && errno == EINTR)
			continue;
		check(k > 0);
		p += k, n -= k;
	}
}

/* Reads n bytes or to the end; how many came. */
static size_t receive_all(int fd, void *data, size_t n)
{
	size_t at = 0;
	while (at < n) {
		ssize_t k = recv(fd, (char *)data + at, n - at, 0);
		if (k < 0 && errno == EINTR)
			continue;
		check(k >= 0);
		if (k == 0)
			break;
		at += k;
	}
	return at;
}

/* A byte each way: after it neither side still negotiates. */
static void meet(int fd)
{
	char c = 'm';
	if (role == CLIENT)
		send_all(fd, &c, 1);
	check(receive_all(fd, &c, 1) == 1 && c == 'm');
	if (role == SERVER)
		send_all(fd, &c, 1);
}

/* One more connection between the two processes: both call it. */
static int another(void)
{
	int fd = role == CLIENT ? connected(port) : accepted(listener);
	meet(fd);
	return fd;
}

static int poll_for(int fd, int events, int ms)
{
	struct pollfd p = { .fd = fd, .events = events };
	int n;
	while ((n = poll(&p, 1, ms)) < 0 && errno == EINTR)
		;
	return n > 0 ? p.revents : 0;
}

static const char *poll_bits(int bits)
{
	static _Thread_local char texts[4][64];
	static _Thread_local int next;
	char *text = texts[next++ & 3];
	snprintf(text, sizeof texts[0], "%s%s%s%s%s%s", bits & POLLIN ? "IN " : "", bits & POLLOUT ? "OUT " : "",
		 bits & POLLRDHUP ? "RDHUP " : "", bits & POLLHUP ? "HUP " : "", bits & POLLERR ? "ERR " : "", bits ? "" : "none ");
	text[strlen(text) - 1] = 0;
	return text;
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void handle(int sig, void (*handler)(int), int flags)
{
	struct sigaction a = { .sa_handler = handler, .sa_flags = flags };
	must(sigaction(sig, &a, NULL));
}

static pthread_t thread(void *(*run)(void *), void *arg)
{
	pthread_t t;
	check(pthread_create(&t, NULL, run, arg) == 0);
	return t;
}

/* Waits until the thread tid of this process sleeps in the kernel. */
static void until_asleep(pid_t tid)
{
	char path[64], line[512];
	snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
	for (int seen = 0; seen < 3;) { /* a spin before the sleep must be over too */
		FILE *f = fopen(path, "re");
		check(f && fgets(line, sizeof line, f));
		fclose(f);
		seen = strrchr(line, ')')[2] == 'S' ? seen + 1 : 0;
		usleep(1000);
	}
}

static uint64_t mix(uint64_t *state) /* splitmix64 */
{
	uint64_t z = *state += 0x9e3779b97f4a7c15;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static void fill(uint64_t *state, unsigned char *p, size_t n)
{
	for (; n >= 8; n -= 8, p += 8)
		memcpy(p, &(uint64_t){ mix(state) }, 8);
	if (n)
		memcpy(p, &(uint64_t){ mix(state) }, n);
}

/* Runs the server in this process and the client in a child; returns the exit code for main. */
static int two_processes(void (*server)(int), void (*client)(int))
{
	start();
	listener = listening(0, 0);
	port = port_of(listener);
	pid_t child = must(fork());
	if (!child) {
		role = CLIENT;
		close(listener);
		client(another());
		exit(0);
	}
	server(another());
	int status;
	while (waitpid(child, &status, 0) < 0)
		check(errno == EINTR);
	print_transcript();
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

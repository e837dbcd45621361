/* One process life per subcommand. Prints nothing and exits 0 when all is as it should be. See hooks/fake.c for listen(-n). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PING listen(-77, 0)
#define SPARE listen(-78, 0)
#define ENGINE listen(-79, 0)
#define MINE listen(-80, 0)
#define PID listen(-81, 0)
#define SETTLED listen(-82, 0)
#define HAVE_CONNECTIONS listen(-83, 0)
enum { COLD, STARTING, READY, DEAD };
extern char **environ;

#define CHECK(x, ...) do { if (!(x)) { dprintf(2, "%d: %s: ", __LINE__, #x); dprintf(2, "" __VA_ARGS__); dprintf(2, " errno %d\n", errno); _exit(1); } } while (0)
#define IS(x, want) do { long got_ = (x); if (got_ != (want)) { dprintf(2, "%d: %s is %ld, want %ld\n", __LINE__, #x, got_, (long)(want)); _exit(1); } } while (0)

static double ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static int status_of(const char *key)
{
	char b[8192];
	int f = open("/proc/self/status", O_RDONLY), n = read(f, b, sizeof b - 1);
	close(f);
	b[n] = 0;
	return atoi(strstr(b, key) + strlen(key));
}

static void wait_spare(void)
{
	for (int i = 0; i < 5000 && !SPARE; i++)
		usleep(1000);
	CHECK(SPARE);
}

static int wait_for(pid_t p)
{
	int st;
	IS(waitpid(p, &st, 0), p);
	return st;
}

/* ---- loading and the first start ---- */

static void cold(void)
{
	IS(status_of("Threads:"), 1);
	IS(ENGINE, COLD);
	IS(PID, getpid());
	for (int i = 1; i < 65; i++) {
		struct sigaction s;
		if (!sigaction(i, 0, &s))
			CHECK(s.sa_handler == SIG_DFL || s.sa_handler == SIG_IGN, "signal %d", i);
	}
	int fd = dup(0);
	IS(fd, 3);
}

static void environment(void)
{
	IS(listen(-84, 0), 64 << 10);
	IS(listen(-85, 0), 2 | 1 << 4);
}

static void start(void)
{
	sigset_t before, after;
	pthread_sigmask(0, 0, &before);
	errno = 7;
	IS(PING, 0);
	IS(errno, 7);
	pthread_sigmask(0, 0, &after);
	CHECK(!memcmp(&before, &after, 8));
	IS(ENGINE, READY);
	for (int i = 1; i < 65; i++) {
		struct sigaction s;
		if (!sigaction(i, 0, &s) && i != SIGSEGV && i != SIGBUS && i != SIGFPE)
			CHECK(s.sa_handler == SIG_DFL || s.sa_handler == SIG_IGN, "signal %d", i);
	}
	wait_spare();
	for (int i = 0; i < 300; i++)
		IS(PING, 0);
	/* No descriptor of ours where the program's are, and what is hidden stays open. */
	for (int i = 3; i < 400; i++)
		CHECK(fcntl(i, F_GETFD) < 0, "fd %d", i);
	int fd = dup(0);
	IS(fd, 3);
	close_range(3, ~0u, 0);
	for (int i = 3; i < 1024; i++)
		close(i);
	closefrom(3);
	for (int i = 0; i < 100; i++)
		IS(PING, 0);
	IS(system("true"), 0);
}

static void *pinger(void *n)
{
	for (long i = 0; i < (long)n; i++)
		IS(PING, 0);
	return 0;
}

static void many_threads(void)
{
	pthread_t t[16];
	pthread_attr_t a;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 16384); /* as small as they get */
	for (int i = 0; i < 16; i++)
		IS(pthread_create(&t[i], &a, pinger, (void *)200l), 0);
	for (int i = 0; i < 16; i++)
		pthread_join(t[i], 0);
}

/* ---- signals ---- */

static volatile int stop;
static volatile long hits;

static void handler(int s)
{
	int e = errno;
	volatile char big[1500];
	memset((void *)big, s, sizeof big);
	hits++;
	errno = e;
}

static void calling_handler(int s)
{
	(void)s;
	int e = errno;
	hits++;
	IS(PING, 0);
	errno = e;
}

static void *until_stop(void *arg)
{
	while (!stop)
		IS(PING, 0);
	return arg;
}

static void storm(void)
{
	static const int sig[] = {SIGUSR1, SIGALRM, SIGCHLD, SIGURG, SIGHUP, SIGPIPE, SIGIO, SIGWINCH, SIGPROF, SIGVTALRM};
	struct itimerval it = {{0, 200}, {0, 200}};
	pthread_t t[4];

	for (int i = 0; i < 10; i++) {
		struct sigaction a = {.sa_handler = i ? handler : calling_handler, .sa_flags = i & 1 ? SA_RESTART : 0};
		sigaction(sig[i], &a, 0);
	}
	setitimer(ITIMER_REAL, &it, 0);
	setitimer(ITIMER_PROF, &it, 0);
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], 0, until_stop, 0);
	for (double end = ms() + 700; ms() < end;)
		for (int i = 0; i < 64; i++) {
			kill(getpid(), sig[i % 10]);
			pthread_kill(t[i % 4], sig[i / 3 % 10]);
		}
	stop = 1;
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], 0);
	CHECK(hits > 100);
	for (int i = 0; i < 10; i++) {
		struct sigaction a;
		sigaction(sig[i], 0, &a);
		CHECK(a.sa_handler == (i ? handler : calling_handler));
	}
	it.it_value.tv_usec = 0;
	setitimer(ITIMER_REAL, &it, 0);
	setitimer(ITIMER_PROF, &it, 0);
}

static void *canceled(void *arg)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0);
	for (;;)
		PING;
	return arg;
}

static void cancel(void)
{
	for (int i = 0; i < 50; i++) {
		pthread_t t;
		pthread_create(&t, 0, canceled, 0);
		usleep(i * 37);
		pthread_cancel(t);
		pthread_join(t, 0);
	}
	IS(PING, 0);
	/* A blocked read stays a cancellation point. */
	int p[2];
	pthread_t t;
	void *r;
	CHECK(pipe(p) == 0);
	void *reader(void *fd) { char c; return (void *)(long)read((int)(long)fd, &c, 1); }
	pthread_create(&t, 0, reader, (void *)(long)p[0]);
	usleep(20000);
	pthread_cancel(t);
	pthread_join(t, &r);
	CHECK(r == PTHREAD_CANCELED);
}

static void crash(void)
{
	IS(PING, 0);
	wait_spare();
	for (int i = 0; i < 3; i++) {
		pid_t p = fork();
		if (!p) {
			struct sigaction a;
			sigaction(SIGSEGV, 0, &a);
			CHECK(a.sa_handler == SIG_DFL);
			alarm(20);
			if (i)
				IS(PING, 0);
			if (i == 2)
				signal(SIGSEGV, SIG_DFL);
			*(volatile int *)8 = 1;
		}
		int st = wait_for(p);
		CHECK(WIFSIGNALED(st) && WTERMSIG(st) == SIGSEGV, "status %x", st);
	}
}

static void ignored(void) /* SIG_IGN survives the start and an exec behind it */
{
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	IS(PING, 0);
	IS(system("test $(( 0x$(sed -n 's/^SigIgn:.*\\(....\\)$/\\1/p' /proc/self/status) & 0x1001 )) = 4097"), 0);
}

/* ---- fork ---- */

static void chain(void)
{
	IS(PING, 0);
	for (int gen = 0; gen < 12; gen++) {
		wait_spare();
		pid_t p = fork();
		if (p)
			_exit(wait_for(p) != 0);
		IS(ENGINE, COLD);
		IS(PID, getpid());
		IS(status_of("Threads:"), 1);
		IS(PING, 0);
		for (int i = 3; i < 400; i++)
			CHECK(fcntl(i, F_GETFD) < 0, "fd %d", i);
	}
}

static void *dlopens(void *arg)
{
	static const char *const lib[] = {"libz.so.1", "libcrypto.so.3", "libstdc++.so.6", "libutil.so.1", "libexpat.so.1"};
	while (!stop)
		for (int i = 0; i < 5; i++) {
			void *h = dlopen(lib[i], RTLD_NOW);
			if (h)
				dlclose(h);
		}
	return arg;
}

static void *mallocs(void *arg)
{
	while (!stop) {
		void *x[64];
		for (int i = 0; i < 64; i++)
			x[i] = malloc(16 + i * 97 % 4000);
		for (int i = 0; i < 64; i++)
			free(x[i]);
	}
	return arg;
}

static void fork_storm(void)
{
	pthread_t t;
	IS(PING, 0);
	wait_spare();
	pthread_create(&t, 0, dlopens, 0);
	pthread_create(&t, 0, mallocs, 0);
	pthread_create(&t, 0, until_stop, 0);
	for (int i = 0; i < 40; i++) {
		usleep(i * 71 % 3000);
		pid_t p = fork();
		if (!p) {
			alarm(20);
			IS(PING, 0);
			IS(PING, 0);
			_exit(0);
		}
		IS(wait_for(p), 0);
	}
	_exit(0);
}

static void fork_while_starting(void)
{
	pthread_t t;
	pthread_create(&t, 0, pinger, (void *)50l);
	for (int i = 0; i < 20; i++) {
		pid_t p = fork();
		if (!p) {
			alarm(20);
			int r = PING; /* 0, or no spare yet: R_ENGINE */
			_exit(r != 0 && ENGINE != DEAD);
		}
		IS(wait_for(p), 0);
	}
	pthread_join(t, 0);
}

static void forks(void) /* every way to fork: the child knows that it is one */
{
	IS(PING, 0);
	wait_spare();
#define IN_CHILD(call) { fflush(0); pid_t p = (call); if (!p) { IS(MINE, 1); IS(PID, getpid()); IS(ENGINE, COLD); IS(PING, 0); _exit(0); } CHECK(p > 0); IS(wait_for(p), 0); }
	extern pid_t __fork(void);
	IN_CHILD(fork())
	IN_CHILD(__fork())
	IN_CHILD(_Fork())
	IN_CHILD(syscall(SYS_fork))
	IN_CHILD(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))
	int fd;
	IN_CHILD(forkpty(&fd, 0, 0, 0))
	pid_t p = fork();
	if (!p) {
		int pp[2];
		char c;
		CHECK(pipe(pp) == 0);
		p = fork();
		if (!p) {
			CHECK(daemon(1, 1) == 0);
			IS(PID, getpid());
			IS(write(pp[1], "x", 1), 1);
			_exit(0);
		}
		close(pp[1]);
		IS(read(pp[0], &c, 1), 1);
		_exit(0);
	}
	IS(wait_for(p), 0);
	IS(MINE, 1);
	IS(PING, 0);
}

static void vforks(void)
{
	extern pid_t __vfork(void);
	volatile int before = 1234;
	IS(PING, 0);
	HAVE_CONNECTIONS;
	for (int i = 0; i < 3; i++) { /* libc's fork comes by our handlers, too */
		int n = SETTLED;
		pid_t p = i ? i == 1 ? fork() : _Fork() : syscall(SYS_fork);
		if (!p)
			_exit(0);
		CHECK(p > 0);
		IS(wait_for(p), 0);
		IS(SETTLED, n + 1);
	}
	for (int i = 0; i < 300; i++) {
		int n = SETTLED;
		pid_t p = i & 1 ? vfork() : __vfork();
		if (!p) {
			if (MINE || PID == getpid() || SETTLED != n + 1)
				_exit(3);
			if (i % 5)
				execl("/bin/true", "true", (char *)0);
			_exit(0);
		}
		CHECK(p > 0);
		IS(wait_for(p), 0);
		IS(before, 1234);
		IS(SETTLED, n + 1); /* once, by the parent; not by the child's exec or exit */
		IS(MINE, 1);
		IS(ENGINE, READY);
	}
	IS(PING, 0);
}

/* ---- exec, spawn, exit ---- */

static void spawns(void)
{
	char *const argv[] = {"sh", "-c", "test \"$A$1\" = bx", "sh", "x", 0}, *const env[] = {"A=b", "PATH=/bin:/usr/bin", 0};
	pid_t p;
	int n;

	HAVE_CONNECTIONS;
#define SETTLES(x) n = SETTLED; IS(x, 0); IS(SETTLED, n + 1)
	SETTLES(posix_spawn(&p, "/bin/sh", 0, 0, argv, env));
	IS(wait_for(p), 0);
	SETTLES(posix_spawnp(&p, "sh", 0, 0, argv, env));
	IS(wait_for(p), 0);
	SETTLES(system("exit 0"));
	n = SETTLED;
	FILE *f = popen("echo hi", "r");
	char line[8] = "";
	CHECK(f && fgets(line, sizeof line, f) && !strcmp(line, "hi\n"));
	IS(pclose(f), 0);
	IS(SETTLED, n + 1);
	setenv("A", "b", 1);
#define EXEC(call) if (!(p = fork())) { call; _exit(9); } IS(wait_for(p), 0);
	EXEC(execl("/bin/sh", "sh", "-c", argv[2], "sh", "x", (char *)0))
	EXEC(execlp("sh", "sh", "-c", argv[2], "sh", "x", (char *)0))
	EXEC(execle("/bin/sh", "sh", "-c", argv[2], "sh", "x", (char *)0, env))
	EXEC(execv("/bin/sh", argv))
	EXEC(execvp("sh", argv))
	EXEC(execve("/bin/sh", argv, env))
	EXEC(execvpe("sh", argv, env))
	EXEC(fexecve(open("/bin/sh", O_RDONLY), argv, env))
	EXEC(execveat(AT_FDCWD, "/bin/sh", argv, env, 0))
	EXEC(syscall(SYS_execve, "/bin/sh", argv, env))
	IS(execl("/does/not/exist", "x", (char *)0), -1);
	IS(errno, ENOENT);
}

static int out = -1;
static void at_exit(void)
{
	int n = SETTLED;
	IS(pwrite(out, &n, sizeof n, 0), sizeof n); /* our destructor is still to come */
}

static void exits(void)
{
	/* the count lies in memory that a child does not share: let it tell by its exit status */
	pid_t p;
#define SETTLED_BY(call) if (!(p = fork())) { HAVE_CONNECTIONS; call; } CHECK(WIFEXITED(wait_for(p)));
	SETTLED_BY(_exit(0))
	SETTLED_BY(_Exit(0))
	SETTLED_BY(quick_exit(0))
	SETTLED_BY(syscall(SYS_exit_group, 0))
	SETTLED_BY({ out = memfd_create("x", 0); atexit(at_exit); exit(0); })
}

/* ---- limits: plain TCP with the reason, no word on stderr, no crash ---- */

enum { R_RLIMIT_AS = 9, R_RLIMIT_NPROC, R_NO_FD, R_SECCOMP, R_ENGINE };

static int err; /* stands for stderr: must stay empty */

static void limit(int what, rlim_t n)
{
	struct rlimit r = {n, n};
	IS(setrlimit(what, &r), 0);
}

static void limits(void)
{
	pid_t p;
	err = memfd_create("stderr", 0);
#define LIMITED(set, want) if (!(p = fork())) { dup2(err, 2); set; int r_ = PING; close(3); if (r_ != (want)) { dprintf(1, "line %d: %d, want %d\n", __LINE__, r_, want); _exit(1); } IS(ENGINE, (want) ? DEAD : READY); IS(status_of("Threads:") > 1, !(want)); _exit(0); } IS(wait_for(p), 0);
	for (long mb = 40; mb < 1600; mb += mb / 3)
		LIMITED(limit(RLIMIT_AS, mb << 20), R_RLIMIT_AS)
	LIMITED(limit(RLIMIT_AS, 8l << 30), 0)
	for (int n = 4; n < 12; n++)
		LIMITED(limit(RLIMIT_NOFILE, n), R_NO_FD)
	LIMITED(limit(RLIMIT_NOFILE, 1024), 0)
	if (getuid() == 0)
		for (int n = 1; n < 5; n++)
			LIMITED({ limit(RLIMIT_NPROC, n); CHECK(setresgid(23456, 23456, 23456) == 0); CHECK(setresuid(23456, 23456, 23456) == 0); }, R_RLIMIT_NPROC)
	LIMITED({ while (open("/dev/null", O_RDONLY) >= 0); }, R_NO_FD)
	IS(lseek(err, 0, SEEK_END), 0);
}

static struct sock_filter allow[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};

static void sealed(void)
{
	struct sock_fprog prog = {1, allow};
	pid_t p;

	err = memfd_create("stderr", 0);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	LIMITED(IS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog), 0), R_SECCOMP)
	LIMITED(IS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog), 0), R_SECCOMP)
	LIMITED(IS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, 0), -1), 0) /* failed: no filter */
	if (!(p = fork())) { /* the same through exec: only /proc tells */
		IS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog), 0);
		execl("/proc/self/exe", "life", "reason", "12", (char *)0);
	}
	IS(wait_for(p), 0);
	IS(lseek(err, 0, SEEK_END), 0);
}

/* ---- syscall(2) ---- */

static void syscalls(void)
{
	char b[8] = "", c[4];
	int p[2], sv[2];
	CHECK(pipe(p) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sv) == 0);
	IS(syscall(SYS_write, p[1], "abc", 3), 3);
	IS(syscall(SYS_read, p[0], b, 8), 3);
	CHECK(!strcmp(b, "abc"));
	IS(syscall(SYS_getpid), getpid());
	/* six arguments, none of ours */
	char *m = (char *)syscall(SYS_mmap, 0, 4096, 3, 0x22, -1, 0);
	CHECK(m != (char *)-1 && (*m = 1));
	IS(syscall(SYS_sendto, sv[0], "xyz", 3, MSG_NOSIGNAL, 0, 0), 3);
	IS(syscall(SYS_recvfrom, sv[1], c, 3, 0, 0, 0), 3);
	struct iovec v = {c, 3};
	struct msghdr h = {.msg_iov = &v, .msg_iovlen = 1};
	IS(syscall(SYS_sendmsg, sv[0], &h, 0), 3);
	IS(syscall(SYS_recvmsg, sv[1], &h, 0), 3);
	int d = (int)syscall(SYS_dup, 0);
	IS(syscall(SYS_fcntl, d, F_SETFD, 1), 0);
	IS(syscall(SYS_fcntl, d, F_GETFD), 1);
	IS(syscall(SYS_close, d), 0);
	IS(syscall(SYS_close, d), -1);
	IS(errno, EBADF);
	struct timespec t = {0, 1000000};
	IS(syscall(SYS_pselect6, 0, 0, 0, 0, &t, 0), 0);
	IS(syscall(SYS_ppoll, 0, 0, &t, 0, 8), 0);
	IS(syscall(9999, 0), -1);
	IS(errno, ENOSYS);
	/* one of ours by its byte: every way in refuses */
	listen(-86, p[0]);
	IS(syscall(SYS_read, p[0], b, 1), -1);
	IS(syscall(SYS_readv, p[0], &v, 1), -1);
	IS(syscall(SYS_close, p[0]), -1);
	IS(read(p[0], b, 1), -1);
	IS(errno, EBADF);
	IS(fcntl(p[0], F_GETFL), -1);
}

static void early(void) /* early.so's constructor called hooked names before ours ran */
{
	IS(ENGINE, COLD);
	CHECK(getenv("EARLY_OK") && !strcmp(getenv("EARLY_OK"), "1"));
	IS(PING, 0);
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*run)(void); } all[] = {
#define T(f) {#f, f}
		T(cold), T(environment), T(start), T(many_threads), T(storm), T(cancel), T(crash), T(ignored), T(chain),
		T(fork_storm), T(fork_while_starting), T(forks), T(vforks), T(spawns), T(exits), T(limits), T(sealed), T(syscalls),
		T(early)};

	if (argc == 3 && !strcmp(argv[1], "reason"))
		return PING != atoi(argv[2]);
	close_range(3, ~0u, 0); /* what the test runner left open */
	for (unsigned i = 0; argc == 2 && i < sizeof all / sizeof *all; i++)
		if (!strcmp(argv[1], all[i].name)) {
			all[i].run();
			return 0;
		}
	return 2;
}

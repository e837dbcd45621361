/* registry.c, with many processes. build: map.c
 * REGISTRY_TEST_LONG=n multiplies the counts. */
#include "../registry.c"
#include "../diag.c"
#include "alone.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>


/* ---- what other files would do ---- */

int engine_post(u32 op, struct sock *s, u64 arg) { return (void)op, (void)s, (void)arg, 0; }
void epoll_number_closed(struct sock *s, int fd, int all) { (void)s, (void)fd, (void)all; }
void epoll_sock_closed(struct sock *s, int fd) { (void)s, (void)fd; }
void epoll_set_closed(int fd) { (void)fd; }
int epoll_set_dup(int from, int to) { return (void)from, (void)to, 0; }
static u32 left_early;
void sock_leave(struct sock *s, u32 reason) { (void)s, left_early += reason == R_LEFT_EARLY; }

/* ---- scaffolding ---- */

static char run[64], var[80], *environment[4] = {var};
static int scale = 1;

static void fresh_shim(void)
{
	S = mmap(0, sizeof *S, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(S != MAP_FAILED);
	S->pid = (u32)getpid();
	S->envp = environment;
	S->wakefd = S->epfd = S->dgram = S->diag = -1;
}

static void use_dir(const char *d)
{
	snprintf(run, sizeof run, "%s", d);
	snprintf(var, sizeof var, "SMCR_RUN_DIR=%s", run);
}

static void clean(void)
{
	char cmd[128];
	snprintf(cmd, sizeof cmd, "rm -rf '%s'", run);
	CHECK(system(cmd) == 0);
}

static pid_t child(void (*f)(void *), void *arg)
{
	fflush(0);
	pid_t p = fork();
	CHECK(p >= 0);
	if (p)
		return p;
	if (S) {
		S->pid = (u32)getpid();
		map_forked();
		reg_forked();
	}
	f(arg);
	_exit(0);
}

static void reap(pid_t p)
{
	int st;
	CHECK(waitpid(p, &st, 0) == p);
	CHECK(WIFEXITED(st) && WEXITSTATUS(st) == 0, "child: status %x", st);
}

static void slay(pid_t p)
{
	int st;
	kill(p, SIGKILL);
	CHECK(waitpid(p, &st, 0) == p && WIFSIGNALED(st));
}

static int count_files(char first)
{
	char cmd[128];
	int n = -1;
	snprintf(cmd, sizeof cmd, "ls '%s' 2>/dev/null | grep -c '^%c'", run, first);
	FILE *f = popen(cmd, "r");
	CHECK(f && fscanf(f, "%d", &n) == 1);
	pclose(f);
	return n;
}

struct sa {
	struct sockaddr_storage ss;
	socklen_t len;
};

static struct sa addr(const char *ip, int port)
{
	struct sa a = {.len = 0};
	if (strchr(ip, ':')) {
		struct sockaddr_in6 *p = (void *)&a.ss;
		p->sin6_family = AF_INET6;
		p->sin6_port = htons((u16)port);
		CHECK(inet_pton(AF_INET6, ip, &p->sin6_addr) == 1);
		a.len = sizeof *p;
	} else {
		struct sockaddr_in *p = (void *)&a.ss;
		p->sin_family = AF_INET;
		p->sin_port = htons((u16)port);
		CHECK(inet_pton(AF_INET, ip, &p->sin_addr) == 1);
		a.len = sizeof *p;
	}
	return a;
}

static int lookup(const char *ip, int port)
{
	struct sa a = addr(ip, port);
	int err = reg_ready();
	return err ? err : reg_lookup((void *)&a.ss, a.len);
}

static int port_of(int fd)
{
	struct place p;
	CHECK(name_place(fd, SYS_getsockname, &p) == 0);
	return p.port;
}

static int listening(const char *ip, int port, int v6only, int reuse)
{
	struct sa a = addr(ip, port);
	int one = 1, fd = socket(a.ss.ss_family, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	if (a.ss.ss_family == AF_INET6)
		CHECK(setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6only, sizeof v6only) == 0);
	if (reuse)
		CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) == 0);
	CHECK(bind(fd, (void *)&a.ss, a.len) == 0 && listen(fd, 1024) == 0);
	return fd;
}

static int connected(const char *ip, int port)
{
	struct sa a = addr(ip, port);
	int fd = socket(a.ss.ss_family, SOCK_STREAM, 0);
	CHECK(fd >= 0);
	if (connect(fd, (void *)&a.ss, a.len) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* As h_close does it. */
static void closed(int fd)
{
	u32 l = 0;
	struct sock *s = fd_forget(fd, &l);
	CHECK(close(fd) == 0);
	if (s)
		sock_put(s);
	if (l)
		reg_gone(l);
}

static void forever(void *arg)
{
	(void)arg;
	for (;;)
		pause();
}

static struct table *tab(void) { return S->reg->t; }

static int taken(void)
{
	int n = 0;
	for (int i = 0; i < LISTENERS; i++)
		n += tab()->l[i].own || tab()->l[i].cookie;
	for (int i = 0; i < OFFERS; i++)
		n += tab()->own[i] || tab()->state[i];
	return n;
}

/* ---- the run directory ---- */

static void refused(void *want)
{
	fresh_shim();
	int r = reg_ready();
	CHECK(r == (int)(intptr_t)want, "%d, %s", r, run);
	CHECK(!S->proc && !count_files('r'));
	CHECK(reg_ready() == r && lookup("127.0.0.1", 1) == r);
	int fd = listening("127.0.0.1", 0, 0, 0);
	u64 c;
	CHECK(reg_listen(fd) == r && reg_offer(fd, &c) == r && reg_find(1) == -1);
	count_tcp(R_NO_LISTENER, 0);
}

static void unusable(void *want)
{
	fresh_shim();
	CHECK(reg_ready() == (int)(intptr_t)want);
}

static void too_big(void *arg)
{
	(void)arg;
	fresh_shim();
	signal(SIGXFSZ, SIG_IGN);
	struct rlimit rl = {65536, 65536};
	CHECK(setrlimit(RLIMIT_FSIZE, &rl) == 0);
	CHECK(reg_ready() < 0 && !S->proc && count_files('r') == 0 && count_files('t') == 0);
}

static void directories(void)
{
	void *want = (void *)(intptr_t)-R_REGISTRY;
	char other[80];

	CHECK(mkdir(run, 0755) == 0 && chmod(run, 0755) == 0);
	reap(child(refused, want));
	CHECK(chmod(run, 0770) == 0);
	reap(child(refused, want));
	if (geteuid() == 0) {
		CHECK(chmod(run, 0700) == 0 && chown(run, 12345, 12345) == 0);
		reap(child(refused, want));
	}
	clean();
	snprintf(other, sizeof other, "%s.real", run);
	CHECK(mkdir(other, 0700) == 0 && symlink(other, run) == 0);
	reap(child(refused, want));
	CHECK(unlink(run) == 0 && rmdir(other) == 0);
	snprintf(other, sizeof other, "%s/deep/er", run);
	char keep[64];
	strcpy(keep, run);
	use_dir(other);
	reap(child(refused, want)); /* absent, and its parent too */
	use_dir("/proc/self/task"); /* cannot be written, and is everybody's */
	reap(child(refused, want));
	use_dir(keep);
	CHECK(mkdir(run, 0700) == 0);
	reap(child(too_big, 0));
	clean();
}

/* The table itself: who may write it speaks in our name. */
static void forged(void)
{
	void *want = (void *)(intptr_t)-R_REGISTRY;
	char path[80], other[80];

	snprintf(path, sizeof path, "%s/registry", run);
	snprintf(other, sizeof other, "%s.table", run);
	fresh_shim();
	CHECK(reg_ready() == 0);
	static const mode_t open_to[] = {0604, 0640, 0620, 0602};
	for (unsigned i = 0; i < sizeof open_to / sizeof *open_to; i++) {
		CHECK(chmod(path, open_to[i]) == 0);
		reap(child(unusable, want));
	}
	CHECK(chmod(path, 0600) == 0);
	if (geteuid() == 0) {
		CHECK(chown(path, 12345, 12345) == 0);
		reap(child(unusable, want));
		CHECK(chown(path, 0, 0) == 0);
	}
	CHECK(rename(path, other) == 0 && symlink(other, path) == 0);
	reap(child(unusable, want));
	CHECK(unlink(path) == 0 && rename(other, path) == 0);
	/* An entry that says another user made it, as one would that came by a hole: it is nobody's. */
	int l = listening("127.0.0.1", 0, 0, 0), port = port_of(l), fd = socket(AF_INET, SOCK_STREAM, 0);
	u64 c;
	CHECK(reg_listen(l) == 0 && lookup("127.0.0.1", port) == 0);
	struct listener *e = listener_find(tab(), (u16)port, sockopt_u64(l, SO_COOKIE));
	e->uid++;
	CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER);
	e->uid--;
	/* A number of a process that was used again: the entry is not that process's. */
	CHECK(lookup("127.0.0.1", port) == 0);
	int n = reg_offer(fd, &c);
	CHECK(n >= 0 && reg_find(c) == n);
	tab()->o[n].uid++;
	CHECK(reg_find(c) == -1);
	tab()->own[n] = (u64)S->reg->pidns << 32 | (u32)getppid();
	tab()->o[n].start = 1;
	sweep_tables(S->reg, 0);
	CHECK(!tab()->own[n] && !tab()->state[n]);
	close(fd);
	closed(l);
	CHECK(taken() == 0);
	reg_exit();
	clean();
}

/* What a busy server and its clients do to the tables, and that nothing stays there: this counts, REGISTRY_TEST_LONG=20 tells how
 * fast. */
static void many(void)
{
	int total = 10000 * scale, done = 0;
	i64 t = now_ns();

	for (int i = 0; i < total; i++) {
		int l = listening("127.0.0.1", 0, 0, 1), port = port_of(l), fd = socket(AF_INET, SOCK_STREAM, 0), half;
		u64 c;
		CHECK(reg_listen(l) == 0 && lookup("127.0.0.1", port) == 0);
		int n = reg_offer(fd, &c);
		CHECK(n >= 0 && reg_find(c) == n && (half = reg_begin(n, 0)) >= 0 && reg_claim(n, c));
		reg_over((u32)half);
		reg_done(n, c);
		close(fd);
		closed(l);
		CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER);
		done++;
	}
	CHECK(done == total && taken() == 0);
	printf("%d listeners and connections: %ld per second\n", total, (long)(total * 1000000000ll / (now_ns() - t)));
}

/* ---- made by several at once ---- */

static int *go;
static char self[16];

static void starter(void *inode)
{
	fresh_shim();
	CHECK(sys(SYS_prctl, 15, self) == 0);
	while (!__atomic_load_n(go, __ATOMIC_SEQ_CST))
		sched_yield();
	CHECK(reg_ready() == 0);
	char path[96];
	struct stat st;
	snprintf(path, sizeof path, "%s/registry", run);
	CHECK(stat(path, &st) == 0 && tab()->magic == REG_MAGIC);
	ino_t none = 0, want = st.st_ino;
	if (!__atomic_compare_exchange_n((ino_t *)inode, &none, want, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		CHECK(none == want);
	/* The same memory, not only the same name. */
	__atomic_fetch_add(&tab()->l[0].start, 1, __ATOMIC_SEQ_CST);
	snprintf(path, sizeof path, "%s/p.%d.%lu", run, getpid(), (unsigned long)S->proc->start);
	CHECK(stat(path, &st) == 0 && st.st_size == 4096 && S->proc->start && !strcmp(S->proc->comm, self));
}

static void born_together(void)
{
	ino_t *inode = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	go = (int *)(inode + 8);
	for (int round = 0; round < 20 * scale; round++) {
		pid_t p[12];
		*inode = 0;
		*go = 0;
		for (int i = 0; i < 12; i++)
			p[i] = child(starter, inode);
		__atomic_store_n(go, 1, __ATOMIC_SEQ_CST);
		for (int i = 0; i < 12; i++)
			reap(p[i]);
		CHECK(count_files('t') == 0);
		fresh_shim();
		CHECK(reg_ready() == 0 && tab()->l[0].start == 12 && count_files('p') == 1);
		reg_exit();
		CHECK(count_files('p') == 0);
		clean();
	}
	fresh_shim();
}

/* ---- which listener answers for which address: the kernel is the judge ---- */

static void addresses(void)
{
	static const struct { const char *ip; int v6only; } at[] = {
		{"127.0.0.1", 0}, {"0.0.0.0", 0}, {"::", 0}, {"::", 1}, {"::1", 0}, {"::ffff:127.0.0.1", 0}, {"::ffff:0.0.0.0", 0}, {"127.0.0.2", 0}};
	static const char *const to[] = {"127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1", "::ffff:127.0.0.2", "0.0.0.0", "::"};
	int yes = 0, no = 0;

	for (unsigned i = 0; i < sizeof at / sizeof *at; i++) {
		int l = listening(at[i].ip, 0, at[i].v6only, 0), port = port_of(l);
		CHECK(reg_listen(l) == 0 && kind_of(l) == FD_LISTENER && reg_is_listener(l));
		for (unsigned k = 0; k < sizeof to / sizeof *to; k++) {
			int c = connected(to[k], port);
			CHECK((c >= 0) == (lookup(to[k], port) == 0), "listening at %s, to %s: %d", at[i].ip, to[k], c);
			c >= 0 ? yes++ : no++;
			if (c >= 0)
				close(c);
			CHECK(lookup(to[k], port ^ 1) == -R_NO_LISTENER);
		}
		closed(l);
		for (unsigned k = 0; k < sizeof to / sizeof *to; k++)
			CHECK(lookup(to[k], port) == -R_NO_LISTENER);
	}
	CHECK(yes > 15 && no > 15);
	int l = listening("127.0.0.1", 0, 0, 0), one = 1;
	CHECK(setsockopt(l, IPPROTO_TCP, TCP_DEFER_ACCEPT, &one, sizeof one) == 0 && reg_listen(l) == -R_SOCKOPT);
	close(l);
	struct sockaddr un = {.sa_family = AF_UNIX};
	CHECK(reg_lookup(&un, sizeof un) == -R_NO_LISTENER && reg_lookup(0, 0) == -R_NO_LISTENER);
	CHECK(taken() == 0);
}

static void thousand(void)
{
	int fd[LISTENERS + 8], port[LISTENERS + 8], n = LISTENERS + 8;
	for (int i = 0; i < n; i++) {
		fd[i] = listening("127.0.0.1", 0, 0, 0);
		port[i] = port_of(fd[i]);
		CHECK(reg_listen(fd[i]) == (i < LISTENERS ? 0 : -R_REGISTRY));
	}
	i64 t = now_ns();
	for (int i = 0; i < n; i++)
		CHECK(lookup("127.0.0.1", port[i]) == (i < LISTENERS ? 0 : -R_NO_LISTENER));
	printf("lookup among %d listeners: %ld ns\n", LISTENERS, (long)(now_ns() - t) / n);
	for (int i = 0; i < n; i++) {
		closed(fd[i]);
		CHECK(lookup("127.0.0.1", port[i]) == -R_NO_LISTENER);
	}
	CHECK(taken() == 0);
	memset((void *)tab()->spilled, 0, sizeof tab()->spilled);
}

/* ---- who holds a listener ---- */

static void master(void *p)
{
	int *pipe_fd = p, l = listening("127.0.0.1", 0, 0, 0), port = port_of(l);
	CHECK(reg_ready() == 0 && reg_listen(l) == 0);
	pid_t worker = child(forever, 0);
	CHECK(write(pipe_fd[1], &port, sizeof port) == sizeof port && write(pipe_fd[1], &worker, sizeof worker) == sizeof worker);
	forever(0);
}

static void close_it(void *fd)
{
	closed((int)(intptr_t)fd);
}

static void republish(void *fd)
{
	CHECK(reg_ready() == 0 && reg_listen((int)(intptr_t)fd) == 0);
	forever(0);
}

static void holders(void)
{
	/* dup: the last fd of this process counts. */
	int l = listening("127.0.0.1", 0, 0, 0), port = port_of(l), d = dup(l);
	CHECK(reg_listen(l) == 0 && reg_listen(l) == 0);
	fd_dup(l, d);
	CHECK(kind_of(d) == FD_LISTENER);
	closed(l);
	CHECK(lookup("127.0.0.1", port) == 0);
	closed(d);
	CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER && taken() == 0);

	/* A forked child closes its copy: nothing changes. The parent closes, a child still listens: it stays. */
	for (int reuse = 0; reuse < 2; reuse++) {
		l = listening("127.0.0.1", 0, 0, reuse), port = port_of(l);
		int second = reuse ? listening("127.0.0.1", port, 0, 1) : -1; /* a group: exact look-ups may meet the other one */
		CHECK(reg_listen(l) == 0);
		reap(child(close_it, (void *)(intptr_t)l));
		CHECK(lookup("127.0.0.1", port) == 0);
		pid_t w = child(forever, 0);
		closed(l);
		CHECK(lookup("127.0.0.1", port) == 0);
		slay(w);
		if (second >= 0)
			close(second);
		CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER && taken() == 0);
	}

	/* The worker makes the entry its own at its first accept. */
	l = listening("127.0.0.1", 0, 0, 0), port = port_of(l);
	CHECK(reg_listen(l) == 0);
	u64 cookie = sockopt_u64(l, SO_COOKIE);
	pid_t r = child(republish, (void *)(intptr_t)l);
	closed(l);
	for (int i = 0; i < 5000; i++) { /* an orphan now, or the worker's already, or will be */
		struct listener *e = listener_find(tab(), (u16)port, cookie);
		CHECK(e);
		if ((u32)e->own == (u32)r)
			break;
		if (i == 0) {
			slay(r);
			CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER);
			break;
		}
		usleep(1000);
	}
	if (kill(r, 0) == 0)
		slay(r);
	CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER && taken() == 0);

	/* A master that dies while its worker listens, and then the worker. */
	int p[2];
	pid_t worker;
	CHECK(pipe(p) == 0);
	pid_t m = child(master, p);
	CHECK(read(p[0], &port, sizeof port) == sizeof port && read(p[0], &worker, sizeof worker) == sizeof worker);
	CHECK(lookup("127.0.0.1", port) == 0);
	slay(m);
	CHECK(lookup("127.0.0.1", port) == 0);
	sweep_tables(S->reg, 0);
	CHECK(lookup("127.0.0.1", port) == 0);
	kill(worker, SIGKILL);
	for (int i = 0; i < 5000 && lookup("127.0.0.1", port) == 0; i++)
		usleep(1000);
	CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER && taken() == 0);
	close(p[0]), close(p[1]);

	/* exec: what the image published is withdrawn; what it opens anew is published again. */
	l = listening("127.0.0.1", 0, 0, 0), port = port_of(l);
	CHECK(reg_listen(l) == 0);
	reg_exec();
	CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER && kind_of(l) == FD_UNKNOWN);
	CHECK(reg_listen(l) == 0 && lookup("127.0.0.1", port) == 0);
	CHECK(shutdown(l, SHUT_RDWR) == 0);
	reg_unlisten(l);
	CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER && taken() == 0);
	close(l);
}

/* ---- offers ---- */

static void offers_test(void)
{
	u64 c, c2;
	u8 gid[16] = "0123456789abcde", got[16];
	int fd = socket(AF_INET, SOCK_STREAM, 0), fd2 = socket(AF_INET, SOCK_STREAM, 0), n = reg_offer(fd, &c);
	CHECK(n >= 0 && c == sockopt_u64(fd, SO_COOKIE) && reg_find(c) == n && reg_state(n, c) == REG_OFFERED);
	CHECK(reg_get_gid(n, c, got) < 0);
	reg_set_gid(n, c, gid);
	CHECK(reg_get_gid(n, c, got) == 0 && !memcmp(gid, got, 16));
	CHECK(!reg_claim(n, c + 1) && !reg_withdraw(n, c + 1) && reg_state(n, c + 1) == REG_FREE && reg_get_gid(n, c + 1, got) < 0);
	reg_done(n, c + 1);
	CHECK(!reg_quiet());
	CHECK(reg_claim(n, c) && reg_quiet() && !reg_claim(n, c) && !reg_withdraw(n, c) && reg_state(n, c) == REG_CLAIMED && reg_find(c) == -1);
	reg_done(n, c);
	CHECK(reg_state(n, c) == REG_FREE && !reg_claim(n, c) && taken() == 0);
	/* The same slot for another cookie: the old one is powerless, and the old name is gone. */
	n = reg_offer(fd2, &c2);
	CHECK(n >= 0 && !reg_claim(n, c) && !reg_withdraw(n, c) && reg_get_gid(n, c2, got) < 0);
	reg_done(n, c);
	CHECK(!reg_quiet() && reg_withdraw(n, c2) && reg_quiet() && !reg_claim(n, c2) && reg_state(n, c2) == REG_WITHDRAWN);
	reg_done(n, c2);
	static const int bad[] = {-1, OFFERS, OFFERS + 1, 0x7fffffff, (int)0x80000000};
	for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
		CHECK(!reg_claim(bad[i], c) && !reg_withdraw(bad[i], c) && reg_state(bad[i], c) == REG_FREE && reg_get_gid(bad[i], c, got) < 0);
		reg_done(bad[i], c);
		reg_set_gid(bad[i], c, gid);
	}
	CHECK(reg_find(0) == -1 && taken() == 0);
	/* Handshakes under way with one process; another one's do not count. */
	n = reg_offer(fd, &c);
	int half = reg_begin(n, 0), next;
	CHECK(half >= 0 && half < HALF_OPEN_PEERS && reg_begin(OFFERS, 0) == -R_REGISTRY);
	for (u32 i = 1; i < HALF_OPEN_MAX; i++)
		CHECK(reg_begin(n, 0) == half);
	for (int i = 0; i < 3; i++)
		CHECK(reg_begin(n, 0) == -R_HALF_OPEN);
	reg_over((u32)half);
	CHECK(reg_begin(n, 0) == half && reg_begin(n, 0) == -R_HALF_OPEN);
	tab()->own[n] ^= 1;
	CHECK((next = reg_begin(n, 0)) >= 0 && next != half);
	tab()->own[n] ^= 1;
	reg_over((u32)next);
	int hosts = 0; /* one of them may have the same hash */
	for (u8 host = 1; host < 4; host++) {
		u8 at[16] = {10, 0, 0, host};
		if ((next = reg_begin(-1, at)) >= 0) {
			hosts++;
			reg_over((u32)next);
		}
	}
	CHECK(hosts >= 2);
	for (u32 i = 0; i < HALF_OPEN_MAX; i++)
		reg_over((u32)half);
	reg_over(HALF_OPEN_PEERS);
	for (int i = 0; i < HALF_OPEN_PEERS; i++)
		CHECK(!S->half_open[i]);
	CHECK(!reg_quiet());
	reg_done(n, c);
	CHECK(reg_quiet());
	/* Full: an error, and room again afterwards. */
	int slot;
	u32 b = bucket_of(c) & ~(u32)(2 * BUCKET - 1);
	for (u32 i = b; i < b + PLACES; i++)
		tab()->own[i] = own_of(S->reg);
	CHECK(reg_offer(fd, &c) == -R_REGISTRY);
	for (u32 i = b; i < b + PLACES; i++)
		tab()->own[i] = (u64)S->reg->pidns << 32 | 0x3fffffff; /* of somebody who never lived */
	tab()->state[b] = word(12345, REG_OFFERED);
	tab()->open++;
	CHECK(!reg_quiet() && (slot = reg_offer(fd, &c)) >= 0);
	reg_done(slot, c);
	sweep_tables(S->reg, 0);
	CHECK(reg_quiet());
	for (u32 i = b; i < b + PLACES; i++)
		tab()->own[i] = 0;
	CHECK(taken() == 0);
	close(fd), close(fd2);
}

static void versions(void)
{
	int l = listening("127.0.0.1", 0, 0, 1), port = port_of(l), l2 = listening("127.0.0.1", port, 0, 1);
	CHECK(reg_listen(l) == 0);
	struct listener *e = listener_find(tab(), (u16)port, sockopt_u64(l, SO_COOKIE));
	CHECK(e && lookup("127.0.0.1", port) == 0);
	e->abi = SMCR_ABI + 1;
	CHECK(lookup("127.0.0.1", port) == -R_VERSION);
	CHECK(reg_listen(l2) == 0 && lookup("127.0.0.1", port) == 0); /* one of ours in the group */
	closed(l2);
	e->family = 99;
	CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER);
	e->family = AF_INET;
	closed(l);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	u64 c;
	int n = reg_offer(fd, &c);
	tab()->o[n].abi = SMCR_ABI + 1;
	CHECK(n >= 0 && reg_find(c) == -1);
	reg_done(n, c);
	close(fd);
	CHECK(taken() == 0);
}

/* A table of another layout is left alone while its users live, and replaced when they are gone. */
static void other_layout(void)
{
	pid_t user = child(forever, 0);
	char path[96], num[24];
	int gone;
	snprintf(num, sizeof num, "%d", user);
	snprintf(path, sizeof path, "%s/p.%d.%lu", run, user, (unsigned long)start_of(num, 0, &gone));
	int fd = open(path, O_CREAT | O_RDWR, 0600);
	CHECK(fd >= 0);
	close(fd);
	tab()->version = REG_VERSION + 1;
	u64 mine = S->proc->start;
	reg_exit();
	fresh_shim();
	CHECK(reg_ready() == -R_VERSION && !S->proc);
	CHECK(lookup("127.0.0.1", 1) == -R_VERSION);
	slay(user);
	fresh_shim();
	CHECK(reg_ready() == 0 && S->proc->start == mine && tab()->version == REG_VERSION && count_files('p') == 1);
}

/* ---- the process's file ---- */

static void image(void *arg)
{
	(void)arg;
	fresh_shim();
	CHECK(reg_ready() == 0);
	int l = listening("127.0.0.1", 0, 0, 0), port = port_of(l), c = connected("127.0.0.1", port);
	CHECK(reg_listen(l) == 0);
	struct sock *s = sock_new(c, 0, S_ACTIVE);
	CHECK(s && S->proc->nblocks == SLAB_BLOCKS);
	count_tcp(R_NO_CLIENT, 0);
	close(l); /* behind our back, as FD_CLOEXEC does it */
	/* exec: the same process, a new image. */
	fresh_shim();
	CHECK(reg_ready() == 0 && S->proc->tcp_conns == 1 && S->proc->fallbacks[R_NO_CLIENT] == 1 && S->proc->nblocks == SLAB_BLOCKS);
	CHECK(lookup("127.0.0.1", port) == -R_NO_LISTENER);
	s = sock_new(c, 0, S_ACTIVE);
	CHECK(s && S->proc->nblocks == 2 * SLAB_BLOCKS);
	CHECK(count_files('p') == 2);
}

/* An unused connection at an exec: whoever else has it goes on with it, the last holder ends it. */
static void last_holder(void *arg)
{
	(void)arg;
	fresh_shim();
	CHECK(reg_ready() == 0);
	int l = listening("127.0.0.1", 0, 0, 0), c = connected("127.0.0.1", port_of(l));
	CHECK(sock_new(c, 1, S_ACCEPTED));
	map_prefork();
	map_postfork(0);
	reg_heirs(HEIR_EXEC);
	CHECK(left_early == 0);
	atomic_fetch_sub(&S->sock[S->fd_sock[c]].b->procs, 1); /* the other one has closed */
	reg_heirs(HEIR_EXEC);
	CHECK(left_early == 1);
}

static void pages(void)
{
	char report[80], var2[96], cmd[200];
	snprintf(report, sizeof report, "%s.report", run);
	snprintf(var2, sizeof var2, "SMCR_REPORT_DIR=%s", report);
	environment[1] = var2;
	CHECK(mkdir(report, 0700) == 0);
	pid_t p = child(image, 0);
	reap(p);
	environment[1] = 0;
	snprintf(cmd, sizeof cmd, "ls %s | grep -q '^p\\.%d\\.' && rm -rf %s", report, p, report);
	CHECK(system(cmd) == 0);
	CHECK(count_files('p') == 2);
	fresh_shim();
	CHECK(reg_ready() == 0 && count_files('p') == 1); /* the next start removed it */
}

static void changed(void *arg)
{
	(void)arg;
	fresh_shim();
	CHECK(reg_ready() == 0);
	int l = listening("127.0.0.1", 0, 0, 0), port = port_of(l), before = port_of(l);
	CHECK(reg_listen(l) == 0 && lookup("127.0.0.1", port) == 0);
	struct table *t = tab();
	CHECK(seteuid(65534) == 0);
	CHECK(lookup("127.0.0.1", before) == -R_REGISTRY && reg_listen(l) == -R_REGISTRY && reg_find(1) == -1);
	CHECK(t->magic == 0); /* a reader in another thread finds zeros */
	u64 c;
	CHECK(reg_offer(l, &c) == -R_REGISTRY && reg_ready() == -R_REGISTRY);
	/* It may become root again, and nothing of the other's has been opened meanwhile; then it is root again. */
	struct proc_page *page = S->proc;
	CHECK(seteuid(0) == 0 && reg_ready() == 0 && S->proc == page && tab() != t);
	CHECK(reg_listen(l) == 0 && lookup("127.0.0.1", before) == 0);
	/* For good: that one's tables and page, in a directory beside, if that is its own. */
	t = tab();
	char own[96];
	snprintf(own, sizeof own, "%s-65534", run);
	CHECK(mkdir(own, 0700) == 0);
	CHECK(setuid(65534) == 0 && reg_ready() == -R_REGISTRY && reg_ready() == -R_REGISTRY && t->magic == 0 && S->proc == page);
}

static void moved(void *arg)
{
	struct stat st;
	char own[96];

	snprintf(own, sizeof own, "%s-65534", run);
	fresh_shim();
	CHECK(reg_ready() == 0);
	struct proc_page *page = S->proc;
	int l = listening("127.0.0.1", 0, 0, 0), port = port_of(l);
	atomic_store(&page->smc_conns, 2);
	CHECK(setuid(65534) == 0 && reg_ready() == 0);
	CHECK(S->proc != page && atomic_load(&S->proc->smc_conns) == 0 && stat(own, &st) == 0 && st.st_uid == 65534);
	CHECK(reg_listen(l) == 0 && lookup("127.0.0.1", port) == 0);
	CHECK(stat(run, &st) == 0 && open(run, O_RDONLY) < 0 && errno == EACCES);
	CHECK(reg_slab(0) != 0);
	PAGE_ADD(S->proc, smc_conns, 3);
	CHECK(atomic_load(&S->proc->smc_conns) == 3 && atomic_load(&page->smc_conns) == 5); /* what a report shows, however this ends */
	reg_exit();
	(void)arg;
}

static void users(void)
{
	char cmd[128];

	snprintf(cmd, sizeof cmd, "rm -r '%s-65534'", run);
	reap(child(changed, 0));
	CHECK(system(cmd) == 0);
	reap(child(moved, 0));
	CHECK(system(cmd) == 0);
}

/* ---- crashes ---- */

static void busy(void *seed)
{
	unsigned x = (unsigned)(uintptr_t)seed;
	CHECK(reg_ready() == 0);
	for (;;) {
		int fd[8];
		u64 c[8];
		int n[8];
		for (int i = 0; i < 8; i++) {
			fd[i] = socket(AF_INET, SOCK_STREAM, 0);
			n[i] = reg_offer(fd[i], &c[i]);
			if (rand_r(&x) & 1)
				reg_claim(n[i], c[i]);
		}
		int l = listening("127.0.0.1", 0, 0, 0);
		CHECK(reg_listen(l) == 0);
		for (int i = 0; i < 8; i++) {
			reg_done(n[i], c[i]);
			close(fd[i]);
		}
		closed(l);
	}
}

static void crashes(void)
{
	for (int round = 0; round < 10 * scale; round++) {
		pid_t p[4];
		for (long i = 0; i < 4; i++)
			p[i] = child(busy, (void *)(i + round * 4 + 1));
		usleep(3000 + (unsigned)rand() % 10000);
		for (int i = 0; i < 4; i++)
			slay(p[i]);
		/* A place taken by somebody who died before he wrote anything into it, in a bucket that a sweep had just found empty. */
		atomic_fetch_and(&tab()->omap[0], ~1ull), atomic_fetch_and(&tab()->lmap[0], ~1ull);
		tab()->own[7] = (u64)S->reg->pidns << 32 | (u32)p[0];
		tab()->l[7].own = (u64)S->reg->pidns << 32 | (u32)p[0];
		tab()->l[7].start = 0;
		fresh_shim();
		CHECK(reg_ready() == 0);
		CHECK(taken() == 0, "%d", taken());
		CHECK(count_files('p') == 1 && count_files('t') == 0);
	}
	/* Not yet waited for, and a number that was used again. */
	pid_t z = child(starter, go + 64); /* `go` is set */
	siginfo_t si;
	CHECK(waitid(P_PID, (id_t)z, &si, WEXITED | WNOWAIT) == 0 && count_files('p') == 2);
	char path[96];
	snprintf(path, sizeof path, "%s/p.%d.12345", run, getppid());
	int fd = open(path, O_CREAT | O_RDWR, 0600);
	close(fd);
	fresh_shim();
	CHECK(reg_ready() == 0 && count_files('p') == 1);
	reap(z);
	i64 t = now_ns(), best = 1 << 30;
	for (int i = 0; i < 20; i++, t = now_ns()) {
		fresh_shim();
		t = now_ns();
		CHECK(reg_ready() == 0);
		if (now_ns() - t < best)
			best = now_ns() - t;
	}
	printf("start: %ld us\n", (long)best / 1000);
}

/* In another pid namespace numbers say nothing: who lives there has its file mapped. A library that does not hold it so is believed. */
static void elsewhere(void)
{
	char path[96];

	fresh_shim();
	CHECK(reg_ready() == 0 && taken() == 0);
	snprintf(path, sizeof path, "%s/p.5.77", run);
	u64 own = (u64)(S->reg->pidns + 1) << 32 | 5;
	for (u32 held = 0; held < 2; held++) {
		int fd = open(path, O_CREAT | O_RDWR, 0600);
		CHECK(fd >= 0 && ftruncate(fd, 4096) == 0 && flock(fd, LOCK_SH) == 0);
		struct proc_page *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		CHECK(page != MAP_FAILED);
		close(fd);
		*page = (struct proc_page){.magic = PROC_MAGIC, .abi = SMCR_ABI, .pid = 5, .start = 77, .pidns = (u32)(own >> 32), .held = held};
		tab()->l[3].own = tab()->own[9] = own;
		tab()->l[3].start = tab()->o[9].start = 77;
		for (int lives = 1; lives >= 0; lives--) {
			mark_all(tab());
			fresh_shim();
			CHECK(reg_ready() == 0);
			int n = held && !lives ? 0 : 2;
			CHECK(count_files('p') == 1 + n / 2 && taken() == n, "held %u, lives %d: %d taken", held, lives, taken());
			if (lives)
				munmap(page, 4096);
		}
	}
}

/* ---- sock_diag ---- */

static void mirror_pair(const char *at, const char *to)
{
	int l = listening(at, 0, 0, 0), port = port_of(l), c = connected(to, port);
	struct diag d, e;
	CHECK(c >= 0);
	u64 mine = sockopt_u64(c, SO_COOKIE);
	/* On a busy machine the client's last ACK may still be on its way. */
	for (i64 until = now_ns() + 5000000000ll;;) {
		CHECK(diag_mirror(c, &d) == 0 && d.inode == 0 && d.cookie != mine, "%s %s", at, to);
		if (d.tcp_state == 1)
			break;
		CHECK(d.tcp_state == 3 && now_ns() < until, "%s %s: %d", at, to, d.tcp_state);
	}
	int s = accept(l, 0, 0);
	CHECK(s >= 0 && diag_mirror(s, &e) == 0 && e.cookie == mine && e.inode != 0);
	CHECK(d.cookie == sockopt_u64(s, SO_COOKIE));
	CHECK(diag_mirror(c, &d) == 0 && d.inode != 0 && d.cookie == sockopt_u64(s, SO_COOKIE));
	CHECK(diag_mirror(l, &d) == -ENOTCONN);
	CHECK(diag_loopback(c) == (!strcmp(to, "::1") || strstr(to, "127.0.0.1") != 0), "%s", to);
	close(s);
	CHECK(diag_mirror(c, &d) < 0 || d.inode == 0);
	close(c), close(l);
}

/* In a network of its own: link-local addresses, and sockets bound to the interface. */
static void link_local(void *arg)
{
	int published = (int)(intptr_t)arg;
	if (unshare(CLONE_NEWNET) < 0)
		CHECK(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0);
	fresh_shim();
	if (geteuid() == 65534)
		use_dir("/tmp");
	else {
		CHECK(reg_ready() == 0);
		CHECK(lookup("127.0.0.1", published) == -R_NO_LISTENER); /* of another network */
	}
	struct ifreq ifr = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
	struct { struct in6_addr a; u32 prefix; int index; } in6 = {.prefix = 64, .index = 1};
	int k = socket(AF_INET6, SOCK_DGRAM, 0), one = 1;
	CHECK(ioctl(k, SIOCSIFFLAGS, &ifr) == 0);
	CHECK(inet_pton(AF_INET6, "fe80::5", &in6.a) == 1 && ioctl(k, SIOCSIFADDR, &in6) == 0);
	struct sa a = addr("fe80::5", 0);
	((struct sockaddr_in6 *)&a.ss)->sin6_scope_id = 1;
	int l = socket(AF_INET6, SOCK_STREAM, 0), c = socket(AF_INET6, SOCK_STREAM, 0);
	for (int i = 0; i < 3000 && bind(l, (void *)&a.ss, a.len) < 0; i++)
		usleep(1000); /* duplicate address detection */
	CHECK(listen(l, 5) == 0);
	((struct sockaddr_in6 *)&a.ss)->sin6_port = htons((u16)port_of(l));
	CHECK(connect(c, (void *)&a.ss, a.len) == 0);
	int s = accept(l, 0, 0);
	struct diag d;
	CHECK(diag_mirror(c, &d) == 0 && d.cookie == sockopt_u64(s, SO_COOKIE));
	CHECK(diag_mirror(s, &d) == 0 && d.cookie == sockopt_u64(c, SO_COOKIE));
	if (S->proc) {
		CHECK(reg_listen(l) == 0 && reg_lookup((void *)&a.ss, a.len) == 0);
		((struct sockaddr_in6 *)&a.ss)->sin6_scope_id = 7;
		CHECK(reg_lookup((void *)&a.ss, a.len) == -R_NO_LISTENER);
		closed(l);
	}
	/* Bound to the device on both sides. */
	int l4 = socket(AF_INET, SOCK_STREAM, 0), c4 = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(setsockopt(l4, SOL_SOCKET, SO_BINDTOIFINDEX, &one, sizeof one) == 0 && setsockopt(c4, SOL_SOCKET, SO_BINDTOIFINDEX, &one, sizeof one) == 0);
	a = addr("127.0.0.1", 0);
	CHECK(bind(l4, (void *)&a.ss, a.len) == 0 && listen(l4, 5) == 0);
	if (S->proc) {
		CHECK(reg_listen(l4) == 0);
		struct listener *e = listener_find(tab(), (u16)port_of(l4), sockopt_u64(l4, SO_COOKIE));
		CHECK(e && listener_lives(S->reg, e) == 1);
	}
	a = addr("127.0.0.1", port_of(l4));
	CHECK(connect(c4, (void *)&a.ss, a.len) == 0);
	int s4 = accept(l4, 0, 0);
	CHECK(s4 >= 0 && diag_mirror(c4, &d) == 0 && d.cookie == sockopt_u64(s4, SO_COOKIE));
	CHECK(diag_mirror(s4, &d) == 0 && d.cookie == sockopt_u64(c4, SO_COOKIE));
	if (S->proc)
		closed(l4);
}

static void *asker(void *arg)
{
	int *fds = arg;
	struct diag d;
	for (int i = 0; i < 3000; i++) {
		int k = i % 4;
		CHECK(diag_mirror(fds[2 * k], &d) == 0 && d.cookie == sockopt_u64(fds[2 * k + 1], SO_COOKIE));
	}
	return 0;
}

static int interrupted_fds[8];
static _Atomic int interrupts;
static void interrupt(int sig)
{
	struct diag d;
	int e = errno;
	(void)sig;
	CHECK(diag_mirror(interrupted_fds[3], &d) == 0 && d.cookie == sockopt_u64(interrupted_fds[2], SO_COOKIE));
	interrupts++;
	errno = e;
}

static void diag_test(void)
{
	struct diag d;
	mirror_pair("127.0.0.1", "127.0.0.1");
	mirror_pair("::1", "::1");
	mirror_pair("::", "127.0.0.1");
	mirror_pair("::", "::ffff:127.0.0.1");
	mirror_pair("127.0.0.1", "::ffff:127.0.0.1");
	mirror_pair("::ffff:127.0.0.1", "127.0.0.1");
	mirror_pair("::", "::1");

	/* A socket that is connected to itself has no other end. */
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct sa a = addr("127.0.0.1", 0);
	CHECK(bind(fd, (void *)&a.ss, a.len) == 0);
	a = addr("127.0.0.1", port_of(fd));
	CHECK(connect(fd, (void *)&a.ss, a.len) == 0 && diag_mirror(fd, &d) == -ENOENT);
	close(fd);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(diag_mirror(fd, &d) == -ENOTCONN && diag_mirror(9999, &d) == -EBADF);
	close(fd);

	/* Several threads and a signal handler on one netlink socket. */
	int l = listening("127.0.0.1", 0, 0, 0), *p = interrupted_fds;
	for (int i = 0; i < 4; i++) {
		p[2 * i] = connected("127.0.0.1", port_of(l));
		p[2 * i + 1] = accept(l, 0, 0);
	}
	struct itimerspec it = {{0, 200000}, {0, 200000}};
	struct sigevent ev = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	timer_t timer;
	signal(SIGUSR1, interrupt);
	CHECK(timer_create(CLOCK_MONOTONIC, &ev, &timer) == 0 && timer_settime(timer, 0, &it, 0) == 0);
	pthread_t t[3];
	for (int i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], 0, asker, p) == 0);
	asker(p);
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], 0);
	timer_delete(timer);
	CHECK(interrupts > 3);
	i64 t0 = now_ns();
	for (int i = 0; i < 2000; i++)
		diag_mirror(p[0], &d);
	printf("diag_mirror: %ld ns\n", (long)(now_ns() - t0) / 2000);
	for (int i = 0; i < 8; i++)
		close(p[i]);
	close(l);

	/* Foreign listeners. */
	l = listening("127.0.0.1", 0, 0, 1);
	int port = port_of(l), c;
	CHECK(reg_listen(l) == 0);
	c = connected("127.0.0.1", port);
	CHECK(diag_foreign_listener(c) == 0);
	int plain = listening("127.0.0.1", port, 0, 1);
	CHECK(diag_foreign_listener(c) == 1);
	close(plain);
	CHECK(diag_foreign_listener(c) == 0);
	plain = listening("127.0.0.2", port, 0, 1);
	CHECK(diag_foreign_listener(c) == 0); /* another address */
	close(plain);
	plain = listening("0.0.0.0", port, 0, 1);
	CHECK(diag_foreign_listener(c) == 1);
	close(plain);
	plain = listening("::", port, 0, 1);
	CHECK(diag_foreign_listener(c) == 1);
	close(plain), close(c);
	reap(child(link_local, (void *)(intptr_t)port));
	closed(l);
	CHECK(taken() == 0);
}

/* ---- one port shared by a server of ours and a plain one: both ends always agree ---- */

struct shared {
	_Atomic long wrong, claimed, plain, fault;
};

static void server(void *arg)
{
	void **a = arg;
	struct shared *sh = a[0];
	int l = (int)(intptr_t)a[1], ours = (int)(intptr_t)a[2];
	if (ours)
		CHECK(reg_ready() == 0);
	for (;;) {
		int s = accept(l, 0, 0), slot;
		struct diag d;
		char say = 'P', b;
		if (s < 0)
			continue;
		if (ours && diag_mirror(s, &d) == 0 && (slot = reg_find(d.cookie)) >= 0 && reg_claim(slot, d.cookie))
			say = 'S';
		if (recv(s, &b, 1, 0) == 1) {
			sh->wrong += b != say;
			say == 'S' ? sh->claimed++ : sh->plain++;
		}
		close(s);
	}
}

static void agreement(void)
{
	struct shared *sh = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int l[2] = {listening("127.0.0.1", 0, 0, 1), -1}, port = port_of(l[0]), total = 20000 * scale;
	unsigned x = 1;
	l[1] = listening("127.0.0.1", port, 0, 1);
	CHECK(reg_listen(l[0]) == 0);
	pid_t p[2];
	for (int i = 0; i < 2; i++) {
		void *a[3] = {sh, (void *)(intptr_t)l[i], (void *)(intptr_t)!i};
		p[i] = child(server, a);
	}
	close(l[1]);
	for (int k = 0; k < total; k++) {
		struct sa a = addr("127.0.0.1", port);
		int c = socket(AF_INET, SOCK_STREAM, 0), r = (int)(rand_r(&x) % 4);
		u64 cookie;
		CHECK(lookup("127.0.0.1", port) == 0);
		int slot = reg_offer(c, &cookie);
		CHECK(slot >= 0 && connect(c, (void *)&a.ss, a.len) == 0, "%d", slot);
		if (r == 1)
			usleep(rand_r(&x) % 80);
		for (volatile int j = 0; r == 2 && j < rand_r(&x) % 20000; j++)
			;
		if (r == 3)
			usleep(300);
		char say = reg_withdraw(slot, cookie) ? 'P' : 'S', b;
		CHECK(say == 'P' || reg_state(slot, cookie) == REG_CLAIMED);
		CHECK(send(c, &say, 1, MSG_NOSIGNAL) == 1);
		recv(c, &b, 1, 0);
		reg_done(slot, cookie);
		close(c);
	}
	for (int i = 0; i < 2; i++)
		slay(p[i]);
	printf("%d connections: %ld claimed, %ld plain, %ld disagreements\n", total, sh->claimed, sh->plain, sh->wrong);
	CHECK(sh->wrong == 0 && sh->claimed > total / 20 && sh->plain > total / 20 && sh->claimed + sh->plain == total);
	closed(l[0]);
	CHECK(taken() == 0);
}

/* Connections that come and go, and when they are left to TCP. */
static void haste(void)
{
	struct timespec calm = {0, 15000000};
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(80)}; /* 0.0.0.0: this host */
	const struct sockaddr *sa = (void *)&in;
	struct block to = {.family = AF_INET, .paddr = {127, 0, 0, 1}, .pport = 80};
	u32 plain = 0;

	S->adapt = 1;
	for (int i = 0; i < HASTE_MIN; i++) {
		CHECK(!reg_haste(sa, sizeof in), "%d", i);
		reg_ended(&to, 0);
	}
	for (u32 i = 0; i < HASTE_TRIES + 3; i++) { /* each try is twice as far as the one before, up to a point */
		for (plain = 0; reg_haste(sa, sizeof in); plain++)
			;
		CHECK(plain == ((u32)HASTE_TRY << (i < HASTE_TRIES ? i : HASTE_TRIES)) - 1, "%u: %u", i, plain);
	}
	in.sin_port = htons(81);
	CHECK(!reg_haste(sa, sizeof in) && !reg_haste(sa, 1));
	in.sin_port = htons(80);
	S->adapt = 0;
	CHECK(!reg_haste(sa, sizeof in));
	S->adapt = 1;
	CHECK(reg_haste(sa, sizeof in));
	reg_ended(&to, 1); /* one that paid */
	CHECK(!reg_haste(sa, sizeof in) && !reg_haste(sa, sizeof in));

	for (int i = 0; i < HASTE_MIN; i++)
		reg_ended(&to, 0);
	for (plain = 0; reg_haste(sa, sizeof in); plain++)
		;
	CHECK(plain == HASTE_TRY - 1, "%u", plain);
	CHECK(reg_haste(sa, sizeof in));
	nanosleep(&calm, 0); /* nobody in haste any more */
	CHECK(!reg_haste(sa, sizeof in) && !reg_haste(sa, sizeof in));

	for (int i = 0; i < 3 * HASTE_MIN; i++) { /* now and then one that ends soon is no haste */
		if (i % (HASTE_MIN / 2) == 0)
			nanosleep(&calm, 0);
		reg_ended(&to, 0);
		CHECK(!reg_haste(sa, sizeof in));
	}
	S->adapt = 0;
}

int main(void)
{
	struct rlimit rl = {8192, 8192};
	char dir[64];
	if (getenv("REGISTRY_TEST_LONG"))
		scale = atoi(getenv("REGISTRY_TEST_LONG"));
	setrlimit(RLIMIT_NOFILE, &rl);
	setvbuf(stdout, 0, _IOLBF, 0);
	snprintf(dir, sizeof dir, "/dev/shm/smcr-test-%d", getpid());
	use_dir(dir);
	directories();
	forged();
	born_together();
	CHECK(reg_ready() == 0);
	many();
	addresses();
	haste();
	thousand();
	holders();
	offers_test();
	versions();
	other_layout();
	reap(child(last_holder, 0));
	pages();
	if (geteuid() == 0)
		users();
	diag_test();
	agreement();
	crashes();
	elsewhere();
	clean();
	return 0;
}

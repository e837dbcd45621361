/*
 * Starting the engine: at most once per process (again in a forked child), when the first connection turns out to have a peer.
 * The rule above all: starting may not hurt the host. A Go runtime that lacks memory, a thread or a system call ends the
 * process and nothing in it can prevent that. So everything that can be known is looked at first, what cannot is tried in
 * a throw-away process, and where doubt remains the process stays on TCP with the reason.
 */
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "life.h"
#include "real.h"
#include "../hooks/sys.h"

#define START_PATIENCE_MS 5000 /* a start takes about 1 ms; a host that is this slow stays on TCP */
#define TRIAL_PATIENCE_MS 500
#define ROOM_THREADS 64		   /* below so many free threads a trial decides */
#define ROOM_FDS 8
#define ROOM_FILE (64l << 20)	   /* how long one of ours may become */
#define ROOM_MEMORY (256l << 20) /* to be left under a limit of the address space */
#define THREAD_STACK (256 << 10)
#define START_READ (64 << 10) /* of the library: its headers and what else layout.ld puts first */

u32 start_role = ROLE_FIRST; /* in the file's data, so that a copy's image can say otherwise */

extern const struct runtime *(*const smcr_go_entry)(void) HIDDEN; /* boot/boot_amd64.s, placed by layout.ld */
extern const Elf64_Ehdr __ehdr_start HIDDEN; /* where this copy is mapped */

/* cgo exports: hooks/loop.go, preload/main.go */
extern int smcr_go_main(void *shim) HIDDEN;
extern int smcr_go_probe(void) HIDDEN;

#define SIGSETXID 33 /* glibc's own */

/* All but the one by which glibc changes the user of every thread: setuid waits for them all, with a lock that dlopen and
 * pthread_create want, too. */
static u64 block_signals(void)
{
	u64 all = ~(1ull << (SIGSETXID - 1)), old = 0;

	sys(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, 8);
	return old;
}

static void restore_signals(u64 old)
{
	sys(SYS_rt_sigprocmask, SIG_SETMASK, &old, 0, 8);
}

/* ---- in the copy that is started ------------------------------------------------------------------------- */

/* Flags of runtime.sigtable, pinned by check/. */
#define GO_SIG_DEFAULT (1 << 4) /* not asked for explicitly: the runtime installs no handler */
#define GO_SIG_UNBLOCK (1 << 7) /* the runtime keeps it unblocked on its threads */
#define GO_SIG_FLAGS ((1 << 9) - 1)

/*
 * Before the runtime starts: it shall install no handler and let no signal in. SIGSEGV, SIGBUS and SIGFPE stay the
 * runtime's where the program has no handler for them, so that a fault in Go becomes a panic, which is recovered.
 */
static int tame_signals(struct sigtab *t)
{
	struct ksigaction now;

	for (int i = 0; i < 65; i++)
		if (t[i].flags & ~GO_SIG_FLAGS || t[i].len <= 0 || t[i].len > 64)
			return -R_ENGINE; /* not the table that this was written for */
	if (t[SIGSEGV].len < 7 || memcmp(t[SIGSEGV].name, "SIGSEGV", 7))
		return -R_ENGINE;
	for (int i = 1; i < 65; i++) {
		if ((i == SIGSEGV || i == SIGBUS || i == SIGFPE) && !sys(SYS_rt_sigaction, i, 0, &now, 8) && now.handler == SIG_DFL)
			continue;
		t[i].flags = (t[i].flags | GO_SIG_DEFAULT) & ~GO_SIG_UNBLOCK;
	}
	return 0;
}

/* Which handlers the runtime has installed now: they survive fork, the runtime does not (become_child in life.c). */
static void note_faults(const struct sigtab *t)
{
	struct ksigaction now;

	for (int i = 0; i < 3; i++)
		if (t[life_faults[i]].flags & GO_SIG_UNBLOCK && !sys(SYS_rt_sigaction, life_faults[i], 0, &now, 8))
			S->life->fault[i] = now.handler;
}

/*
 * The runtime's poller has an epoll and an eventfd, and any timer of the runtime's own opens them: in the lowest numbers, where
 * the program expects its next fd and may close what it did not open, which ends the process. So they are made here, out
 * of the way, and the runtime is told that it has them.
 */
static int give_poller(const struct runtime *rt)
{
	int ep = (int)sys(SYS_epoll_create1, EPOLL_CLOEXEC), ev = (int)sys(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = rt->eventfd};

	ep = ep < 0 ? ep : fd_hide(ep);
	ev = ev < 0 ? ev : fd_hide(ev);
	S->life->rt_fds[0] = ep, S->life->rt_fds[1] = ev;
	if (ep < 0 || ev < 0 || sys(SYS_epoll_ctl, ep, EPOLL_CTL_ADD, ev, &e) < 0)
		return -R_NO_FD;
	*rt->epfd = ep;
	*rt->eventfd = (u64)ev;
	*rt->netpoll_inited = 1;
	return 0;
}

#define GODEBUG "asyncpreemptoff=1,containermaxprocs=0,updatemaxprocs=0"

/* Filled in by postlink: the relocations of Go's data that the loader was not asked to do. */
static struct {
	char magic[16];
	u64 at, n;
} start_deferred = {.magic = "smcr:deferred\0\0\1"};

static void relocate(void)
{
	const char *base = (const char *)&__ehdr_start;
	u64 n = *(volatile u64 *)&start_deferred.n;
	const Elf64_Rela *r = (const void *)(base + *(volatile u64 *)&start_deferred.at);

	for (u64 i = 0; i < n; i++)
		*(u64 *)(base + r[i].r_offset) = (u64)base + (u64)r[i].r_addend;
	start_deferred.n = 0;
}

/* Starts this copy's runtime. All signals are blocked and the stack is a big one; nobody else runs Go yet. */
static int run(struct shim *s, int trial)
{
	int r;

	smcr_shim = s;
	if (s->real != &smcr_real)
		smcr_real = *s->real;
	relocate();
	const struct runtime *rt = smcr_go_entry();
	if (*rt->epfd != -1 || *rt->netpoll_inited)
		return -R_ENGINE;
	/* No SIGURG between the runtime's threads, and no descriptors for watching the cgroup's CPU limit. */
	rt->godebug->text = GODEBUG;
	rt->godebug->len = sizeof GODEBUG - 1;
	if ((r = tame_signals(rt->sigtable)) < 0 || (!trial && (r = give_poller(rt)) < 0))
		return r;
	rt->entry(1, (char **)s->boot, s->envp);
	r = trial ? smcr_go_probe() : smcr_go_main(s);
	note_faults(rt->sigtable);
	return r;
}

__attribute__((visibility("default"))) const struct spare smcr_spare = {
	.abi = SMCR_ABI, .size = sizeof(struct shim), .run = run};

/* ---- may it be started? ------------------------------------------------------------------------------------ */

/* The start of a small file, as a string; its length or -errno. */
static long slurp(const char *path, char *buf, size_t room)
{
	long fd = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC), n;

	if (fd < 0)
		return fd;
	n = sys(SYS_read, fd, buf, room - 1);
	sys(SYS_close, fd);
	buf[n < 0 ? 0 : n] = 0;
	return n;
}

static i64 number_after(const char *text, const char *key)
{
	const char *p = key ? strstr(text, key) : text;
	i64 n = 0;

	if (!p)
		return -1;
	for (p += key ? strlen(key) : 0; *p == ' ' || *p == '\t'; p++)
		;
	if (*p < '0' || *p > '9')
		return -1;
	for (; *p >= '0' && *p <= '9' && n < INT64_MAX / 10 - 10; p++)
		n = n * 10 + (*p - '0');
	return n;
}

/*
 * A filter on this process: 0 = none, 1 = doubt, 2 = yes. Containers start every process under a filter, which their first
 * process shows as well; that one is made for any program, so a trial may decide. One that this process has beyond that is not.
 */
static int filtered(void)
{
	char own[4096], first[4096];

	if (atomic_load(&S->life->sealed))
		return 2;
	if (slurp("/proc/self/status", own, sizeof own) <= 0)
		return 1;
	i64 mode = number_after(own, "\nSeccomp:"), n = number_after(own, "\nSeccomp_filters:");
	if (mode == 0)
		return 0;
	if (mode != 2 || n <= 0 || slurp("/proc/1/status", first, sizeof first) <= 0)
		return mode < 0 ? 1 : 2;
	return number_after(first, "\nSeccomp_filters:") == n ? 1 : 2;
}

/* Free places for threads in our cgroup (its own limit; an ancestor's is not looked at); -1 = no limit, or not to be known. */
static i64 cgroup_room(void)
{
	static const char *const leaf[] = {"/pids.max", "/pids.current"};
	const char *root = "/sys/fs/cgroup/pids", *key = ":pids:"; /* version 1 */
	char list[2048], path[1024], num[32];
	i64 n[2];

	if (slurp("/proc/self/cgroup", list, sizeof list) <= 0)
		return -1;
	char *dir = strstr(list, key);
	if (!dir) {
		root = "/sys/fs/cgroup", key = "0::";
		dir = strstr(list, key);
	}
	char *end = dir ? strchr(dir, '\n') : 0;
	if (!end || (size_t)(end - dir) + 64 > sizeof path)
		return -1;
	*end = 0;
	for (int i = 0; i < 2; i++) {
		stpcpy(stpcpy(stpcpy(path, root), dir + strlen(key)), leaf[i]);
		if (slurp(path, num, sizeof num) <= 0 || (n[i] = number_after(num, 0)) < 0)
			return -1;
	}
	return n[0] > n[1] ? n[0] - n[1] : 0;
}

static int limited(int what, u64 *cur)
{
	struct { u64 cur, max; } r = {RLIM_INFINITY, RLIM_INFINITY};

	sys(SYS_prlimit64, 0, what, 0, &r);
	*cur = r.cur;
	return r.cur != RLIM_INFINITY;
}

/* 0 = start; -reason = do not; +reason = a trial decides, and that is the reason if it fails. */
static int verdict(void)
{
	u64 cur;
	int f = filtered();

	if (f == 2)
		return -R_SECCOMP;
	if (limited(RLIMIT_AS, &cur) || limited(RLIMIT_DATA, &cur))
		return R_RLIMIT_AS;
	if (!fits(ROOM_FILE))
		return -R_MEMORY;
	struct sysinfo si;
	/* Threads of all users are more than this user's. `procs` is 16 bits wide: a limit beyond that is no concern. */
	if (limited(RLIMIT_NPROC, &cur) && cur < 65536 + ROOM_THREADS &&
	    (sys(SYS_sysinfo, &si) < 0 || cur < (u64)si.procs + ROOM_THREADS))
		return R_RLIMIT_NPROC;
	i64 room = cgroup_room();
	if (room >= 0 && room < ROOM_THREADS)
		return R_RLIMIT_NPROC;
	return f ? R_SECCOMP : 0;
}

/*
 * The trial: a child by raw clone (no atfork handlers; exit signal 0, so that no wait of the program's sees it) starts
 * the runtime and uses it. It has nothing of ours open and nowhere to complain.
 */
static void trial_child(const struct spare *next)
{
	static const struct { u64 cur, max; } none;

	sys(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	sys(SYS_prlimit64, 0, RLIMIT_CORE, &none, 0);
	sys(SYS_prctl, PR_SET_DUMPABLE, 0, 0, 0, 0);
	sys(SYS_close_range, 0, ~0u, 0);
	for (int i = 0; i < 3; i++)
		sys(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
	int r = next->run(S, 1);
	/* The host goes on allocating beside us; a runtime that then gets no memory ends it. */
	long room = sys(SYS_mmap, 0, ROOM_MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	sys(SYS_exit_group, r == 0 && (u64)room < -4095ul ? 0 : 1);
}

static int trial(const struct spare *next)
{
	int status = 0;
	long pid = sys(SYS_clone, 0, 0, 0, 0, 0);

	if (pid == 0)
		trial_child(next);
	if (pid < 0)
		return 0;
	for (int i = 0; i < TRIAL_PATIENCE_MS * 10; i++) {
		long r = sys(SYS_wait4, pid, &status, __WALL | WNOHANG, 0);

		if (r == pid)
			return status == 0;
		if (r < 0 && r != -EINTR)
			return 0; /* somebody else took its status */
		life_sleep(100000);
	}
	sys(SYS_kill, pid, SIGKILL);
	sys(SYS_wait4, pid, &status, __WALL, 0);
	return 0;
}

/* ---- the engine's descriptors ---------------------------------------------------------------------------------- */

static int hidden(long fd)
{
	return fd < 0 ? (int)fd : fd_hide((int)fd);
}

static int open_fds(void)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	long probe[ROOM_FDS], low = 0;
	int n = 0;

	S->wakefd = hidden(sys(SYS_eventfd2, 0, EFD_CLOEXEC | EFD_NONBLOCK));
	S->epfd = hidden(sys(SYS_epoll_create1, EPOLL_CLOEXEC));
	S->dgram = hidden(sys(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (S->wakefd < 0 || S->epfd < 0 || S->dgram < 0)
		return -R_NO_FD;
	while (n < ROOM_FDS && (low = sys(SYS_fcntl, S->wakefd, F_DUPFD_CLOEXEC, 0)) >= 0)
		probe[n++] = low;
	for (int i = 0; i < n; i++)
		sys(SYS_close, probe[i]);
	if (low < 0)
		return -R_NO_FD;
	if (sys(SYS_getrandom, S->gid, sizeof S->gid, 0) != sizeof S->gid)
		return -R_ENGINE;
	memcpy(sa.sun_path + 1, S->gid, sizeof S->gid); /* sun_path[0] = 0: abstract */
	if (sys(SYS_bind, S->dgram, &sa, offsetof(struct sockaddr_un, sun_path) + 1 + sizeof S->gid) < 0)
		return -R_ENGINE;
	return 0;
}

static void close_fds(void)
{
	int *fd[] = {&S->wakefd, &S->epfd, &S->dgram, &S->life->rt_fds[0], &S->life->rt_fds[1]};

	for (unsigned i = 0; i < sizeof fd / sizeof *fd; i++)
		life_close(fd[i]);
	memset(S->gid, 0, sizeof S->gid);
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

/* A detached thread with a stack of its own, as the program's may be tiny, cancelled, or on a signal stack. */
static int thread(void *(*fn)(void *), void *arg)
{
	pthread_attr_t a;
	pthread_t t;
	int r = pthread_attr_init(&a);

	if (r)
		return r;
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&a, THREAD_STACK);
	r = pthread_create(&t, &a, fn, arg);
	pthread_attr_destroy(&a);
	return r;
}

static _Atomic u32 started; /* 0 = the starter runs, 1 = the engine runs, 2 + reason = it does not */

static void *starter(void *next)
{
	int r = ((const struct spare *)next)->run(S, 0);

	atomic_store(&started, r ? 2 + (u32)-r : 1);
	life_wake(&started);
	return 0;
}

/* In the state ENG_STARTING, signals blocked. 0 or -reason. */
static int start(void)
{
	const struct spare *next = atomic_load(&S->life->next);
	int r = next ? verdict() : -R_ENGINE;

	if (r > 0 && next && !trial(next) && !trial(next)) /* twice: a lock of malloc's may just have been held */
		r = -r;
	if (r < 0)
		return r;
	life_watch_forks();
	if (!S->life->handlers && life_handlers() != 0)
		return -R_MEMORY;
	S->life->handlers = 1;
	if ((r = open_fds()) < 0) {
		close_fds();
		return r;
	}
	atomic_store(&started, 0);
	atomic_store(&S->life->next, 0); /* a runtime starts once; what it loads itself as the next one comes behind this */
	if (thread(starter, (void *)next)) {
		atomic_store(&S->life->next, next);
		close_fds();
		return -R_RLIMIT_NPROC;
	}
	for (int i = 0; i < START_PATIENCE_MS / 10 && !atomic_load(&started); i++)
		life_wait(&started, 0, 10000000);
	u32 got = atomic_load(&started);
	if (got >= 2)
		close_fds();
	return got == 1 ? 0 : got ? -(int)(got - 2) : -R_ENGINE;
}

int engine_start(void)
{
	u32 st = atomic_load(&S->engine);
	int e = errno;

	if (likely(st == ENG_READY) && !life_orphan())
		return 0;
	u64 mask = block_signals();
	int r = -R_ENGINE;
	if (!life_mine())
		goto out; /* a vfork child */
	for (int i = 0; i < START_PATIENCE_MS / 10; i++) {
		st = ENG_COLD;
		if (atomic_compare_exchange_strong(&S->engine, &st, ENG_STARTING)) {
			atomic_store(&S->life->due, 1); /* first: who loads it ends this, perhaps before we are back */
			r = start();
			if (r)
				atomic_store(&S->life->due, 0);
			atomic_store(&S->engine_reason, (u32)-r);
			atomic_store(&S->engine, r ? ENG_DEAD : ENG_READY);
			life_wake(&S->engine);
			if (S->proc) {
				atomic_store(&S->proc->engine_reason, (u32)-r);
				atomic_store(&S->proc->engine, r ? ENG_DEAD : ENG_READY);
			}
			goto out;
		}
		if (st != ENG_STARTING) {
			r = st == ENG_READY ? 0 : -(int)atomic_load(&S->engine_reason);
			goto out;
		}
		life_wait(&S->engine, ENG_STARTING, 10000000);
	}
out:
	restore_signals(mask);
	errno = e;
	return r;
}

/* ---- the spare ------------------------------------------------------------------------------------------------------ */

/* The path of the file that `addr` is mapped from, as the kernel knows it: LD_PRELOAD's may be relative. */
static int mapped_path(u64 addr, char *path, size_t room)
{
	char buf[4096];
	size_t have = 0;
	long n, fd = sys(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -ENOENT;
	while ((n = sys(SYS_read, fd, buf + have, sizeof buf - 1 - have)) > 0) {
		char *line = buf, *nl;

		buf[have += (size_t)n] = 0;
		for (; (nl = strchr(line, '\n')); line = nl + 1) {
			u64 bound[2] = {0};
			char *p = line;

			*nl = 0;
			for (int i = 0; i < 2; i++, p++)
				for (; (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'f'); p++)
					bound[i] = bound[i] << 4 | (u64)(*p <= '9' ? *p - '0' : *p - 'a' + 10);
			char *slash = strchr(p, '/');
			if (addr < bound[0] || addr >= bound[1] || !slash || (size_t)(nl - slash) >= room)
				continue;
			memcpy(path, slash, (size_t)(nl - slash) + 1);
			sys(SYS_close, fd);
			return 0;
		}
		have -= (size_t)(line - buf);
		memmove(buf, line, have + 1);
	}
	sys(SYS_close, fd);
	return -ENOENT;
}

/* Copies the library's file into a memfd and marks it as a copy. The file must be the one that is mapped here. */
static int image(int file)
{
	static const u32 copy = ROLE_COPY;
	const char *base = (const char *)&__ehdr_start;
	const Elf64_Phdr *ph = (const void *)(base + __ehdr_start.e_phoff), *head = 0, *data = 0;
	u64 role = (u64)((const char *)&start_role - base), at = 0;

	for (int i = 0; i < __ehdr_start.e_phnum; i++) {
		if (ph[i].p_type != PT_LOAD)
			continue;
		if (ph[i].p_offset == 0)
			head = &ph[i];
		if (role >= ph[i].p_vaddr && role + sizeof copy <= ph[i].p_vaddr + ph[i].p_filesz)
			data = &ph[i];
	}
	i64 left = sys(SYS_lseek, file, 0, SEEK_END);
	if (!head || !data || left < (i64)head->p_filesz)
		return -ENOEXEC;
	if (!fits((u64)left)) /* lowered since the engine started */
		return -EFBIG;
	u64 len = head->p_filesz < START_READ ? head->p_filesz : START_READ;
	char *map = (char *)sys(SYS_mmap, 0, len, PROT_READ, MAP_PRIVATE, file, 0);
	if ((u64)map >= -4095ul)
		return -ENOMEM;
	/* Headers, build id, symbols: read-only here and in the file, so equal unless the file was replaced since. */
	int same = !memcmp(map, base, len);
	sys(SYS_munmap, map, len);
	int fd = same ? (int)sys(SYS_memfd_create, "libsmcr", MFD_CLOEXEC) : -ESTALE;
	if (fd < 0)
		return fd;
	for (long n; left > 0 && (n = sys(SYS_sendfile, fd, file, &at, left)) > 0;)
		left -= n;
	if (left || sys(SYS_pwrite64, fd, &copy, sizeof copy, role - data->p_vaddr + data->p_offset) != sizeof copy)
		return -EIO;
	return fd;
}

static char *put_number(char *p, u32 n)
{
	u32 tens = 1;

	while (n / tens >= 10)
		tens *= 10;
	for (; tens; tens /= 10)
		*p++ = (char)('0' + n / tens % 10);
	return p;
}

/*
 * In a thread with descriptors of its own, so that the program sees none come and go: image and loader take the lowest numbers.
 * The loader knows an object again by its name, hence the thread's id in it: forked generations use the same fd number.
 */
static const struct spare *make(void)
{
	char path[4096], *p;

	if (sys(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE) < 0 && sys(SYS_unshare, CLONE_FILES) < 0)
		return 0;
	/* S->real lies in the program's own copy, which is mapped from the library's file */
	if (mapped_path((u64)S->real, path, sizeof path) < 0)
		return 0;
	int file = (int)sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
	int fd = file < 0 ? file : image(file);
	if (fd < 0)
		return 0;
	p = put_number(stpcpy(path, "/proc/"), (u32)sys(SYS_gettid));
	*put_number(stpcpy(p, "/fd/"), (u32)fd) = 0;

	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct spare *sp = h ? dlsym(h, "smcr_spare") : 0;
	return sp && sp != &smcr_spare && sp->abi == SMCR_ABI && sp->size == sizeof(struct shim) ? sp : 0;
}

/* Not while a fork is under way: its child would find the loader's locks held. prepare() in life.c waits for us in turn. */
static void *spare_maker(void *unused)
{
	struct life *l = S->life;

	for (int i = 0; i < 1000; i++) {
		atomic_store(&l->making, 1);
		u32 forks = atomic_load(&l->forks);
		if (!forks) {
			atomic_store(&l->next, make());
			i = 1000;
		}
		atomic_store(&l->making, 0);
		life_wake(&l->making);
		if (forks)
			life_wait(&l->forks, forks, 10000000);
	}
	atomic_store(&l->due, 0);
	life_wake(&l->due);
	return unused;
}

void life_make_spare(void)
{
	u64 mask = block_signals();

	if (atomic_load(&S->life->next) || thread(spare_maker, 0) != 0) { /* no thread, no spare: forked children stay on TCP */
		atomic_store(&S->life->due, 0);
		life_wake(&S->life->due);
	}
	restore_signals(mask);
}

/*
 * The life of a process as its program leads it: load, fork, vfork, spawn, exec, exit, prctl, syscall(2). Starting the engine
 * is start.c's. In a forked child the engine is COLD again; `life.next` says which copy of the library may be started then.
 */
#include <errno.h>
#include <gnu/libc-version.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "life.h"
#include "real.h"
#include "../hooks/sys.h"

static struct shim shim0 __attribute__((section(".bss.shim"), aligned(64))); /* pages that nobody touches cost nothing */
struct shim *smcr_shim = &shim0; /* set by relocation: right before the first instruction of ours runs */
void *const __dso_handle HIDDEN = 0; /* of the start files, which this library, never unloaded, is linked without */

static struct life life0 = {.next = &smcr_spare, .rt_fds = {-1, -1}};

/* How long fork waits for another thread's start of the engine, or loading of a spare. */
#define FORK_PATIENCE_MS 100

#define HELD "SMCR_HELD=" /* map_held */

/* ---- load ------------------------------------------------------------------------------------------- */

BOOT static u32 word_of(const char *val, const char *const *words, u32 n)
{
	for (u32 i = 0; i < n; i++)
		if (!strcmp(val, words[i]))
			return i;
	return 0; /* bad value: the default, which comes first */
}

BOOT static u32 bytes_of(const char *val)
{
	u64 n = 0;

	for (; *val >= '0' && *val <= '9' && n <= UINT32_MAX; val++)
		n = n * 10 + (u64)(*val - '0');
	if (*val == 'k' || *val == 'K')
		n <<= 10, val++;
	else if (*val == 'm' || *val == 'M')
		n <<= 20, val++;
	return *val || n > UINT32_MAX ? 0 : (u32)n;
}

#define ALL_SOURCES (1u << SOURCE_KERNEL | 1u << SOURCE_REGISTRY | 1u << SOURCE_RULES)
/* A list of words with commas between them. */
BOOT static u32 sources_of(const char *val)
{
	static const char *const words[] = {[SOURCE_KERNEL] = "kernel", [SOURCE_REGISTRY] = "registry", [SOURCE_RULES] = "rules"};
	u32 found = 0, i;

	for (size_t n; *val; val += n + (val[n] == ',')) {
		n = strcspn(val, ",");
		for (i = SOURCE_KERNEL; i <= SOURCE_RULES && (strlen(words[i]) != n || memcmp(words[i], val, n)); i++)
			;
		if (i > SOURCE_RULES)
			return ALL_SOURCES;
		found |= 1u << i;
	}
	return found ? found : ALL_SOURCES;
}

BOOT static void read_environment(char **envp)
{
	static const char *const modes[] = {[MODE_AUTO] = "auto", [MODE_OFF] = "off", [MODE_REQUIRE] = "require"};
	static const char *const profiles[] = {
		[PROFILE_BALANCED] = "balanced", [PROFILE_SAFE] = "safe", [PROFILE_LATENCY] = "latency"};

	S->nudge = S->adapt = 1;
	S->discovery = ALL_SOURCES;
	for (; envp && *envp; envp++) {
		const char *e = *envp, *val;

		if (strncmp(e, "SMCR_", 5) || !(val = strchr(e, '=')))
			continue;
		u64 len = (u64)(val++ - e) - 5;
#define IS(name) (len == sizeof name - 1 && !memcmp(e + 5, name, sizeof name - 1))
		if (IS("MODE"))
			S->mode = word_of(val, modes, 3);
		else if (IS("PROFILE"))
			S->profile = word_of(val, profiles, 3);
		else if (IS("NUDGE"))
			S->nudge = strcmp(val, "0") != 0;
		else if (IS("ADAPT"))
			S->adapt = strcmp(val, "0") != 0;
		else if (IS("DISCOVERY"))
			S->discovery = sources_of(val);
		else if (IS("RMBE"))
			S->rmbe = bytes_of(val);
		else if (IS("REPORT_DIR"))
			S->life->report = *val != 0;
		else if (IS("HELD"))
			S->life->held = val;
#undef IS
	}
	if (getauxval(AT_SECURE)) /* set-uid and the like: whoever set the environment is not to be trusted */
		S->mode = MODE_OFF;
}

/* The state's first values. May run before any constructor, in a hooked call that another library makes; twice does no harm. */
BOOT void life_init(void)
{
	S->abi = SMCR_ABI;
	S->pid = (u32)sys(SYS_getpid);
	S->wakefd = S->epfd = S->dgram = S->diag = -1;
	S->life = &life0;
	__atomic_store_n(&S->real, &smcr_real, __ATOMIC_RELEASE); /* last: life_early looks at it */
}

/*
 * What a runtime of ours is started with: the program's name, the SMCR_ variables and the auxiliary vector, in our own
 * memory. The program may have overwritten its environment by then, and its GOMAXPROCS or GODEBUG are not meant for us.
 * 0 = a variable did not fit.
 */
BOOT static int keep_boot(char **argv, char **envp)
{
	const u32 words = sizeof S->boot / sizeof *S->boot;
	u64 at = 0, *w = S->boot;
	u32 n = 0;
	int all = 1;

	for (char **e = argv && *argv ? argv : envp; e && *e; e++) {
		u64 len = strlen(*e) + 1;
		if (n && strncmp(*e, "SMCR_", 5))
			continue;
		if (n >= words / 2 || at + len > sizeof S->boot_text) {
			all = all && !n;
		} else {
			w[n++] = (u64)memcpy(S->boot_text + at, *e, len);
			at += len;
		}
		if (n == 1) {
			w[n++] = 0;
			S->envp = (char **)(w + n);
			e = envp ? envp - 1 : 0;
			if (!e)
				break;
		}
	}
	w[n++] = 0;
	if (envp) {
		while (*envp)
			envp++;
		for (u64 *aux = (u64 *)(envp + 1); *aux && n + 4 <= words; aux += 2) {
			w[n++] = aux[0];
			w[n++] = aux[1];
		}
	}
	w[n++] = 0; /* AT_NULL */
	w[n] = 0;
	return all;
}

/* The only thing of ours that runs when a program is loaded. */
__attribute__((constructor)) BOOT static void boot(int argc, char **argv, char **envp)
{
	if (start_role != ROLE_FIRST)
		return; /* a copy works on the first one's state: spare.run tells it where that is */
	life_early();
	real_find();
	(void)argc;
	if (!gnu_get_libc_version) { /* another libc, whose structures may differ, and which passes no arguments to constructors */
		S->mode = MODE_OFF;
		return;
	}
	int all = keep_boot(argv, envp);
	read_environment(S->envp);
	if (!all)
		S->mode = MODE_OFF; /* the one that did not fit may have said so */
	if (S->mode != MODE_OFF)
		real_bare();
	if (S->life->report && S->mode != MODE_OFF)
		reg_ready(); /* without a run directory there is no report; nothing else depends on it here */
	if (S->life->held && S->mode != MODE_OFF) {
		for (char **e = envp, **to = envp; e && (*to = *e); e++) /* not for the program to see */
			to += strncmp(*e, HELD, sizeof HELD - 1) != 0;
		map_lost(S->life->held);
	}
}

/* ---- whose state is it? -------------------------------------------------------------------------------- */

void life_wait(_Atomic u32 *word, u32 while_is, i64 ns)
{
	struct { i64 s, ns; } t = {ns / 1000000000, ns % 1000000000};

	sys(SYS_futex, word, FUTEX_WAIT_PRIVATE, while_is, &t, 0, 0);
}

void life_sleep(i64 ns)
{
	struct { i64 s, ns; } t = {0, ns};

	sys(SYS_nanosleep, &t, 0);
}

void life_wake(_Atomic u32 *word)
{
	sys(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, 0, 0, 0);
}

void life_watch_forks(void)
{
	if (atomic_load(&S->life->wipe))
		return;
	u32 *w = (u32 *)sys(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if ((u64)w >= -4095ul)
		return;
	*w = 1;
	u32 *none = 0;
	if (sys(SYS_madvise, w, 4096, MADV_WIPEONFORK) < 0 || !atomic_compare_exchange_strong(&S->life->wipe, &none, w))
		sys(SYS_munmap, w, 4096); /* an old kernel, or another thread was quicker */
}

int life_orphan(void)
{
	u32 *w = S->life ? atomic_load_explicit(&S->life->wipe, memory_order_relaxed) : 0;

	return w && !*(volatile u32 *)w;
}

void life_close(int *fd)
{
	if (*fd >= 0)
		fd_unhide(*fd);
	*fd = -1;
}

/* This process is a forked child: what belongs to the parent's engine goes. Runs once per child, from whoever notices first. */
static void become_child(void)
{
	struct life *l = S->life;
	u32 *w = atomic_load(&l->wipe);

	S->pid = (u32)sys(SYS_getpid);
	if (w)
		*w = 1;
	atomic_store(&l->forks, 0);
	atomic_store(&l->making, 0);
	atomic_store(&l->due, 0);
	atomic_store(&S->engine_asleep, 0);
	life_close(&S->wakefd);
	life_close(&S->epfd);
	life_close(&S->dgram);
	life_close(&S->diag); /* answers to two processes would mix on it */
	life_close(&l->rt_fds[0]);
	life_close(&l->rt_fds[1]);
	for (int i = 0; i < 3; i++) {
		struct ksigaction a;
		static const struct ksigaction none;
		if (l->fault[i] && !sys(SYS_rt_sigaction, life_faults[i], 0, &a, 8) && a.handler == l->fault[i])
			sys(SYS_rt_sigaction, life_faults[i], &none, 0, 8); /* the handler's runtime stayed with the parent */
		l->fault[i] = 0;
	}
	memset(S->gid, 0, sizeof S->gid);
	atomic_store(&S->qhead, 0);
	atomic_store(&S->qfree, 0);
	atomic_store(&S->qused, 0);
	S->qmine = 0;
	/* What stood in the way of the parent's start may not stand in the child's: it is asked again when it matters. */
	atomic_store(&S->engine_reason, R_NONE);
	atomic_store(&S->engine, ENG_COLD);
	lane_forked();
	if (S->proc || S->reg) {
		map_forked();
		reg_forked();
		epoll_forked();
	}
	atomic_store(&S->early_lk.w, 0);
	hook_forked();
	bell_forked();
	if (l->report && S->mode != MODE_OFF)
		reg_ready();
}

int life_mine(void)
{
	u32 pid = (u32)sys(SYS_getpid);

	if (!S->real)
		life_init();
	if (likely(pid == S->pid))
		return 1;
	u32 *w = atomic_load(&S->life->wipe);
	if (w && *(volatile u32 *)w)
		return 0; /* not wiped, so not forked: the parent's own memory */
	become_child();
	return 1;
}

static void settle(void)
{
	if (S->proc && life_mine())
		settle_all();
}

/* An image beside us may get what was accepted and nobody has used yet. */
static void settle_beside(enum heir heir)
{
	if (!S->proc || !life_mine())
		return;
	settle_all();
	reg_heirs(heir);
}

/* Before a fork: nothing half-negotiated goes over, and the child's holds are counted before it exists. */
static int fork_begin(void)
{
	if (S->forking && (atomic_load(&S->map_lk.w) & 0x7fffffff) == my_tid())
		return 0; /* the handlers and h_fork both come here; and who has that lock may not wait for another */
	settle();
	atomic_fetch_add(&S->forks, 1);
	if (!S->proc)
		return 0;
	map_prefork();
	return 1;
}

static void fork_end(int began, int failed)
{
	S->forked = 1;
	if (began)
		map_postfork(failed);
}

/* ---- fork ------------------------------------------------------------------------------------------------ */

/*
 * pthread_atfork handlers, registered when the engine starts: for daemon, forkpty and all who fork inside libc. They come
 * late in the list, so `prepare` runs before an allocator's, which would hold its locks while we wait.
 */
static void prepare(void)
{
	S->life->counted = fork_begin() ? my_tid() : 0;
	for (int i = 0; i < FORK_PATIENCE_MS; i++) {
		if (atomic_load(&S->engine) == ENG_STARTING)
			life_wait(&S->engine, ENG_STARTING, 1000000);
		else if (atomic_load(&S->life->due)) /* a child without one stays on TCP */
			life_wait(&S->life->due, 1, 1000000);
		else
			break;
	}
	atomic_fetch_add(&S->life->forks, 1);
	for (int i = 0; i < FORK_PATIENCE_MS && atomic_load(&S->life->making); i++)
		life_wait(&S->life->making, 1, 1000000);
}

static void parent(void)
{
	if (S->life->counted == my_tid()) {
		S->life->counted = 0;
		fork_end(1, 0);
	}
	atomic_fetch_sub(&S->life->forks, 1);
	life_wake(&S->life->forks);
}

static void child(void)
{
	if (sys(SYS_getpid) != S->pid)
		become_child();
}

extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);
int life_handlers(void)
{
	return __register_atfork(prepare, parent, child, 0); /* pthread_atfork refers to it strongly */
}

pid_t h_fork(void)
{
	int began = fork_begin();
	pid_t p = smcr_real.fork();
	if (p == 0)
		child();
	else
		fork_end(began, p < 0);
	return p;
}

pid_t h__Fork(void)
{
	int began = fork_begin();
	pid_t p = smcr_real._Fork();
	if (p == 0)
		child();
	else
		fork_end(began, p < 0);
	return p;
}

int h_daemon(int nochdir, int noclose)
{
	settle();
	int r = smcr_real.daemon(nochdir, noclose);
	child();
	return r;
}

int h_forkpty(int *fd, char *name, const struct termios *t, const struct winsize *w)
{
	int began = fork_begin();
	int p = smcr_real.forkpty(fd, name, t, w);
	if (p == 0)
		child();
	else
		fork_end(began, p < 0);
	return p;
}

/* enter.S: before libc's vfork. */
void life_before_vfork(void)
{
	life_early();
	settle_beside(HEIR_CHOOSES); /* what its child gives to the next image by dup2, nobody learns */
	life_watch_forks(); /* so that life_mine can tell the child from a forked one */
}

/* enter.S: before syscall(SYS_clone, SYS_fork, SYS_vfork, SYS_clone3). A thread is no concern of ours. */
void life_before_clone(long nr, const u64 *arg)
{
	u64 flags = nr == SYS_clone ? (u64)arg : nr == SYS_clone3 && !wild(arg, 8) ? *arg : nr == SYS_vfork ? CLONE_VM : 0;

	if (!(flags & CLONE_THREAD))
		life_before_vfork();
}

/* ---- what the next image is told ------------------------------------------------------------------------------ */

extern char **environ;

/* The variables for the next image: `with`, on the caller's stack, where something is to be told; else envp. */
struct held {
	char text[sizeof HELD + 128 * 17]; /* more connections than that in a process that execs are not told of */
};

static u32 held(struct held *h)
{
	if (!S->reg || S->mode == MODE_OFF)
		return 0;
	memcpy(h->text, HELD, sizeof HELD);
	return map_held(h->text + sizeof HELD - 1, sizeof h->text - sizeof HELD);
}

static u32 env_count(char *const *envp)
{
	u32 n = 0;

	while (envp && envp[n])
		n++;
	return n;
}

static char **env_with(char **with, char *const *envp, struct held *h)
{
	u32 n = 0;

	for (; envp && *envp; envp++)
		if (strncmp(*envp, HELD, sizeof HELD - 1))
			with[n++] = *envp;
	with[n++] = h->text;
	with[n] = 0;
	return with;
}

#define WITH_HELD(envp, call, without)                                \
	do {                                                          \
		struct held h_;                                       \
		if (likely(!held(&h_)))                               \
			return without;                               \
		char *with_[env_count(envp) + 2], **env = env_with(with_, envp, &h_); \
		return call;                                          \
	} while (0)

/* Another image starts beside us. */
static void spawning(enum heir heir)
{
	settle_beside(heir);
	hook_exec();
}

int h_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *fa, const posix_spawnattr_t *a,
		  char *const argv[], char *const envp[])
{
	spawning(fa ? HEIR_CHOOSES : HEIR_BESIDE);
	WITH_HELD(envp, smcr_real.posix_spawn(pid, path, fa, a, argv, env), smcr_real.posix_spawn(pid, path, fa, a, argv, envp));
}

int h_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *fa, const posix_spawnattr_t *a,
		   char *const argv[], char *const envp[])
{
	spawning(fa ? HEIR_CHOOSES : HEIR_BESIDE);
	WITH_HELD(envp, smcr_real.posix_spawnp(pid, file, fa, a, argv, env), smcr_real.posix_spawnp(pid, file, fa, a, argv, envp));
}

int h_system(const char *cmd)
{
	spawning(HEIR_BESIDE);
	return smcr_real.system(cmd);
}

FILE *h_popen(const char *cmd, const char *mode)
{
	spawning(HEIR_BESIDE);
	return smcr_real.popen(cmd, mode);
}

/* ---- exec and exit ------------------------------------------------------------------------------------------- */

/* The next image may be a plain program: it must not be taken for one of ours. */
static void leave_image(void)
{
	settle();
	hook_exec();
	if (!S->reg || !life_mine())
		return;
	hook_leave();
	reg_heirs(HEIR_EXEC); /* a forked child, too, which has no page of its own */
	if (S->proc)
		reg_exec();
	map_leave(0);
}

/* exec came back. */
static int stay(int r)
{
	int e = errno;

	if (S->reg && life_mine())
		map_stay();
	errno = e;
	return r;
}

int h_execve(const char *path, char *const argv[], char *const envp[])
{
	leave_image();
	WITH_HELD(envp, stay(smcr_real.execve(path, argv, env)), stay(smcr_real.execve(path, argv, envp)));
}

int h_execv(const char *path, char *const argv[])
{
	leave_image();
	WITH_HELD(environ, stay(smcr_real.execve(path, argv, env)), stay(smcr_real.execv(path, argv)));
}

int h_execvp(const char *file, char *const argv[])
{
	leave_image();
	WITH_HELD(environ, stay(smcr_real.execvpe(file, argv, env)), stay(smcr_real.execvp(file, argv)));
}

int h_execvpe(const char *file, char *const argv[], char *const envp[])
{
	leave_image();
	WITH_HELD(envp, stay(smcr_real.execvpe(file, argv, env)), stay(smcr_real.execvpe(file, argv, envp)));
}

int h_fexecve(int fd, char *const argv[], char *const envp[])
{
	leave_image();
	WITH_HELD(envp, stay(smcr_real.fexecve(fd, argv, env)), stay(smcr_real.fexecve(fd, argv, envp)));
}

int h_execveat(int fd, const char *path, char *const argv[], char *const envp[], int flags)
{
	leave_image();
	WITH_HELD(envp, stay(smcr_real.execveat(fd, path, argv, env, flags)), stay(smcr_real.execveat(fd, path, argv, envp, flags)));
}

BOOT static void gone(void)
{
	settle();
	if (!S->reg || !life_mine())
		return;
	abandon_all();
	map_leave(1);
	if (S->proc)
		reg_exit();
}

void h__exit(int status)
{
	gone();
	smcr_real._exit(status);
}

void h_quick_exit(int status)
{
	gone();
	smcr_real.quick_exit(status);
}

/* Return from main and exit(): our destructor, behind the program's own handlers. */
__attribute__((destructor)) BOOT static void leave(void)
{
	if (start_role == ROLE_FIRST && S->real)
		gone();
}

/* ---- prctl and syscall(2) ------------------------------------------------------------------------------------- */

/* Behind a filter nothing is started: the runtime's calls might be answered by SIGSYS. Told before the filter holds. */
static void seal(int on)
{
	if (life_mine())
		atomic_store(&S->life->sealed, (u32)on), atomic_store(&S->sealed, (u32)on);
}

int h_prctl(int op, long a, long b, long c, long d)
{
	int seals = op == PR_SET_SECCOMP, was = (int)atomic_load(&S->life->sealed);

	if (seals)
		seal(1);
	int r = smcr_real.prctl(op, a, b, c, d);
	if (seals && r < 0)
		seal(was);
	return r;
}

static int ours_in_poll(const struct pollfd *v, u64 n)
{
	if (!S->fd_top || wild(v, 0))
		return 0;
	for (u64 i = 0; i < n && i < FD_MAX; i++)
		if (!pass(v[i].fd))
			return 1;
	return 0;
}

static int ours_in_sets(int n, const fd_set *r, const fd_set *w, const fd_set *e)
{
	const fd_set *set[] = {r, w, e};

	if (!S->fd_top)
		return 0;
	for (int k = 0; k < 3; k++)
		for (int i = 0; !wild(set[k], 0) && i < n && i < FD_SETSIZE; i++)
			if (FD_ISSET(i, set[k]) && !pass(i))
				return 1;
	return 0;
}

/*
 * syscall(2), except for what clones (enter.S). What concerns an fd of ours, or makes or ends one, goes the way of the libc
 * call of that name; the rest to the kernel with all its arguments, as it came.
 */
long h_syscall(long nr, long a, long b, long c, long d, long e, long f)
{
	int fd = (int)a, was;
	const struct { const sigset_t *set; size_t len; } *mask = (void *)f; /* pselect6 */

	life_early();
	switch (nr) {
	case SYS_socket: return socket(fd, (int)b, (int)c);
	case SYS_connect: return connect(fd, (void *)b, (socklen_t)c);
	case SYS_listen: return listen(fd, (int)b);
	case SYS_accept: return accept(fd, (void *)b, (void *)c);
	case SYS_accept4: return accept4(fd, (void *)b, (void *)c, (int)d);
	case SYS_close: return close(fd);
	case SYS_dup: return dup(fd);
	case SYS_dup2: return dup2(fd, (int)b);
	case SYS_dup3: return dup3(fd, (int)b, (int)c);
	case SYS_close_range: return close_range((unsigned)a, (unsigned)b, (int)c);
	case SYS_fcntl: return fcntl(fd, (int)b, c);
	case SYS_epoll_create: return epoll_create(fd);
	case SYS_epoll_create1: return epoll_create1(fd);

	case SYS_execve:
	case SYS_execveat:
		leave_image();
		break;
	case SYS_exit_group:
		settle();
		break;
	case SYS_seccomp:
		was = (int)atomic_load(&S->life->sealed);
		if (a != SECCOMP_SET_MODE_STRICT && a != SECCOMP_SET_MODE_FILTER)
			break;
		seal(1);
		long r = smcr_real.syscall(nr, a, b, c, d, e, f);
		if (r < 0)
			seal(was);
		return r;
	case SYS_prctl: return h_prctl(fd, b, c, d, e);

	case SYS_sendfile:
		if (pass(fd) && pass((int)b))
			break;
		return sendfile(fd, (int)b, (void *)c, (size_t)d);
	case SYS_splice:
		if (pass(fd) && pass((int)c))
			break;
		return splice(fd, (void *)b, (int)c, (void *)d, (size_t)e, (unsigned)f);
	case SYS_epoll_ctl:
		if (pass(fd) && pass((int)c))
			break;
		return epoll_ctl(fd, (int)b, (int)c, (void *)d);
	case SYS_poll:
		if (!ours_in_poll((void *)a, (u64)b))
			break;
		return poll((void *)a, (nfds_t)b, (int)c);
	case SYS_ppoll:
		if (!ours_in_poll((void *)a, (u64)b))
			break;
		return ppoll((void *)a, (nfds_t)b, (void *)c, (void *)d);
	case SYS_select:
		if (!ours_in_sets(fd, (void *)b, (void *)c, (void *)d))
			break;
		return select(fd, (void *)b, (void *)c, (void *)d, (void *)e);
	case SYS_pselect6:
		if (!ours_in_sets(fd, (void *)b, (void *)c, (void *)d))
			break;
		return pselect(fd, (void *)b, (void *)c, (void *)d, (void *)e, wild(mask, sizeof *mask) ? 0 : mask->set);

#define PER_FD(name, call)              \
	case name:                      \
		if (pass(fd))           \
			break;          \
		return call;
	PER_FD(SYS_read, read(fd, (void *)b, (size_t)c))
	PER_FD(SYS_readv, readv(fd, (void *)b, (int)c))
	PER_FD(SYS_write, write(fd, (void *)b, (size_t)c))
	PER_FD(SYS_writev, writev(fd, (void *)b, (int)c))
	PER_FD(SYS_recvfrom, recvfrom(fd, (void *)b, (size_t)c, (int)d, (void *)e, (void *)f))
	PER_FD(SYS_recvmsg, recvmsg(fd, (void *)b, (int)c))
	PER_FD(SYS_recvmmsg, recvmmsg(fd, (void *)b, (unsigned)c, (int)d, (void *)e))
	PER_FD(SYS_sendto, sendto(fd, (void *)b, (size_t)c, (int)d, (void *)e, (socklen_t)f))
	PER_FD(SYS_sendmsg, sendmsg(fd, (void *)b, (int)c))
	PER_FD(SYS_sendmmsg, sendmmsg(fd, (void *)b, (unsigned)c, (int)d))
	PER_FD(SYS_preadv2, preadv2(fd, (void *)b, (int)c, d, (int)f))
	PER_FD(SYS_pwritev2, pwritev2(fd, (void *)b, (int)c, d, (int)f))
	PER_FD(SYS_ioctl, ioctl(fd, (unsigned long)b, c))
	PER_FD(SYS_getsockopt, getsockopt(fd, (int)b, (int)c, (void *)d, (void *)e))
	PER_FD(SYS_setsockopt, setsockopt(fd, (int)b, (int)c, (void *)d, (socklen_t)e))
	PER_FD(SYS_shutdown, shutdown(fd, (int)b))
	PER_FD(SYS_epoll_wait, epoll_wait(fd, (void *)b, (int)c, (int)d))
	PER_FD(SYS_epoll_pwait, epoll_pwait(fd, (void *)b, (int)c, (int)d, (void *)e))
	PER_FD(SYS_epoll_pwait2, epoll_pwait2(fd, (void *)b, (int)c, (void *)d, (void *)e))
#undef PER_FD
	}
	return smcr_real.syscall(nr, a, b, c, d, e, f);
}

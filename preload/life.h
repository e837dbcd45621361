/* Between the files of preload/: what a process's life needs beyond shim.h. */
#ifndef SMCR_LIFE_H
#define SMCR_LIFE_H
#include "../hooks/shim.h"

#include <signal.h>

/*
 * One copy of the library that can be started. The program's copy exports one, and so does every copy that was loaded from
 * a memfd to serve a forked child (a Go runtime does not survive fork). `run` starts the copy's runtime on the shim.
 */
struct spare {
	u32 abi, size; /* SMCR_ABI, sizeof(struct shim): a copy must agree */
	int (*run)(struct shim *s, int trial); /* 0, or -reason; once per copy */
};
extern const struct spare smcr_spare; /* the one symbol that is exported beside libc's names */

struct life {
	_Atomic(const struct spare *) next; /* what engine_start may start; 0 = used up, no spare (yet) */
	_Atomic u32 forks;   /* forks under way */
	_Atomic u32 making;  /* a spare is being loaded */
	_Atomic u32 due;     /* the engine has started, and its spare is not there yet */
	u32 counted;	     /* the thread whose fork counted its child's holds in `prepare` */
	_Atomic u32 sealed;  /* the program installed a seccomp filter */
	_Atomic(u32 *) wipe; /* word in a page that a fork clears; 1 in the process that owns the state */
	int rt_fds[2];	     /* the runtime's epoll and eventfd; -1 */
	void *fault[3];      /* the runtime's handlers of life_faults; 0 = the program's own */
	u32 handlers;	     /* pthread_atfork was called */
	u32 report;	     /* SMCR_REPORT_DIR is set: every process is listed */
	const char *held;   /* SMCR_HELD */
};

/* The three that the runtime turns into panics, where the program has no handler for them. */
static const int life_faults[3] = {SIGSEGV, SIGBUS, SIGFPE};
struct ksigaction { /* the kernel's */
	void *handler;
	u64 flags;
	void *restorer;
	u64 mask;
};

void life_init(void) HIDDEN;
static inline void life_early(void) /* a hooked call may come before any constructor of ours */
{
	if (unlikely(!S->real))
		life_init();
}
int life_orphan(void) HIDDEN; /* 1: forked without notice, the state is the parent's. One load. */
void life_watch_forks(void) HIDDEN;
void life_wait(_Atomic u32 *word, u32 while_is, i64 ns) HIDDEN; /* bounded futex sleep */
void life_sleep(i64 ns) HIDDEN;
void life_wake(_Atomic u32 *word) HIDDEN;
void life_close(int *fd) HIDDEN; /* one of our hidden descriptors; sets it to -1 */
int life_handlers(void) HIDDEN;  /* pthread_atfork; 0 = registered */
void real_find(void) HIDDEN;
void real_find_entered(void) HIDDEN; /* called by enter.S, as the next two */
void life_before_vfork(void) HIDDEN;
void life_before_clone(long nr, const u64 *arg) HIDDEN;
long h_syscall(long nr, long a, long b, long c, long d, long e, long f) HIDDEN;
int h_prctl(int op, long a, long b, long c, long d) HIDDEN;

/* what boot hands over: boot/boot_amd64.s */
struct sigtab {
	i32 flags;
	const char *name;
	i64 len;
};
struct runtime {
	void (*entry)(int argc, char **argv, char **envp); /* what would stand in .init_array */
	struct sigtab *sigtable;
	i32 *epfd;
	u64 *eventfd;
	u32 *netpoll_inited;
	struct { const char *text; i64 len; } *godebug; /* the defaults of GODEBUG */
};
/* What every process runs, layout.ld puts together: a page fault costs more than all that is done there. */
#define BOOT __attribute__((section(".text.startup")))

extern u32 start_role HIDDEN;
#define ROLE_FIRST 0x534d4331u /* patched in the image of a copy: see image */
#define ROLE_COPY 0x534d4332u

#endif

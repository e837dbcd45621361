/* Syscalls of the library's own: never through libc names, never a cancellation point, -errno on failure. */
#ifndef SMCR_SYS_H
#define SMCR_SYS_H
#include <sys/syscall.h>

static inline long sys6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;
	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}
#define SYS_PICK(_1, _2, _3, _4, _5, _6, _7, N, ...) N
#define sys(...) SYS_PICK(__VA_ARGS__, sys6_, sys5_, sys4_, sys3_, sys2_, sys1_, sys0_)(__VA_ARGS__)
#define sys0_(n) sys6(n, 0, 0, 0, 0, 0, 0)
#define sys1_(n, a) sys6(n, (long)(a), 0, 0, 0, 0, 0)
#define sys2_(n, a, b) sys6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define sys3_(n, a, b, c) sys6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define sys4_(n, a, b, c, d) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)
#define sys6_(n, a, b, c, d, e, f) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define sys5_(n, a, b, c, d, e) sys6(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)

/* A vfork child borrows its parent's memory: it must not change what the parent knows. */
#define borrowed() ((u32)sys(SYS_getpid) != S->pid)

/* All signals wait; the mask to give back to unquiet. */
static inline unsigned long quiet(void)
{
	unsigned long all = ~0ul, old = 0;

	sys(SYS_rt_sigprocmask, 0 /* SIG_BLOCK */, &all, &old, sizeof old);
	return old;
}

static inline void unquiet(unsigned long old)
{
	sys(SYS_rt_sigprocmask, 2 /* SIG_SETMASK */, &old, 0, sizeof old);
}

/*
 * The kernel finds any bad address. What is looked at per message must not cost a system call: there we tell those that never are
 * a program's memory.
 */
static inline int wild(const void *p, unsigned long len)
{
	const unsigned long lowest = 4096, highest = 0x7ffffffff000;

	return (unsigned long)p < lowest || len > highest || (unsigned long)p > highest - len;
}

/* Elsewhere the kernel is asked, about the first and the last page: it reads the mask before it finds that -1 is nothing to do with it. */
static inline int unreadable(const void *p, unsigned long len)
{
	unsigned long first = (unsigned long)p & ~7ul, last = ((unsigned long)p + len - 1) & ~7ul;

	return wild(p, len) || sys(SYS_rt_sigprocmask, -1, first, 0, 8) == -14 /* EFAULT */ ||
	       (first >> 12 != last >> 12 && sys(SYS_rt_sigprocmask, -1, last, 0, 8) == -14);
}

/* May a file of ours become that long? Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, of which the program would die. */
static inline int fits(unsigned long len)
{
	unsigned long lim[2];

	return sys(SYS_prlimit64, 0, 1 /* RLIMIT_FSIZE */, 0, lim) < 0 || len <= lim[0];
}

#endif

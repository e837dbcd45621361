/*
 * The wrappers: how a libc call gets to us. No decision is made here beyond "is it ours?". Each ends in a tail call, so
 * libc's function is the cancellation point that it was, and no frame of ours is in the way of unwinding; or in the system
 * call, while nobody can cancel (smcr_bare).
 */
#include "real.h"

#include <alloca.h>
#include <errno.h>
#include <stdarg.h>

#include "life.h"
#include "../hooks/sys.h"

#define EXPORT __attribute__((visibility("default"), section(".wrap")))

static inline int alone(void)
{
	const char *word = smcr_bare.alone;

	if (likely(*word))
		return 1;
	if (unlikely(word != &smcr_bare.no))
		smcr_bare.alone = &smcr_bare.no; /* from now on without libc's page */
	return 0;
}

static inline long result(long r)
{
	if (likely((unsigned long)r <= -4096ul))
		return r;
	*(int *)((char *)__builtin_thread_pointer() + smcr_bare.errno_at) = (int)-r;
	return -1;
}

#define X(R, name, P, A, ours, ...)                                                          \
	EXPORT R name P                                                                      \
	{                                                                                    \
		if (ours)                                                                    \
			return h_##name A;                                                   \
		return alone() ? result(sys(__VA_ARGS__)) : smcr_real.name A;             \
	}
SMCR_BARE(X)
#undef X

#define X(R, name, P, A, ours)                                      \
	EXPORT R name P                                             \
	{                                                           \
		return (ours) ? h_##name A : smcr_real.name A;      \
	}
SMCR_LIBC(X)
#undef X

#define X(R, name, P, A)              \
	EXPORT R name P               \
	{                             \
		life_early();         \
		return h_##name A;    \
	}
SMCR_ALWAYS(X)
#undef X

#define X(name)                       \
	EXPORT void name(int status)  \
	{                             \
		life_early();         \
		h_##name(status);     \
	}
SMCR_EXIT(X)
#undef X

#define X(name, of) EXPORT extern __typeof__(of) name __attribute__((alias(#of), copy(of)));
SMCR_ALIAS(X)
#undef X

extern void __chk_fail(void) __attribute__((noreturn));
#define X(R, name, P, overflow, call)  \
	EXPORT R name P;               \
	EXPORT R name P                \
	{                              \
		if (overflow)          \
			__chk_fail();  \
		return call;           \
	}
SMCR_CHK(X)
#undef X

/* The word behind the named arguments. Reading one that the caller did not pass is harmless on this ABI; libc does it too. */
#define NEXT_WORD(after)                  \
	({                                \
		va_list ap;               \
		va_start(ap, after);      \
		long w = va_arg(ap, long); \
		va_end(ap);               \
		w;                        \
	})

EXPORT int fcntl(int fd, int cmd, ...)
{
	long arg = NEXT_WORD(cmd);

	life_early();
	return h_fcntl(fd, cmd, arg); /* always: F_DUPFD makes an fd */
}

EXPORT int ioctl(int fd, unsigned long req, ...)
{
	long arg = NEXT_WORD(req);

	return pass(fd) ? smcr_real.ioctl(fd, req, arg) : h_ioctl(fd, req, arg);
}

EXPORT int prctl(int op, ...)
{
	va_list ap;

	va_start(ap, op);
	long a = va_arg(ap, long), b = va_arg(ap, long), c = va_arg(ap, long), d = va_arg(ap, long);
	va_end(ap);
	life_early();
	return h_prctl(op, a, b, c, d);
}

/* The arguments of execl and its like as an array, on the stack: a child of vfork or a signal handler may be the caller. */
#define ARGV_OF(first, argv, ap)                                              \
	va_start(ap, first);                                                  \
	size_t argc = 1;                                                      \
	while (argc < ARGS_MAX && va_arg(ap, const char *))                   \
		argc++;                                                       \
	va_end(ap);                                                           \
	if (argc == ARGS_MAX) {                                               \
		errno = E2BIG;                                                \
		return -1;                                                    \
	}                                                                     \
	char **argv = alloca((argc + 1) * sizeof *argv);                      \
	va_start(ap, first);                                                  \
	argv[0] = (char *)first;                                              \
	for (size_t i = 1; i <= argc; i++)                                    \
		argv[i] = va_arg(ap, char *)
#define ARGS_MAX (1u << 18) /* the kernel's own bound on bytes is lower than what so many strings need */

EXPORT int execl(const char *path, const char *arg0, ...)
{
	va_list ap;

	ARGV_OF(arg0, argv, ap);
	va_end(ap);
	return execv(path, argv);
}

EXPORT int execlp(const char *file, const char *arg0, ...)
{
	va_list ap;

	ARGV_OF(arg0, argv, ap);
	va_end(ap);
	return execvp(file, argv);
}

EXPORT int execle(const char *path, const char *arg0, ...)
{
	va_list ap;

	ARGV_OF(arg0, argv, ap);
	char **envp = va_arg(ap, char **);
	va_end(ap);
	return execve(path, argv, envp);
}

EXPORT int dprintf(int fd, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int n = vdprintf(fd, fmt, ap);
	va_end(ap);
	return n;
}

EXPORT int __dprintf_chk(int fd, int flag, const char *fmt, ...);
EXPORT int __dprintf_chk(int fd, int flag, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	int n = __vdprintf_chk(fd, flag, fmt, ap);
	va_end(ap);
	return n;
}

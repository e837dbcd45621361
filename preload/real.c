/*
 * libc's own functions. Each pointer starts as a stub (set by relocation, so before any constructor of anybody) that looks
 * the name up, stores the result and goes on; real_find does the same for all at once when the library is initialised. So
 * the hot path is one load, no order of constructors matters, and two threads or a signal handler that race store the
 * same value. A stub looks up only its own name: dlsym allocates for a name that is missing, and an allocator that is just
 * starting may call back into us. RTLD_NEXT keeps interposers that stand behind us in the chain.
 */
#include "real.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <string.h>
#include <sys/single_threaded.h>

#include "life.h"

static long absent(void)
{
	errno = ENOSYS;
	return -1;
}

BOOT static void *look(const char *name)
{
	int e = errno;
	void *volatile p = dlsym(RTLD_NEXT, name); /* volatile: no tail call, dlsym looks at the caller's address */
	errno = e;
	return p ? p : (void *)absent;
}

struct bare smcr_bare = {.alone = &smcr_bare.no};
static int watched = 1; /* somebody behind us, or nobody knows */
#define X(...) +1
enum { BARE = SMCR_BARE(X) };
#undef X
_Static_assert(offsetof(struct real, sendmsg) == offsetof(struct real, read) + sizeof(void *) * (BARE - 1), "they are in a row");

#define FIND(name) __atomic_store_n((void **)&smcr_real.name, look(#name), __ATOMIC_RELAXED)

#define X(R, name, P, A, ...)              \
	static R stub_##name P             \
	{                                  \
		FIND(name);                \
		return smcr_real.name A;   \
	}
SMCR_FD(X) SMCR_ALWAYS(X)
#undef X
#define X(name)                               \
	__attribute__((noreturn)) static void stub_##name(int status) \
	{                                     \
		FIND(name);                   \
		smcr_real.name(status);       \
	}
SMCR_EXIT(X)
#undef X

/* Libc reads one register or so of a variadic call; passing more than the caller gave does no harm on this ABI. */
#define STUB_VARIADIC(R, name, P, last, A)   \
	static R stub_##name P               \
	{                                    \
		va_list ap;                  \
		va_start(ap, last);          \
		long a = va_arg(ap, long), b = va_arg(ap, long), c = va_arg(ap, long), d = va_arg(ap, long); \
		va_end(ap);                  \
		(void)b, (void)c, (void)d; /* prctl's */ \
		FIND(name);                  \
		return smcr_real.name A;     \
	}
STUB_VARIADIC(int, fcntl, (int fd, int cmd, ...), cmd, (fd, cmd, a))
STUB_VARIADIC(int, ioctl, (int fd, unsigned long req, ...), req, (fd, req, a))
STUB_VARIADIC(int, prctl, (int op, ...), op, (op, a, b, c, d))
long stub_syscall(long, ...) HIDDEN; /* enter.S */
pid_t stub_vfork(void) HIDDEN;

struct real smcr_real = {
#define X(R, name, ...) .name = stub_##name,
	SMCR_BODY(X) SMCR_FD(X) SMCR_ALWAYS(X)
#undef X
#define X(name) .name = stub_##name,
	SMCR_EXIT(X)
#undef X
};
_Static_assert(offsetof(struct real, syscall) == 0 && offsetof(struct real, vfork) == 8, "enter.S knows these");

/* enter.S: its two, when they are called before real_find. */
void real_find_entered(void)
{
	FIND(syscall);
	FIND(vfork);
}

BOOT void real_find(void)
{
	static const char names[] = /* in the order of struct real */
#define X(R, name, ...) #name "\0"
		SMCR_BODY(X) SMCR_FD(X) SMCR_ALWAYS(X)
#undef X
#define X(name) #name "\0"
		SMCR_EXIT(X)
#undef X
		;
	const struct link_map *behind = find_behind(names), *in, *libc = behind;
	void **to = (void **)&smcr_real, *p;

	watched = !find_next(&libc, "gnu_get_libc_version");
	in = libc;
	if (!watched)
		S->clock = (__typeof__(S->clock))find_next(&in, "clock_gettime");
	for (const char *name = names; *name; name += strlen(name) + 1, to++) {
		in = behind;
		p = find_next(&in, name);
		__atomic_store_n(to, p ? p : look(name), __ATOMIC_RELAXED);
		if (to >= (void **)&smcr_real.read && to < (void **)&smcr_real.read + BARE)
			watched |= !p || in != libc;
	}
}

BOOT void real_bare(void)
{
	if (watched || !&__libc_single_threaded)
		return;
	smcr_bare.errno_at = (char *)__errno_location() - (char *)__builtin_thread_pointer();
	smcr_bare.alone = &__libc_single_threaded;
}

int h_pthread_cancel(pthread_t t) /* the only thread may cancel itself, and get to know at its next call */
{
	smcr_bare.alone = &smcr_bare.no;
	return smcr_real.pthread_cancel(t);
}

/* A row that differs from libc's header by one type fails here. */
#define X(R, name, P, ...) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), R(*) P), #name " differs from libc's header");
SMCR_BODY(X) SMCR_FD(X) SMCR_ALWAYS(X)
#undef X
#define X(name) _Static_assert(__builtin_types_compatible_p(__typeof__(&name), __typeof__(&h_##name)), #name);
SMCR_EXIT(X)
#undef X
#define X(name, of) _Static_assert(__builtin_types_compatible_p(__typeof__(name), __typeof__(of)), #name);
X(fcntl64, fcntl) X(sendfile64, sendfile) X(preadv64v2, preadv2) X(pwritev64v2, pwritev2) X(_Exit, _exit)
#undef X

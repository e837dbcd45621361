/* libc's own functions, found by name; how they are found: real.c. */
#ifndef SMCR_REAL_H
#define SMCR_REAL_H
#include "../hooks/shim.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <pty.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef __USE_GNU
#error compile with -D_GNU_SOURCE: a libc header came before shim.h
#endif
struct link_map;
int __vdprintf_chk(int fd, int flag, const char *fmt, va_list ap); /* libc shows it to fortified programs only */

#include "symbols.h"

/* Every member has libc's type. Usable from the first instruction on: a member that was not looked up yet looks itself up. */
struct real {
#define X(R, name, ...) __typeof__(&name) name;
	SMCR_BODY(X) SMCR_FD(X) SMCR_ALWAYS(X)
#undef X
#define X(name) __typeof__(&name) name;
	SMCR_EXIT(X)
#undef X
};
extern struct real smcr_real HIDDEN; /* what S->real points to */

/*
 * May what SMCR_BARE lists go straight to the kernel? To visit libc costs 10 ns where each system call empties the TLB, and is of use only
 * to a thread that somebody may cancel, and to an interposer behind us.
 */
extern struct bare {
	const char *alone; /* libc's word for it, or `no`, for good */
	long errno_at;	   /* from the thread pointer */
	char no;
} smcr_bare HIDDEN;
void real_bare(void) HIDDEN;

const struct link_map *find_behind(const void *of) HIDDEN; /* find.c */
void *find_next(const struct link_map **, const char *name) HIDDEN;

#define X(R, name, P, ...) R h_##name P HIDDEN;
SMCR_FD(X) SMCR_ALWAYS(X)
#undef X
#define X(name) void h_##name(int status) HIDDEN __attribute__((noreturn));
SMCR_EXIT(X)
#undef X
/* The variadic ones, with what follows the named arguments passed on as one word each. */
int h_fcntl(int fd, int cmd, ...) HIDDEN;
int h_ioctl(int fd, unsigned long req, ...) HIDDEN;

#endif

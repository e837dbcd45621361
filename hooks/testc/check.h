/* What the tests of single files begin with. */
#ifndef TESTC_CHECK_H
#define TESTC_CHECK_H
#include "../shim.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

struct shim *smcr_shim;

/* No kernel hook. */
int hook_look(int fd) { return kind_of(fd); }
#ifndef COUNTS_MARKS
void hook_withdraw(int fd) { (void)fd; }
void hook_give(int fd, i64 until) { (void)fd, (void)until; }
#endif
void hook_left(int fd) { (void)fd; }
void hook_look_all(void) { atomic_store(&S->asked, 0); }

#define CHECK(cond, ...)                                                                   \
	do {                                                                               \
		if (!(cond)) {                                                             \
			int e_ = errno;                                                    \
			fprintf(stderr, "%s:%d: %s ", __FILE__, __LINE__, #cond);          \
			fprintf(stderr, " " __VA_ARGS__);                                  \
			fprintf(stderr, " (errno %d)\n", e_);                              \
			_exit(1);                                                          \
		}                                                                          \
	} while (0)

#endif

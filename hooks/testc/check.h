/* What the tests of single files begin with. */
#ifndef TESTC_CHECK_H
#define TESTC_CHECK_H
#include "../shim.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

struct shim *smcr_shim;

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

/* The fortified twins against libc's own declarations, which only exist under _FORTIFY_SOURCE. */
#define _GNU_SOURCE
#include "../../real.h"
#define X(R, name, P, ...) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&name), R(*) P), #name " differs from libc's header");
SMCR_CHK(X)

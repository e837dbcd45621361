/* build: ../preload/find.c. Every name of symbols.h is found where dlsym finds it, also behind an interposer (the sanitizer's library is one). */
#include "../preload/real.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	static const char *const names[] = {
#define X(R, name, ...) #name,
		SMCR_BODY(X) SMCR_FD(X) SMCR_ALWAYS(X)
#undef X
#define X(name) #name,
		SMCR_EXIT(X)
#undef X
		"posix_spawnp", "pthread_cond_wait", "realpath", "regexec", "sched_setaffinity", /* of several versions */
		"smcr_no_such_name", "environ" /* no function */,
	};
	const struct link_map *behind = find_behind(names);
	int found = 0, wrong = 0;

	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const struct link_map *in = behind;
		void *want = dlsym(RTLD_NEXT, names[i]), *got = find_next(&in, names[i]);

		if (!strcmp(names[i], "environ"))
			want = 0;
		found += got != 0;
		if (got != want)
			wrong++, printf("%s: %p, dlsym says %p\n", names[i], got, want);
	}
	return wrong || found != sizeof names / sizeof *names - 2;
}

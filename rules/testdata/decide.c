/* Reads lines "table role port peer program" and says what hooks/rules.c decides from that table: use, reason, eager. */
#include "../../hooks/registry.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct shim shim;
struct shim *smcr_shim = &shim;

/* What rules.c needs to find its table; nothing here looks for one. */
const char *shim_env(const char *name) { return (void)name, (const char *)0; }
int reg_dir(void) { return -R_REGISTRY; }
int engine_start(void) { return -R_ENGINE; }
u32 my_tid(void) { return 1; }
int is_any(const struct place *p) { return (void)p, 0; }
int place_of(const void *sa, socklen_t len, struct place *p) { return (void)sa, (void)len, (void)p, 0; }
int name_place(int fd, int nr, struct place *p) { return (void)fd, (void)nr, (void)p, -1; }

int main(void)
{
	enum { MOST = sizeof(struct rules) + RULES_MAX * sizeof(struct rule) };
	char line[4096], table[1024], addr[64], program[256];
	u32 role, port;
	struct rules *t = calloc(1, MOST);

	while (fgets(line, sizeof line, stdin)) {
		struct place p = {.family = AF_INET};
		struct verdict v;
		*program = 0;
		if (sscanf(line, "%1023s %u %u %63s %255s", table, &role, &port, addr, program) < 4)
			return 3;
		FILE *f = fopen(table, "r");
		if (!t || !f || fread(t, 1, MOST, f) < sizeof *t)
			return 2;
		fclose(f);
		if (inet_pton(AF_INET, addr, p.addr) != 1 && (p.family = AF_INET6, inet_pton(AF_INET6, addr, p.addr) != 1))
			return 4;
		strcpy(t->path, program);
		char *slash = strrchr(program, '/');
		snprintf(t->name, sizeof t->name, "%s", slash ? slash + 1 : program);
		rules_decide(t, role, (u16)port, &p, &v);
		printf("%u %u %u\n", v.use, v.reason, v.eager);
	}
	free(t);
	return 0;
}

/* rules.c: who compiles, who reads, what is not believed. build: rules.c */
#include "../registry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

static struct shim shim;
struct shim *smcr_shim = &shim;

/* ---- what other files would do ---- */

static const char *inline_rules, *config, *logfile;
static int starts, startable = 1, dir_there = 1, lasting = 1, bad;

const char *shim_env(const char *name)
{
	return !strcmp(name, "SMCR_RULES") ? inline_rules : !strcmp(name, "SMCR_CONFIG") ? config : !strcmp(name, "SMCR_LOG") ? logfile : 0;
}
int reg_dir(void) { return dir_there ? open("run", O_RDONLY | O_DIRECTORY) : -R_REGISTRY; }
u32 my_tid(void) { return 4711; }
int is_any(const struct place *p) { return !p->addr[0]; }
int place_of(const void *sa, socklen_t len, struct place *p)
{
	(void)len;
	*p = *(const struct place *)sa;
	return 1;
}
int name_place(int fd, int nr, struct place *p)
{
	(void)nr;
	*p = (struct place){.family = AF_INET, .port = (u16)fd, .addr = {10, 0, 0, 1}};
	return 0;
}

/* Two rules: port 1 is TCP; 10.0.0.0/9 is TCP for a server, which is not known when it listens. */
int engine_start(void)
{
	static struct { struct rules t; struct rule r[2]; } table;
	u64 id[6];

	starts++;
	if (!startable)
		return -R_SECCOMP;
	CHECK(rules_source(id) == 1);
	table.t = (struct rules){.magic = RULES_MAGIC, .abi = SMCR_ABI, .n = bad ? 0 : 2, .bad = (u32)bad};
	table.r[0] = (struct rule){.use = USE_TCP, .roles = 3, .shm = 1, .first = 1, .last = 1};
	table.r[1] = (struct rule){.use = USE_TCP, .roles = RULE_SERVER, .shm = 1, .last = 65535, .family = AF_INET, .bits = 9, .addr = {10}};
	rules_keep(&table, sizeof table.t + table.t.n * sizeof *table.r, id, lasting);
	return 0;
}

/* ---- the tests ---- */

/* What a client of 127.0.0.1:port gets in a process that begins now. */
static u32 fresh(int port)
{
	struct place to = {.family = AF_INET, .port = (u16)port, .addr = {127, 0, 0, 1}};
	struct verdict v = {0};

	starts = 0;
	atomic_store(&S->rules, 0);
	rules_connect((void *)&to, sizeof to, &v);
	return v.reason;
}

/* The only file in the run directory. */
static void table_path(char path[64])
{
	FILE *f = popen("ls -A run", "r");
	char name[32], more[32];

	CHECK(f && fscanf(f, "%31s %31s", name, more) == 1 && !strncmp(name, "rules.", 6));
	pclose(f);
	snprintf(path, 64, "run/%s", name);
}

static void overwrite(const char *path, long at, u32 v, long cut)
{
	int fd = open(path, O_RDWR);

	CHECK(fd >= 0 && (at < 0 || pwrite(fd, &v, 4, at) == 4) && (!cut || !ftruncate(fd, cut)));
	close(fd);
}

static void compiled_once(void)
{
	inline_rules = "some text";
	CHECK(fresh(1) == R_RULE && starts == 1);
	CHECK(fresh(1) == R_RULE && starts == 0);
	CHECK(fresh(2) == R_NONE && starts == 0 && strstr(atomic_load(&S->rules)->path, "/rules_test") && !strcmp(atomic_load(&S->rules)->name, "name"));
	inline_rules = "another text";
	CHECK(fresh(1) == R_RULE && starts == 1 && fresh(1) == R_RULE && starts == 0);
	inline_rules = "some text";
	CHECK(fresh(1) == R_RULE && fresh(1) == R_RULE && starts == 0);
	CHECK(!system("rm run/*"));
}

static void what_is_not_believed(void)
{
	char path[64];

	inline_rules = "some text";
	CHECK(fresh(1) == R_RULE && starts == 1);
	table_path(path);
	for (int i = 0; i < 7; i++) {
		switch (i) {
		case 0: overwrite(path, offsetof(struct rules, magic), 1, 0); break;
		case 1: overwrite(path, offsetof(struct rules, abi), SMCR_ABI + 1, 0); break;
		case 2: overwrite(path, offsetof(struct rules, n), 1u << 30, 0); break;
		case 3: overwrite(path, offsetof(struct rules, source), 7, 0); break;
		case 4: overwrite(path, -1, 0, sizeof(struct rules) + 5); break;
		case 5: overwrite(path, -1, 0, 5); break;
		case 6: CHECK(!unlink(path) && !symlink("/dev/zero", path)); break;
		}
		CHECK(fresh(1) == R_RULE && starts == 1);
		CHECK(fresh(1) == R_RULE && starts == 0);
	}
	CHECK(!unlink(path) && !mkdir(path, 0700) && fresh(1) == R_RULE && starts == 1 && fresh(1) == R_RULE && starts == 1);
	CHECK(!rmdir(path));
}

static void a_file(void)
{
	static char path[256];
	int fd = open("rules.toml", O_CREAT | O_WRONLY, 0600);

	CHECK(fd >= 0 && getcwd(path, 200) && (config = strcat(path, "/rules.toml")));
	inline_rules = 0;
	CHECK(fresh(1) == R_RULE && starts == 1 && fresh(1) == R_RULE && starts == 0);
	CHECK(write(fd, "x", 1) == 1 && fresh(1) == R_RULE && starts == 1 && fresh(1) == R_RULE && starts == 0);
	struct timespec old[2] = {{1, 0}, {1, 0}};
	CHECK(!futimens(fd, old) && fresh(1) == R_RULE && starts == 1);
	CHECK(!unlink("rules.toml") && fresh(1) == R_RULE && starts == 1); /* chosen and missing: the engine says so */
	config = "relative.toml";				      /* ignored */
	if (access("/etc/smcr/smcr.toml", F_OK))
		CHECK(fresh(1) == R_NONE && starts == 0 && atomic_load(&S->rules)->n == 0);
	config = 0;
	close(fd);
	CHECK(!system("rm run/*"));
}

static void bad_ones(void)
{
	inline_rules = "bad";
	bad = 1;
	CHECK(fresh(5) == R_RULES_BAD && starts == 1 && fresh(5) == R_RULES_BAD && starts == 0);
	S->mode = MODE_REQUIRE;
	CHECK(fresh(5) == R_NONE);
	S->mode = MODE_AUTO;
	logfile = "log"; /* which is to say what is wrong */
	CHECK(fresh(5) == R_RULES_BAD && starts == 1);
	logfile = 0;
	bad = 0;
	CHECK(!system("rm run/*"));
}

static int listens(int fd)
{
	struct verdict v;

	return rules_listen(fd, &v);
}

static void where_nothing_can_be_left(void)
{
	inline_rules = "some text";
	lasting = 0;
	CHECK(fresh(1) == R_RULE && starts == 1 && fresh(1) == R_RULE && starts == 1);
	lasting = 1;
	dir_there = 0;
	CHECK(fresh(1) == R_RULE && starts == 1 && fresh(1) == R_RULE && starts == 1);
	startable = 0;
	CHECK(fresh(1) == R_SECCOMP && listens(1) == -R_SECCOMP && !atomic_load(&S->rules));
	dir_there = startable = 1;
	CHECK(listens(1) == -R_RULE); /* what stood in the way is gone */
	CHECK(!system("rm run/*"));
}

static void servers(void)
{
	struct verdict v;

	CHECK(fresh(2) == R_NONE);
	CHECK(listens(1) == -R_RULE && listens(2) == 0); /* some clients may be others than 10.0.0.0/9 */
	rules_accepted(2, &v);
	CHECK(v.reason == R_RULE && v.use == USE_TCP && !v.eager);
	S->mode = MODE_REQUIRE;
	rules_accepted(2, &v);
	CHECK(v.reason == R_NONE && v.use == USE_REQUIRE && listens(1) == 0);
	S->mode = MODE_AUTO;
	CHECK(!system("rm run/*"));
}

int main(void)
{
	S->boot[0] = (u64)"/some/name";
	CHECK(!mkdir("run", 0700));
	compiled_once();
	what_is_not_believed();
	a_file();
	bad_ones();
	where_nothing_can_be_left();
	servers();
	return 0;
}

/*
 * The rules file in a process that is COLD. TOML is read by Go, once for all processes: the engine that first meets a file
 * compiles it (package rules) to the table that is read here and leaves it in the run directory. So a rule costs a program a
 * stat and a read, once, and no Go; without a file the stat alone.
 */
#include "registry.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define RULES_FILE "/etc/smcr/smcr.toml" /* rules.File */
#define TABLE_MAX (sizeof(struct rules) + RULES_MAX * sizeof(struct rule))

static const struct rules none;

static u64 hash(const char *s)
{
	u64 h = 0xcbf29ce484222325ull;

	for (; *s; s++)
		h = (h ^ (u8)*s) * 0x100000001b3ull;
	return h;
}

int rules_source(u64 id[6])
{
	const char *text = shim_env("SMCR_RULES"), *path = shim_env("SMCR_CONFIG");
	int chosen = path && *path == '/';
	struct stat st;

	memset(id, 0, 6 * sizeof *id);
	if (text) {
		id[0] = hash(text);
		id[1] = strlen(text);
		return 1;
	}
	if (!chosen)
		path = RULES_FILE;
	long r = sys(SYS_newfstatat, AT_FDCWD, path, &st, 0);
	if (!chosen && (r == -ENOENT || r == -ENOTDIR))
		return 0;
	id[0] = hash(path);
	if (r < 0) {
		id[1] = (u64)r;
		return 1;
	}
	id[1] = (u64)st.st_size;
	id[2] = st.st_dev;
	id[3] = st.st_ino;
	id[4] = (u64)st.st_mtim.tv_sec * 1000000000 + (u64)st.st_mtim.tv_nsec;
	id[5] = (u64)st.st_ctim.tv_sec * 1000000000 + (u64)st.st_ctim.tv_nsec;
	return 1;
}

/* ---- the table in the run directory ---- */

/* A name per source, of a few: who meets another's table there replaces it, so nothing has to be swept. */
static void table_name(char name[16], const u64 id[6])
{
	static const char hex[] = "0123456789abcdef";

	memcpy(name, "rules.", 6);
	name[6] = hex[id[0] >> 60];
	name[7] = hex[id[0] >> 56 & 15];
	name[8] = 0;
}

static struct rules *table_new(u64 size)
{
	u64 m = (u64)sys(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return m >= -4095ul ? 0 : (struct rules *)m;
}

/* From now on these are the rules of this process. */
static void publish(struct rules *t, u64 size)
{
	static const char gone[] = " (deleted)";
	const struct rules *unset = 0;
	const char *started = S->boot[0] ? (const char *)S->boot[0] : "", *name = strrchr(started, '/');
	long n = sys(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", t->path, sizeof t->path);

	if (n < 0 || (u64)n >= sizeof t->path)
		n = 0;
	else if (n > (long)sizeof gone && !memcmp(t->path + n - (sizeof gone - 1), gone, sizeof gone - 1))
		n -= sizeof gone - 1; /* replaced by an upgrade while it runs */
	t->path[n] = 0;
	name = name ? name + 1 : started;
	n = (long)strlen(name);
	if ((u64)n >= sizeof t->name)
		n = sizeof t->name - 1;
	memcpy(t->name, name, (u64)n);
	t->name[n] = 0;
	if (!atomic_compare_exchange_strong(&S->rules, &unset, t))
		sys(SYS_munmap, t, size); /* another thread was quicker */
}

static int sound(const struct rules *t, u64 size, const u64 id[6])
{
	return t->magic == RULES_MAGIC && t->abi == SMCR_ABI && t->n <= RULES_MAX &&
	       size == sizeof *t + t->n * sizeof *t->rule && !memcmp(t->source, id, sizeof t->source);
}

static void table_read(int dir, const u64 id[6])
{
	char name[16];
	struct stat st;

	table_name(name, id);
	long fd = sys(SYS_openat, dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
	if (fd < 0)
		return;
	if (sys(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode) && (u64)st.st_size >= sizeof(struct rules) && (u64)st.st_size <= TABLE_MAX) {
		u64 size = (u64)st.st_size;
		struct rules *t = table_new(size);
		/* A log wants to say what is wrong with a file: then the engine reads it again. */
		if (t && sys(SYS_read, fd, t, size) == (long)size && sound(t, size, id) && !(t->bad && shim_env("SMCR_LOG")))
			publish(t, size);
		else if (t)
			sys(SYS_munmap, t, size);
	}
	sys(SYS_close, fd);
}

/* Whole at once. Without a run directory, or room in it, each process compiles for itself. */
static void table_write(const struct rules *t, u64 size)
{
	char name[16], fresh[48] = "t."; /* as all fresh files: swept when its process is gone */
	int dir = reg_dir();
	u32 tid = my_tid(), tens = 1;
	char *p = fresh + 2;

	if (dir < 0)
		return;
	while (tid / tens >= 10)
		tens *= 10;
	for (; tens; tens /= 10)
		*p++ = (char)('0' + tid / tens % 10);
	memcpy(p, ".rules", 7);
	table_name(name, t->source);
	sys(SYS_unlinkat, dir, fresh, 0);
	long fd = sys(SYS_openat, dir, fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd >= 0) {
		long n = sys(SYS_write, fd, t, size);
		sys(SYS_close, fd);
		if (n != (long)size || sys(SYS_renameat, dir, fresh, dir, name) < 0)
			sys(SYS_unlinkat, dir, fresh, 0);
	}
	sys(SYS_close, dir);
}

void rules_keep(const void *table, u64 size, const u64 id[6], int lasting)
{
	struct rules *t = table_new(size);

	if (!t)
		return;
	memcpy(t, table, size);
	memcpy(t->source, id, sizeof t->source);
	if (lasting)
		table_write(t, size);
	publish(t, size);
}

/* ---- deciding ---- */

/* The rules of this process, read at its first listen or connect; 0 and *err = -reason where they cannot be known. */
static const struct rules *rules(int *err)
{
	const struct rules *t = atomic_load_explicit(&S->rules, memory_order_acquire), *unset = 0;
	u64 id[6];

	if (likely(t != 0))
		return t;
	if (!rules_source(id)) {
		atomic_compare_exchange_strong(&S->rules, &unset, &none);
	} else {
		int dir = reg_dir();
		if (dir >= 0) {
			table_read(dir, id);
			sys(SYS_close, dir);
		}
		/* Nobody has compiled it yet: our engine does when it starts (hooks/rules.go). */
		if (!atomic_load(&S->rules) && (*err = engine_start()) < 0)
			return 0;
	}
	t = atomic_load_explicit(&S->rules, memory_order_acquire);
	*err = t ? 0 : -R_MEMORY;
	return t;
}

/* * is any bytes, ? one byte. */
static int glob(const char *p, const char *s)
{
	const char *star = 0, *from = 0;

	while (*s) {
		if (*p == '*') {
			star = p++;
			from = s;
		} else if (*p && (*p == '?' || *p == *s)) {
			p++;
			s++;
		} else if (star) {
			p = star + 1;
			s = ++from;
		} else {
			return 0;
		}
	}
	while (*p == '*')
		p++;
	return !*p;
}

static int runs(const char *pattern, const struct rules *t)
{
	return glob(pattern, strchr(pattern, '/') ? t->path : t->name);
}

static int is_in(const struct place *p, const struct rule *r)
{
	u32 whole = r->bits / 8u, rest = r->bits % 8u;

	return p->family == r->family && whole <= 16 && !memcmp(p->addr, r->addr, whole) &&
	       (!rest || whole == 16 || !((p->addr[whole] ^ r->addr[whole]) >> (8 - rest)));
}

void rules_decide(const struct rules *t, u32 role, u16 port, const struct place *peer, struct verdict *v)
{
	int must = S->mode == MODE_REQUIRE; /* stronger than what a rule wants */

	*v = (struct verdict){.use = must ? USE_REQUIRE : USE_SMC};
	if (t->bad && !must) {
		v->use = USE_TCP;
		v->reason = R_RULES_BAD;
	}
	for (u32 i = 0; i < t->n; i++) {
		const struct rule *r = &t->rule[i];
		if (!(r->roles & role) || port < r->first || port > r->last || (*r->program && !runs(r->program, t)))
			continue;
		int never = !r->shm || (r->use == USE_TCP && !must);
		if (r->family && (peer ? !is_in(peer, r) : never))
			continue;
		v->use = must ? USE_REQUIRE : r->use;
		v->reason = never ? R_RULE : R_NONE;
		v->eager = r->eager;
		v->known = r->known && !v->reason && (S->discovery & 1u << SOURCE_RULES);
		return;
	}
}

int rules_listen(int fd, struct verdict *v)
{
	struct place at;
	int err = 0;
	const struct rules *t = rules(&err);

	*v = (struct verdict){0};
	if (!t)
		return err;
	if (t == &none || name_place(fd, SYS_getsockname, &at) < 0)
		return 0;
	rules_decide(t, RULE_SERVER, at.port, 0, v);
	return -(int)v->reason;
}

void rules_connect(const struct sockaddr *sa, socklen_t len, struct verdict *v)
{
	struct place to;
	int err = 0;
	const struct rules *t = rules(&err);

	if (!t) {
		v->reason = (u32)-err;
		return;
	}
	if (t == &none || !place_of(sa, len, &to))
		return;
	if (is_any(&to)) { /* the kernel connects to the loopback address */
		to.addr[0] = to.family == AF_INET ? 127 : 0;
		to.addr[to.family == AF_INET ? 3 : 15] = 1;
	}
	rules_decide(t, RULE_CLIENT, to.port, &to, v);
}

void rules_accepted(int fd, struct verdict *v)
{
	const struct rules *t = atomic_load_explicit(&S->rules, memory_order_acquire);
	struct place local, peer;

	*v = (struct verdict){.use = S->mode == MODE_REQUIRE ? USE_REQUIRE : USE_SMC};
	if (t && t != &none && name_place(fd, SYS_getsockname, &local) == 0 && name_place(fd, SYS_getpeername, &peer) == 0)
		rules_decide(t, RULE_SERVER, local.port, &peer, v);
}

/*
 * The host registry: which listening sockets are ours, and which connections are offered (ARCHITECTURE "Life of one
 * connection", 1-4). One file in the run directory, mapped by every process of the user. Other processes, perhaps of
 * another version, write it too: everything is read once and checked.
 *
 * A table entry is taken by a compare-and-swap of its `own` word (pid namespace, pid), filled, and published by one store of
 * its key: the SO_COOKIE of the listening socket, or cookie and state of an offer. A crash at any point leaves an entry
 * that the next process to start can attribute and remove. Cookies are not used twice while the host runs.
 *
 * Also here: the process's own file. What the kernel knows of other sockets: diag.c.
 */
#include "registry.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>

#define REG_MAGIC 0x47455253u
#define REG_VERSION 3 /* of the layout below; SMCR_ABI of a process stands in its entries */
#define BUCKET 8
#define LISTENERS 1024
#define HASTES 512
#define OFFERS 4096
#define SHUNNED 256
#define SHUN_WAYS 4
#define SHUN_NS 600000000000ll
#define CHAIN (LISTENERS / BUCKET)

#define LF_V6ONLY 1u
#define LF_ORPHAN 2u /* its publisher has closed it; somebody forked from it may still listen */
struct listener {
	_Atomic u64 own;
	_Atomic u64 cookie; /* 0 = not published */
	u64 start;	    /* of own's process */
	u64 netns;
	u8 addr[16];
	u16 port; /* host order */
	u8 family;
	_Atomic u8 flags;
	u32 scope; /* interface of a link-local address */
	u32 uid;
	u32 abi;
};
_Static_assert(sizeof(struct listener) == 64, "one line each");

struct offer {
	u64 start;
	_Atomic u64 gid[2];
	_Atomic u64 gid_of; /* cookie that gid belongs to; written after it */
	u32 uid, abi;
	u64 pad[3];
};
_Static_assert(sizeof(struct offer) == 64, "one line each");

struct table {
	/* for ever */
	u32 magic, version;
	u64 size;
	/* layout of REG_VERSION */
	_Atomic u8 spilled[CHAIN]; /* an entry of this bucket may lie in the next one */
	_Atomic u64 lmap[CHAIN / 64], omap[OFFERS / BUCKET / 64]; /* buckets used since a sweep found them empty */
	_Atomic u32 haste[HASTES]; /* see reg_haste */
	_Atomic u32 open;	   /* so many offers, or fewer, are neither claimed nor withdrawn: who dies in between leaves one too many */
	u8 pad[4096 - 16 - CHAIN - CHAIN / 8 - OFFERS / BUCKET / 8 - 4 * HASTES - 4];
	struct listener l[LISTENERS];
	_Atomic u64 state[OFFERS]; /* cookie << 2 | enum reg_state; 0 = free */
	_Atomic u64 own[OFFERS];
	struct offer o[OFFERS];
	struct shunned { _Atomic u64 who; _Atomic i64 until; } shunned[SHUNNED]; /* CLOCK_MONOTONIC */
};

#define RETRY_NS 1000000000ll
#define USERS_MAX 16

static u64 own_of(const struct registry *r)
{
	return (u64)r->pidns << 32 | r->pid;
}

/* ---- small things ---- */

const char *shim_env(const char *name)
{
	size_t n = strlen(name);

	for (char **e = S->envp; e && *e; e++)
		if (!strncmp(*e, name, n) && (*e)[n] == '=' && (*e)[n + 1])
			return *e + n + 1;
	return 0;
}

static char *put_u64(char *p, u64 v)
{
	char d[20];
	int n = 0;

	do
		d[n++] = (char)('0' + v % 10);
	while (v /= 10);
	while (n)
		*p++ = d[--n];
	return p;
}

static const char *get_u64(const char *p, u64 *v)
{
	const char *from = p;

	for (*v = 0; *p >= '0' && *p <= '9' && p - from < 20; p++)
		*v = *v * 10 + (u64)(*p - '0');
	return p > from ? p : 0;
}

static int failed(long r)
{
	return r < 0 && r > -4096;
}

/* ---- processes ---- */

/* Field 22 of /proc/PID/stat, 0 if it cannot be read; *gone: nothing is left of it but its status. */
static u64 start_of(const char *pid, char comm[16], int *gone)
{
	char path[48] = "/proc/", buf[1024];

	*gone = 0;
	strcat(strncat(path, pid, 20), "/stat");
	long fd = sys(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	if (fd < 0) {
		*gone = fd == -ENOENT && sys(SYS_access, "/proc/self/stat", F_OK) == 0;
		return 0;
	}
	long n = sys(SYS_read, fd, buf, sizeof buf - 1);
	sys(SYS_close, fd);
	if (n <= 0)
		return 0;
	buf[n] = 0;
	char *open = strchr(buf, '('), *p = strrchr(buf, ')');
	if (!open || !p)
		return 0;
	if (comm) {
		size_t len = (size_t)(p - open - 1);
		memset(comm, 0, 16);
		memcpy(comm, open + 1, len < 15 ? len : 15);
	}
	char state = p[1] ? p[2] : 0;
	u64 v = 0, threads = 0;
	int field = 2;
	for (p++; *p && field < 22; p++)
		if (*p == ' ' && ++field >= 20) {
			get_u64(p + 1, &v);
			if (field == 20)
				threads = v;
		}
	*gone = (state == 'Z' || state == 'X') && threads <= 1;
	return v;
}

static char *page_name(char *p, u64 pid, u64 start)
{
	*p++ = 'p';
	*p++ = '.';
	p = put_u64(p, pid);
	*p++ = '.';
	p = put_u64(p, start);
	*p = 0;
	return p;
}

/* Of another pid namespace, and its number means nothing here: does its mapping still hold the lock on its file? */
static int holds(long fd, const struct proc_page *p)
{
	return !p->held || sys(SYS_flock, fd, LOCK_EX | LOCK_NB) == -EWOULDBLOCK;
}

static int page_read(long fd, struct proc_page *p)
{
	return fd >= 0 && sys(SYS_pread64, fd, p, sizeof *p, 0) == sizeof *p && p->magic == PROC_MAGIC && p->abi == SMCR_ABI;
}

static int alive_elsewhere(int dir, u64 own, u64 start)
{
	char name[64];
	struct proc_page p;

	page_name(name, (u32)own, start);
	long fd = sys(SYS_openat, dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
	int lives = fd != -ENOENT && (!page_read(fd, &p) || p.pidns != own >> 32 || holds(fd, &p));
	if (fd >= 0)
		sys(SYS_close, fd);
	return lives;
}

/* The verdict on a process, remembered for the entries that follow. `deep` bounds the costly question whether the number
 * has been used again. */
struct judge {
	u64 own, start;
	int alive, deep;
	const int *dir; /* the run directory; without it who is elsewhere counts as alive */
	u32 asked;
};
#define DEEP 8 /* of these the first four, then one in eight */

static int alive(const struct registry *r, struct judge *j, u64 own, u64 start)
{
	u32 pid = (u32)own;

	if (own == own_of(r))
		return !start || !r->start || start == r->start;
	int here = own >> 32 == r->pidns;
	if (!pid || (!here && (j->deep <= 0 || !j->dir)))
		return 1;
	if (j->own == own && j->start == start)
		return j->alive;
	j->own = own;
	j->start = start;
	if (!here) {
		j->deep--;
		return j->alive = alive_elsewhere(*j->dir, own, start);
	}
	j->alive = pid <= 0x7fffffff && sys(SYS_kill, pid, 0) != -ESRCH;
	if (j->alive && start && j->deep > 0 && (j->asked++ < 4 || ((pid ^ r->pid) & 7) == 0)) {
		char num[24];
		int gone;
		j->deep--;
		*put_u64(num, pid) = 0;
		u64 now = start_of(num, 0, &gone);
		j->alive = !gone && (!now || now == start);
	}
	return j->alive;
}

/* ---- entries that end ---- */

/* Before a place is taken, in case of a crash right after, and again after it: a sweep may have been there in between. */
static void mark(_Atomic u64 *map, u32 bucket)
{
	u64 bit = 1ull << bucket % 64;

	if (!(atomic_load(&map[bucket / 64]) & bit))
		atomic_fetch_or(&map[bucket / 64], bit);
}

/* Nobody's any more: withdrawn first, then free. Several processes may do this to one entry. */
static void listener_drop(struct listener *e, u64 own, u64 cookie)
{
	atomic_compare_exchange_strong(&e->cookie, &cookie, 0);
	atomic_compare_exchange_strong(&e->own, &own, 0);
}

/* What this process published ends. `all`: with its program; its sockets may live on in who was forked from it. */
static void own_drop(struct registry *r, int all)
{
	struct table *t = r->t;

	for (u32 i = 0; i < LISTENERS; i++) {
		u64 own = atomic_load_explicit(&t->l[i].own, memory_order_relaxed);
		if (own != own_of(r))
			continue;
		u64 c = atomic_load(&t->l[i].cookie);
		if (all)
			atomic_fetch_or(&t->l[i].flags, LF_ORPHAN); /* still open; who looks it up asks the kernel */
		else
			listener_drop(&t->l[i], own, c);
	}
	for (u32 i = 0; all && i < OFFERS; i++) {
		u64 own = atomic_load_explicit(&t->own[i], memory_order_relaxed);
		if (own != own_of(r))
			continue;
		u64 w = atomic_load(&t->state[i]);
		atomic_compare_exchange_strong(&t->state[i], &w, 0);
		atomic_compare_exchange_strong(&t->own[i], &own, 0);
	}
}

/* ---- the process's file ---- */

static void page_path(const struct registry *r, char *p)
{
	strcpy(p, r->dir);
	strcat(p, "/");
	page_name(p + strlen(p), r->pid, r->start);
}

static int page_make(struct registry *r, int dir, const char comm[16])
{
	char name[64];
	struct stat st;
	struct proc_page *p;
	long fd, m;

	page_name(name, r->pid, r->start);
	int fresh = 1;
	for (int try = 0;; try++) {
		fresh = 1;
		fd = sys(SYS_openat, dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd == -EEXIST) { /* ours from before an exec: its counters go on */
			fresh = 0;
			fd = sys(SYS_openat, dir, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
		}
		if (fd < 0)
			return fd == -ENOSPC || fd == -ENOMEM || fd == -EMFILE || fd == -ENFILE ? -R_MEMORY : -R_REGISTRY;
		m = fresh ? fits(4096) ? sys(SYS_fallocate, fd, 0, 0, 4096) : -EFBIG : sys(SYS_fstat, fd, &st);
		if (!failed(m) && !fresh && (!S_ISREG(st.st_mode) || st.st_uid != r->uid || st.st_size < 4096))
			m = -EINVAL;
		if (!failed(m))
			m = sys(SYS_mmap, 0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (failed(m)) {
			sys(SYS_close, fd);
			sys(SYS_unlinkat, dir, name, 0);
			if (!fresh && !try)
				continue;
			return -R_MEMORY;
		}
		p = (struct proc_page *)m;
		if (fresh)
			break;
		u32 blocks = atomic_load(&p->nblocks);
		if (p->magic == PROC_MAGIC && p->abi == SMCR_ABI && p->pid == r->pid && p->start == r->start &&
		    blocks <= SOCK_MAX && 4096 + (u64)blocks * sizeof(struct block) <= (u64)st.st_size)
			break;
		sys(SYS_munmap, m, 4096);
		sys(SYS_close, fd);
		sys(SYS_unlinkat, dir, name, 0); /* another version's */
		if (try)
			return -R_REGISTRY;
	}
	p->abi = SMCR_ABI;
	p->pid = r->pid;
	p->start = r->start;
	p->pidns = r->pidns;
	p->held = sys(SYS_flock, fd, LOCK_SH | LOCK_NB) == 0; /* until the last mapping of this open file is gone */
	memcpy(p->comm, comm, sizeof p->comm);
	atomic_store(&p->engine, atomic_load(&S->engine)); /* it outlives a change of user */
	atomic_thread_fence(memory_order_release);
	p->magic = PROC_MAGIC;

	if (!fresh)
		own_drop(r, 1);
	const char *report = shim_env("SMCR_REPORT_DIR");
	if (report && strlen(report) < 256) {
		char to[256 + 64];
		strcpy(to, report);
		strcat(strcat(to, "/"), name);
		sys(SYS_linkat, dir, name, AT_FDCWD, to, 0);
	}
	sys(SYS_close, fd); /* a process that stays on TCP keeps no descriptor of ours */
	r->page_own = 1;
	__atomic_store_n(&S->proc, p, __ATOMIC_RELEASE);
	return 0;
}

/* ---- sweeping ---- */

static int listener_copy(const struct listener *e, struct listener *to)
{
	u64 c = atomic_load_explicit(&e->cookie, memory_order_acquire);

	if (!c)
		return 0;
	memcpy(to, e, sizeof *to);
	atomic_thread_fence(memory_order_acquire);
	return atomic_load_explicit(&e->cookie, memory_order_relaxed) == c && to->cookie == c;
}

static int is_cookie(const struct inet_diag_msg *m, void *arg)
{
	return cookie_of(m) == *(u64 *)arg;
}

static u64 my_netns(struct registry *r)
{
	if (!r->netns_known) {
		int nested = lk_lock(&r->diag_lk);
		if (diag_open() == 0) {
			r->netns = sockopt_u64(S->diag, SO_NETNS_COOKIE);
			r->netns_known = 1;
		}
		lk_unlock(&r->diag_lk, nested);
	}
	return r->netns;
}

/* Is that very socket still listening? 1, 0, or -errno. */
static int listener_lives(struct registry *r, const struct listener *e)
{
	struct place p = {.port = e->port, .family = e->family, .scope = e->scope};
	struct inet_diag_req_v2 q;
	struct inet_diag_msg m;
	u64 cookie = e->cookie;

	if (e->family != AF_INET && e->family != AF_INET6)
		return 0;
	if (my_netns(r) != e->netns)
		return -EXDEV;
	memcpy(p.addr, e->addr, 16);
	int nested = lk_lock(&r->diag_lk), ret = diag_open();
	if (!ret) {
		diag_request(&q, &p, 0, p.scope);
		ret = diag_one(r, &q, &m);
		if (ret == 0 && cookie_of(&m) == cookie)
			ret = m.idiag_state == LISTENING;
		else if (ret == 0 || ret == -ENOENT) /* another one of a SO_REUSEPORT group, or bound to an interface */
			ret = nested ? -EBUSY : diag_listeners(r, e->family, e->port, is_cookie, &cookie);
	}
	lk_unlock(&r->diag_lk, nested);
	return ret;
}

/* 1 = the place is taken by somebody who lives. */
static int sweep_listener(struct registry *r, struct judge *j, struct listener *p)
{
	struct listener e;
	u64 own = atomic_load(&p->own);

	if (!own)
		return 0;
	u64 c = atomic_load(&p->cookie);
	int orphan = atomic_load(&p->flags) & LF_ORPHAN;
	if (alive(r, j, own, p->start) && !orphan)
		return 1;
	if (c && listener_copy(p, &e)) {
		int lives = listener_lives(r, &e);
		if (lives > 0 || (lives < 0 && orphan))
			return 1; /* who was forked from the dead goes on listening */
	}
	listener_drop(p, own, c);
	return 0;
}

static int offer_step(struct table *t, u32 i, u64 from, u64 to)
{
	if (!atomic_compare_exchange_strong(&t->state[i], &from, to))
		return 0;
	if ((from & 3) == REG_OFFERED)
		atomic_fetch_sub(&t->open, 1);
	return 1;
}

static int sweep_offer(struct registry *r, struct judge *j, u32 i)
{
	struct table *t = r->t;
	u64 own = atomic_load(&t->own[i]);

	if (!own)
		return 0;
	if (alive(r, j, own, t->o[i].start))
		return 1;
	offer_step(t, i, atomic_load(&t->state[i]), 0);
	atomic_compare_exchange_strong(&t->own[i], &own, 0);
	return 0;
}

static u64 own_at(struct table *t, int listeners, u32 i)
{
	return listeners ? atomic_load(&t->l[i].own) : atomic_load(&t->own[i]);
}

/* Looks only where something was since the last sweep: the whole table is 1500 cache lines. */
static void sweep_map(struct registry *r, struct judge *j, _Atomic u64 *map, u32 words, int listeners)
{
	for (u32 w = 0; w < words; w++) {
		u64 bits = atomic_load(&map[w]);
		for (; bits; bits &= bits - 1) {
			u32 b = w * 64 + (u32)__builtin_ctzll(bits), live = 0;
			for (u32 i = b * BUCKET; i < (b + 1) * BUCKET; i++)
				live += (u32)(listeners ? sweep_listener(r, j, &r->t->l[i]) : sweep_offer(r, j, i));
			if (live)
				continue;
			atomic_fetch_and(&map[w], ~(bits & -bits));
			for (u32 i = b * BUCKET; i < (b + 1) * BUCKET; i++)
				if (own_at(r->t, listeners, i)) /* taken meanwhile */
					mark(map, b);
		}
	}
}

static void sweep_tables(struct registry *r, const int *dir)
{
	struct judge j = {.deep = DEEP, .dir = dir};

	sweep_map(r, &j, r->t->lmap, CHAIN / 64, 1);
	sweep_map(r, &j, r->t->omap, OFFERS / BUCKET / 64, 0);
}

/* Somebody died, perhaps as he took a place that a sweep had found empty: the next sweep looks everywhere. */
static void mark_all(struct table *t)
{
	for (u32 w = 0; t && w < CHAIN / 64; w++)
		atomic_store(&t->lmap[w], ~0ull);
	for (u32 w = 0; t && w < OFFERS / BUCKET / 64; w++)
		atomic_store(&t->omap[w], ~0ull);
}

/* Files of the dead. Returns how many of the living there are beside us. */
static int sweep_files(struct registry *r, int dir)
{
	struct judge j = {.deep = DEEP};
	char buf[4096] __attribute__((aligned(8)));
	int others = 0;

	for (int k = 0; k < 1024; k++) {
		long n = sys(SYS_getdents64, dir, buf, sizeof buf);
		if (n <= 0)
			break;
		for (long at = 0; at + 19 < n;) {
			const struct dirent64 *d = (const void *)(buf + at);
			u64 pid, start = 0;
			at += d->d_reclen;
			const char *p = d->d_name;
			int page = p[0] == 'p';
			if ((!page && p[0] != 't') || p[1] != '.' || !(p = get_u64(p + 2, &pid)))
				continue;
			if (page && (*p != '.' || !get_u64(p + 1, &start)))
				continue;
			if (pid > 0x7fffffff || alive(r, &j, (u64)r->pidns << 32 | (u32)pid, start)) {
				others += page && pid != r->pid;
				continue;
			}
			if (page) { /* dead here, unless it belongs to another pid namespace */
				struct proc_page head;
				long fd = sys(SYS_openat, dir, d->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW, 0);
				int lives = page_read(fd, &head) && head.pidns != r->pidns && holds(fd, &head);
				if (fd >= 0)
					sys(SYS_close, fd);
				if (lives) {
					others++;
					continue;
				}
			}
			mark_all(r->t); /* before its page is gone: whoever marks may die, too */
			sys(SYS_unlinkat, dir, d->d_name, 0);
		}
	}
	return others;
}

/* ---- opening ---- */

/* Made under another name and linked when it is whole: nobody ever sees half a table. */
static int table_make(struct registry *r, int dir)
{
	char name[48] = "t.";
	struct table head = {.magic = REG_MAGIC, .version = REG_VERSION, .size = sizeof(struct table)};

	char *p = put_u64(name + 2, r->pid);
	*p++ = '.';
	*put_u64(p, my_tid()) = 0;
	sys(SYS_unlinkat, dir, name, 0);
	long fd = sys(SYS_openat, dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return fd == -ENOSPC || fd == -ENOMEM ? -R_MEMORY : -R_REGISTRY;
	/* fallocate: a full file system is an error here and not a SIGBUS later. */
	long e = fits(sizeof(struct table)) ? sys(SYS_fallocate, fd, 0, 0, sizeof(struct table)) : -EFBIG;
	if (e == 0 && sys(SYS_pwrite64, fd, &head, 16, 0) != 16)
		e = -EIO;
	if (e == 0) {
		e = sys(SYS_linkat, dir, name, dir, "registry", 0);
		if (e == -EEXIST)
			e = 0;
	}
	sys(SYS_close, fd);
	sys(SYS_unlinkat, dir, name, 0);
	return e == 0 ? 0 : e == -ENOSPC || e == -ENOMEM ? -R_MEMORY : -R_REGISTRY;
}

static int table_map(struct registry *r, int dir)
{
	struct stat st;
	struct { u32 magic, version; u64 size; } head;
	int err = -R_REGISTRY;

	for (int try = 0; try < 4; try++) {
		long fd = sys(SYS_openat, dir, "registry", O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
		if (fd == -ENOENT) {
			err = table_make(r, dir);
			if (err)
				return err;
			continue;
		}
		if (fd < 0)
			return -R_REGISTRY;
		err = -R_REGISTRY;
		if (sys(SYS_fstat, fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == r->uid && !(st.st_mode & 077) &&
		    sys(SYS_pread64, fd, &head, sizeof head, 0) == sizeof head) {
			if (head.magic == REG_MAGIC && head.version == REG_VERSION && head.size == sizeof(struct table) &&
			    (u64)st.st_size >= head.size) {
				long m = sys(SYS_mmap, 0, sizeof(struct table), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
				sys(SYS_close, fd);
				if (failed(m))
					return -R_MEMORY;
				r->t = (struct table *)m;
				return 0;
			}
			err = head.magic == REG_MAGIC ? -R_VERSION : -R_REGISTRY;
		}
		sys(SYS_close, fd);
		/* Another version's, or broken. When nobody is left who uses it, a new one begins. */
		sys(SYS_lseek, dir, 0, SEEK_SET);
		if (sweep_files(r, dir) > 0)
			return err;
		sys(SYS_unlinkat, dir, "registry", 0);
	}
	return err;
}

static int dir_open(struct registry *r)
{
	const char *d = shim_env("SMCR_RUN_DIR");
	struct stat st;

	if (d && strlen(d) >= sizeof r->dir - sizeof "-4294967295")
		return -R_REGISTRY;
	strcpy(r->dir, d ? d : "/dev/shm/smcr");
	/* The one that is given is that of whom the program was started as. */
	if (!d || r->uid != getauxval(AT_EUID)) {
		strcat(r->dir, "-");
		*put_u64(r->dir + strlen(r->dir), r->uid) = 0;
	}
	long fd = -ENOENT;
	for (int try = 0; try < 2 && fd == -ENOENT; try++) {
		if (try)
			sys(SYS_mkdirat, AT_FDCWD, r->dir, 0700);
		fd = sys(SYS_openat, AT_FDCWD, r->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
	}
	if (fd < 0)
		return -R_REGISTRY;
	/* A directory that somebody else made or may write would let him speak in our name. */
	if (sys(SYS_fstat, fd, &st) < 0 || st.st_uid != r->uid || (st.st_mode & 077)) {
		sys(SYS_close, fd);
		return -R_REGISTRY;
	}
	return (int)fd;
}

struct registry *reg_mine(void)
{
	struct registry *r = __atomic_load_n(&S->reg, __ATOMIC_ACQUIRE);

	if (r)
		return r;
	long m = sys(SYS_mmap, 0, sizeof *r, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (failed(m))
		return 0;
	if (!__atomic_compare_exchange_n(&S->reg, &r, (struct registry *)m, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
		sys(SYS_munmap, m, sizeof *r);
		return r;
	}
	return (struct registry *)m;
}

/* Whoever we share our listeners with: a client that finds one waits for a claim, which this process cannot make any more. */
static void drop_inherited(struct registry *r)
{
	for (u32 fd = 0, top = atomic_load(&S->fd_top); fd < top && fd < FD_MAX; fd++) {
		u32 n = kind_of((int)fd) == FD_LISTENER ? atomic_load(&S->fd_sock[fd]) : 0;
		struct listener e;
		if (n && n <= LISTENERS && listener_copy(&r->t->l[n - 1], &e) && e.cookie == sockopt_u64((int)fd, SO_COOKIE))
			listener_drop(&r->t->l[n - 1], e.own, e.cookie);
	}
}

/* After setuid the tables are another user's. Threads may be reading them: zeros take their place, not a hole. */
static int uid_changed(struct registry *r)
{
	if (likely(!r->left && (u32)sys(SYS_geteuid) == r->uid))
		return 0;
	int nested = lk_lock(&r->lk);
	if (!r->left) {
		if (r->t) {
			drop_inherited(r);
			sys(SYS_mmap, r->t, sizeof(struct table), PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
		}
		r->left = 1;
	}
	lk_unlock(&r->lk, nested);
	return 1;
}

/*
 * Under r->lk: whose tables are to be opened. -R_REGISTRY: nobody's. Who may become somebody else again (seteuid) shall not
 * map what the user of the moment can cut short. Zeros of former users stay mapped, so there is an end to it.
 */
static int user_now(struct registry *r)
{
	u32 real, now, saved;

	if (r->t && !uid_changed(r))
		return 0;
	sys(SYS_getresuid, &real, &now, &saved);
	if (real != now || saved != now || r->users >= USERS_MAX)
		return -R_REGISTRY;
	if (r->t && now != r->uid) {
		if (r->page_own)
			S->before = S->proc;
		r->page_own = 0;
		r->err = 0;
	}
	r->uid = now;
	return 0;
}

/* The tables if they may be used. */
static struct registry *reg_use(void)
{
	struct registry *r = __atomic_load_n(&S->reg, __ATOMIC_ACQUIRE);

	if (!r || __atomic_load_n(&r->pid, __ATOMIC_ACQUIRE) != S->pid || uid_changed(r))
		return 0;
	return r;
}

/* Its connections become the standard streams of its builtins, and of the programs that it starts. Not the name: that is a script's. */
static int is_shell(void)
{
	static const char *const shells[] = {"bash", "zsh", "ksh"};
	char path[256];
	long n = sys(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", path, sizeof path - 1);

	path[n > 0 ? n : 0] = 0;
	const char *name = strrchr(path, '/');
	for (unsigned i = 0; name && i < sizeof shells / sizeof *shells; i++)
		if (!strncmp(name + 1, shells[i], strlen(shells[i])))
			return 1;
	return 0;
}

int reg_shell(void)
{
	return S->reg->shell;
}

static int reg_open(struct registry *r)
{
	struct stat st;
	char comm[16];
	int gone, dir, err;

	r->pid = 0;
	r->start = start_of("self", comm, &gone);
	if (!r->start)
		sys(SYS_prctl, 15 /* PR_GET_NAME */, comm);
	r->pidns = sys(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &st, 0) == 0 ? (u32)st.st_ino : 0;
	r->shell = (u8)is_shell();
	dir = dir_open(r);
	if (dir < 0)
		return dir;
	u32 pid = S->pid;
	r->pid = pid; /* for names; published again when all is ready */
	err = r->t && !r->left ? 0 : table_map(r, dir);
	if (!err && !(S->proc && r->page_own))
		err = page_make(r, dir, comm);
	if (!err) {
		r->users += r->left;
		r->left = 0;
		sys(SYS_lseek, dir, 0, SEEK_SET);
		sweep_files(r, dir);
		sweep_tables(r, &dir);
	}
	sys(SYS_close, dir);
	__atomic_store_n(&r->pid, err ? 0 : pid, __ATOMIC_RELEASE);
	return err;
}

int reg_dir(void)
{
	struct registry *r = reg_mine();
	int nested = r ? lk_lock(&r->lk) : 0, dir = r ? -R_REGISTRY : -R_MEMORY;

	if (r && !nested && user_now(r) == 0)
		dir = dir_open(r);
	if (r)
		lk_unlock(&r->lk, nested);
	return dir;
}

int reg_ready(void)
{
	struct registry *r = reg_use();

	if (likely(r && S->proc))
		return 0;
	if (S->engine == ENG_DEAD)
		return -(int)(S->engine_reason ? S->engine_reason : R_ENGINE);
	r = reg_mine();
	if (!r)
		return -R_MEMORY;
	int nested = lk_lock(&r->lk);
	if (nested)
		return -R_REGISTRY; /* a signal handler in the middle of it: this connection stays plain */
	int err = user_now(r);
	if (!err && (r->left || r->pid != S->pid || !S->proc)) {
		err = r->err;
		if (!err || now_ns() >= r->again) {
			err = reg_open(r);
			r->err = err;
			if (err)
				r->again = now_ns() + RETRY_NS;
		}
	}
	lk_unlock(&r->lk, 0);
	return err;
}

/* ---- listeners ---- */

/* The entry of that socket, or 0. */
static struct listener *listener_find(struct table *t, u16 port, u64 cookie)
{
	for (u32 i = 0; i < CHAIN; i++) {
		u32 b = (port + i) % CHAIN;
		for (u32 k = 0; k < BUCKET; k++)
			if (atomic_load_explicit(&t->l[b * BUCKET + k].cookie, memory_order_acquire) == cookie)
				return &t->l[b * BUCKET + k];
		if (!atomic_load(&t->spilled[b]))
			return 0;
	}
	return 0;
}

static struct listener *listener_take(struct table *t, u16 port, u64 own)
{
	for (u32 i = 0; i < CHAIN; i++) {
		u32 b = (port + i) % CHAIN;
		for (u32 k = 0; k < BUCKET; k++) {
			struct listener *e = &t->l[b * BUCKET + k];
			u64 none = 0;
			mark(t->lmap, b);
			if (!atomic_load(&e->own) && atomic_compare_exchange_strong(&e->own, &none, own)) {
				mark(t->lmap, b);
				return e;
			}
		}
		atomic_store(&t->spilled[b], 1);
	}
	return 0;
}

static void now_listener(int fd, struct table *t, struct listener *e)
{
	if ((unsigned)fd >= FD_MAX)
		return;
	atomic_store(&S->fd_sock[fd], (u32)(e - t->l) + 1);
	u32 top = atomic_load(&S->fd_top), n = (u32)fd + 1;
	while (top < n && !atomic_compare_exchange_weak(&S->fd_top, &top, n))
		;
	atomic_store_explicit(&S->fd_kind[fd], FD_LISTENER, memory_order_release);
}

int reg_listen(int fd)
{
	int err = S->mode == MODE_OFF ? -R_OFF : reg_ready();
	struct registry *r = err ? 0 : reg_use();
	struct place p;

	if (!r)
		return err ? err : -R_REGISTRY;
	/* A client that only connects would never be accepted, so never claimed; data on the SYN would precede the handshake. */
	if (sockopt_int(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT) || sockopt_int(fd, IPPROTO_TCP, TCP_FASTOPEN))
		return -R_SOCKOPT;
	if (name_place(fd, SYS_getsockname, &p) < 0 || !p.port)
		return -R_REGISTRY;
	u64 cookie = sockopt_u64(fd, SO_COOKIE), own = own_of(r);
	if (!cookie)
		return -R_REGISTRY;

	struct listener *e = listener_find(r->t, p.port, cookie);
	if (e) { /* listen again, or inherited */
		struct judge j = {.deep = 1};
		u64 was = atomic_load(&e->own);
		if (was != own && (!alive(r, &j, was, e->start) || (atomic_load(&e->flags) & LF_ORPHAN)) &&
		    atomic_compare_exchange_strong(&e->own, &was, own)) {
			e->start = r->start;
			atomic_fetch_and(&e->flags, (u8)~LF_ORPHAN);
			atomic_store(&e->cookie, cookie); /* a sweeper may just have withdrawn it */
		} else if (was == own) {
			atomic_fetch_and(&e->flags, (u8)~LF_ORPHAN);
		}
		now_listener(fd, r->t, e);
		return 0;
	}
	e = listener_take(r->t, p.port, own);
	if (!e) {
		sweep_tables(r, 0);
		e = listener_take(r->t, p.port, own);
	}
	if (!e)
		return -R_REGISTRY;
	e->start = r->start;
	e->netns = sockopt_u64(fd, SO_NETNS_COOKIE);
	memcpy(e->addr, p.addr, 16);
	e->port = p.port;
	e->family = p.family;
	e->scope = p.scope;
	e->uid = r->uid;
	e->abi = SMCR_ABI;
	atomic_store(&e->flags, p.family == AF_INET6 && sockopt_int(fd, IPPROTO_IPV6, IPV6_V6ONLY) ? LF_V6ONLY : 0);
	atomic_store(&e->cookie, cookie);
	now_listener(fd, r->t, e);
	return 0;
}

int reg_is_listener(int fd)
{
	struct registry *r = reg_ready() < 0 ? 0 : reg_use();
	struct place p;
	u64 cookie = sockopt_u64(fd, SO_COOKIE);

	if (!r || !cookie || name_place(fd, SYS_getsockname, &p) < 0)
		return 0;
	struct listener *e = listener_find(r->t, p.port, cookie);
	if (e)
		now_listener(fd, r->t, e);
	return e != 0;
}

void reg_unlisten(int fd)
{
	struct registry *r = reg_use();
	struct place p;
	u64 cookie = sockopt_u64(fd, SO_COOKIE);

	/* It stays FD_LISTENER: connections that the kernel hook answered may wait in its backlog. */
	if ((unsigned)fd < FD_MAX)
		atomic_store(&S->fd_sock[fd], 0);
	if (!r || !cookie || name_place(fd, SYS_getsockname, &p) < 0)
		return;
	struct listener *e = listener_find(r->t, p.port, cookie);
	if (e)
		listener_drop(e, atomic_load(&e->own), cookie);
}

/*
 * An entry belongs to the socket, not to a process: a master that forks its workers and closes or exits must not take it
 * away, and who was forked must not either. So the publisher asks the kernel whether the socket still listens; whoever
 * else closes leaves it to the publisher while that lives. Somebody left: an orphan, judged by the kernel from then on.
 */
void reg_gone(u32 listener)
{
	struct registry *r = reg_use();
	struct judge j = {.deep = 1};
	struct listener e;

	if (!r || !listener || listener > LISTENERS)
		return;
	struct listener *p = &r->t->l[listener - 1];
	if (!listener_copy(p, &e))
		return;
	u64 own = e.own;
	if (own != own_of(r) && !(e.flags & LF_ORPHAN) && alive(r, &j, own, e.start))
		return;
	if (listener_lives(r, &e) > 0)
		atomic_fetch_or(&p->flags, LF_ORPHAN);
	else
		listener_drop(p, own, e.cookie);
}

static int matches(const struct listener *e, const struct place *to)
{
	struct place at = {.port = e->port, .family = e->family};

	memcpy(at.addr, e->addr, 16);
	if (at.port != to->port)
		return 0;
	if (at.family == to->family && !memcmp(at.addr, to->addr, 16))
		return !e->scope || !to->scope || e->scope == to->scope;
	return is_any(&at) && (at.family == to->family || (at.family == AF_INET6 && !(e->flags & LF_V6ONLY)));
}

/* The kernel connects there, then. */
static void loopback_of_any(struct place *p)
{
	if (is_any(p))
		memcpy(p->addr, p->family == AF_INET ? "\x7f\0\0\1" : "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1", p->family == AF_INET ? 4 : 16);
}

int reg_lookup(const struct sockaddr *sa, socklen_t len)
{
	struct registry *r = S->reg;
	int found = -R_NO_LISTENER;
	struct judge j = {0};
	struct listener e;
	struct place to;

	if (!sa || !place_of(sa, len, &to))
		return -R_NO_LISTENER;
	loopback_of_any(&to);
	for (u32 i = 0; i < CHAIN; i++) {
		u32 b = (to.port + i) % CHAIN;
		for (u32 k = 0; k < BUCKET; k++) {
			struct listener *p = &r->t->l[b * BUCKET + k];
			if (!listener_copy(p, &e) || !matches(&e, &to) || e.uid != r->uid)
				continue;
			if (e.netns != my_netns(r)) {
				if (!r->netns_known) /* a socket could not be made to ask for it */
					found = -R_NO_FD;
				continue;
			}
			if (!alive(r, &j, e.own, e.start) || (e.flags & LF_ORPHAN)) {
				if (listener_lives(r, &e) <= 0) {
					listener_drop(p, e.own, e.cookie);
					continue;
				}
				atomic_fetch_or(&p->flags, LF_ORPHAN);
			}
			if (e.abi == SMCR_ABI)
				return 0;
			found = -R_VERSION;
		}
		if (!atomic_load(&r->t->spilled[b]))
			break;
	}
	return found;
}

/*
 * A handshake costs as much as some dozen exchanges by TCP. Where connections come and go one after the other and carry little, as
 * those of HTTP clients without keep-alive do, it never pays; nor would anybody wait for it once a second. So for each place (a hash
 * of it) it is known how many of the last connections there, one within HASTE_MS of the other, were like that. After HASTE_MIN of them
 * the next ones stay plain, but for one in HASTE_TRY: it tells whether they are still like that. If so, the next try is twice as far.
 */
#define HASTE_MS 10
#define HASTE_MIN 16
#define HASTE_TRY 32
#define HASTE_TRIES 5	   /* as often twice as far */
#define HASTE_COUNT 0xfffu /* the low bits; then three for how often; above them the time in milliseconds, modulo 2^17 */
#define HASTE_TIME 0x1ffffu
_Static_assert(HASTE_MIN + (HASTE_TRY << HASTE_TRIES) <= HASTE_COUNT && HASTE_TRIES < 8, "fits");

struct haste {
	u32 n, tries, at;
};

static struct haste haste_read(u32 w)
{
	return (struct haste){w & HASTE_COUNT, w >> 12 & 7, w >> 15};
}

static u32 haste_word(struct haste h)
{
	return h.at << 15 | h.tries << 12 | h.n;
}

static u32 haste_now(void)
{
	return (u32)(now_ns() / 1000000) & HASTE_TIME;
}

static int haste_calm(struct haste h, u32 now)
{
	return ((now - h.at) & HASTE_TIME) > HASTE_MS;
}

static u64 place_hash(const struct registry *r, const struct place *p)
{
	u64 h = 0xcbf29ce484222325ull ^ r->netns;

	for (u32 i = 0; i < sizeof p->addr; i++)
		h = (h ^ p->addr[i]) * 0x100000001b3ull;
	return (h ^ p->port) * 0x100000001b3ull;
}

static _Atomic u32 *haste_of(struct registry *r, const struct place *p)
{
	u64 h = place_hash(r, p);

	return &r->t->haste[(h ^ h >> 32) % HASTES];
}

int reg_haste(const struct sockaddr *sa, socklen_t len)
{
	struct registry *r = __atomic_load_n(&S->reg, __ATOMIC_ACQUIRE);
	struct place p;

	if (!S->adapt || !r || !r->t || !place_of(sa, len, &p))
		return 0;
	loopback_of_any(&p);
	_Atomic u32 *last = haste_of(r, &p);
	u32 w = atomic_load(last), now = haste_now();
	struct haste h = haste_read(w);
	if (h.n < HASTE_MIN)
		return 0;
	int calm = haste_calm(h, now), again = h.n + 1 >= HASTE_MIN + ((u32)HASTE_TRY << h.tries);
	if (calm)
		h = (struct haste){0};
	else if (again)
		h = (struct haste){HASTE_MIN, h.tries + (h.tries < HASTE_TRIES), now};
	else
		h.n++, h.at = now;
	atomic_compare_exchange_strong(last, &w, haste_word(h));
	return !calm && !again;
}

void reg_ended(const struct block *b, int paid)
{
	struct registry *r = reg_use();
	struct place p;

	if (!r)
		return;
	place_set(&p, b->family, b->paddr, htons(b->pport));
	_Atomic u32 *last = haste_of(r, &p);
	u32 w = atomic_load(last), now = haste_now();
	struct haste h = haste_read(w);
	if (paid || haste_calm(h, now))
		h = (struct haste){!paid, 0, 0};
	else if (h.n < HASTE_MIN)
		h.n++;
	h.at = now;
	atomic_compare_exchange_strong(last, &w, haste_word(h));
}

/* ---- peers that took the option for theirs and do not speak SMC-R ---- */

static struct shunned *shun_set(struct registry *r, const struct place *p, u64 *who)
{
	u64 h = place_hash(r, p);

	*who = h ? h : 1;
	return &r->t->shunned[h % (SHUNNED / SHUN_WAYS) * SHUN_WAYS];
}

int reg_shunned(const struct sockaddr *sa, socklen_t len)
{
	struct registry *r = reg_use();
	struct place p;
	u64 who;

	if (!r || !place_of(sa, len, &p))
		return 0;
	struct shunned *s = shun_set(r, &p, &who);
	for (int i = 0; i < SHUN_WAYS; i++)
		if (atomic_load(&s[i].who) == who && atomic_load(&s[i].until) > now_ns())
			return 1;
	return 0;
}

void reg_shun(const struct block *b)
{
	struct registry *r = reg_use();
	struct shunned *oldest = 0;
	struct place p;
	u64 who;

	if (!r)
		return;
	place_set(&p, b->family, b->paddr, htons(b->pport));
	struct shunned *s = shun_set(r, &p, &who);
	for (int i = 0; i < SHUN_WAYS; i++) {
		if (atomic_load(&s[i].who) == who) {
			oldest = &s[i];
			break;
		}
		if (!oldest || atomic_load(&s[i].until) < atomic_load(&oldest->until))
			oldest = &s[i];
	}
	atomic_store(&oldest->who, who);
	atomic_store(&oldest->until, now_ns() + SHUN_NS);
}

struct unknown {
	struct table *t;
	struct place to;
};

/* A listening socket that may take connections to that place and is not in the table. */
static int is_unknown(const struct inet_diag_msg *m, void *arg)
{
	struct unknown *u = arg;
	struct place at = {.port = ntohs(m->id.idiag_sport), .family = m->idiag_family};

	memcpy(at.addr, m->id.idiag_src, at.family == AF_INET ? 4 : 16);
	if (!is_any(&at) && !same_place(&u->to, m->id.idiag_src, m->id.idiag_sport, m->idiag_family))
		return 0;
	return !listener_find(u->t, at.port, cookie_of(m));
}

int diag_foreign_listener(int fd)
{
	struct registry *r = reg_use();
	struct unknown u;
	int found = 0;

	if (!r || name_place(fd, SYS_getpeername, &u.to) < 0)
		return 0;
	u.t = r->t;
	int nested = lk_lock(&r->diag_lk);
	if (!nested && diag_open() == 0) {
		found = diag_listeners(r, AF_INET6, u.to.port, is_unknown, &u);
		if (found <= 0 && u.to.family == AF_INET)
			found = diag_listeners(r, AF_INET, u.to.port, is_unknown, &u);
	}
	lk_unlock(&r->diag_lk, nested);
	return found > 0;
}

/* ---- offers ---- */

static u64 word(u64 cookie, u32 state)
{
	return cookie << 2 | state;
}

static u32 bucket_of(u64 cookie)
{
	return (u32)((cookie * 0x9E3779B97F4A7C15ull) >> 55) * BUCKET; /* 9 bits: 512 buckets */
}

/* The i-th place where that cookie may lie: its bucket, then the neighbour. */
static u32 place_at(u64 cookie, u32 i)
{
	return (bucket_of(cookie) ^ (i & BUCKET)) + (i & (BUCKET - 1));
}
#define PLACES (2 * BUCKET)
_Static_assert(OFFERS == 512 * BUCKET, "bucket_of makes 9 bits");

static struct table *offers(int slot)
{
	struct registry *r = (u32)slot < OFFERS ? reg_use() : 0;

	return r ? r->t : 0;
}

int reg_offer(int fd, u64 *cookie)
{
	int err = reg_ready();
	struct registry *r = err ? 0 : reg_use();
	struct judge j = {.deep = 4};

	if (!r)
		return err ? err : -R_REGISTRY;
	struct table *t = r->t;
	u64 c = sockopt_u64(fd, SO_COOKIE), me = own_of(r);
	if (!c)
		return -R_REGISTRY;
	for (int pass = 0; pass < 2; pass++)
		for (u32 i = 0; i < PLACES; i++) {
			u32 n = place_at(c, i);
			u64 own = atomic_load_explicit(&t->own[n], memory_order_relaxed);
			if (own && pass && !alive(r, &j, own, t->o[n].start)) {
				offer_step(t, n, atomic_load(&t->state[n]), 0);
				if (atomic_compare_exchange_strong(&t->own[n], &own, 0))
					own = 0;
			}
			mark(t->omap, n / BUCKET);
			if (own || !atomic_compare_exchange_strong(&t->own[n], &own, me))
				continue;
			mark(t->omap, n / BUCKET);
			struct offer *o = &t->o[n];
			atomic_store(&o->gid_of, 0);
			o->start = r->start;
			o->uid = r->uid;
			o->abi = SMCR_ABI;
			atomic_fetch_add(&t->open, 1);
			atomic_store(&t->state[n], word(c, REG_OFFERED));
			*cookie = c;
			return (int)n;
		}
	return -R_REGISTRY;
}

int reg_quiet(void)
{
	return reg_ready() == 0 && !atomic_load(&S->reg->t->open);
}

int reg_find(u64 cookie)
{
	struct registry *r = reg_use();

	if (!r || !cookie)
		return -1;
	for (u32 i = 0; i < PLACES; i++) {
		u32 n = place_at(cookie, i);
		if (atomic_load(&r->t->state[n]) == word(cookie, REG_OFFERED) && r->t->o[n].abi == SMCR_ABI &&
		    r->t->o[n].uid == r->uid)
			return (int)n;
	}
	return -1;
}

int reg_offered(int fd, u64 *cookie)
{
	struct registry *r = reg_use();

	*cookie = sockopt_u64(fd, SO_COOKIE);
	for (u32 i = 0; r && i < PLACES; i++) {
		u32 n = place_at(*cookie, i);
		if (reg_state((int)n, *cookie) != REG_FREE && atomic_load(&r->t->own[n]) == own_of(r))
			return (int)n;
	}
	return -1;
}

int reg_begin(int slot, const u8 peer[16])
{
	struct table *t = offers(slot);
	u64 who[2] = {0};

	if (t)
		who[0] = atomic_load(&t->own[slot]);
	else if (slot < 0)
		memcpy(who, peer, sizeof who);
	else
		return -R_REGISTRY;
	u32 n = bucket_of(who[0] ^ who[1]) / BUCKET % HALF_OPEN_PEERS;
	if (atomic_fetch_add(&S->half_open[n], 1) < HALF_OPEN_MAX)
		return (int)n;
	reg_over(n);
	return -R_HALF_OPEN;
}

void reg_over(u32 number)
{
	if (number < HALF_OPEN_PEERS)
		atomic_fetch_sub(&S->half_open[number], 1);
}

static int step(int slot, u64 cookie, u32 to)
{
	struct table *t = offers(slot);

	return t && cookie && offer_step(t, (u32)slot, word(cookie, REG_OFFERED), word(cookie, to));
}

int reg_claim(int slot, u64 cookie)
{
	return step(slot, cookie, REG_CLAIMED);
}

int reg_withdraw(int slot, u64 cookie)
{
	return step(slot, cookie, REG_WITHDRAWN);
}

int reg_state(int slot, u64 cookie)
{
	struct table *t = offers(slot);
	u64 w = t ? atomic_load(&t->state[slot]) : 0;

	return cookie && w >> 2 == word(cookie, 0) >> 2 ? (int)(w & 3) : REG_FREE;
}

void reg_done(int slot, u64 cookie)
{
	struct table *t = offers(slot);

	if (!t || !cookie)
		return;
	u64 own = atomic_load(&t->own[slot]), w = atomic_load(&t->state[slot]);
	if (w >> 2 == word(cookie, 0) >> 2 && offer_step(t, (u32)slot, w, 0))
		atomic_compare_exchange_strong(&t->own[slot], &own, 0);
}

void reg_set_gid(int slot, u64 cookie, const u8 gid[16])
{
	struct table *t = offers(slot);
	u64 g[2];

	if (reg_state(slot, cookie) == REG_FREE)
		return;
	memcpy(g, gid, 16);
	atomic_store(&t->o[slot].gid[0], g[0]);
	atomic_store(&t->o[slot].gid[1], g[1]);
	atomic_store(&t->o[slot].gid_of, cookie);
}

int reg_get_gid(int slot, u64 cookie, u8 gid[16])
{
	struct table *t = offers(slot);
	u64 g[2];

	if (reg_state(slot, cookie) == REG_FREE || atomic_load(&t->o[slot].gid_of) != cookie)
		return -EAGAIN;
	g[0] = atomic_load(&t->o[slot].gid[0]);
	g[1] = atomic_load(&t->o[slot].gid[1]);
	if (atomic_load(&t->o[slot].gid_of) != cookie)
		return -EAGAIN;
	memcpy(gid, g, 16);
	return 0;
}

/*
 * Server: the client behind the accepted socket `fd` shall not wait for a claim. The slot says so, the datagram only that
 * there is something to see: without it (no descriptor, no name yet) the client looks by itself within half a second.
 */
void reg_refuse(int fd)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX}, from = {.sun_family = AF_UNIX};
	const socklen_t len = offsetof(struct sockaddr_un, sun_path) + 1 + 16;
	struct { u32 type, len; u64 cookie; u32 slot; } __attribute__((packed)) m = {DGRAM_CLAIM, 12, 0, 0};
	struct diag d;
	int slot;

	if (reg_ready() < 0 || diag_mirror(fd, &d) < 0 || (slot = reg_find(d.cookie)) < 0)
		return;
	int known = reg_get_gid(slot, d.cookie, (u8 *)to.sun_path + 1) == 0;
	if (!reg_withdraw(slot, d.cookie) || !known)
		return;
	m.cookie = d.cookie;
	m.slot = (u32)slot;
	/* A socket with a name of its own, as engines listen only to such: this process may have no engine. */
	long s = sys(SYS_socket, AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s < 0)
		return;
	if (sys(SYS_getrandom, from.sun_path + 1, 16, 0) == 16 && sys(SYS_bind, s, &from, len) == 0)
		sys(SYS_sendto, s, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL, &to, len);
	sys(SYS_close, s);
}

/* ---- more blocks ---- */

/* Behind the `n` that the process's file has: SLAB_BLOCKS more, mapped, or 0. */
struct block *reg_slab(u32 n)
{
	struct registry *r = reg_use();
	size_t len = SLAB_BLOCKS * sizeof(struct block);
	u64 at = 4096 + (u64)n * sizeof(struct block);
	char path[sizeof r->dir + 64];

	if (!r || !r->page_own)
		return 0;
	page_path(r, path);
	long fd = sys(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0), m = fd;
	if (fd < 0)
		return 0;
	m = fits(at + len) ? sys(SYS_fallocate, fd, 0, at, len) : -EFBIG; /* a full file system is an error here and not a SIGBUS later */
	if (!failed(m))
		m = sys(SYS_mmap, 0, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at);
	sys(SYS_close, fd);
	return failed(m) ? 0 : (struct block *)m;
}

/* ---- fork, exec, exit ---- */

void reg_forked(void)
{
	struct registry *r = S->reg;

	fd_unhide(S->diag); /* shared with the parent: answers would get mixed up */
	S->diag = -1;
	S->proc = 0; /* inherited blocks stay mapped and count in the parent's page */
	memset((void *)S->half_open, 0, sizeof S->half_open);
	if (r) {
		atomic_store(&r->lk.w, 0);
		atomic_store(&r->diag_lk.w, 0);
		r->pid = r->page_own = 0;
		S->before = 0;
		r->netns_known = 0;
		r->err = 0;
	}
}

void reg_heirs(enum heir heir)
{
	for (u32 fd = 0, top = atomic_load(&S->fd_top); fd < top && fd < FD_MAX; fd++) {
		struct sock *s = kind_of((int)fd) == FD_SOCK ? sock_get((int)fd, 1) : 0;

		if (!s)
			continue;
		long fl = sys(SYS_fcntl, fd, F_GETFD);
		int unused = fl >= 0 && atomic_load(&s->b->state) == S_ACCEPTED, inherits = !(fl & FD_CLOEXEC);
		int agreed = (atomic_load(&s->b->flags) & BF_AGREED) != 0;
		/* inetd's child: its parent, in whose file the block lies, has closed. Agreed: the peer would wait for the heir. */
		if (unused && ((heir == HEIR_EXEC && atomic_load(&s->b->procs) == 1) || (inherits && agreed)))
			sock_leave(s, R_LEFT_EARLY);
		else if (unused && !agreed && (inherits || heir == HEIR_CHOOSES))
			reg_refuse((int)fd);
		sock_put(s);
	}
}

void reg_exec(void)
{
	struct registry *r = reg_use();

	if (!r)
		return;
	own_drop(r, 0);
	for (u32 fd = 0, top = atomic_load(&S->fd_top); fd < top && fd < FD_MAX; fd++) {
		u8 kind = FD_LISTENER; /* should exec fail, the next accept publishes it again */
		atomic_compare_exchange_strong(&S->fd_kind[fd], &kind, FD_UNKNOWN);
	}
}

void reg_exit(void)
{
	struct registry *r = reg_use();
	char path[sizeof r->dir + 64];

	if (!r || !r->page_own)
		return;
	own_drop(r, 1);
	page_path(r, path);
	sys(SYS_unlinkat, AT_FDCWD, path, 0);
	r->page_own = 0;
}

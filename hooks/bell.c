/*
 * Bells (shim.h "waking"): an epoll set or a thread in poll owns one, other processes ring it. An owner asleep in
 * the kernel costs the ringer one write, an awake one two atomics. Handing a bell over is one datagram; a ringer that
 * did not get it yet asks the owner's engine to ring, as do other users' processes, who get none: a page that they could
 * write would be theirs to silence, and a descriptor of theirs could block who writes to it. The pool works without locks
 * (poll is allowed in signal handlers), the table of foreign bells has one writer, the engine.
 */
#include "shim.h"
#include "sys.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/un.h>

#define INDEX(id) ((id) & (BELL_MAX - 1))
#define PAGE_SIZE_OF_BELLS (BELL_MAX * sizeof(struct bell_word))
#define PROBES 128
#define BIT(map, i) (atomic_load(&(map)[(i) / 64]) >> (i) % 64 & 1)

/* ---- ours --------------------------------------------------------------------------------------------------- */

/* A salt per process, so that a bell's id says whose it is: parents and children share arm words. */
static void pick_salt(void)
{
	u32 r, none = 0;

	if (sys(SYS_getrandom, &r, sizeof r, GRND_NONBLOCK) != (long)sizeof r)
		r = (u32)now_ns();
	u32 salt = r % 1023 + 1;
	for (int i = 0; i < 1023 && S->bell_salts[salt / 64] >> salt % 64 & 1; i++)
		salt = salt % 1023 + 1;
	__atomic_compare_exchange_n(&S->salt, &none, salt, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* The page of our bells: sealed, so that no ringer dies of our truncating it. Two threads may make one each. */
static int make_page(void)
{
	struct bell_word *none = 0;
	long fd = sys(SYS_memfd_create, "smcr-bells", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0)
		return (int)fd;
	long r = fits(PAGE_SIZE_OF_BELLS) ? sys(SYS_ftruncate, fd, PAGE_SIZE_OF_BELLS) : -EFBIG;
	if (r == 0)
		r = sys(SYS_fcntl, fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	if (r == 0)
		r = sys(SYS_mmap, 0, PAGE_SIZE_OF_BELLS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (r < 0) {
		sys(SYS_close, fd);
		return (int)r;
	}
	int hid = fd_hide((int)fd);
	if (!__atomic_load_n(&S->salt, __ATOMIC_ACQUIRE))
		pick_salt();
	if (!__atomic_compare_exchange_n(&S->bell_page, &none, (struct bell_word *)r, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
		sys(SYS_munmap, r, PAGE_SIZE_OF_BELLS);
		fd_unhide(hid);
		return 0;
	}
	__atomic_store_n(&S->bell_pagefd, hid + 1, __ATOMIC_RELEASE);
	return 0;
}

static int make_bell(struct bell *b, int idx)
{
	if (!__atomic_load_n(&S->bell_page, __ATOMIC_ACQUIRE)) {
		int r = make_page();
		if (r < 0)
			return r;
	}
	long fd = sys(SYS_eventfd2, 0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (fd < 0)
		return (int)fd;
	b->fd = fd_hide((int)fd);
	__atomic_store_n(&b->word, S->bell_page + idx, __ATOMIC_RELEASE);
	return 0;
}

int bell_get(void)
{
	for (int i = 1; i < BELL_MAX; i++) {
		struct bell *b = &S->bell[i];
		if (__atomic_load_n(&b->used, __ATOMIC_RELAXED) || __atomic_exchange_n(&b->used, 1, __ATOMIC_ACQUIRE))
			continue;
		u32 hi = __atomic_load_n(&S->bell_hi, __ATOMIC_RELAXED);
		while (hi < (u32)i && !__atomic_compare_exchange_n(&S->bell_hi, &hi, i, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			;
		if (!b->word) {
			int r = make_bell(b, i);
			if (r < 0) {
				__atomic_store_n(&b->used, 0, __ATOMIC_RELEASE);
				return r;
			}
			return i;
		}
		/* An earlier owner's: peers know it still, what they rang is stale. */
		u64 n;
		sys(SYS_read, b->fd, &n, sizeof n);
		atomic_store(&b->word->summary, 0);
		for (int k = 0; k < 64; k++)
			if (atomic_load_explicit(&b->word->bits[k], memory_order_relaxed))
				atomic_store(&b->word->bits[k], 0);
		return i;
	}
	return -ENOSPC;
}

void bell_put(int idx)
{
	struct bell *b = &S->bell[idx];

	atomic_store(&b->word->asleep, 0);
	__atomic_store_n(&b->used, 0, __ATOMIC_RELEASE);
}

u32 bell_id(int idx)
{
	return S->salt << 10 | (u32)idx;
}

/* Where that process's engine listens: abstract, a zero byte and then the name. */
static socklen_t engine_of(u32 peer, struct sockaddr_un *to)
{
	*to = (struct sockaddr_un){.sun_family = AF_UNIX};
	memcpy(to->sun_path + 1, S->peer[peer].gid, sizeof S->peer[peer].gid);
	return offsetof(struct sockaddr_un, sun_path) + 1 + sizeof S->peer[peer].gid;
}

int bell_tell(int idx, u32 peer)
{
	struct bell *b = &S->bell[idx];
	struct sockaddr_un to;
	struct bell_msg m = {.type = DGRAM_BELL, .len = sizeof m - 8, .id = bell_id(idx)};
	union {
		struct cmsghdr h;
		char room[CMSG_SPACE(2 * sizeof(int))];
	} c = {0};
	int page = __atomic_load_n(&S->bell_pagefd, __ATOMIC_ACQUIRE) - 1, fds[2] = {b->fd, page};

	if (peer == SELF_PEER)
		return atomic_load(&S->forked) ? -ENOTCONN : 0;
	if (!peer || peer >= PEER_MAX || !atomic_load(&S->peer[peer].used))
		return -EINVAL;
	if (atomic_load(&S->peer[peer].stranger))
		return -EXDEV;
	if (BIT(b->told, peer))
		return 0;
	if (atomic_load(&S->engine) != ENG_READY || S->dgram < 0 || page < 0)
		return -EAGAIN;
	if (__atomic_load_n(&S->bell_told[peer], __ATOMIC_RELAXED) >= BELL_PER_PEER)
		return -ENOSPC;

	int first = !BIT(S->bell_paged, peer), n = first ? 2 : 1;
	memcpy(m.gid, S->gid, sizeof m.gid);
	c.h.cmsg_level = SOL_SOCKET;
	c.h.cmsg_type = SCM_RIGHTS;
	c.h.cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(&c.h), fds, n * sizeof(int));
	struct iovec v = {&m, sizeof m};
	struct msghdr h = {&to, engine_of(peer, &to), &v, 1, &c, CMSG_SPACE(n * sizeof(int)), 0};
	long r = sys(SYS_sendmsg, S->dgram, &h, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (r < 0)
		return (int)r;
	if (first)
		atomic_fetch_or(&S->bell_paged[peer / 64], 1ull << peer % 64);
	if (!(atomic_fetch_or(&b->told[peer / 64], 1ull << peer % 64) >> peer % 64 & 1))
		__atomic_fetch_add(&S->bell_told[peer], 1, __ATOMIC_RELAXED);
	return 0;
}

/* ---- ringing --------------------------------------------------------------------------------------------------- */

void bell_sleeps(struct bell_word *w)
{
	atomic_store(&w->asleep, atomic_fetch_add(&S->bell_naps, 2) | 1);
}

/* The write first: a handler that interrupts us and waits for what the owner does must not believe that the owner was
 * woken. It may be late, too: then the owner sleeps for another time, with another number. */
void bell_wake(struct bell_word *w, int fd)
{
	u32 nap = atomic_load(&w->asleep);
	u64 one = 1;

	if (!nap)
		return;
	sys(SYS_write, fd, &one, sizeof one);
	atomic_compare_exchange_strong(&w->asleep, &nap, 0);
}

static void ring(struct bell_word *w, int fd, u32 tag)
{
	tag %= 4096;
	atomic_fetch_or(&w->bits[tag / 64], 1ull << tag % 64);
	atomic_fetch_or(&w->summary, 1ull << tag / 64);
	/* the owner says that it sleeps, then looks at the summary: one of us sees the other */
	bell_wake(w, fd);
}

static u32 slot_of(u32 id, u32 probe)
{
	return ((id * 0x9e3779b1u >> 16) + probe) & (BELL_ENTS - 1);
}

/* One foreign bell, or (peer = 0) all with that id. The page stays mapped whatever happens to its owner. */
static int ring_foreign(u32 peer, u32 id, u32 tag)
{
	int rung = 0;

	for (u32 i = 0; i < PROBES; i++) {
		struct bell_ent *e = &S->bell_ent[slot_of(id, i)];
		u64 key = atomic_load_explicit(&e->key, memory_order_acquire);
		if (!key)
			break;
		if (key == BELL_RETIRED || (u32)key != id || (peer && key >> 32 != peer))
			continue;
		ring(S->peer[key >> 32].bells + INDEX(id), atomic_load_explicit(&e->fd, memory_order_relaxed), tag);
		rung = 1;
		if (peer)
			break;
	}
	return rung;
}

/* By the peer's engine. What its queue has no room for our engine sends again. */
static void ring_by_engine(struct sock *s, u32 peer, u32 id, u32 tag)
{
	struct { u32 type, len, id, tag; } m = {DGRAM_RING, 8, id, tag};
	struct sockaddr_un to;
	long r = -EAGAIN;

	if (peer && peer < PEER_MAX && S->dgram >= 0) {
		socklen_t len = engine_of(peer, &to);
		r = sys(SYS_sendto, S->dgram, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL, &to, len);
	}
	if (r == -EAGAIN || r == -ENOBUFS)
		engine_post(REQ_RING, s, (u64)id << 32 | tag);
}

void bell_ring(struct sock *s, u32 id, u32 tag, int own)
{
	u32 peer = s->peer;

	if (!INDEX(id))
		return;
	if ((own || peer == SELF_PEER) && id >> 10 == S->salt) {
		struct bell *b = &S->bell[INDEX(id)];
		struct bell_word *w = __atomic_load_n(&b->word, __ATOMIC_ACQUIRE);
		if (w)
			ring(w, b->fd, tag);
		return;
	}
	if (own)
		return; /* of a process that shares the connection: it watches for itself */
	/* A forked child of the peer has an engine, so a number, of its own; its ids come without it. */
	int strange = peer && peer < PEER_MAX && atomic_load(&S->peer[peer].stranger);
	if (strange || (!(peer && ring_foreign(peer, id, tag)) && !ring_foreign(0, id, tag)))
		ring_by_engine(s, peer, id, tag);
}

void bell_rung(u32 id, u32 tag)
{
	struct bell *b = &S->bell[INDEX(id)];
	struct bell_word *w = __atomic_load_n(&b->word, __ATOMIC_ACQUIRE);

	if (INDEX(id) && id >> 10 == S->salt && w)
		ring(w, b->fd, tag);
}

/* ---- foreign bells (engine) --------------------------------------------------------------------------------- */

/* A number once published is only ever replaced: a late ringer may hit a wrong bell, which is harmless, but never
 * a stranger's file. fd is the caller's to close unless `hidden`, when it goes into the table as it is. */
static int ent_put(u32 peer, u32 id, int fd, int hidden)
{
	struct bell_ent *free = 0;
	u64 key = (u64)peer << 32 | id;

	for (u32 i = 0; i < PROBES; i++) {
		struct bell_ent *e = &S->bell_ent[slot_of(id, i)];
		u64 k = atomic_load(&e->key);
		if (k == key) {
			long r = sys(SYS_dup3, fd, atomic_load(&e->fd), O_CLOEXEC);
			return r < 0 ? (int)r : 0;
		}
		if (!free && (!k || k == BELL_RETIRED))
			free = e;
		if (!k)
			break;
	}
	if (!free || S->bell_held[peer] >= BELL_PER_PEER)
		return -ENOSPC;
	int hid = fd;
	if (!hidden && S->bell_spares) {
		hid = S->bell_spare[S->bell_spares - 1];
		long r = sys(SYS_dup3, fd, hid, O_CLOEXEC);
		if (r < 0)
			return (int)r;
		S->bell_spares--;
	} else if (!hidden) {
		long r = sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 3);
		if (r < 0)
			return (int)r;
		hid = fd_hide((int)r);
	}
	atomic_store(&free->fd, hid);
	atomic_store_explicit(&free->key, key, memory_order_release);
	S->bell_held[peer]++;
	return 0;
}

/* Only an eventfd that does not block: anything else could hold up whoever rings. */
static int is_eventfd(int fd)
{
	static const char want[] = "anon_inode:[eventfd]";
	char path[] = "/proc/self/fd/0123456789", to[sizeof want], d[10];
	int n = 0, at = sizeof "/proc/self/fd/" - 1;

	for (int v = fd; !n || v; v /= 10)
		d[n++] = (char)('0' + v % 10);
	while (n)
		path[at++] = d[--n];
	path[at] = 0;
	if (sys(SYS_readlink, path, to, sizeof to) != sizeof want - 1 || memcmp(to, want, sizeof want - 1))
		return 0;
	long fl = sys(SYS_fcntl, fd, F_GETFL);
	return fl >= 0 && sys(SYS_fcntl, fd, F_SETFL, fl | O_NONBLOCK) == 0;
}

static void map_page(struct peer *p, int fd)
{
	struct stat st;

	if (sys(SYS_fcntl, fd, F_GET_SEALS) < 0 || !(sys(SYS_fcntl, fd, F_GET_SEALS) & F_SEAL_SHRINK) ||
	    sys(SYS_fstat, fd, &st) < 0 || st.st_size < (off_t)PAGE_SIZE_OF_BELLS)
		return; /* it could be cut under a ringer: SIGBUS */
	long m = sys(SYS_mmap, p->bells, PAGE_SIZE_OF_BELLS, PROT_READ | PROT_WRITE, MAP_SHARED | (p->bells ? MAP_FIXED : 0), fd, 0);
	if (m > 0 || m < -4095)
		p->bells = (struct bell_word *)m;
}

void bell_install(u32 peer, u32 id, int fd, int pagefd)
{
	int nested = lk_lock(&S->bell_lk), ok = peer > SELF_PEER && peer < PEER_MAX && INDEX(id) && id >> BELL_BITS == 0;

	if (ok && pagefd >= 0)
		map_page(&S->peer[peer], pagefd);
	if (pagefd >= 0)
		sys(SYS_close, pagefd);
	ok = ok && S->peer[peer].bells && is_eventfd(fd) && ent_put(peer, id, fd, 0) == 0;
	sys(SYS_close, fd);
	lk_unlock(&S->bell_lk, nested);
	if (!ok)
		return;
	/* Rings dropped so far could have meant any socket. */
	struct bell_word *w = S->peer[peer].bells + INDEX(id);
	for (int i = 0; i < 64; i++)
		atomic_store(&w->bits[i], ~0ull);
	atomic_store(&w->summary, ~0ull);
	ring_foreign(peer, id, 0);
}

void bell_forget(u32 peer)
{
	if (peer <= SELF_PEER || peer >= PEER_MAX)
		return;
	int nested = lk_lock(&S->bell_lk);
	u64 bit = 1ull << peer % 64;

	for (u32 i = 0; i < BELL_ENTS && S->bell_held[peer]; i++) {
		struct bell_ent *e = &S->bell_ent[i];
		if (atomic_load(&e->key) >> 32 != peer)
			continue;
		atomic_store(&e->key, BELL_RETIRED);
		S->bell_spare[S->bell_spares++] = atomic_load(&e->fd);
		S->bell_held[peer]--;
	}
	if (S->peer[peer].bells) /* late ringers write to nobody's memory, the next process there maps over it */
		sys(SYS_mmap, S->peer[peer].bells, PAGE_SIZE_OF_BELLS, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
	for (u32 i = 1; i <= S->bell_hi; i++)
		atomic_fetch_and(&S->bell[i].told[peer / 64], ~bit);
	atomic_fetch_and(&S->bell_paged[peer / 64], ~bit);
	__atomic_store_n(&S->bell_told[peer], 0, __ATOMIC_RELAXED);
	lk_unlock(&S->bell_lk, nested);
}

/*
 * A child's bells are its own. The parent's stay known to it as foreign ones of SELF_PEER: of a connection of the
 * parent to itself each may now use one end. Bells of peers are as good as before: rings and pages are shared.
 */
void bell_forked(void)
{
	int keep = !S->peer[SELF_PEER].bells && S->bell_page;
	u32 old = S->salt;

	S->bell_lk.w = 0;
	atomic_store(&S->forked, 1);
	if (keep)
		S->peer[SELF_PEER].bells = S->bell_page;
	else if (S->bell_page)
		sys(SYS_munmap, S->bell_page, PAGE_SIZE_OF_BELLS);
	if (S->bell_page && S->bell_pagefd)
		fd_unhide(S->bell_pagefd - 1);
	for (u32 i = 1; i <= S->bell_hi; i++) {
		struct bell *b = &S->bell[i];
		if (b->word && (!keep || !b->used || ent_put(SELF_PEER, old << 10 | i, b->fd, 1) < 0))
			fd_unhide(b->fd);
		memset(b, 0, sizeof *b);
	}
	S->bell_page = 0;
	S->bell_pagefd = 0;
	S->bell_hi = 0;
	S->bell_salts[old / 64] |= 1ull << old % 64;
	S->salt = 0;
	memset(S->bell_told, 0, sizeof S->bell_told);
	memset((void *)S->bell_paged, 0, sizeof S->bell_paged);
	pick_salt();
}

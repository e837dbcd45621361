/*
 * The kernel hook (smcr enable) as a program's sockets meet it: they are marked before listen and connect, the option of
 * RFC 7609 §3.1 is then on SYN and SYN-ACK, and afterwards the kernel says whether both sides had it. If so there is no
 * way back: the other end waits for a CLC message and reads whatever comes as one.
 */
#include "shim.h"
#include "sys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/types.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "../kernel/smcr.h"
#include "../preload/real.h"

enum { HOOK_UNASKED, HOOK_THERE, HOOK_ABSENT };

#define DECLINE_NS 500000000ll /* how long a Proposal is waited for that can only be declined */
#define CLC_HEAD 8
#define CLC_MAX 4096
#define CLC_PROPOSAL 1
#define CLC_DECLINE 4
#define CLC_V1 0x10
#define DECLINE_MEMORY 0x01010000u /* clc.DeclineMemory, clc.DeclineIPsec, clc.DeclineInternal */
#define DECLINE_IPSEC 0x03020000u
#define DECLINE_INTERNAL 0x09990000u

static int set_option(int fd, int name, const void *value, socklen_t len)
{
	long r = atomic_load_explicit(&S->hook, memory_order_relaxed) == HOOK_ABSENT ? -ENOPROTOOPT
										 : sys(SYS_setsockopt, fd, SOL_SMCR, name, value, len);

	u32 unasked = HOOK_UNASKED;

	/* Asked for a TCP socket: so nobody knows the level, at this socket's cgroup. Where others of the process have been
	 * marked, they are still asked for what came of it. */
	if (r == -ENOPROTOOPT)
		atomic_compare_exchange_strong(&S->hook, &unasked, HOOK_ABSENT);
	else if (r == 0)
		atomic_store(&S->hook, HOOK_THERE);
	return (int)r;
}

int hook_offer(int fd)
{
	u32 on = 1;
	u64 cookie;
	socklen_t len = sizeof cookie;

	if (!(S->discovery & 1u << SOURCE_KERNEL))
		return -ENOPROTOOPT;
	int r = set_option(fd, SMCR_OFFER, &on, sizeof on);
	if (r != -EAGAIN || sys(SYS_getsockopt, fd, SOL_SOCKET, SO_COOKIE, &cookie, &len) < 0)
		return r;
	return set_option(fd, SMCR_OFFER, &on, sizeof on);
}

void hook_withdraw(int fd)
{
	u32 off = 0;

	set_option(fd, SMCR_OFFER, &off, sizeof off);
}

int hook_verdict(int fd)
{
	struct smcr_peer p = {0};
	socklen_t len = sizeof p;

	/* Not even asked for: then no socket of this process was marked, but one that it inherited may be. */
	if (atomic_load_explicit(&S->hook, memory_order_relaxed) == HOOK_ABSENT ||
	    sys(SYS_getsockopt, fd, SOL_SMCR, SMCR_PEER, &p, &len) < 0 || len != sizeof p)
		return SMCR_UNKNOWN;
	return (int)p.verdict;
}

static u64 word(u32 state) { return (u64)S->pid << 8 | state; }

int hook_take(int fd)
{
	struct smcr_exchange x = {0, word(S_CLC)};

	return set_option(fd, SMCR_WORD, &x, sizeof x) == -EBUSY ? -EBUSY : 0; /* disabled since: the peer waits all the same */
}

void hook_decided(int fd, u32 state)
{
	struct smcr_exchange x = {word(S_CLC), word(state)};

	if (fd >= 0)
		set_option(fd, SMCR_WORD, &x, sizeof x);
}

/* ---- connecting ---- */

static u32 events_of(int fd)
{
	struct pollfd p = {fd, POLLOUT, 0};
	struct timespec zero = {0, 0};

	return sys(SYS_ppoll, &p, 1, &zero, 0, 8) > 0 ? (u32)(u16)p.revents : 0;
}

static int look(int fd)
{
	int verdict = hook_verdict(fd), known = atomic_load(&S->fd_early[fd]) & EARLY_AGREED;
	u32 events = verdict == SMCR_UNKNOWN ? events_of(fd) : 0;

	/* The verdict is there before anybody is told that the socket is connected. */
	if (events)
		verdict = hook_verdict(fd);
	if (known && verdict != SMCR_YES && (verdict != SMCR_UNKNOWN || (events && !(events & (POLLERR | POLLHUP)))))
		return conn_agreed(fd, SOURCE_RULES, 0) ? FD_SOCK : FD_PLAIN;
	if (events && verdict == SMCR_UNKNOWN) {
		atomic_store(&S->fd_kind[fd], FD_UNKNOWN); /* it failed; the program may try once more */
		return FD_UNKNOWN;
	}
	if (verdict == SMCR_UNKNOWN)
		return FD_ASKED;
	if (verdict == SMCR_YES || verdict == SMCR_DECLINE)
		return conn_agreed(fd, SOURCE_KERNEL, 0) ? FD_SOCK : FD_PLAIN;
	atomic_store(&S->fd_early[fd], 0);
	atomic_store(&S->fd_kind[fd], FD_PLAIN);
	count_tcp(verdict == SMCR_IPSEC ? R_IPSEC : R_NO_LISTENER, S->mode == MODE_REQUIRE);
	return FD_PLAIN;
}

/* ---- a thread is in connect ---- */

#define JOIN_NS 1000000000ll
#define DECIDES (1u << 31) /* in fd_sock: that thread's connect has ended, and it says what came of it */

void hook_numbers(int fd, u32 was, u8 kind, u32 who)
{
	u64 ino = (atomic_load(&S->fd_early[fd]) & EARLY_DUP) ? fd_inode(fd) : 0;

	for (int n = ino ? 0 : fd, end = ino ? (int)atomic_load(&S->fd_top) : fd + 1; n < end && n < FD_MAX; n++) {
		u8 k = (u8)kind_of(n);
		if (!(was >> k & 1) || (n != fd && (!(atomic_load(&S->fd_early[n]) & EARLY_DUP) || fd_inode(n) != ino)))
			continue;
		if (kind == FD_JOINING)
			atomic_store(&S->fd_sock[n], who);
		atomic_compare_exchange_strong(&S->fd_kind[n], &k, kind);
	}
}

u64 hook_join(int fd)
{
	fd_seen(fd);
	hook_numbers(fd, 1u << FD_UNKNOWN, FD_JOINING, my_tid());
	return fd_inode(fd);
}

void hook_joined(int fd)
{
	hook_numbers(fd, 1u << FD_JOINING, FD_UNKNOWN, 0);
}

static int joins(int fd, u32 who)
{
	return kind_of(fd) == FD_JOINING && atomic_load(&S->fd_sock[fd]) == who;
}

/* 1 = nobody else had taken it. */
static int take_join(int fd, u32 from, u32 to)
{
	int nested = lk_lock(&S->ask_lk), mine = joins(fd, from);

	if (mine)
		hook_numbers(fd, 1u << FD_JOINING, FD_JOINING, to);
	lk_unlock(&S->ask_lk, nested);
	return mine;
}

/* The number that connect was called with may be another socket's by now. */
static int take_mine(int fd, u64 ino, u32 to)
{
	u32 tid = my_tid();

	if (take_join(fd, tid, to))
		return fd;
	for (int n = 0, top = (int)atomic_load(&S->fd_top); n < top && n < FD_MAX; n++)
		if (joins(n, tid) && fd_inode(n) == ino && take_join(n, tid, to))
			return n;
	return -1;
}

int hook_decides(int fd, u64 ino)
{
	return take_mine(fd, ino, my_tid() | DECIDES);
}

void hook_orphan(int fd, u64 ino)
{
	u64 old = quiet();

	take_mine(fd, ino, 0);
	unquiet(old);
}

/*
 * Who connects may not have run since the kernel has connected, and the bytes of whoever is quicker, or comes for the peer's,
 * would be taken for CLC, or be it. A handler that interrupted connect cannot wait for it, and one that was cancelled, or left by
 * a jump, does not come back: then it is decided here.
 */
static void await_joined(int fd)
{
	i64 until = now_ns() + JOIN_NS;

	while (kind_of(fd) == FD_JOINING && !borrowed()) {
		struct timespec t = {0, 20000};
		u32 who = atomic_load(&S->fd_sock[fd]), me = my_tid();
		if (who & DECIDES ? now_ns() >= until : !events_of(fd))
			return;
		if (!(who & DECIDES) && (!who || who == me || now_ns() >= until)) {
			u64 old = quiet();
			if (take_join(fd, who, me | DECIDES))
				conn_joined(fd);
			unquiet(old);
		} else {
			sys(SYS_nanosleep, &t, 0);
		}
	}
}

void hook_left(int fd)
{
	u64 ino = (atomic_load(&S->fd_early[fd]) & EARLY_DUP) ? fd_inode(fd) : 0;

	for (int n = 0, top = (int)atomic_load(&S->fd_top); ino && n < top && n < FD_MAX; n++)
		if (n != fd && kind_of(n) == FD_JOINING && fd_inode(n) == ino)
			return;
	conn_left(fd);
}

int hook_look(int fd)
{
	if (unlikely(kind_of(fd) == FD_JOINING))
		await_joined(fd);
	u64 old = quiet(); /* a handler that uses the socket would meet it undecided */
	int nested = lk_lock(&S->ask_lk), kind = kind_of(fd);

	if (kind == FD_ASKED && !borrowed())
		kind = look(fd);
	lk_unlock(&S->ask_lk, nested);
	unquiet(old);
	return kind;
}

void hook_look_all(void)
{
	int left = 0;

	atomic_store(&S->asked, 0);
	for (u32 fd = 0, top = atomic_load(&S->fd_top); fd < top && fd < FD_MAX; fd++)
		if (kind_of((int)fd) == FD_ASKED && !(atomic_load(&S->fd_early[fd]) & EARLY_THEIRS))
			left |= hook_look((int)fd) == FD_ASKED;
	if (left)
		atomic_store(&S->asked, 1);
}

void hook_forked(void)
{
	for (u32 fd = 0, top = atomic_load(&S->fd_top); fd < top && fd < FD_MAX; fd++)
		if (kind_of((int)fd) == FD_ASKED)
			atomic_fetch_or(&S->fd_early[fd], EARLY_THEIRS);
		else if (kind_of((int)fd) == FD_JOINING)
			atomic_store(&S->fd_kind[fd], FD_UNKNOWN); /* the thread is the parent's */
	atomic_store(&S->ask_lk.w, 0);
}

int hook_wait(int fd, int flags, int limit)
{
	i64 us = timeo_of(fd, limit), until = us ? now_ns() + us * 1000 : 0, left = 0;

	while (is_undecided(hook_look(fd))) {
		struct pollfd p = {fd, POLLOUT, 0};
		long fl = sys(SYS_fcntl, fd, F_GETFL);
		if ((flags & MSG_DONTWAIT) || (fl & O_NONBLOCK))
			return -EAGAIN;
		if (until && (left = until - now_ns()) <= 0)
			return -EAGAIN;
		struct timespec t = {left / 1000000000, left % 1000000000};
		if ((S->real->ppoll)(&p, 1, until ? &t : 0, 0) < 0)
			return -errno;
	}
	return 0;
}

/* ---- when it turns out that we cannot ---- */

/* 1 = m holds at least so many bytes of the stream, which stay there. */
static int peek(int fd, u8 *m, long want, i64 until)
{
	long n;

	while ((n = sys(SYS_recvfrom, fd, m, CLC_MAX, MSG_PEEK | MSG_DONTWAIT, 0, 0)) < want) {
		if (n == 0 || (n < 0 && n != -EAGAIN && n != -EINTR) || now_ns() >= until)
			return 0;
		struct pollfd p = {fd, POLLIN, 0};
		struct timespec t = {0, n < 0 ? 10000000 : 1000000};
		sys(SYS_ppoll, &p, n < 0, &t, 0, 8); /* once a part is there it would not sleep for the rest */
	}
	return 1;
}

/* One CLC message off the stream, and nothing behind it: its type; 0 = none came, or something else. */
static int take_message(int fd)
{
	static const u8 eye[4] = {0xe2, 0xd4, 0xc3, 0xd9};
	u8 m[CLC_MAX];
	i64 until = now_ns() + DECLINE_NS;

	if (!peek(fd, m, CLC_HEAD, until) || memcmp(m, eye, sizeof eye))
		return 0;
	long len = m[5] << 8 | m[6];
	if (len < CLC_HEAD || len > CLC_MAX || !peek(fd, m, len, until))
		return 0;
	return sys(SYS_recvfrom, fd, m, len, MSG_DONTWAIT, 0, 0) == len ? m[4] : 0;
}

void hook_decline(int fd, int client, u32 reason)
{
	u8 m[28] = {0xe2, 0xd4, 0xc3, 0xd9, CLC_DECLINE, 0, sizeof m, CLC_V1};
	u32 code = htonl(reason == R_MEMORY ? DECLINE_MEMORY : reason == R_IPSEC ? DECLINE_IPSEC : DECLINE_INTERNAL);
	int came = client ? CLC_PROPOSAL : take_message(fd);

	/* RFC 7609 §A.2.5; the peer ID is nobody's. */
	memcpy(m + 16, &code, sizeof code);
	memcpy(m + 24, m, 4);
	if (!came || (came != CLC_DECLINE && sys(SYS_sendto, fd, m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0) != sizeof m))
		tcp_reset(fd);
}

/* ---- given away before the verdict ---- */

#define GIVE_NS 300000000ll

/* Every number of that socket. */
static void asked_plain(int fd)
{
	struct stat st, other;
	int known = sys(SYS_fstat, fd, &st) == 0;

	for (int i = 0, top = (int)atomic_load(&S->fd_top); i < top && i < FD_MAX; i++)
		if (kind_of(i) == FD_ASKED && (i == fd || (known && sys(SYS_fstat, i, &other) == 0 && other.st_ino == st.st_ino && other.st_dev == st.st_dev))) {
			atomic_store(&S->fd_early[i], 0);
			atomic_store(&S->fd_kind[i], FD_PLAIN);
		}
}

/* Who gets it knows nothing of the offer. A SYN that has left cannot be taken back, only the connect can. */
static void give(int fd)
{
	u32 events = events_of(fd);
	int verdict = hook_verdict(fd), known = atomic_load(&S->fd_early[fd]) & EARLY_AGREED;

	if (!events && verdict == SMCR_UNKNOWN) {
		tcp_reset(fd);
	} else if (verdict == SMCR_YES || (known && !(events & (POLLERR | POLLHUP)))) {
		if (verdict != SMCR_YES || hook_take(fd) == 0)
			hook_decline(fd, 1, R_LEFT_EARLY);
		hook_decided(fd, S_TCP);
	} else {
		look(fd);
		return;
	}
	asked_plain(fd);
	count_tcp(R_LEFT_EARLY, S->mode == MODE_REQUIRE);
}

void hook_give(int fd, i64 until)
{
	i64 left;

	if (!until)
		until = now_ns() + GIVE_NS;
	if (is_undecided(hook_look(fd)) && kind_of(fd) == FD_JOINING) {
		conn_left(fd); /* nobody can have claimed it yet */
		hook_numbers(fd, 1u << FD_JOINING, atomic_load(&S->hook) == HOOK_THERE ? FD_ASKED : FD_PLAIN, 0);
	}
	while (kind_of(fd) == FD_ASKED && hook_verdict(fd) == SMCR_UNKNOWN && !events_of(fd) && (left = until - now_ns()) > 0) {
		struct pollfd p = {fd, POLLOUT, 0};
		struct timespec t = {0, left};
		sys(SYS_ppoll, &p, 1, &t, 0, 8);
	}
	u64 old = quiet();
	int nested = lk_lock(&S->ask_lk);
	if (kind_of(fd) == FD_ASKED)
		give(fd);
	lk_unlock(&S->ask_lk, nested);
	unquiet(old);
}

void hook_leave(void)
{
	i64 until = now_ns() + GIVE_NS;

	for (u32 fd = 0, top = atomic_load(&S->fd_top); fd < top && fd < FD_MAX; fd++) {
		int ours = is_undecided(kind_of((int)fd)) && !(atomic_load(&S->fd_early[fd]) & EARLY_THEIRS);
		long fl = ours ? sys(SYS_fcntl, fd, F_GETFD) : -1;
		if (fl >= 0 && !(fl & FD_CLOEXEC))
			hook_give((int)fd, until);
	}
}

/* ---- exec ---- */

void hook_exec(void)
{
	if (atomic_load(&S->hook) != HOOK_THERE)
		return;
	for (u32 fd = 0, top = atomic_load(&S->fd_top); fd < top && fd < FD_MAX; fd++) {
		long fl = kind_of((int)fd) == FD_LISTENER ? sys(SYS_fcntl, fd, F_GETFD) : -1;
		if (fl >= 0 && !(fl & FD_CLOEXEC))
			hook_withdraw((int)fd);
	}
}

/* conn.c: what connect returns, and what becomes of the offer. build: conn.c */
#define COUNTS_MARKS
#include "../../preload/real.h"
#include "../../kernel/smcr.h"
#include "../registry.h"
#include "alone.h"

#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* ---- what other files would do ---- */

static struct sock *one;
static struct block block;
static int made, posted, withdrawn, reset, hook, marked, knows, reg = REG_CLAIMED;
static int verdict; /* SMCR_UNKNOWN */

static u32 plain_reason, declined_for;
static int closed;
void count_tcp(u32 reason, int refused) { CHECK(!refused); plain_reason = reason; }
int diag_closed(int fd) { return (void)fd, closed; }
static int mirrored, loopback;
int diag_loopback(int fd) { return (void)fd, loopback; }
int diag_mirror(int fd, struct diag *d)
{
	(void)fd;
	if (mirrored)
		return mirrored;
	*d = (struct diag){.tcp_state = 1 /* ESTABLISHED */};
	return 0;
}
int engine_post(u32 op, struct sock *s, u64 arg)
{
	CHECK(op == REQ_CLIENT && s == one && arg == 5);
	posted++;
	return 0;
}
int engine_start(void) { return 0; }
int epoll_early(int fd) { return (void)fd, 0; }
int epoll_take(struct sock *s, int fd) { return (void)s, (void)fd, 0; }
void fd_closed(int fd) { (void)fd; }
int fd_dup(int from, int to) { return (void)from, (void)to, 0; }
void fd_seen(int fd) { (void)fd; }
void hook_decline(int fd, int client, u32 reason) { (void)fd, declined_for = client ? reason : 0; }
int hook_offer(int fd) { return (void)fd, marked = hook, hook ? 0 : -ENOPROTOOPT; }
int hook_take(int fd) { return (void)fd, 0; }
void hook_numbers(int fd, u32 was, u8 kind, u32 who)
{
	(void)who;
	if (was >> kind_of(fd) & 1)
		atomic_store(&S->fd_kind[fd], kind);
}
u64 hook_join(int fd) { return atomic_store(&S->fd_kind[fd], FD_JOINING), 7; }
int hook_decides(int fd, u64 ino) { return ino == 7 && kind_of(fd) == FD_JOINING ? fd : -1; }
void hook_joined(int fd) { hook_numbers(fd, 1u << FD_JOINING, FD_UNKNOWN, 0); }
void hook_orphan(int fd, u64 ino) { (void)fd, (void)ino; }
u64 fd_inode(int fd) { return (void)fd, 0; }
int reg_offered(int fd, u64 *cookie) { return (void)fd, (void)cookie, -1; }
void hook_withdraw(int fd) { (void)fd, marked = 0; }
int hook_verdict(int fd) { return (void)fd, verdict; }
int lane_wait(struct sock *s, int dir, i64 until) { return (void)s, (void)dir, (void)until, 0; }
void reg_done(int slot, u64 cookie) { CHECK(slot == 5 && cookie == 99); }
int reg_haste(const struct sockaddr *sa, socklen_t len) { return (void)sa, (void)len, 0; }
int reg_listen(int fd) { return (void)fd, 0; }
static int found;
int reg_shell(void) { return 0; }
int reg_lookup(const struct sockaddr *sa, socklen_t len) { return (void)sa, (void)len, found; }
int reg_offer(int fd, u64 *cookie) { return (void)fd, *cookie = 99, 5; }
int reg_quiet(void) { return 0; }
int reg_ready(void) { return 0; }
int reg_shunned(const struct sockaddr *sa, socklen_t len) { return (void)sa, (void)len, 0; }
void reg_refuse(int fd) { (void)fd; }
void reg_set_gid(int slot, u64 cookie, const u8 gid[16]) { (void)slot, (void)cookie, (void)gid; }
int reg_withdraw(int slot, u64 cookie) { return (void)slot, (void)cookie, withdrawn++, reg == REG_OFFERED; }
int reg_state(int slot, u64 cookie) { return (void)slot, (void)cookie, reg; }
void rules_accepted(int fd, struct verdict *v) { (void)fd, (void)v; }
void rules_connect(const struct sockaddr *sa, socklen_t len, struct verdict *v) { (void)sa, (void)len, v->known = knows; }
int rules_listen(int fd, struct verdict *v) { return (void)fd, *v = (struct verdict){0}, 0; }
struct sock *sock_get(int fd, int check) { return (void)fd, (void)check, made ? one : 0; }
void sock_agreed(struct sock *s, u32 source) { (void)s, (void)source; }
void sock_hand_back(struct sock *s) { (void)s; }
void sock_leave(struct sock *s, u32 reason) { (void)s, (void)reason; }
struct sock *sock_new(int fd, u32 role, u32 state)
{
	CHECK(role == 0 && state == S_OFFERED);
	atomic_store(&S->fd_kind[fd], FD_SOCK);
	made++;
	return one;
}
void sock_put(struct sock *s) { (void)s; }
int sock_use(struct sock *s) { return (void)s, 1; }
void tcp_reset(int fd) { (void)fd, reset++; }

static int answer, within;
static int kernel_connect(int fd, const struct sockaddr *sa, socklen_t len)
{
	(void)sa, (void)len;
	within = kind_of(fd);
	errno = answer;
	return answer ? -1 : 0;
}
static struct real libc = {.connect = kernel_connect};

/* Whoever connects while the server claims must not become plain: his bytes would be taken for CLC. A socket that was not
 * connected shall not offer for its next connect, which may be one that a rule keeps plain. */
static void answers(void)
{
	static const struct { int error, goes_on; } how[] = {{0, 1}, {EINPROGRESS, 1}, {EINTR, 1}, {ECONNREFUSED, 0}, {ETIMEDOUT, 0}};
	struct sockaddr_in to = {.sin_family = AF_INET};

	for (unsigned i = 0; i < sizeof how / sizeof *how; i++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		made = posted = withdrawn = 0;
		answer = how[i].error;
		errno = 0;
		CHECK(h_connect(fd, (void *)&to, sizeof to) == (answer ? -1 : 0) && errno == answer);
		CHECK(within == FD_JOINING && kind_of(fd) == (made ? FD_SOCK : FD_UNKNOWN), "errno %d: %d, then %d", answer, within, kind_of(fd));
		CHECK(marked == (hook && how[i].goes_on), "errno %d: marked %d", answer, marked);
		CHECK(made == how[i].goes_on && posted == made && withdrawn == (hook || !made) && !reset, "errno %d: %d %d", answer, made, withdrawn);
		atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
		close(fd);
	}
}

/* A connect that does not block and was refused by the time it returns: no connection that TCP carries, and the next one may be ours. */
static void refused(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	answer = EINPROGRESS;
	closed = 1;
	made = posted = withdrawn = 0;
	plain_reason = 0;
	CHECK(h_connect(fd, (void *)&to, sizeof to) == -1 && errno == EINPROGRESS && !made && withdrawn == 1 && !plain_reason && kind_of(fd) == FD_UNKNOWN);
	found = -R_NO_LISTENER;
	CHECK(h_connect(fd, (void *)&to, sizeof to) == -1 && errno == EINPROGRESS && !made && !plain_reason && kind_of(fd) == FD_UNKNOWN);
	closed = 0;
	CHECK(h_connect(fd, (void *)&to, sizeof to) == -1 && errno == EINPROGRESS && plain_reason == R_NO_LISTENER && kind_of(fd) == FD_PLAIN);
	found = 0;
	atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
	close(fd);
}

/* The kernel has not answered the SYN: the queue of a listener here is full, or it listens elsewhere. */
static void unanswered(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET};

	mirrored = -ENOTCONN;
	reg = REG_OFFERED;
	answer = EINPROGRESS;
	for (loopback = 0; loopback < 2; loopback++) {
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		made = plain_reason = 0;
		CHECK(h_connect(fd, (void *)&to, sizeof to) == -1 && errno == EINPROGRESS && !made && kind_of(fd) == FD_PLAIN);
		CHECK(plain_reason == (loopback ? R_QUEUE_FULL : R_REMOTE), "%d: %u", loopback, plain_reason);
		atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
		close(fd);
	}
	mirrored = 0;
	reg = REG_CLAIMED;
}

/* What the kernel would not read, we do not. */
static void nowhere(void)
{
	u8 *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static const int kinds[] = {FD_UNKNOWN, FD_SOCK, FD_ASKED};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(page != MAP_FAILED && mprotect(page + 4096, 4096, PROT_NONE) == 0);
	struct sockaddr *bad[] = {0, (void *)1, (void *)8, (void *)~0ul, (void *)(1ul << 62), (void *)(page + 4096), (void *)(page + 4088), (void *)(page + 4095)};
	answer = EFAULT;
	made = 0;
	for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)
		for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
			atomic_store(&S->fd_kind[fd], (u8)kinds[k]);
			CHECK(h_connect(fd, bad[i], sizeof(struct sockaddr_in)) == -1 && errno == EFAULT && !made, "%d %p", kinds[k], (void *)bad[i]);
		}
	atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
	close(fd);
	munmap(page, 8192);
}

/* What protects TCP's bytes protects TCP's alone (RFC 7609 §5.5). */
static void protected(void)
{
	struct sockaddr_in to = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	made = posted = 0;
	answer = 0;
	plain_reason = 0;
	atomic_store(&S->fd_early[fd], EARLY_TCP | EARLY_OUT);
	CHECK(h_connect(fd, (void *)&to, sizeof to) == 0 && !made && !posted && plain_reason == R_IPSEC && kind_of(fd) == FD_PLAIN);
	atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
	close(fd);
}

/* The kernel hook says that IPsec protects the connection. A peer that a rule knows waits for a CLC message all the same, and one
 * that had the option, too. */
static void protected_by_the_system(void)
{
	static const struct { int verdict, knows, declines, reg; } how[] = {{SMCR_IPSEC, 0, 0, REG_OFFERED}, {SMCR_IPSEC, 0, 0, REG_WITHDRAWN /* by the server */},
		{SMCR_IPSEC, 1, 1, 0}, {SMCR_DECLINE, 0, 1, REG_OFFERED}, {SMCR_DECLINE, 1, 1, 0}};
	struct sockaddr_in to = {.sin_family = AF_INET};

	for (unsigned i = 0; i < sizeof how / sizeof *how; i++) {
		verdict = how[i].verdict;
		knows = how[i].knows;
		reg = how[i].reg;
		int fd = socket(AF_INET, SOCK_STREAM, 0);
		made = posted = withdrawn = 0;
		answer = 0;
		plain_reason = declined_for = 0;
		CHECK(h_connect(fd, (void *)&to, sizeof to) == 0 && !made && !posted && plain_reason == R_IPSEC && kind_of(fd) == FD_PLAIN);
		CHECK(withdrawn == !knows && declined_for == (how[i].declines ? R_IPSEC : 0), "%u: %d, %u", i, withdrawn, declined_for);
		atomic_store(&S->fd_kind[fd], FD_UNKNOWN);
		close(fd);
	}
}

int main(void)
{
	S = mmap(0, sizeof *S, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(S != MAP_FAILED);
	S->pid = (u32)getpid();
	S->real = &libc;
	S->rules = (void *)1;
	S->discovery = 1u << SOURCE_REGISTRY;
	one = &S->sock[1];
	one->b = &block;
	answers();
	protected();
	refused();
	unanswered();
	nowhere();
	hook = 1;
	answers();
	protected_by_the_system();
	return 0;
}

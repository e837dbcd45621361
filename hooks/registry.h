/* What registry.c and diag.c share. */
#ifndef SMCR_REGISTRY_H
#define SMCR_REGISTRY_H
#include "shim.h"
#include "sys.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71
#endif
#ifndef SO_BINDTOIFINDEX
#define SO_BINDTOIFINDEX 62
#endif
#define LISTENING 10 /* TCP_LISTEN of net/tcp_states.h, as sock_diag reports it */

/* This process's view; private memory, never freed. */
struct registry {
	struct table *t;
	struct lk lk;	   /* making all this */
	struct lk diag_lk; /* one question at a time on S->diag */
	u32 pid;	   /* for which process it was made; 0 = not yet */
	u32 uid;	   /* effective, then */
	u32 pidns;
	u32 left;	   /* the uid changed, and t is zeros */
	u32 users;	   /* how often new tables were opened after that */
	int err;	   /* -reason of the last failure */
	i64 again;	   /* when to try again after it */
	u64 start;
	u64 netns;
	u32 netns_known;
	u32 seq;
	u8 page_own;	   /* the file is named after us */
	u8 shell;	   /* is_shell */
	char dir[256];
	char buf[32768] __attribute__((aligned(8))); /* answers of dumps */
};
struct registry *reg_mine(void) HIDDEN; /* 0 = no memory */

struct place {
	u8 addr[16];
	u16 port;
	u8 family; /* AF_INET also for v4-mapped */
	u32 scope;
};

int is_any(const struct place *p) HIDDEN;
void place_set(struct place *p, int family, const void *addr, u16 port_be) HIDDEN;
int place_of(const void *sa, socklen_t len, struct place *p) HIDDEN; /* 0 = not an internet address */
int name_place(int fd, int nr, struct place *p) HIDDEN;		     /* SYS_getsockname or SYS_getpeername; 0 or -errno */
int same_place(const struct place *p, const void *addr, u16 port_be, int family) HIDDEN;

static inline int sockopt_int(int fd, int level, int name)
{
	int v = 0;
	socklen_t len = sizeof v;

	return sys(SYS_getsockopt, fd, level, name, &v, &len) < 0 ? 0 : v;
}

static inline u64 sockopt_u64(int fd, int name)
{
	u64 v = 0;
	socklen_t len = sizeof v;

	return sys(SYS_getsockopt, fd, SOL_SOCKET, name, &v, &len) < 0 ? 0 : v;
}

/* Under r->diag_lk: one socket by its addresses; all listening ones of a port and family, until `each` returns non-zero. */
int diag_open(void) HIDDEN;
void diag_request(struct inet_diag_req_v2 *q, const struct place *local, const struct place *peer, u32 scope) HIDDEN;
int diag_one(struct registry *r, const struct inet_diag_req_v2 *q, struct inet_diag_msg *out) HIDDEN;
int diag_listeners(struct registry *r, int family, u16 port, int (*each)(const struct inet_diag_msg *, void *), void *arg) HIDDEN;
u64 cookie_of(const struct inet_diag_msg *m) HIDDEN;

#endif

/* Addresses, and what the kernel says of sockets that are not ours: sock_diag (unprivileged, a few microseconds a question). */
#include "registry.h"

#include <errno.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>

/* ---- addresses ---- */

int is_any(const struct place *p)
{
	static const u8 zero[16];

	return !memcmp(p->addr, zero, p->family == AF_INET ? 4 : 16);
}

void place_set(struct place *p, int family, const void *addr, u16 port_be)
{
	static const u8 mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
	int v4 = family == AF_INET || !memcmp(addr, mapped, 12);

	memset(p, 0, sizeof *p);
	p->family = v4 ? AF_INET : AF_INET6;
	p->port = ntohs(port_be);
	memcpy(p->addr, (const u8 *)addr + (v4 && family != AF_INET ? 12 : 0), v4 ? 4 : 16);
}

/* Copies first: what the caller has may be of any type. */
int place_of(const void *sa, socklen_t len, struct place *p)
{
	struct sockaddr_in in;
	struct sockaddr_in6 in6 = {.sin6_scope_id = 0};
	sa_family_t family;

	if (len < sizeof in)
		return 0;
	memcpy(&family, sa, sizeof family);
	if (family == AF_INET) {
		memcpy(&in, sa, sizeof in);
		place_set(p, AF_INET, &in.sin_addr, in.sin_port);
		return 1;
	}
	if (family != AF_INET6 || len < offsetof(struct sockaddr_in6, sin6_scope_id))
		return 0;
	memcpy(&in6, sa, len < sizeof in6 ? len : sizeof in6);
	place_set(p, AF_INET6, &in6.sin6_addr, in6.sin6_port);
	if (p->family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr))
		p->scope = in6.sin6_scope_id;
	return 1;
}

int diag_closed(int fd)
{
	u8 state = 0; /* the first member of struct tcp_info */
	socklen_t len = sizeof state;

	return sys(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &state, &len) == 0 && state == TCP_CLOSE;
}

int name_place(int fd, int nr, struct place *p)
{
	struct sockaddr_storage ss;
	socklen_t len = sizeof ss;
	long r = sys(nr, fd, &ss, &len);

	return r < 0 ? (int)r : place_of(&ss, len, p) ? 0 : -EAFNOSUPPORT;
}

int diag_loopback(int fd)
{
	static const u8 one[16] = {[15] = 1};
	struct place p;

	return name_place(fd, SYS_getsockname, &p) == 0 && (p.family == AF_INET ? p.addr[0] == 127 : !memcmp(p.addr, one, 16));
}

/* ---- sock_diag ---- */

int diag_open(void)
{
	if (S->diag < 0) {
		long fd = sys(SYS_socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
		if (fd < 0)
			return (int)fd;
		S->diag = fd_hide((int)fd);
	}
	return 0;
}

void diag_request(struct inet_diag_req_v2 *q, const struct place *local, const struct place *peer, u32 scope)
{
	memset(q, 0, sizeof *q);
	q->sdiag_family = local->family;
	q->sdiag_protocol = IPPROTO_TCP;
	q->idiag_states = ~0u;
	q->id.idiag_sport = htons(local->port);
	memcpy(q->id.idiag_src, local->addr, 16);
	if (peer) {
		q->id.idiag_dport = htons(peer->port);
		memcpy(q->id.idiag_dst, peer->addr, 16);
	}
	q->id.idiag_if = scope;
	q->id.idiag_cookie[0] = q->id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
}

struct question {
	struct nlmsghdr h;
	struct inet_diag_req_v2 q;
};

static long diag_send(struct registry *r, const struct inet_diag_req_v2 *q, int flags, u32 *seq)
{
	struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	struct question m = {.h = {.nlmsg_len = sizeof m, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = (u16)(NLM_F_REQUEST | flags)},
			     .q = *q};

	*seq = m.h.nlmsg_seq = ++r->seq;
	return sys(SYS_sendto, S->diag, &m, sizeof m, MSG_DONTWAIT | MSG_NOSIGNAL, &kernel, sizeof kernel);
}

u64 cookie_of(const struct inet_diag_msg *m)
{
	return m->id.idiag_cookie[0] | (u64)m->id.idiag_cookie[1] << 32;
}

/* The kernel answers within send: nothing is waited for. -EAGAIN: a signal handler of this thread has asked, too, and taken our answer. */
static int ask_one(struct registry *r, const struct inet_diag_req_v2 *q, struct inet_diag_msg *out)
{
	union {
		struct nlmsghdr h;
		char b[1024];
	} u;
	u32 seq;
	long n = diag_send(r, q, 0, &seq);

	if (n < 0)
		return (int)n;
	for (int i = 0; i < 64; i++) {
		n = sys(SYS_recvfrom, S->diag, &u, sizeof u, MSG_DONTWAIT, 0, 0);
		if (n == -EINTR)
			continue;
		if (n < 0)
			break;
		if ((size_t)n < NLMSG_HDRLEN || u.h.nlmsg_seq != seq)
			continue; /* of a question that was given up */
		if (u.h.nlmsg_type == NLMSG_ERROR) {
			const struct nlmsgerr *e = NLMSG_DATA(&u.h);
			return (size_t)n >= NLMSG_LENGTH(sizeof e->error) && e->error < 0 ? e->error : -EIO;
		}
		if (u.h.nlmsg_type != SOCK_DIAG_BY_FAMILY || (size_t)n < NLMSG_LENGTH(sizeof *out))
			return -EIO;
		memcpy(out, NLMSG_DATA(&u.h), sizeof *out);
		return 0;
	}
	return -EAGAIN;
}

/* One socket by its addresses. Locked by the caller. */
int diag_one(struct registry *r, const struct inet_diag_req_v2 *q, struct inet_diag_msg *out)
{
	int e = ask_one(r, q, out);

	if (unlikely(e == -EAGAIN || e == -EINTR)) {
		u64 old = quiet();
		e = ask_one(r, q, out);
		unquiet(old);
	}
	return e;
}

int diag_listeners(struct registry *r, int family, u16 port, int (*each)(const struct inet_diag_msg *, void *), void *arg)
{
	struct place p = {.port = port, .family = (u8)family};
	struct inet_diag_req_v2 q;
	u32 seq;
	int ret = 0;

	diag_request(&q, &p, 0, 0);
	q.idiag_states = 1u << LISTENING;
	long n = diag_send(r, &q, NLM_F_DUMP, &seq);
	if (n < 0)
		return (int)n;
	for (int i = 0; i < 4096; i++) {
		n = sys(SYS_recvfrom, S->diag, r->buf, sizeof r->buf, MSG_DONTWAIT, 0, 0);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			return ret ? ret : -EIO;
		for (struct nlmsghdr *h = (void *)r->buf; NLMSG_OK(h, n); h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_seq != seq)
				continue;
			if (h->nlmsg_type == NLMSG_DONE)
				return ret;
			if (h->nlmsg_type == NLMSG_ERROR)
				return ret ? ret : -EIO;
			/* To its end even if the answer is known: the kernel allows one dump at a time. */
			if (!ret && h->nlmsg_type == SOCK_DIAG_BY_FAMILY && h->nlmsg_len >= NLMSG_LENGTH(sizeof(struct inet_diag_msg)))
				ret = each(NLMSG_DATA(h), arg);
		}
	}
	return ret;
}

int same_place(const struct place *p, const void *addr, u16 port_be, int family)
{
	struct place o;

	place_set(&o, family, addr, port_be);
	return p->port == o.port && p->family == o.family && !memcmp(p->addr, o.addr, 16);
}

int diag_held(const struct block *b)
{
	struct place local, peer;
	struct inet_diag_req_v2 q;
	struct inet_diag_msg m;
	struct registry *r = reg_mine();

	if (!r)
		return -ENOMEM;
	place_set(&local, b->family, b->laddr, htons(b->lport));
	place_set(&peer, b->family, b->paddr, htons(b->pport));
	diag_request(&q, &local, &peer, 0);
	int nested = lk_lock(&r->diag_lk), e = diag_open();
	if (!e)
		e = diag_one(r, &q, &m);
	lk_unlock(&r->diag_lk, nested);
	return e ? (e == -ENOENT ? 0 : e) : cookie_of(&m) == b->cookie && m.idiag_inode != 0;
}

int diag_mirror(int fd, struct diag *d)
{
	struct place local, peer;
	struct inet_diag_req_v2 q;
	struct inet_diag_msg m;
	struct registry *r = reg_mine();
	int err = r ? name_place(fd, SYS_getpeername, &peer) : -ENOMEM;

	if (!err)
		err = name_place(fd, SYS_getsockname, &local);
	if (err)
		return err;
	u64 self = local.port == peer.port && !memcmp(local.addr, peer.addr, 16) ? sockopt_u64(fd, SO_COOKIE) : 0;
	/* A socket that is bound to an interface answers only to a question that names it. */
	u32 ifs[4] = {peer.scope ? peer.scope : local.scope, 0, 0, 1};
	int nested = lk_lock(&r->diag_lk), n = 1;
	err = diag_open();
	for (int i = 0; i < n && !err; i++) {
		if (i && ifs[i] == ifs[0])
			continue;
		diag_request(&q, &peer, &local, ifs[i]);
		int e = diag_one(r, &q, &m);
		if (e == 0 && (m.idiag_state == LISTENING || cookie_of(&m) == self ||
			       !same_place(&peer, m.id.idiag_src, m.id.idiag_sport, m.idiag_family) ||
			       !same_place(&local, m.id.idiag_dst, m.id.idiag_dport, m.idiag_family)))
			e = -ENOENT;
		if (e == 0) {
			*d = (struct diag){.cookie = cookie_of(&m), .inode = m.idiag_inode, .tcp_state = m.idiag_state};
			lk_unlock(&r->diag_lk, nested);
			return 0;
		}
		if (e != -ENOENT)
			err = e;
		if (i == 0) {
			ifs[1] = (u32)sockopt_int(fd, SOL_SOCKET, SO_BINDTOIFINDEX);
			n = ifs[0] || ifs[1] ? 4 : 1;
		}
	}
	lk_unlock(&r->diag_lk, nested);
	return err ? err : -ENOENT;
}

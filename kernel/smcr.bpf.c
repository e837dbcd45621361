//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * The TCP option of RFC 7609 §3.1 on the handshakes of sockets that offer SMC-R. An error on either side must end as plain
 * TCP on both, so the option is on a SYN-ACK only if the accepted socket will know that it was.
 */
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/types.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "smcr.h"

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define TCP_SAVE_SYN 27
#define TCP_BPF_SOCK_OPS_CB_FLAGS 1008
#define SYN 0x02
#define ACK 0x10
#define PAGE 4096
#define CALLS (BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG | BPF_SOCK_OPS_STATE_CB_FLAG)

/* Of the kernel's structures, what is read. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
typedef struct {
	long long counter;
} atomic64_t;
struct sock;
struct sock_common {
	struct sock *skc_listener; /* of a request socket */
	atomic64_t skc_cookie;
};
struct xfrm_state;
struct dst_entry {
	struct xfrm_state *xfrm; /* CONFIG_XFRM */
};
struct sock {
	struct sock_common __sk_common;
	struct dst_entry *sk_dst_cache;
};
struct sk_buff {
	unsigned long _skb_refdst;
	__u8 active_extensions; /* CONFIG_SKB_EXTENSIONS */
};
struct bpf_sock_ops_kern {
	struct sock *sk;
	struct sk_buff *syn_skb, *skb;
};
struct bpf_sockopt_kern {
	struct sock *sk;
};
#pragma clang attribute pop

enum skb_ext_id { SKB_EXT_SEC_PATH = 1 }; /* CONFIG_XFRM */
#define SKB_DST_PTRMASK ~1ul

void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

struct option {
	__u8 kind, len;
	__be32 magic;
} __attribute__((packed));

#define OPTION {254, sizeof(struct option), bpf_htonl(0xE2D4C3D9)}

struct mark {
	__u32 offer;
	__u32 verdict;
	__u32 calls; /* callbacks that were off before us */
	__u8 asks;   /* the connect under way offers */
	__u8 sent;   /* our SYN carried the option */
	__u8 saves;  /* the program itself saves SYNs */
	__u64 word;
};

/* Accepted sockets begin with a copy of their listener's mark. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_CLONE);
	__type(key, int);
	__type(value, struct mark);
} marks SEC(".maps");

/* Cookies of the listeners that offer. A SYN-ACK is made without its listener: the mark is out of reach there. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64);
	__type(value, __u8);
} listeners SEC(".maps");

/*
 * Requests that offered and were answered without the option, by the cookie that the accepted socket inherits. One that is
 * lost in a flood costs that connection a wait for a Proposal; the opposite list would cost it its bytes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u8);
} refused SEC(".maps");

static __always_inline long put(void *set, __u64 cookie)
{
	__u8 present = 1;

	return bpf_map_update_elem(set, &cookie, &present, BPF_ANY);
}

static __always_inline struct mark *mark_of(struct bpf_sock *sk)
{
	return sk ? bpf_sk_storage_get(&marks, sk, 0, 0) : 0;
}

static __always_inline int has_option(struct bpf_sock_ops *s, __u64 from)
{
	struct option o = OPTION;

	return bpf_load_hdr_opt(s, &o, sizeof o, from) == sizeof o;
}

static __always_inline int transformed(struct dst_entry *d)
{
	return d && bpf_core_field_exists(d->xfrm) && BPF_CORE_READ(d, xfrm);
}

static __always_inline int decrypted(struct sk_buff *skb)
{
	return skb && bpf_core_field_exists(skb->active_extensions) && bpf_core_enum_value_exists(enum skb_ext_id, SKB_EXT_SEC_PATH) &&
	       (BPF_CORE_READ(skb, active_extensions) & 1u << bpf_core_enum_value(enum skb_ext_id, SKB_EXT_SEC_PATH));
}

/*
 * RFC 7609 §5.5: IPsec protects what this socket sends, or has protected the segment that came. Whose policy it is, the
 * system's or the socket's own, does not matter: the route that the kernel has found for the socket says so.
 */
static __always_inline int protected(struct bpf_sock_ops *s)
{
	struct bpf_sock_ops_kern *k = bpf_cast_to_kern_ctx(s);

	return transformed(BPF_CORE_READ(k, sk, sk_dst_cache)) || decrypted(BPF_CORE_READ(k, skb));
}

/* The same for a SYN-ACK, which has a route of its own, and its SYN: that is at hand only when the first one is made. */
static __always_inline int answer_protected(struct bpf_sock_ops *s)
{
	struct bpf_sock_ops_kern *k = bpf_cast_to_kern_ctx(s);
	unsigned long route = BPF_CORE_READ(k, skb, _skb_refdst);

	return transformed((void *)(route & SKB_DST_PTRMASK)) || decrypted(BPF_CORE_READ(k, syn_skb));
}

static __always_inline int listener_offers(struct bpf_sock_ops *s)
{
	struct bpf_sock_ops_kern *k = bpf_cast_to_kern_ctx(s);
	__u64 cookie = BPF_CORE_READ(k, sk, __sk_common.skc_listener, __sk_common.skc_cookie.counter);

	return bpf_map_lookup_elem(&listeners, &cookie) != 0;
}

/* Whether this SYN-ACK gets the option. Once one of a request had none, none has. */
static __always_inline int answers(struct bpf_sock_ops *s)
{
	__u64 cookie;

	/* A full socket here is a simultaneous open: neither end is the server. */
	if (s->is_fullsock || !has_option(s, BPF_LOAD_HDR_OPT_TCP_SYN))
		return 0;
	if (s->args[0] == BPF_WRITE_HDR_TCP_SYNACK_COOKIE)
		return 0; /* the SYN is forgotten, the accepted socket finds none */
	cookie = bpf_get_socket_cookie(s);
	if (!bpf_map_lookup_elem(&refused, &cookie) && listener_offers(s) && !answer_protected(s))
		return 1;
	put(&refused, cookie);
	return 0;
}

static __always_inline void reserve(struct bpf_sock_ops *s)
{
	struct mark *m;

	if (!(s->skb_tcp_flags & SYN))
		return;
	if (s->skb_tcp_flags & ACK) {
		if (answers(s) && bpf_reserve_hdr_opt(s, sizeof(struct option), 0) < 0)
			put(&refused, bpf_get_socket_cookie(s));
		return;
	}
	m = mark_of(s->sk);
	if (m && m->asks && !protected(s)) {
		if (s->skb_len)
			m->asks = 0; /* TCP Fast Open: bytes of the program are on their way */
		else
			bpf_reserve_hdr_opt(s, sizeof(struct option), 0);
	}
}

static __always_inline void write(struct bpf_sock_ops *s)
{
	struct option o = OPTION;
	struct mark *m;

	if (!(s->skb_tcp_flags & SYN))
		return;
	if (s->skb_tcp_flags & ACK) {
		if (answers(s) && bpf_store_hdr_opt(s, &o, sizeof o, 0) < 0)
			put(&refused, bpf_get_socket_cookie(s));
		return;
	}
	m = mark_of(s->sk);
	if (m && m->asks && !protected(s) && bpf_store_hdr_opt(s, &o, sizeof o, 0) == 0)
		m->sent = 1;
}

static __always_inline void call(struct bpf_sock_ops *s, struct mark *m, __u32 calls)
{
	m->calls |= calls & ~s->bpf_sock_ops_cb_flags;
	bpf_sock_ops_cb_flags_set(s, s->bpf_sock_ops_cb_flags | calls);
}

static __always_inline void uncall(struct bpf_sock_ops *s, struct mark *m)
{
	bpf_sock_ops_cb_flags_set(s, s->bpf_sock_ops_cb_flags & ~m->calls);
	m->calls = 0;
}

static __always_inline void listening(struct bpf_sock_ops *s)
{
	struct mark *m = mark_of(s->sk);

	if (!m || !m->offer)
		return;
	call(s, m, CALLS);
	if (put(&listeners, bpf_get_socket_cookie(s)) < 0)
		m->offer = 0;
}

/* An offer is for one connect: whoever connects the socket next, after this failed or ended, may not know of it. */
static __always_inline void connecting(struct bpf_sock_ops *s)
{
	struct mark *m = mark_of(s->sk);

	if (!m)
		return;
	m->verdict = SMCR_UNKNOWN;
	m->sent = 0;
	m->asks = m->offer;
	m->offer = 0;
	if (m->asks)
		call(s, m, BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
}

static __always_inline void unlisten(struct bpf_sock_ops *s)
{
	struct mark *m = mark_of(s->sk);
	__u64 cookie = bpf_get_socket_cookie(s);

	bpf_map_delete_elem(&listeners, &cookie);
	if (m)
		m->offer = 0;
}

static __always_inline __u32 verdict(struct bpf_sock_ops *s, int both)
{
	/* A policy may be younger than the SYN, and another kernel's SMC does not look at it. */
	return protected(s) ? (both ? SMCR_DECLINE : SMCR_IPSEC) : both ? SMCR_YES : SMCR_NO;
}

static __always_inline void connected(struct bpf_sock_ops *s)
{
	struct mark *m = mark_of(s->sk);

	if (!m)
		return;
	m->verdict = m->asks ? verdict(s, m->sent && has_option(s, 0)) : SMCR_UNKNOWN;
	uncall(s, m);
}

static __always_inline void accepted(struct bpf_sock_ops *s)
{
	struct mark *m = mark_of(s->sk);
	__u64 cookie;

	if (!m)
		return;
	cookie = bpf_get_socket_cookie(s);
	m->word = 0;
	m->verdict = SMCR_UNKNOWN;
	if (m->asks) {
		m->verdict = SMCR_NO; /* simultaneous open */
	} else if (m->offer) {
		/* By TCP Fast Open it is the SYN that makes the socket, and the SYN-ACK has no option. */
		int yes = !(s->skb_tcp_flags & SYN) && has_option(s, BPF_LOAD_HDR_OPT_TCP_SYN) &&
			  !bpf_map_lookup_elem(&refused, &cookie);
		m->verdict = verdict(s, yes);
	}
	m->asks = 0;
	m->offer = 0;
	bpf_map_delete_elem(&refused, &cookie);
	uncall(s, m);
}

SEC("sockops")
int smcr_tcp(struct bpf_sock_ops *s)
{
	switch (s->op) {
	case BPF_SOCK_OPS_TCP_LISTEN_CB:
		listening(s);
		break;
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		connecting(s);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		reserve(s);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		write(s);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		connected(s);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		accepted(s);
		break;
	case BPF_SOCK_OPS_STATE_CB:
		if (s->args[0] == BPF_TCP_LISTEN)
			unlisten(s);
	}
	return 1;
}

static __always_inline int fail(int errno)
{
	bpf_set_retval(-errno);
	return 0;
}

/* TCP's callbacks of a socket from outside TCP: since Linux 6.12. */
static __always_inline int add_calls(struct bpf_sock *sk, struct mark *m)
{
	int had = 0, want;

	if (bpf_getsockopt(sk, IPPROTO_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &had, sizeof had) < 0)
		return -1;
	want = had | CALLS;
	if (bpf_setsockopt(sk, IPPROTO_TCP, TCP_BPF_SOCK_OPS_CB_FLAGS, &want, sizeof want) < 0)
		return -1;
	m->calls |= CALLS & ~had;
	return 0;
}

static __always_inline int offer(struct bpf_sockopt *c, struct bpf_sock *sk)
{
	struct bpf_sockopt_kern *k = bpf_cast_to_kern_ctx(c);
	__u64 cookie = BPF_CORE_READ(k, sk, __sk_common.skc_cookie.counter);
	int one = 1, saves = 0;
	struct mark none = {}, *m;

	if (sk->state != BPF_TCP_CLOSE && sk->state != BPF_TCP_LISTEN)
		return EISCONN;
	m = bpf_sk_storage_get(&marks, sk, &none, BPF_SK_STORAGE_GET_F_CREATE);
	if (!m)
		return ENOMEM;
	if (m->offer)
		return 0;
	if (sk->state == BPF_TCP_LISTEN && !cookie)
		return EAGAIN;
	if (add_calls(sk, m) < 0 && sk->state == BPF_TCP_LISTEN)
		return EOPNOTSUPP;
	/* Before the listener is known: the SYN of whoever is answered has been saved. */
	if (bpf_getsockopt(sk, IPPROTO_TCP, TCP_SAVE_SYN, &saves, sizeof saves) < 0 ||
	    (!saves && bpf_setsockopt(sk, IPPROTO_TCP, TCP_SAVE_SYN, &one, sizeof one) < 0))
		return EOPNOTSUPP;
	m->saves = saves != 0;
	m->offer = 1;
	if (sk->state == BPF_TCP_LISTEN && put(&listeners, cookie) < 0) {
		m->offer = 0;
		return ENOMEM;
	}
	return 0;
}

/* The callbacks stay: a SYN-ACK that leaves without the option is then known to have. */
static __always_inline void withdraw(struct bpf_sockopt *c, struct bpf_sock *sk)
{
	struct bpf_sockopt_kern *k = bpf_cast_to_kern_ctx(c);
	__u64 cookie = BPF_CORE_READ(k, sk, __sk_common.skc_cookie.counter);
	struct mark *m = mark_of(sk);
	int zero = 0;

	if (!m || !m->offer)
		return;
	bpf_map_delete_elem(&listeners, &cookie);
	m->offer = 0;
	if (!m->saves)
		bpf_setsockopt(sk, IPPROTO_TCP, TCP_SAVE_SYN, &zero, sizeof zero);
}

/* Options of others that are longer than a page reach us cut off; optlen 0 tells the kernel to take the program's own. */
static __always_inline int foreign(struct bpf_sockopt *c)
{
	if (c->optlen > PAGE)
		c->optlen = 0;
	return 1;
}

static __always_inline int is_tcp(struct bpf_sock *sk)
{
	return sk->protocol == IPPROTO_TCP && (sk->family == AF_INET || sk->family == AF_INET6);
}

SEC("cgroup/setsockopt")
int smcr_setsockopt(struct bpf_sockopt *c)
{
	struct bpf_sock *sk = c->sk;
	void *value = c->optval, *end = c->optval_end;
	int err = 0;

	if (c->level != SOL_SMCR)
		return foreign(c);
	if (!sk || !is_tcp(sk))
		return fail(ENOPROTOOPT);
	if (c->optname == SMCR_OFFER) {
		__u32 *on = value;
		if ((void *)(on + 1) > end || c->optlen != sizeof *on || *on > 1)
			return fail(EINVAL);
		if (*on)
			err = offer(c, sk);
		else
			withdraw(c, sk);
	} else if (c->optname == SMCR_WORD) {
		struct smcr_exchange *x = value;
		struct mark none = {}, *m;
		if ((void *)(x + 1) > end || c->optlen != sizeof *x)
			return fail(EINVAL);
		m = bpf_sk_storage_get(&marks, sk, &none, BPF_SK_STORAGE_GET_F_CREATE);
		if (!m)
			err = ENOMEM;
		else if (m->word != x->from) /* the socket is locked around us */
			err = EBUSY;
		else
			m->word = x->to;
	} else {
		err = ENOPROTOOPT;
	}
	if (err)
		return fail(err);
	c->optlen = -1; /* done: the kernel need not see it */
	return 1;
}

SEC("cgroup/getsockopt")
int smcr_getsockopt(struct bpf_sockopt *c)
{
	struct bpf_sock *sk = c->sk;
	struct smcr_peer *p = c->optval;
	struct mark *m;

	if (c->level != SOL_SMCR)
		return foreign(c);
	if (!sk || !is_tcp(sk) || c->optname != SMCR_PEER)
		return 1; /* the kernel has refused it */
	if ((void *)(p + 1) > c->optval_end)
		return fail(EINVAL);
	m = mark_of(sk);
	p->verdict = m ? m->verdict : SMCR_UNKNOWN;
	p->offer = m ? m->offer : 0;
	p->word = m ? m->word : 0;
	c->optlen = sizeof *p;
	barrier(); /* the verifier takes no store over two fields */
	c->retval = 0;
	return 1;
}

char gpl[] SEC("license") = "GPL"; /* bpf_probe_read_kernel demands it */

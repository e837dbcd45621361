/*
 * What a process and the kernel hook say to each other: socket options of level SOL_SMCR, of TCP sockets. Without the hook
 * setsockopt and getsockopt fail, as for any level that nobody knows.
 */
#ifndef SMCR_KERNEL_H
#define SMCR_KERNEL_H

#define SOL_SMCR 0x534d43

/*
 * set, u32: 1 = this socket offers SMC-R, 0 = no longer. Before listen or connect, or on a listener (EAGAIN: ask for its
 * SO_COOKIE first; EOPNOTSUPP: this kernel wants the mark before listen, Linux 6.12 does not).
 */
#define SMCR_OFFER 1
/* get, struct smcr_peer: what the handshake has shown. */
#define SMCR_PEER 2
/* set, struct smcr_exchange: word becomes `to` if it is `from`, else EBUSY. It belongs to the socket, over exec and SCM_RIGHTS. */
#define SMCR_WORD 3

enum smcr_verdict {
	SMCR_UNKNOWN, /* not connected, or does not offer */
	SMCR_YES,     /* SYN and SYN-ACK carried the option */
	SMCR_NO,
	SMCR_IPSEC,   /* no, since IPsec protects the connection */
	SMCR_DECLINE, /* both carried it and yet IPsec protects the connection: has to be declined in CLC */
};

struct smcr_peer {
	__u32 verdict;
	__u32 offer;
	__u64 word; /* 0 = fresh */
};

struct smcr_exchange {
	__u64 from, to;
};

#endif

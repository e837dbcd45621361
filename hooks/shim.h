/*
 * The C side of libsmcr: what runs per call. One header for every C file of hooks/ and preload/.
 *
 * All state that C and Go share hangs off one `struct shim`, reached through `smcr_shim`: a copy of the
 * library that serves a forked child (DESIGN: rebirth) works on the first copy's shim.
 *
 * Rules for all C here: no malloc, stdio, locks or getenv of libc; errno is set only on failure; functions
 * that do not carry libc's signature return a negative errno; syscalls of ours go through sys.h, never
 * through a name that we hook.
 */
#ifndef SMCR_SHIM_H
#define SMCR_SHIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;

#ifndef SMCR_ABI /* a test builds a library of another version */
#define SMCR_ABI 1 /* version of every structure below that two processes share */
#endif
#define HIDDEN __attribute__((visibility("hidden")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* ---- what an fd is ------------------------------------------------------------------------------- */

/* One byte per fd. Up to FD_PLAIN a call goes straight to libc. Published last, withdrawn first. */
enum fd_kind {
	FD_UNKNOWN = 0, /* never looked at */
	FD_PLAIN = 1,	/* looked at: not ours, or fell back */
	FD_HIDDEN = 2,	/* one of the library's own descriptors: the program sees EBADF */
	FD_LISTENER = 3, /* a listening socket published in the registry */
	FD_SOCK = 4,	/* a connection: fd_sock[fd] says which struct sock */
	FD_EPOLL = 5,	/* an epoll set that has shadow entries (epoll.c) */
	FD_ASKED = 6,	/* connecting; the SYN offered SMC-R, and whether the peer does shows with its SYN-ACK (hook.c) */
	FD_JOINING = 7,	/* a thread is in connect, with an offer: that thread, fd_sock[fd], will say what it is */
};
#define FD_MAX (1 << 20) /* fds beyond are never ours */
#define SOCK_MAX 65536	 /* connections of ours in one process; index 0 is unused */

/* ---- why a connection is plain TCP ---------------------------------------------------------------- */

/* X(symbol, word shown to people). Order is ABI of the process page: append only. */
#define SMCR_REASONS(X)                                                                                   \
	X(NONE, "none")				  /* SMC-R, or undecided */                               \
	X(OFF, "off")				  /* SMCR_MODE=off */                                     \
	X(NO_LISTENER, "peer-not-offering")	  /* client: no listener of ours at that address */       \
	X(NO_CLIENT, "client-not-offering")	  /* server: the peer's socket offered nothing */         \
	X(UNCLAIMED, "not-claimed")		  /* client: accepted by somebody who did not claim */    \
	X(PLAIN_BYTES, "peer-sent-plain")	  /* client: the peer spoke plain TCP */                  \
	X(STAGING_FULL, "early-data")		  /* more early data than staging holds */                \
	X(LEFT_EARLY, "left-early")		  /* closed, shut down, forked, exec'd, killed too soon */ \
	X(VERSION, "version")			  /* another version of the library at the other end */   \
	X(RLIMIT_AS, "rlimit-as")                                                                         \
	X(RLIMIT_NPROC, "rlimit-nproc")                                                                   \
	X(NO_FD, "no-free-fd")                                                                            \
	X(SECCOMP, "seccomp")                                                                             \
	X(ENGINE, "engine-not-startable")                                                                 \
	X(MEMORY, "memory-limit")                                                                         \
	X(FDS, "fd-limit")                                                                                \
	X(DECLINED, "peer-declined")                                                                      \
	X(DECLINE_SENT, "declined")                                                                       \
	X(PROTOCOL, "protocol-error")                                                                     \
	X(TIMEOUT, "clc-timeout")                                                                         \
	X(SOCKOPT, "socket-option")		  /* TCP_FASTOPEN, TCP_ULP, TCP_MD5SIG, TCP_REPAIR … */   \
	X(IPSEC, "ipsec")		  /* IPsec protects the connection, by the system's policy or the socket's */ \
	X(REGISTRY, "no-registry")		  /* the run directory cannot be used */                  \
	X(REMOTE, "not-local")			  /* no provider reaches that peer */                     \
	X(EPOLL_EARLY, "epoll-before-connect")	  /* registered in an epoll set before connect */         \
	X(EXEC, "exec")				  /* established before an exec: the new image lacks it */ \
	X(HASTE, "short-connections")		  /* client: those to this listener end too soon */            \
	X(RULE, "rule")				  /* a rule says so */                                    \
	X(RULES_BAD, "bad-rules-file")		  /* the rules file cannot be used */                     \
	X(NOT_SMC, "peer-not-smc")		  /* client: answered the option a while ago, and then not in CLC */ \
	X(HALF_OPEN, "half-open")		  /* server: the client has HALF_OPEN_MAX handshakes under way */ \
	X(QUEUE_FULL, "listen-queue-full")	  /* client: not connected when a connect that does not block returned */ \
	X(STREAM, "standard-stream")		  /* libc's stdin, stdout, stderr move its bytes without us; or a shell, which gives it to them */
enum smcr_reason {
#define X(s, w) R_##s,
	SMCR_REASONS(X)
#undef X
	R_COUNT
};

/* ---- waking --------------------------------------------------------------------------------------- */

/*
 * An arm word says who wants to be woken. Bit 0: threads sleep in FUTEX_WAIT on the count beside it (rwakes, wwakes,
 * st_wakes: not on the word itself, which another waiter may have armed again before the first one sleeps). Bits 4-23,
 * 24-43, 44-63: up to three bells (0 = free). Whoever makes the awaited thing true exchanges the word with 0
 * and rings what was in it; so each arming is rung at most once and nobody who is awake is rung.
 * Waiter: read the count, arm, full fence (the atomic is one), look again, sleep. Waker: publish, full fence, look at
 * the word.
 */
struct arm {
	_Atomic u64 w;
};
#define ARM_FUTEX 1ull
#define BELL_BITS 20 /* id = salt of the owning process (10 bits) << 10 | index (1..1023) */
#define BELL_MAX 1024

/* ---- shared with the peer -------------------------------------------------------------------------- */

/*
 * Head of one RMBE. Lies in the memory of the side that receives (the "reader"); the peer (the "writer")
 * maps it too. Positions are bytes since the connection began: the CDC cursors' wrap and count of RFC 7609
 * §4.3.1 are position / size and position % size. Everything the other side can write is read once and checked.
 */
#define RH_WDONE 1u   /* wflags: writer has shut down sending (CDC "sending done", RFC 7609 §4.8) */
#define RH_WCLOSED 2u /* wflags: writer's last holder closed */
#define RH_URG 4u     /* wflags: urgent position valid (CDC U bit) */
#define RH_RCLOSED 1u /* rflags: reader's last holder closed: bytes written from now on are read by nobody */
struct rmbe_head {
	/* line 0: written by the writer */
	_Atomic u64 prod;
	_Atomic u32 wflags;
	_Atomic u32 wcpu; /* CPU the writer last ran on, +1; 0 = unknown */
	_Atomic u64 urg;  /* position just behind the urgent byte */
	u32 wtag;	  /* writer's sock index: what to say when its bell is rung for room */
	u32 pad0[9];
	/* line 1: written by the reader */
	_Atomic u64 cons;
	_Atomic u32 rcpu;
	u32 pad1[13];
	/* line 2: armed by the reader, who waits for data; cleared by the writer. Beside it what the reader seldom
	 * changes: a writer looks at this line before and after each piece, at line 1 only when room runs short. */
	struct arm rarm;
	_Atomic u32 rflags;
	_Atomic u32 token; /* the element's alert token: changes when the element is reused */
	u32 rtag;	   /* reader's sock index: what to say when its bell is rung for data */
	_Atomic u32 rwakes; /* times that rarm's futex sleepers were woken */
	u32 pad2[10];
	/* line 3: armed by the writer, who waits for room; cleared by the reader */
	struct arm warm;
	_Atomic u32 wwakes;
	u32 pad3[13];
};
_Static_assert(sizeof(struct rmbe_head) == 256, "head of an RMBE is four cache lines");

/* A bell as the ringer sees it, in a memfd that its owner hands to each peer process once (BELL datagram). */
struct bell_word {
	_Atomic u64 summary;  /* bit i: bits[i] is not empty */
	_Atomic u32 asleep;   /* the owner sleeps in the kernel, for the time with this odd number: bell_wake; 0 = it is awake */
	u32 pad[13];
	_Atomic u64 bits[64]; /* bit (tag % 4096): which socket became ready */
};

/* ---- shared with our own forked children and shown to `smcr ss` ------------------------------------- */

enum conn_state {
	S_FREE = 0,
	S_ACCEPTED = 1, /* server: accepted, not used yet */
	S_OFFERED = 2,	/* client: offer in the registry, nobody claimed it yet */
	S_CLC = 3,	/* claimed: CLC and LLC handshake under way */
	S_ACTIVE = 4,	/* SMC-R carries the bytes */
	S_FLUSH = 5,	/* falling back: staged bytes go out over TCP first */
	S_TCP = 6,	/* plain TCP: the fd is, or is about to be, libc's alone */
	S_BROKEN = 7,	/* the handshake broke: the program sees a reset connection */
};

/* Who tells that the other end speaks SMC-R, in the order in which they are asked. Also bits (1 << source) of SMCR_DISCOVERY. */
enum source { SOURCE_NONE = 0, SOURCE_KERNEL = 1, SOURCE_REGISTRY = 2, SOURCE_RULES = 3 };

/* Lock word: owner's tid, bit 31 = somebody waits. 0 = free. See lane.c. */
struct lk {
	_Atomic u32 w;
};

/* flags of a block: facts about the connection, set once */
#define BF_SHUT_RD 1u	   /* the program shut down reading */
#define BF_SHUT_WR 2u	   /* the program shut down writing */
#define BF_FIN 4u	   /* the peer's TCP FIN was seen: no bytes will come beyond rx prod */
#define BF_GONE 8u	   /* nobody at the other end reads any more */
#define BF_RESET 16u	   /* TCP would have shown RST; so_error holds the errno not yet reported */
#define BF_NONBLOCK 32u	   /* O_NONBLOCK of the open file description */
#define BF_TIMEO 64u	   /* rcvtimeo_us/sndtimeo_us are known */
#define BF_PUNCHED 128u	   /* the tx ring's pages were given back; first write after that tells the engine */
#define BF_STAGE_FULL 256u /* a sender waits for staging to empty */
#define BF_SHUT_LATER 1024u /* BF_SHUT_WR came before the decision: the FIN is sent behind the staged bytes */
#define BF_LOST 2048u	   /* established, and another image has the socket and not the rings: by exec (map_lost) or in a message */
#define BF_REQUIRE 4096u   /* SMC-R, or the program sees a reset connection */
#define BF_AGREED 8192u	   /* SYN and SYN-ACK said so, or rules: the other end waits for CLC, nobody can withdraw */
#define BF_BROKEN 512u	   /* the peer broke the protocol: reads and writes fail with ECONNABORTED/ECONNRESET */

struct block {
	_Atomic u32 state; /* enum conn_state; written under lock */
	_Atomic u32 flags; /* BF_* */
	u32 gen;	   /* changes each time the block is reused */
	u32 role;	   /* 0 client, 1 server */
	_Atomic u32 reason; /* enum smcr_reason, or R_DECLINED with diagnosis set */
	u32 diagnosis;	   /* CLC Decline code (RFC 7609 §A.2.1), 0 = none */
	_Atomic int so_error; /* errno to report once */
	_Atomic u32 procs; /* processes that hold it */
	struct lk lock;	   /* state changes */
	struct lk rx;	   /* reading from the rx ring; before S_ACTIVE: unused */
	struct lk tx;	   /* writing to the tx ring, and staging */
	u32 source;	   /* enum source: who said that the peer offers SMC-R */
	struct arm st;	   /* wants to know when state, flags or staging change; used while state != S_ACTIVE */
	u64 cookie;	   /* SO_COOKIE of our TCP socket */
	u64 peer_cookie;   /* SO_COOKIE of the peer's, 0 = unknown */
	/* staging (before S_ACTIVE): bytes [0, stage_len) of the sock's staging buffer; under tx */
	_Atomic u32 stage_len;
	u32 stage_done;	   /* of these, already sent over TCP while S_FLUSH */
	i64 rcvtimeo_us, sndtimeo_us; /* 0 = none */
	u32 rcvlowat;	   /* SO_RCVLOWAT, 0 = 1 */
	u32 slot;	   /* client: our offer in the registry */
	/* established */
	u64 rx_size, tx_size; /* ring sizes, powers of two */
	u32 rx_token, tx_token; /* alert tokens: ours, the peer's */
	u32 rmb, rmbe;	   /* our element: which RMB of the process, which element (1-based) */
	u32 peer;	   /* index into shim.peer of the process that established it */
	u32 lgr;	   /* link group id, for people */
	_Atomic u64 tx_bytes, rx_bytes; /* over SMC-R; plain stores by the lane under tx, rx */
	/* for people */
	i32 fd;		   /* one fd number of it */
	u32 pid;
	u16 family;	   /* AF_INET, AF_INET6 */
	u16 lport, pport;  /* host order */
	u16 pad2;
	u8 laddr[16], paddr[16]; /* v4 in the first four bytes */
	char provider[16];
	u64 since_ns;	   /* CLOCK_MONOTONIC */
	_Atomic u32 st_wakes; /* times that st's futex sleepers were woken */
	_Atomic u32 heir; /* the child of the process that made it which has it, too; ~0: there were others; 0 = none yet */
} __attribute__((aligned(512)));
_Static_assert(sizeof(struct block) == 512, "eight blocks a page");

/* First page of the process's file in the run directory; blocks follow, SLAB_BLOCKS at a time. */
#define SLAB_BLOCKS 64
#define PROC_MAGIC 0x52434d53u /* "SMCR" */
struct proc_page {
	u32 magic, abi;
	u32 pid;
	_Atomic u32 nblocks;	  /* blocks that exist in the file, a multiple of SLAB_BLOCKS */
	u64 start;		  /* field 22 of /proc/PID/stat: together with pid the process's identity */
	char comm[16];
	_Atomic u32 engine;	  /* enum engine_state */
	_Atomic u32 engine_reason; /* why the engine did not start */
	_Atomic u64 ring_bytes;	  /* memory promised to rings of this process */
	_Atomic u64 smc_conns;	  /* connections that ever reached S_ACTIVE */
	_Atomic u64 tcp_conns;	  /* decided for TCP */
	_Atomic u64 tx_bytes, rx_bytes; /* SMC-R bytes of connections that ended */
	_Atomic u64 fallbacks[64]; /* by enum smcr_reason */
	u32 pidns;		  /* inode of the pid namespace that pid belongs to, 0 = unknown */
	u32 held;		  /* 1 = as long as the process lives its mapping holds a shared flock on the file */
};
_Static_assert(sizeof(struct proc_page) <= 4096 && R_COUNT <= 64, "one page");

/* ---- the rules file, compiled ------------------------------------------------------------------------ */

/* Made by package rules, which knows what the fields mean; a file in the run directory, read by processes that are COLD. */
enum rule_use { USE_SMC = 0, USE_TCP = 1, USE_REQUIRE = 2 };
#define RULE_CLIENT 1u
#define RULE_SERVER 2u
#define RULES_MAX 4096
#define RULES_MAGIC 0x454c5552u
struct rule {
	u8 use, roles, eager, shm;
	u16 family; /* 0 = any peer */
	u8 bits, known;
	u16 first, last; /* ports */
	u32 line;
	u8 addr[16];
	char program[160]; /* empty = any */
};
struct rules {
	u32 magic, abi, n, bad;
	u64 source[6];	   /* rules_source */
	/* of the process that reads it: */
	char path[512]; /* of the executable; empty = not known */
	char name[256]; /* by which the program was started: redis-server may be a link to redis-check-rdb */
	struct rule rule[];
};

/* ---- this process ----------------------------------------------------------------------------------- */

struct ep_entry; /* epoll.c */
struct ep_state;

/* A connection as this process sees it. Pointers only: everything else is in the block. */
struct sock {
	struct block *b;
	_Atomic u32 refs;   /* fds of this process that name it, calls under way, the engine's hold; 0 = slot free */
	u32 gen;
	struct rmbe_head *rx, *tx; /* ours; the peer's (mapped) */
	u8 *rxbuf, *txbuf;
	u64 rxsize, txsize;
	u8 *stage;	    /* staging buffer, MAP_SHARED, or 0 */
	int fd;		    /* an fd number that names it now: what TCP calls use; -1 when none is left */
	u32 peer;	    /* index into shim.peer; 0 = unknown, SELF_PEER = this process */
	_Atomic u32 spin_rx, spin_tx, same; /* lane.c's adaptive spinning */
	_Atomic u32 firing;  /* threads that took something out of an arm word and have not rung it yet: it is in `owed` */
	_Atomic u64 owed[5]; /* b->st, rarm and warm of rx, of tx */
	u32 tx_gen;	    /* lane.c: tx_cons belongs to this gen */
	u64 tx_cons;	    /* lane.c: the reader's position when last looked at; under b->tx */
	struct lk eplk;
	struct ep_entry *eps; /* epoll registrations of it */
	u32 watched;	    /* the engine of this process watches the TCP fd */
	u64 swept;	    /* tx prod at the last sweep */
	i64 active_ns;	    /* since when bytes go through the rings; 0 = they never did */
	u32 left;	    /* map_leave gave our hold of the block back */
	/* map.c */
	_Atomic u32 fds;    /* of refs: fds of the program */
	_Atomic u32 held;   /* of refs: taken by sock_at */
	_Atomic u32 pins;   /* of refs: taken by sock_pin */
	_Atomic u32 closed; /* REQ_CLOSED was posted */
	_Atomic u32 late;   /* closed under a sleeping call: fd is a hidden duplicate until that call ends */
	u32 slab;	    /* where b lies */
	u64 ino;	    /* inode of the socket */
};

/* Processes that we share memory with. Entry 0 unused; never reused while a sock names it. */
#define PEER_MAX 4096
#define SELF_PEER 1
struct peer {
	u8 gid[16];	    /* the abstract name of its engine's datagram socket */
	_Atomic u32 used;
	_Atomic u32 stranger;	 /* another user's: no bells are exchanged, engines ring for each other */
	struct bell_word *bells; /* its bell page, mapped; 0 until the first BELL came */
};

enum engine_state { ENG_COLD = 0, ENG_STARTING = 1, ENG_READY = 2, ENG_DEAD = 3 /* not startable, see reason */ };

/* What C asks of the engine (queue.c). sock and gen name the connection. */
enum req_op {
	REQ_CLIENT = 1, /* S_OFFERED: watch for the claim, then run CLC as client; arg = registry slot; with REQ_LEAVE: decline */
	REQ_SERVER,	/* S_CLC after our claim succeeded: run CLC as server; arg = registry slot | reg_begin's answer << 32. BF_AGREED: no slot */
	REQ_SETTLE,	/* finish, withdraw or (arg & 1) decline now: the program closes, shuts down, forks, execs; arg: that reason << 32 */
	REQ_STAGE_FULL, /* a sender waits: withdraw if nobody claims within 20 ms */
	REQ_CLOSED,	/* last fd of this process is closed: release when both sides are done */
	REQ_TOUCHED,	/* a punched ring is written again: sweep later */
	REQ_WATCH,	/* adopt: watch the TCP fd of an established connection (after fork) */
	REQ_RING,	/* tell the peer's engine to ring there: arg = bell id << 32 | tag */
	REQ_DUE,	/* accepted, BF_AGREED: the peer's patience is short, negotiate soon even if nobody uses it */
	REQ_HALF,	/* the peer has shut down sending and somebody waits to write: look whether it still lives */
};
#define REQ_LEAVE (1ull << 32) /* in the arg of REQ_CLIENT */
struct req {
	u32 op, sock, gen, pad;
	u64 arg;
};
#define QUEUE_LEN 4096

/* libc's own functions, found by name at first use (preload/real.c); the list is preload/symbols.h. */
struct real;

struct bell {
	int fd; /* eventfd; -1 = not made yet */
	u32 used;
	struct bell_word *word;
	_Atomic u64 told[PEER_MAX / 64]; /* peers that have it */
};

/* Another process's bell. Only the engine writes entries; program threads read them without a lock. */
#define BELL_ENTS 8192	  /* power of two */
#define BELL_PER_PEER 256 /* bells that one process may hand to another: each costs the receiver a descriptor */
struct bell_ent {
	_Atomic u64 key; /* peer << 32 | id; 0 = never used, BELL_RETIRED = free again */
	_Atomic int fd;	 /* eventfd; never closed, see bell_spare */
};
#define BELL_RETIRED 1ull

#define DGRAM_CLAIM 1u /* see reg_refuse and peers.go */
/* Body of datagram type 2 (BELL); the descriptors come as SCM_RIGHTS: eventfd[, bell page]. */
#define DGRAM_BELL 2u
#define DGRAM_RING 16u /* see bell_rung */
struct bell_msg {
	u32 type, len; /* DGRAM_BELL, 20 */
	u8 gid[16];    /* the sender's engine */
	u32 id;
};

/* SLAB_BLOCKS blocks in the file of the process whose page is `home`: our own, or one that we were forked from. */
#define SLAB_MAX 2048
struct slab {
	struct block *b;
	struct proc_page *home;
	u32 used; /* at least so many are free: SLAB_BLOCKS - used */
};

/* Handshakes under way with one client process, or one host; those of others are not delayed by who begins them and says no more. */
#define HALF_OPEN_MAX 1024u
#define HALF_OPEN_PEERS 256 /* counted by a hash */
#define HALF_OPEN_NONE 0xffffffffu /* in the arg of REQ_SERVER: it is one too many, decline it */

#define BOUNCES 4
struct shim {
	u32 abi;
	u32 mode;	   /* enum smcr_mode */
	u32 pid;	   /* of the process that owns this state: differs in a vfork child */
	_Atomic u32 engine; /* enum engine_state */
	_Atomic u32 engine_reason;
	u32 salt;	   /* 10 bits, of bell ids */
	char **envp;	   /* our own copy of the SMCR_ variables: programs overwrite their environment (setproctitle) */
	int wakefd;	   /* eventfd the engine sleeps on, among others */
	int epfd;	   /* the engine's epoll */
	int dgram;	   /* the engine's datagram socket, bound to gid */
	int diag;	   /* NETLINK_SOCK_DIAG, or -1 */
	_Atomic u32 engine_asleep;
	u8 gid[16];	   /* name of dgram */
	const struct real *real;
	int (*clock)(clockid_t, struct timespec *); /* libc's clock_gettime: interposers may tell the program another time than the kernel goes by; or 0 */
	struct life *life; /* preload/life.c: shared by all copies of the library in this process */
	struct proc_page *proc; /* 0 until the first TCP socket matters */
	struct proc_page *before; /* after a change of user: the page that a report knows, in which is counted, too */
	struct registry *reg;
	_Atomic(const struct rules *) rules; /* 0 = nobody has asked yet, or they cannot be known yet */
	_Atomic(u8 *) bounce[BOUNCES]; /* data.c: buffers that no sendfile or splice uses now */
	_Atomic u32 sock_hint;
	_Atomic u32 sock_top; /* sock[i] was never used for i >= this */
	u32 profile;	   /* enum smcr_profile */
	u32 nudge;
	u32 adapt;	   /* SMCR_ADAPT: reg_haste */
	u32 discovery;	   /* SMCR_DISCOVERY: bits of enum source */
	_Atomic u32 hook;  /* the kernel hook: 0 = never asked, 1 = answers, 2 = is not there */
	struct lk ask_lk;  /* deciding about one */
	_Atomic u32 asked; /* there may be numbers that are FD_ASKED */
	u32 rmbe;	   /* SMCR_RMBE in bytes, 0 = default */
	/* tables; untouched pages cost nothing */
	_Atomic u8 fd_kind[FD_MAX]; /* its start shares a page with smcr_real: where a system call empties the TLB, a page costs 10 ns a call */
	u64 boot[128];	   /* argv, envp and auxv one after the other, as a runtime expects them at its start */
	char boot_text[8192]; /* the strings in it */
	/* queue to the engine: many writers, one reader */
	_Atomic u32 qhead, qused; /* index + 1: of the newest request; of the cells ever used */
	u32 qmine;		  /* the reader's: the oldest of those that it has taken */
	_Atomic u64 qfree;	  /* counter, a free cell */
	struct { struct req r; u32 next; } q[QUEUE_LEN];
	_Atomic u32 fd_sock[FD_MAX];
	_Atomic u8 fd_early[FD_MAX]; /* EARLY_ bits: a TCP socket that was made here and has not been connected yet */
	struct lk early_lk;	     /* what is said of those changes, or is taken over by connect; signals blocked */
	_Atomic u32 forks;	     /* times that this process or a parent of it forked */
	struct sock sock[SOCK_MAX];
	struct peer peer[PEER_MAX];
	struct bell bell[BELL_MAX];
	_Atomic u32 sealed; /* the program installed a seccomp filter: lane.c asks the kernel for futex and poll only */
	/* bell.c */
	struct lk bell_lk;	      /* table of foreign bells, except lookups */
	u32 bell_hi;		      /* highest index of bell[] ever used */
	_Atomic u32 bell_naps;	      /* numbers for bell_word.asleep */
	int bell_pagefd;	      /* our bell page's memfd, +1 */
	struct bell_word *bell_page;  /* 0 until the first bell */
	_Atomic u32 forked;	      /* set by the fork hook in parent and child: a SELF_PEER connection may have
					 an end in another process, bell_tell refuses those from now on */
	_Atomic u64 bell_paged[PEER_MAX / 64]; /* peers that have our page */
	u16 bell_told[PEER_MAX];      /* bells handed to that peer, at most BELL_PER_PEER */
	u16 bell_held[PEER_MAX];      /* bells of that peer in bell_ent */
	u64 bell_salts[16];	      /* salts that ancestors of this process used */
	u32 bell_spares;	      /* fds of bells that are gone, kept open until another bell takes the number */
	int bell_spare[BELL_ENTS];
	struct bell_ent bell_ent[BELL_ENTS];
	struct ep_state *_Atomic ep; /* epoll.c; 0 until the first epoll set */
	/* map.c */
	struct lk map_lk;	      /* innermost: sock and block allocation, who names a sock, fork */
	_Atomic u32 fd_top;	      /* no fd >= this was ever FD_HIDDEN or above, or EARLY_DUP */
	u32 forking;		      /* between map_prefork and map_postfork */
	u32 nslabs, slab_hint;
	struct slab slab[SLAB_MAX];
	/* registry.c */
	_Atomic u32 half_open[HALF_OPEN_PEERS]; /* see reg_begin */
};
/* Glibc's alone. A program of another libc starts all the same, and nothing is ours in it: boot. */
#pragma weak __libc_single_threaded
#pragma weak __chk_fail
#pragma weak __pthread_register_cancel
#pragma weak __pthread_unregister_cancel
#pragma weak __register_atfork
#pragma weak gnu_get_libc_version
#pragma weak dladdr1

extern struct shim *smcr_shim HIDDEN;
#define S smcr_shim

/* What counts in this process's page counts in the one that a report knows, too. */
#define PAGE_ADD(page, field, n)                                            \
	do {                                                                \
		atomic_fetch_add(&(page)->field, n);                        \
		if (S->before && S->before != S->proc && (page) == S->proc) \
			atomic_fetch_add(&S->before->field, n);             \
	} while (0)

/* fd_early. What happens to a socket before its connect counts once that makes it ours. */
#define EARLY_TCP 1u	 /* made by socket() */
#define EARLY_DUP 2u	 /* other numbers may name it */
#define EARLY_EPOLL 4u	 /* it is in an epoll set: */
#define EARLY_KNOWN 8u	 /*  which, and for what, is written down; */
#define EARLY_UNSURE 16u /*  or not */
#define EARLY_OUT 32u	 /* an IPsec policy of its own, which the kernel does not tell, keeps it from SMC-R */
#define EARLY_AGREED 64u /* FD_ASKED: a rule says that the peer speaks SMC-R */
#define EARLY_THEIRS 128u /* FD_ASKED in a forked child: its parent's, unless the child moves bytes on it */
_Static_assert((EARLY_TCP ^ EARLY_DUP ^ EARLY_EPOLL ^ EARLY_KNOWN ^ EARLY_UNSURE ^ EARLY_OUT ^ EARLY_AGREED ^ EARLY_THEIRS) == 0xff, "a bit each");

enum smcr_mode { MODE_AUTO, MODE_OFF, MODE_REQUIRE };
enum smcr_profile { PROFILE_BALANCED, PROFILE_SAFE, PROFILE_LATENCY };

static inline int kind_of(int fd)
{
	return (unsigned)fd < FD_MAX ? atomic_load_explicit(&S->fd_kind[fd], memory_order_acquire) : FD_PLAIN;
}
/* IPsec protects what TCP sends, and only that: RFC 7609 §5.5. IP_IPSEC_POLICY, IP_XFRM_POLICY; IPV6_ the same. */
static inline int ipsec_option(int level, int name)
{
	return (level == 0 && (name == 16 || name == 17)) || (level == 41 && (name == 34 || name == 35));
}
static inline int pass(int fd)
{
	return kind_of(fd) <= FD_PLAIN;
}
static inline int is_undecided(int kind)
{
	return kind >= FD_ASKED;
}

/* ---- map.c: fds and sockets --------------------------------------------------------------------------- */

/* The sock behind an fd of kind FD_SOCK with a reference for the call, or 0. Slow calls pass check=1: the
 * socket's inode is compared, so that a number closed behind our back and reused is noticed. */
struct sock *sock_get(int fd, int check) HIDDEN;
void sock_put(struct sock *s) HIDDEN; /* the last reference frees the sock and its block */
struct sock *sock_at(u32 idx, u32 gen) HIDDEN;		 /* for the engine; takes a reference or 0 */
void sock_drop(struct sock *s) HIDDEN;			 /* sock_put for what sock_at gave */
void sock_pin(struct sock *s) HIDDEN; /* a reference that is no call of the program */
void sock_unpin(struct sock *s) HIDDEN;
struct sock *sock_new(int fd, u32 role, u32 state) HIDDEN; /* block + sock + map byte; 0 = no memory */
u32 sock_idx(const struct sock *s) HIDDEN;
void fd_closed(int fd) HIDDEN;			/* the number is gone or about to be: drop what we know */
u64 fd_inode(int fd) HIDDEN;			/* of the socket, 0 = it is none */
void fd_seen(int fd) HIDDEN;			/* fd_top is above it from now on */
int fd_dup(int from, int to) HIDDEN;		/* `to` now names the same description as `from` */
int fd_hide(int fd) HIDDEN;			/* moves one of our own fds high, CLOEXEC, marks it; returns the new number */
int fd_unhide(int fd) HIDDEN;			/* closes one of our own fds */
/* fd_closed in two steps, for who closes or replaces the number between them: sock_put the answer (if any) afterwards.
 * *listener: hand it to reg_gone afterwards. */
struct sock *fd_forget(int fd, u32 *listener) HIDDEN;
void sock_plain(struct sock *s) HIDDEN;		/* all fds of it become libc's alone; the caller holds a reference */
void map_prefork(void) HIDDEN;			/* parent, right before fork: connections get one more holder */
void map_postfork(int failed) HIDDEN;		/* parent, after it */
void map_leave(int ends) HIDDEN; /* before exit and exec: what was inherited is held no more */
void map_stay(void) HIDDEN;  /* exec failed */
/* Established connections do not go over exec yet. The new image is told which sockets those are, by their cookies in
 * hexadecimal, and who uses one gets ECONNRESET, and its peer a reset: never two that wait for each other. */
u32 map_held(char *text, u32 room) HIDDEN; /* how many; text ends with 0 */
void map_lost(const char *text) HIDDEN;
int block_held(const struct block *, u64 cookie) HIDDEN; /* by anybody, for that socket */
int block_heir_lives(const struct block *) HIDDEN; /* or it is not to be known */
void block_lost(struct block *, u32 slab, u64 cookie) HIDDEN; /* whoever held it was killed */
void map_forked(void) HIDDEN;			/* child, after lane_forked: the engine's holds and calls under way are gone */
void count_tcp(u32 reason, int refused) HIDDEN; /* a connection was decided for TCP, or ends because SMC-R is required */

/* ---- lane.c: rings, locks, arms, sleeping ---------------------------------------------------------------- */

int lk_lock(struct lk *l) HIDDEN; /* 1: this very thread held it already (a signal handler of it): do not unlock */
void lk_unlock(struct lk *l, int nested) HIDDEN;

/* Copies what is there or fits; never sleeps. lane_read: > 0 bytes, 0 = ring empty, -errno (peer broke the
 * cursors: the connection is marked BF_BROKEN). flags: MSG_PEEK, MSG_TRUNC (discard). lane_write: bytes, 0 = no room. */
ssize_t lane_read(struct sock *s, const struct iovec *iov, int n, size_t skip, int flags) HIDDEN;
ssize_t lane_write(struct sock *s, const struct iovec *iov, int n, size_t skip) HIDDEN;
#define CALL_MAX 0x7ffff000ul /* Linux' MAX_RW_COUNT: no call moves more, whatever it is given */
u64 lane_used(struct sock *s) HIDDEN; /* bytes in the rx ring */
u64 lane_unsent(struct sock *s) HIDDEN; /* bytes in the tx ring that the peer has not read */
u64 lane_room(struct sock *s) HIDDEN; /* free bytes in the tx ring */
#define LANE_OUT_READY(s, room) ((room) >= (s)->txsize / 4) /* when a full ring counts as writable again */

/* Waits until the ring may have data (dir = EPOLLIN), room (EPOLLOUT), or the state may have changed (0: only
 * the state). Spins first as the policy says, then arms and sleeps. Returns 0 = look again, -EINTR, -ETIMEDOUT.
 * deadline: CLOCK_MONOTONIC ns, 0 = none. Cancellation point. Holds no lock. */
int lane_wait(struct sock *s, int dir, i64 deadline) HIDDEN;
/* Spins a moment for `ready(arg)` as the policy says; 1 = became true. For poll and epoll. peer_cpu: +1, 0 = unknown. */
int lane_spin(int (*ready)(void *), void *arg, _Atomic u32 *credit, u32 peer_cpu) HIDDEN;

int arm_bell(struct arm *a, u32 id) HIDDEN; /* 1 = armed; 0 = no place: the caller sleeps in slices */
void arm_fire(struct arm *a, struct sock *s, int own) HIDDEN; /* own: the waiters are this side's (state changes) */
void sock_fire(struct sock *s) HIDDEN;	    /* wakes every waiter of this side: state or flags changed */
i64 now_ns(void) HIDDEN;		    /* CLOCK_MONOTONIC */
u32 my_tid(void) HIDDEN;
void lane_forked(void) HIDDEN;	    /* child of fork, before anything else of ours */

/* ---- bell.c ------------------------------------------------------------------------------------------------ */

int bell_get(void) HIDDEN;	/* index of a bell for a set or a polling thread, or -errno */
void bell_put(int idx) HIDDEN;
void bell_sleeps(struct bell_word *w) HIDDEN; /* for the owner: from now on a ringer writes the eventfd; then look again */
void bell_wake(struct bell_word *w, int fd) HIDDEN;
u32 bell_id(int idx) HIDDEN;
int bell_tell(int idx, u32 peer) HIDDEN; /* hands it to that process unless done; 0 or -errno (then slices) */
void bell_ring(struct sock *s, u32 id, u32 tag, int own) HIDDEN;
void bell_install(u32 peer, u32 id, int fd, int pagefd) HIDDEN; /* engine: a BELL datagram came; takes both fds (pagefd -1 = none) */
void bell_rung(u32 id, u32 tag) HIDDEN; /* engine: another engine says that somebody there rang a bell of ours */
void bell_forget(u32 peer) HIDDEN; /* engine: that process is gone; before its index is used again */
void bell_forked(void) HIDDEN;	   /* child of fork, after lane_forked, S->salt still the parent's: no index of before is valid any more */

/* ---- sock.c: what a connection of ours answers -------------------------------------------------------------- */

/* First use of an accepted socket and the like. 1 = ours, go on; 0 = plain by now, call libc. */
int sock_use(struct sock *s) HIDDEN;
u32 sock_events(struct sock *s) HIDDEN; /* EPOLLIN|OUT|RDHUP|HUP|ERR|PRI that hold now; state must not be S_TCP */
int sock_arm(struct sock *s, u32 bell, u32 want) HIDDEN; /* 1 = armed for these; 0 = use slices. Look again after. */
/* On return the state is S_ACTIVE or S_TCP; bounded. Without `wait` also S_FLUSH, which the engine ends. */
void sock_settle(struct sock *s, int wait) HIDDEN;
i64 timeo_of(int fd, int name) HIDDEN; /* SO_RCVTIMEO or SO_SNDTIMEO in microseconds, 0 = none; opt.c */
void sock_timeo(struct sock *s) HIDDEN; /* loads SO_RCVTIMEO and SO_SNDTIMEO into the block once; opt.c */
void sock_leave(struct sock *s, u32 reason) HIDDEN; /* not established yet: give SMC-R up; ends in S_TCP, bounded */
void sock_agreed(struct sock *s, u32 source) HIDDEN; /* right after sock_new */
void sock_hand_back(struct sock *s) HIDDEN; /* TCP's connection is over: the kernel's socket shows the rest natively */
void tcp_reset(int fd) HIDDEN;
void abandon_all(void) HIDDEN;		 /* after it, before exit */
void settle_all(void) HIDDEN;		 /* before fork, exec, exit */
void sock_tcp_event(struct sock *s, u32 events) HIDDEN; /* EPOLL* of the TCP fd of an established connection */

/* For the engine's thread. */
#define STAGE_SIZE 65536
struct rings {
	u64 rx_head, rx_buf, rx_size, tx_head, tx_buf, tx_size; /* addresses in this process */
	u32 rx_token, tx_token, rmb, rmbe, peer, lgr;
	char provider[16];
};
int sock_waits(struct sock *s) HIDDEN; /* does somebody of this side wait to write? */
const char *reason_word(u32 reason) HIDDEN;
void sock_gone(struct sock *s) HIDDEN; /* established, and the peer took its element away */
void sock_half(struct sock *s) HIDDEN; /* REQ_HALF: is the half-closed peer still alive? */
void sock_established(struct sock *s, const struct rings *r) HIDDEN;
void sock_claimed(struct sock *s) HIDDEN;	/* S_OFFERED -> S_CLC */
u32 sock_fallback(struct sock *s, u32 reason, u32 diagnosis) HIDDEN; /* returns bytes still to flush: call sock_flush on EPOLLOUT */
u32 sock_flush(struct sock *s) HIDDEN;
int sock_shut_later(struct sock *s) HIDDEN; /* shutdown(SHUT_WR) before the decision: 1 = done when it falls; 0 = it has fallen */
void sock_broken(struct sock *s, u32 reason, int err) HIDDEN; /* not established: both sides see a reset */
int sock_sweep(struct sock *s) HIDDEN; /* 1 = look again in 2 s; 0 = its tx ring's pages are given back */

/* ---- epoll.c ---------------------------------------------------------------------------------------------------- */

/* fd of s is closed; before s->fds goes down. If it is this process's last one the entries go; the kernel drops its
 * registrations by itself. Else they stay, as in Linux. */
void epoll_sock_closed(struct sock *s, int fd) HIDDEN;
/* Before that number of s goes, whether or not others are left: what the program deleted under it goes for good. */
void epoll_number_closed(struct sock *s, int fd, int all) HIDDEN; /* all: not only dormant entries end */
/* Every set's registration becomes the program's own. State is S_FLUSH or S_TCP: epoll_ctl makes no entry in these. */
void epoll_sock_plain(struct sock *s) HIDDEN;
/* A send that may not wait found no room (EAGAIN or a short count): an EPOLLET entry owes an EPOLLOUT edge later. */
void epoll_sock_full(struct sock *s) HIDDEN;
void epoll_set_closed(int epfd) HIDDEN;
/* After every successful dup, dup2, dup3, F_DUPFD of an fd that is FD_UNKNOWN, FD_PLAIN or FD_EPOLL (a set without
 * anything of ours is FD_PLAIN). 1 = `to` is a set of ours now, kind and all; 0 = not a set; -errno. */
int epoll_set_dup(int from, int to) HIDDEN;
/* A socket before its connect: 0 = in no epoll set; 1 = in one that epoll_take can make ours; -1 = that cannot. */
int epoll_early(int fd) HIDDEN;
int epoll_take(struct sock *s, int fd) HIDDEN; /* after it: 0, or -errno = the registration is still the program's own */
void epoll_forked(void) HIDDEN; /* child of fork, after lane_forked */
/* poll or select is about to look at this fd, which may be a set: 1 = use slices, 2 = readable by what is ours. */
int epoll_polled(int epfd) HIDDEN;

/* ---- rules.c: what the rules file says ------------------------------------------------------------------------- */

struct place; /* registry.h */
struct verdict {
	u32 use;    /* enum rule_use */
	u32 reason; /* not 0: plain TCP, for that reason */
	u32 eager;  /* negotiate at accept */
	u32 known;  /* the other end speaks SMC-R even if nobody else says so: SOURCE_RULES */
};
int rules_listen(int fd, struct verdict *v) HIDDEN; /* 0 = some client may get SMC-R, or -reason */
void rules_connect(const struct sockaddr *sa, socklen_t len, struct verdict *v) HIDDEN;
void rules_accepted(int fd, struct verdict *v) HIDDEN;
void rules_decide(const struct rules *t, u32 role, u16 port, const struct place *peer, struct verdict *v) HIDDEN; /* peer 0: any */
/* What the rules would be read from: 0 = nothing, 1 = `id` identifies it, another id is another text. */
int rules_source(u64 id[6]) HIDDEN;
/* For the engine: a compiled table of that source, for this process and, if it is `lasting`, for those to come. */
void rules_keep(const void *table, u64 size, const u64 id[6], int lasting) HIDDEN;

/* ---- hook.c: the kernel hook, which puts the option of RFC 7609 §3.1 on SYN and SYN-ACK ------------------------------ */

int hook_offer(int fd) HIDDEN;	   /* before listen or connect: this socket offers. 0 or -errno */
void hook_withdraw(int fd) HIDDEN; /* no longer */
int hook_verdict(int fd) HIDDEN;   /* enum smcr_verdict of kernel/smcr.h: did both offer? SMCR_UNKNOWN without a hook, too */
/* The first process that asks negotiates on this socket: 0; another image or child does or did: -EBUSY. */
int hook_take(int fd) HIDDEN;
void hook_decided(int fd, u32 state) HIDDEN; /* who took it: S_ACTIVE or S_TCP is what became of it, for images to come */
/*
 * Around a connect that offers: until it is decided, other threads do not use the connection behind our back. The inode of the
 * socket; then, by whoever is quiet(), the number that it has by now, which is for the caller to decide, or -1: others have, or
 * nobody has it any more. Last: what has not been decided is FD_UNKNOWN.
 */
u64 hook_join(int fd) HIDDEN;
int hook_decides(int fd, u64 ino) HIDDEN;
void hook_joined(int fd) HIDDEN;
void hook_orphan(int fd, u64 ino) HIDDEN; /* connect does not come back: whoever uses the socket next decides */
void hook_left(int fd) HIDDEN;		  /* the number ends; FD_JOINING */
/* What is one of these kinds (bits), fd and as far as they are noted (EARLY_DUP) other numbers of its socket; who: for FD_JOINING. */
void hook_numbers(int fd, u32 was, u8 kind, u32 who) HIDDEN;
/* FD_ASKED: what it is by now: FD_ASKED still, FD_SOCK or FD_PLAIN. FD_JOINING: the same, or FD_JOINING as long as the kernel connects. */
int hook_look(int fd) HIDDEN;
void hook_look_all(void) HIDDEN;
void hook_forked(void) HIDDEN;
/* For a call that moves bytes: waits as the socket does. 0 = it is decided; -EAGAIN, -EINTR. flags: MSG_DONTWAIT; limit:
 * SO_RCVTIMEO or SO_SNDTIMEO. */
int hook_wait(int fd, int flags, int limit) HIDDEN;
/* Agreed, and we cannot: says so to the peer, as server once its Proposal is off the stream, bounded; or resets. For
 * sockets that no engine knows. */
void hook_decline(int fd, int client, u32 reason) HIDDEN;
/* FD_ASKED goes to another process or image: decided here, at the latest at that time (0: soon), so that the peer does not wait for CLC. */
void hook_give(int fd, i64 until) HIDDEN;
void hook_leave(void) HIDDEN; /* before exec: those that the next image inherits */
void hook_exec(void) HIDDEN; /* before exec and spawn: listeners that the next image inherits shall not offer */
/* conn.c: FD_ASKED is connected and both offer; 0 = plain by now. */
int conn_agreed(int fd, u32 source, int must) HIDDEN;
void conn_left(int fd) HIDDEN;	/* FD_JOINING: what the registry has of it is taken back */
void conn_joined(int fd) HIDDEN; /* FD_JOINING, ours to decide (hook_decides), if connect does not come back to do so */

/* ---- registry.c: the host registry and sock_diag ------------------------------------------------------------------ */

enum reg_state { REG_FREE = 0, REG_OFFERED = 1, REG_CLAIMED = 2, REG_WITHDRAWN = 3 };
int reg_dir(void) HIDDEN;   /* the run directory, opened and found to be ours; or -reason */
const char *shim_env(const char *name) HIDDEN; /* a SMCR_ variable as the program was started with it; 0 = none, or empty */
int reg_ready(void) HIDDEN; /* maps the tables, makes the process page; 0 or -errno */
int reg_listen(int fd) HIDDEN;	  /* publishes a listening socket */
void reg_unlisten(int fd) HIDDEN;
int reg_is_listener(int fd) HIDDEN; /* inherited: is this socket's cookie published? */
int reg_lookup(const struct sockaddr *sa, socklen_t len) HIDDEN; /* after reg_ready; 0 = a listener of ours is there, or -reason */
int reg_haste(const struct sockaddr *sa, socklen_t len) HIDDEN; /* after reg_ready; 1 = connections to there end too soon for a handshake */
void reg_ended(const struct block *b, int paid) HIDDEN;	 /* one of ours has: was it worth a handshake? */
int reg_shunned(const struct sockaddr *sa, socklen_t len) HIDDEN; /* 1 = who listens there answered the option, but not in CLC */
void reg_shun(const struct block *b) HIDDEN;			  /* the peer of b is such a one, for ten minutes */
int reg_offer(int fd, u64 *cookie) HIDDEN; /* slot >= 0, or -reason */
int reg_shell(void) HIDDEN;		   /* after reg_ready; 1 = this program is one */
int reg_quiet(void) HIDDEN;		   /* 1 = nobody at all offers */
int reg_offered(int fd, u64 *cookie) HIDDEN; /* slot of this process's offer for that socket, or -1 */
int reg_find(u64 cookie) HIDDEN;	   /* slot with that cookie in REG_OFFERED, or -1 */
int reg_claim(int slot, u64 cookie) HIDDEN; /* 1 = ours now; the client's engine name is then read by the engine */
/* Server: counts a handshake, until reg_over, with the process that made that offer or (slot -1) the host at that address. A number, or
 * -reason: that one has too many. */
int reg_begin(int slot, const u8 peer[16]) HIDDEN;
void reg_over(u32 number) HIDDEN;
int reg_withdraw(int slot, u64 cookie) HIDDEN; /* 1 = nobody had claimed it */
int reg_state(int slot, u64 cookie) HIDDEN; /* enum reg_state */
void reg_done(int slot, u64 cookie) HIDDEN; /* the slot is free again */
void reg_refuse(int fd) HIDDEN; /* server: nobody will claim; its client is told */
void reg_set_gid(int slot, u64 cookie, const u8 gid[16]) HIDDEN;
int reg_get_gid(int slot, u64 cookie, u8 gid[16]) HIDDEN;
struct block *reg_slab(u32 n) HIDDEN; /* SLAB_BLOCKS more blocks behind the n that the process's file has */
void reg_gone(u32 listener) HIDDEN; /* the last fd of this process for that listener is closed */
void reg_forked(void) HIDDEN; /* child, after map_forked: its own page and sockets are made when needed */
void reg_exec(void) HIDDEN;   /* before exec: what the next image inherits it publishes itself, at its first accept */
enum heir { HEIR_EXEC, HEIR_BESIDE, HEIR_CHOOSES }; /* the next image; one beside us; that gets what it is given, close-on-exec or not */
void reg_heirs(enum heir heir) HIDDEN; /* before exec and spawn: accepted, unused, inherited: another image cannot claim these */
void reg_exit(void) HIDDEN;   /* at exit: removes the process's file and entries; optional, the next start would */

struct diag {
	u64 cookie;
	u32 inode; /* 0: not accepted yet, or closed by its process */
	u8 tcp_state;
};
int diag_mirror(int fd, struct diag *d) HIDDEN; /* the other end of this connection on this host; 0 or -errno */
int diag_held(const struct block *) HIDDEN; /* 1 = a process has the TCP socket; 0 = none on this network namespace; or -errno */
int diag_closed(int fd) HIDDEN; /* neither connected nor about to be */
int diag_loopback(int fd) HIDDEN; /* its own address is one of loopback */
int diag_foreign_listener(int fd) HIDDEN; /* client: somebody listens on that port whom the table does not know */

/* ---- the h_ functions -------------------------------------------------------------------------------------------------
 *
 * h_NAME has libc's signature of NAME and its contract (-1 and errno). preload/export.c calls it when the fd is
 * ours (or always, where the call creates, duplicates or ends fds or processes); aliases (_chk, 64) call the same.
 *   data.c    read readv recv recvfrom recvmsg recvmmsg write writev send sendto sendmsg sendmmsg preadv2 pwritev2
 *             sendfile splice
 *   conn.c    connect listen accept accept4
 *   fdcalls.c socket close dup dup2 dup3 fcntl close_range closefrom fdopen
 *   opt.c     getsockopt setsockopt ioctl shutdown
 *   poll.c    poll ppoll select pselect
 *   epoll.c   epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2; always called: a set may get its
 *             first socket of ours while a thread waits on it
 *   life.c    fork vfork posix_spawn posix_spawnp exec* system popen _exit _Exit prctl syscall   (preload)
 */

/* ---- life.c, queue.c (preload) ----------------------------------------------------------------------------------------------- */

int engine_start(void) HIDDEN; /* 0 = READY, else -reason. Any thread, once; others wait. */
int engine_post(u32 op, struct sock *s, u64 arg) HIDDEN; /* queue.c: 0 or -errno; any thread, also in signal handlers */
int queue_take(struct req *out) HIDDEN; /* for the engine: 1 = took one, 0 = empty; set engine_asleep before the last look */
/* Before a call that changes our state: 1 = the state is this process's; 0 = this is a vfork child, which borrows its
 * parent's memory: do the real call and nothing else. Also notices forks that nobody announced. One getpid. */
int life_mine(void) HIDDEN;
void life_make_spare(void) HIDDEN; /* for the engine, once, when it runs: returns at once, works in a thread of its own */

#endif

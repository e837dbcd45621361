/* How much one call moves: SO_RCVLOWAT, MSG_WAITALL with MSG_PEEK, empty and over-long vectors, more than Linux moves at once. */
#include "app.h"

static char buf[4096];

static void receive_timed(int fd, const char *what, size_t n, int flags)
{
	double began = now();
	ssize_t k = recv(fd, buf, n, flags);
	say("%s: %s %s", what, got(k), now() - began > 0.1 ? "after the time limit" : "at once");
}

static void wait_for_amounts(int fd)
{
	if (role == CLIENT) {
		static const int parts[] = { 10, 60, 50 };
		for (int i = 0; i < 3; i++) {
			await();
			send_all(fd, buf, parts[i]);
			pass();
		}
		await();
		return;
	}
	struct timeval limit = { 0, 150000 };
	int low = 100;
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	must(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
	pass(), await();
	receive_timed(fd, "10 of low water 100", 4096, 0);
	pass(), await();
	receive_timed(fd, "peek 60 of low water 100", 4096, MSG_PEEK);
	receive_timed(fd, "30, less than low water", 30, 0);
	receive_timed(fd, "peek all of 4096", 4096, MSG_PEEK | MSG_WAITALL);
	receive_timed(fd, "without waiting", 4096, MSG_DONTWAIT);
	low = 1;
	must(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
	pass(), await();
	receive_timed(fd, "peek", 4096, MSG_PEEK);
	receive_timed(fd, "peek all of 50", 50, MSG_PEEK | MSG_WAITALL);
	receive_timed(fd, "all of 4096", 4096, MSG_WAITALL);
	limit.tv_usec = 0;
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	pass();
}

static void vectors(int fd)
{
	static struct iovec v[1025];
	struct msghdr none = { .msg_iov = v }, most = { .msg_iov = v, .msg_iovlen = 1024 }, more = { .msg_iov = v, .msg_iovlen = 1025 };
	struct mmsghdr many = { .msg_hdr = none };
	struct timespec bad = { 0, 2000000000 };

	if (role == CLIENT) {
		await();
		return;
	}
	say("readv of no part: %s", got(readv(fd, v, 0)));
	say("readv of 1024 empty parts: %s", got(readv(fd, v, 1024)));
	say("preadv2 of 2: %s", got(preadv2(fd, v, 2, -1, 0)));
	say("writev of no part: %s", got(writev(fd, v, 0)));
	say("writev of 1024 empty parts: %s", got(writev(fd, v, 1024)));
	say("readv of 1025: %s, writev: %s", got(readv(fd, v, 1025)), got(writev(fd, v, 1025)));
	say("recvmsg of none: %s, of 1024: %s, of 1025: %s", got(recvmsg(fd, &none, MSG_DONTWAIT)),
	    got(recvmsg(fd, &most, MSG_DONTWAIT)), got(recvmsg(fd, &more, MSG_DONTWAIT)));
	say("sendmsg of none: %s, of 1024: %s, of 1025: %s", got(sendmsg(fd, &none, 0)), got(sendmsg(fd, &most, 0)), got(sendmsg(fd, &more, 0)));
	say("recvmmsg until never: %s", got(recvmmsg(fd, &many, 1, MSG_DONTWAIT, &bad)));
	must(shutdown(fd, SHUT_WR));
	say("after the end writev of nothing: %s", got(writev(fd, v, 1)));
	signal(SIGPIPE, SIG_IGN);
	say("and of a byte: %s", got(writev(fd, &(struct iovec){ buf, 1 }, 1)));
	pass();
}

/* The kernel moves at most 2 GiB - 4096 in one call. */
static void too_much(int fd)
{
	size_t part = 1ul << 30, all = 0;

	if (role == SERVER) {
		size_t n = 1 << 20;
		char *p = must(mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
		for (ssize_t k; (k = must(recv(fd, p, n, MSG_TRUNC))) > 0;)
			all += k;
		say("%zu bytes came", all);
		return;
	}
	char *p = must(mmap(NULL, part, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
	struct iovec v[] = { { p, part }, { p, part }, { p, part } };
	say("3 GiB: %s", got(writev(fd, v, 3)));
}

static void both(int fd)
{
	wait_for_amounts(fd);
	meet(fd);
	int big = another();
	too_much(big);
	close(big);
	vectors(fd);
	close(fd);
}

int main(void) { return two_processes(both, both); }

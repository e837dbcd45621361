/* What a socket says of itself: options, addresses, file status. */
#include "app.h"
#include <netinet/tcp.h>

static int option(int fd, int level, int name)
{
	int v = -1;
	socklen_t n = sizeof v;
	return getsockopt(fd, level, name, &v, &n) ? -errno : v;
}

static void describe(int fd)
{
	struct stat st;
	struct sockaddr_in mine, peer;
	socklen_t n = sizeof mine, m = sizeof peer;
	must(fstat(fd, &st));
	say("socket %d, type %d, domain %d, protocol %d, listening %d", S_ISSOCK(st.st_mode), option(fd, SOL_SOCKET, SO_TYPE),
	    option(fd, SOL_SOCKET, SO_DOMAIN), option(fd, SOL_SOCKET, SO_PROTOCOL), option(fd, SOL_SOCKET, SO_ACCEPTCONN));
	must(getsockname(fd, (void *)&mine, &n));
	must(getpeername(fd, (void *)&peer, &m));
	say("server's port: %d, lengths %d %d", ntohs(role == SERVER ? mine.sin_port : peer.sin_port) == port, n, m);
	int values[][3] = {
		{ IPPROTO_TCP, TCP_NODELAY, 1 }, { SOL_SOCKET, SO_KEEPALIVE, 1 }, { IPPROTO_TCP, TCP_KEEPIDLE, 77 }, { IPPROTO_TCP, TCP_KEEPINTVL, 7 },
		{ IPPROTO_TCP, TCP_KEEPCNT, 5 }, { IPPROTO_TCP, TCP_USER_TIMEOUT, 12345 }, { SOL_SOCKET, SO_OOBINLINE, 1 }, { IPPROTO_TCP, TCP_QUICKACK, 1 },
		{ SOL_SOCKET, SO_PRIORITY, 3 }, { IPPROTO_IP, IP_TOS, 0x10 }, { SOL_SOCKET, SO_RCVLOWAT, 9 }, { IPPROTO_TCP, TCP_CORK, 1 }, { IPPROTO_TCP, TCP_CORK, 0 },
		{ SOL_SOCKET, SO_RCVBUF, 100000 }, { SOL_SOCKET, SO_SNDBUF, 100000 }, { SOL_SOCKET, SO_REUSEADDR, 1 },
	};
	for (unsigned i = 0; i < sizeof values / sizeof *values; i++) {
		int r = setsockopt(fd, values[i][0], values[i][1], &values[i][2], sizeof(int));
		say("option %d %d: %s, %d", values[i][0], values[i][1], err(r), option(fd, values[i][0], values[i][1]));
	}
	say("error %d, bad option %s, bad level %s", option(fd, SOL_SOCKET, SO_ERROR), strerrorname_np(-option(fd, IPPROTO_TCP, 9999)),
	    strerrorname_np(-option(fd, 9999, 1)));
	char name[16] = { 0 };
	socklen_t len = sizeof name;
	must(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len));
	say("congestion control: %s", name[0] ? "named" : "none");
	struct tcp_info info;
	len = sizeof info;
	must(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
	say("state %d", info.tcpi_state);
	struct linger l = { 1, 5 };
	must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
	len = sizeof l;
	must(getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &len));
	say("linger %d %d", l.l_onoff, l.l_linger);
	struct timeval t = { 3, 500000 };
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
	len = sizeof t;
	must(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, &len));
	say("limit %ld %ld", (long)t.tv_sec, (long)t.tv_usec);
	say("flags %d", fcntl(fd, F_GETFL) == O_RDWR);
	int on = 1;
	must(ioctl(fd, FIONBIO, &on));
	say("FIONBIO: %d, read %s", !!(fcntl(fd, F_GETFL) & O_NONBLOCK), got(recv(fd, name, 1, 0)));
	must(ioctl(fd, FIOCLEX));
	say("FIOCLEX: %d", fcntl(fd, F_GETFD));
	say("seek %s", err(lseek(fd, 0, SEEK_CUR)));
}

/* SO_RCVLOWAT: a reader sleeps until that much is there. */
static void low_water(int fd)
{
	char buf[16];
	int ten = 10, one = 1, zero = 0;
	must(ioctl(fd, FIONBIO, &zero));
	must(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one));
	if (role == CLIENT) {
		await();
		send_all(fd, "12345", 5);
		pass();
		await();
		send_all(fd, "67890", 5);
		pass();
		return;
	}
	must(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &ten, sizeof ten));
	pass();
	await();
	say("below low water: %s", poll_bits(poll_for(fd, POLLIN, 0)));
	pass();
	say("at it: %s", poll_bits(poll_for(fd, POLLIN, 10000)));
	say("read %s", got(recv(fd, buf, 10, 0)));
	await();
	must(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one));
}

static void both(int fd)
{
	describe(fd);
	low_water(fd);
	meet(fd);
	close(fd);
}

int main(void) { return two_processes(both, both); }

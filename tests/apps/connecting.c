/* connect and accept: blocking or not, refused, repeated, and what the new sockets inherit. */
#include "app.h"

static char buf[64];

static int so_error(int fd)
{
	int e = -1;
	must(getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &(socklen_t){ sizeof e }));
	return e;
}

static void server(int fd)
{
	for (int i = 0; i < 5; i++) { /* the clients below */
		int s = accepted(listener);
		size_t n = receive_all(s, buf, 5);
		say("accepted: %.*s", (int)n, buf);
		send_all(s, "fine", 4);
		if (i == 3)
			say("disconnected: %s", got(recv(s, buf, 1, 0)));
		close(s);
	}
	int l = listening(0, 0), on = 1;
	must(setsockopt(l, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
	must(setsockopt(l, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
	set_nonblocking(l);
	say("nobody there: accept %s", err(accept(l, NULL, NULL)));
	int p = port_of(l);
	must(write(turn[CLIENT][1], &p, sizeof p));
	check(poll_for(l, POLLIN, 10000) == POLLIN);
	struct sockaddr_in from;
	socklen_t len = sizeof from;
	int s = must(accept4(l, (void *)&from, &len, SOCK_CLOEXEC));
	say("from loopback: %d, %d", from.sin_addr.s_addr == htonl(INADDR_LOOPBACK), len);
	on = 0;
	must(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, &(socklen_t){ sizeof on }));
	say("inherited: nodelay %d, nonblocking %d, cloexec %d", on, !!(fcntl(s, F_GETFL) & O_NONBLOCK), fcntl(s, F_GETFD));
	send_all(s, "first", 5); /* a server that speaks first */
	say("read %s", got(receive_all(s, buf, 5)));
	close(s);
	close(l);
	close(fd);
	pass();
}

static void client(int fd)
{
	struct sockaddr_in a = loopback(port);
	say("connect again: %s", err(connect(fd, (void *)&a, sizeof a)));

	/* Not blocking, and the data sent as soon as it is writable. */
	int c = must(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
	int r = connect(c, (void *)&a, sizeof a);
	say("nonblocking: %s", r == 0 || errno == EINPROGRESS ? "on its way" : err(r));
	struct sockaddr *volatile nowhere = NULL;
	say("nonblocking: no address %s", err(connect(c, nowhere, sizeof a)));
	say("nonblocking: %s", poll_bits(poll_for(c, POLLOUT, 10000)));
	say("nonblocking: error %d", so_error(c));
	send_all(c, "async", 5);
	check(poll_for(c, POLLIN, 10000) & POLLIN);
	size_t n = 0;
	while (n < 4)
		n += must(recv(c, buf + n, 4 - n, 0));
	say("answer %.4s", buf);
	close(c);

	/* The same over epoll. */
	c = must(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	int set = must(epoll_create1(EPOLL_CLOEXEC));
	connect(c, (void *)&a, sizeof a);
	struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u64 = 1ull << 40 };
	must(epoll_ctl(set, EPOLL_CTL_ADD, c, &e));
	check(epoll_wait(set, &e, 1, 10000) == 1);
	say("epoll: OUT %d, data %d", !!(e.events & EPOLLOUT), e.data.u64 == 1ull << 40);
	send_all(c, "epoll", 5);
	do
		check(epoll_wait(set, &e, 1, 10000) == 1);
	while (!(e.events & EPOLLIN));
	say("answer %s", got(recv(c, buf, 4, 0)));
	close(c);
	close(set);

	/* IPv6, IPv4-mapped. */
	c = must(socket(AF_INET6, SOCK_STREAM, 0));
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	inet_pton(AF_INET6, "::ffff:127.0.0.1", &six.sin6_addr);
	say("mapped: %s", err(connect(c, (void *)&six, sizeof six)));
	send_all(c, "six 6", 5);
	say("answer %s", got(receive_all(c, buf, 4)));
	socklen_t len = sizeof six;
	must(getpeername(c, (void *)&six, &len));
	say("peer: mapped %d, port %d", IN6_IS_ADDR_V4MAPPED(&six.sin6_addr), ntohs(six.sin6_port) == port);
	close(c);

	/* Disconnected, and connected again. */
	struct sockaddr none = { .sa_family = AF_UNSPEC };
	c = connected(port);
	send_all(c, "once", 5);
	say("answer %s", got(receive_all(c, buf, 4)));
	say("disconnect: %s", err(connect(c, &none, sizeof none)));
	say("disconnected: send %s", got(send(c, "x", 1, MSG_NOSIGNAL)));
	say("disconnected: recv %s", got(recv(c, buf, 1, 0)));
	say("disconnected: poll %s", poll_bits(poll_for(c, POLLIN | POLLOUT, 0)));
	say("connect: %s", err(connect(c, (void *)&a, sizeof a)));
	send_all(c, "again", 5);
	say("answer %s", got(receive_all(c, buf, 4)));
	close(c);

	int p;
	check(read(turn[CLIENT][0], &p, sizeof p) == sizeof p);
	c = connected(p);
	say("it speaks first: %s", got(receive_all(c, buf, 5)));
	send_all(c, "reply", 5);
	say("end %s", got(recv(c, buf, 1, 0)));
	close(c);

	/* Nobody listens there now. */
	await();
	c = must(socket(AF_INET, SOCK_STREAM, 0));
	a = loopback(p);
	say("refused: %s", err(connect(c, (void *)&a, sizeof a)));
	close(c);
	c = must(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
	r = connect(c, (void *)&a, sizeof a);
	int e1 = errno, bits = poll_for(c, POLLOUT, 10000);
	if (r == 0 || e1 == EINPROGRESS)
		e1 = so_error(c);
	say("refused later: %s, error %s, then %d", poll_bits(bits), strerrorname_np(e1), so_error(c));
	close(c);
	c = must(socket(AF_INET, SOCK_STREAM, 0));
	say("not connected: recv %s, send %s, shutdown %s", got(recv(c, buf, 1, 0)), got(send(c, "x", 1, MSG_NOSIGNAL)), err(shutdown(c, SHUT_WR)));
	say("not connected: poll %s", poll_bits(poll_for(c, POLLIN | POLLOUT, 0)));
	say("not listening: accept %s", err(accept(c, NULL, NULL)));
	close(c);
	close(fd);
}

int main(void) { return two_processes(server, client); }

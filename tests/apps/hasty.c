/*
 * hasty ROUNDS: one thread connects, and another uses the number as soon as the kernel lets it, which may be before connect has
 * returned. What it sends is the first byte of the stream, what it receives the peer's first.
 */
#include "app.h"

enum { SEND, POLL, EPOLL, RECV, TIME_LIMIT, WAYS };
static int rounds, fd, set, way;
static _Atomic int round_no;

/* Now and then as much as is worth a handshake: the library leaves very short connections to TCP. */
static char tail[300 << 10];
static size_t tail_of(int i) { return i % WAYS ? 1 : sizeof tail; }

static ssize_t send_byte(void)
{
	ssize_t n;
	while ((n = send(fd, "b", 1, MSG_DONTWAIT | MSG_NOSIGNAL)) < 0 && errno == EAGAIN)
		;
	return n;
}

static void receive_byte(void)
{
	char c = 0;
	ssize_t n;
	while ((n = recv(fd, &c, 1, 0)) < 0 && (errno == EAGAIN))
		;
	check(n == 1 && c == 's');
}

static void hurry(void)
{
	static const struct timeval limit = { .tv_usec = 1000 }, none;
	struct epoll_event e = { 0 };
	while (poll_for(fd, POLLOUT, 0) & POLLHUP)
		; /* connect has not begun */
	switch (way) {
	case SEND:
		check(send_byte() == 1);
		break;
	case POLL:
		while (poll_for(fd, POLLOUT, 1000) != POLLOUT)
			;
		check(send_byte() == 1);
		break;
	case EPOLL:
		while (epoll_wait(set, &e, 1, 10000) != 1 || e.events != EPOLLOUT)
			;
		check(send_byte() == 1);
		break;
	case RECV:
		receive_byte();
		break;
	case TIME_LIMIT:
		must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
		receive_byte();
		must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
		break;
	}
}

static void *other(void *unused)
{
	for (int i = 1; i <= rounds; i++) {
		while (round_no != i)
			;
		hurry();
		round_no = -i;
	}
	return NULL;
}

static void *late(void *to)
{
	check(connect(fd, to, sizeof(struct sockaddr_in)) == 0);
	return NULL;
}

/* The SYN is not answered for a second: what the other calls is answered as long as the kernel connects. */
static void slowly(void)
{
	static const struct timeval limit = { .tv_usec = 50000 }, none;
	int l = listening(0, 0), c, first, p = port_of(l);
	struct sockaddr_in to = loopback(p);
	char byte;
	must(listen(l, 0));
	first = connected(p); /* the only one that the queue takes */
	fd = must(socket(AF_INET, SOCK_STREAM, 0));
	pthread_t t = thread(late, &to);
	while (poll_for(fd, POLLOUT, 0) & POLLHUP)
		;
	say("send at once: %s", got(send(fd, "b", 1, MSG_DONTWAIT | MSG_NOSIGNAL)));
	say("recv at once: %s", got(recv(fd, &byte, 1, MSG_DONTWAIT)));
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	say("recv with a limit: %s", got(recv(fd, &byte, 1, 0)));
	close(accepted(l));
	check(send(fd, "b", 1, MSG_NOSIGNAL) == 1);
	check(pthread_join(t, NULL) == 0);
	c = accepted(l);
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
	check(receive_all(c, &byte, 1) == 1 && byte == 'b');
	send_all(c, "s", 1);
	receive_byte();
	close(l), close(c), close(fd), close(first);
}

static void client(int meeting)
{
	struct sockaddr_in to = loopback(port);
	char end;
	pthread_t t;
	close(meeting);
	slowly();
	t = thread(other, NULL);
	for (int i = 1; i <= rounds; i++) {
		way = i % WAYS;
		fd = must(socket(AF_INET, SOCK_STREAM | (i & 8 ? SOCK_NONBLOCK : 0), 0));
		struct epoll_event e = { .events = EPOLLOUT | EPOLLET };
		if (way == EPOLL) {
			set = must(epoll_create1(EPOLL_CLOEXEC));
			must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
		}
		round_no = i;
		check(connect(fd, (void *)&to, sizeof to) == 0 || errno == EINPROGRESS);
		while (round_no != -i)
			;
		must(fcntl(fd, F_SETFL, 0));
		if (way < RECV)
			receive_byte();
		send_all(fd, tail, tail_of(i));
		must(shutdown(fd, SHUT_WR));
		check(receive_all(fd, &end, 1) == 0);
		close(fd);
		if (way == EPOLL)
			close(set);
	}
	pthread_join(t, NULL);
	say("%d rounds", rounds);
}

static void server(int meeting)
{
	static char got[sizeof tail + 1];
	close(meeting);
	for (int i = 1; i <= rounds; i++) {
		int c = accepted(listener), w = i % WAYS;
		char first = 'b';
		if (w < RECV)
			check(receive_all(c, &first, 1) == 1);
		send_all(c, "s", 1);
		check(first == 'b' && receive_all(c, got, sizeof got) == tail_of(i) && got[0] == 'c');
		close(c);
	}
}

int main(int argc, char **argv)
{
	check(argc == 2);
	rounds = atoi(argv[1]);
	memset(tail, 'c', sizeof tail);
	return two_processes(server, client);
}

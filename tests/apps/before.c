/* A socket that is in an epoll set before it is connected, level- and edge-triggered, blocking and not. */
#include "app.h"
#include <sys/epoll.h>

enum { ROUNDS = 4 };

static void server(int fd)
{
	char buf[16];
	close(fd);
	for (int i = 0; i < ROUNDS; i++) {
		fd = accepted(listener);
		check(receive_all(fd, buf, 2) == 2);
		send_all(fd, buf, 2);
		check(recv(fd, buf, 1, 0) == 0);
		close(fd);
	}
}

static void client(int fd)
{
	char buf[16];
	struct epoll_event e;
	struct sockaddr_in a = loopback(port);
	close(fd);
	for (int i = 0; i < ROUNDS; i++) {
		int set = must(epoll_create1(0));
		fd = must(socket(AF_INET, SOCK_STREAM | (i & 1 ? SOCK_NONBLOCK : 0), 0));
		e = (struct epoll_event){ .events = EPOLLIN | (i & 2 ? EPOLLET : 0), .data.u32 = 7 };
		must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
		int r = connect(fd, (void *)&a, sizeof a);
		check(r == 0 || errno == EINPROGRESS);
		check(poll_for(fd, POLLOUT, 5000));
		send_all(fd, "hi", 2);
		do
			r = must(epoll_wait(set, &e, 1, 10000));
		while (r == 1 && !(e.events & EPOLLIN));
		say("round %d: %d event, data %u", i, r, e.data.u32);
		check(receive_all(fd, buf, 2) == 2);
		close(fd), close(set);
	}
}

int main(void) { return two_processes(server, client); }

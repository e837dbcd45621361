/* A peer that has closed, and what tells so: reset by what it left unread, or by what it was sent. And calls that wait for nothing much. */
#include "app.h"

static char buf[1 << 20];

static void told(const char *what, int fd)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLET };
	int set = must(epoll_create1(0)), error = 0, bits;
	socklen_t len = sizeof error;
	say("%s: poll %s", what, poll_bits(bits = poll_for(fd, 0, 2000)));
	must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
	say("epoll %s", epoll_wait(set, &e, 1, 2000) == 1 ? poll_bits(e.events & ~EPOLLRDNORM) : "nothing");
	must(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len));
	say("error %s", error ? strerrorname_np(error) : "none");
	ssize_t n = send(fd, "x", 1, MSG_NOSIGNAL);
	say("send %s", got(n));
	n = recv(fd, buf, 1, 0);
	say("recv %s", got(n));
	close(set);
	close(fd);
}

static void server(int fd)
{
	int p[2];
	alarm(60);
	meet(fd);
	await();
	poll_for(fd, POLLRDHUP, 2000); /* it has closed; what is sent before one can see that may count as unread there */
	check(send(fd, "z", 1, MSG_NOSIGNAL) == 1); /* this brings the reset */
	told("sent to nobody", fd);
	fd = another();
	meet(fd);
	send_all(fd, "zzz", 3);
	pass();
	await();
	poll_for(fd, POLLRDHUP, 2000);
	told("left unread behind a half close", fd);
	fd = another();
	meet(fd);
	pass();
	ssize_t n;
	while ((n = send(fd, buf, sizeof buf, MSG_NOSIGNAL)) > 0)
		;
	say("a sender that blocks: %s", got(n));
	close(fd);
	fd = another();
	meet(fd);
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0, 50000 }, sizeof(struct timeval)));
	say("nothing to receive: %s", got(recv(fd, buf, 0, 0)));
	say("and to look at: %s", got(recv(fd, buf, 0, MSG_PEEK)));
	say("and at once: %s", got(recv(fd, buf, 0, MSG_DONTWAIT)));
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){ 0, 0 }, sizeof(struct timeval)));
	must(pipe2(p, O_NONBLOCK));
	pass();
	say("splice waits for the socket: %s", got(splice(fd, NULL, p[1], NULL, 100, SPLICE_F_NONBLOCK)));
	while (write(p[1], buf, 4096) > 0)
		;
	say("and not for a full pipe: %s", got(splice(fd, NULL, p[1], NULL, 100, SPLICE_F_NONBLOCK)));
	pass();
	meet(fd);
	close(fd);
}

static void client(int fd)
{
	meet(fd);
	close(fd);
	pass();
	fd = another();
	meet(fd);
	await();
	must(shutdown(fd, SHUT_WR));
	close(fd);
	pass();
	fd = another();
	meet(fd);
	await();
	usleep(100000);
	must(shutdown(fd, SHUT_WR));
	close(fd);
	fd = another();
	meet(fd);
	await();
	usleep(100000);
	send_all(fd, "hey", 3);
	await();
	meet(fd);
	close(fd);
}

int main(void) { return two_processes(server, client); }

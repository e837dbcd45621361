/* Half close, reset and broken pipe, each as TCP shows them. */
#include "app.h"

static char buf[4096], big[1 << 20];

static void server(int fd)
{
	/* Half close: the client's end of data, while our direction goes on. */
	say("read %s", got(receive_all(fd, buf, 5)));
	say("then %s", got(recv(fd, buf, sizeof buf, 0)));
	say("again %s", got(recv(fd, buf, sizeof buf, 0)));
	say("poll %s", poll_bits(poll_for(fd, POLLIN | POLLOUT | POLLRDHUP, 5000)));
	send_all(fd, "answer after the end", 20);
	must(shutdown(fd, SHUT_WR));
	say("write after shutdown %s", got(send(fd, "x", 1, MSG_NOSIGNAL)));
	say("poll %s", poll_bits(poll_for(fd, POLLIN | POLLOUT | POLLRDHUP, 5000)));
	close(fd);

	/* The peer closes with our bytes unread: reset. */
	fd = another();
	send_all(fd, "unread", 6);
	pass();
	await();
	check(poll_for(fd, POLLIN, 5000) & POLLIN);
	say("reset: read %s", got(recv(fd, buf, sizeof buf, 0)));
	say("reset: read again %s", got(recv(fd, buf, sizeof buf, 0)));
	say("reset: write %s", got(send(fd, "x", 1, MSG_NOSIGNAL)));
	close(fd);

	/* SO_LINGER 0: abort. */
	fd = another();
	pass();
	await();
	check(poll_for(fd, POLLIN, 5000) & POLLIN);
	say("linger 0: read %s", got(recv(fd, buf, sizeof buf, 0)));
	close(fd);

	/* The peer is gone: EPIPE, and SIGPIPE unless it is held back. */
	fd = another();
	pass();
	await();
	say("gone: read %s", got(recv(fd, buf, sizeof buf, 0)));
	ssize_t n;
	while ((n = send(fd, "x", 1, MSG_NOSIGNAL)) == 1) /* the first one makes the peer say reset */
		usleep(1000);
	say("gone: write %s", got(n));
	pid_t child = must(fork());
	if (!child) {
		n = write(fd, "x", 1);
		_exit(0);
	}
	int status;
	must(waitpid(child, &status, 0));
	say("gone: killed by %s", WIFSIGNALED(status) ? sigabbrev_np(WTERMSIG(status)) : "nothing");
	signal(SIGPIPE, SIG_IGN);
	say("gone: SIGPIPE ignored, write %s", got(write(fd, "x", 1)));
	close(fd);

	/* SHUT_RD: our reads end, also one that sleeps. */
	fd = another();
	must(shutdown(fd, SHUT_RD));
	say("shut for reading: %s", got(recv(fd, buf, sizeof buf, 0)));
	send_all(fd, "still writes", 12);
	close(fd);

	/* SHUT_RDWR, and what may not be done twice. */
	fd = another();
	must(shutdown(fd, SHUT_RDWR));
	say("both: read %s", got(recv(fd, buf, sizeof buf, 0)));
	say("both: write %s", got(send(fd, "x", 1, MSG_NOSIGNAL)));
	await();
	say("both: again %s", err(shutdown(fd, SHUT_RDWR)));
	say("bad how: %s", err(shutdown(fd, 7)));
	close(fd);
	say("closed: %s", err(shutdown(fd, SHUT_RDWR)));

	/* Both have shut down, and much is on its way yet: nobody reads for longer than anybody looks whether we live. */
	fd = another();
	send_all(fd, "bye", 3);
	must(shutdown(fd, SHUT_WR));
	usleep(20000); /* the client's send has to wait */
	say("half read %s", got(receive_all(fd, big, sizeof big * 9 / 10)));
	await();
	usleep(200000);
	pass();
	say("rest %s", got(receive_all(fd, big, sizeof big)));
	await();
	close(fd);
}

static void client(int fd)
{
	send_all(fd, "hello", 5);
	must(shutdown(fd, SHUT_WR));
	say("read %s", got(receive_all(fd, buf, sizeof buf)));
	say("write %s", got(send(fd, "x", 1, MSG_NOSIGNAL)));
	close(fd);

	fd = another();
	await();
	check(poll_for(fd, POLLIN, 5000) & POLLIN);
	close(fd);
	pass();

	fd = another();
	await();
	must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &(struct linger){ 1, 0 }, sizeof(struct linger)));
	close(fd);
	pass();

	fd = another();
	await();
	close(fd);
	pass();

	fd = another();
	say("read %s", got(receive_all(fd, buf, sizeof buf)));
	close(fd);

	fd = another();
	say("both: read %s", got(recv(fd, buf, sizeof buf, 0)));
	close(fd);
	pass();

	fd = another();
	send_all(fd, big, sizeof big);
	must(shutdown(fd, SHUT_WR));
	pass();
	await();
	say("read %s", got(receive_all(fd, buf, sizeof buf)));
	close(fd);
	pass();
}

int main(void) { return two_processes(server, client); }

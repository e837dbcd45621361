/* poll, ppoll, select and pselect over connections, pipes and listeners, also while they sleep. */
#include "app.h"

static char buf[1 << 16];

static void server(int fd)
{
	int second = another(), p[2];
	must(pipe(p));
	struct pollfd set[] = {
		{ fd, POLLIN | POLLOUT, 0 }, { second, POLLIN, 0 }, { p[0], POLLIN, 0 }, { p[1], POLLOUT, 0 }, { -1, POLLIN, 0 }, { 999, POLLIN, 0 },
		{ listener, POLLIN, 0 },
	};
	enum { N = sizeof set / sizeof *set };
	say("poll %d", poll(set, N, 0));
	for (int i = 0; i < N; i++)
		say("  %d: %s%s", i, poll_bits(set[i].revents), set[i].revents & POLLNVAL ? " NVAL" : "");
	pass(); /* a byte on the second while we sleep on both */
	set[0].events = POLLIN;
	say("poll of two %d", poll(set, 2, 10000));
	say("  %s / %s", poll_bits(set[0].revents), poll_bits(set[1].revents));
	await();
	pass(); /* a byte in the pipe's place: the first connection */
	while (!(poll_for(fd, POLLIN, 10000) & POLLIN))
		;
	await();
	say("poll of two %d", poll(set, 2, 0));
	say("same fd twice %d", poll((struct pollfd[]){ { fd, POLLIN, 0 }, { fd, POLLOUT, 0 } }, 2, 0));

	fd_set in, out, ex;
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_ZERO(&ex);
	FD_SET(fd, &in), FD_SET(second, &in), FD_SET(p[0], &in), FD_SET(listener, &in);
	FD_SET(fd, &out), FD_SET(p[1], &out);
	FD_SET(fd, &ex);
	int top = (second > p[1] ? second : p[1]) + 1;
	say("select %d", select(top, &in, &out, &ex, &(struct timeval){ 10, 0 }));
	say("  in %d %d %d %d, out %d %d, ex %d", FD_ISSET(fd, &in), FD_ISSET(second, &in), FD_ISSET(p[0], &in), FD_ISSET(listener, &in),
	    FD_ISSET(fd, &out), FD_ISSET(p[1], &out), FD_ISSET(fd, &ex));
	check(receive_all(fd, buf, 1) == 1 && receive_all(second, buf, 1) == 1);
	FD_ZERO(&in);
	FD_SET(fd, &in), FD_SET(second, &in);
	pass();
	say("pselect %d", pselect(top, &in, NULL, NULL, &(struct timespec){ 10, 0 }, NULL));
	say("  in %d %d", FD_ISSET(fd, &in), FD_ISSET(second, &in));
	await();
	say("readable %s", poll_bits(poll_for(second, POLLIN, 0)));
	check(receive_all(second, buf, 1) == 1);
	FD_ZERO(&in);
	int closed = must(dup(fd));
	close(closed);
	FD_SET(closed, &in);
	say("select of a closed one: %s", err(select(closed + 1, &in, NULL, NULL, NULL)));

	/* High numbers: poll beyond what a set of 1,024 holds. */
	must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 4096, 4096 }));
	int high = must(fcntl(fd, F_DUPFD, 3000));
	say("high number %d: %s", high, poll_bits(poll_for(high, POLLIN | POLLOUT, 0)));
	close(high);

	/* Writable again, and closed, while we sleep in poll. */
	size_t sent = 0;
	for (ssize_t n; (n = send(fd, buf, sizeof buf, MSG_DONTWAIT)) > 0;)
		sent += n;
	must(write(turn[CLIENT][1], &sent, sizeof sent));
	set[0] = (struct pollfd){ fd, POLLOUT, 0 };
	say("full: %d", poll(set, 2, 10000));
	say("  %s / %s", poll_bits(set[0].revents), poll_bits(set[1].revents));
	await();
	pass();
	set[0].events = POLLIN;
	say("end: %d", poll(set, 2, 10000));
	say("  %s / %s", poll_bits(set[0].revents), poll_bits(set[1].revents));
	close(fd), close(second);
}

static void late_byte(int fd)
{
	await();
	usleep(20000); /* let the server sleep */
	send_all(fd, "x", 1);
	pass();
}

static void client(int fd)
{
	int second = another();
	late_byte(second);
	late_byte(fd);
	late_byte(second);
	size_t sent, n = 0;
	check(read(turn[CLIENT][0], &sent, sizeof sent) == sizeof sent);
	usleep(20000);
	while (n < sent)
		n += must(recv(fd, buf, sizeof buf, 0));
	pass();
	await();
	usleep(20000);
	close(fd);
	say("end %s", got(recv(second, buf, 1, 0)));
	close(second);
}

int main(void) { return two_processes(server, client); }

/* The flags of send and recv. */
#include "app.h"

static char buf[1 << 16];

static void *late(void *fd)
{
	usleep(20000);
	send_all(*(int *)fd, "second", 6);
	return NULL;
}

static void server(int fd)
{
	await();
	say("peek %s %.5s", got(recv(fd, buf, 5, MSG_PEEK)), buf);
	say("peek again %s %.5s", got(recv(fd, buf, 5, MSG_PEEK)), buf);
	int n;
	must(ioctl(fd, FIONREAD, &n));
	say("readable %d", n);
	say("read %s %.5s", got(recv(fd, buf, 5, 0)), buf);
	say("rest %s", got(recv(fd, buf, sizeof buf, 0)));
	say("none left %s", got(recv(fd, buf, 1, MSG_DONTWAIT)));
	say("none to peek %s", got(recv(fd, buf, 1, MSG_DONTWAIT | MSG_PEEK)));
	say("nothing asked %s", got(recv(fd, buf, 0, MSG_DONTWAIT)));
	must(ioctl(fd, FIONREAD, &n));
	say("readable %d", n);

	/* MSG_WAITALL over two messages. */
	pass();
	say("wait for all %s %.11s", got(recv(fd, buf, 11, MSG_WAITALL)), buf);

	/* MSG_TRUNC on a stream discards. */
	await();
	say("discard %s", got(recv(fd, NULL, 6, MSG_TRUNC)));
	say("after it %s %.4s", got(recv(fd, buf, 4, MSG_WAITALL)), buf);

	/* MSG_WAITALL ends early at the end of data; a peek at the end is the end. */
	pass();
	say("short %s", got(recv(fd, buf, 100, MSG_WAITALL)));
	say("end %s", got(recv(fd, buf, 1, MSG_PEEK)));
	say("end %s", got(recv(fd, buf, 1, MSG_DONTWAIT)));
	say("out of band %s", got(recv(fd, buf, 1, MSG_OOB)));
	say("error queue %s", got(recv(fd, buf, 1, MSG_ERRQUEUE | MSG_DONTWAIT)));
	close(fd);

	/* A full socket: MSG_DONTWAIT ends with EAGAIN, then everything sent arrives. */
	fd = another();
	size_t sent = 0;
	ssize_t k;
	while ((k = send(fd, buf, sizeof buf, MSG_DONTWAIT | MSG_NOSIGNAL)) > 0)
		sent += k;
	say("full: %s", got(k));
	say("full: writable %s", poll_bits(poll_for(fd, POLLOUT, 0)));
	must(ioctl(fd, TIOCOUTQ, &n));
	must(write(turn[CLIENT][1], &sent, sizeof sent));
	say("queued %s", n > 0 ? "some" : "none");
	say("writable again: %s", poll_bits(poll_for(fd, POLLOUT, 10000)));
	await();
	must(ioctl(fd, TIOCOUTQ, &n));
	say("queued %s", n > 0 ? "some" : "none");
	send_all(fd, "more ", 5);
	k = send(fd, "parts ", 6, MSG_MORE);
	say("more: %s", got(k));
	send_all(fd, "end", 3);
	close(fd);
}

static void client(int fd)
{
	send_all(fd, "first second", 12);
	pass();
	await();
	send_all(fd, "first", 5);
	pthread_join(thread(late, &fd), NULL);
	send_all(fd, "thrownkept", 10);
	pass();
	await();
	send_all(fd, "seven77", 7);
	must(shutdown(fd, SHUT_WR));
	say("end %s", got(recv(fd, buf, 1, 0)));
	close(fd);

	fd = another();
	size_t sent, n = 0;
	check(read(turn[CLIENT][0], &sent, sizeof sent) == sizeof sent);
	while (n < sent)
		n += must(recv(fd, buf, sent - n < sizeof buf ? sent - n : sizeof buf, 0));
	say("all of it: %s", n == sent ? "yes" : "no");
	pass();
	n = receive_all(fd, buf, sizeof buf);
	say("%.*s", (int)n, buf);
	close(fd);
}

int main(void) { return two_processes(server, client); }

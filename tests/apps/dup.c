/* Descriptors: dup, dup2, dup3, F_DUPFD, close, close_range, closefrom, and numbers that are used again. */
#include "app.h"

static char buf[256];
static int blocked_fd;
static _Atomic pid_t blocked_tid;

static void *block(void *unused)
{
	char c;
	blocked_tid = gettid();
	return (void *)recv(blocked_fd, &c, 1, 0);
}

static void expect(int fd, const char *what)
{
	size_t n = receive_all(fd, buf, strlen(what));
	say("%.*s: %s", (int)n, buf, n == strlen(what) && !memcmp(buf, what, n) ? "came" : "wrong");
}

static void server(int fd)
{
	/* Any number writes; only the last close ends. */
	int d = must(dup(fd)), e = must(fcntl(fd, F_DUPFD_CLOEXEC, 100)), f = must(dup3(fd, 200, O_CLOEXEC));
	say("lowest free: %d, from 100: %d, dup3: %d", d == fd + 1, e, f);
	say("flags: %d %d %d", fcntl(d, F_GETFD), fcntl(e, F_GETFD), fcntl(f, F_GETFD));
	set_nonblocking(d);
	say("one description: %d", !!(fcntl(fd, F_GETFL) & O_NONBLOCK));
	must(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK));
	send_all(fd, "one", 3);
	close(fd);
	say("closed: %s", got(send(fd, "x", 1, MSG_NOSIGNAL)));
	say("closed twice: %s", err(close(fd)));
	send_all(d, "two", 3);
	close(d);
	send_all(e, "three", 5);
	must(dup2(f, f));
	close(e);
	send_all(f, "four", 4);
	say("still open: %s", got(recv(f, buf, 1, MSG_DONTWAIT)));
	pass();
	close(f);

	/* dup2 over a connection closes it; the number is the other connection then. */
	int first = another(), second = another();
	must(dup2(second, first));
	send_all(first, "over", 4);
	close(second);
	send_all(first, "more", 4);
	close(first);

	/* A number used again by a pipe, a file, and a plain socket is not ours any more. */
	first = another();
	int n = first, p[2];
	close(first);
	must(pipe(p));
	say("same number: %d", p[0] == n);
	check(write(p[1], "pipe", 4) == 4);
	say("pipe: %s %.4s", got(read(p[0], buf, sizeof buf)), buf);
	say("pipe is no socket: %s", got(recv(p[0], buf, 1, 0)));
	close(p[0]), close(p[1]);

	/* close does not wake a reader that sleeps on it; its data still comes to it. */
	blocked_fd = another();
	pthread_t t = thread(block, NULL);
	while (!blocked_tid)
		usleep(1000);
	until_asleep(blocked_tid);
	close(blocked_fd);
	pass();
	void *result;
	pthread_join(t, &result);
	say("closed under a reader: it got %ld", (long)result);

	/* shutdown does wake it. */
	blocked_fd = another();
	blocked_tid = 0;
	t = thread(block, NULL);
	while (!blocked_tid)
		usleep(1000);
	until_asleep(blocked_tid);
	must(shutdown(blocked_fd, SHUT_RDWR));
	pthread_join(t, &result);
	say("shut down under a reader: it got %ld", (long)result);
	close(blocked_fd);

	/* dup2 over a connection that a reader sleeps on. */
	blocked_fd = another();
	blocked_tid = 0;
	t = thread(block, NULL);
	while (!blocked_tid)
		usleep(1000);
	until_asleep(blocked_tid);
	second = another();
	must(dup2(second, blocked_fd));
	pass();
	pthread_join(t, &result);
	say("dup2 under a reader: it got %ld", (long)result);
	close(second), close(blocked_fd);

	/* Many at once. */
	int many[8];
	for (int i = 0; i < 8; i++) {
		int fd = another();
		many[i] = must(dup2(fd, 300 + i));
		close(fd);
	}
	say("close_range: %s", err(close_range(300, 303, 0)));
	say("gone: %s", got(send(many[0], "x", 1, MSG_NOSIGNAL)));
	say("cloexec range: %s", err(close_range(304, 307, CLOSE_RANGE_CLOEXEC)));
	say("flag: %d", fcntl(304, F_GETFD));
	send_all(many[4], "five", 4);
	closefrom(300);
	say("gone: %s", got(send(many[4], "x", 1, MSG_NOSIGNAL)));
	closefrom(3); /* as daemons do; what the library keeps for itself is spared */
	int l = listening(0, 0), c = connected(port_of(l)), s = accepted(l);
	send_all(c, "after", 5);
	expect(s, "after");
}

static void client(int fd)
{
	expect(fd, "one");
	expect(fd, "two");
	expect(fd, "three");
	expect(fd, "four");
	await();
	say("end %s", got(recv(fd, buf, 1, 0)));
	close(fd);

	int first = another(), second = another();
	say("end %s", got(recv(first, buf, 1, 0)));
	expect(second, "over");
	expect(second, "more");
	say("end %s", got(recv(second, buf, 1, 0)));
	close(first), close(second);

	first = another();
	say("end %s", got(recv(first, buf, 1, 0)));
	close(first);

	first = another();
	await();
	send_all(first, "w", 1);
	say("end %s", got(recv(first, buf, 1, 0)));
	close(first);

	first = another();
	say("end %s", got(recv(first, buf, 1, 0)));
	close(first);

	first = another(), second = another();
	await();
	send_all(first, "w", 1);
	say("ends %s", got(recv(first, buf, 1, 0)));
	say("ends %s", got(recv(second, buf, 1, 0)));
	close(first), close(second);

	int many[8];
	for (int i = 0; i < 8; i++)
		many[i] = another();
	for (int i = 0; i < 8; i++)
		say("%d: %s", i, got(receive_all(many[i], buf, 4)));
}

int main(void) { return two_processes(server, client); }

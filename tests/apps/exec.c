/*
 * exec exec|spawn|pass|leak: a connection that is in use goes to another program. leak: which does not use it.
 * exec inetd PORT: each connection goes unused to a program of its own, as its standard streams or as another number.
 */
#include "app.h"
#include <spawn.h>

static char buf[16], *how, *self;
extern char **environ;

static void client(int fd)
{
	close(fd);
	fd = another();
	for (int i = 0; i < 2; i++) {
		send_all(fd, "ask", 3);
		ssize_t n = recv(fd, buf, sizeof buf, 0);
		say("answer %d: %s", i, got(n));
	}
	close(fd);
}

static int image(int fd);

/* A worker from before, which gets the connection in a message. */
static pid_t worker(int *to)
{
	int p[2];
	must(socketpair(AF_UNIX, SOCK_STREAM, 0, p));
	pid_t child = must(fork());
	if (!child) {
		char c, room[CMSG_SPACE(sizeof(int))];
		struct iovec v = { &c, 1 };
		struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
		int got;
		close(p[0]);
		check(recvmsg(p[1], &m, 0) == 1);
		memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof got);
		_exit(image(got));
	}
	close(p[1]);
	*to = p[0];
	return child;
}

static void give(int to, int fd)
{
	char c = 0, room[CMSG_SPACE(sizeof fd)];
	struct iovec v = { &c, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room };
	*CMSG_FIRSTHDR(&m) = (struct cmsghdr){ .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd) };
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
	check(sendmsg(to, &m, 0) == 1);
	close(fd);
}

static void server(int fd)
{
	char number[12];
	char *argv[] = { self, "image", number, NULL };
	int to = -1;
	close(fd);
	pid_t passed = strcmp(how, "pass") ? 0 : worker(&to);
	fd = another();
	check(receive_all(fd, buf, 3) == 3);
	send_all(fd, "answer", 6);
	check(poll_for(fd, POLLIN, 5000)); /* the second question is there */
	snprintf(number, sizeof number, "%d", !strcmp(how, "leak") ? -1 : fd);
	if (!strcmp(how, "exec")) {
		pid_t child = must(fork());
		if (!child) {
			execv(self, argv);
			_exit(9);
		}
		close(fd); /* the image is the only one that has it */
		int status;
		must(waitpid(child, &status, 0));
		say("image: exit %d", WEXITSTATUS(status));
		return;
	}
	pid_t child = passed;
	int status;
	if (passed)
		give(to, fd);
	else
		check(posix_spawn(&child, self, NULL, NULL, argv, environ) == 0);
	must(waitpid(child, &status, 0));
	say("image: exit %d", WEXITSTATUS(status));
	if (!strcmp(how, "leak")) {
		check(receive_all(fd, buf, 3) == 3);
		send_all(fd, "answer", 6);
	}
	if (!passed)
		close(fd);
}

static int image(int fd)
{
	if (fd < 0)
		return 0;
	for (char **e = environ; *e; e++)
		check(strncmp(*e, "SMCR_HELD", 9));
	ssize_t n = recv(fd, buf, sizeof buf, 0);
	if (n < 0) /* EPIPE: what Linux gives who waits already when another holder resets */
		return errno == ECONNRESET || errno == EPIPE ? 7 : 8;
	return n == 3 && send(fd, "answer", 6, MSG_NOSIGNAL) == 6 ? 0 : 9;
}

static void inetd(int p)
{
	for (int l = listening(p, 0), i = 0;; i++) {
		int fd = accepted(l), closed[2];
		must(pipe2(closed, O_CLOEXEC));
		if (!must(fork())) {
			close(closed[1]);
			check(read(closed[0], buf, 1) == 0); /* now nobody else has it */
			if (i % 2) {
				must(dup2(fd, 0));
				must(dup2(fd, 1));
				close(fd);
				execlp("cat", "cat", NULL);
			}
			must(dup2(fd, 9));
			execlp("sh", "sh", "-c", "exec cat <&9 >&9", NULL);
			_exit(9);
		}
		close(fd);
		close(closed[0]);
		close(closed[1]);
		must(wait(NULL));
	}
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "inetd"))
		inetd(atoi(argv[2]));
	if (argc == 3 && !strcmp(argv[1], "image"))
		return image(atoi(argv[2]));
	check(argc == 2);
	how = argv[1];
	self = argv[0];
	return two_processes(server, client);
}

/*
 * handed: connections that whoever accepted them gives away unused: to a forked child, to the image that a forked child becomes
 * (inetd), to a program that is spawned in one of several ways and waited for, to another process as a message (a cluster's worker), to
 * a child that is another user by then. "at once" is 1 s in the best of three.
 */
#include "app.h"
#include <spawn.h>

static char buf[64];

static void answer(int fd)
{
	ssize_t n = must(read(fd, buf, sizeof buf));
	check(write(fd, buf, n) == n);
}

static void to_child(int fd)
{
	if (!must(fork())) {
		answer(fd);
		_exit(0);
	}
}

static void to_image(int fd)
{
	char number[16];
	if (!must(fork())) {
		fd = must(dup(fd)); /* without FD_CLOEXEC */
		snprintf(number, sizeof number, "%d", fd);
		execl("/proc/self/exe", "handed", number, NULL);
		_exit(9);
	}
}

static char self[4096];
extern char **environ;

static void ended(pid_t pid)
{
	int status;
	check(must(waitpid(pid, &status, 0)) == pid && status == 0);
}

static void to_spawned(int fd)
{
	pid_t pid;
	posix_spawn_file_actions_t fa;
	must(fcntl(fd, F_SETFD, FD_CLOEXEC));
	check(!posix_spawn_file_actions_init(&fa) && !posix_spawn_file_actions_adddup2(&fa, fd, 7));
	check(!posix_spawn(&pid, self, &fa, NULL, (char *[]){ self, "7", NULL }, environ));
	ended(pid);
}

static void to_vforked(int fd)
{
	must(fcntl(fd, F_SETFD, FD_CLOEXEC));
	pid_t pid = vfork();
	if (!pid) {
		dup2(fd, 7);
		execl(self, self, "7", NULL);
		_exit(9);
	}
	ended(pid);
}

static void to_command(int fd)
{
	char command[sizeof self + 20];
	snprintf(command, sizeof command, "'%s' %d", self, fd);
	check(system(command) == 0);
}

static void to_pipeline(int fd)
{
	char command[sizeof self + 20];
	snprintf(command, sizeof command, "'%s' %d", self, fd);
	FILE *f = popen(command, "r");
	check(f && pclose(f) == 0);
}

/* Parent or child sends, the other receives and answers; the sender takes it out of its epoll set before it closes. */
static void as_message(int fd)
{
	int pair[2], set = must(epoll_create1(EPOLL_CLOEXEC));
	union { struct cmsghdr h; char room[CMSG_SPACE(sizeof(int))]; } control = { 0 };
	struct iovec v = { buf, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };

	must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	if (!must(fork())) {
		close(fd);
		check(must(recvmsg(pair[1], &m, 0)) == 1);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
		answer(fd);
		_exit(0);
	}
	control.h = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
	memcpy(CMSG_DATA(&control.h), &fd, sizeof fd);
	check(must(sendmsg(pair[0], &m, 0)) == 1);
	check(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) < 0 && errno == ENOENT);
	close(set);
	close(pair[0]);
	close(pair[1]);
}

/* A worker that gave its privileges up; without any to give up, one more child. */
static void to_other_user(int fd)
{
	if (!must(fork())) {
		if (geteuid() == 0)
			must(setuid(65534));
		answer(fd);
		_exit(0);
	}
}

static const struct { const char *how; void (*give)(int); } ways[] = {
	{ "to a child", to_child }, { "to another image", to_image }, { "to a spawned program", to_spawned },
	{ "to a program after vfork", to_vforked }, { "to a command", to_command }, { "to a pipeline", to_pipeline }, { "as a message", as_message },
	{ "to another user", to_other_user },
};
enum { WAYS = sizeof ways / sizeof *ways, RUNS = 3 };

static void server(int fd)
{
	close(fd);
	for (int i = 0; i < WAYS * RUNS; i++) {
		int status;
		fd = accepted(listener);
		ways[i / RUNS].give(fd);
		close(fd);
		while (waitpid(-1, &status, WNOHANG) > 0)
			check(status == 0);
	}
}

static void client(int fd)
{
	close(fd);
	for (int w = 0; w < WAYS; w++) {
		double best = 1e9;
		for (int i = 0; i < RUNS; i++) {
			double t = now();
			fd = connected(port);
			send_all(fd, "hello", 5);
			check(receive_all(fd, buf, 5) == 5 && !memcmp(buf, "hello", 5));
			check(recv(fd, buf, 1, 0) == 0);
			close(fd);
			t = now() - t;
			best = t < best ? t : best;
		}
		say("%s: %s", ways[w].how, best < 1 ? "at once" : "late");
	}
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		answer(atoi(argv[1]));
		return 0;
	}
	check(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	return two_processes(server, client);
}

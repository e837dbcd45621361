/* Connections that live in several processes: a child per connection, inherited established connections, daemons. */
#include "app.h"
#include <spawn.h>

static char buf[1 << 16];
static int gate[2]; /* lets a child go on */

static int reap(pid_t child)
{
	int status;
	while (waitpid(child, &status, 0) < 0)
		check(errno == EINTR);
	return status;
}

static void echo(int fd)
{
	ssize_t n;
	while ((n = recv(fd, buf, sizeof buf, 0)) > 0)
		send_all(fd, buf, n);
	check(n == 0);
}

static void server(int fd)
{
	must(pipe2(gate, O_CLOEXEC));

	/* The child takes over an established connection; the parent closes its copy. */
	pid_t child = must(fork());
	if (!child) {
		close(listener);
		echo(fd);
		_exit(0);
	}
	close(fd);
	say("taken over: %d", reap(child));

	/* Accept and fork, as inetd does: three children at once. */
	pid_t children[3];
	for (int i = 0; i < 3; i++) {
		fd = accepted(listener);
		children[i] = must(fork());
		if (!children[i]) {
			close(listener);
			echo(fd);
			exit(0);
		}
		close(fd);
	}
	for (int i = 0; i < 3; i++)
		say("served by a child: %d", reap(children[i]));

	/* Both hold it: both write, the end comes with the last close. */
	fd = another();
	child = must(fork());
	if (!child) {
		send_all(fd, "child ", 6);
		check(read(gate[0], buf, 1) == 1);
		send_all(fd, "child again ", 12);
		_exit(0);
	}
	await();
	send_all(fd, "parent ", 7);
	close(fd);
	await();
	must(write(gate[1], "", 1));
	say("shared: %d", reap(child));

	/* The child reads what the parent left, and dies by a signal: the parent goes on. */
	fd = another();
	check(receive_all(fd, buf, 3) == 3);
	child = must(fork());
	if (!child) {
		check(receive_all(fd, buf, 3) == 3 && !memcmp(buf, "two", 3));
		raise(SIGKILL);
	}
	int status = reap(child);
	say("child died by %d", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
	check(receive_all(fd, buf, 5) == 5);
	say("the parent reads %.5s", buf);
	send_all(fd, "goes on", 7);

	/* Helpers started by every other way leave the connection alone. */
	say("system: %d", system("exit 3") >> 8);
	FILE *f = popen("echo popen", "r");
	check(f && fgets(buf, sizeof buf, f));
	pclose(f);
	say("%.5s", buf);
	extern char **environ;
	check(posix_spawn(&child, "/bin/true", NULL, NULL, (char *[]){ "true", NULL }, environ) == 0);
	say("spawned: %d", reap(child));
	child = vfork();
	if (!child) {
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	say("vfork: %d", reap(child));
	child = must(fork());
	if (!child) {
		execl("/bin/sh", "sh", "-c", "exit 5", NULL);
		_exit(1);
	}
	say("fork and exec: %d", reap(child) >> 8);
	child = must(fork());
	if (!child) { /* a new connection in a child of a process that has some */
		int l = listening(0, 0), c = connected(port_of(l)), s = accepted(l);
		send_all(c, "mine", 4);
		_exit(receive_all(s, buf, 4) == 4 ? 6 : 7);
	}
	say("own connection in the child: %d", reap(child) >> 8);
	send_all(fd, "and on", 6);

	/* A grandchild, after the child has gone. */
	child = must(fork());
	if (!child) {
		pid_t grandchild = must(fork());
		if (!grandchild) {
			check(read(gate[0], buf, 1) == 1);
			send_all(fd, "grandchild", 10);
		}
		_exit(0);
	}
	say("child: %d", reap(child));
	close(fd);
	must(write(gate[1], "", 1));
}

static void ask(int fd, const char *what)
{
	char answer[64];
	send_all(fd, what, strlen(what));
	size_t n = receive_all(fd, answer, strlen(what));
	say("answer %.*s", (int)n, answer);
}

static void expect_end(int fd)
{
	must(shutdown(fd, SHUT_WR));
	say("end %s", got(recv(fd, buf, 1, 0)));
	close(fd);
}

static void client(int fd)
{
	ask(fd, "to the child");
	expect_end(fd);

	int three[3];
	for (int i = 0; i < 3; i++)
		three[i] = connected(port);
	for (int i = 2; i >= 0; i--)
		ask(three[i], "to a child");
	for (int i = 0; i < 3; i++)
		expect_end(three[i]);

	fd = another();
	check(receive_all(fd, buf, 6) == 6);
	say("%.6s", buf);
	pass();
	check(receive_all(fd, buf, 7) == 7);
	say("%.7s", buf);
	pass();
	size_t n = receive_all(fd, buf, sizeof buf);
	say("%.*s, then the end", (int)n, buf);
	close(fd);

	fd = another();
	send_all(fd, "onetwothree", 11);
	check(receive_all(fd, buf, 13) == 13);
	say("%.13s", buf);
	n = receive_all(fd, buf, sizeof buf);
	say("%.*s, then the end", (int)n, buf);
	close(fd);
}

int main(void) { return two_processes(server, client); }

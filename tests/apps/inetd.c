/* inetd: connections that become standard input and output, on which libc's streams read and write without asking anybody. */
#include "app.h"

static void as_streams(int fd, int turn)
{
	int in = must(dup(0)), out = must(dup(1));
	char line[64];
	must(dup2(fd, 0)), must(dup2(fd, 1)), close(fd);
	if (turn)
		pass();
	check(fgets(line, sizeof line, stdin));
	printf("got %s", line);
	check(!fgets(line, sizeof line, stdin));
	fflush(stdout);
	must(dup2(in, 0)), must(dup2(out, 1)), close(in), close(out);
	clearerr(stdin);
}

static void ask(int fd)
{
	char answer[64] = "";
	send_all(fd, "hello\n", 6);
	must(shutdown(fd, SHUT_WR));
	receive_all(fd, answer, sizeof answer - 1);
	say("%s", answer);
	close(fd);
}

static void server(int fd)
{
	close(fd);
	as_streams(accepted(listener), 0);
	await();
	ask(accepted(listener));
}

static void client(int fd)
{
	close(fd);
	ask(connected(port));
	as_streams(connected(port), 1);
}

int main(void) { return two_processes(server, client); }

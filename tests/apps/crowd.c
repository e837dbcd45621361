/*
 * crowd: a client that does not run (SIGSTOP) while all its connections are accepted and first used is answered as soon as
 * it runs again. By then it has looked for the server a few times and would look again only after seconds.
 */
#include "app.h"

enum { MANY = 64 };

static void serve(pid_t client)
{
	struct pollfd p[MANY];
	char c;

	for (char state = 0; state != 'T';) {
		char path[64], line[512];
		snprintf(path, sizeof path, "/proc/%d/stat", client);
		FILE *f = fopen(path, "re");
		check(f && fgets(line, sizeof line, f));
		fclose(f);
		state = strrchr(line, ')')[2];
		usleep(1000);
	}
	for (int i = 0; i < MANY; i++) {
		p[i] = (struct pollfd){ .fd = accepted(listener), .events = POLLIN };
		poll_for(p[i].fd, POLLIN, 0); /* the first use */
	}
	poll(p, MANY, 300); /* natively the bytes are there */
	must(kill(client, SIGCONT));
	for (int i = 0; i < MANY; i++) {
		check(receive_all(p[i].fd, &c, 1) == 1);
		send_all(p[i].fd, &c, 1);
	}
	for (int i = 0; i < MANY; i++)
		check(receive_all(p[i].fd, &c, 1) == 0);
}

int main(void)
{
	int fd[MANY];
	char c = 'c';

	start();
	listener = listening(0, 0);
	port = port_of(listener);
	pid_t server = must(fork());
	if (!server) {
		serve(getppid());
		_exit(0);
	}
	for (int i = 0; i < MANY; i++) {
		fd[i] = connected(port);
		send_all(fd[i], &c, 1);
	}
	usleep(1200000); /* looks come after 20 ms, 1 s, 2 s, 4 s */
	must(raise(SIGSTOP));
	double since = now();
	for (int i = 0; i < MANY; i++)
		check(receive_all(fd[i], &c, 1) == 1);
	double took = now() - since;
	if (took < 1)
		say("all answered at once");
	else
		say("all answered after %.1f s", took);
	for (int i = 0; i < MANY; i++)
		close(fd[i]);
	int status;
	must(waitpid(server, &status, 0));
	check(status == 0);
	print_transcript();
	return 0;
}

/* A client connects, sends, closes and exits at once, before the server accepts: every byte arrives. */
#include "app.h"

int main(void)
{
	static unsigned char sent[100000], received[sizeof sent + 1];
	uint64_t seed = 7;
	fill(&seed, sent, sizeof sent);
	start();
	int l = listening(0, 0);
	size_t sizes[] = { 0, 1, 1000, 60000, sizeof sent };
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
		for (int abrupt = 0; abrupt < 2; abrupt++) {
			pid_t child = must(fork());
			if (!child) {
				int c = connected(port_of(l));
				send_all(c, sent, sizes[i]);
				if (abrupt)
					_exit(0);
				close(c);
				exit(0);
			}
			int status;
			must(waitpid(child, &status, 0));
			check(status == 0);
			int s = accepted(l);
			size_t n = receive_all(s, received, sizeof received);
			say("%zu bytes: %s", sizes[i], n == sizes[i] && !memcmp(sent, received, n) ? "all arrived" : "damaged");
			close(s);
		}

	/* Through buffers that hold hardly more than it. */
	l = listening(0, 0);
	must(setsockopt(l, SOL_SOCKET, SO_RCVBUF, &(int){ 1 }, sizeof(int)));
	pid_t child = must(fork());
	if (!child) {
		struct sockaddr_in a = loopback(port_of(l));
		int c = must(socket(AF_INET, SOCK_STREAM, 0));
		must(setsockopt(c, SOL_SOCKET, SO_SNDBUF, &(int){ 1 }, sizeof(int)));
		must(connect(c, (void *)&a, sizeof a));
		send_all(c, sent, 3000);
		double t = now();
		close(c);
		check(now() - t < 1);
		exit(0);
	}
	usleep(300000);
	int s = accepted(l), status;
	size_t n = receive_all(s, received, sizeof received);
	say("tiny buffers: %s", n == 3000 && !memcmp(sent, received, n) ? "all arrived" : "damaged");
	must(waitpid(child, &status, 0));
	say("exit %d", status);
	print_transcript();
}

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
	print_transcript();
}

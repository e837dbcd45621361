/*
 * witness PORT          a connection to an echo server that says something all the time and checks every byte of the answer; ends by
 *                       SIGTERM with a count. What others do to the server must not show here.
 * witness PORT HOSTILE  the same, and between any two answers a connection to the port HOSTILE, whose server may do as it likes, until
 *                       nobody listens there any more. It may cost that connection, or a moment, and nothing else.
 */
#include "app.h"

static char out[1 << 15], in[sizeof out];
static volatile sig_atomic_t enough;

static void stop(int sig) { enough = 1; }

static void ask(int fd, uint64_t *seed)
{
	if (mix(seed) % 2) /* the server falls asleep */
		usleep(mix(seed) % 3000);
	size_t n = 1 + mix(seed) % (mix(seed) % 8 ? 500 : sizeof out);
	fill(seed, (void *)out, n);
	send_all(fd, out, n);
	check(receive_all(fd, in, n) == n && !memcmp(out, in, n));
}

static int lured(int p)
{
	struct sockaddr_in a = loopback(p);
	struct timeval brief = { 0, 100000 };
	int fd = must(socket(AF_INET, SOCK_STREAM, 0));
	if (connect(fd, (void *)&a, sizeof a) < 0) {
		check(errno == ECONNREFUSED);
		close(fd);
		return 0;
	}
	must(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &brief, sizeof brief));
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &brief, sizeof brief));
	for (int i = 0; i < 4; i++) {
		if (send(fd, out, 100, MSG_NOSIGNAL) < 0)
			break;
		ssize_t n = recv(fd, in, sizeof in, i % 2 ? MSG_PEEK : 0);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			break;
		if (n < 0 && i) /* it says nothing */
			break;
	}
	close(fd);
	return 1;
}

int main(int argc, char **argv)
{
	uint64_t seed = 1;
	int fd = connected(atoi(argv[1])), asked = 0, tries = 0;

	handle(SIGTERM, stop, SA_RESTART);
	for (; !enough; asked++) {
		ask(fd, &seed);
		if (!asked) {
			puts("begun");
			fflush(stdout);
		}
		if (argc > 2) {
			if (!lured(atoi(argv[2])))
				break;
			tries++;
		}
	}
	must(shutdown(fd, SHUT_WR));
	check(recv(fd, in, 1, 0) == 0);
	printf("%s%d tries\n", asked > 10 ? "intact, " : "", tries);
	return 0;
}

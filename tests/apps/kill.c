/*
 * kill WHAT RUNS: the other process is killed in mid-transfer.
 *   sender    we read: a prefix of what was sent, then the end or a reset
 *   receiver  we write: EPIPE or ECONNRESET
 *   idle      we sleep in recv, poll or epoll_wait: the end
 *   unread    the dead side had unread bytes: ECONNRESET
 * "at once" is 50 ms in the best of the runs; no run may take more than 5 s.
 */
#include "app.h"

static unsigned char data[1 << 16], expected[1 << 16];
static int l, sleep_in;
static double killed;
static _Atomic long moved;
static pid_t peer;

static void *killer(void *at_least)
{
	while (moved < (long)at_least)
		usleep(200);
	killed = now();
	must(kill(peer, SIGKILL));
	return NULL;
}

static int start_peer(void (*run)(int))
{
	peer = must(fork());
	if (!peer) {
		role = CLIENT;
		run(connected(port_of(l)));
		_exit(1);
	}
	role = SERVER;
	return accepted(l);
}

static void pour(int fd)
{
	meet(fd);
	for (uint64_t seed = 5;;) {
		fill(&seed, data, sizeof data);
		send_all(fd, data, sizeof data);
	}
}

static void drink(int fd)
{
	meet(fd);
	while (receive_all(fd, data, sizeof data))
		;
}

static void linger(int fd)
{
	meet(fd);
	send_all(fd, "r", 1); /* what came is read */
	pause();
}

static const char *read_to_the_end(int fd)
{
	uint64_t seed = 5;
	meet(fd);
	for (long at = 0;;) {
		ssize_t n = recv(fd, data, sizeof data, 0);
		if (n <= 0)
			return n == 0 || errno == ECONNRESET ? "prefix, then the end" : got(n);
		for (ssize_t done = 0; done < n;) { /* compare with the same stream, made again */
			long in = at % (long)sizeof expected;
			if (in == 0)
				fill(&seed, expected, sizeof expected);
			long k = n - done < (long)sizeof expected - in ? n - done : (long)sizeof expected - in;
			if (memcmp(data + done, expected + in, k))
				return "damaged";
			done += k, at += k;
		}
		moved = at;
	}
}

static const char *write_to_the_end(int fd)
{
	meet(fd);
	for (;;) {
		ssize_t n = send(fd, data, sizeof data, MSG_NOSIGNAL);
		if (n < 0)
			return errno == EPIPE || errno == ECONNRESET ? "broken" : got(n);
		moved += n;
	}
}

static void meet_to_the_last(int fd)
{
	char c;
	meet(fd);
	check(receive_all(fd, &c, 1) == 1);
}

static const char *sleep_to_the_end(int fd)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLRDHUP };
	int set = must(epoll_create1(EPOLL_CLOEXEC));
	must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
	meet_to_the_last(fd);
	moved = 1;
	if (sleep_in == 1)
		check(poll_for(fd, POLLIN, 10000) & POLLIN);
	if (sleep_in == 2)
		check(epoll_wait(set, &e, 1, 10000) == 1);
	close(set);
	return got(recv(fd, data, 1, 0));
}

static const char *unread(int fd)
{
	meet_to_the_last(fd);
	send_all(fd, "never read", 10);
	moved = 1;
	check(poll_for(fd, POLLIN, 10000) & POLLIN);
	return got(recv(fd, data, 1, 0));
}

int main(int argc, char **argv)
{
	static const struct { const char *name; void (*peer)(int); const char *(*we)(int); long after; } whats[] = {
		{ "sender", pour, read_to_the_end, 3000000 }, { "receiver", drink, write_to_the_end, 3000000 },
		{ "idle", linger, sleep_to_the_end, 1 }, { "unread", linger, unread, 1 },
	};
	check(argc == 3);
	start();
	l = listening(0, 0);
	for (unsigned w = 0; w < sizeof whats / sizeof *whats; w++) {
		double best = 1e9, worst = 0;
		if (strcmp(argv[1], whats[w].name))
			continue;
		for (int run = 0; run < atoi(argv[2]); run++) {
			sleep_in = run % 3;
			moved = 0;
			int fd = start_peer(whats[w].peer);
			pthread_t k = thread(killer, (void *)whats[w].after);
			const char *end = whats[w].we(fd);
			double t = now();
			pthread_join(k, NULL);
			t -= killed;
			best = t < best ? t : best, worst = t > worst ? t : worst;
			say("%s: %s", argv[1], end);
			must(waitpid(peer, NULL, 0));
			close(fd);
		}
		say("%s, %s", best <= .05 ? "at once" : "late", worst < 5 ? "never long" : "too long");
	}
	print_transcript();
}

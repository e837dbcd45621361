/*
 * tangle CONNECTIONS FORKS: threads that make connections, register them in sets of their own and of each other, and close them under each
 * other, while one thread forks. Everybody gets to the end.
 */
#include "app.h"

enum { THREADS = 8, SHARED = 4 };
static int connections, forks;
static _Atomic int made, shared[SHARED];

static void in_a_set(int fd, int ms)
{
	struct epoll_event e = { .events = EPOLLIN };
	int set = must(epoll_create1(EPOLL_CLOEXEC));
	epoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
	send(fd, "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	epoll_wait(set, &e, 1, ms);
	close(set);
}

static void *worker(void *unused)
{
	for (int i; (i = made++) < connections;) {
		int fd = connected(port);
		in_a_set(fd, i % 3);
		fd = atomic_exchange(&shared[i % SHARED], fd); /* what another has put there */
		if (fd >= 0)
			close(fd);
	}
	return NULL;
}

static void *meddler(void *unused)
{
	for (unsigned i = 0; made < connections; i++) {
		int fd = shared[i % SHARED];
		if (fd >= 0)
			in_a_set(fd, 0);
	}
	return NULL;
}

static void *forker(void *unused)
{
	for (int i = 0; i < forks; i++) {
		int status;
		pid_t pid = must(fork());
		if (!pid)
			_exit(0);
		must(waitpid(pid, &status, 0));
		check(status == 0);
		usleep(1000);
	}
	return NULL;
}

static void server(int fd)
{
	char c;
	close(fd);
	for (int i = 0; i < connections; i++) {
		fd = accepted(listener);
		if (i % 2)
			recv(fd, &c, 1, MSG_DONTWAIT);
		if (i % 8 == 0)
			usleep(500);
		close(fd);
	}
}

static void client(int fd)
{
	pthread_t t[THREADS];
	alarm(120);
	close(fd);
	for (int i = 0; i < THREADS; i++)
		t[i] = thread(i ? i == 1 ? meddler : worker : forker, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	say("to the end");
}

int main(int argc, char **argv)
{
	check(argc == 3);
	connections = atoi(argv[1]), forks = atoi(argv[2]);
	for (int i = 0; i < SHARED; i++)
		shared[i] = -1;
	return two_processes(server, client);
}

/*
 * signals RUNS: transfers under timers, SIGCHLD, SIGUSR1 and SIGTERM, with handlers that call socket functions themselves.
 * Each run is a new process that serves another one.
 */
#include "app.h"

enum { SIZE = 1 << 20 };

static unsigned char sent[SIZE], received[SIZE];
static int side = -1; /* a second connection that only handlers use */
static _Atomic long alarms, children, users;

static void on_alarm(int sig)
{
	int saved = errno, bytes;
	alarms++;
	if (side >= 0) {
		char c = 'a';
		send(side, &c, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
		recv(side, &c, 1, MSG_DONTWAIT);
		ioctl(side, FIONREAD, &bytes);
		poll(&(struct pollfd){ side, POLLIN | POLLOUT, 0 }, 1, 0);
		close(dup(side));
	}
	errno = saved;
}

static void on_child(int sig)
{
	int saved = errno;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		children++;
	errno = saved;
}

static void on_user(int sig)
{
	int saved = errno, fd = socket(AF_INET, SOCK_STREAM, 0); /* a whole socket's life in a handler */
	users++;
	struct sockaddr_in a = loopback(1);
	if (fd >= 0) {
		connect(fd, (void *)&a, sizeof a);
		close(fd);
	}
	errno = saved;
}

static void *receive(void *fd)
{
	check(receive_all(*(int *)fd, received, SIZE) == SIZE);
	return NULL;
}

static void *storm(void *victim)
{
	for (int i = 0; i < 25; i++) {
		pthread_kill(*(pthread_t *)victim, SIGUSR1);
		pid_t child = fork();
		if (!child)
			_exit(0);
		usleep(500);
	}
	return NULL;
}

static void transfer(int fd)
{
	uint64_t seed = role + 1;
	fill(&seed, sent, SIZE);
	struct sigaction a = { .sa_handler = on_alarm, .sa_flags = role ? SA_RESTART : 0 };
	sigaddset(&a.sa_mask, SIGUSR1);
	must(sigaction(SIGALRM, &a, NULL));
	handle(SIGCHLD, on_child, SA_RESTART);
	handle(SIGUSR1, on_user, SA_RESTART);
	handle(SIGURG, SIG_IGN, 0);
	must(setitimer(ITIMER_REAL, &(struct itimerval){ { 0, 700 }, { 0, 700 } }, NULL));
	pthread_t me = pthread_self(), r = thread(receive, &fd), s = thread(storm, &me);
	send_all(fd, sent, SIZE);
	pthread_join(r, NULL);
	pthread_join(s, NULL);
	must(setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL));
	seed = !role + 1;
	fill(&seed, sent, SIZE);
	check(!memcmp(sent, received, SIZE));
	check(alarms > 0 && users > 0);
	struct sigaction now;
	must(sigaction(SIGCHLD, NULL, &now));
	check(now.sa_handler == on_child && now.sa_flags & SA_RESTART); /* ours, as we set it */
	must(sigaction(SIGPIPE, NULL, &now));
	check(now.sa_handler == SIG_DFL);
	sigset_t mask;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	for (int i = 1; i < 32; i++)
		check(!sigismember(&mask, i));
	handle(SIGCHLD, SIG_DFL, 0);
}

static void server(int fd)
{
	side = another();
	transfer(fd);
	meet(fd);
	/* SIGTERM ends the client in a blocked read, by its default. */
	check(read(turn[SERVER][0], received, 1) == 1);
	pid_t peer;
	check(receive_all(fd, &peer, sizeof peer) == sizeof peer);
	kill(peer, SIGTERM);
	check(recv(fd, received, 1, 0) == 0);
	close(fd), close(side);
}

static void client(int fd)
{
	side = another();
	transfer(fd);
	meet(fd);
	close(side);
	pid_t me = getpid();
	pass();
	send_all(fd, &me, sizeof me);
	char c;
	check(recv(fd, &c, 1, 0) == 1);
}

int main(int argc, char **argv)
{
	int runs = argc > 1 ? atoi(argv[1]) : 1, good = 0;
	for (int i = 0; i < runs; i++) {
		pid_t run = must(fork());
		if (!run)
			exit(two_processes(server, client) == 128 + SIGTERM ? 0 : 1);
		int status;
		while (waitpid(run, &status, 0) < 0)
			check(errno == EINTR);
		if (status)
			printf("run %d: %s %d\n", i, WIFSIGNALED(status) ? "signal" : "exit", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		good += status == 0;
	}
	printf("%d of %d runs\n", good, runs);
	return good != runs;
}

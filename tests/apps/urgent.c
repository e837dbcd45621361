/* Urgent data is TCP's: whoever asks for it in time, or sends it first, gets it as from the kernel. */
#include "app.h"

static volatile sig_atomic_t signals;

static void count(int sig) { signals++; }

/* "before" the urgent byte, which is "!", and "after" it. */
static void read_urgent(int fd, int signalled)
{
	char c[8] = { 0 };
	int mark;

	while (signalled && !signals)
		usleep(1000);
	say("urgent %s", poll_for(fd, POLLPRI, 10000) & POLLPRI ? "PRI" : "none");
	must(ioctl(fd, SIOCATMARK, &mark));
	say("at mark %d", mark);
	say("before %s %s", got(recv(fd, c, 6, MSG_WAITALL)), c);
	must(ioctl(fd, SIOCATMARK, &mark));
	ssize_t n = recv(fd, c, 1, MSG_OOB);
	say("at mark %d: %s %c", mark, got(n), c[0]);
	memset(c, 0, sizeof c);
	say("after %s %s", got(recv(fd, c, 5, MSG_WAITALL)), c);
	say("no more %s", got(recv(fd, c, 1, MSG_OOB)));
	close(fd);
}

static void write_urgent(int fd)
{
	say("urgent %s", got(send(fd, "before!", 7, MSG_OOB)));
	send_all(fd, "after", 5);
	char c;
	say("end %s", got(recv(fd, &c, 1, 0)));
	close(fd);
}

static void server(int fd)
{
	handle(SIGURG, count, 0);
	pass(); /* the client connects and waits */
	await();
	int owner = accepted(listener);
	must(fcntl(owner, F_SETOWN, getpid()));
	pass();
	read_urgent(owner, 1);
	await(); /* the client has sent */
	read_urgent(accepted(listener), 0);
	await();
	int in = accepted(listener), on = 1, mark;
	char c[8] = { 0 };
	must(setsockopt(in, SOL_SOCKET, SO_OOBINLINE, &on, sizeof on));
	pass();
	say("inline %s", poll_for(in, POLLPRI, 10000) & POLLPRI ? "PRI" : "none");
	say("before %s", got(recv(in, c, sizeof c, 0)));
	must(ioctl(in, SIOCATMARK, &mark));
	say("at mark %d, %s", mark, got(recv(in, c, 1, 0)));
	close(in);
	close(fd);
}

static void client(int fd)
{
	await();
	int c = connected(port);
	pass();
	await();
	write_urgent(c);
	c = connected(port);
	say("urgent first %s", got(send(c, "before!", 7, MSG_OOB)));
	pass();
	send_all(c, "after", 5);
	char end;
	say("end %s", got(recv(c, &end, 1, 0)));
	close(c);
	c = connected(port);
	pass();
	await();
	send_all(c, "before", 6);
	say("urgent %s", got(send(c, "!", 1, MSG_OOB)));
	say("end %s", got(recv(c, &end, 1, 0)));
	close(c);
	close(fd);
}

int main(void) { return two_processes(server, client); }

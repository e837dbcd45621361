/*
 * A program of one thread, before and beside its connection: what it reads and writes elsewhere, and that it can be cancelled in
 * there, by itself or by a thread, whoever made that. Each case is a forked child's.
 */
#include "app.h"
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <threads.h>

static pthread_t main_thread;
static pid_t main_tid;
static int empty; /* the reading end of a pipe in which nothing ever comes */

static void in_child(const char *name, void (*run)(void))
{
	int status;
	pid_t pid = must(fork());
	if (!pid) {
		alarm(20);
		main_thread = pthread_self(), main_tid = gettid();
		run();
		_exit(0);
	}
	must(waitpid(pid, &status, 0));
	say("%s ended: %d %d", name, WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void values(void)
{
	char a[4] = "abc", b[4] = "";
	struct iovec v[2] = { { a, 1 }, { a + 1, 2 } }, w[2] = { { b, 2 }, { b + 2, 1 } };
	struct msghdr out = { .msg_iov = v, .msg_iovlen = 2 }, in = { .msg_iov = w, .msg_iovlen = 2 };
	struct sockaddr_un { sa_family_t family; char path[108]; } from;
	socklen_t len = sizeof from;
	int p[2], s[2];

	must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s));
	must(pipe(p));
	say("write %s", got(write(p[1], a, 3)));
	say("read %s", got(read(p[0], b, 3)));
	say("%s, writev %s", b, got(writev(p[1], v, 2)));
	say("readv %s", got(readv(p[0], w, 2)));
	say("%s, send %s", b, got(send(s[0], "ABC", 3, 0)));
	say("recv %s", got(recv(s[1], b, 3, MSG_PEEK)));
	memset(b, 0, sizeof b);
	say("recvfrom %s", got(recvfrom(s[1], b, 3, 0, (void *)&from, &len)));
	say("%s from %d bytes, sendto %s", b, (int)len, got(sendto(s[1], "abcdef", 6, MSG_EOR, NULL, 0)));
	say("a part of %s", got(recv(s[0], b, 1, MSG_TRUNC)));
	say("sendmsg %s", got(sendmsg(s[1], &out, 0)));
	say("recvmsg %s", got(recvmsg(s[0], &in, 0)));
	say("%s, flags %x", b, in.msg_flags);
	close(p[0]);
	close(s[0]);
	say("nobody reads: %s %s %s", got(write(p[1], a, 1)), got(send(s[1], a, 1, MSG_NOSIGNAL)), got(sendmsg(s[1], &out, MSG_NOSIGNAL)));
	say("the end %s", got(recv(s[1], a, 1, 0)));
	say("no socket: %s %s", got(recv(p[1], a, 1, 0)), got(sendto(p[1], a, 1, 0, NULL, 0)));
	for (int fd = -1; fd < 1 << 30; fd = fd < 0 ? 1000 : fd * 64 + 1)
		say("nothing there: %s %s %s", got(read(fd, a, 1)), got(writev(fd, v, 1)), got(recvmsg(fd, &in, 0)));
	errno = 7;
	must(write(p[1] = must(open("/dev/null", O_WRONLY)), a, 1));
	say("errno stays: %d", errno);
}

static void on_alarm(int sig) {}

static void interrupted(void)
{
	struct itimerval soon = { .it_value = { 0, 20000 } };
	char c;
	handle(SIGALRM, on_alarm, 0);
	must(setitimer(ITIMER_REAL, &soon, NULL));
	say("interrupted: %s", got(read(empty, &c, 1)));
}

static void on_trap(int sig, siginfo_t *i, void *context)
{
	char *from = i->si_call_addr;
	printf("straight to the kernel: %d\n", from > (char *)read && from < (char *)read + 128);
	exit(0);
}

/* The kernel shows where a call comes from: libc's function natively, the library's otherwise. */
static void straight(void)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, empty, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sigaction trap = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
	char c;
	must(sigaction(SIGSYS, &trap, NULL));
	must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){ sizeof f / sizeof *f, f }));
	check(read(empty, &c, 1) != 1);
}

static void clean(void *unused)
{
	say("cancelled");
	_exit(0);
}

static void blocks(void)
{
	char c;
	pthread_cleanup_push(clean, NULL);
	say("and read %s", got(read(empty, &c, 1)));
	pthread_cleanup_pop(0);
}

static void by_itself(void)
{
	pthread_cancel(pthread_self());
	blocks();
}

static void *canceller(void *unused)
{
	until_asleep(main_tid);
	pthread_cancel(main_thread);
	pause();
	return NULL;
}
static int c11_canceller(void *unused) { return canceller(unused) != NULL; }

static void by_thread(void)
{
	thread(canceller, NULL);
	blocks();
}

static void by_c11_thread(void)
{
	thrd_t t;
	check(thrd_create(&t, c11_canceller, NULL) == thrd_success);
	blocks();
}

static void by_hidden_thread(void)
{
	pthread_t t;
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
		(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "pthread_create");
	check(create && !create(&t, NULL, canceller, NULL));
	blocks();
}

static void on_timer(union sigval unused) { canceller(NULL); }

static void by_timer(void)
{
	struct sigevent e = { .sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_timer };
	timer_t t;
	must(timer_create(CLOCK_MONOTONIC, &e, &t));
	must(timer_settime(t, 0, &(struct itimerspec){ .it_value.tv_nsec = 1000000 }, NULL));
	blocks();
}

static void cases(void)
{
	in_child("values", values);
	in_child("interrupted", interrupted);
	in_child("by itself", by_itself);
	in_child("by a thread", by_thread);
	in_child("by a C11 thread", by_c11_thread);
	in_child("by a hidden thread", by_hidden_thread);
	in_child("by a timer", by_timer);
}

static void server(int fd)
{
	cases();
	meet(fd);
	cases();
	meet(fd);
	close(fd);
}

static void client(int fd)
{
	char c;
	meet(fd);
	meet(fd);
	say("end %s", got(recv(fd, &c, 1, 0)));
	close(fd);
}

int main(void)
{
	int p[2], status;
	handle(SIGPIPE, SIG_IGN, 0);
	must(pipe(p));
	empty = p[0];
	pid_t child = must(fork());
	if (!child)
		straight();
	must(waitpid(child, &status, 0));
	check(!status);
	return two_processes(server, client);
}

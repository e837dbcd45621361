/* A second preloaded library whose constructor runs before ours and uses what we hook. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((constructor)) static void early(void)
{
	char b[4] = "";
	int p[2], ok = pipe(p) == 0, s;

	ok &= write(p[1], "abc", 3) == 3 && read(p[0], b, 3) == 3 && !memcmp(b, "abc", 3);
	ok &= (s = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && close(s) == 0;
	ok &= (s = dup(p[0])) >= 0 && fcntl(s, F_SETFD, FD_CLOEXEC) == 0 && syscall(SYS_close, s) == 0;
	struct pollfd v = {p[1], POLLOUT, 0};
	ok &= poll(&v, 1, 0) == 1;
	pid_t c = vfork();
	if (c == 0)
		_exit(7);
	int st = 0;
	ok &= waitpid(c, &st, 0) == c && WEXITSTATUS(st) == 7;
	if ((c = fork()) == 0)
		_exit(8);
	ok &= waitpid(c, &st, 0) == c && WEXITSTATUS(st) == 8;
	close(p[0]);
	close(p[1]);
	setenv("EARLY_OK", ok ? "1" : "0", 1);
}

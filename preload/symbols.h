/*
 * The one list of libc names that the library takes over. Everything else is expanded from it: the table of libc's own
 * functions (real.h), the wrappers (export.c), the prototypes of the h_ functions, exports.map and the tests.
 *
 *   FD(result, name, parameters, arguments, ours)   h_NAME if `ours` holds, else straight to libc
 *   BARE(the same, and the system call)             an FD whose libc function is the system call and a cancellation point
 *   ALWAYS(result, name, parameters, arguments)     h_NAME decides: makes, duplicates or ends fds, processes or a thread
 *   EXIT(name)                                      void NAME(int status), never returns
 *   BODY(result, name, parameters)                  written out in export.c or enter.S: variadic, or returns twice
 *   ALIAS(name, of)                                 another name of the same function
 *   CHK(result, name, parameters, overflow, call)   a fortified twin: aborts if `overflow`, as libc's does
 *   EXEC(name)                                      variadic exec or dprintf, written out in export.c over its v-twin
 *
 * Needs the headers of real.h. A row's types are compared with libc's headers in real.c, a CHK row's in check/.
 */
#define OURS(fd) unlikely(!pass(fd))

#define SMCR_BARE(X)                                                                                                          \
	X(ssize_t, read, (int fd, void *buf, size_t n), (fd, buf, n), OURS(fd), SYS_read, fd, buf, n)                         \
	X(ssize_t, readv, (int fd, const struct iovec *v, int n), (fd, v, n), OURS(fd), SYS_readv, fd, v, n)                  \
	X(ssize_t, recv, (int fd, void *buf, size_t n, int flags), (fd, buf, n, flags), OURS(fd),                             \
	  SYS_recvfrom, fd, buf, n, flags, 0, 0)                                                                              \
	X(ssize_t, recvfrom, (int fd, void *buf, size_t n, int flags, struct sockaddr *sa, socklen_t *len),                   \
	  (fd, buf, n, flags, sa, len), OURS(fd), SYS_recvfrom, fd, buf, n, flags, sa, len)                                   \
	X(ssize_t, recvmsg, (int fd, struct msghdr *m, int flags), (fd, m, flags), OURS(fd), SYS_recvmsg, fd, m, flags)       \
	X(ssize_t, write, (int fd, const void *buf, size_t n), (fd, buf, n), OURS(fd), SYS_write, fd, buf, n)                 \
	X(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), OURS(fd), SYS_writev, fd, v, n)                \
	X(ssize_t, send, (int fd, const void *buf, size_t n, int flags), (fd, buf, n, flags), OURS(fd),                       \
	  SYS_sendto, fd, buf, n, flags, 0, 0)                                                                                \
	X(ssize_t, sendto, (int fd, const void *buf, size_t n, int flags, const struct sockaddr *sa, socklen_t len),          \
	  (fd, buf, n, flags, sa, len), OURS(fd), SYS_sendto, fd, buf, n, flags, sa, len)                                     \
	X(ssize_t, sendmsg, (int fd, const struct msghdr *m, int flags), (fd, m, flags),                                      \
	  OURS(fd) || unlikely(S->fd_top && !wild(m, sizeof *m) && m->msg_controllen), /* SCM_RIGHTS */                       \
	  SYS_sendmsg, fd, m, flags)

#define SMCR_FD(X)                                                                                                            \
	SMCR_BARE(X)                                                                                                          \
	SMCR_LIBC(X)

#define SMCR_LIBC(X)                                                                                                          \
	X(int, recvmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags, struct timespec *t), (fd, v, n, flags, t),        \
	  OURS(fd))                                                                                                           \
	X(int, sendmmsg, (int fd, struct mmsghdr *v, unsigned n, int flags), (fd, v, n, flags), OURS(fd))                     \
	X(ssize_t, preadv2, (int fd, const struct iovec *v, int n, off_t off, int flags), (fd, v, n, off, flags), OURS(fd))   \
	X(ssize_t, pwritev2, (int fd, const struct iovec *v, int n, off_t off, int flags), (fd, v, n, off, flags), OURS(fd))  \
	X(ssize_t, sendfile, (int out, int in, off_t *off, size_t n), (out, in, off, n), OURS(out) || OURS(in))               \
	X(ssize_t, splice, (int in, off64_t *ioff, int out, off64_t *ooff, size_t n, unsigned flags),                         \
	  (in, ioff, out, ooff, n, flags), OURS(out) || OURS(in))                                                             \
	X(FILE *, fdopen, (int fd, const char *mode), (fd, mode), OURS(fd))                                                   \
	X(int, vdprintf, (int fd, const char *fmt, va_list ap), (fd, fmt, ap), OURS(fd))                                      \
	X(int, __vdprintf_chk, (int fd, int flag, const char *fmt, va_list ap), (fd, flag, fmt, ap), OURS(fd))                \
	X(int, getsockopt, (int fd, int level, int name, void *val, socklen_t *len), (fd, level, name, val, len), OURS(fd))   \
	X(int, setsockopt, (int fd, int level, int name, const void *val, socklen_t len), (fd, level, name, val, len),        \
	  OURS(fd) || (ipsec_option(level, name) && (life_early(), 1)))                                                       \
	X(int, shutdown, (int fd, int how), (fd, how), OURS(fd))

#define SMCR_ALWAYS(X)                                                                                                        \
	X(int, socket, (int domain, int type, int proto), (domain, type, proto))                                              \
	X(int, connect, (int fd, const struct sockaddr *sa, socklen_t len), (fd, sa, len))                                    \
	X(int, listen, (int fd, int backlog), (fd, backlog))                                                                  \
	X(int, accept, (int fd, struct sockaddr *sa, socklen_t *len), (fd, sa, len))                                          \
	X(int, accept4, (int fd, struct sockaddr *sa, socklen_t *len, int flags), (fd, sa, len, flags))                       \
	X(int, close, (int fd), (fd))                                                                                         \
	X(int, dup, (int fd), (fd))                                                                                           \
	X(int, dup2, (int fd, int to), (fd, to))                                                                              \
	X(int, dup3, (int fd, int to, int flags), (fd, to, flags))                                                            \
	X(int, close_range, (unsigned lo, unsigned hi, int flags), (lo, hi, flags))                                           \
	X(void, closefrom, (int lo), (lo))                                                                                    \
	X(int, poll, (struct pollfd * v, nfds_t n, int ms), (v, n, ms))                                                       \
	X(int, ppoll, (struct pollfd * v, nfds_t n, const struct timespec *t, const sigset_t *m), (v, n, t, m))               \
	X(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *t), (n, r, w, e, t))                          \
	X(int, pselect, (int n, fd_set *r, fd_set *w, fd_set *e, const struct timespec *t, const sigset_t *m),                \
	  (n, r, w, e, t, m))                                                                                                 \
	X(int, epoll_create, (int size), (size))                                                                              \
	X(int, epoll_create1, (int flags), (flags))                                                                           \
	X(int, epoll_ctl, (int ep, int op, int fd, struct epoll_event *ev), (ep, op, fd, ev))                                 \
	X(int, epoll_wait, (int ep, struct epoll_event *ev, int n, int ms), (ep, ev, n, ms))                                  \
	X(int, epoll_pwait, (int ep, struct epoll_event *ev, int n, int ms, const sigset_t *m), (ep, ev, n, ms, m))           \
	X(int, epoll_pwait2, (int ep, struct epoll_event *ev, int n, const struct timespec *t, const sigset_t *m),            \
	  (ep, ev, n, t, m))                                                                                                  \
	X(pid_t, fork, (void), ())                                                                                            \
	X(pid_t, _Fork, (void), ())                                                                                           \
	X(int, daemon, (int nochdir, int noclose), (nochdir, noclose))                                                        \
	X(int, forkpty, (int *fd, char *name, const struct termios *t, const struct winsize *w), (fd, name, t, w))            \
	X(int, posix_spawn, (pid_t * pid, const char *path, const posix_spawn_file_actions_t *fa, const posix_spawnattr_t *a, \
			     char *const argv[], char *const envp[]), (pid, path, fa, a, argv, envp))                         \
	X(int, posix_spawnp, (pid_t * pid, const char *file, const posix_spawn_file_actions_t *fa,                            \
			      const posix_spawnattr_t *a, char *const argv[], char *const envp[]),                            \
	  (pid, file, fa, a, argv, envp))                                                                                     \
	X(int, execve, (const char *path, char *const argv[], char *const envp[]), (path, argv, envp))                        \
	X(int, execv, (const char *path, char *const argv[]), (path, argv))                                                   \
	X(int, execvp, (const char *file, char *const argv[]), (file, argv))                                                  \
	X(int, execvpe, (const char *file, char *const argv[], char *const envp[]), (file, argv, envp))                       \
	X(int, fexecve, (int fd, char *const argv[], char *const envp[]), (fd, argv, envp))                                   \
	X(int, execveat, (int fd, const char *path, char *const argv[], char *const envp[], int flags),                       \
	  (fd, path, argv, envp, flags))                                                                                      \
	X(int, system, (const char *cmd), (cmd))                                                                              \
	X(FILE *, popen, (const char *cmd, const char *mode), (cmd, mode))                                                    \
	X(int, pthread_cancel, (pthread_t t), (t))

#define SMCR_EXIT(X) X(_exit) X(quick_exit)

/* syscall and vfork come first: enter.S knows their places in struct real. */
#define SMCR_BODY(X)                                                                                                          \
	X(long, syscall, (long nr, ...))                                                                                      \
	X(pid_t, vfork, (void))                                                                                               \
	X(int, fcntl, (int fd, int cmd, ...))                                                                                 \
	X(int, ioctl, (int fd, unsigned long req, ...))                                                                       \
	X(int, prctl, (int op, ...))

#define SMCR_ALIAS(X)                                                                                                         \
	X(__read, read)                                                                                                       \
	X(__write, write)                                                                                                     \
	X(__send, send)                                                                                                       \
	X(__connect, connect)                                                                                                 \
	X(__close, close)                                                                                                     \
	X(__dup2, dup2)                                                                                                       \
	X(__fcntl, fcntl)                                                                                                     \
	X(fcntl64, fcntl)                                                                                                     \
	X(sendfile64, sendfile)                                                                                               \
	X(preadv64v2, preadv2)                                                                                                \
	X(pwritev64v2, pwritev2)                                                                                              \
	X(__poll, poll)                                                                                                       \
	X(__select, select)                                                                                                   \
	X(__fork, fork)                                                                                                       \
	X(_Exit, _exit)                                                                                                       \
	X(_IO_fdopen, fdopen)                                                                                                 \
	X(_IO_popen, popen)

#define SMCR_CHK(X)                                                                                                           \
	X(ssize_t, __read_chk, (int fd, void *buf, size_t n, size_t room), n > room, read(fd, buf, n))                        \
	X(ssize_t, __recv_chk, (int fd, void *buf, size_t n, size_t room, int flags), n > room, recv(fd, buf, n, flags))      \
	X(ssize_t, __recvfrom_chk,                                                                                            \
	  (int fd, void *buf, size_t n, size_t room, int flags, struct sockaddr *sa, socklen_t *len), n > room,               \
	  recvfrom(fd, buf, n, flags, sa, len))                                                                               \
	X(int, __poll_chk, (struct pollfd * v, nfds_t n, int ms, size_t room), n > room / sizeof *v, poll(v, n, ms))          \
	X(int, __ppoll_chk,                                                                                                   \
	  (struct pollfd * v, nfds_t n, const struct timespec *t, const sigset_t *m, size_t room), n > room / sizeof *v,      \
	  ppoll(v, n, t, m))

#define SMCR_EXEC(X) X(execl) X(execlp) X(execle) X(dprintf) X(__dprintf_chk)

/* Every other way to move bytes: vectors, messages, files and pipes. */
#include "app.h"
#include <sys/sendfile.h>

static char a[8], b[8], c[64];

static void receive_vectors(int fd)
{
	struct iovec two[] = { { a, 4 }, { b, 6 } };
	await();
	say("readv %s %.4s %.6s", got(readv(fd, two, 2)), a, b);
	say("preadv2 at -1 %s", got(preadv2(fd, two, 1, -1, 0)));
	say("pread %s", got(pread(fd, a, 1, 0)));
	struct msghdr m = { .msg_iov = two, .msg_iovlen = 2, .msg_control = c, .msg_controllen = sizeof c, .msg_flags = -1 };
	struct sockaddr_in from;
	m.msg_name = &from, m.msg_namelen = sizeof from;
	say("recvmsg %s", got(recvmsg(fd, &m, MSG_PEEK)));
	say("flags %d, name %d, control %zu", m.msg_flags, m.msg_namelen, m.msg_controllen);
	say("recvmsg %s %.4s %.2s", got(recvmsg(fd, &m, 0)), a, b);
	socklen_t len = sizeof from;
	pass();
	await();
	ssize_t k = recvfrom(fd, a, 3, MSG_WAITALL, (void *)&from, &len);
	say("recvfrom %s, name %d", got(k), len);
	struct mmsghdr mm[2] = { { .msg_hdr = { .msg_iov = &two[0], .msg_iovlen = 1 } }, { .msg_hdr = { .msg_iov = &two[1], .msg_iovlen = 1 } } };
	int n = recvmmsg(fd, mm, 2, MSG_WAITFORONE, NULL);
	say("recvmmsg %s: %u %u", got(n), mm[0].msg_len, mm[1].msg_len);
	say("none: recvmmsg %s", got(recvmmsg(fd, mm, 2, MSG_DONTWAIT, NULL)));
	volatile int too_many = 1025;
	void *volatile nowhere = (void *)8;
	say("too many vectors: readv %s, writev %s", got(readv(fd, two, too_many)), got(writev(fd, two, too_many)));
	say("bad address: %s", got(write(fd, nowhere, 4)));
	say("bad vectors: %s %s", got(writev(fd, nowhere, 2)), got(readv(fd, nowhere, 2)));
	say("bad messages: %s %s %s", got(sendmsg(fd, nowhere, 0)), got(recvmsg(fd, nowhere, 0)), got(sendmmsg(fd, nowhere, 1, 0)));
	say("no vectors: %s", got(writev(fd, two, 0)));
	pass();
}

static void send_vectors(int fd)
{
	struct iovec two[] = { { "abcd", 4 }, { "efghij", 6 } };
	say("writev %s", got(writev(fd, two, 2)));
	two[1].iov_len = 2;
	struct msghdr m = { .msg_iov = two, .msg_iovlen = 2 };
	say("pwritev2 at -1 %s", got(pwritev2(fd, &two[0], 1, -1, 0)));
	say("pwrite %s", got(pwrite(fd, "x", 1, 0)));
	say("sendmsg %s", got(sendmsg(fd, &m, 0)));
	pass();
	await();
	struct sockaddr_in anywhere = loopback(9);
	say("sendto a name %s", got(sendto(fd, "abc", 3, 0, (void *)&anywhere, sizeof anywhere)));
	struct mmsghdr mm[2] = { { .msg_hdr = { .msg_iov = &two[0], .msg_iovlen = 1 } }, { .msg_hdr = { .msg_iov = &two[1], .msg_iovlen = 1 } } };
	int n = sendmmsg(fd, mm, 2, 0);
	say("sendmmsg %s: %u %u", got(n), mm[0].msg_len, mm[1].msg_len);
	pass();
	await();
}

enum { FILE_SIZE = 3000000 };

static int random_file(void)
{
	static unsigned char data[FILE_SIZE];
	uint64_t seed = 11;
	fill(&seed, data, sizeof data);
	int f = must(memfd_create("file", MFD_CLOEXEC));
	check(write(f, data, sizeof data) == sizeof data);
	must(lseek(f, 0, SEEK_SET));
	return f;
}

static void expect_file(int fd, off_t from, size_t n, const char *what)
{
	static unsigned char expected[FILE_SIZE], received[FILE_SIZE];
	int f = random_file();
	check(pread(f, expected, n, from) == (ssize_t)n);
	size_t k = receive_all(fd, received, n);
	say("%s: %s", what, k == n && !memcmp(expected, received, n) ? "intact" : "damaged");
	close(f);
}

static void send_files(int fd)
{
	int f = random_file();
	off_t at = 1234567;
	size_t left = 1000000;
	while (left) {
		ssize_t n = must(sendfile(fd, f, &at, left));
		left -= n;
	}
	say("sendfile from an offset: now %ld, file at %ld", (long)at, (long)lseek(f, 0, SEEK_CUR));
	for (ssize_t n; (n = must(sendfile(fd, f, NULL, 1 << 20))) > 0;)
		;
	say("sendfile: file at %ld", (long)lseek(f, 0, SEEK_CUR));
	int p[2];
	must(pipe(p));
	at = 0;
	for (size_t left = FILE_SIZE; left;) {
		ssize_t n = must(splice(f, &at, p[1], NULL, left, 0));
		left -= n;
		while (n)
			n -= must(splice(p[0], NULL, fd, NULL, n, SPLICE_F_MORE));
	}
	close(f);
	close(p[0]), close(p[1]);
}

static void splice_in(int fd)
{
	static unsigned char expected[FILE_SIZE], received[FILE_SIZE];
	int f = random_file(), p[2];
	must(pipe(p));
	check(read(f, expected, FILE_SIZE) == FILE_SIZE);
	for (size_t at = 0; at < FILE_SIZE;) {
		ssize_t n = must(splice(fd, NULL, p[1], NULL, FILE_SIZE - at, SPLICE_F_MOVE));
		check(n > 0);
		for (ssize_t k; n; n -= k, at += k)
			k = must(read(p[0], received + at, n));
	}
	say("splice out: %s", memcmp(expected, received, FILE_SIZE) ? "damaged" : "intact");
	say("splice end: %s", got(splice(fd, NULL, p[1], NULL, 1, 0)));
	say("splice without a pipe: %s", got(splice(fd, NULL, f, NULL, 1, 0)));
}

static void server(int fd)
{
	receive_vectors(fd);
	expect_file(fd, 1234567, 1000000, "sendfile from an offset");
	expect_file(fd, 0, FILE_SIZE, "sendfile");
	expect_file(fd, 0, FILE_SIZE, "splice in");
	splice_in(fd);
	close(fd);
}

static void client(int fd)
{
	send_vectors(fd);
	send_files(fd);
	static unsigned char data[FILE_SIZE];
	int f = random_file();
	check(read(f, data, FILE_SIZE) == FILE_SIZE);
	send_all(fd, data, FILE_SIZE);
	close(fd);
}

int main(void) { return two_processes(server, client); }

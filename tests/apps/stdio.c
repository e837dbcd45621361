/* FILE streams over connections, and syscall(2) on them. */
#include "app.h"
#include <sys/syscall.h>

static void server(int fd)
{
	char line[128];
	FILE *f = fdopen(fd, "r+");
	check(f != NULL);
	say("same number: %d", fileno(f) == fd);
	setvbuf(f, NULL, _IOFBF, 4096);
	for (int i = 0; i < 3; i++) {
		check(fgets(line, sizeof line, f));
		say("line %.*s", (int)strcspn(line, "\n"), line);
	}
	say("bytes %d %d", fgetc(f), getc(f));
	fseek(f, 0, SEEK_CUR);
	for (int i = 0; i < 1000; i++)
		fprintf(f, "answer %d\n", i);
	say("flush %d", fflush(f));
	say("number %d", fscanf(f, "%d", &(int){ 0 }));
	say("end %d, eof %d, error %d", fgetc(f), feof(f), ferror(f));
	say("close %d", fclose(f));
	say("closed: %s", err(fcntl(fd, F_GETFD)));

	fd = another();
	say("dprintf %d", dprintf(fd, "%s-%d\n", "formatted", 42));
	say("write %s", got(syscall(SYS_write, fd, "raw", 3)));
	say("read %s", got(syscall(SYS_read, fd, line, 3)));
	say("sendto %s", got(syscall(SYS_sendto, fd, "raw", 3, MSG_NOSIGNAL, NULL, 0)));
	say("recvfrom %s", got(syscall(SYS_recvfrom, fd, line, 3, MSG_WAITALL, NULL, NULL)));
	say("close %s", err(syscall(SYS_close, fd)));
	say("closed: %s", err(fcntl(fd, F_GETFD)));
}

static void client(int fd)
{
	char buf[20000], *expected;
	size_t size;
	FILE *f = open_memstream(&expected, &size);
	for (int i = 0; i < 1000; i++)
		fprintf(f, "answer %d\n", i);
	fclose(f);
	send_all(fd, "first\nsec", 9);
	send_all(fd, "ond\nthird\nAB", 12);
	size_t n = receive_all(fd, buf, size);
	say("answers %s", n == size && !memcmp(buf, expected, n) ? "intact" : "damaged");
	send_all(fd, "123", 3);
	must(shutdown(fd, SHUT_WR));
	say("end %s", got(recv(fd, buf, 1, 0)));
	close(fd);

	fd = another();
	n = receive_all(fd, buf, 16);
	say("%.*s", (int)n, buf);
	send_all(fd, "abcdef", 6);
	n = receive_all(fd, buf, sizeof buf);
	say("%.*s", (int)n, buf);
	close(fd);
}

int main(void) { return two_processes(server, client); }

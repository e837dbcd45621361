/* An interposer that stands behind the library and says how many calls of read and write came by. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static int reads, writes;

ssize_t read(int fd, void *buf, size_t n)
{
	reads++;
	return syscall(SYS_read, fd, buf, n);
}

ssize_t write(int fd, const void *buf, size_t n)
{
	writes++;
	return syscall(SYS_write, fd, buf, n);
}

__attribute__((destructor)) static void end(void)
{
	char line[80];
	write(2, line, snprintf(line, sizeof line, "%d reads, %d writes\n", reads, writes));
}

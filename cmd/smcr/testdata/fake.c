/*
 * A stand-in for libsmcr.so: every process that loads it writes a page as the library does, with figures that the tests know.
 * In a process named by FAKE_SKIP it does nothing, in one named by FAKE_IDLE the figures are 0.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim.h"

const char smcr_spare; /* by which smcr run knows it */

static void fail(const char *what)
{
	perror(what);
	abort();
}

__attribute__((constructor)) static void make_page(void)
{
	const char *dir = getenv("SMCR_RUN_DIR"), *report = getenv("SMCR_REPORT_DIR"), *mode = getenv("SMCR_MODE");
	const char *skip = getenv("FAKE_SKIP"), *idle = getenv("FAKE_IDLE");
	struct proc_page p = { 0 };
	struct block b = { 0 };
	char stat[1024], path[4096], link_path[4096];
	unsigned long long start;
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, stat, sizeof(stat) - 1);

	if (n <= 0)
		fail("/proc/self/stat");
	close(fd);
	stat[n] = 0;
	if (sscanf(strrchr(stat, ')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &start) != 1)
		fail("start time");
	memcpy(p.comm, strchr(stat, '(') + 1, strrchr(stat, ')') - strchr(stat, '(') - 1);
	if ((skip && !strcmp(skip, p.comm)) || (mode && !strcmp(mode, "off")))
		return;
	snprintf(path, sizeof(path), "%s/p.%d.%llu", dir, getpid(), start);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		fail(path);
	p.magic = PROC_MAGIC;
	p.abi = SMCR_ABI;
	p.pid = getpid();
	p.start = start;
	p.nblocks = SLAB_BLOCKS;
	if (!idle || strcmp(idle, p.comm)) {
		p.smc_conns = 2;
		p.tcp_conns = 1;
		p.fallbacks[R_NO_LISTENER] = 1;
		p.tx_bytes = 1000;
		p.rx_bytes = 5000000;
		b.state = S_ACTIVE;
		b.tx_bytes = 24;
		b.rx_bytes = 42;
		b.pid = p.pid;
		b.fd = 3;
	}
	if (pwrite(fd, &p, sizeof(p), 0) != sizeof(p) || ftruncate(fd, 4096 + SLAB_BLOCKS * sizeof(b)) ||
	    pwrite(fd, &b, sizeof(b), 4096 + 5 * sizeof(b)) != sizeof(b))
		fail(path);
	close(fd);
	if (report) {
		snprintf(link_path, sizeof(link_path), "%s%s", report, strrchr(path, '/'));
		if (link(path, link_path) && errno != EEXIST)
			fail(link_path);
	}
}

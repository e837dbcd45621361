/*
 * A TCP program that does by hand what the library does: offers SMC-R through the kernel hook, and speaks CLC.
 * bare offer|plain connect|serve ADDRESS PORT STEP...: one connection, then the steps:
 *   peer      what the hook says of the handshake; none if there is no hook
 *   send:HEX  bytes
 *   clc       takes one CLC message and prints it
 *   got:HEX   these bytes must come, and no others before
 *   echo:N:M  takes N bytes, and M more which it sends back
 *   sleep:MS
 *   end       the peer must close
 */
#include "app.h"
#include <netdb.h>
#include <linux/types.h>
#include "../../kernel/smcr.h"

static unsigned char bytes[1 << 16];

static size_t parse(const char *hex)
{
	size_t n = 0;
	for (; hex[2 * n]; n++)
		check(n < sizeof bytes && sscanf(hex + 2 * n, "%2hhx", &bytes[n]) == 1);
	return n;
}

static void take(int fd, size_t n)
{
	check(n <= sizeof bytes && receive_all(fd, bytes, n) == n);
}

static void step(int fd, const char *s)
{
	static const char *verdicts[] = { [SMCR_UNKNOWN] = "unknown", [SMCR_YES] = "yes", [SMCR_NO] = "no", [SMCR_IPSEC] = "ipsec", [SMCR_DECLINE] = "decline" };
	size_t n, m;
	if (!strcmp(s, "peer")) {
		struct smcr_peer p;
		socklen_t len = sizeof p;
		int failed = getsockopt(fd, SOL_SMCR, SMCR_PEER, &p, &len);
		printf("peer %s\n", failed ? "none" : verdicts[p.verdict]);
	} else if (!strncmp(s, "send:", 5)) {
		n = parse(s + 5);
		send_all(fd, bytes, n);
	} else if (!strcmp(s, "clc")) {
		check(receive_all(fd, bytes, 8) == 8);
		n = bytes[5] << 8 | bytes[6];
		check(n >= 8 && n <= sizeof bytes && receive_all(fd, bytes + 8, n - 8) == n - 8);
		printf("clc ");
		for (m = 0; m < n; m++)
			printf("%02x", bytes[m]);
		printf("\n");
	} else if (!strncmp(s, "got:", 4)) {
		static unsigned char want[sizeof bytes];
		n = parse(s + 4);
		memcpy(want, bytes, n);
		take(fd, n);
		check(!memcmp(want, bytes, n));
	} else if (sscanf(s, "sleep:%zu", &n) == 1) {
		usleep(n * 1000);
	} else if (sscanf(s, "echo:%zu:%zu", &n, &m) == 2) {
		take(fd, n);
		take(fd, m);
		send_all(fd, bytes, m);
	} else {
		check(!strcmp(s, "end") && receive_all(fd, bytes, 1) == 0);
	}
}

int main(int argc, char **argv)
{
	check(argc >= 5);
	setvbuf(stdout, NULL, _IOLBF, 0); /* a failure ends without flushing */
	struct addrinfo hint = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM }, *at;
	check(!getaddrinfo(argv[3], argv[4], &hint, &at));
	int on = 1, fd = must(socket(at->ai_family, SOCK_STREAM, 0));
	struct timeval limit = { .tv_sec = 20 };
	must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	if (!strcmp(argv[1], "offer") && setsockopt(fd, SOL_SMCR, SMCR_OFFER, &on, sizeof on))
		printf("no hook\n");
	if (!strcmp(argv[2], "connect")) {
		role = CLIENT;
		must(connect(fd, at->ai_addr, at->ai_addrlen));
	} else {
		must(bind(fd, at->ai_addr, at->ai_addrlen));
		must(listen(fd, 1));
		fd = accepted(fd);
		must(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
	}
	for (int i = 5; i < argc; i++)
		step(fd, argv[i]);
	return 0;
}

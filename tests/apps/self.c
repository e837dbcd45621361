/* One thread connects to its own listener, sends, accepts, receives and answers. */
#include "app.h"

int main(void)
{
	start();
	int l = listening(0, 0);
	char buf[64] = { 0 };
	for (int round = 0; round < 3; round++) {
		int c = connected(port_of(l));
		send_all(c, "to myself", 9);
		int s = accepted(l);
		size_t n = receive_all(s, buf, 9);
		say("received %.*s", (int)n, buf);
		send_all(s, "and back", 8);
		n = receive_all(c, buf, 8);
		say("received %.*s", (int)n, buf);
		must(shutdown(c, SHUT_WR));
		say("end: %s", got(recv(s, buf, sizeof buf, 0)));
		close(s);
		say("end: %s", got(recv(c, buf, sizeof buf, 0)));
		close(c);
	}
	print_transcript();
}

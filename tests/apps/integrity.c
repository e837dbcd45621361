/*
 * integrity threads|processes blocking|level|edge|poll|select CONNECTIONS SEED
 * Random amounts of 1 byte to 8 MiB in random pieces, both directions at once, SHA-256 of what was sent and of what came.
 * threads: one process per side for all connections; processes: one per side and connection.
 */
#include "app.h"
#include "sha256.h"

enum { MOST = 256, LARGEST = 8 << 20 };

static const char *how;
static uint64_t seed;
static int connections, processes;

struct flow {
	unsigned char *data;
	size_t size, at;
	uint64_t pieces; /* the state of the sizes of its pieces */
	int done;
};

static struct connection {
	int number, fd;
	struct flow tx, rx;
} all[MOST];

static size_t random_size(uint64_t *state, size_t most)
{
	uint64_t r = mix(state);
	size_t n = (size_t)1 << r % 24; /* every magnitude as often */
	n += (r >> 32) % n;
	return n < most ? n : most;
}

static size_t amount(int number, int direction)
{
	uint64_t s = seed * 1000 + number * 2 + direction;
	return number == 0 ? LARGEST : number == 1 ? 1 : random_size(&s, LARGEST);
}

static void prepare(struct connection *c, int number, int fd)
{
	*c = (struct connection){ .number = number, .fd = fd };
	c->tx.size = amount(number, role);
	c->rx.size = amount(number, !role);
	c->tx.data = malloc(c->tx.size);
	c->rx.data = malloc(c->rx.size + 1);
	check(c->tx.data && c->rx.data);
	uint64_t s = seed ^ (number * 2 + role + 1) * 0x1234567ull;
	fill(&s, c->tx.data, c->tx.size);
	c->tx.pieces = s, c->rx.pieces = ~s;
	if (strcmp(how, "blocking"))
		set_nonblocking(fd);
}

/* One piece out; 0 when the socket is full or everything is sent. */
static int push(struct connection *c)
{
	struct flow *f = &c->tx;
	if (f->done)
		return 0;
	ssize_t n = send(c->fd, f->data + f->at, random_size(&f->pieces, f->size - f->at), MSG_NOSIGNAL);
	if (n < 0) {
		check(errno == EAGAIN);
		return 0;
	}
	f->at += n;
	if (f->at == f->size) {
		f->done = 1;
		must(shutdown(c->fd, SHUT_WR));
	}
	return !f->done;
}

static int pull(struct connection *c)
{
	struct flow *f = &c->rx;
	if (f->done)
		return 0;
	ssize_t n = recv(c->fd, f->data + f->at, random_size(&f->pieces, f->size + 1 - f->at), 0);
	if (n < 0) {
		check(errno == EAGAIN);
		return 0;
	}
	f->at += n;
	check(f->at <= f->size);
	f->done = n == 0;
	return !f->done;
}

static void *pushing(void *c)
{
	while (push(c))
		;
	return NULL;
}

static void *pulling(void *c)
{
	while (pull(c))
		;
	return NULL;
}

static void by_threads(struct connection *c, int n)
{
	pthread_t t[2 * MOST];
	for (int i = 0; i < n; i++)
		t[2 * i] = thread(pushing, c + i), t[2 * i + 1] = thread(pulling, c + i);
	for (int i = 0; i < 2 * n; i++)
		pthread_join(t[i], NULL);
}

static void by_epoll(struct connection *c, int n)
{
	int edge = !strcmp(how, "edge"), set = must(epoll_create1(EPOLL_CLOEXEC)), open = n;
	struct epoll_event events[16];
	for (int i = 0; i < n; i++) {
		struct epoll_event e = { .events = EPOLLIN | EPOLLOUT | (edge ? EPOLLET : 0), .data.ptr = c + i };
		must(epoll_ctl(set, EPOLL_CTL_ADD, c[i].fd, &e));
	}
	while (open) {
		int ready = must(epoll_wait(set, events, 16, -1));
		for (int i = 0; i < ready; i++) {
			struct connection *r = events[i].data.ptr;
			int was_sending = !r->tx.done;
			if (events[i].events & EPOLLOUT)
				while (push(r) && edge)
					;
			if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLRDHUP))
				while (pull(r) && edge)
					;
			if (r->tx.done && r->rx.done) {
				must(epoll_ctl(set, EPOLL_CTL_DEL, r->fd, NULL));
				open--;
			} else if (was_sending && r->tx.done && !edge) {
				struct epoll_event e = { .events = EPOLLIN, .data.ptr = r };
				must(epoll_ctl(set, EPOLL_CTL_MOD, r->fd, &e));
			}
		}
	}
	close(set);
}

static void by_poll(struct connection *c, int n)
{
	struct pollfd set[MOST];
	for (int open = n; open;) {
		for (int i = 0; i < n; i++)
			set[i] = (struct pollfd){ c[i].tx.done && c[i].rx.done ? -1 : c[i].fd, (c[i].tx.done ? 0 : POLLOUT) | (c[i].rx.done ? 0 : POLLIN), 0 };
		must(poll(set, (unsigned)n, -1));
		open = 0;
		for (int i = 0; i < n; i++) {
			if (set[i].revents & POLLOUT)
				push(c + i);
			if (set[i].revents & (POLLIN | POLLHUP))
				pull(c + i);
			open += !c[i].tx.done || !c[i].rx.done;
		}
	}
}

static void by_select(struct connection *c, int n)
{
	for (int open = n; open;) {
		fd_set in, out;
		FD_ZERO(&in);
		FD_ZERO(&out);
		int top = 0;
		for (int i = 0; i < n; i++) {
			if (!c[i].rx.done)
				FD_SET(c[i].fd, &in);
			if (!c[i].tx.done)
				FD_SET(c[i].fd, &out);
			top = c[i].fd > top ? c[i].fd : top;
		}
		must(select(top + 1, &in, &out, NULL, NULL));
		open = 0;
		for (int i = 0; i < n; i++) {
			if (FD_ISSET(c[i].fd, &out))
				push(c + i);
			if (FD_ISSET(c[i].fd, &in))
				pull(c + i);
			open += !c[i].tx.done || !c[i].rx.done;
		}
	}
}

static void transfer(struct connection *c, int n)
{
	if (!strcmp(how, "blocking"))
		by_threads(c, n);
	else if (!strcmp(how, "poll"))
		by_poll(c, n);
	else if (!strcmp(how, "select"))
		by_select(c, n);
	else
		by_epoll(c, n);
	for (int i = 0; i < n; i++) {
		char sent[65], came[65], expected[65];
		sha256(c[i].tx.data, c[i].tx.size, sent);
		sha256(c[i].rx.data, c[i].rx.at, came);
		uint64_t s = seed ^ (c[i].number * 2 + !role + 1) * 0x1234567ull;
		fill(&s, c[i].rx.data, c[i].rx.size);
		sha256(c[i].rx.data, c[i].rx.size, expected);
		/* processes end in any order: what they say comes from the parent, as their exit code */
		if (!processes)
			say("%d: sent %zu %.16s, came %zu %.16s %s", c[i].number, c[i].tx.size, sent, c[i].rx.at, came, strcmp(came, expected) ? "damaged" : "intact");
		check(c[i].rx.at == c[i].rx.size && !strcmp(came, expected));
		close(c[i].fd);
	}
}

static void one_process_each(void)
{
	pid_t child[MOST];
	for (int i = 0; i < connections; i++) {
		if (role == CLIENT)
			await(); /* so they connect in order */
		else
			pass();
		int fd = role == SERVER ? accepted(listener) : -1;
		child[i] = must(fork());
		if (!child[i]) {
			fd = role == SERVER ? fd : connected(port);
			meet(fd);
			prepare(all, i, fd);
			transfer(all, 1);
			_exit(0);
		}
		close(fd);
	}
	for (int i = 0; i < connections; i++) {
		int status;
		must(waitpid(child[i], &status, 0));
		say("%d: %s", i, status ? "damaged" : "intact");
	}
}

static void both(int fd)
{
	close(fd);
	if (processes) {
		one_process_each();
		return;
	}
	for (int i = 0; i < connections; i++)
		prepare(all + i, i, another());
	transfer(all, connections);
}

int main(int argc, char **argv)
{
	char hex[65];
	check(argc == 5 && atoi(argv[3]) <= MOST);
	processes = !strcmp(argv[1], "processes");
	how = argv[2];
	connections = atoi(argv[3]);
	seed = atoll(argv[4]);
	sha256((void *)"abc", 3, hex);
	check(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
	return two_processes(both, both);
}

package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/abi/llc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/verbs"
	"libsmcr/verbs/shm"
	"libsmcr/verbs/simfab"
)

// world is some hosts with an engine each, the TCP connections between them, and a clock that only the test moves.
type world struct {
	t      testing.TB
	now    Instant
	fabric *simfab.Fabric // nil over shm
	hosts  []*host
	ends   []*end
	// clc sees each CLC message, and what it returns is delivered.
	clc func(from *end, b []byte) []byte
	// trace has one line for each message.
	trace []string
}

type host struct {
	w        *world
	name     string
	e        *Engine
	dev      verbs.Device
	fake     *simfab.Device // nil over shm
	reserved int64
	limit    int64 // of reserved, 0 = none
	dead     bool
	fd       int
}

// end is one side of a TCP connection with the Handler of its Conn.
type end struct {
	w        *world
	h        *host
	peer     *end
	c        *Conn
	in       []byte
	eof      bool
	sendErr  error
	rings    *Rings
	fallback *clc.DeclineError
	err      error
	calls    int
	onEnd    func()
}

func (x *end) SendCLC(b []byte) error {
	if x.sendErr != nil {
		return x.sendErr
	}
	x.w.trace = append(x.w.trace, x.h.name+" "+describe(b))
	if x.w.clc != nil {
		b = x.w.clc(x, b)
	}
	x.peer.in = append(x.peer.in, b...)
	return nil
}

func (x *end) ended() {
	if x.calls++; x.onEnd != nil {
		x.onEnd()
	}
}

func (x *end) Established(r Rings) {
	x.rings = &r
	// Both sides must be able to use the rings now, whatever the other one knows.
	if len(r.LocalHead) != HeadSize || len(r.PeerHead) != HeadSize || len(r.LocalRing) == 0 || len(r.PeerRing) == 0 {
		x.w.t.Errorf("%s: rings of %d and %d bytes", x.h.name, len(r.LocalRing), len(r.PeerRing))
	}
	if headAt(r.LocalHead).token() != r.LocalToken || headAt(r.PeerHead).token() != r.PeerToken || r.LocalToken == 0 {
		x.w.t.Errorf("%s: tokens %s and %s do not lie in the heads", x.h.name, r.LocalToken, r.PeerToken)
	}
	if _, bench := x.w.t.(*testing.B); !bench && x.peer.rings == nil && slices.ContainsFunc(r.LocalRing, func(c byte) bool { return c != 0 }) {
		x.w.t.Errorf("%s: a fresh ring is not empty", x.h.name)
	}
	x.ended()
}

func (x *end) Fallback(code clc.DeclineCode, sent bool) {
	x.fallback = &clc.DeclineError{Code: code, Remote: !sent}
	x.ended()
}

func (x *end) Broken(err error) {
	if err == nil {
		x.w.t.Errorf("%s: broken without a reason", x.h.name)
	}
	x.err = err
	x.ended()
	x.peer.eof = true // a reset
}

// outcome is how a negotiation ended, in one word.
func (x *end) outcome() string {
	switch {
	case x.h.dead:
		return "dead"
	case x.err != nil:
		return "broken"
	case x.fallback != nil:
		return "fallback"
	case x.rings != nil:
		return "smc"
	}
	return "open"
}

func describe(b []byte) string {
	h, err := clc.Peek(b)
	if err != nil {
		return "garbage"
	}
	s := h.Type.String()
	if h.Flags&8 != 0 {
		s += " F"
	}
	return s
}

// newWorld has a client A and a server B, over the fake fabric or over shm.
func newWorld(t testing.TB, overShm bool, edit ...func(*Config)) *world {
	w := &world{t: t, now: 1}
	if !overShm {
		w.fabric = simfab.New(11)
		w.fabric.Filter = w.observe
	}
	for _, n := range []string{"A", "B"} {
		w.host(n, edit...)
	}
	return w
}

func bothProviders(t *testing.T, fn func(t *testing.T, w *world), edit ...func(*Config)) {
	t.Run("fake", func(t *testing.T) { fn(t, newWorld(t, false, edit...)) })
	t.Run("shm", func(t *testing.T) {
		before := openFDs(t)
		w := newWorld(t, true, edit...)
		fn(t, w)
		for _, h := range w.hosts {
			unix.Close(h.fd)
		}
		if n := openFDs(t); n != before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
	})
}

// openFDs counts sockets and memory, which is what devices open; the runtime opens descriptors of its own when it likes.
func openFDs(t testing.TB) (n int) {
	t.Helper()
	all, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if to, _ := os.Readlink(fd); strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "/memfd:") {
			n++
		}
	}
	return n
}

var gidCounter uint64

func (w *world) host(name string, edit ...func(*Config)) *host {
	w.t.Helper()
	h := &host{w: w, name: name, fd: -1}
	var gid roce.GID
	copy(gid[:], name)
	if w.fabric != nil {
		h.fake = w.fabric.Device(gid, verbs.CapMapped|verbs.CapLocal)
		h.dev = h.fake
	} else {
		gidCounter++
		binary.LittleEndian.PutUint64(gid[8:], uint64(os.Getpid())<<32|gidCounter)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		h.fd = fd
		if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + string(gid[:])}); err != nil {
			w.t.Fatal(err)
		}
		if h.dev, err = shm.New(shm.Config{FD: fd, GID: gid}); err != nil {
			w.t.Fatal(err)
		}
	}
	n := uint32(len(w.hosts)) << 24
	c := Config{
		PeerID: smc.PeerID{0xF7, byte(len(w.hosts)), 2, 0, 0, 0xAA, 0, byte(len(w.hosts) + 1)}, Devices: []verbs.Device{h.dev}, RMBESize: MinRMBESize,
		Reserve: func(d int64) bool {
			if d > 0 && h.limit > 0 && h.reserved+d > h.limit {
				return false
			}
			h.reserved += d
			return true
		},
		Rand: func() uint32 { n += 0x10001; return n },
	}
	for _, fn := range edit {
		fn(&c)
	}
	e, err := New(c)
	if err != nil {
		w.t.Fatal(err)
	}
	h.e = e
	w.hosts = append(w.hosts, h)
	return h
}

func (w *world) a() *host { return w.hosts[0] }
func (w *world) b() *host { return w.hosts[1] }

// observe writes the trace of what goes over the fabric.
func (w *world) observe(e simfab.Event) simfab.Verdict {
	from := string(e.From[:1])
	if e.Op == verbs.OpExported {
		w.trace = append(w.trace, from+" export")
	} else if m, err := llc.Decode(smc.Linux, e.Msg); err == nil {
		s := from + " " + m.Head().Type.String()
		if m.Head().Reply {
			s += " rsp"
		}
		w.trace = append(w.trace, s)
	}
	return simfab.Deliver
}

// dial makes a TCP connection from one host to another and starts both negotiations.
func (w *world) dial(from, to *host) (client, server *end) {
	client, server = &end{w: w, h: from}, &end{w: w, h: to}
	client.peer, server.peer = server, client
	w.ends = append(w.ends, client, server)
	server.c = to.e.Server(server, aLAN, w.now)
	client.c = from.e.Client(client, aLAN, w.now)
	return client, server
}

// settle lets everything happen that happens without time passing.
func (w *world) settle() {
	w.t.Helper()
	for range 10000 {
		moved := false
		for _, h := range w.hosts {
			if !h.dead {
				before := len(w.trace)
				moved = h.e.Poll(w.now) || moved || len(w.trace) != before
			}
		}
		for _, x := range w.ends {
			moved = x.deliver() || moved
		}
		if !moved && !w.busy() {
			return
		}
	}
	w.t.Fatal("the world does not come to rest")
}

// busy: datagrams are in flight that Poll has not seen.
func (w *world) busy() bool {
	for _, h := range w.hosts {
		if h.fd >= 0 && !h.dead {
			p := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
			if n, _ := unix.Poll(p, 0); n > 0 {
				return true
			}
		}
		if h.fake != nil && h.fake.Waiting() > 0 && !h.dead {
			return true
		}
	}
	return false
}

// deliver hands one CLC message to the engine, framed as the event loop would.
func (x *end) deliver() bool {
	if x.h.dead || x.c == nil || x.c.State().Done() {
		return false
	}
	if len(x.in) > 0 {
		n, err := Need(x.in)
		if err != nil || n <= len(x.in) {
			if err != nil {
				n = len(x.in)
			}
			msg := x.in[:n]
			x.in = x.in[n:]
			x.c.CLC(slices.Clone(msg), x.w.now)
			return true
		}
	}
	if x.eof {
		x.c.EOF(x.w.now)
		return true
	}
	return false
}

// advance lets time pass, from deadline to deadline.
func (w *world) advance(d time.Duration) {
	w.t.Helper()
	w.settle()
	end := w.now + Instant(d)
	for range 100000 {
		next := end + 1
		for _, h := range w.hosts {
			if at, ok := h.e.NextDeadline(); ok && !h.dead {
				next = min(next, at)
			}
		}
		if next > end {
			w.now = end
			return
		}
		w.now = max(w.now, next)
		for _, h := range w.hosts {
			if !h.dead {
				h.e.Tick(w.now)
			}
		}
		w.settle()
	}
	w.t.Fatal("timers without end")
}

// kill ends the process of a host: its device vanishes, and the kernel closes its TCP connections.
func (w *world) kill(h *host) {
	h.dead = true
	if h.fake != nil {
		w.fabric.Kill(h.fake)
	} else {
		null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		if err := unix.Dup3(null, h.fd, unix.O_CLOEXEC); err != nil {
			w.t.Fatal(err)
		}
		unix.Close(null)
	}
	for _, x := range w.ends {
		if x.h == h {
			x.peer.eof = true
		}
	}
}

// finish closes all connections, ends the engines and checks that nothing is left.
func (w *world) finish() {
	w.t.Helper()
	for _, x := range w.ends {
		x.c.Close(w.now) // for the dead ones the kernel would do it
	}
	w.advance(10 * time.Second)
	for _, h := range w.hosts {
		h.e.Shutdown(w.now)
	}
	w.advance(2 * abandonedFor)
	for _, h := range w.hosts {
		h.check()
		if err := errors.Join(h.e.Close(), h.dev.Close()); err != nil {
			w.t.Errorf("%s: %v", h.name, err)
		}
	}
}

const abandonedFor = time.Duration(abandoned)

func (h *host) check() {
	t, e := h.w.t, h.e
	t.Helper()
	if len(e.conns)+len(e.groups)+len(e.byPeer)+h.links()+len(e.timers)+len(e.outbox) != 0 || h.reserved != 0 {
		t.Errorf("%s: left over: %d connections, %d groups, %d peers, %d links, %d timers, %d bytes",
			h.name, len(e.conns), len(e.groups), len(e.byPeer), h.links(), len(e.timers), h.reserved)
	}
}

// links counts those that an engine still knows.
func (h *host) links() (n int) {
	for _, p := range h.e.ports {
		n += len(p.links)
	}
	return n
}

// established connects and checks that bytes reach the other side.
func (w *world) established(from, to *host) (client, server *end) {
	w.t.Helper()
	client, server = w.dial(from, to)
	w.settle()
	w.mustBeSMC(client, server)
	return client, server
}

func (w *world) mustBeSMC(client, server *end) {
	w.t.Helper()
	if client.outcome() != "smc" || server.outcome() != "smc" {
		w.t.Fatalf("client %s (%v, %v), server %s (%v, %v)", client.outcome(), client.fallback, client.err, server.outcome(), server.fallback, server.err)
	}
	c, s := client.rings, server.rings
	for _, p := range []struct {
		name     string
		from, to []byte
	}{
		{"client to server", c.PeerRing, s.LocalRing}, {"server to client", s.PeerRing, c.LocalRing},
		{"client's writer head", c.PeerHead[:64], s.LocalHead[:64]}, {"server's writer head", s.PeerHead[:64], c.LocalHead[:64]},
	} {
		mark := fmt.Appendf(nil, "%p", p.from)
		at := len(p.from) - len(mark)
		copy(p.from[at:], mark)
		if len(p.from) != len(p.to) || string(p.to[at:]) != string(mark) {
			w.t.Errorf("%s: %d bytes written do not arrive in %d", p.name, len(p.from), len(p.to))
		}
		clear(p.from[at:])
	}
	if c.PeerToken != s.LocalToken || s.PeerToken != c.LocalToken || c.LinkGroup == 0 || s.PeerGID != client.h.dev.Attr().GID {
		w.t.Errorf("rings do not fit: %+v, %+v", c, s)
	}
}

func (w *world) wantTrace(want ...string) {
	w.t.Helper()
	if !slices.Equal(w.trace, want) {
		w.t.Errorf("messages:\n%q\nwant:\n%q", w.trace, want)
	}
}

// agreed checks the one thing that must never happen: one side on SMC-R, the other on TCP.
func agreed(t testing.TB, client, server *end) {
	t.Helper()
	a, b := client.outcome(), server.outcome()
	if a == "open" || b == "open" || a == "smc" && b == "fallback" || a == "fallback" && b == "smc" {
		t.Errorf("client %s in %s, server %s in %s", a, client.c.State(), b, server.c.State())
	}
	if a == "fallback" && b == "fallback" && (len(client.in) > 0 || len(server.in) > 0) {
		t.Errorf("a Decline is left in the stream: %d and %d bytes", len(client.in), len(server.in))
	}
	for _, x := range []*end{client, server} {
		if !x.h.dead && x.calls != 1 {
			t.Errorf("%s: %d calls of the handler", x.h.name, x.calls)
		}
	}
}

var aLAN = LAN{Subnet: netip.MustParsePrefix("10.99.0.2/24")}

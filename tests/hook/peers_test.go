package hook

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/abi/smc"
	"libsmcr/tests/harness"
)

// start starts a program in the namespace. It dies with the thread that started it, which stays until the test is over.
func (s *space) start(w *harness.World, c harness.Command) *harness.Process {
	s.t.Helper()
	over, started := make(chan bool), make(chan error, 1)
	s.t.Cleanup(func() { close(over) })
	var p *harness.Process
	go func() {
		runtime.LockOSThread()
		defer func() { <-over }()
		defer close(started) // also when the program cannot be started
		if err := unix.Setns(s.fd, unix.CLONE_NEWNET); err != nil {
			started <- err
			return
		}
		p = w.Start(c)
	}()
	if err := <-started; err != nil || p == nil {
		s.t.Fatal(err)
	}
	return p
}

// A server that answers so many clients, and a client; what they print is the same natively. The server's arguments: address,
// port, clients, and what it does before it accepts.
const server = `
import os, socket, sys, time
a, port, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
l = socket.create_server((a, port), family=socket.AF_INET6 if ":" in a else socket.AF_INET)
print("ready", flush=True)
for i in range(n):
    c, _ = l.accept()
    time.sleep(float(sys.argv[4]) if len(sys.argv) > 4 else 0)
    d = b""
    while len(d) < 5:
        d += c.recv(5 - len(d))
    c.sendall(d * 100000)
    c.close()
`

const client = `
import socket, sys
c = socket.create_connection((sys.argv[1], int(sys.argv[2])))
c.sendall(b"hello")
d = b""
while True:
    b = c.recv(65536)
    if not b: break
    d += b
print(d == b"hello" * 100000)
`

const (
	port   = "4791"
	python = "/usr/bin/python3" // the system's, which every user may run
)

// counts is what the programs under the library counted.
type counts map[string]harness.Counts

// talk runs the server and, one after the other, so many clients of it in new worlds of each mode, compares, and returns what the library counted.
func talk(t *testing.T, a, b *space, to netip.Addr, more ...func(*harness.Command, string)) counts {
	t.Helper()
	const clients = 2
	said, sums := map[harness.Mode]string{}, counts{}
	for _, mode := range []harness.Mode{harness.Native, harness.SMC} {
		w := harness.New(mode, t.Fatalf)
		defer w.Destroy()
		commands := map[string]*harness.Command{
			"server": {Args: []string{python, "-c", server, to.String(), port, fmt.Sprint(clients)}},
			"client": {Args: []string{python, "-c", client, to.String(), port}},
		}
		for side, c := range commands {
			for _, f := range more {
				f(c, side)
			}
		}
		srv := b.start(w, *commands["server"])
		srv.Saw("ready")
		var ran []*harness.Process
		for range clients {
			p := a.start(w, *commands["client"])
			said[mode] += p.Wait().String()
			ran = append(ran, p)
		}
		said[mode] += srv.Wait().String()
		if mode == harness.SMC {
			sums["server"] = srv.Report().Totals
			sum := harness.Counts{Fallbacks: map[string]int{}}
			for _, p := range ran {
				r := p.Report().Totals
				sum.SMC += r.SMC
				sum.TCP += r.TCP
				for reason, n := range r.Fallbacks {
					sum.Fallbacks[reason] += n
				}
			}
			sums["client"] = sum
		}
	}
	if d := cmp.Diff(said[harness.Native], said[harness.SMC]); d != "" {
		t.Errorf("not as natively (-native +library):\n%s", d)
	}
	return sums
}

func (c counts) want(t *testing.T, side string, smc int, fallbacks map[string]int) {
	t.Helper()
	got := c[side]
	if fallbacks == nil {
		fallbacks = map[string]int{}
	}
	if got.SMC != smc || cmp.Diff(got.Fallbacks, fallbacks) != "" {
		t.Errorf("%s: %d by SMC-R, fallbacks %v; want %d, %v", side, got.SMC, got.Fallbacks, smc, fallbacks)
	}
}

// Shared memory does not reach another network namespace: the server sees that at the Proposal, and declines.
func TestTwoHostsSayInCLCThatTheyShareNoDevice(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	for _, to := range []netip.Addr{server4, server6} {
		sums := talk(t, a, b, to)
		sums.want(t, "client", 0, map[string]int{"peer-declined": 2})
		sums.want(t, "server", 0, map[string]int{"declined": 2})
		w.seen()
		var proposal clc.Proposal
		var decline clc.Decline
		if len(w.clc) != 4 {
			t.Fatalf("%s: %x", to, w.clc)
		}
		for i := 0; i < 4; i += 2 {
			if err := proposal.Decode(smc.Linux, w.clc[i]); err != nil {
				t.Fatal(err)
			}
			if err := decline.Decode(w.clc[i+1]); err != nil || decline.Diagnosis != clc.DeclineNoDevice {
				t.Errorf("%v, %v", decline, err)
			}
		}
		want := clc.Proposal{Subnet: clc.SubnetOf(smc.Linux, netip.MustParsePrefix("10.0.0.1/24"))}
		if to.Is6() {
			want = clc.Proposal{Prefixes: []clc.Prefix{clc.PrefixOf(netip.MustParsePrefix("fd00::1/64"))}}
		}
		if proposal.Subnet != want.Subnet || !slices.Equal(proposal.Prefixes, want.Prefixes) {
			t.Errorf("%s: subnet %v, prefixes %v", to, proposal.Subnet, proposal.Prefixes)
		}
		if to.Is4() && len(w.clc[0]) != 52 {
			t.Errorf("a Proposal of %d bytes", len(w.clc[0]))
		}
		w.clc = nil
	}
}

func plain(which string) func(*harness.Command, string) {
	return func(c *harness.Command, side string) { c.Plain = c.Plain || side == which }
}

func TestAPlainEndGetsPlainTCP(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	home := netip.MustParseAddr("127.0.0.1")
	talk(t, s, s, home, plain("server")).want(t, "client", 0, map[string]int{"peer-not-offering": 2})
	talk(t, s, s, home, plain("client")).want(t, "server", 0, map[string]int{"client-not-offering": 2})
}

// The registry serves one user; the hook knows no users.
func TestTwoUsersShareMemory(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	nobody := func(c *harness.Command, side string) {
		if side == "client" {
			c.UID = 65534
		}
	}
	sums := talk(t, s, s, netip.MustParseAddr("127.0.0.1"), nobody)
	sums.want(t, "client", 2, nil)
	sums.want(t, "server", 2, nil)
}

// Between users no bell page is mapped and no descriptor kept: whoever waits in epoll is rung by the engines.
func TestTwoUsersWakeEachOtherWithoutSharingBells(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	const rounds = 300
	turns := `
import os, select, socket, sys
def turns(c, first):
    c.setblocking(False)
    e = select.epoll()
    e.register(c, select.EPOLLIN)
    for i in range(` + fmt.Sprint(rounds) + `):
        if first: c.send(b"x")
        e.poll()
        assert c.recv(1) == b"x"
        if not first: c.send(b"x")
        if i == 100 and first:
            print("half", flush=True)
            sys.stdin.readline()
`
	for _, c := range []struct {
		user  int
		drop  string // what the server does to the socket that it has accepted as root
		pages int    // of bells, in the server
	}{{0, "", 2}, {nobody, "", 1}, {0, "os.setuid(65534)", 1}} {
		w := harness.New(harness.SMC, t.Fatalf)
		in, goOn, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		srv := s.start(w, harness.Command{Drops: nobody, Args: []string{python, "-c", turns + `
l = socket.create_server(("127.0.0.1", ` + port + `))
print("ready", flush=True)
k = l.accept()[0]
` + c.drop + `
turns(k, False)
`}})
		srv.Saw("ready")
		cl := s.start(w, harness.Command{UID: c.user, Stdin: in, Args: []string{python, "-c", turns + `
turns(socket.create_connection(("127.0.0.1", ` + port + `)), True)
`}})
		cl.Saw("half")
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", srv.PID()))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(maps), "smcr-bells"); n > c.pages {
			t.Errorf("%+v: %d bell pages are mapped", c, n)
		}
		fmt.Fprintln(goOn)
		for _, p := range []*harness.Process{cl, srv} {
			if r := p.Wait(); r.Code != 0 || r.Err != "" || r.Process.Report().Totals.SMC != 1 {
				t.Errorf("%+v: %s%v", c, r, r.Process.Report().Totals)
			}
		}
		in.Close()
		goOn.Close()
		w.Destroy()
	}
}

// limited: the engine cannot start at that end, which shows when both have agreed.
func limited(which string) func(*harness.Command, string) {
	return func(c *harness.Command, side string) {
		if side == which {
			c.Args = append([]string{"prlimit", "--as=400000000"}, c.Args...)
		}
	}
}

func TestAnEndWithoutAnEngineDeclines(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	home := netip.MustParseAddr("127.0.0.1")
	sums := talk(t, s, s, home, limited("client"))
	sums.want(t, "client", 0, map[string]int{"rlimit-as": 2})
	sums.want(t, "server", 0, map[string]int{"peer-declined": 2})
	sums = talk(t, s, s, home, limited("server"))
	// The second does not find the option any more, and the registry's claim is refused for the same reason.
	sums.want(t, "server", 0, map[string]int{"rlimit-as": 2})
	sums.want(t, "client", 0, map[string]int{"peer-declined": 1, "not-claimed": 1})
}

// A kernel gives up after six seconds. The program does not look at its connection for two.
func TestAnUnusedConnectionIsNegotiatedSoon(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	w := harness.New(harness.SMC, t.Fatalf)
	defer w.Destroy()
	srv := s.start(w, harness.Command{Args: []string{python, "-c", server, "127.0.0.1", port, "1", "2"}})
	srv.Saw("ready")
	k := s.socket(unix.AF_INET)
	k.offer(true)
	k.connect(netip.MustParseAddrPort("127.0.0.1:" + port))
	began := time.Now()
	// A device that is nowhere: the answer is a Decline, and TCP goes on.
	m := clc.Proposal{Version: smc.V1, PeerID: smc.PeerID{1, 2, 3}, GID: [16]byte{0xfe, 0x80, 15: 1}}.Append(smc.Linux, nil)
	k.write(m)
	var decline clc.Decline
	if err := decline.Decode(k.read(clc.DeclineSize)); err != nil || decline.Diagnosis != clc.DeclineNoDevice {
		t.Errorf("%v, %v", decline, err)
	}
	if d := time.Since(began); d > 1500*time.Millisecond {
		t.Errorf("answered after %s", d)
	}
	k.write([]byte("hello"))
	if got := k.read(500000); string(got) != strings.Repeat("hello", 100000) {
		t.Errorf("%d bytes", len(got))
	}
	if got := srv.Report().Totals.Fallbacks; got["declined"] != 1 {
		t.Errorf("%v", got)
	}
}

// Both have agreed, the program has accepted, and then its process is stopped for longer than a peer elsewhere would be waited for.
func TestAServerThatIsStoppedIsWaitedFor(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	const stop = `
import os, signal, subprocess
def stop():
    subprocess.Popen(["sh", "-c", "sleep 13; kill -CONT %d" % os.getpid()], close_fds=True)
    os.kill(os.getpid(), signal.SIGSTOP)
`
	sums := talk(t, s, s, netip.MustParseAddr("127.0.0.1"), func(c *harness.Command, side string) {
		if side == "server" {
			c.Args[2] = stop + strings.Replace(server, "    time.sleep(", "    if i == 0: stop()\n    time.sleep(", 1)
		}
	})
	sums.want(t, "client", 2, nil)
	sums.want(t, "server", 2, nil)
}

// Who sends unknown options back, and then something else than CLC, costs one connection.
func TestAPeerThatReflectsTheOptionIsLeftAloneAfterwards(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	for name, greeting := range map[string]string{"bytes": "220 ready\r\n", "the end": ""} {
		l := s.listener(any4, true)
		at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), l.port())
		w := harness.New(harness.SMC, t.Fatalf)
		defer w.Destroy()
		try := func() harness.Result {
			p := s.start(w, harness.Command{Args: []string{python, "-c", client, at.Addr().String(), fmt.Sprint(at.Port())}})
			k := l.accept()
			k.write([]byte(greeting))
			k.must(unix.Shutdown(k.fd, unix.SHUT_WR))
			return p.Wait()
		}
		r := try()
		if !strings.Contains(r.Err, "ConnectionResetError") || r.Process.Report().Totals.Fallbacks["protocol-error"] != 1 {
			t.Errorf("%s: %s%v", name, r, r.Process.Report().Totals)
		}
		r = try()
		if r.String() != "False\n[exit 0]\n" || r.Process.Report().Totals.Fallbacks["peer-not-smc"] != 1 {
			t.Errorf("%s, once more: %s%v", name, r, r.Process.Report().Totals)
		}
	}
}

// A listener that a plain image inherits offers no more; one that a forked child of ours keeps does.
func TestAMarkEndsWithTheImage(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	const heir = `
import os, socket, sys
l = socket.create_server(("127.0.0.1", int(sys.argv[1])))
l.set_inheritable(sys.argv[2] == "heir")
print("offers", flush=True)
sys.stdin.readline()
env = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}
if sys.argv[3] == "exec":
    os.execve(sys.executable, [sys.executable, "-c", "print('heir', flush=True); import sys; sys.stdin.readline()"], env)
import subprocess
subprocess.run(["/bin/true"], env=env, close_fds=False)
print("heir", flush=True)
sys.stdin.readline()
`
	for _, c := range []struct {
		inherits, how string
		offers        bool
	}{{"heir", "exec", false}, {"heir", "spawn", false}, {"none", "spawn", true}} {
		w := harness.New(harness.SMC, t.Fatalf)
		in, ask, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		p := s.start(w, harness.Command{Args: []string{python, "-c", heir, port, c.inherits, c.how}, Stdin: in})
		verdict := func() uint32 {
			k := s.socket(unix.AF_INET)
			k.offer(true)
			k.connect(netip.MustParseAddrPort("127.0.0.1:" + port))
			return k.peer().verdict
		}
		p.Saw("offers")
		if verdict() != yes {
			t.Errorf("%v: offers nothing", c)
		}
		fmt.Fprintln(ask)
		p.Saw("heir")
		if got := verdict() == yes; got != c.offers {
			t.Errorf("%v: offers %t", c, got)
		}
		fmt.Fprintln(ask)
		p.Wait()
		in.Close()
		ask.Close()
		w.Destroy()
	}
}

func (k *socket) write(b []byte) {
	k.t.Helper()
	_, err := restarted(func() (int, error) { return unix.Write(k.fd, b) })
	k.must(err)
}

// read returns so many bytes, fewer at the end.
func (k *socket) read(n int) []byte {
	k.t.Helper()
	b := make([]byte, n)
	for at := 0; at < n; {
		m, err := k.some(b[at:])
		k.must(err)
		if m == 0 {
			return b[:at]
		}
		at += m
	}
	return b
}

package hook

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/abi/smc"
	"libsmcr/tests/harness"
)

// Clients that agree by the option and then say nothing, more than one host may have in the handshake, and some that look whether
// the port is open. Those who come later are served at once: by SMC-R if they come from another address, else plain.
func TestWhoAgreesAndIsSilentDelaysNobody(t *testing.T) {
	const silent = 5000
	const soon = 10 * time.Second
	hooked(t)
	s := newSpace(t)
	home := netip.MustParseAddrPort("127.0.0.1:" + port)
	w := harness.New(harness.SMC, t.Fatalf)
	defer w.Destroy()
	server := s.start(w, harness.Command{Args: []string{"redis-server", "--port", port, "--bind", "127.0.0.1", "--protected-mode", "no", "--save", "",
		"--dir", w.Dir, "--maxclients", "15000", "--tcp-backlog", "4096"}})
	server.Saw("Ready to accept")
	witness := func(from string, bySMC int) {
		t.Helper()
		began := time.Now()
		c := s.start(w, harness.Command{Args: []string{python, "-c", `
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])), source_address=(sys.argv[2], 0))
for i in range(100):
    c.sendall(b"PING\r\n")
    d = c.recv(7)
    assert d == b"+PONG\r\n", (i, d)
`, port, from}})
		c.Wait().OK()
		if took := time.Since(began); took > soon {
			t.Errorf("a client was served after %v", took)
		}
		if r := c.Report().Totals; r.SMC != bySMC {
			t.Errorf("from %s: %+v", from, r)
		}
	}
	descriptors := func() int {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", server.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(soon); !is(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: the server has %d descriptors", what, descriptors())
			}
		}
	}
	witness("127.0.0.1", 1)
	before, memory := descriptors(), server.Status("VmRSS", false)

	quiet := make([]*socket, silent)
	for i := range quiet {
		quiet[i] = &socket{t: t}
	}
	s.do(func() (err error) {
		for _, k := range quiet {
			if k.fd, err = tcp(unix.AF_INET); err != nil {
				return err
			}
			k.offer(true)
			k.connect(home)
		}
		return nil
	})
	eventually("not all are accepted", func() bool { return descriptors() >= before+silent })
	for _, k := range quiet {
		if p := k.peer(); p.verdict != yes {
			t.Fatalf("%+v", p)
		}
	}
	time.Sleep(2 * 500 * time.Millisecond) // none is used by the server's program before its first byte: hooks/conn.go, dueAfter
	witness("127.0.0.1", 0)
	witness("127.0.0.2", 1)
	s.do(func() error {
		for range 1000 { // scanners
			fd, err := tcp(unix.AF_INET)
			if err != nil {
				return err
			}
			k := &socket{t, fd}
			k.connect(home)
			k.close()
		}
		return nil
	})
	// One that goes on after all: declined and plain if it is one too many.
	for _, k := range quiet[silent-50:] {
		k.write(clc.Proposal{Version: smc.V1, PeerID: smc.PeerID{1}}.Append(smc.Linux, nil))
		var decline clc.Decline
		if err := decline.Decode(k.read(clc.DeclineSize)); err != nil || decline.Diagnosis != clc.DeclineMemory {
			t.Fatalf("%v, %v", decline, err)
		}
		k.write([]byte("PING\r\n"))
		if got := string(k.read(7)); got != "+PONG\r\n" {
			t.Fatalf("%q", got)
		}
	}
	if grown := server.Status("VmRSS", false) - memory; grown > 10*silent {
		t.Errorf("%d KiB for %d who are silent", grown, silent)
	}
	for _, k := range quiet {
		k.close()
	}
	eventually("silent clients that are gone", func() bool { return descriptors() < before+10 })
	witness("127.0.0.1", 1)
	server.Signal(syscall.SIGTERM)
	got := server.Report().Totals.Fallbacks
	if d := cmp.Diff(map[string]int{"half-open": 1 + 50, "client-not-offering": 1000, "protocol-error": silent - 50}, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// What the registry's clients learn of a server whose connections are short, those learn who find it by the option, too, and another
// user's: there a handshake never pays.
func TestShortConnectionsAreLeftToTCP(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	const short = 600
	echo := fmt.Sprintf(`
import socket, sys
l = socket.create_server(("127.0.0.1", %s), backlog=128)
print("ready", flush=True)
for i in range(%d):
    c, _ = l.accept()
    c.sendall(c.recv(10))
    c.close()
`, port, short)
	ask := fmt.Sprintf(`
import socket
for i in range(%d):
    c = socket.create_connection(("127.0.0.1", %s))
    c.sendall(b"hello")
    assert c.recv(10) == b"hello"
    c.close()
`, short, port)
	for _, uid := range []int{0, 65534} {
		w := harness.New(harness.SMC, t.Fatalf)
		adapt := []string{"SMCR_ADAPT=1", "SMCR_DISCOVERY="}
		srv := s.start(w, harness.Command{Env: adapt, Args: []string{python, "-c", echo}})
		srv.Saw("ready")
		cl := s.start(w, harness.Command{Env: adapt, UID: uid, Args: []string{python, "-c", ask}})
		cl.Wait().OK()
		srv.Wait().OK()
		if got := cl.Report().Totals; got.SMC < 16 || got.Fallbacks["short-connections"] < short/2 {
			t.Errorf("user %d: %+v", uid, got)
		}
		w.Destroy()
	}
}

package fsm

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden matrices and diagrams")

// A change of a table must show in a review twice: in the table, and in these files.
func TestTablesMatchTheirGoldenMatrices(t *testing.T) {
	for file, got := range map[string]string{
		"handshake.matrix": HandshakeMatrix(), "handshake.mermaid": HandshakeDiagram(),
		"conn.matrix": ConnMatrix(), "conn.mermaid": ConnDiagram(),
		"link.matrix": LinkMatrix(), "link.mermaid": LinkDiagram(),
		"exchange.matrix": ExchangeMatrix(), "exchange.mermaid": ExchangeDiagram(),
	} {
		path := filepath.Join("testdata", file)
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil || string(want) != got {
			t.Errorf("%s is not what the table says (%v); look at the difference, then run go test -update", path, err)
		}
	}
}

func TestEveryStateAndEventHasAName(t *testing.T) {
	check := func(n int, s func(int) string) {
		seen := map[string]bool{}
		for i := 1; i < n; i++ {
			if v := s(i); strings.HasPrefix(v, "0x") || seen[v] {
				t.Errorf("%d is called %q", i, v)
			} else {
				seen[v] = true
			}
		}
		if v := s(n); !strings.HasPrefix(v, "0x") {
			t.Errorf("%d is called %q", n, v)
		}
	}
	check(int(handshakes), func(i int) string { return Handshake(i).String() })
	check(int(handshakeEvents), func(i int) string { return HandshakeEvent(i).String() })
	check(int(conns), func(i int) string { return Conn(i).String() })
	check(int(connEvents), func(i int) string { return ConnEvent(i).String() })
	check(int(links), func(i int) string { return Link(i).String() })
	check(int(linkEvents), func(i int) string { return LinkEvent(i).String() })
	check(int(exchanges), func(i int) string { return Exchange(i).String() })
	check(int(exchangeEvents), func(i int) string { return ExchangeEvent(i).String() })
}

func TestBadTransitions(t *testing.T) {
	next, err := AwaitAccept.On(RecvProposal)
	bad, ok := errors.AsType[*BadTransition](err)
	if next != AwaitAccept || !ok || bad.From != AwaitAccept || bad.Event != RecvProposal {
		t.Errorf("%s, %v", next, err)
	}
	if got, want := err.Error(), "handshake: RecvProposal is not allowed in AwaitAccept"; got != want {
		t.Errorf("%q", got)
	}
	for _, err := range []error{
		second(Handshake(200).On(Failed)), second(AwaitAccept.On(HandshakeEvent(200))), second(Handshake(0).On(Failed)),
		second(Conn(200).On(AppClose)), second(Active.On(ConnEvent(200))), second(Link(200).On(LinkFailed)), second(LinkActive.On(200)),
		second(Exchange(200).On(ExchangeTimeout)), second(Quiet.On(200)),
	} {
		if err == nil {
			t.Error("an unknown state or event was taken")
		}
	}
}

func second[T any](_ T, err error) error { return err }

// RFC 7609 §C.1, §C.2: where a Decline may be sent, and where it may come.
func TestDeclineRules(t *testing.T) {
	send := map[Handshake]bool{
		Idle: true, Joining: true, LinkReceived: true, AwaitClientRMB: true,
		Choosing: true, Queued: true, AwaitServerRMB: true, AwaitPeerRMB: true, RequestPosted: true,
	}
	recv := map[Handshake]bool{
		AwaitAccept: true, AwaitConfirmLink: true, LinkReceived: true, ReplyPosted: true,
		AwaitProposal: true, AwaitFirstConfirm: true, AwaitConfirm: true, AwaitPeerRMB: true, RequestPosted: true, AwaitReply: true,
		AddingLink: true, Declined: true,
	}
	for s := Handshake(1); s < handshakes; s++ {
		if s.CanDecline() != send[s] {
			t.Errorf("%s: CanDecline is %t", s, s.CanDecline())
		}
		next, err := s.On(RecvDecline)
		if got := err == nil && next == Fallback; got != recv[s] {
			t.Errorf("%s: Decline gives %s, %v", s, next, err)
		}
	}
}

// While a first contact goes on over the link, a failure makes one side decline, never both: what the other one could
// be in then waits. What time decides alone is TestDeclinesThatCross.
func TestDeclinesDoNotCross(t *testing.T) {
	together := map[Handshake][]Handshake{ // client, and where the server can be meanwhile
		AwaitConfirmLink: {AwaitFirstConfirm, AwaitPeerRMB, RequestPosted, AwaitReply},
		LinkReceived:     {AwaitReply},
		ReplyPosted:      {RequestPosted, AwaitReply, AddingLink},
		AddingLink:       {AwaitReply, AddingLink},
	}
	for c, servers := range together {
		for _, s := range servers {
			for _, e := range []HandshakeEvent{Failed, LinkLost, Timeout} {
				cn, _ := c.On(e)
				sn, _ := s.On(e)
				if cn == Declining && sn == Declining {
					t.Errorf("%s and %s both decline on %s", c, s, e)
				}
			}
		}
	}
}

// Nobody hangs: wherever the peer can fall silent, a timeout leads out, and EOF or garbage ends every negotiation.
func TestEveryWaitHasAnEnd(t *testing.T) {
	transient := map[Handshake]bool{Idle: true, Joining: true, Choosing: true, Declining: true}
	for s := Handshake(1); s < handshakes; s++ {
		if s.Done() {
			continue
		}
		for _, e := range []HandshakeEvent{RecvEOF, RecvGarbage} {
			if next, err := s.On(e); err != nil || next != Broken && !(s == Declined && e == RecvEOF && next == Fallback) {
				t.Errorf("%s on %s: %s, %v", s, e, next, err)
			}
		}
		next, err := s.On(Timeout)
		if ends := err == nil && (next.Done() || next == Declining); ends == transient[s] {
			t.Errorf("%s on Timeout: %s, %v", s, next, err)
		}
	}
	for s := Exchange(1); s < exchanges; s++ {
		if next, err := s.On(ExchangeTimeout); s != Quiet && (err != nil || next != Quiet) {
			t.Errorf("%s on ExchangeTimeout: %s, %v", s, next, err)
		}
	}
	for _, s := range []Conn{PeerCloseWait1, PeerCloseWait2, PeerFinCloseWait, PeerAbortWait} { // this side is done, the peer is not
		if next, err := s.On(CloseTimeout); err != nil || next != Closed {
			t.Errorf("%s on CloseTimeout: %s, %v", s, next, err)
		}
	}
}

// play runs events and returns the last state.
func play(t *testing.T, events ...ConnEvent) Conn {
	t.Helper()
	s := Closed
	for _, e := range append([]ConnEvent{Open}, events...) {
		next, err := s.On(e)
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	return s
}

// Figure 22 and 23, path by path. An event that stands twice is raised again because its side had closed earlier.
func TestConnectionPaths(t *testing.T) {
	for _, c := range []struct {
		name   string
		events []ConnEvent
		want   Conn
	}{
		{"3A", []ConnEvent{AppClose}, PeerCloseWait1},
		{"3A half", []ConnEvent{AppShutWrite}, PeerCloseWait1},
		{"3B", []ConnEvent{AppShutWrite, PeerDoneWriting}, PeerCloseWait2},
		{"3C", []ConnEvent{AppShutWrite, PeerDoneWriting, PeerConnClosed}, AppFinCloseWait},
		{"3D", []ConnEvent{AppShutWrite, PeerConnClosed, AppClose}, Closed},
		{"3C closed", []ConnEvent{AppClose, PeerConnClosed, AppClose}, Closed},
		{"4A", []ConnEvent{PeerDoneWriting}, AppCloseWait1},
		{"4B", []ConnEvent{PeerConnClosed, AppShutWrite}, AppCloseWait2},
		{"4C", []ConnEvent{PeerDoneWriting, AppShutWrite, AppClose}, PeerFinCloseWait},
		{"4C closed", []ConnEvent{PeerConnClosed, AppClose, PeerConnClosed}, Closed},
		{"4D", []ConnEvent{PeerDoneWriting, AppClose, PeerConnClosed}, Closed},
		{"active abort", []ConnEvent{AppAbort, PeerDoneWriting, PeerConnAbort}, Closed},
		{"passive abort", []ConnEvent{PeerConnAbort}, ProcessAbort},
		{"passive abort answered", []ConnEvent{PeerConnAbort, AbortSent}, Closed},
		{"both abort", []ConnEvent{AppAbort, PeerConnAbort}, Closed},
		{"peer gone", []ConnEvent{PeerGone, AppClose, PeerGone}, Closed},
		{"peer gone after our close", []ConnEvent{AppClose, PeerGone, AppClose}, Closed},
	} {
		if got := play(t, c.events...); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

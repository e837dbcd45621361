package engine

import (
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"libsmcr/abi/clc"
	"libsmcr/abi/llc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
	"libsmcr/verbs/simfab"
)

func readHex(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".hex")
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, "#") {
			digits.WriteString(strings.Join(strings.Fields(line), ""))
		}
	}
	out, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// mustBeLinux compares a message with one that Linux sent, but for the bytes that vary from peer to peer.
func mustBeLinux(t *testing.T, name string, sent []byte, golden string, vary [][2]int) {
	t.Helper()
	got, want := slices.Clone(sent), readHex(t, golden)
	if len(got) != len(want) {
		t.Errorf("%s has %d bytes, Linux sends %d", name, len(got), len(want))
		return
	}
	for _, v := range vary {
		clear(got[v[0]:v[1]])
		clear(want[v[0]:v[1]])
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n%x, Linux has\n%x", name, got, want)
	}
}

// RFC 7609 §4.4.1, §4.8: an element is used again only when both sides are done with it, and nothing of the old
// connection is left in it.
func TestElementIsReusedAfterBothSidesClosed(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		a, b := w.established(w.a(), w.b())
		old := *a.rings
		for i := range b.rings.PeerRing {
			b.rings.PeerRing[i] = 0xA5
		}
		headAt(a.rings.LocalHead).setCons(77)
		a.c.Close(w.now)
		if f := headAt(b.rings.LocalHead).writerFlags(); f != WriterClosed {
			t.Errorf("the peer sees flags %d", f)
		}
		w.advance(time.Minute)
		a2, b2 := w.established(w.a(), w.b())
		if a2.rings.Index != 2 || a.c.conn != fsm.PeerCloseWait1 {
			t.Errorf("element %d, state %s, while the peer may still write", a2.rings.Index, a.c.conn)
		}
		b.c.Close(w.now)
		if b.c.conn != fsm.Closed {
			t.Errorf("the later one to close is %s", b.c.conn)
		}
		w.advance(time.Minute)
		if a.c.conn != fsm.Closed {
			t.Errorf("the first one to close is %s", a.c.conn)
		}
		a3, b3 := w.established(w.a(), w.b())
		if a3.rings.Index != 1 || b3.rings.Index != 1 || a3.rings.LocalToken == old.LocalToken {
			t.Errorf("elements %d and %d, token %s after %s", a3.rings.Index, b3.rings.Index, a3.rings.LocalToken, old.LocalToken)
		}
		if slices.ContainsFunc(a3.rings.LocalRing, func(c byte) bool { return c != 0 }) || headAt(a3.rings.LocalHead).cons() != 0 {
			t.Error("the old connection's data is still there")
		}
		w.mustBeSMC(a2, b2)
		w.finish()
	})
}

// Figure 22, as the flags in the heads tell it.
func TestStatesOfClosing(t *testing.T) {
	for _, c := range []struct {
		name          string
		local, peer   uint32 // flags set before we close: ours in the peer's head, the peer's in ours
		want, finally fsm.Conn
	}{
		{"active close", 0, 0, fsm.PeerCloseWait1, fsm.Closed},
		{"after shutdown", WriterDone, 0, fsm.PeerCloseWait1, fsm.Closed},
		{"both shut down", WriterDone, WriterDone, fsm.PeerCloseWait2, fsm.Closed},
		{"passive close", 0, WriterDone, fsm.PeerFinCloseWait, fsm.Closed},
		{"passive close, peer has closed", 0, WriterClosed, fsm.Closed, fsm.Closed},
		{"everything at once", WriterDone, WriterDone | WriterClosed, fsm.Closed, fsm.Closed},
	} {
		w := newWorld(t, false)
		a, _ := w.established(w.a(), w.b())
		w.established(w.a(), w.b()) // keeps the link group busy
		atomic.OrUint32(&headAt(a.rings.PeerHead).WFlags, c.local)
		atomic.OrUint32(&headAt(a.rings.LocalHead).WFlags, c.peer)
		a.c.Close(w.now)
		if a.c.conn != c.want {
			t.Errorf("%s: %s, want %s", c.name, a.c.conn, c.want)
		}
		a.c.Close(w.now)
		a.peer.c.Close(w.now)
		w.advance(time.Minute)
		if a.c.conn != c.finally || a.c.group != nil {
			t.Errorf("%s: %s at the end", c.name, a.c.conn)
		}
		w.finish()
	}
}

// A parent that forks and closes: the child goes on, and its last close is what counts.
func TestLeave(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		a, b := w.established(w.a(), w.b())
		w.established(w.a(), w.b())
		a.c.Leave(nil, w.now)
		a.c.Leave(nil, w.now)
		if headAt(b.rings.LocalHead).writerFlags() != 0 {
			t.Error("the peer was told of a close that did not happen")
		}
		b.c.Close(w.now)
		w.advance(time.Minute)
		if a.c.group == nil {
			t.Fatal("freed while the child has it")
		}
		MarkClosed(a.rings.LocalHead, a.rings.PeerHead)
		w.advance(time.Minute)
		if a.c.group != nil || b.c.group != nil {
			t.Error("not freed")
		}
		w.finish()
	})
}

// The child is killed: it has marked nothing, and the peer, who sees the end of TCP, closes.
func TestLeaveToOneWhoIsKilled(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		a, b := w.established(w.a(), w.b())
		w.established(w.a(), w.b())
		gone := false
		a.c.Leave(func() bool { return gone }, w.now)
		b.c.Close(w.now)
		w.advance(time.Minute)
		if a.c.group == nil {
			t.Fatal("freed while the child has it")
		}
		gone = true
		w.advance(time.Minute)
		if a.c.group != nil || b.c.group != nil {
			t.Error("not freed")
		}
		w.finish()
	})
}

// The end of a peer's process does not end its connections: that is for TCP to say. What it held is freed as they are
// closed.
func TestPeerProcessDies(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		a1, _ := w.established(w.a(), w.b())
		a2, _ := w.established(w.a(), w.b())
		copy(a2.rings.LocalRing, "what had arrived")
		w.kill(w.b())
		a1.c.Close(w.now)
		w.advance(time.Second)
		s := w.a().e.Snapshot()
		if len(s.Groups) != 1 || s.Groups[0].State != "DOWN" || s.Groups[0].Conns != 1 || a1.c.group != nil {
			t.Errorf("%+v", s.Groups)
		}
		if string(a2.rings.LocalRing[:16]) != "what had arrived" || a2.calls != 1 {
			t.Error("the other connection was not left alone")
		}
		a2.rings.PeerRing[0] = 1 // may still be written
		a2.c.Close(w.now)
		if s := w.a().e.Snapshot(); len(s.Groups) != 0 || s.Conns != 0 {
			t.Errorf("%+v", s)
		}
		w.finish()
	})
}

// A short-lived client leaves a link group behind at the server; it must not stay for ten minutes.
func TestIdleGroupOfADeadPeerGoesSoon(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		a, b := w.established(w.a(), w.b())
		a.c.Close(w.now)
		b.c.Close(w.now)
		w.advance(time.Second)
		if len(w.b().e.groups) != 1 {
			t.Fatal("no idle link group is kept")
		}
		w.kill(w.a())
		w.advance(2 * lastSweep)
		if n := len(w.b().e.groups); n != 0 {
			t.Errorf("%d link groups", n)
		}
		w.finish()
	})
}

// RFC 7609 §3.5.4: the server deletes an idle link group, and both sides clean up.
func TestIdleGroupIsDeleted(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		a, b := w.established(w.a(), w.b())
		w.advance(time.Hour)
		w.mustBeSMC(a, b)
		a.c.Close(w.now)
		b.c.Close(w.now)
		w.advance(9 * time.Minute)
		w.trace = nil
		c, s := w.established(w.a(), w.b())
		if slices.Contains(w.trace, "B ACCEPT F") {
			t.Error("the idle link group was not used")
		}
		c.c.Close(w.now)
		s.c.Close(w.now)
		w.advance(11 * time.Minute)
		for _, h := range w.hosts {
			if len(h.e.groups) != 0 || len(h.e.timers) != 0 {
				t.Errorf("%s: %d link groups, %d timers", h.name, len(h.e.groups), len(h.e.timers))
			}
		}
		w.finish()
	})
}

// RFC 7609 §4.4.2: the peer gives an element that we know to be in use to a new connection.
func TestReuseConflict(t *testing.T) {
	w := newWorld(t, false)
	a, b := w.established(w.a(), w.b())
	// The server takes the connection for over.
	b.c.group.conns[b.c.id].release()
	a2, b2 := w.dial(w.a(), w.b())
	w.settle()
	w.mustBeSMC(a2, b2)
	if a.err != ErrReused || a.calls != 2 || b2.rings.Index != 1 {
		t.Errorf("%v, %d calls, element %d", a.err, a.calls, b2.rings.Index)
	}
	// Its own element is not given out before its owner has left.
	if a2.rings.Index != 2 {
		t.Errorf("element %d", a2.rings.Index)
	}
	before := headAt(a2.rings.PeerHead).writerFlags()
	a.c.Close(w.now)
	if headAt(a2.rings.PeerHead).writerFlags() != before {
		t.Error("the old connection wrote into the new one's head")
	}
	w.finish()
}

// A negotiation that broke after the element was told: it is kept until the peer cannot be using it any more.
func TestAbandonedElement(t *testing.T) {
	for _, written := range []bool{false, true} {
		w := newWorld(t, false)
		w.established(w.a(), w.b())
		w.clc = func(from *end, b []byte) []byte {
			if describe(b) == "CONFIRM" {
				return []byte("garbage, not a Confirm")
			}
			return b
		}
		a, b := w.dial(w.a(), w.b())
		w.settle()
		if a.outcome() != "smc" || b.outcome() != "broken" || b.c.group == nil {
			t.Fatalf("%s, %s", a.outcome(), b.outcome())
		}
		if written {
			atomic.StoreUint64(&headAt(a.rings.PeerHead).Prod, 1)
		}
		w.advance(abandonedFor + time.Minute)
		if freed := b.c.group == nil; freed == written {
			t.Errorf("written %t, freed %t", written, freed)
		}
		if written {
			a.c.Close(w.now)
			w.advance(time.Minute)
			if b.c.group != nil {
				t.Error("not freed when the peer had closed")
			}
		}
		w.clc = nil
		w.finish()
	}
}

// say lets one host send an LLC message as it is, and returns the answers.
func say(w *world, from *host, m llc.Message) (answers []llc.Message) {
	w.t.Helper()
	var l *Link
	for _, x := range from.e.ports[0].links {
		l = x
	}
	old := w.fabric.Filter
	w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
		if e.Msg != nil && e.From != from.dev.Attr().GID {
			got, err := llc.Decode(smc.Linux, e.Msg)
			if err != nil {
				w.t.Error(err)
			}
			answers = append(answers, got)
			return simfab.Drop
		}
		return simfab.Deliver
	}
	if err := l.qp.PostSend(1<<40, m.Append(smc.Linux, nil)); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
	w.fabric.Filter = old
	return answers
}

func TestLLCMessagesOnAnActiveLink(t *testing.T) {
	for _, c := range []struct {
		name   string
		from   int // host
		send   llc.Message
		answer llc.Message
		down   bool
	}{
		{"TEST LINK", 0, &llc.TestLink{UserData: [16]byte{1, 2}}, &llc.TestLink{Reply: true, UserData: [16]byte{1, 2}}, false},
		{"TEST LINK response", 0, &llc.TestLink{Reply: true}, nil, false},
		{"ADD LINK from the server", 1, &llc.AddLink{Link: 2, MTU: 3}, &llc.AddLink{Reply: true, Reject: true, Reason: llc.RejectNoAltPath, Link: 2, MTU: 3}, false},
		{"ADD LINK from the client", 0, &llc.AddLink{Link: 2}, nil, false},
		{"CONFIRM RKEY of memory that was not exported", 0, &llc.ConfirmRKey{Token: smc.RToken{RKey: 5, VAddr: 6}},
			&llc.ConfirmRKey{Reply: true, Negative: true, Token: smc.RToken{RKey: 5, VAddr: 6}}, false},
		{"CONFIRM RKEY response nobody waits for", 0, &llc.ConfirmRKey{Reply: true}, nil, true},
		{"DELETE RKEY of nothing", 0, &llc.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{5}},
			&llc.DeleteRKey{Reply: true, Negative: true, Errors: 0x80, Count: 1, RKeys: [8]smc.RKey{5}}, false},
		{"CONFIRM LINK again", 1, &llc.ConfirmLink{NoEyeCatcher: true, Link: 1}, nil, true},
		{"ADD LINK CONTINUATION", 1, &llc.AddLinkCont{}, nil, true},
		{"DELETE LINK of an unknown link", 1, &llc.DeleteLink{Link: 9, Orderly: true}, &llc.DeleteLink{Reply: true, Orderly: true, Link: 9, Reason: llc.ReasonUnknownLink}, false},
		{"DELETE LINK from the server", 1, &llc.DeleteLink{Link: 1, Orderly: true}, &llc.DeleteLink{Reply: true, Orderly: true, Link: 1}, true},
		{"DELETE LINK all from the server", 1, &llc.DeleteLink{All: true}, nil, true},
		{"DELETE LINK all from the client", 0, &llc.DeleteLink{All: true, Reason: llc.ReasonOperator}, &llc.DeleteLink{All: true, Reason: llc.ReasonOperator}, true},
		{"DELETE LINK response", 0, &llc.DeleteLink{Reply: true, All: true}, nil, false},
		{"unknown optional message", 0, raw{0xBF, 44}, nil, false},
		{"CDC, which shared memory does not need", 0, raw{0xFE, 44}, nil, true},
		{"wrong length", 0, raw{0x07, 43}, nil, true},
		{"short", 0, short{}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, false)
			a, b := w.established(w.a(), w.b())
			got := say(w, w.hosts[c.from], c.send)
			want := ""
			if c.answer != nil {
				want = c.answer.String()
			}
			have := ""
			for _, m := range got {
				have += m.String()
			}
			if have != want {
				t.Errorf("answer %q, want %q", have, want)
			}
			if down := w.hosts[1-c.from].e.Snapshot().Groups[0].State == "DOWN"; down != c.down {
				t.Errorf("link group down: %t", down)
			}
			w.mustBeSMC(a, b)
			w.established(w.a(), w.b())
			w.finish()
		})
	}
}

// raw is an LLC message of 44 bytes with the given beginning.
type raw [2]byte

func (m raw) Head() llc.Header { return llc.Header{} }
func (m raw) String() string   { return "raw" }
func (m raw) Append(_ smc.Dialect, b []byte) []byte {
	return append(append(b, m[:]...), make([]byte, 42)...)
}

type short struct{}

func (short) Head() llc.Header                      { return llc.Header{} }
func (short) String() string                        { return "short" }
func (short) Append(_ smc.Dialect, b []byte) []byte { return append(b, 7) }

func TestDeleteRKeyUnmaps(t *testing.T) {
	w := newWorld(t, false)
	a, _ := w.established(w.a(), w.b())
	key := w.a().e.Snapshot().Groups[0].RMBs[0].RKey
	m := &llc.DeleteRKey{Count: 1, RKeys: [8]smc.RKey{key}}
	want := &llc.DeleteRKey{Reply: true, Count: 1, RKeys: m.RKeys}
	if got := say(w, w.a(), m); len(got) != 1 || got[0].String() != want.String() {
		t.Fatalf("%v", got)
	}
	if n := w.b().fake.Open().Maps; n != 1 {
		t.Errorf("%d mappings while a connection writes there", n)
	}
	a.peer.c.Close(w.now)
	if n := w.b().fake.Open().Maps; n != 0 {
		t.Errorf("%d mappings afterwards", n)
	}
	w.finish()
}

// RFC 7609 §C.7.1: CONFIRM LINK with wrong contents.
func TestBadConfirmLink(t *testing.T) {
	edit := func(fn func(*llc.ConfirmLink)) func([]byte) []byte {
		return func(b []byte) []byte {
			var m llc.ConfirmLink
			if err := m.Decode(smc.Linux, b); err != nil {
				panic(err)
			}
			fn(&m)
			return m.Append(smc.Linux, nil)
		}
	}
	for _, c := range []struct {
		name  string
		reply bool
		edit  func([]byte) []byte
		a, b  string
		code  clc.DeclineCode
	}{
		{"with eye catcher", false, edit(func(m *llc.ConfirmLink) { m.NoEyeCatcher = false }), "fallback", "fallback", clc.DeclineEyeCatcher},
		{"link number 0", false, edit(func(m *llc.ConfirmLink) { m.Link = 0 }), "fallback", "fallback", clc.DeclineConfirmLink},
		{"other QPN", false, edit(func(m *llc.ConfirmLink) { m.QPN++ }), "fallback", "fallback", clc.DeclineConfirmLink},
		{"other GID", false, edit(func(m *llc.ConfirmLink) { m.GID[3]++ }), "fallback", "fallback", clc.DeclineConfirmLink},
		// The response ends the exchange for the client: no way back to TCP.
		{"response with eye catcher", true, edit(func(m *llc.ConfirmLink) { m.NoEyeCatcher = false }), "smc", "broken", 0},
		{"response with another link", true, edit(func(m *llc.ConfirmLink) { m.Link++ }), "smc", "broken", 0},
		{"response with another QPN", true, edit(func(m *llc.ConfirmLink) { m.QPN++ }), "smc", "broken", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, false)
			w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
				if h, err := llc.Peek(smc.Linux, e.Msg); err == nil && h.Type == llc.TypeConfirmLink && h.Reply == c.reply && e.Op == verbs.OpSend {
					copy(e.Msg, c.edit(e.Msg))
				}
				return simfab.Deliver
			}
			a, b := w.dial(w.a(), w.b())
			w.settle()
			if a.outcome() != c.a || b.outcome() != c.b || c.code != 0 && b.fallback.Code != c.code {
				t.Errorf("client %s %v %v, server %s %v %v", a.outcome(), a.fallback, a.err, b.outcome(), b.fallback, b.err)
			}
			w.finish()
		})
	}
}

// max links: the smaller of both counts (RFC 7609 §2.2.2), and this side has one.
func TestMaxLinksIsNegotiated(t *testing.T) {
	w := newWorld(t, false)
	w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
		if h, err := llc.Peek(smc.Linux, e.Msg); err == nil && h.Type == llc.TypeConfirmLink {
			e.Msg[34] = 8
		}
		return simfab.Deliver
	}
	w.established(w.a(), w.b())
	for _, h := range w.hosts {
		if g := h.e.Snapshot().Groups[0]; g.MaxLinks != 1 || g.Type != "SINGLE" {
			t.Errorf("%s: %d links, %s", h.name, g.MaxLinks, g.Type)
		}
	}
	w.finish()
}

func TestReceiverThatIsBusy(t *testing.T) {
	w := newWorld(t, false)
	stuck := true
	w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
		if stuck {
			return simfab.Hold
		}
		return simfab.Deliver
	}
	a, b := w.dial(w.a(), w.b())
	for range 20 {
		for _, h := range w.hosts {
			h.e.Poll(w.now)
		}
		a.deliver()
		b.deliver()
	}
	at, ok := w.a().e.NextDeadline()
	if !ok || at-w.now > Instant(firstRetry) {
		t.Errorf("nobody looks again: %t, %s", ok, time.Duration(at-w.now))
	}
	stuck = false
	w.advance(10 * time.Millisecond)
	w.mustBeSMC(a, b)
	w.finish()
}

func benchmarkHandshakes(b *testing.B, overShm bool) {
	w := newWorld(b, overShm)
	w.established(w.a(), w.b())
	b.ReportAllocs()
	for b.Loop() {
		w.ends, w.trace = w.ends[:2], w.trace[:0]
		c, s := w.dial(w.a(), w.b())
		for c.rings == nil || s.rings == nil {
			s.deliver()
			c.deliver()
		}
		c.c.Close(w.now)
		s.c.Close(w.now)
		w.now += Instant(lastSweep)
		w.a().e.Tick(w.now)
		w.b().e.Tick(w.now)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "handshakes/s")
}

func BenchmarkSubsequentContact(b *testing.B) { benchmarkHandshakes(b, true) }

func BenchmarkFirstContact(b *testing.B) {
	w := newWorld(b, true)
	b.ReportAllocs()
	for b.Loop() {
		w.ends, w.trace = w.ends[:0], w.trace[:0]
		c, s := w.dial(w.a(), w.b())
		for c.rings == nil || s.rings == nil {
			w.settle()
		}
		c.c.Close(w.now)
		s.c.Close(w.now)
		for _, h := range w.hosts {
			for _, g := range h.e.sortedGroups() {
				g.down(fsm.LinkDelete)
			}
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "handshakes/s")
}

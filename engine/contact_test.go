package engine

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"libsmcr/abi/clc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
	"libsmcr/verbs/simfab"
)

// RFC 7609 §3.5.1, Figure 8. The server's CONFIRM LINK comes only when it can reach the client's RMB, and goes out
// behind its own.
func TestFirstContact(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		w.established(w.a(), w.b())
		if w.fabric != nil {
			w.wantTrace("A PROPOSAL", "B ACCEPT F", "A CONFIRM F", "A export", "B export", "B CONFIRM LINK", "A CONFIRM LINK rsp")
		}
		for _, h := range w.hosts {
			s := h.e.Snapshot()
			if len(s.Groups) != 1 || s.Groups[0].State != "ACTIVE" || s.Groups[0].Links[0].State != "ACTIVE" || s.Groups[0].Links[0].Num != 1 ||
				s.Groups[0].MaxLinks != 1 || s.Groups[0].PeerRMBs != 1 || s.Groups[0].RMBs[0].InUse != 1 || s.Counters.Established != 1 {
				t.Errorf("%s: %+v", h.name, s)
			}
			for _, other := range w.hosts {
				gid := other.e.cfg.Devices[0].Attr().GID
				if h.e.Knows(gid) != (other != h) {
					t.Errorf("%s knows %s: %v", h.name, other.name, other == h)
				}
			}
			if at, ok := h.e.NextDeadline(); ok {
				t.Errorf("%s: an idle engine has a timer in %s", h.name, time.Duration(at-w.now))
			}
		}
		w.finish()
	})
}

// RFC 7609 §3.5.2: the link is used again; nothing but CLC flows while the RMB has room.
func TestSubsequentContact(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		w.established(w.a(), w.b())
		w.trace = nil
		c, s := w.established(w.a(), w.b())
		w.wantTrace("A PROPOSAL", "B ACCEPT", "A CONFIRM")
		if c.rings.Index != 2 || s.rings.Index != 2 {
			t.Errorf("elements %d and %d", c.rings.Index, s.rings.Index)
		}
		w.finish()
	})
}

// RFC 7609 §3.5.5.2.1: when the RMB is full the next one is announced by CONFIRM RKEY, first by the server, then by
// the client.
func TestFortyConnectionsNeedASecondRMB(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		tokens := map[smc.AlertToken]bool{}
		for i := range 40 {
			w.trace = nil
			c, s := w.established(w.a(), w.b())
			if i == 32 && w.fabric != nil {
				w.wantTrace("A PROPOSAL", "B export", "B CONFIRM RKEY", "A CONFIRM RKEY rsp", "B ACCEPT",
					"A export", "A CONFIRM RKEY", "B CONFIRM RKEY rsp", "A CONFIRM")
			}
			if want := smc.RMBEIndex(i%32 + 1); c.rings.Index != want || s.rings.Index != want {
				t.Fatalf("connection %d has elements %d and %d", i, c.rings.Index, s.rings.Index)
			}
			if tokens[c.rings.LocalToken] {
				t.Errorf("token %s twice", c.rings.LocalToken)
			}
			tokens[c.rings.LocalToken] = true
		}
		for _, h := range w.hosts {
			if g := h.e.Snapshot().Groups; len(g) != 1 || len(g[0].RMBs) != 2 || g[0].PeerRMBs != 2 || g[0].Conns != 40 {
				t.Errorf("%s: %+v", h.name, g)
			}
		}
		w.finish()
	})
}

// All at once: one first contact, the others wait for it; the second RMB is announced once on each side.
func TestManyProposalsAtOnce(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		for range 40 {
			w.dial(w.a(), w.b())
		}
		w.settle()
		for i := 0; i < len(w.ends); i += 2 {
			w.mustBeSMC(w.ends[i], w.ends[i+1])
		}
		count := map[string]int{}
		for _, m := range w.trace {
			count[m]++
		}
		if w.fabric != nil && (count["B CONFIRM LINK"] != 1 || count["B CONFIRM RKEY"] != 1 || count["A CONFIRM RKEY"] != 1) || count["B ACCEPT F"] != 1 {
			t.Errorf("%v", count)
		}
		w.finish()
	})
}

// Roles reversed are another link group (RFC 7609 §2.2): simultaneous first contacts from both sides do not meet.
func TestSimultaneousFirstContactsOfBothSides(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		c1, s1 := w.dial(w.a(), w.b())
		c2, s2 := w.dial(w.b(), w.a())
		w.settle()
		w.mustBeSMC(c1, s1)
		w.mustBeSMC(c2, s2)
		for _, h := range w.hosts {
			g := h.e.Snapshot().Groups
			if len(g) != 2 || g[0].Role == g[1].Role {
				t.Errorf("%s: %+v", h.name, g)
			}
		}
		w.finish()
	})
}

// Two processes of one host have its RNIC in common: their peer IDs tell them apart, and each has a link group of its own
// (RFC 7609 §2.2).
func TestProcessesOfOneHost(t *testing.T) {
	w := newWorld(t, false)
	other := w.host("C", func(c *Config) { c.Devices = []verbs.Device{w.a().dev} })
	own := other.dev
	other.dev = w.a().dev
	for range 2 {
		w.established(w.a(), w.b())
		w.established(other, w.b())
	}
	g := w.b().e.Snapshot().Groups
	if len(g) != 2 || g[0].PeerID == g[1].PeerID || g[0].PeerGID != g[1].PeerGID || g[0].Conns != 2 || g[1].Conns != 2 {
		t.Errorf("%+v", g)
	}
	other.dev, w.hosts = own, []*host{other, w.a(), w.b()} // whoever borrows the RNIC leaves first
	w.finish()
}

// A process that connects to its own listener has both roles in one engine.
func TestConnectionToOneself(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		for range 40 {
			w.established(w.a(), w.a())
		}
		if g := w.a().e.Snapshot().Groups; len(g) != 2 {
			t.Errorf("%+v", g)
		}
		w.finish()
	})
}

// If the first contact fails, one of those that waited makes the next attempt.
func TestQueuedProposalTakesOver(t *testing.T) {
	w := newWorld(t, false)
	w.clc = func(from *end, b []byte) []byte {
		if from == w.ends[0] && describe(b) == "CONFIRM F" {
			return clc.Decline{Version: smc.V1, Diagnosis: clc.DeclineMemory}.Append(nil)
		}
		return b
	}
	c1, s1 := w.dial(w.a(), w.b())
	c2, s2 := w.dial(w.a(), w.b())
	c3, s3 := w.dial(w.a(), w.b())
	// Only the server is told: the client has to be cut off in the same way.
	w.settle()
	if s1.outcome() != "fallback" {
		t.Fatalf("%s", s1.outcome())
	}
	w.mustBeSMC(c2, s2)
	w.mustBeSMC(c3, s3)
	c1.eof = true
	w.finish()
}

// A first contact that gets nowhere must not take the others with it into the timeout of their clients.
func TestQueuedProposalIsDeclinedInTime(t *testing.T) {
	w := newWorld(t, false)
	w.clc = func(from *end, b []byte) []byte {
		if from == w.ends[0] && describe(b) == "CONFIRM F" {
			return nil
		}
		return b
	}
	w.dial(w.a(), w.b())
	c2, s2 := w.dial(w.a(), w.b())
	w.settle()
	if s2.c.State() != fsm.Queued {
		t.Fatal(s2.c.State())
	}
	w.advance(4 * time.Second)
	if c2.outcome() != "fallback" || s2.outcome() != "fallback" || s2.fallback.Remote || c2.fallback.Code != clc.DeclineConfirmLink {
		t.Errorf("%v, %v", c2.fallback, s2.fallback)
	}
	w.advance(10 * time.Second)
	w.finish()
}

// 255 RMBs are the limit of a link group (RFC 7609 §2.1); then the server makes a parallel one (§3.5.3).
func TestFullLinkGroupGetsAParallelOne(t *testing.T) {
	w := newWorld(t, false, func(c *Config) { c.Elements = 1 })
	for i := range maxRMBs + 2 {
		w.trace = nil
		w.established(w.a(), w.b())
		if first := slices.Contains(w.trace, "B ACCEPT F"); first != (i == 0 || i == maxRMBs) {
			t.Fatalf("connection %d: %q", i, w.trace)
		}
	}
	w.finish()
}

// Whatever goes wrong on one side, the reason reaches both.
func TestLackOfMemoryIsDeclined(t *testing.T) {
	for _, c := range []struct {
		name   string
		break_ func(*world)
		client bool // whose memory it is
	}{
		{"server's limit", func(w *world) { w.b().limit = MinRMBESize - 1 }, false},
		{"client's limit", func(w *world) { w.a().limit = MinRMBESize - 1 }, true},
		{"server's RMB", func(w *world) { w.b().fake.FailMemory = true }, false},
		{"client's RMB", func(w *world) { w.a().fake.FailMemory = true }, true},
		{"server's mapping", func(w *world) { w.b().fake.FailMap = true }, false},
		{"client's mapping", func(w *world) { w.a().fake.FailMap = true }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, false)
			c.break_(w)
			a, b := w.dial(w.a(), w.b())
			w.settle()
			if a.outcome() != "fallback" || b.outcome() != "fallback" || a.fallback.Code != clc.DeclineMemory || b.fallback.Code != clc.DeclineMemory ||
				a.fallback.Remote == c.client || b.fallback.Remote != c.client {
				t.Errorf("client %s %v, server %s %v", a.outcome(), a.fallback, b.outcome(), b.fallback)
			}
			w.finish()
		})
	}
}

func TestLimitOnSubsequentContact(t *testing.T) {
	for _, client := range []bool{true, false} {
		w := newWorld(t, false)
		w.established(w.a(), w.b())
		h := w.b()
		if client {
			h = w.a()
		}
		h.limit = MinRMBESize
		a, b := w.dial(w.a(), w.b())
		w.settle()
		if a.outcome() != "fallback" || b.outcome() != "fallback" || a.fallback.Code != clc.DeclineMemory || a.fallback.Remote == client {
			t.Errorf("client %s %v, server %s %v", a.outcome(), a.fallback, b.outcome(), b.fallback)
		}
		w.mustBeSMC(w.ends[0], w.ends[1])
		h.limit = 0
		w.established(w.a(), w.b())
		w.finish()
	}
}

// The peer cannot map our new RMB: CONFIRM RKEY is answered in the negative.
func TestNewRMBThatThePeerCannotMap(t *testing.T) {
	for _, client := range []bool{true, false} {
		w := newWorld(t, false, func(c *Config) { c.Elements = 2 })
		w.established(w.a(), w.b())
		w.established(w.a(), w.b())
		mapper := w.b()
		if !client {
			mapper = w.a()
		}
		mapper.fake.FailMap = true
		a, b := w.dial(w.a(), w.b())
		w.settle()
		if a.outcome() != "fallback" || b.outcome() != "fallback" || a.fallback.Code != clc.DeclineRMBRegister || a.fallback.Remote == client {
			t.Errorf("client %s %v, server %s %v", a.outcome(), a.fallback, b.outcome(), b.fallback)
		}
		mapper.fake.FailMap = false
		w.established(w.a(), w.b())
		w.finish()
	}
}

// The export of the client's RMB comes after the Confirm: the server waits.
func TestRMBThatComesLate(t *testing.T) {
	w := newWorld(t, false)
	var held bool
	w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
		if held && e.Op == verbs.OpExported && e.From[0] == 'A' {
			return simfab.Hold
		}
		return w.observe(e)
	}
	held = true
	a, b := w.dial(w.a(), w.b())
	for range 50 {
		w.a().e.Poll(w.now)
		w.b().e.Poll(w.now)
		a.deliver()
		b.deliver()
	}
	if b.c.State() != fsm.AwaitPeerRMB || a.c.State() != fsm.AwaitConfirmLink {
		t.Fatalf("%s, %s", a.c.State(), b.c.State())
	}
	held = false
	w.settle()
	w.mustBeSMC(a, b)
	w.finish()
}

// Bytes on the wire have the shape of what Linux sends: everything but the values that differ from peer to peer.
func TestMessagesHaveTheShapeOfLinux(t *testing.T) {
	sent := map[string][]byte{}
	w := newWorld(t, false, func(c *Config) { c.Elements = 1 })
	w.clc = func(from *end, b []byte) []byte { sent[from.h.name+" "+describe(b)] = b; return b }
	w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
		w.observe(e)
		if e.Msg != nil {
			sent[w.trace[len(w.trace)-1]] = e.Msg
		}
		return simfab.Deliver
	}
	w.established(w.a(), w.b())
	w.established(w.a(), w.b())
	w.b().limit = 1
	w.dial(w.a(), w.b())
	w.settle()
	w.b().limit = 0
	w.finish()
	endpoint := [][2]int{{8, 45}, {46, 51}, {52, 60}, {61, 64}} // all but the RMBE index
	confirm := [][2]int{{4, 29}, {30, 34}, {34, 35}}            // all but the link number; Linux takes two links
	for _, c := range []struct {
		msg, golden string
		vary        [][2]int
	}{
		{"B ACCEPT F", "clc-accept-b7_18-len68-from_A", endpoint},
		{"A CONFIRM F", "clc-confirm-b7_18-len68-from_B", endpoint},
		{"B ACCEPT", "clc-accept-b7_10-len68-from_A", endpoint},
		{"A CONFIRM", "clc-confirm-b7_10-len68-from_B", endpoint},
		{"B DECLINE", "clc-decline-b7_10-len28-diag_03030000-from_B", [][2]int{{8, 16}, {16, 20}}},
		{"B CONFIRM LINK", "llc-v1-confirm-link-req-flags_03-from_A", confirm},
		{"A CONFIRM LINK rsp", "llc-v1-confirm-link-rsp-flags_83-from_B", confirm},
		{"B CONFIRM RKEY", "llc-v1-confirm-rkey-req-from_A", [][2]int{{5, 17}}},
		{"B CONFIRM RKEY rsp", "llc-v1-confirm-rkey-rsp-from_A", [][2]int{{5, 17}}},
		{"B DELETE LINK", "llc-v1-delete-link-req-flags_60-reason_00020000-from_A", [][2]int{{5, 9}}},
	} {
		mustBeLinux(t, c.msg, sent[c.msg], c.golden, c.vary)
	}
}

func TestHandlerMayCloseAndConnectFromWithin(t *testing.T) {
	bothProviders(t, func(t *testing.T, w *world) {
		c, s := w.dial(w.a(), w.b())
		var again *end
		c.onEnd = func() {
			again, _ = w.dial(w.a(), w.b())
			c.c.Close(w.now)
		}
		s.onEnd = func() { s.c.Close(w.now) }
		w.settle()
		w.mustBeSMC(again, again.peer)
		w.finish()
	})
}

func TestShutdownDeclinesAndDeletes(t *testing.T) {
	w := newWorld(t, false)
	w.established(w.a(), w.b())
	a, b := w.dial(w.a(), w.b())
	w.b().e.Shutdown(w.now)
	w.settle()
	if a.outcome() != "fallback" || b.outcome() != "fallback" || a.fallback.Code != clc.DeclineInternal {
		t.Errorf("%v %v", a.fallback, b.fallback)
	}
	// As client and as server the ended engine declines, in place of its first message.
	for _, d := range [][2]*host{{w.a(), w.b()}, {w.b(), w.a()}} {
		x, y := w.dial(d[0], d[1])
		w.settle()
		if x.outcome() != "fallback" || y.outcome() != "fallback" {
			t.Errorf("%s, %s", x.outcome(), y.outcome())
		}
	}
	w.mustBeSMC(w.ends[0], w.ends[1])
	if s := w.a().e.Snapshot(); s.Groups[0].State != "DOWN" {
		t.Errorf("the peer was not told: %+v", s.Groups)
	}
	w.finish()
}

func TestConfigIsChecked(t *testing.T) {
	f := simfab.New(1)
	good := Config{PeerID: smc.PeerID{1}, Devices: []verbs.Device{f.Device([16]byte{1}, verbs.CapMapped)}}
	if e, err := New(good); err != nil || e.cfg.RMBESize != DefaultRMBESize || e.cfg.Elements != DefaultElements || e.cfg.Timeouts != DefaultTimeouts {
		t.Errorf("%v", err)
	}
	for name, edit := range map[string]func(*Config){
		"small": func(c *Config) { c.RMBESize = 32 << 10 }, "odd": func(c *Config) { c.RMBESize = 100 << 10 },
		"huge": func(c *Config) { c.RMBESize = 1 << 30 }, "elements": func(c *Config) { c.Elements = 256 },
		"peer ID": func(c *Config) { c.PeerID = smc.PeerID{} }, "device": func(c *Config) { c.Devices = nil },
	} {
		c := good
		if edit(&c); c.RMBESize >= 0 {
			if _, err := New(c); err == nil {
				t.Errorf("%s was taken", name)
			}
		}
	}
}

func TestNeed(t *testing.T) {
	p := clc.Proposal{Version: smc.V1}.Append(smc.Linux, nil)
	for i := range clc.HeaderSize {
		if n, err := Need(p[:i]); n != clc.HeaderSize || err != nil {
			t.Errorf("%d bytes: %d, %v", i, n, err)
		}
	}
	if n, err := Need(append(p, "data"...)); n != len(p) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := Need([]byte("HTTP")); err == nil {
		t.Error("application data was taken for CLC")
	}
}

// FuzzCLC throws bytes at a negotiation in each of its states.
func FuzzCLC(f *testing.F) {
	f.Add(uint8(0), clc.Proposal{Version: smc.V1}.Append(smc.Linux, nil))
	f.Add(uint8(1), clc.Accept{Version: smc.V1, FirstContact: true}.Append(nil))
	f.Add(uint8(2), clc.Confirm{Version: smc.V1, FirstContact: true}.Append(smc.Linux, nil))
	f.Add(uint8(9), clc.Decline{Version: smc.V1, OutOfSync: true}.Append(nil))
	f.Fuzz(func(t *testing.T, at uint8, b []byte) {
		w := newWorld(t, false, func(c *Config) { c.Elements = 2 })
		w.established(w.a(), w.b())
		w.established(w.a(), w.b())
		c, s := w.dial(w.a(), w.b())
		for range at % 16 {
			w.a().e.Poll(w.now)
			w.b().e.Poll(w.now)
			s.deliver()
			c.deliver()
		}
		for _, x := range []*end{c, s} {
			x.c.CLC(b, w.now)
		}
		w.advance(30 * time.Second)
		w.finish()
	})
}

// RFC 7609 §2.1: every element of every RMB that a link group may have, 255 of 255; who comes then is in a parallel one.
func TestEveryElementOfEveryRMB(t *testing.T) {
	const elements = 255 / stride
	mustSimulate(t, "full", simOptions{elements: [2]int{elements, elements}}, func(s *sim) {
		for range maxRMBs {
			s.ends = nil
			for range elements {
				s.dial(s.hosts[0], s.hosts[1], [2]int{})
			}
			for _, x := range s.ends {
				x.stay = true
			}
			if !s.run(time.Second, func() bool {
				return !slices.ContainsFunc(s.ends, func(x *simEnd) bool { return x.rings == nil || int(x.rings.Index) > elements })
			}) {
				panic(simPanic("not everybody has an element"))
			}
		}
		for i, h := range s.hosts {
			g := h.group()
			if len(h.e.groups) != 1 || len(g.rmbs) != maxRMBs || len(g.remotes) != maxRMBs || len(g.conns) != maxRMBs*elements {
				s.failf("%s: %d groups, %d and %d RMBs, %d connections", h.name, len(h.e.groups), len(g.rmbs), len(g.remotes), len(g.conns))
			}
			for _, r := range g.rmbs {
				if r.inUse != elements {
					s.failf("%s: %d connections in RMB %d", s.hosts[i].name, r.inUse, r.id)
				}
			}
		}
		s.staying(1, 100)
		for _, h := range s.hosts {
			if n := len(h.e.groups); n != 2 {
				s.failf("%s: %d link groups", h.name, n)
			}
			s.kill(h) // to free all elements one by one would write to gigabytes that nobody has touched
		}
	})
}

// RFC 7609 §3.5.1.2: devices that reach one LAN only want both addresses in one network.
func TestServerInAnotherNetworkDeclines(t *testing.T) {
	for _, c := range []struct{ client, server, want string }{
		{"10.0.0.1/24", "10.0.0.2/24", "smc"},
		{"10.0.0.1/24", "10.0.1.2/24", "fallback"},
		{"10.0.0.1/24", "10.0.0.2/16", "fallback"},
		{"fd00::1/64", "fd00::2/64", "smc"},
		{"fd00::1/64", "fd00:0:0:1::2/64", "fallback"},
		{"fd00::1/64", "10.0.0.2/24", "fallback"},
	} {
		mustSimulate(t, c.client+" to "+c.server, simOptions{}, func(s *sim) {
			s.hosts[0].net, s.hosts[1].net = LAN{Subnet: netip.MustParsePrefix(c.client)}, LAN{Subnet: netip.MustParsePrefix(c.server)}
			client, server := s.dial(s.hosts[0], s.hosts[1], [2]int{})
			client.stay, server.stay = true, true
			s.run(patience, nil)
			declined := server.h.e.count.Declined[clc.DeclinePrefix]
			if client.outcome() != c.want || server.outcome() != c.want || (declined == 1) != (c.want == "fallback") {
				s.failf("client %s, server %s, %d declined", client.outcome(), server.outcome(), declined)
			}
			client.close()
			server.close()
		})
	}
}

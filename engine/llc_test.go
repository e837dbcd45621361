package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"libsmcr/abi/llc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
	"libsmcr/verbs/simfab"
)

// LLC exchanges over RNICs that map nothing, message by message: host A is the client, B the server.

// overheard is an LLC message on its way.
type overheard struct {
	from *simHost
	link *Link
	m    llc.Message
	text string
	e    simfab.Event
}

// change has another message arrive.
func (o overheard) change(m llc.Message) { copy(o.e.Msg, m.Append(o.link.g.dialect, nil)) }

// overhear writes down all LLC messages and asks fn, if there is one, what becomes of each.
func (s *sim) overhear(fn func(overheard) (simfab.Verdict, time.Duration)) *[]string {
	var lines []string
	s.fab.Filter = func(e simfab.Event) simfab.Verdict {
		v := s.filter(e)
		from, _ := s.device(e.From)
		to, _ := s.device(e.To)
		m, err := llc.Decode(s.dialect(from, to), e.Msg)
		if v != simfab.Deliver || e.Op != verbs.OpSend || err != nil {
			return v
		}
		o := overheard{from: from, m: m, e: e, text: from.name + " " + brief(m)}
		for _, p := range o.from.e.ports {
			if l := p.links[e.Src]; l != nil && p.attr.GID == e.From {
				o.link = l
			}
		}
		lines = append(lines, o.text)
		if fn == nil {
			return v
		}
		v, late := fn(o)
		if late > 0 {
			s.fab.Latency = func(simfab.Event) (there, back time.Duration) {
				s.fab.Latency = s.latency
				return late, lan
			}
		}
		return v
	}
	return &lines
}

// brief is a message in a few words.
func brief(m llc.Message) string {
	s := m.Head().Type.String()
	switch m := m.(type) {
	case *llc.ConfirmLink:
		s += fmt.Sprintf(" %d", m.Link)
	case *llc.AddLink:
		s += fmt.Sprintf(" %d", m.Link)
		if m.Reject {
			s += fmt.Sprintf(" rejected (%d)", m.Reason)
		}
	case *llc.AddLinkCont:
		s += fmt.Sprintf(" %d left %d", m.Link, m.Remaining)
	case *llc.DeleteLink:
		s += fmt.Sprintf(" %d", m.Link)
		if m.All {
			s += " all"
		}
		if m.Orderly {
			s += " orderly"
		}
		if m.Reason != 0 {
			s += fmt.Sprintf(" (%s)", m.Reason)
		}
	case *llc.ConfirmRKey:
		s += fmt.Sprintf(" others %d", m.NumOthers)
		if m.Negative {
			s += " negative"
		}
		if m.Retry {
			s += " retry"
		}
	case *llc.ConfirmRKeyCont:
		s += fmt.Sprintf(" left %d", m.Remaining)
	case *llc.DeleteRKey:
		s += fmt.Sprintf(" %d", m.Count)
		if m.Negative {
			s += fmt.Sprintf(" negative %08b", m.Errors)
		}
	}
	if m.Head().Reply {
		s += " rsp"
	}
	return s
}

func (s *sim) mustHear(got *[]string, want ...string) {
	if !slices.Equal(*got, want) {
		s.failf("messages:\n\t%s\nwant:\n\t%s", strings.Join(*got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// heard reports whether all of want were sent, in that order, with others in between.
func heard(got *[]string, want ...string) bool {
	for _, m := range *got {
		if len(want) > 0 && m == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

func (h *simHost) group() *LinkGroup { return h.e.sortedGroups()[0] }

// tell has a host send an LLC message over a link, whatever its engine thinks of that.
func (h *simHost) say(l *Link, m llc.Message) {
	defer h.e.enter(h.s.now())()
	l.send(m, nil)
}

func (s *sim) wantKind(a, b string) {
	for i, want := range []string{a, b} {
		if g := s.hosts[i].e.Snapshot().Groups[0]; g.Type != want {
			s.failf("%s: %s, want %s", s.hosts[i].name, g.Type, want)
		}
	}
}

func (s *sim) wantLinks(want ...smc.LinkNum) {
	for _, h := range s.hosts[:2] {
		var got []smc.LinkNum
		for _, l := range h.group().links {
			if l.state == fsm.LinkActive {
				got = append(got, l.num)
			}
		}
		if !slices.Equal(got, want) {
			s.failf("%s: links %d, want %d", h.name, got, want)
		}
	}
}

// inStep: each side knows the RTokens of all RMBs of the other one on all links (RFC 7609 §3.5.5.2).
func (s *sim) inStep() {
	for i, h := range s.hosts[:2] {
		g, peer := h.group(), s.hosts[1-i].group()
		if len(g.remotes) != len(peer.rmbs) {
			s.failf("%s knows %d RMBs of %d", h.name, len(g.remotes), len(peer.rmbs))
		}
		for _, l := range g.links {
			x := peer.link(l.num)
			if x == nil || l.peer.QPN != x.qp.QPN() || l.peer.GID != x.attr.GID {
				s.failf("%s: link %d leads elsewhere", h.name, l.num)
				continue
			}
			for _, r := range peer.rmbs {
				if y := l.remote(r.token(x)); y == nil || y != g.links[0].remote(r.token(peer.links[0])) {
					s.failf("%s does not know RMB %d of its peer on link %d", h.name, r.id, l.num)
				}
			}
		}
	}
}

// RFC 7609 §3.5.1.6, Figure 9: no data before the second link, in both dialects.
func TestSecondLinkBeforeDataFlows(t *testing.T) {
	for _, rfc := range []bool{false, true} {
		mustSimulate(t, fmt.Sprintf("rfc %t", rfc), simOptions{rnics: [2]int{2, 2}, rfc: rfc}, func(s *sim) {
			early := false
			s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
				early = early || !st.llc && s.links() < 2
				return simfab.Deliver, 0
			}
			got := s.overhear(nil)
			s.staying(1, 1000)
			s.mustHear(got, "B CONFIRM LINK 1", "A CONFIRM LINK 1 rsp", "B ADD LINK 2", "A ADD LINK 2 rsp",
				"B ADD LINK CONT 2 left 1", "A ADD LINK CONT 2 left 1 rsp", "B CONFIRM LINK 2", "A CONFIRM LINK 2 rsp")
			if early {
				s.failf("data before the second link")
			}
			s.wantKind("SYM", "SYM")
			s.inStep()
		})
	}
}

// RFC 7609 §2.2.1, §2.2.2: symmetric links, one asymmetric link, no parallel one; at most eight.
func TestLinksFollowTheRNICs(t *testing.T) {
	for _, c := range []struct {
		rnics  [2]int
		a, b   string
		links  []smc.LinkNum
		refuse string
	}{
		{[2]int{1, 1}, "SINGLE", "SINGLE", []smc.LinkNum{1}, "A ADD LINK 2 rejected (1) rsp"},
		{[2]int{2, 1}, "ASYM_PEER", "ASYM_LOCAL", []smc.LinkNum{1, 2}, ""},
		{[2]int{1, 2}, "ASYM_LOCAL", "ASYM_PEER", []smc.LinkNum{1, 2}, ""},
		{[2]int{2, 2}, "SYM", "SYM", []smc.LinkNum{1, 2}, ""},
		{[2]int{2, 3}, "SYM", "SYM", []smc.LinkNum{1, 2}, "A ADD LINK 3 rejected (1) rsp"},
		{[2]int{3, 2}, "SYM", "SYM", []smc.LinkNum{1, 2}, ""},
		{[2]int{4, 4}, "SYM", "SYM", []smc.LinkNum{1, 2, 3, 4}, ""},
		{[2]int{9, 9}, "SYM", "SYM", []smc.LinkNum{1, 2, 3, 4, 5, 6, 7, 8}, ""},
	} {
		mustSimulate(t, fmt.Sprint(c.rnics), simOptions{rnics: c.rnics}, func(s *sim) {
			got := s.overhear(nil)
			s.staying(1, 1000)
			s.wantKind(c.a, c.b)
			s.wantLinks(c.links...)
			s.inStep()
			if c.refuse != "" && (*got)[len(*got)-1] != c.refuse {
				s.failf("%q", *got)
			}
		})
	}
}

// RFC 7609 §2.2.2: 2 to 8 links, the smaller count; a client that tells none accepts the server's.
func TestLinkLimitIsNegotiated(t *testing.T) {
	for _, c := range []struct {
		client, server uint8
		want           int
	}{{8, 2, 2}, {2, 8, 2}, {5, 3, 3}, {0, 4, 4}, {8, 8, 8}} {
		mustSimulate(t, fmt.Sprint(c), simOptions{rnics: [2]int{8, 8}}, func(s *sim) {
			s.overhear(func(o overheard) (simfab.Verdict, time.Duration) {
				if m, ok := o.m.(*llc.ConfirmLink); ok && m.Link == 1 {
					if m.MaxLinks = c.server; m.Reply {
						m.MaxLinks = c.client
					} else {
						s.hosts[1].group().max = c.server
					}
					o.change(m)
				}
				return simfab.Deliver, 0
			})
			s.staying(1, 100)
			if s.links() != c.want || s.hosts[1].group().max != uint8(c.want) {
				s.failf("%d links of at most %d", s.links(), s.hosts[1].group().max)
			}
		})
	}
}

// RFC 7609 §2.2.2: no link number comes again before all were used.
func TestLinkNumbersAreUsedUp(t *testing.T) {
	mustSimulate(t, "numbers", simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
		s.staying(1, 100)
		seen := map[smc.LinkNum]int{1: 1, 2: 1}
		for i := range 300 {
			g := s.hosts[1].group()
			g.links[1].breakQP()
			s.run(2*time.Second, nil)
			s.run(longest, func() bool { return s.links() == 2 })
			n := s.hosts[1].group().links[1].num
			if seen[n]++; n == 0 || i < 253 && seen[n] > 1 || n == s.hosts[1].group().links[0].num {
				s.failf("link %d again, after %d", n, i)
				return
			}
		}
		s.inStep()
	})
}

// RFC 7609 §2.2.1, Figure 6; §3.5.5.1.2: a symmetric link takes the place of the asymmetric one when the RNIC that was
// missing comes, whichever side it belongs to.
func TestSymmetricReplacesAsymmetric(t *testing.T) {
	for i, kinds := range [][2]string{{"ASYM_LOCAL", "ASYM_PEER"}, {"ASYM_PEER", "ASYM_LOCAL"}} {
		mustSimulate(t, kinds[0], simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
			late := s.hosts[i].devs[1]
			late.SetDown(true)
			s.staying(1, 100)
			s.wantKind(kinds[0], kinds[1])
			got := s.overhear(nil)
			late.SetDown(false)
			s.more(5000)
			s.run(time.Second, nil)
			want := []string{
				"B ADD LINK 3", "A ADD LINK 3 rsp", "B ADD LINK CONT 3 left 1", "A ADD LINK CONT 3 left 1 rsp",
				"B CONFIRM LINK 3", "A CONFIRM LINK 3 rsp",
				"B DELETE LINK 2 orderly (asymmetric link not needed)", "A DELETE LINK 2 orderly rsp",
			}
			if i == 0 {
				want = append([]string{"A ADD LINK 0"}, want...)
			}
			s.mustHear(got, want...)
			s.wantKind("SYM", "SYM")
			s.wantLinks(1, 3)
			s.inStep()
		})
	}
}

// RFC 7609 §3.5.5.2.3, Figure 15, §A.3.3: three RMBs here, four there.
func TestNewLinkOfAGroupWithManyRMBs(t *testing.T) {
	for _, c := range []struct {
		elements [2]int
		want     []string
	}{
		{[2]int{3, 2}, []string{"B ADD LINK CONT 3 left 4", "A ADD LINK CONT 3 left 3 rsp", "B ADD LINK CONT 3 left 2", "A ADD LINK CONT 3 left 1 rsp"}},
		{[2]int{2, 7}, []string{"B ADD LINK CONT 3 left 1", "A ADD LINK CONT 3 left 4 rsp", "B ADD LINK CONT 3 left 0", "A ADD LINK CONT 3 left 2 rsp"}},
		{[2]int{7, 1}, []string{
			"B ADD LINK CONT 3 left 7", "A ADD LINK CONT 3 left 1 rsp", "B ADD LINK CONT 3 left 5", "A ADD LINK CONT 3 left 0 rsp",
			"B ADD LINK CONT 3 left 3", "A ADD LINK CONT 3 left 0 rsp", "B ADD LINK CONT 3 left 1", "A ADD LINK CONT 3 left 0 rsp",
		}},
	} {
		for _, rfc := range []bool{false, true} {
			mustSimulate(t, fmt.Sprintf("%v, rfc %t", c.elements, rfc), simOptions{rnics: [2]int{2, 2}, elements: c.elements, rfc: rfc}, func(s *sim) {
				a, b := s.hosts[0].devs[1], s.hosts[1].devs[1]
				s.setDown(true, a, b)
				s.staying(7, 100)
				s.mustHaveLinks(1)
				got := s.overhear(nil)
				s.setDown(false, b, a)
				s.run(time.Second, nil)
				want := append([]string{"A ADD LINK 0", "B ADD LINK 3", "A ADD LINK 3 rsp"}, c.want...)
				want = append(want, "B CONFIRM LINK 3", "A CONFIRM LINK 3 rsp")
				slices.Sort((*got)[:2]) // both invite each other
				s.mustHear(got, want...)
				s.inStep()
				s.more(5000)
			})
		}
	}
}

// RFC 7609 §3.5.5.2.1, Figure 12, §A.3.5, §A.3.6: eight links, a CONFIRM RKEY and two continuations, of both sides.
func TestNewRMBIsAnnouncedOnAllLinks(t *testing.T) {
	for links, want := range map[int][]string{
		1: {"CONFIRM RKEY others 0", "CONFIRM RKEY others 0 rsp"},
		3: {"CONFIRM RKEY others 2", "CONFIRM RKEY others 2 rsp"},
		4: {"CONFIRM RKEY others 3", "CONFIRM RKEY others 3 rsp", "CONFIRM RKEY CONT left 1", "CONFIRM RKEY CONT left 1 rsp"},
		8: {
			"CONFIRM RKEY others 7", "CONFIRM RKEY others 7 rsp", "CONFIRM RKEY CONT left 5", "CONFIRM RKEY CONT left 5 rsp",
			"CONFIRM RKEY CONT left 2", "CONFIRM RKEY CONT left 2 rsp",
		},
	} {
		mustSimulate(t, fmt.Sprint(links), simOptions{rnics: [2]int{links, links}, elements: [2]int{1, 1}}, func(s *sim) {
			s.staying(1, 100)
			s.mustHaveLinks(links)
			got := s.overhear(nil)
			s.staying(1, 100)
			var all []string
			for _, pair := range []string{"BA", "AB"} {
				for i, m := range want {
					all = append(all, pair[i%2:][:1]+" "+m)
				}
			}
			s.mustHear(got, all...)
			s.inStep()
			for _, x := range s.ends {
				for _, l := range x.c.group.links {
					if x.c.remote.tokens[l].RKey == 0 {
						s.failf("connection %d cannot go to link %d", x.id, l.num)
					}
				}
			}
		})
	}
}

// RFC 7609 §3.5.5.2.2, Figure 14, §A.3.7: RMBs that were idle for a while go, eight at a time. One stays.
func TestIdleRMBsAreDeleted(t *testing.T) {
	mustSimulate(t, "idle", simOptions{rnics: [2]int{2, 2}, elements: [2]int{1, 16}}, func(s *sim) {
		s.staying(12, 100)
		for _, x := range s.ends[2:] {
			x.stay, x.stayed, x.ready = false, false, true
		}
		got := s.overhear(nil)
		s.run(time.Duration(shrinkAfter)-time.Second, nil)
		if heard(got, "A DELETE RKEY 8") {
			s.failf("too early")
		}
		s.run(2*time.Duration(shrinkAfter), nil)
		if !heard(got, "A DELETE RKEY 8", "B DELETE RKEY 8 rsp", "A DELETE RKEY 3", "B DELETE RKEY 3 rsp") || heard(got, "B DELETE RKEY 1") {
			s.failf("%q", *got)
		}
		if g := s.hosts[0].group(); len(g.rmbs) != 1 {
			s.failf("%d RMBs", len(g.rmbs))
		}
		s.inStep()
		s.staying(3, 100)
		s.inStep()
	})
}

// RFC 7609 §A.3.7: the mask says which RKeys were not known.
func TestErrorMaskOfDeleteRKey(t *testing.T) {
	mustSimulate(t, "mask", simOptions{rnics: [2]int{2, 2}, elements: [2]int{1, 16}}, func(s *sim) {
		s.staying(2, 100)
		a := s.hosts[0]
		g := a.group()
		l := g.links[1]
		m := &llc.DeleteRKey{Count: 4, RKeys: [8]smc.RKey{1, g.rmbs[1].token(l).RKey, 2, g.rmbs[0].token(l).RKey}}
		l.staleDeletes = 1
		got := s.overhear(nil)
		a.say(l, m)
		s.run(time.Millisecond, nil)
		s.mustHear(got, "A DELETE RKEY 4", "B DELETE RKEY 4 negative 10100000 rsp")
		for r := range s.hosts[1].group().remotes {
			if !r.gone || len(r.use) != 1 {
				s.failf("%+v", r)
			}
			r.gone = false // it was not meant
		}
	})
}

// RFC 7609 §4.5.3: a link that is silent is tried; one that stays silent has failed, and its connections move.
func TestSilentLinkIsTried(t *testing.T) {
	mustSimulate(t, "silent", simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
		s.staying(2, 100)
		got := s.overhear(nil)
		s.run(DefaultTimeouts.Test+time.Second, nil)
		if !heard(got, "A TEST LINK", "B TEST LINK rsp") || !heard(got, "B TEST LINK", "A TEST LINK rsp") {
			s.failf("%q", *got)
		}
		s.wantLinks(1, 2)
		dead := s.hosts[0].group().links[1]
		s.overhear(func(o overheard) (simfab.Verdict, time.Duration) {
			if o.link == dead {
				return simfab.Drop, 0
			}
			return simfab.Deliver, 0
		})
		s.run(DefaultTimeouts.Test+DefaultTimeouts.LLC+time.Second, nil)
		if dead.state != fsm.LinkDown {
			s.failf("link 2 is %s", dead.state)
		}
		s.more(5000)
	})
}

// Traffic is proof enough.
func TestBusyLinkIsNotTried(t *testing.T) {
	mustSimulate(t, "busy", simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
		s.staying(2, 100)
		got := s.overhear(nil)
		for range 20 {
			s.more(5000)
			s.run(10*time.Second, nil)
		}
		if heard(got, "A TEST LINK") || heard(got, "B TEST LINK") {
			s.failf("%q", *got)
		}
	})
}

// RFC 7609 §3.5.5.1.3, §3.5.5.1.4, Figures 10 and 11: either side, in order or not; no connection is hurt.
func TestLinkIsDeleted(t *testing.T) {
	down := func(i int) func(*sim) { return func(s *sim) { s.hosts[i].devs[1].SetDown(true) } }
	for _, c := range []struct {
		name string
		act  func(*sim)
		want []string
	}{
		{"client's operator", func(s *sim) { s.deleteLink(s.hosts[0]) }, []string{
			"A DELETE LINK 2 orderly (operator)", "B DELETE LINK 2 orderly (operator)", "A DELETE LINK 2 orderly rsp"}},
		{"server's operator", func(s *sim) { s.deleteLink(s.hosts[1]) }, []string{
			"B DELETE LINK 2 orderly (operator)", "A DELETE LINK 2 orderly rsp"}},
		{"client's RNIC", down(0), []string{"A DELETE LINK 2 (lost path)", "B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}},
		{"server's RNIC", down(1), []string{"B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}},
	} {
		mustSimulate(t, c.name, simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
			s.staying(4, 100)
			got := s.overhear(nil)
			c.act(s)
			s.more(5000)
			s.run(100*time.Millisecond, nil)
			if n := len(c.want); len(*got) < n || !slices.Equal((*got)[:n], c.want) {
				s.failf("%q", *got)
			}
			for _, x := range s.ends {
				if l := x.c.link; l == nil || l.state != fsm.LinkActive {
					s.failf("connection %d has no link", x.id)
				}
			}
		})
	}
}

// RFC 7609 §3.5.4: the whole group, asked for by either side: its connections are reset.
func TestLinkGroupIsDeleted(t *testing.T) {
	for i, want := range [][]string{
		{"A DELETE LINK 0 all orderly (operator)", "B DELETE LINK 0 all orderly (operator)"},
		{"B DELETE LINK 0 all orderly (operator)"},
	} {
		mustSimulate(t, want[0], simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
			s.staying(2, 100)
			got := s.overhear(nil)
			h := s.hosts[i]
			if !h.e.DeleteLink(h.group().id, 0, s.now()) || h.e.DeleteLink(h.group().id, 0, s.now()) {
				s.failf("not deleted, or twice")
			}
			s.run(time.Second, nil)
			if !heard(got, want...) {
				s.failf("%q", *got)
			}
			for _, x := range s.ends {
				s.wantErr(x, ErrLinksLost)
			}
			for _, h := range s.hosts {
				if n := h.e.sortedGroups(); len(n) != 0 && n[0].state != groupDown {
					s.failf("%s: %s", h.name, n[0].state)
				}
			}
		})
	}
}

// RFC 7609 §C.8: a second link that failed is tried for again: by the clock, when an RNIC comes, and when the client says
// that it has one.
func TestMissingSecondLinkIsTriedFor(t *testing.T) {
	mustSimulate(t, "clock", simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
		s.fab.Cut(s.hosts[0].devs[1], s.hosts[1].devs[1])
		s.staying(1, 100)
		s.wantLinks(1)
		s.run(firstWait+lastWait/10, nil)
		s.wantLinks(1)
		s.fab.Repair(s.hosts[0].devs[1], s.hosts[1].devs[1])
		s.run(lastWait, func() bool { return s.links() == 2 })
		s.wantKind("SYM", "SYM")
	})
	for i, n := range []string{"client's RNIC", "server's RNIC"} {
		mustSimulate(t, n, simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
			d := s.hosts[i].devs[1]
			s.staying(2, 100)
			for range 3 {
				d.SetDown(true)
				s.more(1000)
				s.run(time.Second, nil)
				d.SetDown(false)
				s.run(time.Second, nil)
				s.wantKind("SYM", "SYM")
				s.inStep()
			}
		})
	}
}

// collide has the exchange that begin begins come to the message that holds, keeps that for a second, and lets the other
// messages that act brings about go their way meanwhile.
func (s *sim) collide(holds string, begin, act func()) *[]string {
	held := false
	got := s.overhear(func(o overheard) (simfab.Verdict, time.Duration) {
		if o.text == holds && !held {
			held = true
			return simfab.Deliver, time.Second
		}
		return simfab.Deliver, 0
	})
	begin()
	s.run(10*time.Millisecond, nil)
	if !held {
		s.failf("%s was not sent: %q", holds, *got)
	}
	act()
	s.run(10*time.Millisecond, nil)
	return got
}

// RFC 7609 §3.5.5.3.1 to §3.5.5.3.3. What collides goes over another link, so that it does not wait in one queue pair.
func TestCollisions(t *testing.T) {
	type world struct {
		*sim
		a, b *simHost
	}
	addLink := func(w world) { w.setDown(false, w.b.devs[2], w.a.devs[2]) }
	deleteLink := func(w world) { w.b.e.DeleteLink(w.b.group().id, 2, w.now()) }
	other := func(h *simHost) *Link { return h.group().links[1] }
	test := func(h func(world) *simHost) func(world) {
		return func(w world) { h(w).say(other(h(w)), &llc.TestLink{UserData: [16]byte{1}}) }
	}
	a, b := func(w world) *simHost { return w.a }, func(w world) *simHost { return w.b }
	invite := func(w world) { w.a.say(other(w.a), &llc.AddLink{MTU: 3}) }
	askDelete := func(w world) {
		w.a.say(other(w.a), &llc.DeleteLink{Link: other(w.a).num, Orderly: true, Reason: llc.ReasonOperator})
	}
	deleteAll := func(h func(world) *simHost) func(world) {
		return func(w world) { w.sim.end(h(w)) }
	}
	newRMB := func(w world) { w.dial(w.a, w.b, [2]int{100, 100}) }
	for _, c := range []struct {
		name     string
		elements [2]int
		holds    string
		begin    func(world)
		act      func(world)
		now      []string // sent while the exchange is held up
		never    string   // not before it is over
		then     []string
		ends     bool // the link group
	}{
		// §3.5.5.3.1
		{"ADD LINK and TEST LINK of the client", [2]int{9, 9}, "A ADD LINK 3 rsp", addLink, test(a), []string{"A TEST LINK", "B TEST LINK rsp"}, "", nil, false},
		{"ADD LINK and TEST LINK of the server", [2]int{9, 9}, "A ADD LINK 3 rsp", addLink, test(b), []string{"B TEST LINK", "A TEST LINK rsp"}, "", nil, false},
		{"ADD LINK and ADD LINK of the client", [2]int{9, 9}, "A ADD LINK 3 rsp", addLink, invite, []string{"A ADD LINK 0"}, "B ADD LINK 4", []string{"A CONFIRM LINK 3 rsp"}, false},
		{"ADD LINK and DELETE LINK of the client", [2]int{9, 9}, "A ADD LINK 3 rsp", addLink, askDelete,
			[]string{"A DELETE LINK 2 orderly (operator)"}, "B DELETE LINK 2 orderly (operator)", []string{"A CONFIRM LINK 3 rsp", "B DELETE LINK 2 orderly (operator)", "A DELETE LINK 2 orderly rsp"}, false},
		{"ADD LINK and DELETE LINK all of the client", [2]int{9, 9}, "A ADD LINK 3 rsp", addLink, deleteAll(a), []string{"A DELETE LINK 0 all orderly (operator)", "B DELETE LINK 0 all orderly (operator)"}, "", nil, true},
		{"ADD LINK and DELETE LINK all of the server", [2]int{9, 9}, "A ADD LINK 3 rsp", addLink, deleteAll(b), []string{"B DELETE LINK 0 all orderly (operator)"}, "", nil, true},
		{"ADD LINK and CONFIRM RKEY of the client", [2]int{1, 9}, "B CONFIRM LINK 3", addLink, func(w world) {
			r, err := w.a.group().newRMB()
			if err != nil {
				panic(simPanic(err.Error()))
			}
			// As if it had crossed the ADD LINK.
			l := other(w.a)
			l.stale[r.token(l)] = true
			w.a.say(l, &llc.ConfirmRKey{Token: r.token(l)})
			w.a.group().announce(r)
		}, []string{"A CONFIRM RKEY others 0", "B CONFIRM RKEY others 0 negative retry rsp"}, "B CONFIRM RKEY others 2 rsp",
			[]string{"A CONFIRM LINK 3 rsp", "A CONFIRM RKEY others 2", "B CONFIRM RKEY others 2 rsp"}, false},
		// Linux announces an RMB with each connection that uses it.
		{"ADD LINK and CONFIRM RKEY of the client for an RMB that is known", [2]int{9, 9}, "B CONFIRM LINK 3", addLink, func(w world) {
			g := w.a.group()
			l, r := g.links[1], g.rmbs[0]
			l.stale[r.token(l)] = true
			w.a.say(l, &llc.ConfirmRKey{Token: r.token(l), NumOthers: 1, Others: [2]llc.LinkRToken{{Link: 1, Token: r.token(g.links[0])}}})
		}, []string{"A CONFIRM RKEY others 1", "B CONFIRM RKEY others 1 rsp"}, "", nil, false},
		// §3.5.5.3.2
		{"DELETE LINK and TEST LINK of the client", [2]int{9, 9}, "A DELETE LINK 2 orderly rsp", deleteLink, test(a), []string{"A TEST LINK", "B TEST LINK rsp"}, "", nil, false},
		{"DELETE LINK and ADD LINK of the client", [2]int{9, 9}, "A DELETE LINK 2 orderly rsp", deleteLink, func(w world) {
			w.setDown(false, w.a.devs[2], w.b.devs[2])
			invite(w)
		}, []string{"A ADD LINK 0"}, "B ADD LINK 3", []string{"B ADD LINK 3"}, false},
		{"DELETE LINK and DELETE LINK all of the client", [2]int{9, 9}, "A DELETE LINK 2 orderly rsp", deleteLink, deleteAll(a), nil, "", []string{"B DELETE LINK 0 all orderly (operator)"}, true},
		{"DELETE LINK and DELETE LINK all of the server", [2]int{9, 9}, "A DELETE LINK 2 orderly rsp", deleteLink, deleteAll(b), []string{"B DELETE LINK 0 all orderly (operator)"}, "", nil, true},
		{"DELETE LINK and DELETE LINK of the client", [2]int{9, 9}, "B DELETE LINK 2 orderly (operator)", deleteLink, func(w world) {
			w.a.say(w.a.group().links[2], &llc.DeleteLink{Link: 3, Orderly: true, Reason: llc.ReasonOperator})
		}, []string{"A DELETE LINK 3 orderly (operator)"}, "B DELETE LINK 3 orderly (operator)", []string{"A DELETE LINK 2 orderly rsp", "B DELETE LINK 3 orderly (operator)"}, false},
		{"DELETE LINK and DELETE LINK of the client for the same", [2]int{9, 9}, "B DELETE LINK 2 orderly (operator)", deleteLink, askDelete,
			[]string{"A DELETE LINK 2 orderly (operator)"}, "B DELETE LINK 2 rsp", nil, false},
		{"DELETE LINK and CONFIRM RKEY of the client", [2]int{1, 9}, "B DELETE LINK 2 orderly (operator)", deleteLink, newRMB,
			[]string{"A CONFIRM RKEY others 2", "B CONFIRM RKEY others 2 negative retry rsp"}, "", []string{"A DELETE LINK 2 orderly rsp", "A CONFIRM RKEY others 1", "B CONFIRM RKEY others 1 rsp"}, false},
		// §3.5.5.3.3
		{"CONFIRM RKEY and TEST LINK of the client", [2]int{9, 1}, "A CONFIRM RKEY others 1 rsp", newRMB, test(a), []string{"A TEST LINK", "B TEST LINK rsp"}, "", nil, false},
		{"CONFIRM RKEY and ADD LINK of the client", [2]int{9, 1}, "A CONFIRM RKEY others 1 rsp", newRMB, func(w world) {
			w.setDown(false, w.a.devs[2], w.b.devs[2])
		}, []string{"A ADD LINK 0"}, "B ADD LINK 3", []string{"B ADD LINK 3", "A CONFIRM LINK 3 rsp"}, false},
		{"CONFIRM RKEY of the client and ADD LINK", [2]int{1, 9}, "A CONFIRM RKEY others 1", newRMB, addLink,
			[]string{"B ADD LINK 3"}, "", []string{"A CONFIRM LINK 3 rsp", "A CONFIRM RKEY others 2", "B CONFIRM RKEY others 2 rsp"}, false},
		{"CONFIRM RKEY and DELETE LINK of the client", [2]int{9, 1}, "A CONFIRM RKEY others 1 rsp", newRMB, askDelete,
			[]string{"A DELETE LINK 2 orderly (operator)"}, "B DELETE LINK 2 orderly (operator)", []string{"B DELETE LINK 2 orderly (operator)", "A DELETE LINK 2 orderly rsp"}, false},
		{"CONFIRM RKEY of the client and DELETE LINK", [2]int{1, 9}, "A CONFIRM RKEY others 1", newRMB, deleteLink,
			[]string{"B DELETE LINK 2 orderly (operator)", "A DELETE LINK 2 orderly rsp"}, "", []string{"B CONFIRM RKEY others 1 rsp"}, false},
		{"CONFIRM RKEY and DELETE LINK all of the client", [2]int{9, 1}, "A CONFIRM RKEY others 1 rsp", newRMB, deleteAll(a), []string{"B DELETE LINK 0 all orderly (operator)"}, "", nil, true},
		{"CONFIRM RKEY and DELETE LINK all of the server", [2]int{1, 9}, "B CONFIRM RKEY others 1 rsp", newRMB, deleteAll(b), []string{"B DELETE LINK 0 all orderly (operator)"}, "", nil, true},
		{"CONFIRM RKEY of both", [2]int{1, 1}, "B CONFIRM RKEY others 1", newRMB, func(w world) {
			r, err := w.a.group().newRMB()
			if err != nil {
				panic(simPanic(err.Error()))
			}
			w.a.group().announce(r)
		}, []string{"A CONFIRM RKEY others 1", "B CONFIRM RKEY others 1 rsp"}, "A CONFIRM RKEY others 1 rsp", nil, false},
	} {
		mustSimulate(t, c.name, simOptions{rnics: [2]int{3, 3}, elements: c.elements}, func(s *sim) {
			w := world{s, s.hosts[0], s.hosts[1]}
			third := strings.HasPrefix(c.holds, "B DELETE LINK")
			s.setDown(!third, w.a.devs[2], w.b.devs[2])
			s.staying(1, 100)
			if third {
				s.mustHaveLinks(3)
			} else {
				s.mustHaveLinks(2)
			}
			got := s.collide(c.holds, func() { c.begin(w) }, func() { c.act(w) })
			if !heard(got, c.now...) || c.never != "" && heard(got, c.never) {
				s.failf("while %s waited: %q, want %q", c.holds, *got, c.now)
			}
			s.run(3*time.Second, nil)
			if !heard(got, c.then...) {
				s.failf("%q, want %q", *got, c.then)
			}
			if c.ends {
				for _, x := range s.ends[:2] {
					s.wantErr(x, ErrLinksLost)
				}
				return
			}
			s.setDown(false, w.a.devs[2], w.b.devs[2])
			s.run(time.Minute, nil)
			s.inStep()
			s.more(5000)
			s.run(time.Second, nil)
			for _, x := range s.ends {
				if x.err != nil || x.fell {
					s.failf("%s%d: %s, %v", x.h.name, x.id, x.outcome(), x.err)
				}
			}
		})
	}
}

// end has an engine end its link group.
func (s *sim) end(h *simHost) { h.e.DeleteLink(h.group().id, 0, s.now()) }

// RFC 7609 §C.7.1, first part: what happens when the message that lost names does not arrive, although its sender
// believes so, row by row and by the peer's dialect.
func TestRecoveryFromLostLLC(t *testing.T) {
	const both, linuxOnly, rfcOnly = 0, 1, 2
	// slow has the server's timers wait, so that the client's are seen.
	slow := func(s *sim) { s.hosts[1].e.cfg.Timeouts.LLC = time.Minute }
	first := func(s *sim) {
		a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{1000, 1000})
		a.stay, b.stay = true, true
	}
	third := func(s *sim) { s.setDown(false, s.hosts[1].devs[2], s.hosts[0].devs[2]) }
	for _, c := range []struct {
		row      string
		dialect  int
		prepare  func(*sim) // nil: first contact
		act      func(*sim)
		lost     string
		after    time.Duration
		want     []string      // messages
		links    []smc.LinkNum // nil: the link group is down
		outcome  string        // of the connections
		silent   string        // not sent
		elements [2]int
	}{
		{"CONFIRM LINK, first", both, nil, first, "A CONFIRM LINK 1 rsp", 3 * time.Second, nil, nil, "broken", "B ADD LINK 2", [2]int{}},
		{"CONFIRM LINK, first contact, second link", both, nil, first, "B CONFIRM LINK 2", 3 * time.Second,
			[]string{"B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, []smc.LinkNum{1}, "smc", "", [2]int{}},
		{"its reply", both, nil, first, "A CONFIRM LINK 2 rsp", 3 * time.Second,
			[]string{"B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, []smc.LinkNum{1}, "smc", "", [2]int{}},
		{"reply waits for ADD LINK, first contact", rfcOnly, nil, first, "B ADD LINK 2", 5 * time.Second, nil, nil, "broken", "", [2]int{}},
		{"reply waits for ADD LINK, first contact", linuxOnly, nil, first, "B ADD LINK 2", 5 * time.Second, nil, []smc.LinkNum{1}, "smc", "", [2]int{}},
		{"ADD LINK, first contact", rfcOnly, nil, first, "A ADD LINK 2 rsp", 5 * time.Second, nil, nil, "broken", "", [2]int{}},
		{"ADD LINK, first contact", linuxOnly, nil, first, "A ADD LINK 2 rsp", 5 * time.Second, nil, []smc.LinkNum{1}, "smc", "", [2]int{}},
		{"ADD LINK CONTINUATION, first contact", rfcOnly, nil, first, "A ADD LINK CONT 2 left 1 rsp", 5 * time.Second, nil, nil, "broken", "", [2]int{}},
		{"ADD LINK CONTINUATION, first contact", linuxOnly, nil, first, "A ADD LINK CONT 2 left 1 rsp", 5 * time.Second,
			[]string{"A DELETE LINK 2 (lost path)", "B DELETE LINK 2 (unknown link) rsp"}, []smc.LinkNum{1}, "smc", "", [2]int{}},
		{"ADD LINK reply waits for CONTINUATION, first contact", rfcOnly, nil, func(s *sim) { slow(s); first(s) }, "B ADD LINK CONT 2 left 1", 5 * time.Second, nil, nil, "broken", "", [2]int{}},
		{"CONTINUATION reply waits for CONFIRM LINK, first contact", both, nil, func(s *sim) { slow(s); first(s) }, "B CONFIRM LINK 2", 5 * time.Second,
			[]string{"A DELETE LINK 2 (lost path)", "B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, []smc.LinkNum{1}, "smc", "", [2]int{}},

		{"CONFIRM LINK, later", both, third, nil, "B CONFIRM LINK 3", 3 * time.Second,
			[]string{"B DELETE LINK 3 (lost path)", "A DELETE LINK 3 rsp"}, []smc.LinkNum{1, 2}, "smc", "", [2]int{}},
		{"ADD LINK, later", rfcOnly, third, nil, "A ADD LINK 3 rsp", 3 * time.Second,
			[]string{"B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp", "B ADD LINK 4"}, []smc.LinkNum{2, 4, 5}, "smc", "", [2]int{}},
		{"ADD LINK, later", linuxOnly, third, nil, "A ADD LINK 3 rsp", 5 * time.Second, nil, []smc.LinkNum{1, 2}, "smc", "DELETE LINK 1 (lost path)", [2]int{}},
		{"ADD LINK CONTINUATION, later", rfcOnly, third, nil, "A ADD LINK CONT 3 left 1 rsp", 3 * time.Second,
			[]string{"B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp", "B ADD LINK 4"}, []smc.LinkNum{2, 4, 5}, "smc", "", [2]int{}},
		{"ADD LINK reply waits for CONTINUATION, later", rfcOnly, func(s *sim) { slow(s); third(s) }, nil, "B ADD LINK CONT 3 left 1", 5 * time.Second,
			[]string{"A DELETE LINK 1 (lost path)", "B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp"}, nil, "smc", "", [2]int{}},
		{"CONTINUATION reply waits for CONTINUATION, later", rfcOnly, func(s *sim) { slow(s); third(s) }, nil, "B ADD LINK CONT 3 left 1", 5 * time.Second,
			[]string{"B ADD LINK CONT 3 left 3", "A DELETE LINK 1 (lost path)", "B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp"}, nil, "smc", "", [2]int{9, 1}},
		{"CONTINUATION reply waits for CONFIRM LINK, later", both, func(s *sim) { slow(s); third(s) }, nil, "B CONFIRM LINK 3", 5 * time.Second,
			[]string{"A DELETE LINK 3 (lost path)", "B DELETE LINK 3 (lost path)", "A DELETE LINK 3 rsp"}, []smc.LinkNum{1, 2}, "smc", "", [2]int{}},

		{"DELETE LINK from client", both, func(s *sim) { third(s); s.run(time.Second, nil); s.hosts[0].devs[2].FailQPs() }, nil, "A DELETE LINK 3 (lost path)", 10 * time.Second,
			[]string{"A DELETE LINK 1 (lost path)", "A DELETE LINK 3 (lost path)", "B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp", "B DELETE LINK 3 (lost path)", "A DELETE LINK 3 rsp"}, nil, "smc", "", [2]int{}},
		{"DELETE LINK from server", both, func(s *sim) {
			third(s)
			s.run(time.Second, nil)
			s.hosts[1].e.DeleteLink(s.hosts[1].group().id, 3, s.now())
		}, nil, "B DELETE LINK 3 orderly (operator)", 3 * time.Second,
			[]string{"B DELETE LINK 3 orderly (operator)", "A DELETE LINK 3 orderly rsp", "B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp"}, nil, "smc", "", [2]int{}},
		{"DELETE LINK from server over the last link", both, func(s *sim) { s.hosts[1].e.DeleteLink(s.hosts[1].group().id, 2, s.now()) }, nil, "B DELETE LINK 2 orderly (operator)", 3 * time.Second,
			nil, nil, "broken", "", [2]int{}},
		{"CONFIRM RKEY from client", both, first, nil, "A CONFIRM RKEY others 1", 5 * time.Second,
			[]string{"A DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp", "A CONFIRM LINK 3 rsp", "A CONFIRM RKEY others 1", "B CONFIRM RKEY others 1 rsp"}, nil, "smc", "", [2]int{1, 9}},
		{"CONFIRM RKEY from server", both, first, nil, "B CONFIRM RKEY others 1", 5 * time.Second,
			[]string{"B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp", "A CONFIRM LINK 3 rsp", "B CONFIRM RKEY others 1", "A CONFIRM RKEY others 1 rsp"}, nil, "smc", "", [2]int{9, 1}},
	} {
		for _, rfc := range []bool{false, true} {
			if rfc && c.dialect == linuxOnly || !rfc && c.dialect == rfcOnly {
				continue
			}
			n, elements := 2, [2]int{9, 9}
			if c.prepare != nil {
				n = 3
			}
			if c.elements != ([2]int{}) {
				elements = c.elements
			}
			mustSimulate(t, fmt.Sprintf("%s: %s, rfc %t", c.row, c.lost, rfc), simOptions{rnics: [2]int{n, n}, elements: elements, rfc: rfc}, func(s *sim) {
				if c.prepare != nil {
					s.setDown(true, s.hosts[0].devs[2], s.hosts[1].devs[2])
					s.staying(max(1, 4-max(elements[0], elements[1])), 100)
					if elements == [2]int{9, 1} && c.row == "CONTINUATION reply waits for CONTINUATION, later" {
						s.staying(2, 100)
					}
					s.mustHaveLinks(2)
				}
				dropped, early := false, ""
				got := s.overhear(func(o overheard) (simfab.Verdict, time.Duration) {
					if o.text == c.lost && !dropped {
						dropped = true
						return simfab.Drop, 0
					}
					return simfab.Deliver, 0
				})
				old := s.judge
				s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
					// A client whose last message arrived, as far as it can tell, knows no better.
					if c.prepare == nil && !st.llc && strings.Contains(c.lost, "CONFIRM LINK 2") && !heard(got, c.want...) && (st.from == s.hosts[1] || c.lost != "A CONFIRM LINK 2 rsp") {
						early = st.what
					}
					if old != nil {
						return old(st)
					}
					return simfab.Deliver, 0
				}
				if c.prepare != nil {
					c.prepare(s)
				} else {
					c.act(s)
				}
				s.run(c.after, nil)
				if !dropped || !heard(got, c.want...) || c.silent != "" && strings.Contains(strings.Join(*got, ","), c.silent) {
					s.failf("dropped %t: %q, want %q", dropped, *got, c.want)
				}
				if early != "" {
					s.failf("%s before the state of the links was known", early)
				}
				if c.links != nil {
					s.wantLinks(c.links...)
				}
				for _, x := range s.ends {
					if x.outcome() != c.outcome {
						s.failf("%s%d: %s, %v, want %s", x.h.name, x.id, x.outcome(), x.err, c.outcome)
					}
				}
				for _, h := range s.hosts {
					h.e.cfg.Timeouts.LLC = DefaultTimeouts.LLC
				}
				s.setDown(false, s.hosts[0].devs[n-1], s.hosts[1].devs[n-1])
				s.run(longest, nil)
				if c.outcome == "smc" {
					s.inStep()
				}
			})
		}
	}
}

// bytes is a SEND of 44 bytes that begins with these.
func (h *simHost) bytes(l *Link, b ...byte) {
	defer h.e.enter(h.s.now())()
	if err := l.postSend(append(b, make([]byte, 44-len(b))...), nil); err != nil {
		panic(simPanic(err.Error()))
	}
}

// RFC 7609 §C.7.1, second part: messages that are wrong, or out of step.
func TestRecoveryFromWrongLLC(t *testing.T) {
	const link1, link2 = 0, 1
	first := func(s *sim) {
		a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{1000, 1000})
		a.stay, b.stay = true, true
	}
	third := func(s *sim) { s.setDown(false, s.hosts[1].devs[2], s.hosts[0].devs[2]) }
	link := func(h *simHost, n int) *Link { return h.group().links[n] }
	for _, c := range []struct {
		row     string
		rnics   [2]int
		dialect string // "" = both
		act     func(*sim)
		at      string // the message to be changed
		change  func(*sim, overheard) llc.Message
		want    []string
		silent  string
		links   []smc.LinkNum // afterwards; nil = whatever
	}{
		{"CONFIRM LINK from server, second link", [2]int{2, 2}, "", first, "B CONFIRM LINK 2",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.ConfirmLink); m.QPN++; return m },
			[]string{"A DELETE LINK 2 (protocol violation)", "B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, "", []smc.LinkNum{1}},
		{"CONFIRM LINK reply, second link", [2]int{2, 2}, "", first, "A CONFIRM LINK 2 rsp",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.ConfirmLink); m.MAC[0]++; return m },
			[]string{"B DELETE LINK 2 (protocol violation)", "A DELETE LINK 2 rsp"}, "", []smc.LinkNum{1}},
		{"ADD LINK with an undefined MTU", [2]int{2, 2}, "", first, "B ADD LINK 2",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.AddLink); m.MTU = 9; return m },
			[]string{"A ADD LINK 2 rejected (2) rsp"}, "", []smc.LinkNum{1}},
		{"ADD LINK reply that makes a parallel link", [2]int{2, 1}, "", first, "A ADD LINK 2 rsp",
			func(s *sim, o overheard) llc.Message {
				m := o.m.(*llc.AddLink)
				m.GID, m.MAC = s.hosts[0].devs[0].Attr().GID, s.hosts[0].devs[0].Attr().MAC
				return m
			},
			[]string{"B DELETE LINK 2 (protocol violation)", "A DELETE LINK 2 rsp"}, "", []smc.LinkNum{1}},
		{"ADD LINK reply with an undefined MTU", [2]int{2, 2}, "", first, "A ADD LINK 2 rsp",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.AddLink); m.MTU = 0; return m },
			[]string{"B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, "", []smc.LinkNum{1}},
		{"ADD LINK with the number of another link", [2]int{3, 3}, "", third, "B ADD LINK 3",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.AddLink); m.Link = 2; return m },
			[]string{"A DELETE LINK 1 (lost path)", "B DELETE LINK 1 (lost path)"}, "", nil},
		{"ADD LINK CONTINUATION of an unknown RMB", [2]int{3, 3}, "", third, "B ADD LINK CONT 3 left 1",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.AddLinkCont); m.Pairs[0].Ref++; return m },
			[]string{"A DELETE LINK 1 (lost path)", "B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp"}, "", nil},
		{"ADD LINK CONTINUATION reply of an unknown RMB", [2]int{3, 3}, "", third, "A ADD LINK CONT 3 left 1 rsp",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.AddLinkCont); m.Pairs[0].Ref++; return m },
			[]string{"B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp", "B ADD LINK 4"}, "", nil},
		{"ADD LINK CONTINUATION with another count", [2]int{3, 3}, "", third, "B ADD LINK CONT 3 left 1",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.AddLinkCont); m.Remaining = 2; return m },
			[]string{"A DELETE LINK 1 (lost path)", "B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp"}, "", nil},
		{"CONFIRM RKEY that leaves out a link", [2]int{2, 2}, "", func(s *sim) { first(s) }, "B CONFIRM RKEY others 1",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.ConfirmRKey); m.NumOthers = 0; return m },
			[]string{"A DELETE LINK 2 (lost path)"}, "", nil},
		{"DELETE LINK from client, unknown", [2]int{2, 2}, "", func(s *sim) {
			s.hosts[0].say(link(s.hosts[0], link1), &llc.DeleteLink{Link: 9})
		}, "", nil, []string{"A DELETE LINK 9", "B DELETE LINK 9 (unknown link) rsp"}, "", []smc.LinkNum{1, 2}},
		{"DELETE LINK from server, unknown", [2]int{2, 2}, "", func(s *sim) {
			s.hosts[1].todo(func(g *LinkGroup) { g.links[0].send(&llc.DeleteLink{Link: 9}, nil) })
		}, "", nil, []string{"B DELETE LINK 9", "A DELETE LINK 9 (unknown link) rsp"}, "", nil},
		{"TEST LINK reply with other data", [2]int{2, 2}, "", func(s *sim) { s.run(40*time.Second, nil) }, "A TEST LINK rsp",
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.TestLink); m.UserData[15]++; return m },
			[]string{"B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, "", nil},
		{"response nobody waits for", [2]int{2, 2}, "", func(s *sim) {
			s.hosts[0].say(link(s.hosts[0], link2), &llc.ConfirmRKey{Reply: true})
		}, "", nil, []string{"B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, "", nil},
		{"ADD LINK CONTINUATION out of turn", [2]int{2, 2}, "", func(s *sim) {
			s.hosts[1].say(link(s.hosts[1], link2), &llc.AddLinkCont{Link: 2})
		}, "", nil, []string{"A DELETE LINK 2 (lost path)", "B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, "", nil},
		{"CONFIRM RKEY CONTINUATION out of turn", [2]int{2, 2}, "", func(s *sim) {
			s.hosts[1].say(link(s.hosts[1], link2), &llc.ConfirmRKeyCont{})
		}, "", nil, []string{"A DELETE LINK 2 (lost path)", "B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, "", nil},
		{"CONFIRM RKEY whose continuation does not come", [2]int{2, 2}, "", func(s *sim) {
			l := link(s.hosts[0], link2)
			t := s.hosts[0].group().rmbs[0].token(l)
			l.stale[t] = true
			s.hosts[0].say(l, &llc.ConfirmRKey{Token: t, NumOthers: 5})
		}, "", nil, []string{"B CONFIRM RKEY others 5 rsp", "B DELETE LINK 2 (lost path)", "A DELETE LINK 2 rsp"}, "", nil},
		{"optional message", [2]int{2, 2}, "", func(s *sim) { s.hosts[0].bytes(link(s.hosts[0], link2), 0x8F, 44) }, "", nil,
			nil, "DELETE LINK", []smc.LinkNum{1, 2}},
		{"unknown message, RFC", [2]int{2, 2}, "rfc", func(s *sim) { s.hosts[0].bytes(link(s.hosts[0], link2), 0x3F, 44) }, "", nil,
			[]string{"B DELETE LINK 2 (lost path)"}, "", nil},
		{"unknown message, Linux", [2]int{2, 2}, "linux", func(s *sim) { s.hosts[0].bytes(link(s.hosts[0], link2), 0x3F, 44) }, "", nil,
			nil, "DELETE LINK", []smc.LinkNum{1, 2}},
		{"wrong length", [2]int{2, 2}, "", func(s *sim) { s.hosts[0].bytes(link(s.hosts[0], link2), 7, 43) }, "", nil,
			[]string{"B DELETE LINK 2 (lost path)"}, "", nil},
	} {
		for _, rfc := range []bool{false, true} {
			if c.dialect == "rfc" && !rfc || c.dialect == "linux" && rfc {
				continue
			}
			elements := [2]int{9, 9}
			n := 1
			switch c.row {
			case "CONFIRM RKEY that leaves out a link":
				elements[1] = 1
			case "ADD LINK CONTINUATION with another count":
				elements[1], n = 1, 3
			}
			mustSimulate(t, fmt.Sprintf("%s, rfc %t", c.row, rfc), simOptions{rnics: c.rnics, elements: elements, rfc: rfc}, func(s *sim) {
				fresh := c.at != "" && (strings.HasSuffix(c.at, " 2") || strings.HasSuffix(c.at, " 2 rsp"))
				if c.rnics[0] == 3 {
					s.setDown(true, s.hosts[0].devs[2], s.hosts[1].devs[2])
				}
				if !fresh {
					s.staying(n, 100)
				}
				changed := c.at == ""
				got := s.overhear(func(o overheard) (simfab.Verdict, time.Duration) {
					if o.text == c.at && !changed {
						changed = true
						o.change(c.change(s, o))
					}
					return simfab.Deliver, 0
				})
				c.act(s)
				s.run(5*time.Second, nil)
				if !changed || !heard(got, c.want...) || c.silent != "" && strings.Contains(strings.Join(*got, ","), c.silent) {
					s.failf("changed %t: %q, want %q", changed, *got, c.want)
				}
				if c.links != nil {
					s.wantLinks(c.links...)
				}
				for i, x := range s.ends {
					// Whom nobody told of the RMB on its link goes back to TCP.
					if want := x.outcome(); want != "smc" && !(i >= 2 && want == "fallback") {
						s.failf("%s%d: %s, %v", x.h.name, x.id, x.outcome(), x.err)
					}
				}
				s.run(longest, nil)
				s.inStep()
			})
		}
	}
}

// todo has the engine of a host do something.
func (h *simHost) todo(fn func(*LinkGroup)) {
	defer h.e.enter(h.s.now())()
	fn(h.group())
}

// RFC 7609 §C.7.1: what the server sends over a link that the client has had deleted is ignored, but not the end of all.
func TestDeletedLinkIsIgnored(t *testing.T) {
	mustSimulate(t, "ignored", simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
		s.staying(1, 100)
		got := s.collide("A DELETE LINK 2 orderly rsp", func() { s.deleteLink(s.hosts[1]) }, func() {
			s.hosts[1].say(s.hosts[1].group().links[1], &llc.TestLink{})
			s.hosts[1].say(s.hosts[1].group().links[1], &llc.ConfirmRKey{Token: smc.RToken{RKey: 1}})
		})
		s.run(3*time.Second, nil)
		if heard(got, "A TEST LINK rsp") || heard(got, "A CONFIRM RKEY others 0 rsp") || !heard(got, "B TEST LINK") {
			s.failf("%q", *got)
		}
	})
}

// LLC messages have the bytes of those that Linux sends over two links, but for the values that differ from peer to peer.
func TestLLCHasTheShapeOfLinux(t *testing.T) {
	sent := map[string][]byte{}
	keep := func(s *sim) {
		s.overhear(func(o overheard) (simfab.Verdict, time.Duration) {
			sent[o.text] = slices.Clone(o.e.Msg)
			return simfab.Deliver, 0
		})
	}
	mustSimulate(t, "two RNICs", simOptions{rnics: [2]int{2, 2}, elements: [2]int{1, 1}}, func(s *sim) {
		keep(s)
		s.setDown(true, s.hosts[0].devs[1])
		s.staying(2, 100)
		s.setDown(false, s.hosts[0].devs[1])
		s.run(time.Second, nil)
		s.staying(1, 100)
		s.ends[0].stay, s.ends[0].stayed, s.ends[0].ready = false, false, true
		s.ends[1].stay, s.ends[1].stayed, s.ends[1].ready = false, false, true
		s.run(3*time.Duration(shrinkAfter), nil)
		s.deleteLink(s.hosts[0])
		s.run(time.Second, nil)
	})
	mustSimulate(t, "one RNIC", simOptions{}, func(s *sim) {
		keep(s)
		s.staying(1, 100)
	})
	addLink := [][2]int{{4, 10}, {12, 28}, {28, 31}, {31, 32}, {32, 33}, {33, 36}}
	pairs := [][2]int{{4, 5}, {8, 40}}
	tokens := [][2]int{{5, 17}, {17, 30}}
	for _, c := range []struct {
		msg, golden string
		vary        [][2]int
	}{
		{"B ADD LINK 3", "add-link-req-from_A", addLink},
		{"A ADD LINK 3 rsp", "add-link-rsp-from_B", addLink},
		{"A ADD LINK 2 rejected (1) rsp", "add-link-rsp-flags_c0-from_B", addLink},
		{"A ADD LINK 0", "add-link-req-from_B", addLink[:2]},
		{"B ADD LINK CONT 3 left 2", "add-link-cont-req-remaining_2-from_A", pairs},
		{"A ADD LINK CONT 3 left 2 rsp", "add-link-cont-rsp-remaining_2-from_B", pairs},
		{"B DELETE LINK 2 orderly (asymmetric link not needed)", "delete-link-req-flags_20-reason_00050000-from_A", [][2]int{{4, 5}}},
		{"A DELETE LINK 2 orderly rsp", "delete-link-rsp-flags_a0-reason_00000000-from_B", [][2]int{{4, 5}}},
		{"B CONFIRM RKEY others 1", "confirm-rkey-req-other_1-from_A", tokens},
		{"B CONFIRM RKEY others 1 rsp", "confirm-rkey-rsp-other_1-from_A", tokens},
		{"A DELETE RKEY 1", "delete-rkey-req-from_B", [][2]int{{8, 12}}},
		{"B DELETE RKEY 1 rsp", "delete-rkey-rsp-from_A", [][2]int{{8, 12}}},
		{"A TEST LINK", "test-link-req-from_B", [][2]int{{4, 20}}},
		{"B TEST LINK rsp", "test-link-rsp-from_A", [][2]int{{4, 20}}},
	} {
		golden, got := readHex(t, "../../abi/llc/testdata/v1-"+c.golden), sent[c.msg]
		if len(got) != len(golden) {
			t.Errorf("%s has %d bytes, Linux sends %d", c.msg, len(got), len(golden))
			continue
		}
		for _, v := range c.vary {
			clear(got[v[0]:v[1]])
			clear(golden[v[0]:v[1]])
		}
		if !slices.Equal(got, golden) {
			t.Errorf("%s:\n%x, Linux has\n%x", c.msg, got, golden)
		}
	}
}

// RFC 7609 §C.1, §C.4: a link that fails between Accept and Confirm. Another one of the link group takes over, and the
// TCP connection that was being negotiated does not notice.
func TestLinkFailsDuringSubsequentContact(t *testing.T) {
	for _, late := range []string{"ACCEPT", "CONFIRM"} {
		for _, side := range []int{0, 1} {
			mustSimulate(t, fmt.Sprintf("%s, %d", late, side), simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
				s.staying(1, 100)
				var chosen *Link
				s.strike = func(st simStep) (bool, time.Duration) {
					if st.what != late {
						return false, 0
					}
					chosen = s.ends[3].c.link
					s.later = append(s.later, s.hosts[side].group().link(chosen.num).breakQP)
					return false, time.Millisecond
				}
				a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{1000, 1000})
				s.run(2*time.Second, nil)
				if chosen == nil || chosen.state != fsm.LinkDown {
					s.failf("the link has not failed")
				}
				if a.outcome() != b.outcome() || a.outcome() == "fallback" && late == "CONFIRM" {
					s.failf("%s, %s: %v, %v", a.outcome(), b.outcome(), a.err, b.err)
				}
				if s.ends[0].err != nil || s.ends[1].err != nil {
					s.failf("the other connection: %v, %v", s.ends[0].err, s.ends[1].err)
				}
			})
		}
	}
}

// RFC 7609 §3.5.3: a parallel link group has links of its own, over the same RNICs.
func TestParallelGroupHasItsOwnLinks(t *testing.T) {
	mustSimulate(t, "parallel", simOptions{rnics: [2]int{2, 2}, elements: [2]int{1, 1}}, func(s *sim) {
		s.staying(1, 100)
		full := s.hosts[1].group()
		for len(full.rmbs) < maxRMBs {
			full.rmbs = append(full.rmbs, &RMB{g: full, used: []bool{true}, inUse: 1})
		}
		s.staying(1, 100)
		full.rmbs = full.rmbs[:1]
		for _, h := range s.hosts {
			g := h.e.sortedGroups()
			if len(g) != 2 || len(g[0].links) != 2 || len(g[1].links) != 2 {
				s.failf("%s: %d link groups", h.name, len(g))
			}
		}
		s.more(5000)
	})
}

// RFC 7609 §2.3: new connections go where there are few.
func TestConnectionsAreSpreadOverLinks(t *testing.T) {
	mustSimulate(t, "spread", simOptions{rnics: [2]int{4, 4}}, func(s *sim) {
		s.staying(12, 100)
		for _, h := range s.hosts {
			for l, n := range h.group().load() {
				if l == nil || n != 3 {
					s.failf("%s: %d connections on %v", h.name, n, l)
				}
			}
		}
	})
}

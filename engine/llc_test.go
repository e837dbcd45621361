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
		s.release()
		s.run(3*time.Duration(shrinkAfter), nil)
		for _, h := range s.hosts {
			if n := len(h.group().rmbs); n != 1 {
				s.failf("%s: %d RMBs of a link group that is idle", h.name, n)
			}
		}
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
		mustBeLinux(t, c.msg, sent[c.msg], "../../abi/llc/testdata/v1-"+c.golden, c.vary)
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

// RFC 7609 §2.3: new connections go where there are few; and when a link comes back, those of the others are spread anew.
func TestConnectionsAreSpreadOverLinks(t *testing.T) {
	spread := func(s *sim, links, each int) {
		for _, h := range s.hosts {
			load := h.group().load()
			if len(load) != links {
				s.failf("%s: connections on %d links", h.name, len(load))
			}
			for l, n := range load {
				if l == nil || n != each {
					s.failf("%s: %d connections on %v", h.name, n, l)
				}
			}
		}
	}
	mustSimulate(t, "spread", simOptions{rnics: [2]int{4, 4}}, func(s *sim) {
		s.staying(12, 100)
		spread(s, 4, 3)
		s.hosts[0].devs[1].SetDown(true)
		s.hosts[1].devs[2].SetDown(true)
		s.more(5000)
		s.run(time.Second, nil)
		spread(s, 2, 6)
		s.hosts[0].devs[1].SetDown(false)
		s.hosts[1].devs[2].SetDown(false)
		s.more(5000)
		s.run(time.Second, nil)
		spread(s, 4, 3)
		s.more(5000)
	})
}

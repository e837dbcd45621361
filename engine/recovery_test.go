package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"libsmcr/abi/llc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs/simfab"
)

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
	shrink := func(s *sim) {
		s.dial(s.hosts[0], s.hosts[1], [2]int{100, 100})
		s.run(2*time.Duration(shrinkAfter), func() bool { return s.hosts[0].group().x.state == fsm.DeleteRKeySent })
	}
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
		{"ADD LINK CONTINUATION, later", linuxOnly, third, nil, "A ADD LINK CONT 3 left 1 rsp", 5 * time.Second, nil, []smc.LinkNum{1, 2}, "smc", "DELETE LINK 1", [2]int{}},
		{"ADD LINK reply waits for CONTINUATION, later", linuxOnly, func(s *sim) { slow(s); third(s) }, nil, "B ADD LINK CONT 3 left 1", 5 * time.Second, nil, []smc.LinkNum{1, 2}, "smc", "DELETE LINK 1", [2]int{}},
		{"ADD LINK reply waits for CONTINUATION, later", rfcOnly, func(s *sim) { slow(s); third(s) }, nil, "B ADD LINK CONT 3 left 1", 5 * time.Second,
			[]string{"A DELETE LINK 1 (lost path)", "B DELETE LINK 1 (lost path)", "A DELETE LINK 1 rsp"}, nil, "smc", "", [2]int{}},
		{"CONTINUATION reply waits for CONTINUATION, later", linuxOnly, func(s *sim) { slow(s); third(s) }, nil, "B ADD LINK CONT 3 left 1", 5 * time.Second,
			[]string{"B ADD LINK CONT 3 left 3"}, []smc.LinkNum{1, 2}, "smc", "DELETE LINK 1", [2]int{9, 1}},
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
		{"DELETE RKEY", rfcOnly, shrink, nil, "B DELETE RKEY 1 rsp", 5 * time.Second,
			[]string{"A DELETE LINK 1 (lost path)", "A DELETE RKEY 1", "B DELETE RKEY 1 negative 10000000 rsp", "A DELETE LINK 1 rsp"}, nil, "smc", "", [2]int{1, 9}},
		{"DELETE RKEY", linuxOnly, shrink, nil, "B DELETE RKEY 1 rsp", 5 * time.Second, nil, []smc.LinkNum{1, 2}, "smc", "DELETE LINK 1", [2]int{1, 9}},
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
			func(_ *sim, o overheard) llc.Message { m := o.m.(*llc.AddLinkCont); m.Remaining = 0; return m },
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

package engine

import (
	"strings"
	"testing"
	"time"

	"libsmcr/abi/llc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs/simfab"
)

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
		{"DELETE RKEY of the client and ADD LINK", [2]int{1, 9}, "A DELETE RKEY 1", func(w world) {
			newRMB(w)
			w.run(2*time.Duration(shrinkAfter), func() bool { return w.a.group().x.state == fsm.DeleteRKeySent })
		}, addLink, []string{"B ADD LINK 3"}, "B DELETE RKEY 1 rsp",
			[]string{"B DELETE RKEY 1 rsp", "A CONFIRM LINK 3 rsp", "A DELETE RKEY 1", "B DELETE RKEY 1 negative 10000000 rsp"}, false},
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

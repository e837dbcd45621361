package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"libsmcr/verbs/simfab"
)

// scenario is an exchange of which each step is to fail once.
type scenario struct {
	name    string
	options simOptions
	prepare func(*sim)
	act     func(*sim)
	// survives: the connections that were there before lose nothing, unless a process dies.
	survives bool
}

type simFault int

const (
	none simFault = iota
	losing
	delaying
	cutting
	breaking
	unacking
	killingSender
	killingReceiver
	faultCount
)

func (f simFault) String() string {
	return [...]string{"none", "lost", "late", "link cut", "queue pairs broken", "answer lost", "sender dies", "receiver dies"}[f]
}

const late = 15 * time.Second // more than any wait for an answer

// arm strikes step n with a fault, and tells what was struck.
func (s *sim) arm(f simFault, n int) (hit *string) {
	hit = new(string)
	s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
		if st.n != n {
			return simfab.Deliver, 0
		}
		*hit = st.what
		switch f {
		case losing:
			// A reliable connection loses data only together with itself.
			if !st.llc {
				return s.doom(st)
			}
			return simfab.Drop, 0
		case delaying:
			return simfab.Deliver, late
		case cutting:
			s.fab.Cut(st.dev, st.at)
		case breaking:
			s.later = append(s.later, func() { st.at.BreakQP(st.peer) })
			return simfab.Refuse, 0
		case unacking:
			return simfab.Unacked, 0
		case killingSender:
			s.later = append(s.later, func() { s.kill(st.from) })
		case killingReceiver:
			s.later = append(s.later, func() { s.kill(st.to) })
			return simfab.Refuse, 0
		}
		return simfab.Deliver, 0
	}
	s.strike = func(st simStep) (bool, time.Duration) {
		if st.n != n {
			return false, 0
		}
		*hit = st.what
		switch f {
		case losing:
			return true, 0
		case delaying:
			return false, late
		case cutting:
			s.fab.Cut(st.from.devs[0], st.to.devs[0])
		case breaking:
			for _, d := range []*simfab.Device{st.from.devs[0], st.to.devs[0]} {
				s.later = append(s.later, d.FailQPs)
			}
		case killingSender:
			s.later = append(s.later, func() { s.kill(st.from) })
		case killingReceiver:
			s.later = append(s.later, func() { s.kill(st.to) })
			return true, 0
		}
		return false, 0
	}
	return hit
}

// everyStep runs the scenario once for each of its steps and each fault.
func (c scenario) everyStep(t *testing.T) {
	mustSimulate(t, c.name+", undisturbed", c.options, func(s *sim) {
		if c.prepare != nil {
			c.prepare(s)
		}
		c.act(s)
		s.run(longest, s.allOver)
		for _, x := range s.ends {
			if x.outcome() != "smc" || x.got != x.peer.size || x.sent != x.size {
				s.failf("%s%d: %s, sent %d of %d, got %d of %d", x.h.name, x.id, x.outcome(), x.sent, x.size, x.got, x.peer.size)
			}
		}
	})
	for f := none + 1; f < faultCount; f++ {
		if f == unacking && c.options.mapped {
			continue // a datagram is queued at the peer or not
		}
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			outcomes, failed := map[string]int{}, 0
			for n := 0; ; n += stride {
				var hit *string
				s := mustSimulate(t, fmt.Sprintf("%s: %s at step %d", c.name, f, n), c.options, func(s *sim) {
					if c.prepare != nil {
						c.prepare(s)
					}
					hit = s.arm(f, s.steps+n)
					c.act(s)
					s.run(longest, s.allOver)
					switch {
					case f == killingSender || f == killingReceiver || !c.survives || s.mapped:
						return
					case f == losing && (*hit == "cdc" || *hit == "write"):
						return // §4.6.1: data is lost that was acknowledged
					}
					for _, x := range s.ends {
						if x.stayed && (x.outcome() != "smc" || x.got != x.peer.size || x.sent != x.size) {
							s.failf("%s%d: %s, sent %d of %d, got %d of %d", x.h.name, x.id, x.outcome(), x.sent, x.size, x.got, x.peer.size)
						}
					}
				})
				failed += min(len(s.failures), 1)
				if failed > 2 {
					t.Fatal("and so on")
				}
				for _, x := range s.ends {
					outcomes[x.outcome()]++
				}
				if *hit == "" {
					if n == 0 {
						t.Error("no step")
					}
					t.Logf("%d steps: %v", n, outcomes)
					return
				}
			}
		})
	}
}

func (o simOptions) kind() string {
	switch {
	case o.mapped:
		return "mapped"
	case o.rfc:
		return fmt.Sprintf("RFC %d-%d", o.rnics[0], o.rnics[1])
	}
	return fmt.Sprintf("Linux %d-%d", o.rnics[0], o.rnics[1])
}

// in runs the scenario between hosts of all these kinds, with so many elements in an RMB.
func (c scenario) in(t *testing.T, elements [2]int, kinds ...simOptions) {
	name := c.name
	for _, o := range kinds {
		c.options, c.name = o, strings.TrimSpace(name+" "+o.kind())
		c.options.elements = elements
		t.Run(c.name, c.everyStep)
	}
}

var (
	mapped    = simOptions{mapped: true}
	linux11   = simOptions{rnics: [2]int{1, 1}}
	linux22   = simOptions{rnics: [2]int{2, 2}}
	linux21   = simOptions{rnics: [2]int{2, 1}}
	linux12   = simOptions{rnics: [2]int{1, 2}}
	rfc11     = simOptions{rnics: [2]int{1, 1}, rfc: true}
	rfc22     = simOptions{rnics: [2]int{2, 2}, rfc: true}
	linux44   = simOptions{rnics: [2]int{4, 4}}
	rfc44     = simOptions{rnics: [2]int{4, 4}, rfc: true}
	twoRNICs  = []simOptions{linux22, rfc22}
	twoOrNone = []simOptions{mapped, linux22, rfc22}
)

// staying makes n connections that carry some bytes and stay, and waits until they have.
func (s *sim) staying(n, size int) {
	for range n {
		a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{size, size})
		a.stay, b.stay, a.stayed, b.stayed = true, true, true, true
		s.run(longest, s.allOver)
	}
	s.run(time.Second, nil)
	for _, x := range s.ends {
		if x.outcome() != "smc" {
			panic(simPanic(fmt.Sprintf("%s%d is on %s before anything has happened", x.h.name, x.id, x.outcome())))
		}
	}
}

// mustHaveLinks: the scenario begins as it is meant to.
func (s *sim) mustHaveLinks(n int) {
	if got := s.links(); got != n {
		panic(simPanic(fmt.Sprintf("%d links, want %d", got, n)))
	}
}

func (s *sim) setDown(down bool, devices ...*simfab.Device) {
	for _, d := range devices {
		d.SetDown(down)
	}
}

func firstContact(s *sim) { s.dial(s.hosts[0], s.hosts[1], [2]int{100 << 10, 70 << 10}) }

// RFC 7609 §3.5.1, Figures 8 to 10: with a second link where there are RNICs for it.
func TestEveryStepOfFirstContactFails(t *testing.T) {
	scenario{act: firstContact}.in(t, [2]int{2, 2}, mapped, linux11, rfc11, linux22, rfc22, linux21, linux12)
}

// RFC 7609 §3.5.5.2.1, on all links; from four on with CONFIRM RKEY CONTINUATION.
func TestEveryStepOfConfirmRKeyFails(t *testing.T) {
	scenario{
		prepare: func(s *sim) {
			s.staying(1, 100)
			s.mustHaveLinks(max(1, s.rnics[0]))
		},
		act: func(s *sim) {
			firstContact(s)
			s.more(5000)
		},
		survives: true,
	}.in(t, [2]int{1, 1}, append([]simOptions{linux44, rfc44}, twoOrNone...)...)
}

// RFC 7609 §3.5.5.1, Figure 15: three RMBs of the client and four of the server.
func TestEveryStepOfAddLinkFails(t *testing.T) {
	scenario{
		prepare: func(s *sim) {
			a, b := s.hosts[0], s.hosts[1]
			s.setDown(true, a.devs[1], b.devs[1])
			s.staying(7, 100)
			if n, m := len(a.e.sortedGroups()[0].rmbs), len(b.e.sortedGroups()[0].rmbs); n != 3 || m != 4 {
				panic(simPanic(fmt.Sprintf("%d and %d RMBs", n, m)))
			}
			s.mustHaveLinks(1)
		},
		act: func(s *sim) {
			s.setDown(false, s.hosts[0].devs[1], s.hosts[1].devs[1])
			s.run(longest, func() bool { return s.links() == 2 })
			s.more(5000)
		},
	}.in(t, [2]int{3, 2}, twoRNICs...)
}

// RFC 7609 §3.5.5.1.3, §3.5.5.1.4: both ways, in order and not.
func TestEveryStepOfDeleteLinkFails(t *testing.T) {
	for name, begin := range map[string]func(*sim){
		"client, orderly":   func(s *sim) { s.deleteLink(s.hosts[0]) },
		"server, orderly":   func(s *sim) { s.deleteLink(s.hosts[1]) },
		"client, link lost": func(s *sim) { s.hosts[0].devs[1].FailQPs() },
		"server, link lost": func(s *sim) { s.hosts[1].devs[1].FailQPs() },
	} {
		scenario{
			name: name,
			prepare: func(s *sim) {
				s.staying(2, 100)
				s.mustHaveLinks(2)
			},
			act: func(s *sim) {
				begin(s)
				s.more(20000)
			},
		}.in(t, [2]int{2, 2}, twoRNICs...)
	}
}

// deleteLink has the engine end the younger link in order.
func (s *sim) deleteLink(h *simHost) {
	for _, g := range h.e.sortedGroups() {
		if n := g.links[len(g.links)-1].num; !h.e.DeleteLink(g.id, n, s.now()) {
			panic(simPanic(fmt.Sprintf("link %d is not deleted", n)))
		}
	}
}

// RFC 7609 §3.5.5.2.2: RMBs that nobody uses.
func TestEveryStepOfDeleteRKeyFails(t *testing.T) {
	scenario{
		prepare: func(s *sim) {
			s.staying(4, 100)
			s.mustHaveLinks(2)
			for _, x := range s.ends[2:] {
				x.stay, x.stayed, x.ready = false, false, true
			}
			s.run(longest, func() bool { return s.ends[7].over() && s.ends[6].over() })
		},
		act: func(s *sim) {
			s.run(2*time.Duration(shrinkAfter), nil)
			s.more(5000)
		},
		survives: true,
	}.in(t, [2]int{1, 1}, twoRNICs...)
}

// RFC 7609 §3.5.4.
func TestEveryStepOfTheEndOfAnIdleGroupFails(t *testing.T) {
	var kinds []simOptions
	for _, o := range twoOrNone {
		o.idle = 40 * time.Second
		kinds = append(kinds, o)
	}
	scenario{
		prepare: func(s *sim) { s.staying(2, 100) },
		act: func(s *sim) {
			s.release()
			s.run(2*time.Minute, nil)
			firstContact(s)
		},
	}.in(t, [2]int{2, 2}, kinds...)
}

// RFC 7609 §4.6: with two links, whatever happens to one message costs no connection.
func TestEveryStepOfDataTransferFails(t *testing.T) {
	for name, n := range map[string][2]int{"both ways": {70_000, 70_000}, "to the server": {200_000, 0}, "to the client": {0, 200_000}} {
		scenario{
			name: name,
			prepare: func(s *sim) {
				s.staying(2, 100)
				s.mustHaveLinks(2)
			},
			act:      func(s *sim) { s.moreEach(n[0], n[1]) },
			survives: true,
		}.in(t, [2]int{2, 2}, twoRNICs...)
	}
}

// A failure during a failover.
func TestEveryStepOfAFailoverFails(t *testing.T) {
	scenario{
		prepare: func(s *sim) {
			s.staying(3, 100)
			s.mustHaveLinks(2)
		},
		act: func(s *sim) {
			s.more(100_000)
			s.after(50*time.Microsecond, func() { s.fab.Cut(s.hosts[0].devs[0], s.hosts[1].devs[0]) })
		},
	}.in(t, [2]int{2, 2}, twoRNICs...)
}

// RFC 7609 §C.8: while there is no path for it a second link is tried for from time to time, and it comes once there is.
func TestSecondLinkIsTriedForByTimer(t *testing.T) {
	for _, o := range twoRNICs {
		mustSimulate(t, o.kind(), o, func(s *sim) {
			a, b := s.hosts[0].devs[1], s.hosts[1].devs[1]
			s.fab.Cut(a, b)
			s.staying(1, 100)
			s.mustHaveLinks(1)
			tries := 0
			s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
				if st.from.devs[1] == st.dev {
					tries++
				}
				return simfab.Deliver, 0
			}
			s.run(10*time.Minute, nil)
			if tries < 3 || tries > 10 { // both sides have a timer, whose time doubles
				s.failf("%d tries in ten minutes", tries)
			}
			s.fab.Repair(a, b)
			if !s.run(longest, func() bool { return s.links() == 2 }) {
				s.failf("no second link")
			}
		})
	}
}

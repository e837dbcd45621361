package engine

import (
	"fmt"
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
			// A reliable connection loses what was written to memory only together with itself.
			if !st.llc {
				return simfab.Break, 0
			}
			return simfab.Drop, 0
		case delaying:
			return simfab.Deliver, late
		case cutting:
			s.fab.Cut(st.dev, st.at)
		case breaking:
			return simfab.Break, 0
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
	t.Run(c.name, c.every)
}

func (c scenario) every(t *testing.T) {
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
			outcomes, failed := map[string]int{}, 0
			for n := 0; ; n++ {
				var hit *string
				s := mustSimulate(t, fmt.Sprintf("%s: %s at step %d", c.name, f, n), c.options, func(s *sim) {
					if c.prepare != nil {
						c.prepare(s)
					}
					hit = s.arm(f, s.steps+n)
					c.act(s)
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
		return "RFC"
	}
	return "Linux"
}

// staying makes n connections that carry some bytes and stay, and waits until they have.
func (s *sim) staying(n, size int) {
	for range n {
		a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{size, size})
		a.stay, b.stay = true, true
		s.run(longest, s.allOver)
	}
	s.run(time.Second, nil)
}

func firstContact(s *sim) { s.dial(s.hosts[0], s.hosts[1], [2]int{100 << 10, 70 << 10}) }

// RFC 7609 §3.5.1, Figures 8 to 10.
func TestEveryStepOfFirstContactFails(t *testing.T) {
	for _, o := range []simOptions{{mapped: true}, {}, {rfc: true}} {
		scenario{name: o.kind(), options: o, act: firstContact}.everyStep(t)
	}
}

// RFC 7609 §3.5.5.2.1.
func TestEveryStepOfConfirmRKeyFails(t *testing.T) {
	scenario{
		name: "mapped", options: simOptions{mapped: true, elements: [2]int{1, 1}},
		prepare: func(s *sim) { s.staying(1, 100) },
		act: func(s *sim) {
			firstContact(s)
			s.more(5000)
		},
	}.everyStep(t)
}

// RFC 7609 §3.5.4.
func TestEveryStepOfTheEndOfAnIdleGroupFails(t *testing.T) {
	scenario{
		name: "mapped", options: simOptions{mapped: true},
		prepare: func(s *sim) { s.staying(2, 100) },
		act: func(s *sim) {
			s.release()
			s.run(longest, nil)
			firstContact(s)
		},
	}.everyStep(t)
}

package engine

import (
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"libsmcr/verbs/simfab"
)

var (
	simSeeds = flag.Int("sim.seeds", 500, "how many random simulations")
	simSeed  = flag.Uint64("sim.seed", 0, "only this one, with its trace")
	simTime  = flag.Duration("sim.time", 0, "as many as fit into this time, from a seed of their own")
)

// misfortune is how often what happens to a simulation.
type misfortune struct {
	step  int // one message in that many is struck; 0 = none
	clc   int
	paths int // events that happen to RNICs and paths
	kills int
	early int // programs that close before they are done
}

// random is a whole simulation made from its seed.
func random(s *sim) {
	pick := func(n ...int) int { return n[s.rnd.IntN(len(n))] }
	m := misfortune{step: pick(0, 0, 10, 50, 200), clc: pick(0, 0, 0, 10), paths: pick(0, 1, 3, 10), kills: pick(0, 0, 0, 1), early: pick(0, 0, 1)}
	s.tell("seed %d: %+v, %+v", s.seed, s.simOptions, m)
	s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
		if m.step == 0 || s.rnd.IntN(m.step) != 0 {
			return simfab.Deliver, 0
		}
		switch s.rnd.IntN(8) {
		case 0:
			if st.llc {
				return simfab.Drop, 0
			}
			return simfab.Break, 0
		case 1:
			return simfab.Refuse, 0
		case 2:
			return simfab.Break, 0
		case 3:
			if s.mapped {
				return simfab.Refuse, 0 // a datagram is queued at the peer or not
			}
			return simfab.Unacked, 0
		case 4:
			return simfab.Deliver, time.Duration(s.rnd.Int64N(int64(late)))
		case 5:
			return simfab.Hold, 0
		}
		return simfab.Deliver, time.Duration(s.rnd.Int64N(int64(20 * time.Millisecond)))
	}
	s.strike = func(simStep) (bool, time.Duration) {
		if m.clc == 0 || s.rnd.IntN(m.clc) != 0 {
			return false, 0
		}
		if s.rnd.IntN(2) == 0 {
			return true, 0
		}
		return false, time.Duration(s.rnd.Int64N(int64(late)))
	}
	const active = 20 * time.Second
	when := func() time.Duration {
		if s.rnd.IntN(2) == 0 {
			return time.Duration(s.rnd.Int64N(int64(active)))
		}
		return time.Duration(s.rnd.Int64N(int64(20 * time.Millisecond)))
	}
	host := func() *simHost { return s.hosts[s.rnd.IntN(len(s.hosts))] }
	rnic := func() (string, *simfab.Device) {
		h := host()
		i := s.rnd.IntN(len(h.devs))
		return fmt.Sprintf("%s%d", h.name, i), h.devs[i]
	}
	for range 1 + s.rnd.IntN(10) {
		from, to := host(), host()
		size := [2]int{s.rnd.IntN(1 << s.rnd.IntN(19)), s.rnd.IntN(1 << s.rnd.IntN(19))}
		s.after(when(), func() {
			if from.dead || to.dead {
				return
			}
			s.tell("%s connects to %s", from.name, to.name)
			a, b := s.dial(from, to, size)
			if s.rnd.IntN(3) < m.early {
				s.after(when(), func() { s.giveUp(a) })
			}
			if s.rnd.IntN(6) < m.early {
				s.after(when(), func() { s.giveUp(b) })
			}
		})
	}
	for range m.paths {
		n, d := rnic()
		k, x := rnic()
		at, wait := when(), when()
		switch s.rnd.IntN(4) {
		case 0:
			s.after(at, func() { s.tell("%s down", n); d.SetDown(true) })
			s.after(at+wait, func() { s.tell("%s up", n); d.SetDown(false) })
		case 1:
			s.after(at, func() { s.tell("%s-%s cut", n, k); s.fab.Cut(d, x) })
			s.after(at+wait, func() { s.tell("%s-%s repaired", n, k); s.fab.Repair(d, x) })
		case 2:
			s.after(at, func() {
				if all := d.QPNs(); len(all) > 0 {
					q := all[s.rnd.IntN(len(all))]
					s.tell("%s queue pair %s fails", n, q)
					d.BreakQP(q)
				}
			})
		case 3:
			s.after(at, func() { s.tell("%s fails", n); d.FailQPs() })
		}
	}
	for range m.kills {
		h := host()
		s.after(when(), func() { s.kill(h) })
	}
	s.run(2*active, nil)
}

// giveUp: the program closes with data unread and unsent.
func (s *sim) giveUp(x *simEnd) {
	if x.over() {
		return
	}
	s.tell("%s%d gives up", x.h.name, x.id)
	negotiating := x.rings == nil
	x.close()
	if negotiating {
		x.peer.arrive(nil, 0)
	}
}

// A simulation follows from its seed alone: what fails can be looked at.
func TestSeedMakesTheSimulation(t *testing.T) {
	for seed := range uint64(20) {
		o := randomOptions(seed)
		o.trace = true
		one, again := simulate(t, o, random), simulate(t, o, random)
		if !slices.Equal(one.lines, again.lines) || len(one.lines) < 10 {
			t.Errorf("seed %d: %d and %d lines", seed, len(one.lines), len(again.lines))
		}
	}
}

func randomOptions(seed uint64) simOptions {
	r := seed * 0x9E3779B97F4A7C15
	bits := func(n int) int { v := int(r>>60) % n; r *= 0xD1342543DE82EF95; return v }
	o := simOptions{seed: seed, random: true, hosts: 2 + bits(5)/4}
	o.mapped = bits(8) == 0 || true
	o.rnics = [2]int{1 + bits(3), 1 + bits(3)}
	o.elements = [2]int{1 + bits(4), 1 + bits(4)}
	if !o.mapped && bits(2) == 0 {
		o.rfc = true
	}
	return o
}

// Each seed is some hosts, connections and faults; the streams are checked from end to end.
func TestRandomFaults(t *testing.T) {
	if *simSeed != 0 {
		o := randomOptions(*simSeed)
		o.trace = true
		s := simulate(t, o, random)
		for _, l := range s.lines {
			t.Log(l)
		}
		for _, f := range s.failures {
			t.Error(f)
		}
		return
	}
	first, began, outcomes, failed := uint64(1), time.Now(), map[string]int{}, 0
	if *simTime > 0 {
		first = uint64(began.UnixNano())
	}
	n := 0
	for ; n < *simSeeds || *simTime > 0; n++ {
		if *simTime > 0 && time.Since(began) > *simTime {
			break
		}
		seed := first + uint64(n)
		s := mustSimulate(t, fmt.Sprintf("go test ./engine -run TestRandomFaults -sim.seed=%d", seed), randomOptions(seed), random)
		if failed += min(len(s.failures), 1); failed > 2 {
			t.Fatal("and so on")
		}
		for _, x := range s.ends {
			outcomes[x.outcome()]++
		}
	}
	t.Logf("%d simulations, connections: %v", n, outcomes)
	for _, o := range []string{"smc", "fallback", "broken", "dead", "given up"} {
		if *simSeeds >= 500 && outcomes[o] == 0 {
			t.Errorf("no connection ends as %s: %v", o, outcomes)
		}
	}
}

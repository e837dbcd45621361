package engine

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"libsmcr/abi/clc"
	"libsmcr/abi/smc"
	"libsmcr/verbs/simfab"
)

var (
	simSeeds = flag.Int("sim.seeds", seeds, "how many random simulations")
	simSeed  = flag.Uint64("sim.seed", 0, "only this one, with its trace")
	simShow  = flag.Int("sim.show", 3, "of how many kinds of failures a trace is shown")
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

// plan has something happen at some time, unless it is to be left out.
func (s *sim) plan(after time.Duration, fn func()) {
	if s.planned++; !s.skip[s.planned-1] {
		s.after(after, fn)
	}
}

// unlucky decides whether a message is struck, once in n.
func (s *sim) unlucky(step simStep, n int) (*rand.Rand, bool) {
	d := s.dice(forStep, step.n)
	if n == 0 || d.IntN(n) != 0 || s.skip[firstStep+step.n] {
		return nil, false
	}
	s.struck = append(s.struck, firstStep+step.n)
	return d, true
}

// random is a whole simulation made from its seed.
func random(s *sim) {
	r := s.dice(forPlan, 0)
	pick := func(n ...int) int { return n[r.IntN(len(n))] }
	m := misfortune{step: pick(0, 0, 10, 50, 200), clc: pick(0, 0, 0, 10), paths: pick(0, 1, 3, 10), kills: pick(0, 0, 0, 1), early: pick(0, 0, 1)}
	s.tell("seed %d: %+v, %+v", s.seed, s.simOptions, m)
	s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
		d, hit := s.unlucky(st, m.step)
		if !hit {
			return simfab.Deliver, 0
		}
		switch d.IntN(8) {
		case 0:
			if !st.llc {
				return s.doom(st)
			}
			return simfab.Drop, 0
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
			return simfab.Deliver, time.Duration(d.Int64N(int64(late)))
		case 5:
			return simfab.Hold, 0
		}
		return simfab.Deliver, time.Duration(d.Int64N(int64(20 * time.Millisecond)))
	}
	s.strike = func(st simStep) (bool, time.Duration) {
		d, hit := s.unlucky(st, m.clc)
		if !hit {
			return false, 0
		}
		if st.what == clc.TypeDecline.String() {
			// Who has declined looks out for the peer's Decline for as long as LLC may take, not longer.
			return false, time.Duration(d.Int64N(int64(time.Second)))
		}
		return d.IntN(2) == 0, time.Duration(d.Int64N(int64(late)))
	}
	const active = 20 * time.Second
	when := func() time.Duration {
		if r.IntN(2) == 0 {
			return time.Duration(r.Int64N(int64(active)))
		}
		return time.Duration(r.Int64N(int64(20 * time.Millisecond)))
	}
	host := func() *simHost { return s.hosts[r.IntN(len(s.hosts))] }
	rnic := func() (string, *simfab.Device) {
		h := host()
		i := r.IntN(len(h.devs))
		return fmt.Sprintf("%s%d", h.name, i), h.devs[i]
	}
	for range 1 + r.IntN(10) {
		from, to := host(), host()
		size := [2]int{r.IntN(1 << r.IntN(19)), r.IntN(1 << r.IntN(19))}
		early := [2]bool{r.IntN(3) < m.early, r.IntN(6) < m.early}
		wait := [2]time.Duration{when(), when()}
		s.plan(when(), func() {
			s.tell("%s connects to %s", from.name, to.name)
			a, b := s.dial(from, to, size)
			for i, x := range []*simEnd{a, b} {
				if early[i] && x != nil {
					s.after(wait[i], func() { s.giveUp(x) })
				}
			}
		})
	}
	for range m.paths {
		n, d := rnic()
		k, x := rnic()
		at, wait, which := when(), when(), r.Int()
		switch r.IntN(4) {
		case 0:
			s.plan(at, func() {
				s.tell("%s down", n)
				d.SetDown(true)
				s.after(wait, func() { s.tell("%s up", n); d.SetDown(false) })
			})
		case 1:
			s.plan(at, func() {
				s.tell("%s-%s cut", n, k)
				s.fab.Cut(d, x)
				s.after(wait, func() { s.tell("%s-%s repaired", n, k); s.fab.Repair(d, x) })
			})
		case 2:
			s.plan(at, func() {
				if all := d.QPNs(); len(all) > 0 {
					q := all[which%len(all)]
					s.tell("%s queue pair %s fails", n, q)
					d.BreakQP(q)
				}
			})
		case 3:
			s.plan(at, func() { s.tell("%s fails", n); d.FailQPs() })
		}
	}
	for range m.kills {
		h := host()
		s.plan(when(), func() { s.kill(h) })
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
	o.mapped = bits(8) == 0
	o.rnics = [2]int{1 + bits(3), 1 + bits(3)}
	o.elements = [2]int{1 + bits(4), 1 + bits(4)}
	if !o.mapped {
		switch bits(5) {
		case 0, 1:
			o.rfc = true
		case 2:
			o.hosts, o.mixed = 3, true
		}
	}
	return o
}

// What random runs found: a refusal of ADD LINK over a link that breaks with it.
func TestFaultsThatWereFoundAtRandom(t *testing.T) {
	for _, seed := range []uint64{838} {
		mustSimulate(t, "seed", randomOptions(seed), random)
	}
}

// Each seed is some hosts, connections and faults; the streams are checked from end to end.
func TestRandomFaults(t *testing.T) {
	if *simSeed != 0 {
		o := randomOptions(*simSeed)
		o.trace = true
		s := simulate(t, o, random)
		t.Logf("the whole trace:\n%s\n%s", strings.Join(s.lines, "\n"), strings.Join(s.failures, "\n"))
		mustSimulate(t, "the same", randomOptions(*simSeed), random)
		return
	}
	type kind struct {
		count int
		first uint64
		all   []string
	}
	kinds := map[string]*kind{}
	first, began, outcomes, messages := uint64(1), time.Now(), map[string]int{}, map[string]int{}
	if *simTime > 0 {
		first = uint64(began.UnixNano())
	}
	n := 0
	for ; n < *simSeeds || *simTime > 0; n++ {
		if *simTime > 0 && time.Since(began) > *simTime {
			break
		}
		seed := first + uint64(n)
		s := simulate(t, randomOptions(seed), random)
		for _, x := range s.ends {
			outcomes[x.outcome()]++
		}
		for k, v := range s.kinds {
			messages[k] += v
		}
		if s.kinds[smc.RFC.String()] > 0 && s.kinds[smc.Linux.String()] > 0 {
			messages["both dialects"]++
		}
		if len(s.failures) == 0 {
			continue
		}
		name := kindOf(s.failures[0])
		if kinds[name] == nil {
			kinds[name] = &kind{first: seed, all: s.failures}
		}
		kinds[name].count++
	}
	shown := 0
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		k := kinds[name]
		t.Errorf("%d of %d: %s\ngo test ./engine -run TestRandomFaults -sim.seed=%d:\n%s", k.count, n, name, k.first, strings.Join(k.all, "\n"))
		if shown++; shown <= *simShow {
			t.Error(shortest(t, randomOptions(k.first), random, k.all))
		}
	}
	t.Logf("%d simulations, connections: %v, messages: %v", n, outcomes, messages)
	for _, o := range []string{"smc", "fallback", "broken", "dead", "given up"} {
		if n >= seeds && outcomes[o] == 0 {
			t.Errorf("no connection ends as %s", o)
		}
	}
	for _, m := range []string{"CONFIRM LINK", "ADD LINK", "ADD LINK CONT", "DELETE LINK", "CONFIRM RKEY", "DELETE RKEY", "TEST LINK", "failover", smc.RFC.String(), smc.Linux.String(), "both dialects"} {
		if n >= seeds && messages[m] == 0 {
			t.Errorf("no %s", m)
		}
	}
}

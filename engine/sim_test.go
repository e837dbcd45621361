package engine

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"libsmcr/abi/cdc"
	"libsmcr/abi/llc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
	"libsmcr/verbs/simfab"
)

// sim is hosts with RNICs and an engine each, TCP connections between them and programs that use these, in fake time.
// A step is a message: each can be struck by a fault. What is wrong is collected, so that a run can be repeated with a
// trace.
type sim struct {
	simOptions
	order    *rand.Rand
	start    time.Time
	fab      *simfab.Fabric
	hosts    []*simHost
	ends     []*simEnd
	strike   func(step simStep) (lost bool, late time.Duration) // CLC messages
	judge    func(step simStep) (simfab.Verdict, time.Duration) // all others
	steps    int
	later    []func() // to be done when no engine is in the middle of something
	timers   []simTimer
	kinds    map[string]int // messages that flowed
	doomed   map[roce.QPN]bool
	planned  int
	struck   []int // firstStep+n for each
	failures []string
	lines    []string
}

type simOptions struct {
	seed     uint64
	rnics    [2]int         // of A and B, more hosts have one
	vlans    [2][]roce.VLAN // of these; none = untagged
	hosts    int
	elements [2]int
	mapped   bool
	idle     time.Duration // Timeouts.Idle
	rfc      bool          // all speak as RFC 7609 is written, since nobody is told otherwise
	mixed    bool          // the last host does so, the others among themselves as Linux
	random   bool          // latencies, order
	trace    bool
	skip     map[int]bool // of what happens at random: planned, and from firstStep on to messages
}

const firstStep = 1000

// simStep is one message.
type simStep struct {
	n        int
	what     string
	from, to *simHost
	dev, at  *simfab.Device // nil for CLC
	qp, peer roce.QPN
	llc      bool
}

type simTimer struct {
	at time.Duration
	fn func()
}

type simHost struct {
	s        *sim
	name     string
	e        *Engine
	devs     []*simfab.Device
	net      LAN
	reserved int64
	dead     bool
}

type simPanic string

func (s *sim) failf(format string, args ...any) {
	s.failures = append(s.failures, fmt.Sprintf(format, args...))
}

func (s *sim) tell(format string, args ...any) {
	if s.trace {
		s.lines = append(s.lines, fmt.Sprintf("%12v ", s.since())+fmt.Sprintf(format, args...))
	}
}

func (s *sim) since() time.Duration { return time.Since(s.start) }

// dialect is what two hosts speak.
func (s *sim) dialect(a, b *simHost) smc.Dialect {
	if last := s.hosts[len(s.hosts)-1]; s.rfc || s.mixed && (a == last || b == last) {
		return smc.RFC
	}
	return smc.Linux
}

func (s *sim) now() Instant { return Instant(s.since()) }

// simulate runs fn in a bubble of its own, ends all and checks that nothing is left.
func simulate(t *testing.T, o simOptions, fn func(*sim)) *sim {
	var s *sim
	synctest.Test(t, func(*testing.T) {
		s = newSim(o)
		defer func() {
			if p := recover(); p != nil {
				if why, ok := p.(simPanic); ok {
					s.failf("%s", why)
				} else {
					s.failf("panic: %v\n%s", p, debug.Stack())
				}
			}
		}()
		fn(s)
		s.finish()
	})
	return s
}

// mustSimulate fails the test if something is wrong.
func mustSimulate(t *testing.T, name string, o simOptions, fn func(*sim)) *sim {
	t.Helper()
	s := simulate(t, o, fn)
	if len(s.failures) > 0 {
		t.Errorf("%s:\n%s\n%s", name, strings.Join(s.failures, "\n"), shortest(t, o, fn, s.failures))
	}
	return s
}

// shortest is the trace of a run that fails alike and from which all is left out that does not matter.
func shortest(t *testing.T, o simOptions, fn func(*sim), failures []string) string {
	alike := func(o simOptions) (*sim, bool) {
		s := simulate(t, o, fn)
		return s, len(s.failures) > 0 && kindOf(s.failures[0]) == kindOf(failures[0])
	}
	o.skip = map[int]bool{}
	for pass, last := 0, -1; len(o.skip) > last && pass < 4; pass++ {
		last = len(o.skip)
		s, _ := alike(o)
		all := s.struck
		for i := range s.planned {
			all = append(all, i)
		}
		for _, i := range all {
			if o.skip[i] {
				continue
			}
			o.skip[i] = true
			if _, ok := alike(o); !ok {
				delete(o.skip, i)
			}
		}
	}
	o.trace = true
	s, ok := alike(o)
	if n := len(s.lines); n > 400 {
		s.lines = append(append(slices.Clone(s.lines[:100]), fmt.Sprintf("... %d lines ...", n-400)), s.lines[n-300:]...)
	}
	return fmt.Sprintf("as short as it gets, the same failure %t:\n%s\n%s", ok, strings.Join(s.lines, "\n"), strings.Join(s.failures, "\n"))
}

var digits = regexp.MustCompile("[ABC]?[0-9]+|^[ABC]:")

// kindOf is a failure without its numbers.
func kindOf(failure string) string {
	first, _, _ := strings.Cut(failure, "\n")
	return digits.ReplaceAllString(first, "#")
}

const (
	lan      = 10 * time.Microsecond // one way
	patience = 500 * time.Millisecond
)

func newSim(o simOptions) *sim {
	o.hosts = max(o.hosts, 2)
	s := &sim{simOptions: o, kinds: map[string]int{}, doomed: map[roce.QPN]bool{}, start: time.Now().Add(-time.Hour), fab: simfab.New(uint32(o.seed) + 1)}
	s.order = s.dice(forOrder, 0)
	s.fab.Now, s.fab.Patience = s.since, patience
	s.fab.Filter, s.fab.Latency = s.filter, s.latency
	if o.trace {
		s.fab.Trace = func(line string) {
			if !strings.HasSuffix(line, ": deliver") {
				s.tell("%s", line)
			}
		}
	}
	for i := range o.hosts {
		h := &simHost{s: s, name: string(rune('A' + i)), net: aLAN}
		n, elements := 1, 2
		if i < 2 {
			n, elements = max(1, o.rnics[i]), max(1, o.elements[i])
		}
		c := Config{
			PeerID: smc.PeerID{0xF7, byte(i), 2, 0, 0, 0xAA, 0, byte(i + 1)}, RMBESize: MinRMBESize, Elements: elements,
			Timeouts: Timeouts{Idle: o.idle},
			Reserve:  func(d int64) bool { h.reserved += d; return true },
			Rand:     s.dice(forEngine, i).Uint32,
		}
		for j := range n {
			caps := verbs.Caps(0)
			if o.mapped {
				caps = verbs.CapMapped | verbs.CapLocal
			}
			var gid roce.GID
			copy(gid[:], fmt.Sprintf("%s%d", h.name, j))
			var d *simfab.Device
			if j == 0 {
				d = s.fab.Device(gid, caps)
			} else {
				d = h.devs[0].Sibling(gid)
			}
			if i < 2 && j < len(o.vlans[i]) {
				d.Tag(o.vlans[i][j])
			}
			h.devs = append(h.devs, d)
			c.Devices = append(c.Devices, d)
		}
		e, err := New(c)
		if err != nil {
			panic(simPanic(err.Error()))
		}
		h.e = e
		s.hosts = append(s.hosts, h)
	}
	return s
}

// ---- messages

const (
	forOrder = iota
	forEngine
	forPlan
	forLatency
	forStep
	forProgram
)

// dice is chance for one purpose and the n-th use of it: leaving out what happens to one message leaves that of the
// others alone.
func (s *sim) dice(purpose, n int) *rand.Rand {
	return rand.New(rand.NewPCG(s.seed<<3|uint64(purpose), uint64(n)))
}

func (s *sim) latency(e simfab.Event) (there, back time.Duration) {
	if !s.random {
		return lan, lan
	}
	d := s.dice(forLatency, e.N)
	there, back = time.Duration(d.IntN(20))*time.Microsecond, time.Duration(d.IntN(20))*time.Microsecond
	if d.IntN(50) == 0 {
		there += time.Duration(d.IntN(5)) * time.Millisecond
	}
	if d.IntN(50) == 0 {
		back += time.Duration(d.IntN(5)) * time.Millisecond
	}
	return there, back
}

func (s *sim) device(gid roce.GID) (*simHost, *simfab.Device) {
	h := s.hosts[gid[0]-'A']
	return h, h.devs[gid[1]-'0']
}

func (s *sim) filter(e simfab.Event) simfab.Verdict {
	step := simStep{n: s.steps, what: e.Op.String(), qp: e.Src, peer: e.Dst}
	s.steps++
	tell := func(m any) {
		if s.trace {
			s.tell("%d %s/%s>%s/%s %v", step.n, e.From[:2], e.Src, e.To[:2], e.Dst, m)
		}
	}
	step.from, step.dev = s.device(e.From)
	step.to, step.at = s.device(e.To)
	if e.Op == verbs.OpSend && cdc.Is(e.Msg) {
		step.what = "cdc"
		var m cdc.Message
		if m.Decode(e.Msg) == nil {
			tell(m)
			if m.Flags.Has(cdc.FailoverValidation) {
				s.kinds["failover"]++
			}
		}
	} else if e.Op == verbs.OpSend {
		step.llc, step.what = true, "llc"
		d := s.dialect(step.from, step.to)
		if m, err := llc.Decode(d, e.Msg); err == nil {
			step.what = m.Head().Type.String()
			s.kinds[step.what]++
			if step.what != llc.TypeTestLink.String() {
				tell(m)
			}
			if c, ok := m.(*llc.ConfirmLink); ok {
				if s.kinds[d.String()]++; d == smc.RFC {
					// Without the flag of Linux each side takes the other for one that follows the RFC.
					c.NoEyeCatcher = false
					copy(e.Msg, c.Append(smc.RFC, nil))
				}
			}
		}
	} else {
		tell(fmt.Sprintf("%s of %d bytes", e.Op, len(e.Msg)))
	}
	if s.doomed[e.Src] {
		return simfab.Drop
	}
	if s.judge == nil {
		return simfab.Deliver
	}
	v, late := s.judge(step)
	if v != simfab.Deliver || late > 0 {
		s.tell("FAULT at step %d (%s): %v, %v late", step.n, step.what, v, late)
	}
	if late > 0 {
		s.fab.Latency = func(simfab.Event) (there, back time.Duration) {
			s.fab.Latency = s.latency
			return late, lan
		}
	}
	return v
}

// doom: the peer's RNIC answers, but nothing that it is sent reaches its memory any more; soon it is dead (RFC 7609
// §4.6.1).
func (s *sim) doom(st simStep) (simfab.Verdict, time.Duration) {
	s.doomed[st.qp] = true
	s.after(time.Duration(3*lan), func() {
		s.tell("queue pairs %s and %s fail", st.qp, st.peer)
		st.at.BreakQP(st.peer)
		st.dev.BreakQP(st.qp)
	})
	return simfab.Drop, 0
}

// ---- time

// settle lets everything happen that happens now.
func (s *sim) settle() {
	for range 100000 {
		moved := false
		order := s.hosts
		if s.random && s.order.IntN(4) == 0 {
			order = slices.Clone(order)
			slices.Reverse(order)
		}
		for _, h := range order {
			if !h.dead {
				moved = h.e.Poll(s.now()) || moved
			}
		}
		for len(s.later) > 0 {
			fn := s.later[0]
			s.later = s.later[1:]
			fn()
			moved = true
		}
		for _, x := range s.ends {
			moved = x.deliver() || moved
			moved = x.work() || moved
		}
		if moved || s.busy() {
			continue
		}
		return
	}
	panic(simPanic("the world does not come to rest"))
}

func (s *sim) busy() bool {
	for _, h := range s.hosts {
		for _, d := range h.devs {
			if !h.dead && d.Waiting() > 0 {
				return true
			}
		}
	}
	at, ok := s.fab.Next()
	return ok && at <= s.since() || len(s.later) > 0
}

// next returns when something is to happen.
func (s *sim) next() time.Duration {
	at, ok := s.fab.Next()
	if !ok {
		at = 1 << 62
	}
	for _, h := range s.hosts {
		if d, ok := h.e.NextDeadline(); ok && !h.dead {
			at = min(at, time.Duration(d))
		}
	}
	for _, x := range s.ends {
		if x.h.dead || x.closed {
			continue
		}
		if len(x.in) > 0 {
			at = min(at, x.in[0].at)
		}
		if x.wake > s.since() {
			at = min(at, x.wake)
		}
	}
	for _, t := range s.timers {
		at = min(at, t.at)
	}
	return at
}

func (s *sim) after(d time.Duration, fn func()) {
	s.timers = append(s.timers, simTimer{s.since() + d, fn})
}

// run lets time pass, until done says so or that long.
func (s *sim) run(d time.Duration, done func() bool) bool {
	end := s.since() + d
	for range 1000000 {
		s.settle()
		if done != nil && done() {
			return true
		}
		next := s.next()
		if next > end {
			time.Sleep(end - s.since())
			return false
		}
		time.Sleep(next - s.since())
		for i := 0; i < len(s.timers); i++ {
			if t := s.timers[i]; t.at <= s.since() {
				s.timers = slices.Delete(s.timers, i, i+1)
				i--
				t.fn()
			}
		}
		for _, h := range s.hosts {
			if at, ok := h.e.NextDeadline(); ok && !h.dead && time.Duration(at) <= s.since() {
				h.e.Tick(s.now())
			}
		}
	}
	panic(simPanic("timers without end"))
}

// more has all connections that stay carry n bytes more, both ways.
func (s *sim) more(n int) { s.moreEach(n, n) }

// moreEach: to the server and to the client.
func (s *sim) moreEach(up, down int) {
	for i, x := range s.ends {
		n := up
		if i%2 == 1 {
			n = down
		}
		if x.stay && !x.closed && x.err == nil && !x.fell {
			x.size += n
			x.ready = true
		}
	}
}

// links returns how many links work on both sides, all groups of the first two hosts taken together.
func (s *sim) links() int {
	n := [2]int{}
	for i := range n {
		for _, g := range s.hosts[i].e.groups {
			for _, l := range g.links {
				if l.state == fsm.LinkActive {
					n[i]++
				}
			}
		}
	}
	return min(n[0], n[1])
}

// release lets the connections that stay come to their end.
func (s *sim) release() {
	for _, x := range s.ends {
		x.stay, x.ready = false, true
	}
}

func (s *sim) allOver() bool {
	return !slices.ContainsFunc(s.ends, func(x *simEnd) bool { return !x.over() })
}

// kill ends a process: its RNICs forget it, the kernel ends its TCP connections.
func (s *sim) kill(h *simHost) {
	if h.dead {
		return
	}
	s.tell("%s dies", h.name)
	h.dead = true
	for _, d := range h.devs {
		s.fab.Kill(d)
	}
	for _, x := range s.ends {
		if x.h == h {
			x.peer.hangUp()
		}
	}
}

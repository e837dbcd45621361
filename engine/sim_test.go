package engine

import (
	"bytes"
	"errors"
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
	"libsmcr/abi/clc"
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
	rnics    [2]int // of A and B, more hosts have one
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
	reserved int64
	dead     bool
}

// simEnd is one side of a TCP connection: the Handler, and the program that uses it.
type simEnd struct {
	s     *sim
	h     *simHost
	peer  *simEnd
	c     *Conn
	id    int
	in    []segment // of TCP, on its way to here
	eof   bool      // the peer's process has ended, or TCP was reset
	rings *Rings
	fell  bool
	err   error
	calls int

	size          int // bytes to be sent
	chunk         int // at most that many at once
	pause         time.Duration
	wake          time.Duration
	ready         bool       // with RNICs: it was woken, or goes on by itself
	urgent        *rand.Rand // when the last byte of a write is urgent; nil = never
	urgents       []uint64   // positions behind urgent bytes
	stay          bool       // neither shuts down nor closes before it is told to
	stayed        bool       // was there before the faults
	sent, got     int
	shut, sawEnd  bool
	closed, reset bool
}

type segment struct {
	at time.Duration
	b  []byte
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
		h := &simHost{s: s, name: string(rune('A' + i))}
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

func (x *simEnd) SendCLC(b []byte) error {
	if x.eof {
		return errors.New("connection reset")
	}
	s := x.s
	what := describe(b)
	step := simStep{n: s.steps, what: what, from: x.h, to: x.peer.h}
	s.steps++
	s.tell("%d %s%d %s", step.n, x.h.name, x.id, what)
	var late time.Duration
	if s.strike != nil {
		lost, d := s.strike(step)
		if late = d; lost || d > 0 {
			s.tell("FAULT at step %d (%s): lost %t, %v late", step.n, what, lost, late)
		}
		if lost {
			// TCP loses nothing but itself.
			s.after(2*longestCLC, func() { x.hangUp(); x.peer.hangUp() })
			return nil
		}
	}
	x.peer.arrive(slices.Clone(b), late)
	return nil
}

// longestCLC is how long a side waits for a CLC message.
const longestCLC = 6 * time.Second

// arrive: TCP keeps the order.
func (x *simEnd) arrive(b []byte, late time.Duration) {
	at := x.s.since() + lan + late
	if n := len(x.in); n > 0 {
		at = max(at, x.in[n-1].at)
	}
	x.in = append(x.in, segment{at, b})
}

// ---- TCP connections and their programs

func (s *sim) dial(from, to *simHost, size [2]int) (client, server *simEnd) {
	if from.dead || to.dead {
		return nil, nil
	}
	n := len(s.ends)
	client, server = &simEnd{s: s, h: from, id: n, size: size[0]}, &simEnd{s: s, h: to, id: n + 1, size: size[1]}
	client.peer, server.peer = server, client
	for _, x := range []*simEnd{client, server} {
		x.chunk = 48 << 10
		if s.random {
			d := s.dice(forProgram, x.id)
			x.chunk = 1 + max(size[0], size[1])/100 + d.IntN(1<<d.IntN(18))
			if d.IntN(4) == 0 && !s.mapped {
				x.urgent = d
			}
			x.pause = time.Duration(d.IntN(3)) * time.Duration(d.IntN(int(time.Millisecond)))
		}
	}
	s.ends = append(s.ends, client, server)
	server.c = to.e.Server(server, s.now())
	client.c = from.e.Client(client, netipPrefix, s.now())
	return client, server
}

func (x *simEnd) called(what string) {
	x.s.tell("%s%d %s", x.h.name, x.id, what)
	if x.closed {
		x.s.failf("%s%d: %s after it was closed", x.h.name, x.id, what)
	}
	x.calls++
}

func (x *simEnd) Established(r Rings) {
	x.called("established")
	x.rings, x.ready = &r, true
	if len(r.LocalHead) != HeadSize || len(r.PeerHead) != HeadSize || len(r.LocalRing) == 0 || len(r.PeerRing) == 0 || r.LocalToken == 0 {
		x.s.failf("%s%d: rings %+v", x.h.name, x.id, r)
	}
}

// Wake: there is something to read, or room.
func (x *simEnd) Wake() { x.ready = true }

func (x *simEnd) Fallback(code clc.DeclineCode, sent bool) {
	x.called(fmt.Sprintf("fallback %v sent=%t", code, sent))
	x.fell = true
}

func (x *simEnd) Broken(err error) {
	x.called(fmt.Sprintf("broken: %v", err))
	x.err = err
	x.peer.hangUp()
}

// hangUp: TCP was reset, or the process at the other end is gone.
func (x *simEnd) hangUp() {
	if !x.peer.closed {
		x.arrive(nil, 0)
	}
}

func (x *simEnd) outcome() string {
	switch {
	case x.h.dead:
		return "dead"
	case x.err != nil || x.reset:
		return "broken"
	case x.fell:
		return "fallback"
	case x.rings != nil:
		return "smc"
	case x.closed:
		return "given up"
	}
	return "open"
}

// over: nothing more will happen to it.
func (x *simEnd) over() bool {
	return x.h.dead || x.closed || x.err != nil || x.fell || x.stay && x.sent == x.size && x.got == x.peer.size
}

// deliver hands on one CLC message, or the end of TCP.
func (x *simEnd) deliver() bool {
	if x.h.dead || x.closed || x.c == nil || len(x.in) == 0 || x.in[0].at > x.s.since() {
		return false
	}
	b := x.in[0].b
	x.in = x.in[1:]
	switch {
	case b == nil && !x.c.State().Done():
		x.eof = true
		x.c.EOF(x.s.now())
	case b == nil:
		x.eof, x.reset = true, x.rings != nil && !x.fell
		if x.rings != nil {
			x.close()
		}
	case !x.c.State().Done():
		x.c.CLC(b, x.s.now())
	case x.fell || x.rings != nil:
		x.s.failf("%s%d: %s reaches the program", x.h.name, x.id, describe(b))
	}
	return true
}

// flow is what all programs send, each from another place on.
var flow = func() []byte {
	b := make([]byte, 2*flowSize)
	for i := range b[:flowSize] {
		b[i] = byte(i*131 + i>>8*17 + i>>13)
	}
	copy(b[flowSize:], b[:flowSize])
	return b
}()

const flowSize = 65521

func (x *simEnd) flow(at, n int) []byte { return flow[(x.id*7919+at)%flowSize:][:min(n, flowSize)] }

// work is what the program does with an established connection.
func (x *simEnd) work() bool {
	if x.h.dead || x.closed || x.rings == nil || x.err != nil || x.wake > x.s.since() || !x.ready && !x.s.mapped {
		return false
	}
	x.ready = false
	n := x.read() + x.write()
	in, out := headAt(x.rings.LocalHead), headAt(x.rings.PeerHead)
	flags := in.writerFlags()
	empty := in.prod() == in.cons()
	switch {
	case !x.shut && x.sent == x.size && !x.stay:
		x.shut = true
		x.s.tell("%s%d shuts down after %d bytes", x.h.name, x.id, x.sent)
		out.flagWriter(WriterDone)
	case flags&(WriterDone|WriterClosed) != 0 && empty && !x.sawEnd:
		x.sawEnd = true
		x.s.tell("%s%d has read all %d bytes", x.h.name, x.id, x.got)
		if x.got != x.peer.sent {
			x.s.failf("%s%d: end after %d bytes of %d", x.h.name, x.id, x.got, x.peer.sent)
		}
		if n := len(x.peer.urgents); n > 0 && (flags&Urgent == 0 || in.urg() != x.peer.urgents[n-1]) {
			x.s.failf("%s%d: urgent data ends at %d, flags %d, want %d", x.h.name, x.id, in.urg(), flags, x.peer.urgents[n-1])
		}
	case n == 0 && x.sawEnd && (x.shut || flags&WriterClosed != 0):
		x.close()
		return true
	case n == 0:
		return false
	}
	x.ready = true
	x.c.Kick(x.s.now())
	if x.pause > 0 {
		x.wake = x.s.since() + x.pause
	}
	return true
}

func (x *simEnd) read() int {
	h, ring := headAt(x.rings.LocalHead), x.rings.LocalRing
	prod, cons := h.prod(), h.cons()
	if prod-cons > uint64(len(ring)) || int(prod) > x.peer.sent {
		x.s.failf("%s%d: producer %d, consumer %d, ring of %d, %d were sent", x.h.name, x.id, prod, cons, len(ring), x.peer.sent)
		panic(simPanic("the rings are wrong"))
	}
	if h.writerFlags()&Urgent != 0 && !x.s.mapped && !slices.Contains(x.peer.urgents, h.urg()) {
		x.s.failf("%s%d: no urgent byte ends at %d", x.h.name, x.id, h.urg())
	}
	n := min(int(prod-cons), x.chunk)
	for left := n; left > 0; {
		at := int(cons % uint64(len(ring))) // not a power of two where there is an eye catcher
		k := min(left, len(ring)-at, flowSize)
		if !bytes.Equal(ring[at:][:k], x.peer.flow(x.got, k)) {
			x.s.failf("%s%d: other bytes between %d and %d than were sent", x.h.name, x.id, x.got, x.got+k)
			panic(simPanic("the data is wrong"))
		}
		x.got, cons, left = x.got+k, cons+uint64(k), left-k
	}
	h.setCons(cons)
	return n
}

func (x *simEnd) write() int {
	if x.shut {
		return 0
	}
	h, ring := headAt(x.rings.PeerHead), x.rings.PeerRing
	prod, cons := h.prod(), h.cons()
	if prod-cons > uint64(len(ring)) {
		x.s.failf("%s%d: %d bytes in a ring of %d", x.h.name, x.id, prod-cons, len(ring))
		panic(simPanic("the rings are wrong"))
	}
	n := min(x.size-x.sent, x.chunk, len(ring)-int(prod-cons))
	for left := n; left > 0; {
		at := int(prod) & (len(ring) - 1)
		k := copy(ring[at:], x.flow(x.sent, left))
		x.sent, prod, left = x.sent+k, prod+uint64(k), left-k
	}
	if n > 0 && x.urgent != nil && x.urgent.IntN(5) == 0 {
		x.urgents = append(x.urgents, prod)
		h.setUrg(prod)
		h.flagWriter(Urgent)
	}
	h.setProd(prod)
	return n
}

func (x *simEnd) close() {
	if !x.closed && !x.h.dead {
		x.s.tell("%s%d closes", x.h.name, x.id)
		x.closed = true
		x.c.Close(x.s.now())
	}
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

// ---- what must be true

// longest is the longest that anything may take which has a timer of its own.
const longest = 15 * time.Minute

// recovers is how long it takes to be as good as before once all paths are there again (RFC 7609 §C.8), and elements to
// be free that nobody gives back.
const recovers = 5 * time.Minute

// finish lets all connections come to their end, closes what is left and ends the engines.
func (s *sim) finish() {
	s.release()
	if !s.run(longest, s.allOver) {
		for _, x := range s.ends {
			if !x.over() {
				s.failf("%s%d hangs: %s in %s/%s, sent %d of %d, got %d, shut %t, saw the end %t",
					x.h.name, x.id, x.outcome(), x.c.State(), x.c.conn, x.sent, x.size, x.got, x.shut, x.sawEnd)
			}
		}
	}
	for i := 0; i < len(s.ends); i += 2 {
		s.agreed(s.ends[i], s.ends[i+1])
	}
	for _, x := range s.ends {
		x.close()
	}
	s.judge, s.strike, s.timers = nil, nil, nil
	s.fab.RepairAll()
	s.run(recovers, nil)
	for _, h := range s.hosts {
		s.legal(h)
		if !h.dead {
			h.e.Shutdown(s.now())
		}
	}
	s.run(2*abandonedFor, nil)
	for _, h := range s.hosts {
		if h.dead {
			continue // the kernel frees what it held
		}
		if at, ok := h.e.NextDeadline(); ok || h.reserved != 0 || len(h.e.conns)+len(h.e.groups)+len(h.e.byPeer)+len(h.e.outbox) != 0 {
			s.failf("%s: left over: %d connections, %d groups, %d bytes, a timer at %v", h.name, len(h.e.conns), len(h.e.groups), h.reserved, time.Duration(at))
		}
		if err := h.e.Close(); err != nil {
			s.failf("%s: %v", h.name, err)
		}
		for i, d := range h.devs {
			if d.Open() != (simfab.Open{}) {
				s.failf("%s%d: left over: %+v", h.name, i, d.Open())
			}
		}
	}
}

// agreed: never is one side on SMC-R and the other on TCP, and the handler is called as often as it should be.
func (s *sim) agreed(client, server *simEnd) {
	a, b := client.outcome(), server.outcome()
	if a == "smc" && b == "fallback" || a == "fallback" && b == "smc" {
		s.failf("%s%d is on %s, %s%d on %s", client.h.name, client.id, a, server.h.name, server.id, b)
	}
	for _, x := range []*simEnd{client, server} {
		limit := 1
		if x.rings != nil && x.err != nil {
			limit = 2
		}
		if !x.h.dead && x.calls > limit {
			s.failf("%s%d: %d calls of the handler", x.h.name, x.id, x.calls)
		}
	}
}

// legal: what may be there when nothing is under way.
func (s *sim) legal(h *simHost) {
	if h.dead {
		return
	}
	for _, g := range h.e.sortedGroups() {
		for _, l := range g.links {
			if g.state == groupActive && l.state != fsm.LinkActive {
				s.failf("%s: link %d of group %d is %s", h.name, l.num, g.id, l.state)
			}
		}
		// §C.8: a second link is tried for again and again.
		if peer := s.hosts[g.key.id[1]]; g.state == groupActive && !peer.dead && len(g.links) < min(2, max(len(h.devs), len(peer.devs))) && !s.mapped {
			s.failf("%s: group %d has %d links", h.name, g.id, len(g.links))
		}
		if peer := s.hosts[g.key.id[1]]; g.state == groupActive && g.dialect != s.dialect(h, peer) {
			s.failf("%s: group %d speaks %s", h.name, g.id, g.dialect)
		}
		if g.state == groupActive && g.x.state != fsm.Quiet {
			s.failf("%s: group %d is in %s for ever", h.name, g.id, g.x.state)
		}
		if g.state == groupActive && !s.mapped {
			s.mirrored(h, g)
		}
		if g.state == groupForming {
			s.failf("%s: group %d is %s for ever", h.name, g.id, g.state)
		}
		if len(g.conns) > 0 && g.state == groupActive {
			for _, c := range sorted(g.conns) {
				if s.mapped && c.closing && c.state == fsm.Established {
					continue // a peer that broke off without having known the element cannot give it back: docs/rfc-map.md, §4.8.1
				}
				s.failf("%s: connection %d is still in %s/%s", h.name, c.id, c.state, c.conn)
			}
		}
	}
}

// mirrored: both sides of a link group know the same links and the same RMBs.
func (s *sim) mirrored(h *simHost, g *LinkGroup) {
	peer := s.hosts[g.key.id[1]]
	if peer.dead {
		return
	}
	for _, l := range g.links {
		_, d := s.device(l.peer.GID)
		var x *Link
		for _, p := range peer.e.ports {
			if p.dev == verbs.Device(d) {
				x = p.links[l.peer.QPN]
			}
		}
		if x == nil || x.num != l.num || x.peer.QPN != l.qp.QPN() || x.peer.GID != l.attr.GID || x.state != l.state {
			s.failf("%s: the peer knows nothing of link %d of group %d", h.name, l.num, g.id)
			continue
		}
		known := 0
		for _, r := range g.rmbs {
			t := r.token(l)
			if m := x.remotes[t.RKey]; m != nil && m.tokens[x] == t {
				known++
			} else if r.confirmed && !r.retiring {
				s.failf("%s: the peer does not know RMB %d of group %d on link %d", h.name, r.id, g.id, l.num)
			}
		}
		// Linux goes on when there is no answer to DELETE RKEY.
		if known != len(x.remotes) && g.dialect == smc.RFC {
			s.failf("%s: the peer knows %d RMBs of group %d on link %d, %d are there", h.name, len(x.remotes), g.id, l.num, known)
		}
	}
}

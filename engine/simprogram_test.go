package engine

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"libsmcr/abi/clc"
)

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
	server.c = to.e.Server(server, to.net, s.now())
	client.c = from.e.Client(client, from.net, s.now())
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

package simfab

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
	"libsmcr/verbs/verbstest"
)

// clocked is a pair of plain devices on a fabric whose time the test moves.
type clocked struct {
	verbstest.Pair
	f    *Fabric
	now  time.Duration
	a, b *verbstest.End
}

func newClocked(t *testing.T) *clocked {
	c := &clocked{Pair: pair(0)(t)}
	c.f = c.A.(*Device).f
	c.f.Now = func() time.Duration { return c.now }
	c.f.Patience = time.Second
	c.a, c.b = verbstest.Connect(t, c.Pair)
	return c
}

// until lets time pass, from arrival to arrival.
func (c *clocked) until(at time.Duration) {
	for {
		next, ok := c.f.Next()
		if !ok || next > at {
			break
		}
		c.now = max(c.now, next)
		c.Step()
	}
	c.now = at
	c.Step()
}

func (c *clocked) recv(t *testing.T, e *verbstest.End, ids ...verbs.WRID) {
	t.Helper()
	for _, id := range ids {
		if err := e.QP.PostRecv(id, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
	}
}

func (c *clocked) send(t *testing.T, e *verbstest.End, id verbs.WRID, msg string) {
	t.Helper()
	if err := e.QP.PostSend(id, []byte(msg)); err != nil {
		t.Fatal(err)
	}
}

// put is a's region with s at its start.
func (c *clocked) put(s string) verbs.MR {
	copy(c.a.MR.Bytes(), s)
	return c.a.MR
}

func TestDelayKeepsTheOrderOfAQueuePair(t *testing.T) {
	c := newClocked(t)
	c.f.Latency = func(e Event) (there, back time.Duration) {
		if e.Op == verbs.OpWrite {
			return 5 * time.Millisecond, 0
		}
		return time.Millisecond, 2 * time.Millisecond
	}
	c.recv(t, c.b, 1)
	if err := c.a.QP.PostWrite(10, c.put("data"), 0, 4, c.b.MR.RKey(), c.b.MR.Addr()); err != nil {
		t.Fatal(err)
	}
	c.send(t, c.a, 11, "x")
	c.until(4 * time.Millisecond)
	c.a.Poll(t)
	c.b.Poll(t)
	c.until(5 * time.Millisecond)
	c.a.Poll(t, verbs.Completion{ID: 10, Op: verbs.OpWrite})
	c.b.Poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Len: 1})
	if string(c.b.MR.Bytes()[:4]) != "data" {
		t.Error("the message overtook the write")
	}
	c.until(7 * time.Millisecond)
	c.a.Poll(t, verbs.Completion{ID: 11, Op: verbs.OpSend})
	verbstest.Finish(t, c.Pair, c.a, c.b)
}

func TestNoAnswerIsKnownWhenPatienceEnds(t *testing.T) {
	// port takes a port down, and tells its host so.
	port := func(t *testing.T, e *verbstest.End) func() {
		e.Dev.(*Device).SetDown(true)
		event(t, e)
		return func() {
			e.Dev.(*Device).SetDown(false)
			event(t, e)
		}
	}
	for name, off := range map[string]func(*testing.T, *clocked) (on func()){
		"cut": func(_ *testing.T, c *clocked) func() {
			c.f.Cut(c.A.(*Device), c.B.(*Device))
			return func() { c.f.Repair(c.B.(*Device), c.A.(*Device)) }
		},
		"peer's port down": func(t *testing.T, c *clocked) func() { return port(t, c.b) },
		"own port down": func(t *testing.T, c *clocked) func() {
			on := port(t, c.a)
			if c.A.Reachable(c.A.Attr().GID) || c.A.Reachable(c.B.Attr().GID) {
				t.Error("reachable without a port")
			}
			return on
		},
		"all down": func(t *testing.T, c *clocked) func() {
			port(t, c.a)
			port(t, c.b)
			c.f.Cut(c.A.(*Device), c.B.(*Device))
			return func() {
				c.f.RepairAll()
				event(t, c.a)
				event(t, c.b)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClocked(t)
			c.recv(t, c.b, 1)
			on := off(t, c)
			c.send(t, c.a, 10, "x")
			c.until(time.Second / 2)
			c.a.Poll(t)
			on()
			c.until(time.Second)
			c.a.Poll(t, verbs.Completion{ID: 10, Op: verbs.OpSend})
			c.b.Poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Len: 1})

			c.recv(t, c.b, 2)
			c.recv(t, c.a, 3)
			on = off(t, c)
			c.send(t, c.a, 11, "y")
			c.send(t, c.a, 12, "z")
			c.until(2*time.Second - 1)
			c.a.Poll(t)
			c.until(2 * time.Second)
			c.a.Poll(t,
				verbs.Completion{ID: 11, Op: verbs.OpSend, Status: verbs.StatusUnreachable},
				verbs.Completion{ID: 12, Op: verbs.OpSend, Status: verbs.StatusFlushed},
				verbs.Completion{ID: 3, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
			on()
			c.until(10 * time.Second)
			c.b.Poll(t)
			if c.b.QP.State() != verbs.RTS {
				t.Error("the peer cannot know")
			}
			c.send(t, c.b, 20, "?")
			c.until(11 * time.Second)
			c.b.Poll(t,
				verbs.Completion{ID: 20, Op: verbs.OpSend, Status: verbs.StatusUnreachable},
				verbs.Completion{ID: 2, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
			verbstest.Finish(t, c.Pair, c.a, c.b)
		})
	}
}

// event takes the word that a port has changed.
func event(t *testing.T, e *verbstest.End) {
	t.Helper()
	var got [2]verbs.Completion
	if n := e.CQ.Poll(got[:]); n != 1 || got[0] != (verbs.Completion{Op: verbs.OpPort}) {
		t.Fatalf("%d completions %+v", n, got)
	}
}

// An RNIC answers for a host that has posted no receive only when it has.
func TestSendCompletesWhenItIsReceived(t *testing.T) {
	c := newClocked(t)
	c.send(t, c.a, 10, "x")
	c.send(t, c.a, 11, "y")
	c.until(time.Minute)
	c.a.Poll(t)
	c.recv(t, c.b, 1)
	c.until(2 * time.Minute)
	c.a.Poll(t, verbs.Completion{ID: 10, Op: verbs.OpSend})
	c.b.Poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Len: 1})
	c.b.QP.Fail()
	c.until(3 * time.Minute)
	c.a.Poll(t, verbs.Completion{ID: 11, Op: verbs.OpSend, Status: verbs.StatusUnreachable})
	verbstest.Finish(t, c.Pair, c.a, c.b)
}

// What is on its way arrives, whatever becomes of the queue pair it was sent from.
func TestWriteOutlivesItsQueuePair(t *testing.T) {
	c := newClocked(t)
	c.f.Latency = func(Event) (there, back time.Duration) { return time.Millisecond, 0 }
	if err := c.a.QP.PostWrite(10, c.put("late"), 0, 4, c.b.MR.RKey(), c.b.MR.Addr()); err != nil {
		t.Fatal(err)
	}
	c.a.QP.Fail()
	c.put("else") // the region is the caller's again
	c.a.Poll(t, verbs.Completion{ID: 10, Op: verbs.OpWrite, Status: verbs.StatusFlushed})
	c.until(time.Millisecond)
	if string(c.b.MR.Bytes()[:4]) != "late" {
		t.Error("it did not arrive")
	}
	c.until(time.Minute)
	c.a.Poll(t)
	verbstest.Finish(t, c.Pair, c.a, c.b)
}

// A write that the peer's RNIC refuses, or a message that does not fit, fails both queue pairs.
func TestRefusedRequestFailsBothQueuePairs(t *testing.T) {
	c := newClocked(t)
	if err := c.a.QP.PostWrite(10, c.put("x"), 0, 1, c.b.MR.RKey()+1, c.b.MR.Addr()); err != nil {
		t.Fatal(err)
	}
	c.send(t, c.a, 11, "never arrives")
	c.recv(t, c.b, 1)
	c.until(time.Minute)
	c.a.Poll(t,
		verbs.Completion{ID: 10, Op: verbs.OpWrite, Status: verbs.StatusAccess},
		verbs.Completion{ID: 11, Op: verbs.OpSend, Status: verbs.StatusFlushed})
	c.b.Poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
	verbstest.Finish(t, c.Pair, c.a, c.b)
}

func TestOpenIsCounted(t *testing.T) {
	c := newClocked(t)
	if o := c.A.(*Device).Open(); o != (Open{QPs: 1, PDs: 1, CQs: 1, Memories: 1, MRs: 1}) {
		t.Errorf("%+v", o)
	}
	c.A.(*Device).FailQPs()
	if c.a.QP.State() != verbs.Err {
		t.Error("the queue pair still works")
	}
	verbstest.Finish(t, c.Pair, c.a, c.b)
	if o := c.A.(*Device).Open(); o != (Open{}) {
		t.Errorf("%+v", o)
	}
}

// Random traffic over several queue pairs: each keeps its order, the same seed makes the same trace.
func TestSeedMakesTheTrace(t *testing.T) {
	run := func(seed uint64) (trace []string) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		f := New(uint32(seed))
		var now time.Duration
		f.Now = func() time.Duration { return now }
		f.Latency = func(Event) (there, back time.Duration) {
			return time.Duration(rnd.IntN(1000)), time.Duration(rnd.IntN(1000))
		}
		f.Trace = func(line string) { trace = append(trace, line) }
		a, b := f.Device(roce.GID{'A'}, 0), f.Device(roce.GID{'B'}, 0)
		p := verbstest.Pair{A: a, B: b, Step: func() { a.Poll(); b.Poll() }}
		var from, to []*verbstest.End
		bufs := map[roce.QPN][][]byte{}
		for range 3 {
			x, y := verbstest.Connect(t, p)
			from, to = append(from, x), append(to, y)
			for i := range 4 {
				buf := make([]byte, 1)
				bufs[y.QP.QPN()] = append(bufs[y.QP.QPN()], buf)
				if err := y.QP.PostRecv(verbs.WRID(i), buf); err != nil {
					t.Fatal(err)
				}
			}
		}
		for i := range 4 {
			for _, x := range from {
				if err := x.QP.PostSend(verbs.WRID(i), []byte{byte(i)}); err != nil {
					t.Fatal(err)
				}
			}
		}
		for at, ok := f.Next(); ok; at, ok = f.Next() {
			now = max(now, at)
			p.Step()
		}
		for _, y := range to {
			for i, buf := range bufs[y.QP.QPN()] {
				if !bytes.Equal(buf, []byte{byte(i)}) {
					t.Errorf("message %d is %v", i, buf)
				}
			}
		}
		for _, e := range append(from, to...) {
			var got [8]verbs.Completion
			n := e.CQ.Poll(got[:])
			if n != 4 || !slices.IsSortedFunc(got[:n], func(a, b verbs.Completion) int { return int(a.ID) - int(b.ID) }) {
				t.Errorf("completions %+v", got[:n])
			}
		}
		return trace
	}
	one, again, other := run(1), run(1), run(2)
	if !slices.Equal(one, again) || slices.Equal(one, other) || len(one) < 12 {
		t.Errorf("%d, %d and %d lines", len(one), len(again), len(other))
	}
}

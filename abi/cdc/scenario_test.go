package cdc

import (
	"testing"

	"libsmcr/abi/smc"
)

// The six scenarios of RFC 7609 §4.7. Host A writes into the RMBE of Host B, which has 10,000 bytes; cursors start and wrap
// at 4. Each step is one time of the figure: what happens, and what the figure then shows on both sides. All cursors are
// computed, none is copied, and each CDC message goes through its bytes.
//
// The figures and their text do not agree everywhere; where they differ, a comment says what is checked.

const elementSize = 10000

// flow is the stream from A to B with what both ends know of it.
type flow struct {
	t    *testing.T
	ring smc.Ring

	prod      smc.Cursor // A's producer cursor
	written   smc.Cursor // how far A's RDMA writes are; prod follows with the next CDC
	aFlags    ProdFlags  // A's producer flags
	aSeq      smc.Seq
	consAtA   smc.Cursor // B's consumer cursor as A knows it: left side of the figures
	prodAtB   smc.Cursor // A's producer cursor as B knows it: right side of the figures
	flagsAtB  ProdFlags
	consumed  smc.Cursor // B's own consumer cursor
	bSeq      smc.Seq
	lastSeqAB smc.Seq
	lastSeqBA smc.Seq
}

func newFlow(t *testing.T, prod, cons smc.Cursor, flags ProdFlags) *flow {
	f := &flow{
		t: t, ring: smc.RFC.Ring(elementSize),
		prod: prod, written: prod, aFlags: flags, aSeq: smc.FirstSeq,
		consAtA: cons, prodAtB: prod, flagsAtB: flags, consumed: cons, bSeq: smc.FirstSeq,
	}
	if _, ok := f.ring.Used(cons, prod); !ok {
		t.Fatalf("start: %s %s", cons, prod)
	}
	return f
}

// writes is an RDMA write of n bytes; the figure shows the first and the last offset of each piece.
func (f *flow) writes(n uint32, pieces ...[2]uint32) {
	f.t.Helper()
	free, ok := f.ring.Free(f.consAtA, f.written)
	if !ok || n > free {
		f.t.Fatalf("write of %d bytes with %d free (%t)", n, free, ok)
	}
	first, second := f.ring.Spans(f.written, n)
	var got [][2]uint32
	for _, s := range []smc.Span{first, second} {
		if s.Len > 0 {
			got = append(got, [2]uint32{s.Off, s.Off + s.Len - 1})
		}
	}
	if len(got) != len(pieces) {
		f.t.Fatalf("write goes to %v, want %v", got, pieces)
	}
	for i := range got {
		if got[i] != pieces[i] {
			f.t.Fatalf("write goes to %v, want %v", got, pieces)
		}
	}
	f.written = f.ring.Advance(f.written, n)
}

// over sends m through its bytes.
func (f *flow) over(m Message, last *smc.Seq) Message {
	f.t.Helper()
	var got Message
	if err := got.Decode(m.Append(nil)); err != nil {
		f.t.Fatal(err)
	}
	if got != m {
		f.t.Fatalf("sent %s, got %s", m, got)
	}
	if !last.Before(got.Seq) {
		f.t.Fatalf("sequence number %s after %s", got.Seq, *last)
	}
	*last = got.Seq
	return got
}

// cdcFromA tells B how far the writes are.
func (f *flow) cdcFromA(flags ProdFlags) {
	f.t.Helper()
	f.prod, f.aFlags = f.written, flags
	m := f.over(Message{Seq: f.aSeq, Token: 0xB, Prod: f.prod, Cons: f.ring.Start(), Flags: f.aFlags}, &f.lastSeqAB)
	f.aSeq = f.aSeq.Next()
	if !f.ring.Between(f.prodAtB, m.Prod, f.ring.Limit(f.consumed)) {
		f.t.Fatalf("B refuses producer cursor %s", m.Prod)
	}
	f.prodAtB, f.flagsAtB = m.Prod, m.Flags
}

// consumes lets B's application read everything; want is how much that is.
func (f *flow) consumes(want uint32) {
	f.t.Helper()
	n, ok := f.ring.Used(f.consumed, f.prodAtB)
	if !ok || n != want {
		f.t.Fatalf("B has %d bytes to read (%t), want %d", n, ok, want)
	}
	f.consumed = f.ring.Advance(f.consumed, n)
}

// updateDue says whether B has to send a CDC message now, by RFC 7609 §4.5.1 and §4.7.5.
func (f *flow) updateDue(want bool) {
	f.t.Helper()
	due := f.ring.UpdateDue(f.consAtA, f.consumed, f.prodAtB) ||
		f.flagsAtB.Has(WriterBlocked) || f.flagsAtB.Has(UpdateRequested) || f.flagsAtB.Has(UrgentPresent)
	if due != want {
		f.t.Fatalf("update due: %t", due)
	}
}

// cdcFromB tells A how far B's application has read.
func (f *flow) cdcFromB() {
	f.t.Helper()
	m := f.over(Message{Seq: f.bSeq, Token: 0xA, Prod: f.ring.Start(), Cons: f.consumed}, &f.lastSeqBA)
	f.bSeq = f.bSeq.Next()
	if !f.ring.Between(f.consAtA, m.Cons, f.prod) {
		f.t.Fatalf("A refuses consumer cursor %s", m.Cons)
	}
	f.consAtA = m.Cons
}

// window is what A may write now.
func (f *flow) window(want uint32) {
	f.t.Helper()
	if free, ok := f.ring.Free(f.consAtA, f.prod); !ok || free != want {
		f.t.Fatalf("window %d (%t), want %d", free, ok, want)
	}
}

// shows checks one line of a figure.
func (f *flow) shows(time int, cons, prod smc.Cursor, flags ProdFlags) {
	f.t.Helper()
	if f.consAtA != cons || f.prodAtB != prod || f.flagsAtB != flags {
		f.t.Fatalf("time %d: cons %s, prod %s, flags %s; the figure has %s, %s, %s",
			time, f.consAtA, f.prodAtB, f.flagsAtB, cons, prod, flags)
	}
}

func at(count uint32, wrap uint16) smc.Cursor { return smc.Cursor{Wrap: wrap, Count: count} }

// TestScenario1 is RFC 7609 §4.7.1, Figure 16: send flow, window size unconstrained. At time 1 the figure prints 0 for
// cursors that have not changed from 4; 0 would lie inside the eye catcher.
func TestScenario1(t *testing.T) {
	f := newFlow(t, at(4, 0), at(4, 0), 0)
	f.shows(0, at(4, 0), at(4, 0), 0)
	f.writes(1000, [2]uint32{4, 1003})
	f.shows(1, at(4, 0), at(4, 0), 0)
	f.cdcFromA(0)
	f.shows(2, at(4, 0), at(1004, 0), 0)
	f.window(8996) // "10,000 - 1004 = 8996"
	f.consumes(1000)
	f.updateDue(false)
	if f.consumed != f.prodAtB {
		t.Error("the local consumer cursor matches the producer cursor")
	}
}

// TestScenario2 is RFC 7609 §4.7.2, Figure 17: send and receive. The answer of 500 bytes goes into Host A's RMBE, and its
// CDC message carries the consumer cursor along. The text calls the new producer cursor 503; the write is (4:503), so it is
// 504.
func TestScenario2(t *testing.T) {
	f := newFlow(t, at(4, 0), at(4, 0), 0)
	f.shows(0, at(4, 0), at(4, 0), 0)
	f.writes(1000, [2]uint32{4, 1003})
	f.shows(1, at(4, 0), at(4, 0), 0)
	f.cdcFromA(0)
	f.shows(2, at(4, 0), at(1004, 0), 0)
	f.consumes(1000)
	f.updateDue(false)

	// Host B writes into A's element, which has its own pair of cursors.
	ringA := smc.RFC.Ring(elementSize)
	if first, second := ringA.Spans(ringA.Start(), 500); first != (smc.Span{Off: 4, Len: 500}) || second.Len != 0 {
		t.Errorf("write goes to %v %v", first, second)
	}
	f.shows(3, at(4, 0), at(1004, 0), 0)
	m := f.over(Message{Seq: f.bSeq, Token: 0xA, Prod: ringA.Advance(ringA.Start(), 500), Cons: f.consumed}, &f.lastSeqBA)
	if m.Prod != at(504, 0) || m.Cons != at(1004, 0) {
		t.Errorf("%s", m)
	}
	f.consAtA = m.Cons
	f.shows(4, at(1004, 0), at(1004, 0), 0)
	f.window(9996)
}

// TestScenario3 is RFC 7609 §4.7.3, Figure 18: send flow, window size constrained. The text says 3003 and 7004 where the
// figure has 3004 and 7003, and counts windows from 10,000 instead of the 9996 bytes behind the eye catcher.
func TestScenario3(t *testing.T) {
	f := newFlow(t, at(4, 0), at(4, 0), 0)
	f.shows(0, at(4, 0), at(4, 0), 0)
	f.writes(3000, [2]uint32{4, 3003})
	f.shows(1, at(4, 0), at(4, 0), 0)
	f.cdcFromA(0)
	f.shows(2, at(4, 0), at(3004, 0), 0)
	f.consumes(3000)
	f.window(6996)
	f.updateDue(false) // 7000 bytes of available space: not constrained
	f.shows(3, at(4, 0), at(3004, 0), 0)
	f.writes(4000, [2]uint32{3004, 7003})
	f.shows(4, at(4, 0), at(3004, 0), 0)
	f.cdcFromA(0)
	f.shows(5, at(4, 0), at(7004, 0), 0)
	f.consumes(4000)
	f.window(2996)
	f.updateDue(true) // 3000 is less than half of 10,000, and the advance is more than a tenth
	f.cdcFromB()
	f.shows(6, at(7004, 0), at(7004, 0), 0)
	f.window(9996)
}

// TestScenario4 is RFC 7609 §4.7.4, Figure 19: 20,000 bytes through full windows. The cursors look the same before and after
// each window, only the wrap number tells. The text says 1003 where the figure has 1004.
func TestScenario4(t *testing.T) {
	const B = WriterBlocked
	f := newFlow(t, at(1004, 1), at(1004, 1), 0)
	unsent := uint32(20000)
	f.shows(0, at(1004, 1), at(1004, 1), 0)
	f.window(9996)
	f.writes(8996, [2]uint32{1004, 9999})
	f.shows(1, at(1004, 1), at(1004, 1), 0)
	f.writes(1000, [2]uint32{4, 1003})
	f.shows(2, at(1004, 1), at(1004, 1), 0)
	f.cdcFromA(B)
	f.shows(3, at(1004, 1), at(1004, 2), B)
	f.window(0)
	unsent -= 9996
	f.consumes(9996) // first (1004-9999), then (4-1003)
	if first, second := f.ring.Spans(at(1004, 1), 9996); first != (smc.Span{Off: 1004, Len: 8996}) || second != (smc.Span{Off: 4, Len: 1000}) {
		t.Errorf("B reads %v %v", first, second)
	}
	f.updateDue(true)
	f.cdcFromB()
	f.shows(4, at(1004, 2), at(1004, 2), B)
	f.window(9996)

	f.writes(8996, [2]uint32{1004, 9999})
	f.shows(5, at(1004, 2), at(1004, 2), B)
	f.writes(1000, [2]uint32{4, 1003})
	f.shows(6, at(1004, 2), at(1004, 2), B)
	unsent -= 9996
	if unsent != 8 {
		t.Errorf("%d bytes left, the text says 8", unsent)
	}
	f.cdcFromA(B)
	f.shows(7, at(1004, 2), at(1004, 3), B)
	f.consumes(9996)
	f.updateDue(true)
	f.cdcFromB()
	f.shows(8, at(1004, 3), at(1004, 3), B)
	f.writes(unsent, [2]uint32{1004, 1011})

	// Both pieces in one call, as step 2 allows.
	g := newFlow(t, at(1004, 1), at(1004, 1), 0)
	g.writes(9996, [2]uint32{1004, 9999}, [2]uint32{4, 1003})
}

// TestScenario5 is RFC 7609 §4.7.5, Figure 20: urgent data, window size open.
func TestScenario5(t *testing.T) {
	const P, U = UrgentPending, UrgentPresent
	f := newFlow(t, at(1000, 1), at(1000, 1), 0)
	f.shows(0, at(1000, 1), at(1000, 1), 0)
	f.writes(500, [2]uint32{1000, 1499})
	f.shows(1, at(1000, 1), at(1000, 1), 0)
	f.cdcFromA(P | U)
	f.shows(2, at(1000, 1), at(1500, 1), P|U)
	// The producer cursor points one past the urgent byte.
	if last, _ := f.ring.Spans(f.consumed, 500); last.Off+last.Len-1 != f.prodAtB.Count-1 {
		t.Error("urgent byte")
	}
	f.consumes(500)
	if f.ring.UpdateDue(f.consAtA, f.consumed, f.prodAtB) {
		t.Error("the window alone would not ask for an update")
	}
	f.updateDue(true) // "this CDC message must occur, regardless of the current local window size"
	f.cdcFromB()
	f.shows(3, at(1500, 1), at(1500, 1), P|U)
	f.writes(1000, [2]uint32{1500, 2499})
	f.shows(4, at(1500, 1), at(1500, 1), P|U)
	f.cdcFromA(0)
	f.shows(5, at(1500, 1), at(2500, 1), 0)
	f.consumes(1000)
	f.updateDue(false)
}

// TestScenario6 is RFC 7609 §4.7.6, Figure 21: urgent data, window size closed. At time 7 the figure prints 1000 for the
// consumer cursor, which was 1500 since time 5; a consumer cursor does not go back.
func TestScenario6(t *testing.T) {
	const B, P, U = WriterBlocked, UrgentPending, UrgentPresent
	f := newFlow(t, at(1000, 2), at(1000, 1), B)
	f.shows(0, at(1000, 1), at(1000, 2), B)
	f.window(0)
	f.cdcFromA(B | P)
	f.shows(1, at(1000, 1), at(1000, 2), B|P)
	f.consumes(9996) // "a full window's worth of data gets consumed"
	f.updateDue(true)
	f.cdcFromB()
	f.shows(2, at(1000, 2), at(1000, 2), B|P)
	f.window(9996)
	f.writes(500, [2]uint32{1000, 1499})
	f.shows(3, at(1000, 2), at(1000, 2), B|P)
	f.cdcFromA(P | U)
	f.shows(4, at(1000, 2), at(1500, 2), P|U)
	f.consumes(500)
	f.updateDue(true)
	f.cdcFromB()
	f.shows(5, at(1500, 2), at(1500, 2), P|U)
	f.writes(1000, [2]uint32{1500, 2499})
	f.shows(6, at(1500, 2), at(1500, 2), P|U)
	f.cdcFromA(0)
	f.shows(7, at(1500, 2), at(2500, 2), 0)
}

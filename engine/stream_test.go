package engine

import (
	"errors"
	"math/rand/v2"
	"testing"

	"libsmcr/abi/cdc"
	"libsmcr/abi/smc"
)

// half is one side of a connection with the memory around its stream.
type half struct {
	*stream
	t          testing.TB
	name       string
	peer       *half
	rmbe, ring []byte
	send       []byte
	in, out    uint64 // bytes of the pattern that the program has read and written
	last       cdc.Message
}

// pattern is the byte at a position of every stream.
func pattern(pos uint64) byte { return byte(pos ^ pos>>8 ^ pos>>16) }

// newHalves connects A, whose element has sizeA bytes, and B.
func newHalves(t testing.TB, d smc.Dialect, sizeA, sizeB int) (a, b *half) {
	a, b = &half{t: t, name: "A"}, &half{t: t, name: "B"}
	a.peer, b.peer = b, a
	for h, size := range map[*half]int{a: sizeA, b: sizeB} {
		h.rmbe, h.send = make([]byte, size), make([]byte, 32768)
		h.stream, h.ring = receiver(d, new(Head), h.rmbe)
	}
	for _, h := range []*half{a, b} {
		h.open(d.Ring(uint32(len(h.peer.rmbe))), new(Head), len(h.send))
	}
	return a, b
}

// at moves both ends of the stream that h writes to a position: all is consumed and told.
func (h *half) at(pos uint64) {
	h.sent, h.reached, h.acked, h.said, h.peerCons, h.out = pos, pos, pos, pos, pos, pos
	h.tx.setProd(pos)
	h.tx.setCons(pos)
	p := h.peer
	p.prod, p.cons, p.told, p.in = pos, pos, pos, pos
	p.rx.setProd(pos)
	p.rx.setCons(pos)
}

// writes lets the program write n bytes.
func (h *half) writes(n int) {
	h.t.Helper()
	if h.tx.prod()+uint64(n)-h.tx.cons() > uint64(len(h.send)) {
		h.t.Fatalf("%s: no room for %d bytes", h.name, n)
	}
	for range n {
		h.send[h.out%uint64(len(h.send))] = pattern(h.out)
		h.out++
	}
	h.tx.setProd(h.out)
	h.looks()
}

func (h *half) looks() {
	h.t.Helper()
	if err := h.look(); err != nil {
		h.t.Fatalf("%s: %v", h.name, err)
	}
}

// rdma does the writes that are due; each is the first and the last offset, as the figures of RFC 7609 §4.7 show them.
func (h *half) rdma() (pieces [][2]uint32) {
	h.t.Helper()
	for n := h.next(); n > 0; {
		off, to := h.piece(n)
		if to.Len == 0 || to.Len > n {
			h.t.Fatalf("%s: piece of %d of %d bytes", h.name, to.Len, n)
		}
		copy(h.peer.rmbe[to.Off:to.Off+to.Len], h.send[off:off+int(to.Len)])
		h.wrote(to.Len)
		pieces = append(pieces, [2]uint32{to.Off, to.Off + to.Len - 1})
		n -= to.Len
	}
	return pieces
}

// says sends the CDC message that must be due; it is acknowledged at once.
func (h *half) says() cdc.Message {
	h.t.Helper()
	if !h.due() {
		h.t.Fatalf("%s: no CDC message is due", h.name)
	}
	m := h.message(7)
	h.hears(m)
	h.completed(m.Seq, h.sent)
	return m
}

func (h *half) hears(m cdc.Message) {
	h.t.Helper()
	var got cdc.Message
	if err := got.Decode(m.Append(nil)); err != nil || got != m {
		h.t.Fatalf("%s: sent %s, got %s, %v", h.name, m, got, err)
	}
	if err := h.peer.receive(got); err != nil {
		h.t.Fatalf("%s: %s: %v", h.peer.name, got, err)
	}
	h.last = m
}

// reads lets the program read n bytes and checks them.
func (h *half) reads(n uint64) {
	h.t.Helper()
	if avail := h.rx.prod() - h.in; n > avail {
		h.t.Fatalf("%s: %d bytes to read, %d wanted", h.name, avail, n)
	}
	for range n {
		if got := h.ring[h.in%uint64(len(h.ring))]; got != pattern(h.in) {
			h.t.Fatalf("%s: byte %d is %02x, not %02x", h.name, h.in, got, pattern(h.in))
		}
		h.in++
	}
	h.rx.setCons(h.in)
	h.looks()
}

// quiet checks that nothing is to be said.
func (h *half) quiet() {
	h.t.Helper()
	if h.next() != 0 || h.due() {
		h.t.Fatalf("%s: %d bytes to write, due %t", h.name, h.next(), h.due())
	}
}

// The six scenarios of RFC 7609 §4.7: A writes into B's element of 10,000 bytes. What the cursors are at each time of a
// figure is checked in abi/cdc; here it is the stream that decides what happens. A step is a verb and what must come of it.
func TestScenariosOfDataFlow(t *testing.T) {
	const B, P, U = cdc.WriterBlocked, cdc.UrgentPending, cdc.UrgentPresent
	at := func(count uint32, wrap uint16) smc.Cursor { return smc.Cursor{Wrap: wrap, Count: count} }
	pos := func(c smc.Cursor) uint64 { return uint64(c.Wrap)*9996 + uint64(c.Count) - 4 }
	setup := func(t *testing.T, start smc.Cursor) (a, b *half) {
		a, b = newHalves(t, smc.RFC, 10000, 10000)
		a.at(pos(start))
		return a, b
	}
	rdma := func(t *testing.T, h *half, want ...[2]uint32) {
		t.Helper()
		got := h.rdma()
		if len(got) != len(want) {
			t.Fatalf("%s writes %v, want %v", h.name, got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("%s writes %v, want %v", h.name, got, want)
			}
		}
	}
	says := func(t *testing.T, h *half, prod, cons smc.Cursor, f cdc.ProdFlags) {
		t.Helper()
		if m := h.says(); m.Prod != prod || m.Cons != cons || m.Flags != f || m.Conn != 0 {
			t.Fatalf("%s says %s; want %s %s %s", h.name, m, prod, cons, f)
		}
	}
	urgent := func(h *half, n int) {
		h.tx.setUrg(h.out + uint64(n))
		h.tx.flagWriter(Urgent)
		h.writes(n)
	}

	t.Run("1", func(t *testing.T) {
		a, b := setup(t, at(4, 0))
		a.writes(1000)
		rdma(t, a, [2]uint32{4, 1003})
		says(t, a, at(1004, 0), at(4, 0), 0)
		b.reads(1000)
		b.quiet()
		a.quiet()
	})
	t.Run("2", func(t *testing.T) {
		a, b := setup(t, at(4, 0))
		a.writes(1000)
		rdma(t, a, [2]uint32{4, 1003})
		says(t, a, at(1004, 0), at(4, 0), 0)
		b.reads(1000)
		b.quiet()
		b.writes(500)
		rdma(t, b, [2]uint32{4, 503})
		says(t, b, at(504, 0), at(1004, 0), 0)
		if w := a.window(); w != 9996 {
			t.Errorf("window %d", w)
		}
		a.reads(500)
		a.quiet()
	})
	t.Run("3", func(t *testing.T) {
		a, b := setup(t, at(4, 0))
		a.writes(3000)
		rdma(t, a, [2]uint32{4, 3003})
		says(t, a, at(3004, 0), at(4, 0), 0)
		b.reads(3000)
		b.quiet() // 7000 bytes are more than half
		a.writes(4000)
		rdma(t, a, [2]uint32{3004, 7003})
		says(t, a, at(7004, 0), at(4, 0), 0)
		b.reads(4000)
		says(t, b, at(4, 0), at(7004, 0), 0)
		a.quiet()
	})
	t.Run("4", func(t *testing.T) {
		a, b := setup(t, at(1004, 1))
		a.writes(20000)
		rdma(t, a, [2]uint32{1004, 9999}, [2]uint32{4, 1003})
		says(t, a, at(1004, 2), at(4, 0), B)
		a.quiet()
		b.reads(9996)
		says(t, b, at(4, 0), at(1004, 2), 0)
		rdma(t, a, [2]uint32{1004, 9999}, [2]uint32{4, 1003})
		says(t, a, at(1004, 3), at(4, 0), B)
		b.reads(1) // any consumption
		says(t, b, at(4, 0), at(1005, 2), 0)
		rdma(t, a, [2]uint32{1004, 1004})
		says(t, a, at(1005, 3), at(4, 0), B)
		b.reads(9996)
		says(t, b, at(4, 0), at(1005, 3), 0)
		rdma(t, a, [2]uint32{1005, 1011})
		says(t, a, at(1012, 3), at(4, 0), 0)
		b.reads(7)
		b.quiet()
	})
	t.Run("5", func(t *testing.T) {
		a, b := setup(t, at(1000, 1))
		urgent(a, 500)
		a.writes(1000)
		rdma(t, a, [2]uint32{1000, 1499})
		says(t, a, at(1500, 1), at(4, 0), P|U)
		a.quiet() // the normal data waits
		if b.rx.writerFlags()&Urgent == 0 || b.rx.urg() != pos(at(1500, 1)) {
			t.Error("B's program does not see the mark")
		}
		b.reads(499)
		b.quiet()
		b.reads(1)
		says(t, b, at(4, 0), at(1500, 1), 0)
		rdma(t, a, [2]uint32{1500, 2499})
		says(t, a, at(2500, 1), at(4, 0), 0)
		b.reads(1000)
		b.quiet()
	})
	t.Run("6", func(t *testing.T) {
		a, b := setup(t, at(1000, 1))
		a.writes(9996)
		rdma(t, a, [2]uint32{1000, 9999}, [2]uint32{4, 999})
		says(t, a, at(1000, 2), at(4, 0), 0)
		urgent(a, 500)
		a.writes(1000)
		rdma(t, a)
		says(t, a, at(1000, 2), at(4, 0), B|P)
		a.quiet()
		if b.rx.writerFlags()&(UrgentComing|Urgent) != UrgentComing {
			t.Error("B's program does not know that urgent data is coming")
		}
		b.reads(9996)
		says(t, b, at(4, 0), at(1000, 2), 0)
		rdma(t, a, [2]uint32{1000, 1499})
		says(t, a, at(1500, 2), at(4, 0), P|U)
		a.quiet()
		if b.rx.writerFlags()&(UrgentComing|Urgent) != Urgent {
			t.Error("B's program does not see the mark")
		}
		b.reads(500)
		says(t, b, at(4, 0), at(1500, 2), 0)
		rdma(t, a, [2]uint32{1500, 2499})
		says(t, a, at(2500, 2), at(4, 0), 0)
		b.reads(1000)
		b.quiet()
	})
}

// The examples of RFC 7609 §4.5.1: 64K, all of it written, and consumption told that leaves the sender a window.
func TestWindowUpdates(t *testing.T) {
	const k = 1024
	for _, c := range []struct {
		name               string
		senders, receivers uint64
		flags              cdc.ProdFlags
		want               bool
	}{
		{"a: plenty of space", 50 * k, 64 * k, 0, false},
		{"b: less than half, but only 1K more", 30 * k, 31 * k, 0, false},
		{"c: less than half, and much more", 30 * k, 64 * k, 0, true},
		{"b, and the writer is blocked", 30 * k, 31 * k, cdc.WriterBlocked, true},
		{"a, and an update was requested", 50 * k, 64 * k, cdc.UpdateRequested, true},
		{"requested, but nothing was consumed", 50 * k, 50 * k, cdc.UpdateRequested, false},
		{"blocked, but nothing was consumed", 0, 0, cdc.WriterBlocked, false},
	} {
		_, b := newHalves(t, smc.Linux, 64*k, 64*k)
		m := cdc.Message{Seq: 1, Prod: b.stream.in.At(64 * k), Cons: b.stream.out.Start(), Flags: c.flags}
		if err := b.receive(m); err != nil {
			t.Fatal(err)
		}
		b.rx.setCons(c.receivers)
		b.looks()
		b.told = c.senders
		if got := b.due(); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

// An update that is on its way with other news costs nothing.
func TestEveryMessageCarriesTheConsumerCursor(t *testing.T) {
	a, b := newHalves(t, smc.Linux, 65536, 65536)
	a.writes(100)
	a.rdma()
	a.says()
	b.reads(100)
	b.quiet()
	b.writes(1)
	b.rdma()
	if b.says(); a.peerCons != 100 {
		t.Errorf("A knows of %d bytes", a.peerCons)
	}
}

// Old control messages are never processed after newer ones (RFC 7609 §A.4), and a cursor that went back is left alone.
func TestOldMessages(t *testing.T) {
	a, b := newHalves(t, smc.RFC, 65536, 65536)
	a.writes(100)
	a.rdma()
	old := a.message(7)
	a.writes(100)
	a.rdma()
	a.hears(a.message(7))
	if err := b.receive(old); err != nil || b.prod != 200 {
		t.Errorf("%v, producer at %d", err, b.prod)
	}
	back := old
	back.Seq = 9
	if err := b.receive(back); err != nil || b.prod != 200 || b.recvSeq != 9 {
		t.Errorf("%v, producer at %d", err, b.prod)
	}
}

// Whatever the peer says of its cursors is checked.
func TestHostileCursors(t *testing.T) {
	for _, d := range []smc.Dialect{smc.RFC, smc.Linux} {
		a, b := newHalves(t, d, 65536, 65536)
		a.writes(1000)
		a.rdma()
		a.says()
		b.reads(500)
		in, out := b.stream.in, b.stream.out
		good := cdc.Message{Seq: 5, Prod: in.At(1000), Cons: out.At(0)}
		for _, c := range []struct {
			name string
			edit func(m *cdc.Message)
			want error
		}{
			{"nothing new", func(m *cdc.Message) {}, nil},
			{"a full window", func(m *cdc.Message) { m.Prod = in.At(500 + uint64(in.Capacity())) }, nil},
			{"more than a window", func(m *cdc.Message) { m.Prod = in.At(501 + uint64(in.Capacity())) }, ErrCursor},
			{"behind the end of the element", func(m *cdc.Message) { m.Prod.Count = 65536 }, ErrCursor},
			{"absurd", func(m *cdc.Message) { m.Prod.Count = 0xFFFFFFFF }, ErrCursor},
			{"five wraps on", func(m *cdc.Message) { m.Prod.Wrap += 5 }, ErrCursor},
			{"before the connection began", func(m *cdc.Message) { m.Prod.Wrap-- }, ErrCursor},
			{"consumed what was never written", func(m *cdc.Message) { m.Cons = out.At(1) }, ErrCursor},
			{"consumer outside", func(m *cdc.Message) { m.Cons.Count = 65536 }, ErrCursor},
		} {
			s := *b.stream
			s.rx, s.tx = new(Head), new(Head)
			m := good
			if c.edit(&m); !errors.Is(s.receive(m), c.want) {
				t.Errorf("%s, %s: want %v", d, c.name, c.want)
			}
		}
		if d == smc.RFC {
			m := good
			m.Prod.Count = 3
			if err := b.receive(m); !errors.Is(err, ErrCursor) {
				t.Errorf("in the eye catcher: %v", err)
			}
			b.rmbe[2] ^= 1
			if err := b.receive(good); !errors.Is(err, ErrOverlay) {
				t.Errorf("damaged eye catcher: %v", err)
			}
		}
	}
}

// The program's half of the rings is not believed either.
func TestCursorsOfTheProgram(t *testing.T) {
	a, b := newHalves(t, smc.Linux, 65536, 65536)
	a.tx.setProd(uint64(len(a.send)) + 1)
	if err := a.look(); !errors.Is(err, ErrCursor) {
		t.Errorf("wrote more than the buffer holds: %v", err)
	}
	b.rx.setCons(1)
	if err := b.look(); !errors.Is(err, ErrCursor) {
		t.Errorf("read what never came: %v", err)
	}
}

// RFC 7609 §3.5.2.4: data may arrive before the Confirm, hence before the peer's RMBE is known.
func TestDataBeforeConfirm(t *testing.T) {
	a, b := newHalves(t, smc.RFC, 65536, 65536)
	b.stream, b.ring = receiver(smc.RFC, new(Head), b.rmbe)
	a.writes(100)
	a.rdma()
	a.conn = cdc.SendingDone
	a.says()
	if b.next() != 0 || b.due() || b.rx.prod() != 100 || b.rx.writerFlags() != WriterDone {
		t.Errorf("%d bytes, flags %d", b.rx.prod(), b.rx.writerFlags())
	}
	b.open(smc.RFC.Ring(65536), new(Head), len(b.send))
	b.reads(100)
	b.writes(1)
	b.rdma()
	b.says()
	a.reads(1)

	c, _ := receiver(smc.RFC, new(Head), make([]byte, 65536))
	if err := c.receive(cdc.Message{Seq: 1, Prod: c.in.Start(), Cons: c.out.At(1)}); !errors.Is(err, ErrCursor) {
		t.Errorf("consumed before anything was written: %v", err)
	}
}

// RFC 7609 §4.6: what was not acknowledged is written again, and nothing else.
func TestRewind(t *testing.T) {
	for _, arrived := range []string{"nothing", "writes", "message"} {
		a, b := newHalves(t, smc.Linux, 65536, 65536)
		a.writes(1000)
		a.rdma()
		a.says()
		a.writes(500)
		keep := append([]byte(nil), b.rmbe...)
		a.rdma()
		lost := a.message(7)
		switch arrived {
		case "nothing":
			copy(b.rmbe, keep)
		case "message":
			a.hears(lost)
			b.reads(1500)
		}
		a.rewind()
		m := a.validation(7)
		if m.Flags != cdc.FailoverValidation || m.Seq != 1 || b.missing(m) {
			t.Errorf("%s: validation %s, received %s", arrived, m, b.recvSeq)
		}
		if got := a.rdma(); len(got) != 1 || got[0] != [2]uint32{1000, 1499} {
			t.Errorf("%s: written again %v", arrived, got)
		}
		if m := a.says(); !lost.Seq.Before(m.Seq) {
			t.Errorf("%s: %s after %s", arrived, m, lost)
		}
		b.reads(b.rx.prod() - b.in)
		if b.in != 1500 || !a.drained() {
			t.Errorf("%s: %d bytes read", arrived, b.in)
		}
	}
}

// What the peer has consumed is never written again: newer bytes may lie there.
func TestConsumedIsAcknowledged(t *testing.T) {
	a, b := newHalves(t, smc.Linux, 16384, 16384)
	a.writes(16384)
	a.rdma()
	a.hears(a.message(7)) // the acknowledgment never comes
	b.reads(16000)
	b.says()
	a.writes(16000)
	a.rdma()
	lost := a.message(7)
	a.rewind()
	if a.sent != 16000 || a.tx.cons() != 16000 {
		t.Errorf("goes on at %d", a.sent)
	}
	// The peer says while we write again that it has got all.
	a.peer.receive(lost)
	b.reads(16384)
	if m := b.message(7); a.receive(m) != nil || a.sent != a.reached {
		t.Errorf("%d of %d", a.sent, a.reached)
	}
	if got := a.rdma(); got != nil {
		t.Errorf("written again %v", got)
	}
	a.says()
	if !a.drained() {
		t.Error("not drained")
	}
}

// RFC 7609 §4.6.1: a message whose write was acknowledged and never placed.
func TestLossIsProved(t *testing.T) {
	a, b := newHalves(t, smc.Linux, 65536, 65536)
	a.writes(10)
	a.rdma()
	m := a.message(7)
	a.completed(m.Seq, a.sent)
	a.rewind()
	if v := a.validation(7); !b.missing(v) {
		t.Errorf("%s after %s", v, b.recvSeq)
	}
	b.recvSeq = 0xFFFF
	if !b.missing(cdc.Message{Seq: 0}) || b.missing(cdc.Message{Seq: 0xFFFF}) {
		t.Error("sequence numbers wrap")
	}
}

// Flags that were lost with a link are told again.
func TestFlagsAfterFailover(t *testing.T) {
	a, b := newHalves(t, smc.Linux, 65536, 65536)
	a.tx.setUrg(10)
	a.tx.flagWriter(Urgent)
	a.writes(20)
	a.rdma()
	a.conn = cdc.SendingDone
	a.message(7) // lost
	a.rewind()
	a.validates(a.validation(7))
	a.rdma()
	if m := a.says(); m.Flags != cdc.UrgentPending|cdc.UrgentPresent || m.Conn != cdc.SendingDone || m.Prod.Count != 10 {
		t.Errorf("%s", m)
	}
	if b.rx.urg() != 10 {
		t.Errorf("mark at %d", b.rx.urg())
	}
}

func (h *half) validates(m cdc.Message) {
	if h.peer.missing(m) {
		h.t.Errorf("%s: lost", h.peer.name)
	}
}

// Any schedule of writes, reads and lost links delivers every byte once, in rings of every size and both dialects.
func TestStreamsUnderAnySchedule(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		d := smc.Dialect(r.UintN(2))
		a, b := newHalves(t, d, 64+r.IntN(20000), 64+r.IntN(20000))
		var flight []cdc.Message
		var ends []uint64
		for a.in < 100000 || b.in < 100000 {
			h := a
			if r.UintN(2) == 0 {
				h = b
			}
			if room := uint64(len(h.send)) - (h.tx.prod() - h.tx.cons()); room > 0 && r.UintN(3) > 0 {
				if r.UintN(20) == 0 {
					h.tx.setUrg(h.out + 1)
					h.tx.flagWriter(Urgent)
				}
				h.writes(int(r.Uint64N(room) + 1))
			}
			if n := h.rx.prod() - h.in; n > 0 && r.UintN(3) > 0 {
				h.reads(r.Uint64N(n) + 1)
			}
			flight, ends = flight[:0], ends[:0]
			for h.next() > 0 || h.due() {
				h.rdma()
				flight, ends = append(flight, h.message(7)), append(ends, h.sent)
			}
			// A failover loses the acknowledgments of the last messages, and perhaps the messages themselves.
			acked := len(flight)
			if acked > 0 && r.UintN(4) == 0 {
				acked = r.IntN(acked + 1)
			}
			heard := acked + r.IntN(len(flight)-acked+1)
			for _, m := range flight[:heard] {
				h.hears(m)
			}
			if acked > 0 {
				h.completed(flight[acked-1].Seq, ends[acked-1])
			}
			if acked < len(flight) {
				h.rewind()
				h.validates(h.validation(7))
			}
			if r.UintN(50) == 0 {
				h.asks()
			}
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// asks sends a message that asks for the consumer cursor.
func (h *half) asks() {
	for h.next() > 0 || h.due() {
		h.rdma()
		h.says()
	}
	m := h.message(7)
	m.Flags |= cdc.UpdateRequested
	h.hears(m)
	h.completed(m.Seq, h.sent)
}

// Package verbstest checks providers against what verbs promises.
package verbstest

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

// Pair is two devices that reach each other.
type Pair struct {
	A, B verbs.Device
	// Gone makes B vanish as the death of its process would; nothing of B is used afterwards.
	Gone func()
	// Step lets both devices work until nothing moves any more.
	Step func()
}

// Run checks a provider. newPair is called once for each check and registers its own clean-up.
func Run(t *testing.T, newPair func(t *testing.T) Pair) {
	for _, c := range []struct {
		name string
		fn   func(*testing.T, Pair)
	}{
		{"StatesAndWhatTheyAllow", testStates},
		{"SendsArriveInOrder", testSends},
		{"SendsWaitForReceives", testEarlySends},
		{"TooLongForTheBufferFailsTheQueuePair", testLength},
		{"WriteReachesTheRegisteredMemory", testWrite},
		{"WriteOutsideTheRegionIsRefused", testWriteRange},
		{"LocalRegionIsOutOfReach", testLocal},
		{"FailFlushesAndPeerLearnsOfClose", testFail},
		{"PeerGone", testGone},
		{"ClosingWhatIsInUseIsRefused", testBusy},
		{"ZeroedMemoryReadsAsZero", testZero},
		{"ExportedMemoryIsShared", testExport},
		{"QueueLimits", testLimits},
	} {
		t.Run(c.name, func(t *testing.T) { c.fn(t, newPair(t)) })
	}
}

// End is one side of a connected queue pair.
type End struct {
	Dev verbs.Device
	PD  verbs.PD
	CQ  verbs.CQ
	QP  verbs.QP
	Mem verbs.Memory
	MR  verbs.MR
}

const memSize = 64 << 10

func newEnd(t *testing.T, d verbs.Device) *End {
	t.Helper()
	e := &End{Dev: d}
	var err error
	must := func(what string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	e.PD, err = d.AllocPD()
	must("AllocPD")
	e.CQ, err = d.CreateCQ()
	must("CreateCQ")
	e.QP, err = e.PD.CreateQP(e.CQ, verbs.QPCap{SendWR: 4, RecvWR: 4})
	must("CreateQP")
	e.Mem, err = d.AllocMemory(memSize)
	must("AllocMemory")
	e.MR, err = e.PD.Register(e.Mem, verbs.RemoteWrite)
	must("Register")
	return e
}

func (e *End) close(t *testing.T) {
	t.Helper()
	for _, c := range []interface{ Close() error }{e.QP, e.MR, e.Mem, e.CQ, e.PD} {
		if err := c.Close(); err != nil {
			t.Errorf("closing %T: %v", c, err)
		}
	}
}

func (e *End) peer(psn roce.PSN) verbs.Peer {
	a := e.Dev.Attr()
	return verbs.Peer{GID: a.GID, MAC: a.MAC, QPN: e.QP.QPN(), PSN: psn, MTU: a.MTU}
}

// Connect makes a connected pair; the sequence numbers are about to wrap.
func Connect(t *testing.T, p Pair) (a, b *End) {
	t.Helper()
	a, b = newEnd(t, p.A), newEnd(t, p.B)
	const psnA, psnB = roce.PSN(0xfffffe), roce.PSN(0xffffff)
	for _, err := range []error{
		a.QP.Init(), b.QP.Init(),
		a.QP.ReadyToReceive(b.peer(psnB)), b.QP.ReadyToReceive(a.peer(psnA)),
		a.QP.ReadyToSend(psnA), b.QP.ReadyToSend(psnB),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

func Finish(t *testing.T, p Pair, ends ...*End) {
	t.Helper()
	for _, e := range ends {
		e.close(t)
	}
	p.Step()
	for _, e := range ends {
		if err := e.Dev.Close(); err != nil {
			t.Errorf("closing the device: %v", err)
		}
	}
}

func (e *End) Poll(t *testing.T, want ...verbs.Completion) {
	t.Helper()
	var got [16]verbs.Completion
	n := e.CQ.Poll(got[:])
	if n != len(want) {
		t.Fatalf("%d completions %+v, want %d", n, got[:n], len(want))
	}
	for i := range want {
		want[i].QPN = e.QP.QPN()
		if got[i] != want[i] {
			t.Fatalf("completion %d is %+v, want %+v", i, got[i], want[i])
		}
	}
}

func testStates(t *testing.T, p Pair) {
	a, b := newEnd(t, p.A), newEnd(t, p.B)
	q := a.QP
	allowed := func(recv, send bool) {
		t.Helper()
		if err := q.PostRecv(1, make([]byte, 8)); (err == nil) != recv || err != nil && !errors.Is(err, verbs.ErrState) {
			t.Errorf("%s: PostRecv: %v", q.State(), err)
		}
		if send {
			return
		}
		if err := q.PostSend(1, nil); !errors.Is(err, verbs.ErrState) {
			t.Errorf("%s: PostSend: %v", q.State(), err)
		}
		if err := q.PostWrite(1, a.MR, 0, 0, b.MR.RKey(), b.MR.Addr()); !errors.Is(err, verbs.ErrState) {
			t.Errorf("%s: PostWrite: %v", q.State(), err)
		}
	}
	wrong := func(err error) {
		t.Helper()
		if !errors.Is(err, verbs.ErrState) {
			t.Errorf("%s: %v, want ErrState", q.State(), err)
		}
	}
	step := func(err error, want verbs.QPState) {
		t.Helper()
		if err != nil || q.State() != want {
			t.Fatalf("%s, %v; want %s", q.State(), err, want)
		}
	}
	allowed(false, false)
	wrong(q.ReadyToReceive(b.peer(0)))
	wrong(q.ReadyToSend(0))
	step(q.Init(), verbs.Init)
	allowed(true, false)
	wrong(q.Init())
	wrong(q.ReadyToSend(0))
	step(q.ReadyToReceive(b.peer(0)), verbs.RTR)
	allowed(true, false)
	wrong(q.Init())
	step(q.ReadyToSend(0), verbs.RTS)
	allowed(true, true)
	wrong(q.ReadyToReceive(b.peer(0)))
	wrong(q.ReadyToSend(0))
	q.Fail()
	step(nil, verbs.Err)
	allowed(false, false)
	wrong(q.Init())
	Finish(t, p, a, b)
}

func testSends(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	bufs := make([][]byte, 4)
	for i := range bufs {
		bufs[i] = make([]byte, 64)
		if err := b.QP.PostRecv(verbs.WRID(i), bufs[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range bufs {
		if err := a.QP.PostSend(verbs.WRID(10+i), fmt.Appendf(nil, "message %d", i)); err != nil {
			t.Fatal(err)
		}
	}
	p.Step()
	for i := range bufs {
		a.pollOne(t, verbs.Completion{ID: verbs.WRID(10 + i), Op: verbs.OpSend})
		b.pollOne(t, verbs.Completion{ID: verbs.WRID(i), Op: verbs.OpRecv, Len: 9})
		if got, want := string(bufs[i][:9]), fmt.Sprintf("message %d", i); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	Finish(t, p, a, b)
}

func (e *End) pollOne(t *testing.T, want verbs.Completion) {
	t.Helper()
	var got [1]verbs.Completion
	want.QPN = e.QP.QPN()
	if n := e.CQ.Poll(got[:]); n != 1 || got[0] != want {
		t.Fatalf("%d completions, %+v; want %+v", n, got[0], want)
	}
}

func testEarlySends(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	for i := range 3 {
		if err := a.QP.PostSend(verbs.WRID(i), []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
	p.Step()
	b.Poll(t)
	for i := range 3 {
		buf := make([]byte, 1)
		if err := b.QP.PostRecv(verbs.WRID(20+i), buf); err != nil {
			t.Fatal(err)
		}
		p.Step()
		b.Poll(t, verbs.Completion{ID: verbs.WRID(20 + i), Op: verbs.OpRecv, Len: 1})
		if buf[0] != byte(i) {
			t.Errorf("receive %d has message %d", i, buf[0])
		}
	}
	Finish(t, p, a, b)
}

func testLength(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	if err := b.QP.PostRecv(7, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := b.QP.PostRecv(8, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := a.QP.PostSend(2, make([]byte, 1<<20)); !errors.Is(err, verbs.ErrTooLong) {
		t.Errorf("1 MiB message: %v", err)
	}
	if err := a.QP.PostSend(1, []byte("longer")); err != nil {
		t.Fatal(err)
	}
	p.Step()
	b.Poll(t, verbs.Completion{ID: 7, Op: verbs.OpRecv, Status: verbs.StatusLength}, verbs.Completion{ID: 8, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
	if b.QP.State() != verbs.Err {
		t.Errorf("state %s", b.QP.State())
	}
	Finish(t, p, a, b)
}

// show makes B's memory reachable for A's writes, which on devices that map takes an EXPORT.
func show(t *testing.T, p Pair, b *End) {
	t.Helper()
	if !b.Dev.Attr().Caps.Has(verbs.CapMapped) {
		return
	}
	if err := b.QP.Export(b.MR); err != nil {
		t.Fatal(err)
	}
	p.Step()
}

func testWrite(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	show(t, p, b)
	a.drain()
	data := []byte("written from afar")
	copy(a.MR.Bytes()[500:], data)
	if err := a.QP.PostWrite(5, a.MR, 500, len(data), b.MR.RKey(), b.MR.Addr().Add(1000)); err != nil {
		t.Fatal(err)
	}
	p.Step()
	a.Poll(t, verbs.Completion{ID: 5, Op: verbs.OpWrite})
	if !bytes.Equal(b.MR.Bytes()[1000:1000+len(data)], data) || b.MR.Bytes()[999] != 0 || b.MR.Bytes()[1000+len(data)] != 0 {
		t.Error("the bytes are not where they belong")
	}
	// The last byte is inside.
	if err := a.QP.PostWrite(6, a.MR, memSize-1, 1, b.MR.RKey(), b.MR.Addr().Add(memSize-1)); err != nil {
		t.Fatal(err)
	}
	p.Step()
	a.Poll(t, verbs.Completion{ID: 6, Op: verbs.OpWrite})
	// What lies outside of the local region is refused on the spot, and so is a region of another PD.
	for _, c := range []struct {
		src  verbs.MR
		off  int
		n    int
		want error
	}{{a.MR, memSize, 1, verbs.ErrTooLong}, {a.MR, memSize - 1, 2, verbs.ErrTooLong}, {a.MR, -1, 1, verbs.ErrTooLong}, {b.MR, 0, 1, verbs.ErrForeign}} {
		if err := a.QP.PostWrite(7, c.src, c.off, c.n, b.MR.RKey(), b.MR.Addr()); !errors.Is(err, c.want) {
			t.Errorf("%d bytes at %d: %v, want %v", c.n, c.off, err, c.want)
		}
	}
	Finish(t, p, a, b)
}

func (e *End) drain() {
	var c [16]verbs.Completion
	for e.CQ.Poll(c[:]) > 0 {
	}
}

// testLocal: a region that was registered for this side alone is a source, and nothing the peer can reach.
func testLocal(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	show(t, p, b)
	a.drain()
	src, err := a.PD.Register(a.Mem, verbs.Local)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := b.PD.Register(b.Mem, verbs.Local)
	if err != nil {
		t.Fatal(err)
	}
	if b.Dev.Attr().Caps.Has(verbs.CapMapped) {
		if err := b.QP.Export(dst); !errors.Is(err, verbs.ErrForeign) {
			t.Errorf("Export: %v", err)
		}
	}
	src.Bytes()[0] = 7
	for _, w := range []struct {
		id   verbs.WRID
		to   verbs.MR
		want verbs.Status
	}{{5, b.MR, verbs.StatusOK}, {6, dst, verbs.StatusAccess}} {
		if err := a.QP.PostWrite(w.id, src, 0, 1, w.to.RKey(), w.to.Addr().Add(100)); err != nil {
			t.Fatal(err)
		}
		p.Step()
		a.Poll(t, verbs.Completion{ID: w.id, Op: verbs.OpWrite, Status: w.want})
	}
	if b.MR.Bytes()[100] != 7 {
		t.Error("the write did not arrive")
	}
	for _, r := range []verbs.MR{src, dst} {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	a.close(t)
	b.close(t)
	p.Step()
}

func testWriteRange(t *testing.T, p Pair) {
	for _, c := range []struct {
		name string
		key  func(*End) roce.RKey
		at   func(*End) roce.VAddr
		n    int
	}{
		{"wrong RKey", func(b *End) roce.RKey { return b.MR.RKey() + 1 }, func(b *End) roce.VAddr { return b.MR.Addr() }, 1},
		{"below", func(b *End) roce.RKey { return b.MR.RKey() }, func(b *End) roce.VAddr { return b.MR.Addr() - 1 }, 1},
		{"behind", func(b *End) roce.RKey { return b.MR.RKey() }, func(b *End) roce.VAddr { return b.MR.Addr().Add(memSize) }, 1},
		{"across the end", func(b *End) roce.RKey { return b.MR.RKey() }, func(b *End) roce.VAddr { return b.MR.Addr().Add(memSize - 1) }, 2},
	} {
		a, b := Connect(t, p)
		show(t, p, b)
		a.drain()
		if err := a.QP.PostWrite(5, a.MR, 0, c.n, c.key(b), c.at(b)); err != nil {
			t.Fatal(err)
		}
		p.Step()
		a.Poll(t, verbs.Completion{ID: 5, Op: verbs.OpWrite, Status: verbs.StatusAccess})
		if a.QP.State() != verbs.Err {
			t.Errorf("%s: state %s", c.name, a.QP.State())
		}
		a.close(t)
		b.close(t)
		p.Step()
	}
}

func testFail(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	for i := range 2 {
		if err := a.QP.PostRecv(verbs.WRID(i), make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		if err := b.QP.PostRecv(verbs.WRID(i), make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
	}
	flushed := []verbs.Completion{{ID: 0, Op: verbs.OpRecv, Status: verbs.StatusFlushed}, {ID: 1, Op: verbs.OpRecv, Status: verbs.StatusFlushed}}
	a.QP.Fail()
	a.Poll(t, flushed...)
	a.QP.Fail()
	a.Poll(t)
	if err := a.QP.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.QP.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	p.Step()
	// Whether the peer is told or finds out by sending is up to the provider.
	if b.QP.State() == verbs.RTS {
		if err := b.QP.PostSend(9, nil); err != nil {
			t.Fatal(err)
		}
		p.Step()
		flushed = append([]verbs.Completion{{ID: 9, Op: verbs.OpSend, Status: verbs.StatusUnreachable}}, flushed...)
	}
	b.Poll(t, flushed...)
	if b.QP.State() != verbs.Err {
		t.Errorf("state of the peer is %s", b.QP.State())
	}
	b.close(t)
	for _, c := range []interface{ Close() error }{a.MR, a.Mem, a.CQ, a.PD} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

func testGone(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	if !p.A.Reachable(p.B.Attr().GID) || !p.A.Reachable(p.A.Attr().GID) {
		t.Error("not reachable")
	}
	if err := a.QP.PostRecv(3, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	gid := b.Dev.Attr().GID
	p.Gone()
	if p.A.Reachable(gid) {
		t.Error("reachable after its end")
	}
	if err := a.QP.PostSend(4, []byte("hello?")); err != nil {
		t.Fatal(err)
	}
	p.A.Poll()
	a.Poll(t, verbs.Completion{ID: 4, Op: verbs.OpSend, Status: verbs.StatusUnreachable}, verbs.Completion{ID: 3, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
	if a.QP.State() != verbs.Err {
		t.Errorf("state %s", a.QP.State())
	}
	a.close(t)
	if err := p.A.Close(); err != nil {
		t.Error(err)
	}
}

func testBusy(t *testing.T, p Pair) {
	e := newEnd(t, p.A)
	for _, c := range []struct {
		name string
		c    interface{ Close() error }
	}{{"memory", e.Mem}, {"PD", e.PD}, {"CQ", e.CQ}, {"device", p.A}} {
		if err := c.c.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	other := newEnd(t, p.B)
	if _, err := e.PD.Register(other.Mem, verbs.RemoteWrite); !errors.Is(err, verbs.ErrForeign) {
		t.Errorf("foreign memory: %v", err)
	}
	if _, err := e.PD.CreateQP(other.CQ, verbs.QPCap{}); !errors.Is(err, verbs.ErrForeign) {
		t.Errorf("foreign CQ: %v", err)
	}
	Finish(t, p, e, other)
	if err := e.Mem.Zero(0, 4096); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("zeroing closed memory: %v", err)
	}
}

func testZero(t *testing.T, p Pair) {
	e := newEnd(t, p.A)
	b := e.Mem.Bytes()
	if len(b) < memSize {
		t.Fatalf("%d bytes", len(b))
	}
	for i := range b {
		b[i] = 0xA5
	}
	if err := e.Mem.Zero(4096, 8192); err != nil {
		t.Fatal(err)
	}
	for i := range b {
		if want := byte(0xA5); i >= 4096 && i < 3*4096 {
			if b[i] != 0 {
				t.Fatalf("byte %d is %#x", i, b[i])
			}
		} else if b[i] != want {
			t.Fatalf("byte %d is %#x", i, b[i])
		}
	}
	for _, r := range [][2]int{{-4096, 4096}, {0, len(b) + 4096}, {len(b) + 4096, 4096}, {1, 4096}, {0, 1}} {
		if err := e.Mem.Zero(r[0], r[1]); err == nil {
			t.Errorf("Zero(%d, %d) worked", r[0], r[1])
		}
	}
	Finish(t, p, e)
}

func testExport(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	if !p.A.Attr().Caps.Has(verbs.CapMapped) {
		if err := a.QP.Export(a.MR); !errors.Is(err, verbs.ErrNotMapped) {
			t.Errorf("Export: %v", err)
		}
		if _, err := a.QP.MapRemote(1, 1); !errors.Is(err, verbs.ErrNotMapped) {
			t.Errorf("MapRemote: %v", err)
		}
		Finish(t, p, a, b)
		return
	}
	if err := a.QP.Export(b.MR); !errors.Is(err, verbs.ErrForeign) {
		t.Errorf("exporting another device's region: %v", err)
	}
	if _, err := b.QP.MapRemote(a.MR.RKey(), a.MR.Addr()); !errors.Is(err, verbs.ErrUnmapped) {
		t.Errorf("before the export: %v", err)
	}
	if err := a.QP.Export(a.MR); err != nil {
		t.Fatal(err)
	}
	p.Step()
	b.Poll(t, verbs.Completion{Op: verbs.OpExported, RKey: a.MR.RKey()})
	r, err := b.QP.MapRemote(a.MR.RKey(), a.MR.Addr().Add(8192))
	if err != nil {
		t.Fatal(err)
	}
	again, err := b.QP.MapRemote(a.MR.RKey(), a.MR.Addr())
	if err != nil || again != r {
		t.Errorf("mapped again: %v, %t", err, again == r)
	}
	if r.Addr() != a.MR.Addr() || r.RKey() != a.MR.RKey() || len(r.Bytes()) != len(a.MR.Bytes()) {
		t.Errorf("region %s %s %d", r.RKey(), r.Addr(), len(r.Bytes()))
	}
	r.Bytes()[77] = 42
	if a.Mem.Bytes()[77] != 42 {
		t.Error("a store does not reach the owner")
	}
	// The mapping outlives the queue pair: an established connection needs nothing else.
	b.close(t)
	r.Bytes()[78] = 43
	if a.Mem.Bytes()[78] != 43 {
		t.Error("the mapping ended with the queue pair")
	}
	if err := b.Dev.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("device with a mapping: %v", err)
	}
	if err := errors.Join(r.Close(), again.Close()); err != nil {
		t.Error(err)
	}
	if err := r.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("closed too often: %v", err)
	}
	p.Step()
	Finish(t, p, a)
	if err := b.Dev.Close(); err != nil {
		t.Error(err)
	}
}

func testLimits(t *testing.T, p Pair) {
	a, b := Connect(t, p)
	for i := range 4 {
		if err := a.QP.PostRecv(verbs.WRID(i), make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.QP.PostRecv(4, make([]byte, 8)); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("fifth receive: %v", err)
	}
	Finish(t, p, a, b)
}

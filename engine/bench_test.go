package engine

import (
	"testing"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/verbs"
)

// wire is a device without a fabric: a work request is done when it is posted, and nothing is allocated. What is
// measured over it is the engine.
type wire struct {
	gid   roce.GID
	peer  *wire
	cq    wireCQ
	qps   []*wireQP
	mrs   []*wireMR
	sends int
}

type (
	wireCQ     struct{ verbs.Completions }
	wireMemory struct{ b []byte }
	wireMR     struct {
		*wireMemory
		key roce.RKey
	}
	wirePD struct{ *wire }
	wireQP struct {
		d     *wire
		state verbs.QPState
		peer  verbs.Peer
		recvs []wireRecv
		first int
	}
	wireRecv struct {
		id  verbs.WRID
		buf []byte
	}
)

func (d *wire) Attr() verbs.Attr {
	return verbs.Attr{Provider: "wire", GID: d.gid, MTU: roce.MTU4096, MaxLinks: 1}
}
func (d *wire) Reachable(roce.GID) bool             { return true }
func (d *wire) AllocPD() (verbs.PD, error)          { return wirePD{d}, nil }
func (d *wire) CreateCQ() (verbs.CQ, error)         { return &d.cq, nil }
func (d *wire) Poll() bool                          { return false }
func (d *wire) Pending() bool                       { return false }
func (d *wire) Close() error                        { return nil }
func (c *wireCQ) Close() error                      { return nil }
func (m *wireMemory) Bytes() []byte                 { return m.b }
func (m *wireMemory) Zero(off, n int) error         { clear(m.b[off:][:n]); return nil }
func (m *wireMemory) Close() error                  { return nil }
func (m *wireMR) RKey() roce.RKey                   { return m.key }
func (m *wireMR) Addr() roce.VAddr                  { return 0 }
func (p wirePD) Close() error                       { return nil }
func (q *wireQP) QPN() roce.QPN                     { return roce.QPN(1) }
func (q *wireQP) State() verbs.QPState              { return q.state }
func (q *wireQP) Init() error                       { q.state = verbs.Init; return nil }
func (q *wireQP) ReadyToSend(roce.PSN) error        { q.state = verbs.RTS; return nil }
func (q *wireQP) Fail()                             { q.state = verbs.Err }
func (q *wireQP) Export(verbs.MR) error             { return verbs.ErrNotMapped }
func (q *wireQP) Close() error                      { return nil }
func (d *wire) done(c verbs.Completion)             { c.QPN = 1; d.cq.Add(c) }
func (q *wireQP) ReadyToReceive(p verbs.Peer) error { q.state, q.peer = verbs.RTR, p; return nil }
func (q *wireQP) MapRemote(roce.RKey, roce.VAddr) (verbs.RemoteMR, error) {
	return nil, verbs.ErrNotMapped
}

func (d *wire) AllocMemory(n int) (verbs.Memory, error) { return &wireMemory{make([]byte, n)}, nil }

func (p wirePD) Register(m verbs.Memory, _ verbs.Access) (verbs.MR, error) {
	r := &wireMR{m.(*wireMemory), roce.RKey(len(p.mrs))}
	p.mrs = append(p.mrs, r)
	return r, nil
}

func (p wirePD) CreateQP(_ verbs.CQ, c verbs.QPCap) (verbs.QP, error) {
	q := &wireQP{d: p.wire, recvs: make([]wireRecv, 0, 2*c.RecvWR)}
	p.qps = append(p.qps, q)
	return q, nil
}

func (q *wireQP) PostRecv(id verbs.WRID, b []byte) error {
	if len(q.recvs) == cap(q.recvs) {
		q.recvs, q.first = q.recvs[:copy(q.recvs, q.recvs[q.first:])], 0
	}
	q.recvs = append(q.recvs, wireRecv{id, b})
	return nil
}

func (q *wireQP) PostSend(id verbs.WRID, msg []byte) error {
	p := q.d.peer.qps[0]
	if p.first == len(p.recvs) {
		return verbs.ErrQueueFull
	}
	r := p.recvs[p.first]
	p.first++
	q.d.sends++
	p.d.done(verbs.Completion{ID: r.id, Op: verbs.OpRecv, Len: copy(r.buf, msg)})
	q.d.done(verbs.Completion{ID: id, Op: verbs.OpSend})
	return nil
}

func (q *wireQP) PostWrite(id verbs.WRID, src verbs.MR, off, n int, key roce.RKey, addr roce.VAddr) error {
	copy(q.d.peer.mrs[key].b[addr:], src.Bytes()[off:][:n])
	q.d.done(verbs.Completion{ID: id, Op: verbs.OpWrite})
	return nil
}

// wired is one end of a connection over wires.
type wired struct {
	e     *Engine
	c     *Conn
	rings Rings
	to    *wired
	in    [][]byte
}

func (w *wired) SendCLC(b []byte) error         { w.to.in = append(w.to.in, b); return nil }
func (w *wired) Established(r Rings)            { w.rings = r }
func (w *wired) Fallback(clc.DeclineCode, bool) {}
func (w *wired) Broken(error)                   {}
func (w *wired) Wake()                          {}

func newWired(t testing.TB, rmbe int) (a, b *wired) {
	da, db := &wire{gid: roce.GID{'A'}}, &wire{gid: roce.GID{'B'}}
	da.peer, db.peer = db, da
	a, b = &wired{}, &wired{}
	a.to, b.to = b, a
	for w, d := range map[*wired]*wire{a: da, b: db} {
		e, err := New(Config{PeerID: smc.PeerID{1, d.gid[0], 0, 0, 0, 0, 0, 1}, Devices: []verbs.Device{d}, RMBESize: rmbe, Elements: 1})
		if err != nil {
			t.Fatal(err)
		}
		w.e = e
	}
	b.c = b.e.Server(b, aLAN, 1)
	a.c = a.e.Client(a, aLAN, 1)
	for range 100 {
		for _, w := range []*wired{a, b} {
			if len(w.in) > 0 {
				w.c.CLC(w.in[0], 1)
				w.in = w.in[1:]
			}
			w.e.Poll(1)
		}
	}
	if a.rings.LocalRing == nil || b.rings.LocalRing == nil {
		t.Fatalf("%s, %s", a.c.State(), b.c.State())
	}
	return a, b
}

// pass carries n bytes from one side to the other, which reads them.
func (w *wired) pass(n int) {
	out, in := headAt(w.rings.PeerHead), headAt(w.to.rings.LocalHead)
	for n > 0 {
		k := min(n, len(w.rings.PeerRing)-int(out.prod()-out.cons()))
		out.setProd(out.prod() + uint64(k))
		n -= k
		w.c.Kick(1)
		w.to.e.Poll(1)
		in.setCons(in.prod())
		w.to.c.Kick(1)
		w.e.Poll(1)
	}
}

// In the steady state nothing is allocated: not for a message, not for a window, not for many.
func TestStreamsDoNotAllocate(t *testing.T) {
	a, b := newWired(t, MinRMBESize)
	for _, n := range []int{1, 1000, 1 << 20} {
		a.pass(n)
		b.pass(n)
		before := a.c.stream.sent
		if got := testing.AllocsPerRun(100, func() { a.pass(n); b.pass(n) }); got != 0 {
			t.Errorf("%d bytes there and back: %v allocations", n, got)
		}
		if moved := a.c.stream.sent - before; moved < uint64(100*n) || moved != headAt(b.rings.LocalHead).cons()-before {
			t.Errorf("%d bytes moved", moved)
		}
	}
}

// measure reports the time per CDC message, all work of both engines included.
func (w *wired) measure(b *testing.B, fn func()) {
	d := w.e.ports[0].dev.(*wire)
	sends := func() int { return d.sends + d.peer.sends }
	before := sends()
	b.ReportAllocs()
	for b.Loop() {
		fn()
	}
	n := float64(sends() - before)
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/n, "ns/cdc")
	b.ReportMetric(n/float64(b.N), "cdc/op")
}

// A small message there and its answer back.
func BenchmarkCDC(bm *testing.B) {
	a, b := newWired(bm, DefaultRMBESize)
	a.measure(bm, func() { a.pass(64); b.pass(64) })
}

// 1 MiB one way, copying included.
func BenchmarkWrite1MiB(bm *testing.B) {
	a, _ := newWired(bm, DefaultRMBESize)
	bm.SetBytes(1 << 20)
	a.measure(bm, func() { a.pass(1 << 20) })
}

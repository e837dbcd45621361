// Package verbstest checks providers against what verbs promises, and has a provider of its own that lives in memory,
// so that what is built on verbs can be tested without a kernel: nothing is delivered before Poll, and every datagram
// can be watched, dropped or failed.
package verbstest

import (
	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

// Verdict is what a Fabric does with a message.
type Verdict uint8

const (
	Deliver Verdict = iota
	Drop            // the sender believes that it was delivered
	Refuse          // the sender learns that nobody answers, and its queue pair fails
	Hold            // the receiver has no room: the sender keeps it until the next Poll
)

// Event is a message on its way.
type Event struct {
	From, To roce.GID
	Op       verbs.Opcode // OpSend, OpWrite or OpExported
	Msg      []byte       // OpSend
}

// Fabric connects the devices made from it.
type Fabric struct {
	// Filter decides about each message; nil delivers all.
	Filter func(Event) Verdict

	devices map[roce.GID]*Fake
	rnd     uint32
}

// NewFabric returns an empty fabric. All numbers that its devices give out follow from the seed.
func NewFabric(seed uint32) *Fabric {
	return &Fabric{devices: map[roce.GID]*Fake{}, rnd: seed | 1}
}

func (f *Fabric) random() uint32 {
	f.rnd ^= f.rnd << 13
	f.rnd ^= f.rnd >> 17
	f.rnd ^= f.rnd << 5
	return f.rnd
}

func (f *Fabric) judge(e Event) Verdict {
	if f.devices[e.To] == nil {
		return Refuse
	}
	if f.Filter == nil {
		return Deliver
	}
	return f.Filter(e)
}

// Fake is a device of a Fabric.
type Fake struct {
	f      *Fabric
	attr   verbs.Attr
	qps    map[roce.QPN]*fakeQP
	inbox  []func() // deliveries since the last Poll
	held   []*fakeQP
	closed bool
	open   struct{ memories, pds, cqs, maps int }
	// FailMemory and FailMap make the next calls fail.
	FailMemory, FailMap bool
}

// Device adds a device with the given GID.
func (f *Fabric) Device(gid roce.GID, caps verbs.Caps) *Fake {
	d := &Fake{f: f, qps: map[roce.QPN]*fakeQP{}, attr: verbs.Attr{
		Provider: "fake", GID: gid, MTU: roce.MTU1024, Caps: caps, MaxLinks: 1,
	}}
	f.devices[gid] = d
	return d
}

// Kill makes the device vanish as the death of its process would.
func (f *Fabric) Kill(d *Fake) { delete(f.devices, d.attr.GID) }

// Open returns how many objects are not closed, mappings included.
func (d *Fake) Open() int {
	o := d.open
	return len(d.qps) + o.memories + o.pds + o.cqs + o.maps
}

// Waiting returns how many deliveries the next Poll makes.
func (d *Fake) Waiting() int { return len(d.inbox) }

// Discard loses what Waiting counts.
func (d *Fake) Discard() { d.inbox = nil }

// Mapped returns how many mappings of peers' regions are open.
func (d *Fake) Mapped() int { return d.open.maps }

func (d *Fake) Attr() verbs.Attr             { return d.attr }
func (d *Fake) Reachable(gid roce.GID) bool  { return d.f.devices[gid] != nil }
func (d *Fake) Pending() bool                { return len(d.held) > 0 }
func (d *Fake) AllocPD() (verbs.PD, error)   { d.open.pds++; return &fakePD{d: d}, nil }
func (d *Fake) CreateCQ() (verbs.CQ, error)  { d.open.cqs++; return &fakeCQ{d: d}, nil }
func (d *Fake) later(to roce.GID, fn func()) { p := d.f.devices[to]; p.inbox = append(p.inbox, fn) }

func (d *Fake) AllocMemory(size int) (verbs.Memory, error) {
	if d.FailMemory {
		return nil, verbs.ErrMemory
	}
	d.open.memories++
	return &fakeMemory{d: d, b: make([]byte, (size+4095)&^4095)}, nil
}

func (d *Fake) Poll() bool {
	held := d.held
	d.held = nil
	for _, q := range held {
		q.flush()
	}
	in := d.inbox
	d.inbox = nil
	for _, fn := range in {
		fn()
	}
	return len(d.inbox) > 0
}

func (d *Fake) Close() error {
	switch {
	case d.closed:
		return verbs.ErrClosed
	case d.Open() > 0:
		return verbs.ErrBusy
	}
	d.closed = true
	return nil
}

type fakeMemory struct {
	d    *Fake
	b    []byte
	used int
}

func (m *fakeMemory) Bytes() []byte { return m.b }

func (m *fakeMemory) Zero(off, n int) error {
	if m.b == nil {
		return verbs.ErrClosed
	}
	if off < 0 || n < 0 || off > len(m.b) || n > len(m.b)-off || (off|n)%4096 != 0 {
		return verbs.ErrTooLong
	}
	clear(m.b[off:][:n])
	return nil
}

func (m *fakeMemory) Close() error {
	switch {
	case m.b == nil:
		return verbs.ErrClosed
	case m.used > 0:
		return verbs.ErrBusy
	}
	m.b = nil
	m.d.open.memories--
	return nil
}

type fakeCQ struct {
	verbs.Completions
	d    *Fake
	used int
	done bool
}

func (c *fakeCQ) Close() error {
	switch {
	case c.done:
		return verbs.ErrClosed
	case c.used > 0:
		return verbs.ErrBusy
	}
	c.done = true
	c.d.open.cqs--
	return nil
}

type fakePD struct {
	d    *Fake
	mrs  []*fakeMR
	used int
	done bool
}

func (p *fakePD) Register(m verbs.Memory) (verbs.MR, error) {
	mem, ok := m.(*fakeMemory)
	if !ok || mem.d != p.d {
		return nil, verbs.ErrForeign
	}
	if p.done || mem.b == nil {
		return nil, verbs.ErrClosed
	}
	mem.used++
	r := &fakeMR{p, mem, roce.RKey(p.d.f.random()), roce.VAddr(p.d.f.random()) << 12, true}
	p.mrs = append(p.mrs, r)
	return r, nil
}

func (p *fakePD) CreateQP(c verbs.CQ, limits verbs.QPCap) (verbs.QP, error) {
	q, ok := c.(*fakeCQ)
	if !ok || q.d != p.d {
		return nil, verbs.ErrForeign
	}
	if p.done || q.done {
		return nil, verbs.ErrClosed
	}
	x := &fakeQP{d: p.d, pd: p, cq: q, limits: limits, num: roce.QPN(p.d.f.random()%(1<<24-1)) + 1}
	q.used++
	p.used++
	p.d.qps[x.num] = x
	return x, nil
}

func (p *fakePD) Close() error {
	switch {
	case p.done:
		return verbs.ErrClosed
	case p.used > 0 || len(p.mrs) > 0:
		return verbs.ErrBusy
	}
	p.done = true
	p.d.open.pds--
	return nil
}

func (p *fakePD) find(key roce.RKey, addr roce.VAddr, n int) []byte {
	for _, r := range p.mrs {
		if r.key == key {
			return r.slice(addr, n)
		}
	}
	return nil
}

type fakeMR struct {
	pd   *fakePD
	mem  *fakeMemory
	key  roce.RKey
	addr roce.VAddr
	live bool
}

func (r *fakeMR) Bytes() []byte    { return r.mem.b }
func (r *fakeMR) RKey() roce.RKey  { return r.key }
func (r *fakeMR) Addr() roce.VAddr { return r.addr }

func (r *fakeMR) slice(addr roce.VAddr, n int) []byte {
	off := uint64(addr - r.addr)
	if addr < r.addr || off >= uint64(len(r.mem.b)) || uint64(n) > uint64(len(r.mem.b))-off {
		return nil
	}
	return r.mem.b[off:][:n]
}

func (r *fakeMR) Close() error {
	if !r.live {
		return verbs.ErrClosed
	}
	r.live = false
	r.mem.used--
	for i, x := range r.pd.mrs {
		if x == r {
			r.pd.mrs = append(r.pd.mrs[:i], r.pd.mrs[i+1:]...)
			break
		}
	}
	return nil
}

type fakeRemote struct {
	d    *Fake
	key  roce.RKey
	addr roce.VAddr
	b    []byte
	refs int
}

func (r *fakeRemote) Bytes() []byte    { return r.b }
func (r *fakeRemote) RKey() roce.RKey  { return r.key }
func (r *fakeRemote) Addr() roce.VAddr { return r.addr }

func (r *fakeRemote) Close() error {
	if r.refs == 0 {
		return verbs.ErrClosed
	}
	if r.refs--; r.refs == 0 {
		r.d.open.maps--
	}
	return nil
}

type fakeQP struct {
	d      *Fake
	pd     *fakePD
	cq     *fakeCQ
	num    roce.QPN
	limits verbs.QPCap
	state  verbs.QPState
	peer   verbs.Peer
	sqPSN  roce.PSN
	recvs  []fakeRecv
	inbox  [][]byte
	sq     []fakeSend
	offers []*fakeMR
	maps   []*fakeRemote
	closed bool
}

type fakeRecv struct {
	id  verbs.WRID
	buf []byte
}

type fakeSend struct {
	verbs.Completion
	msg  []byte
	mr   *fakeMR
	key  roce.RKey
	addr roce.VAddr
	psn  roce.PSN
}

func (q *fakeQP) QPN() roce.QPN        { return q.num }
func (q *fakeQP) State() verbs.QPState { return q.state }
func (q *fakeQP) Init() error          { return q.to(verbs.Init) }

func (q *fakeQP) to(next verbs.QPState) (err error) {
	if q.closed {
		return verbs.ErrClosed
	}
	q.state, err = q.state.To(next)
	return err
}

func (q *fakeQP) ReadyToReceive(p verbs.Peer) error {
	if err := q.to(verbs.RTR); err != nil {
		return err
	}
	q.peer = p
	for _, r := range q.offers {
		q.done(verbs.Completion{Op: verbs.OpExported, RKey: r.key})
	}
	return nil
}

func (q *fakeQP) ReadyToSend(psn roce.PSN) error {
	q.sqPSN = psn
	return q.to(verbs.RTS)
}

func (q *fakeQP) done(c verbs.Completion) {
	c.QPN = q.num
	q.cq.Add(c)
}

func (q *fakeQP) Fail() {
	if q.closed || q.state == verbs.Err {
		return
	}
	q.state = verbs.Err
	for _, w := range q.sq {
		if w.Op != verbs.OpExported {
			w.Status = verbs.StatusFlushed
			q.done(w.Completion)
		}
	}
	for _, w := range q.recvs {
		q.done(verbs.Completion{ID: w.id, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
	}
	q.sq, q.recvs, q.inbox, q.offers = nil, nil, nil, nil
}

func (q *fakeQP) Close() error {
	if q.closed {
		return verbs.ErrClosed
	}
	if q.peer.QPN != 0 && q.d.f.devices[q.peer.GID] != nil && q.d.f.devices[q.d.attr.GID] == q.d {
		to, num, from := q.peer, q.num, q.d.attr.GID
		p := q.d.f.devices[to.GID]
		q.d.later(to.GID, func() {
			if x := p.qps[to.QPN]; x != nil && x.isPeer(from, num) {
				x.Fail()
			}
		})
	}
	q.Fail()
	q.closed = true
	q.cq.used--
	q.pd.used--
	delete(q.d.qps, q.num)
	return nil
}

func (q *fakeQP) isPeer(gid roce.GID, num roce.QPN) bool {
	return q.state.Connected() && q.peer.GID == gid && q.peer.QPN == num
}

func (q *fakeQP) PostRecv(id verbs.WRID, buf []byte) error {
	if q.closed || !q.state.CanReceive() {
		return verbs.ErrState
	}
	if len(q.recvs) >= q.limits.RecvWR {
		return verbs.ErrQueueFull
	}
	q.recvs = append(q.recvs, fakeRecv{id, buf})
	if len(q.inbox) > 0 {
		msg := q.inbox[0]
		q.inbox = q.inbox[1:]
		q.receive(msg)
	}
	return nil
}

func (q *fakeQP) receive(msg []byte) {
	if len(q.recvs) == 0 {
		if q.inbox = append(q.inbox, msg); len(q.inbox) > 64 {
			q.Fail()
		}
		return
	}
	w := q.recvs[0]
	q.recvs = q.recvs[1:]
	c := verbs.Completion{ID: w.id, Op: verbs.OpRecv}
	if len(msg) > len(w.buf) {
		c.Status = verbs.StatusLength
		q.done(c)
		q.Fail()
		return
	}
	c.Len = copy(w.buf, msg)
	q.done(c)
}

func (q *fakeQP) post(s fakeSend) error {
	if len(q.sq) >= q.limits.SendWR {
		return verbs.ErrQueueFull
	}
	if s.Op == verbs.OpSend {
		s.psn, q.sqPSN = q.sqPSN, q.sqPSN.Next()
	}
	if q.sq = append(q.sq, s); len(q.sq) == 1 {
		q.flush()
	}
	return nil
}

func (q *fakeQP) flush() {
	for len(q.sq) > 0 {
		w := q.sq[0]
		from, to, num := q.d.attr.GID, q.peer, q.num
		v := Refuse
		if q.d.f.devices[from] == q.d {
			v = q.d.f.judge(Event{From: from, To: to.GID, Op: w.Op, Msg: w.msg})
		}
		if v == Hold {
			q.d.held = append(q.d.held, q)
			return
		}
		q.sq = q.sq[1:]
		if v == Refuse {
			w.Status = verbs.StatusUnreachable
		}
		p := q.d.f.devices[to.GID]
		if v == Deliver && w.Op == verbs.OpWrite {
			// The RNIC writes without the peer's help, and answers at once.
			x := p.qps[to.QPN]
			var dst []byte
			if x != nil && x.isPeer(from, num) {
				dst = x.pd.find(w.key, w.addr, len(w.msg))
			}
			if dst == nil {
				w.Status = verbs.StatusAccess
			}
			copy(dst, w.msg)
		}
		if v == Deliver && w.Op != verbs.OpWrite {
			q.d.later(to.GID, func() { p.arrive(from, num, to.QPN, w) })
		}
		if w.Op != verbs.OpExported {
			q.done(w.Completion)
		}
		if w.Status != verbs.StatusOK {
			q.Fail()
			return
		}
	}
}

func (d *Fake) arrive(from roce.GID, src, dst roce.QPN, w fakeSend) {
	q := d.qps[dst]
	switch {
	case q == nil:
		if p := d.f.devices[from]; p != nil {
			me := d.attr.GID
			d.later(from, func() {
				if x := p.qps[src]; x != nil && x.isPeer(me, dst) {
					x.Fail()
				}
			})
		}
	case w.Op == verbs.OpExported && (q.isPeer(from, src) || q.state == verbs.Init):
		q.offers = append(q.offers, w.mr)
		if q.state.Connected() {
			q.done(verbs.Completion{Op: verbs.OpExported, RKey: w.mr.key})
		}
	case w.Op == verbs.OpSend && q.isPeer(from, src):
		q.receive(w.msg)
	}
}

func (q *fakeQP) PostSend(id verbs.WRID, msg []byte) error {
	if q.closed || !q.state.CanSend() {
		return verbs.ErrState
	}
	if len(msg) > 8192 {
		return verbs.ErrTooLong
	}
	return q.post(fakeSend{Completion: verbs.Completion{ID: id, Op: verbs.OpSend}, msg: append([]byte(nil), msg...)})
}

func (q *fakeQP) PostWrite(id verbs.WRID, data []byte, key roce.RKey, addr roce.VAddr) error {
	if q.closed || !q.state.CanSend() {
		return verbs.ErrState
	}
	return q.post(fakeSend{
		Completion: verbs.Completion{ID: id, Op: verbs.OpWrite},
		msg:        append([]byte(nil), data...), key: key, addr: addr,
	})
}

func (q *fakeQP) Export(m verbs.MR) error {
	r, ok := m.(*fakeMR)
	switch {
	case !q.d.attr.Caps.Has(verbs.CapMapped):
		return verbs.ErrNotMapped
	case !ok || r.pd != q.pd:
		return verbs.ErrForeign
	case !r.live:
		return verbs.ErrClosed
	case q.closed || !q.state.Connected():
		return verbs.ErrState
	}
	return q.post(fakeSend{Completion: verbs.Completion{Op: verbs.OpExported}, mr: r})
}

func (q *fakeQP) MapRemote(key roce.RKey, addr roce.VAddr) (verbs.RemoteMR, error) {
	if !q.d.attr.Caps.Has(verbs.CapMapped) {
		return nil, verbs.ErrNotMapped
	}
	if q.closed || !q.state.Connected() {
		return nil, verbs.ErrState
	}
	for _, r := range q.maps {
		if r.key == key && r.refs > 0 {
			r.refs++
			return r, nil
		}
	}
	for i, r := range q.offers {
		if r.key != key {
			continue
		}
		q.offers = append(q.offers[:i], q.offers[i+1:]...)
		if q.d.FailMap || r.slice(addr, 1) == nil || r.mem.b == nil {
			return nil, verbs.ErrMemory
		}
		x := &fakeRemote{q.d, key, r.addr, r.mem.b, 1}
		q.maps = append(q.maps, x)
		q.d.open.maps++
		return x, nil
	}
	return nil, verbs.ErrUnmapped
}

package shm

import (
	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

const (
	maxOffered = 8  // exported and not asked for: more are refused
	maxInbox   = 64 // SENDs that found no receive posted: more are a broken peer
)

// qp is a reliably connected queue pair. AF_UNIX datagrams neither get lost nor overtake each other, so there is
// nothing to acknowledge: a SEND completes when the kernel has queued it at the peer.
type qp struct {
	d      *Device
	pd     *pd
	cq     *cq
	num    roce.QPN
	limits verbs.QPCap
	state  verbs.QPState
	peer   verbs.Peer
	user   int // of the peer, as the kernel said of its last datagram; -1 = it did not
	sqPSN  roce.PSN
	rqPSN  roce.PSN
	recvs  []recvWR
	inbox  [][]byte
	sq     []sendWR // waiting for room at the peer
	offers []offered
	maps   map[roce.RKey]*remote
	closed bool
}

type recvWR struct {
	id  verbs.WRID
	buf []byte
}

// sendWR is a datagram that waits: a SEND, or an EXPORT if mr is set.
type sendWR struct {
	id verbs.WRID
	b  []byte
	mr *mr
}

func (q *qp) QPN() roce.QPN        { return q.num }
func (q *qp) State() verbs.QPState { return q.state }

func (q *qp) to(next verbs.QPState) error {
	if q.closed {
		return verbs.ErrClosed
	}
	s, err := q.state.To(next)
	q.state = s
	return err
}

func (q *qp) Init() error { return q.to(verbs.Init) }

func (q *qp) ReadyToReceive(p verbs.Peer) error {
	if err := q.to(verbs.RTR); err != nil {
		return err
	}
	q.peer, q.rqPSN = p, p.PSN&roce.PSNMask
	// What strangers offered while nobody knew the peer goes back.
	keep := q.offers[:0]
	for _, o := range q.offers {
		if q.isPeer(o.from, o.src) {
			keep = append(keep, o)
			q.complete(verbs.Completion{Op: verbs.OpExported, RKey: o.key})
		} else {
			q.d.cfg.CloseFD(o.fd)
		}
	}
	q.offers = keep
	return nil
}

func (q *qp) ReadyToSend(psn roce.PSN) error {
	if err := q.to(verbs.RTS); err != nil {
		return err
	}
	q.sqPSN = psn & roce.PSNMask
	return nil
}

// isPeer reports whether a datagram of that sender is for this connection.
func (q *qp) isPeer(from roce.GID, src roce.QPN) bool {
	return q.state.Connected() && from == q.peer.GID && src == q.peer.QPN
}

func (q *qp) complete(c verbs.Completion) {
	c.QPN = q.num
	q.cq.Add(c)
}

// Fail flushes everything. Mappings stay: they belong to those who asked for them.
func (q *qp) Fail() {
	if q.closed || q.state == verbs.Err {
		return
	}
	q.state = verbs.Err
	for _, w := range q.sq {
		if w.mr == nil {
			q.complete(verbs.Completion{ID: w.id, Op: verbs.OpSend, Status: verbs.StatusFlushed})
		}
	}
	for _, w := range q.recvs {
		q.complete(verbs.Completion{ID: w.id, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
	}
	for _, o := range q.offers {
		q.d.cfg.CloseFD(o.fd)
	}
	q.sq, q.recvs, q.inbox, q.offers = nil, nil, nil, nil
	delete(q.d.queued, q)
}

func (q *qp) Close() error {
	if q.closed {
		return verbs.ErrClosed
	}
	// A peer in RTR may wait for us even if we never were able to send.
	if connected := q.peer.QPN != 0; connected {
		q.d.sendGone(q.peer.GID, route{q.peer.QPN, q.num})
	}
	q.Fail()
	q.closed = true
	q.cq.used--
	for _, r := range q.maps {
		if r.q = nil; r.refs == 0 {
			r.unmap()
		}
	}
	delete(q.d.qps, q.num)
	delete(q.pd.qps, q.num)
	return nil
}

func (q *qp) PostRecv(id verbs.WRID, buf []byte) error {
	if q.closed || !q.state.CanReceive() {
		return verbs.ErrState
	}
	if len(q.recvs) >= q.limits.RecvWR {
		return verbs.ErrQueueFull
	}
	q.recvs = append(q.recvs, recvWR{id, buf})
	if len(q.inbox) > 0 {
		msg := q.inbox[0]
		q.inbox = q.inbox[1:]
		q.take(msg)
	}
	return nil
}

// receive is a SEND of the peer.
func (q *qp) receive(psn roce.PSN, msg []byte) {
	if psn != q.rqPSN {
		q.Fail() // the transport loses nothing: this peer is broken
		return
	}
	q.rqPSN = psn.Next()
	switch {
	case len(q.recvs) > 0:
		q.take(msg)
	case len(q.inbox) < maxInbox:
		q.inbox = append(q.inbox, append([]byte(nil), msg...))
	default:
		q.Fail()
	}
}

func (q *qp) take(msg []byte) {
	w := q.recvs[0]
	q.recvs = q.recvs[1:]
	if len(msg) > len(w.buf) {
		q.complete(verbs.Completion{ID: w.id, Op: verbs.OpRecv, Status: verbs.StatusLength})
		q.Fail()
		return
	}
	q.complete(verbs.Completion{ID: w.id, Op: verbs.OpRecv, Len: copy(w.buf, msg)})
}

func (q *qp) PostSend(id verbs.WRID, msg []byte) error {
	if q.closed || !q.state.CanSend() {
		return verbs.ErrState
	}
	if len(msg) > maxMessage {
		return verbs.ErrTooLong
	}
	b := appendSend(make([]byte, 0, headerSize+sendHead+len(msg)), route{q.peer.QPN, q.num}, q.sqPSN, msg)
	if err := q.post(sendWR{id: id, b: b}); err != nil {
		return err
	}
	q.sqPSN = q.sqPSN.Next()
	return nil
}

func (q *qp) Export(m verbs.MR) error {
	r, ok := m.(*mr)
	switch {
	case !ok || r.pd != q.pd || r.access != verbs.RemoteWrite:
		return verbs.ErrForeign
	case r.pd.mrs[r.key] != r:
		return verbs.ErrClosed
	case q.closed || !q.state.Connected():
		return verbs.ErrState
	}
	b := appendExport(make([]byte, 0, headerSize+exportSize), route{q.peer.QPN, q.num}, r.region)
	return q.post(sendWR{b: b, mr: r})
}

// unexport drops an EXPORT that still waits: its memory goes away.
func (q *qp) unexport(r *mr) {
	keep := q.sq[:0]
	for _, w := range q.sq {
		if w.mr != r {
			keep = append(keep, w)
		}
	}
	if q.sq = keep; len(keep) == 0 {
		delete(q.d.queued, q)
	}
}

// post queues and tries at once. A failure shows as a completion, not as an error here.
func (q *qp) post(w sendWR) error {
	if len(q.sq) >= q.limits.SendWR {
		return verbs.ErrQueueFull
	}
	q.sq = append(q.sq, w)
	q.d.queued[q] = struct{}{}
	if len(q.sq) == 1 {
		q.flush()
	}
	return nil
}

// flush sends until the peer's queue is full.
func (q *qp) flush() {
	for len(q.sq) > 0 {
		w := q.sq[0]
		fd := -1
		if w.mr != nil {
			fd = w.mr.mem.fd
		}
		err := sendTo(q.d.cfg.FD, q.peer.GID, w.b, fd)
		if again(err) {
			return
		}
		q.sq = q.sq[1:]
		if err != nil {
			if w.mr == nil {
				q.complete(verbs.Completion{ID: w.id, Op: verbs.OpSend, Status: verbs.StatusUnreachable})
			}
			q.Fail()
			return
		}
		if w.mr == nil {
			q.complete(verbs.Completion{ID: w.id, Op: verbs.OpSend})
		}
	}
	q.sq = nil
	delete(q.d.queued, q)
}

// PostWrite stores at once into the mapped region. An RKey that the peer has not exported, or a range outside it, is what an RNIC
// would refuse at the other end.
func (q *qp) PostWrite(id verbs.WRID, src verbs.MR, off, n int, key roce.RKey, addr roce.VAddr) error {
	if q.closed || !q.state.CanSend() {
		return verbs.ErrState
	}
	m, ok := src.(*mr)
	switch {
	case !ok || m.pd != q.pd:
		return verbs.ErrForeign
	case m.pd.mrs[m.key] != m:
		return verbs.ErrClosed
	}
	data := m.slice(m.Bytes(), m.addr.Add(uint64(off)), n)
	if data == nil {
		return verbs.ErrTooLong
	}
	c := verbs.Completion{ID: id, Op: verbs.OpWrite}
	r, err := q.mapped(key, addr)
	if err == nil {
		if dst := r.slice(r.b, addr, n); dst != nil {
			copy(dst, data)
			q.complete(c)
			return nil
		}
	}
	c.Status = verbs.StatusAccess
	q.complete(c)
	q.Fail()
	return nil
}

// offer keeps an exported descriptor until somebody asks for it; false leaves it with the caller.
func (q *qp) offer(from roce.GID, src roce.QPN, g region, fd int) bool {
	known := q.isPeer(from, src)
	if !known && q.state != verbs.Init || len(q.offers) >= maxOffered || q.maps[g.key] != nil {
		return false
	}
	for _, o := range q.offers {
		if o.key == g.key && o.from == from {
			return false
		}
	}
	hidden := q.d.cfg.Hide(fd)
	if hidden < 0 {
		return false
	}
	q.offers = append(q.offers, offered{g, from, src, hidden})
	if known {
		q.complete(verbs.Completion{Op: verbs.OpExported, RKey: g.key})
	}
	return true
}

func (q *qp) MapRemote(key roce.RKey, addr roce.VAddr) (verbs.RemoteMR, error) {
	r, err := q.mapped(key, addr)
	if err != nil {
		return nil, err
	}
	r.refs++
	return r, nil
}

// mapped returns the region with that RKey and address, mapping it if it was offered. A mapping nobody asked for with
// MapRemote stays until the queue pair ends.
func (q *qp) mapped(key roce.RKey, addr roce.VAddr) (*remote, error) {
	if q.closed || !q.state.Connected() {
		return nil, verbs.ErrState
	}
	if r := q.maps[key]; r != nil {
		if !r.has(addr) {
			return nil, errSeals
		}
		return r, nil
	}
	for i, o := range q.offers {
		if o.key != key {
			continue
		}
		// Wrong or right, the offer is used up: whoever sent a bad one is not asked twice.
		q.offers = append(q.offers[:i], q.offers[i+1:]...)
		defer q.d.cfg.CloseFD(o.fd)
		if !o.has(addr) {
			return nil, errSeals
		}
		b, err := mapOffered(o.fd, o.size)
		if err != nil {
			return nil, err
		}
		r := &remote{region: o.region, d: q.d, q: q, b: b}
		q.maps[key] = r
		q.d.open.maps++
		return r, nil
	}
	return nil, verbs.ErrUnmapped
}

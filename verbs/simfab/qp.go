package simfab

import (
	"slices"
	"time"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

const (
	maxMessage = 8192
	maxEarly   = 64 // messages kept for a queue pair that has no receive posted, with CapMapped
)

type qp struct {
	d        *Device
	pd       *pd
	cq       *cq
	num      roce.QPN
	limits   verbs.QPCap
	state    verbs.QPState
	peer     verbs.Peer
	psn      roce.PSN
	recvs    []receive
	sq       []*request
	arrival  time.Duration // of the last message sent, none overtakes it
	answer   time.Duration // to it
	starving []*qp         // peers that wait for a receive to be posted
	early    [][]byte      // with CapMapped: arrived before a receive was posted
	offers   []*mr
	maps     []*remote
	closed   bool
}

type receive struct {
	id  verbs.WRID
	buf []byte
}

// request is a work request of the send queue.
type request struct {
	verbs.Completion
	msg     []byte
	mr      *mr
	key     roce.RKey
	addr    roce.VAddr
	psn     roce.PSN
	verdict Verdict
	back    time.Duration
	flying  bool // judged and sent
	due     bool // at the door of the other RNIC
	tried   bool // for as long as patience lasts
	landed  bool // answered
	flushed bool // its completion is over, but it may still arrive
}

func (q *qp) QPN() roce.QPN        { return q.num }
func (q *qp) State() verbs.QPState { return q.state }
func (q *qp) Init() error          { return q.to(verbs.Init) }

func (q *qp) to(next verbs.QPState) (err error) {
	if q.closed {
		return verbs.ErrClosed
	}
	q.state, err = q.state.To(next)
	return err
}

func (q *qp) ReadyToReceive(p verbs.Peer) error {
	if err := q.to(verbs.RTR); err != nil {
		return err
	}
	q.peer = p
	for _, r := range q.offers {
		q.done(verbs.Completion{Op: verbs.OpExported, RKey: r.key})
	}
	return nil
}

func (q *qp) ReadyToSend(psn roce.PSN) error {
	q.psn = psn
	return q.to(verbs.RTS)
}

func (q *qp) done(c verbs.Completion) {
	c.QPN = q.num
	q.cq.Add(c)
}

func (q *qp) Fail() {
	if q.closed || q.state == verbs.Err {
		return
	}
	q.state = verbs.Err
	for _, w := range q.sq {
		if w.Op != verbs.OpExported {
			w.Status = verbs.StatusFlushed
			q.done(w.Completion)
		}
		if w.flushed = true; w.Op == verbs.OpWrite {
			w.msg = slices.Clone(w.msg) // what is on the way does not change any more
		}
	}
	for _, w := range q.recvs {
		q.done(verbs.Completion{ID: w.id, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
	}
	q.sq = slices.DeleteFunc(q.sq, func(w *request) bool { return !w.flying || w.landed })
	q.recvs, q.early, q.offers = nil, nil, nil
	q.feed()
}

// feed lets peers try again that found no receive.
func (q *qp) feed() {
	for _, x := range q.starving {
		q.d.f.at(q.d.f.now(), x.land)
	}
	q.starving = nil
}

func (q *qp) Close() error {
	if q.closed {
		return verbs.ErrClosed
	}
	if x := q.d.f.route(q.d, q.peer.GID); x != nil && q.peer.QPN != 0 && q.d.mapped() {
		x.inbox = append(x.inbox, func() { x.refused(q.d.attr.GID, q.num, q.peer.QPN) })
	}
	q.Fail()
	q.closed = true
	q.cq.used--
	q.pd.used--
	delete(q.d.qps, q.num)
	return nil
}

// refused: the peer of the queue pair dst says that it is not there.
func (d *Device) refused(from roce.GID, src, dst roce.QPN) {
	if x := d.qps[dst]; x != nil && x.isPeer(from, src) {
		x.Fail()
	}
}

func (q *qp) isPeer(gid roce.GID, num roce.QPN) bool {
	return q.state.Connected() && q.peer.GID == gid && q.peer.QPN == num
}

// other returns the queue pair that answers to q, or nil.
func (q *qp) other() *qp {
	d := q.d.f.route(q.d, q.peer.GID)
	if d == nil {
		return nil
	}
	if x := d.qps[q.peer.QPN]; x != nil && x.isPeer(q.d.attr.GID, q.num) {
		return x
	}
	return nil
}

func (q *qp) PostRecv(id verbs.WRID, buf []byte) error {
	if q.closed || !q.state.CanReceive() {
		return verbs.ErrState
	}
	if len(q.recvs) >= q.limits.RecvWR {
		return verbs.ErrQueueFull
	}
	q.recvs = append(q.recvs, receive{id, buf})
	if len(q.early) > 0 {
		msg := q.early[0]
		q.early = q.early[1:]
		q.receive(msg)
	}
	q.feed()
	return nil
}

func (q *qp) receive(msg []byte) verbs.Status {
	w := q.recvs[0]
	q.recvs = q.recvs[1:]
	c := verbs.Completion{ID: w.id, Op: verbs.OpRecv}
	if len(msg) > len(w.buf) {
		c.Status = verbs.StatusLength
		q.done(c)
		q.Fail()
		return verbs.StatusAccess
	}
	c.Len = copy(w.buf, msg)
	q.done(c)
	return verbs.StatusOK
}

func (q *qp) post(w *request) error {
	if len(q.sq) >= q.limits.SendWR {
		return verbs.ErrQueueFull
	}
	if w.Op == verbs.OpSend {
		w.psn, q.psn = q.psn, q.psn.Next()
	}
	q.sq = append(q.sq, w)
	q.flush()
	return nil
}

// flush sends what was posted and not held.
func (q *qp) flush() {
	f := q.d.f
	for i := 0; i < len(q.sq); i++ {
		w := q.sq[i]
		if w.flying {
			continue
		}
		e := Event{f.count, q.d.attr.GID, q.peer.GID, q.num, q.peer.QPN, w.Op, w.msg}
		w.verdict = Deliver
		if f.Filter != nil && (f.route(q.d, q.peer.GID) != nil || !q.d.mapped()) {
			w.verdict = f.Filter(e)
		}
		f.tell(q, w, w.verdict)
		if w.verdict == Hold {
			if !slices.Contains(q.d.held, q) {
				q.d.held = append(q.d.held, q)
			}
			return
		}
		f.count++
		w.flying = true
		var there time.Duration
		if f.Latency != nil {
			there, w.back = f.Latency(e)
		}
		q.arrival = max(q.arrival, f.now()+there)
		if !q.d.mapped() {
			f.at(q.arrival, func() { w.due = true; q.land() })
			continue
		}
		// Before a verdict fails the queue pair.
		q.sq = slices.Delete(q.sq, i, i+1)
		i--
		q.hand(w)
	}
}

// ---- without CapMapped

// land delivers what has come to the peer's RNIC, in order.
func (q *qp) land() {
	f := q.d.f
	for _, w := range slices.Clone(q.sq) {
		if w.landed {
			continue
		}
		if !w.due {
			return
		}
		x, at := q.other(), f.now()+w.back
		switch {
		case w.verdict == Drop:
		case w.verdict == Refuse || x == nil:
			if w.flushed {
				q.sq = nil // nobody tries again
				return
			}
			if !w.tried {
				w.tried, w.due = true, false
				f.at(f.now()+f.Patience, func() { w.due = true; q.land() })
				return
			}
			w.Status, at = verbs.StatusUnreachable, f.now()
		case w.verdict == Break:
			x.Fail()
		case w.Op == verbs.OpWrite:
			if dst := x.pd.find(w.key, w.addr, len(w.msg)); dst != nil {
				copy(dst, w.msg)
			} else {
				w.Status = verbs.StatusAccess
				x.Fail()
			}
		case len(x.recvs) == 0:
			if !slices.Contains(x.starving, q) {
				x.starving = append(x.starving, q)
			}
			return
		default:
			if s := x.receive(w.msg); s != verbs.StatusOK && !w.flushed {
				w.Status = s
			}
		}
		if w.verdict == Unacked && w.Status == verbs.StatusOK {
			w.Status, at = verbs.StatusUnreachable, f.now()+f.Patience
		}
		w.landed = true
		if w.flushed {
			q.sq = slices.DeleteFunc(q.sq, func(r *request) bool { return r == w })
			continue
		}
		q.answer = max(q.answer, at)
		f.at(q.answer, func() { q.answered(w) })
		if w.Status != verbs.StatusOK {
			return // what is behind it is not taken
		}
	}
}

// answered completes a work request.
func (q *qp) answered(w *request) {
	if w.flushed {
		return
	}
	q.sq = slices.DeleteFunc(q.sq, func(r *request) bool { return r == w })
	q.done(w.Completion)
	if w.Status == verbs.StatusOK && w.verdict != Break {
		return
	}
	q.d.f.tell(q, w, w.Status)
	q.Fail()
	q.sq = nil // nor arrives what was behind it
}

// ---- with CapMapped

// hand gives a message to the peer's inbox, which completes it.
func (q *qp) hand(w *request) {
	f := q.d.f
	to, from, num := q.peer, q.d.attr.GID, q.num
	p := f.route(q.d, to.GID)
	if p == nil || w.verdict == Refuse {
		w.Status = verbs.StatusUnreachable
	}
	arrives := w.Status == verbs.StatusOK && w.verdict != Drop && w.verdict != Break
	if arrives && w.Op == verbs.OpWrite {
		var dst []byte
		if x := q.other(); x != nil {
			dst = x.pd.find(w.key, w.addr, len(w.msg))
		}
		if dst == nil {
			w.Status = verbs.StatusAccess
		}
		copy(dst, w.msg)
	}
	enter := func(fn func()) {
		if q.arrival > f.now() {
			f.at(q.arrival, func() { p.inbox = append(p.inbox, fn) })
		} else {
			p.inbox = append(p.inbox, fn)
		}
	}
	switch {
	case arrives && w.Op != verbs.OpWrite:
		enter(func() { p.arrive(from, num, to.QPN, w) })
	case w.verdict == Break && p != nil:
		enter(func() { p.refused(from, num, to.QPN) })
	}
	if w.verdict == Unacked && w.Status == verbs.StatusOK {
		w.Status = verbs.StatusUnreachable
	}
	if w.Op != verbs.OpExported {
		q.done(w.Completion)
	}
	if w.Status != verbs.StatusOK || w.verdict == Break {
		q.Fail()
	}
}

func (d *Device) arrive(from roce.GID, src, dst roce.QPN, w *request) {
	q := d.qps[dst]
	switch {
	case q == nil:
		if p := d.f.route(d, from); p != nil {
			p.inbox = append(p.inbox, func() { p.refused(d.attr.GID, dst, src) })
		}
	case w.Op == verbs.OpExported && (q.isPeer(from, src) || q.state == verbs.Init):
		q.offers = append(q.offers, w.mr)
		if q.state.Connected() {
			q.done(verbs.Completion{Op: verbs.OpExported, RKey: w.mr.key})
		}
	case w.Op == verbs.OpSend && q.isPeer(from, src):
		if len(q.recvs) > 0 {
			q.receive(w.msg)
		} else if q.early = append(q.early, w.msg); len(q.early) > maxEarly {
			q.Fail()
		}
	}
}

func (q *qp) PostSend(id verbs.WRID, msg []byte) error {
	if q.closed || !q.state.CanSend() {
		return verbs.ErrState
	}
	if len(msg) > maxMessage {
		return verbs.ErrTooLong
	}
	return q.post(&request{Completion: verbs.Completion{ID: id, Op: verbs.OpSend}, msg: slices.Clone(msg)})
}

// PostWrite keeps no copy: the bytes are read when they arrive, as an RNIC may do that has to send them again.
func (q *qp) PostWrite(id verbs.WRID, src verbs.MR, off, n int, key roce.RKey, addr roce.VAddr) error {
	if q.closed || !q.state.CanSend() {
		return verbs.ErrState
	}
	r, ok := src.(*mr)
	switch {
	case !ok || r.pd != q.pd:
		return verbs.ErrForeign
	case !r.live:
		return verbs.ErrClosed
	}
	data := r.slice(r.addr.Add(uint64(off)), n)
	if data == nil {
		return verbs.ErrTooLong
	}
	return q.post(&request{Completion: verbs.Completion{ID: id, Op: verbs.OpWrite}, msg: data, key: key, addr: addr})
}

func (q *qp) Export(m verbs.MR) error {
	r, ok := m.(*mr)
	switch {
	case !q.d.mapped():
		return verbs.ErrNotMapped
	case !ok || r.pd != q.pd || r.access != verbs.RemoteWrite:
		return verbs.ErrForeign
	case !r.live:
		return verbs.ErrClosed
	case q.closed || !q.state.Connected():
		return verbs.ErrState
	}
	return q.post(&request{Completion: verbs.Completion{Op: verbs.OpExported}, mr: r})
}

func (q *qp) MapRemote(key roce.RKey, addr roce.VAddr) (verbs.RemoteMR, error) {
	if !q.d.mapped() {
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
		q.offers = slices.Delete(q.offers, i, i+1)
		if q.d.FailMap || r.slice(addr, 1) == nil || r.mem.b == nil {
			return nil, verbs.ErrMemory
		}
		x := &remote{q.d, key, r.addr, r.mem.b, 1}
		q.maps = append(q.maps, x)
		q.d.open.Maps++
		return x, nil
	}
	return nil, verbs.ErrUnmapped
}

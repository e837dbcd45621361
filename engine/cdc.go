package engine

import (
	"errors"

	"libsmcr/abi/cdc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
)

// Established connections whose peer's memory is not mapped: streams on their links. RFC 7609 §4.5, §4.8, §A.4.

// Errors that end an established connection, beside those of stream.
var (
	ErrAborted   = errors.New("engine: the peer has aborted the connection")
	ErrUnread    = errors.New("engine: closed with bytes that nobody has read, or will")
	ErrUndone    = errors.New("engine: the peer has closed and takes no more bytes")
	ErrStalled   = errors.New("engine: closed, and the peer does not take the last bytes")
	ErrLinksLost = errors.New("engine: no link to the peer is left")
)

const (
	dataID  = verbs.WRID(1) << 63 // work requests of streams, so that they are told from those of LLC
	reserve = 8                   // work requests that are left to LLC
	// A write wraps at most once here and once at the peer; then there are the CDC message and, after a failover, the
	// validation message before.
	batch = 5
)

// posting is a work request of a stream. Those of a queue pair complete in order.
type posting struct {
	c   *Conn
	pos uint64 // a CDC message: how far the stream was
	msg cdc.Message
	cdc bool
}

// sendQueue is what the streams of a link share.
type sendQueue struct {
	busy    int // work requests that are not completed, LLC's too
	posted  uint64
	ring    [sendWRs]posting
	waiting []*Conn // for room, the one that waits longest first
	msg     [cdc.Size]byte
}

// room for one batch: data never goes without the message that tells of it.
func (q *sendQueue) room() bool { return q.busy+batch <= sendWRs-reserve }

// take notes a posting and returns its name.
func (q *sendQueue) take(p posting) verbs.WRID {
	id := q.posted
	q.ring[id%sendWRs] = p
	q.posted++
	q.busy++
	p.c.inflight++
	return dataID | verbs.WRID(id)
}

// write posts the first piece of the next n bytes and returns its length; 0 if the link failed.
func (c *Conn) write(n uint32) uint32 {
	l := c.link
	off, to := c.stream.piece(n)
	t := c.remote.tokens[l]
	at := t.VAddr.Add(uint64(c.peer.Index-1)*uint64(c.peer.Size.Bytes()) + uint64(to.Off))
	id := l.queue.take(posting{c: c})
	if err := l.qp.PostWrite(id, c.local.rmb.outs[l], c.local.offset()+off, int(to.Len), t.RKey, at); err != nil {
		l.fail()
		return 0
	}
	c.stream.wrote(to.Len)
	return to.Len
}

// tell posts a CDC message and reports whether the link still works.
func (c *Conn) tell(m cdc.Message) bool {
	l := c.link
	if t := c.e.log.Trace(); t.Enabled() {
		t.Uint64("conn", uint64(c.id)).Uint8("link", uint8(l.num)).Stringer("send", m).Msg("cdc")
	}
	id := l.queue.take(posting{c: c, cdc: true, pos: c.stream.sent, msg: m})
	if err := l.qp.PostSend(id, m.Append(l.queue.msg[:0])); err != nil {
		l.fail()
		return false
	}
	return true
}

// flows: there is somebody to write to, and a link.
func (c *Conn) flows() bool {
	return c.opened() && c.remote != nil && c.next == nil && c.link != nil && c.link.state == fsm.LinkActive
}

// pump posts all that the stream has to send, as far as the link has room.
func (c *Conn) pump() {
	for c.flows() {
		n := c.stream.next()
		if n == 0 && !c.stream.due() {
			return
		}
		l := c.link
		if !l.queue.room() {
			if !c.waits {
				c.waits = true
				l.queue.waiting = append(l.queue.waiting, c)
			}
			return
		}
		if c.moved {
			c.moved = false
			if !c.tell(c.stream.validation(c.peer.Token)) {
				return
			}
		}
		for n > 0 {
			k := c.write(n)
			if k == 0 {
				return
			}
			n -= k
		}
		if !c.tell(c.stream.message(c.peer.Token)) {
			return
		}
	}
}

// carried: a work request of a stream has ended.
func (l *Link) carried(done verbs.Completion) {
	p := &l.queue.ring[uint64(done.ID&^dataID)%sendWRs]
	c, pos, m, isCDC := p.c, p.pos, p.msg, p.cdc
	*p = posting{}
	if done.Status != verbs.StatusOK {
		l.fail()
		return
	}
	if c != nil && c.link == l {
		if c.inflight--; isCDC && !m.Flags.Has(cdc.FailoverValidation) {
			c.stream.completed(m.Seq, pos)
			if m.Conn.Has(cdc.Aborted) && c.conn == fsm.ProcessAbort {
				c.connStep(fsm.AbortSent)
			}
			c.stir()
		}
		if c.next != nil && c.inflight == 0 {
			c.switchLink()
		}
		c.advance()
	}
	l.next()
}

// next lets the connection go on that has waited longest for room.
func (l *Link) next() {
	q := &l.queue
	for len(q.waiting) > 0 && l.state == fsm.LinkActive && q.room() {
		c := q.waiting[0]
		q.waiting = append(q.waiting[:0], q.waiting[1:]...)
		if c.waits = false; c.link == l {
			c.advance()
		}
	}
}

// stir has the owner woken when the step is over.
func (c *Conn) stir() {
	if _, ok := c.h.(Waker); ok && !c.woken && !c.silent {
		c.woken = true
		c.e.woken = append(c.e.woken, c)
	}
}

func (c *Conn) wake() {
	if c.woken = false; !c.silent {
		c.h.(Waker).Wake()
	}
}

// openStream: the rings of an established connection.
func (c *Conn) openStream() {
	if c.port.mapped() {
		return
	}
	c.receiver()
	head, ring := c.local.sendBuffer()
	h := headAt(head)
	h.begin(uint32(c.peer.Token))
	c.stream.open(c.group.dialect.Ring(c.peer.Size.Bytes()), h, len(ring))
}

// opened: the rings are, or were, the program's.
func (c *Conn) opened() bool { return c.stream != nil && c.stream.tx != nil }

// begin: what came before the Confirm counts from now on.
func (c *Conn) begin() {
	if c.opened() {
		c.peerSaid(0)
		c.advance()
	}
}

// receiver is made when the first message comes, which may be before the Confirm (RFC 7609 §3.5.2.4).
func (c *Conn) receiver() {
	if c.stream == nil {
		head, rmbe := c.local.memory()
		c.stream, _ = receiver(c.group.dialect, headAt(head), rmbe)
	}
}

// Kick is to be called when the program has moved a position of the rings, or set a flag in their heads.
func (c *Conn) Kick(now Instant) {
	defer c.e.enter(now)()
	if !c.opened() || c.state != fsm.Established {
		return
	}
	s := c.stream
	if err := s.look(); err != nil {
		c.abort(err)
		return
	}
	if !c.closing && s.rx.readerClosed() && s.tx.writerFlags()&WriterClosed != 0 {
		c.silent = true // a child that had inherited the connection has closed it
		c.closeStream()
		return
	}
	c.advance()
}

// Abort ends an established connection as a reset does: the program asked for it, or TCP showed it (RFC 7609 §4.8.2).
// Broken follows unless the connection was closed.
func (c *Conn) Abort(err error, now Instant) {
	defer c.e.enter(now)()
	if c.stream != nil && c.state == fsm.Established {
		c.abort(err)
	}
}

// onCDC takes a CDC message for this connection; with mapped memory there are none.
func (c *Conn) onCDC(l *Link, m cdc.Message) {
	if t := c.e.log.Trace(); t.Enabled() {
		t.Uint64("conn", uint64(c.id)).Uint8("link", uint8(l.num)).Stringer("recv", m).Msg("cdc")
	}
	if !c.told || c.group == nil {
		return // nobody could know the token
	}
	// Only who has all of our answers sends data: they arrived, whatever becomes of the acknowledgments.
	if c.state == fsm.ReplyPosted {
		c.linkSent(verbs.StatusOK)
	}
	if c.group != nil && c.group.first == c && c.group.settling {
		c.group.settled(verbs.StatusOK)
	}
	if c.group == nil {
		return
	}
	c.receiver()
	switch {
	case m.Flags.Has(cdc.FailoverValidation):
		c.validate(m)
	case !c.hold(m):
		c.take(m)
	}
}

// take processes a message in its turn.
func (c *Conn) take(m cdc.Message) {
	s := c.stream
	if c.conn == fsm.PeerAbortWait {
		// Figure 23, 1A: whatever else the peer says is over.
		m.Prod, m.Cons, m.Flags, m.Conn = s.in.At(s.prod), s.out.At(s.peerCons), 0, m.Conn&(cdc.Aborted|cdc.Closed)
	}
	was, prod, cons := s.peerConn, s.prod, s.peerCons
	if err := s.receive(m); err != nil {
		c.abort(err)
		return
	}
	if !c.opened() {
		c.sweep()
		return
	}
	if s.prod != prod || s.peerConn != was || m.Flags.Has(cdc.UrgentPending) {
		c.stir()
	}
	if c.closing && s.peerCons != cons {
		c.guard()
	}
	if c.peerSaid(was); c.stream != nil {
		c.advance()
	}
}

// peerSaid steps through what the peer has said of the connection's end since it had said was.
func (c *Conn) peerSaid(was cdc.ConnFlags) {
	s := c.stream
	news := s.peerConn &^ was
	switch {
	case news.Has(cdc.Aborted):
		answer := s.connSaid&(cdc.Closed|cdc.Aborted) == 0
		c.connStep(fsm.PeerConnAbort)
		if s.conn |= cdc.Aborted; c.conn == fsm.ProcessAbort && !answer {
			c.connStep(fsm.AbortSent)
		}
		c.breakOff(ErrAborted)
		return
	case news.Has(cdc.Closed):
		c.connStep(fsm.PeerConnClosed)
		if s.conn.Has(cdc.Closed) {
			c.connStep(fsm.AppClose) // 3D: we have closed already
		}
	case news.Has(cdc.SendingDone):
		c.connStep(fsm.PeerDoneWriting)
	}
	if c.closing && s.unread() && s.conn&(cdc.Closed|cdc.Aborted) == 0 {
		c.abort(ErrUnread)
	}
}

// advance does what has become possible: the steps of closing, and all that is to be sent.
func (c *Conn) advance() {
	if !c.opened() {
		return
	}
	s := c.stream
	if s.conn&(cdc.Closed|cdc.Aborted) == 0 {
		if s.peerConn.Has(cdc.Closed) && s.unsent() > 0 {
			c.abort(ErrUndone) // §4.8.1, 4A
			return
		}
		// Until the last write is acknowledged it may have to be repeated, and the peer, told that we are done with its
		// element, would have given that away.
		if s.drained() {
			if s.tx.writerFlags()&WriterDone != 0 && !s.conn.Has(cdc.SendingDone) {
				s.conn |= cdc.SendingDone
				c.connStep(fsm.AppShutWrite)
			}
			if c.closing {
				s.conn |= cdc.Closed
				c.connStep(fsm.AppClose)
				if s.peerConn.Has(cdc.Closed) {
					c.connStep(fsm.PeerConnClosed) // 4C
				}
				c.guard()
			}
		}
	}
	if c.pump(); c.closing {
		c.sweep()
	}
}

// closeStream: the program has closed. Unread bytes make it an abort; bytes that are not sent yet, a pending close.
func (c *Conn) closeStream() {
	c.closing, c.since = true, c.e.now
	s := c.stream
	if s.tx == nil || s.conn.Has(cdc.Aborted) || c.conn == fsm.Closed {
		c.sweep()
		return
	}
	err := s.look()
	if s.rx.setReaderClosed(); err == nil && s.unread() {
		err = ErrUnread
	}
	s.tx.setWriterClosed()
	if err != nil {
		c.abort(err)
		return
	}
	c.guard()
	c.advance()
}

// abort is the active one, 1A of Figure 23. What is in flight is not needed any more, but the element stays until its
// work requests have ended.
func (c *Conn) abort(err error) {
	s := c.stream
	if s.tx == nil {
		c.broken(err)
		return
	}
	s.conn |= cdc.Aborted
	c.connStep(fsm.AppAbort)
	if s.peerConn&(cdc.Closed|cdc.Aborted) != 0 {
		c.connStep(fsm.PeerConnAbort) // the peer says nothing any more
		if c.conn == fsm.ProcessAbort {
			c.connStep(fsm.AbortSent)
		}
	}
	c.breakOff(err)
}

// breakOff tells the program, and the peer if it may still be told.
func (c *Conn) breakOff(err error) {
	if c.err == nil {
		c.err = err
	}
	c.pump()
	if c.state == fsm.Established {
		c.step(fsm.RecvGarbage)
	}
	c.guard()
	if c.closing {
		c.sweep()
	}
}

// guard starts the timer anew that lets nobody be stranded in the end of a connection.
func (c *Conn) guard() {
	if c.conn == fsm.Closed {
		c.e.timers.stop(&c.timer)
		return
	}
	c.e.after(&c.timer, c.e.cfg.Timeouts.Close)
}

func (c *Conn) closeTimeout() {
	s := c.stream
	if !c.opened() {
		c.sweep() // a negotiation that broke: see streamOver
		return
	}
	if s.conn&(cdc.Closed|cdc.Aborted) == 0 {
		c.abort(ErrStalled)
		return
	}
	c.connStep(fsm.CloseTimeout)
	if c.closing {
		c.sweep()
	}
}

// streamOver: nobody writes into the element any more, and nothing of it is in flight.
func (c *Conn) streamOver() bool {
	s := c.stream
	if !c.opened() {
		// A negotiation that broke when the peer could know the element already.
		return s != nil && s.peerConn&(cdc.Closed|cdc.Aborted) != 0 || c.e.now-c.since >= abandoned
	}
	return c.conn == fsm.Closed && c.inflight == 0 && !(c.flows() && s.due())
}

// silence: nothing may be written any more, not even a message (RFC 7609 §4.4.2).
func (c *Conn) silence() {
	if s := c.stream; s != nil {
		s.conn |= cdc.Aborted
		s.connSaid |= cdc.Aborted
		c.connStep(fsm.AppAbort)
		c.connStep(fsm.PeerGone)
	}
}

// cut: the last link is gone (RFC 7609 §4.8.3).
func (c *Conn) cut() {
	if c.stream == nil {
		return
	}
	c.inflight, c.link, c.next = 0, nil, nil
	c.silence()
	c.err = ErrLinksLost
	if c.step(fsm.RecvGarbage); c.closing {
		c.sweep()
	}
}

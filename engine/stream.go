package engine

import (
	"errors"

	"libsmcr/abi/cdc"
	"libsmcr/abi/smc"
)

// Before editing read RFC 7609 §4.3, §4.5.1, §4.6 and §4.7.

// Errors that end an established connection by an abort (RFC 7609 §4.8.2), beside ErrReused.
var (
	ErrCursor   = errors.New("engine: a cursor is where it cannot be")
	ErrDataLost = errors.New("engine: data that the peer saw acknowledged has not arrived (RFC 7609 §4.6.1)")
	ErrOverlay  = errors.New("engine: the eye catcher of the RMB element is damaged")
)

// stream is the data path of a connection whose peer's memory is not mapped: what is to be written into the peer's RMBE,
// what a CDC message has to say, what a received one means. It knows of no link and no time.
//
// Both rings have their heads in local memory. All positions are bytes since the connection began; cursors exist in
// messages only.
//
//	tx   acked ≤ sent ≤ reached ≤ peerCons + capacity      the program writes up to tx.Prod, and may reuse what is acked
//	rx   told ≤ cons ≤ prod ≤ cons + capacity              the program reads up to rx.Prod
type stream struct {
	in, out smc.Ring // the local RMBE, that of the peer
	rx, tx  *Head    // tx is nil until the peer's RMBE is known (RFC 7609 §3.5.2.4)
	size    uint64   // of the send buffer, a power of two
	eye     []byte   // the eye catcher of the local RMBE; empty in Linux's dialect

	sent     uint64 // written into the peer's RMBE; goes back in a failover
	reached  uint64 // the furthest that sent ever was
	acked    uint64 // a CDC message behind it was acknowledged
	said     uint64 // sent as the last CDC message told it
	peerCons uint64
	hold     uint64 // position behind an urgent byte: nothing is written until the peer has consumed up to here
	seq      smc.Seq
	seqAcked smc.Seq // SS of RFC 7609 §4.6.1
	flags    cdc.ProdFlags
	conn     cdc.ConnFlags // to be told
	connSaid cdc.ConnFlags
	fresh    bool // a CDC message is due whatever it says

	prod, cons uint64
	told       uint64  // cons as the peer knows it
	urgent     uint64  // position behind the last urgent byte of the peer
	recvSeq    smc.Seq // SR of RFC 7609 §4.6.1
	peerFlags  cdc.ProdFlags
	peerConn   cdc.ConnFlags
}

// receiver makes the half of a stream that exists before the peer's RMBE is known. rmbe is the whole element; the ring
// of the program is what follows the eye catcher.
func receiver(d smc.Dialect, head *Head, rmbe []byte) (s *stream, ring []byte) {
	r := d.Ring(uint32(len(rmbe)))
	// Nothing was written yet, so the peer's consumer cursor can only be where every ring starts.
	s = &stream{in: r, out: r, rx: head, eye: rmbe[:r.Origin:r.Origin]}
	copy(s.eye, smc.EyeCatcher[:])
	return s, rmbe[r.Origin:]
}

// open adds the sending half.
func (s *stream) open(out smc.Ring, head *Head, size int) {
	s.out, s.tx, s.size = out, head, uint64(size)
	if s.peerConn.Has(cdc.Closed) {
		head.setReaderClosed()
	}
}

// look takes over what the program did to the rings.
func (s *stream) look() error {
	cons := s.rx.cons()
	if cons-s.cons > s.prod-s.cons {
		return ErrCursor
	}
	s.cons = cons
	if s.tx != nil && s.tx.prod()-s.acked > s.size {
		return ErrCursor
	}
	return nil
}

// unsent is what the program wrote and nothing has carried over yet.
func (s *stream) unsent() uint64 { return s.tx.prod() - s.sent }

// drained: all that the program wrote is in the peer's RMBE, acknowledged.
func (s *stream) drained() bool { return s.tx.prod() == s.acked }

func (s *stream) unread() bool { return s.prod != s.cons }

// pending is the position behind an urgent byte that has not been written yet, or 0.
func (s *stream) pending() uint64 {
	if s.tx.writerFlags()&Urgent != 0 {
		if u := s.tx.urg(); u > s.sent && u <= s.tx.prod() {
			return u
		}
	}
	return 0
}

func (s *stream) window() uint64 { return s.peerCons + uint64(s.out.Capacity()) - s.sent }

// next returns how much may be written now: what there is and the window allows, but not beyond an urgent byte, and
// behind one nothing before the peer has consumed it (RFC 7609 §4.7.5).
func (s *stream) next() uint32 {
	if s.tx == nil || s.peerCons < s.hold || s.peerConn != 0 && s.peerConn != cdc.SendingDone || s.conn.Has(cdc.Aborted) {
		return 0
	}
	n := min(s.unsent(), s.window())
	if u := s.pending(); u != 0 {
		n = min(n, u-s.sent)
	}
	return uint32(n)
}

// piece is the first part of the next n bytes that wraps neither here nor at the peer: an offset in the send buffer and
// the place in the peer's RMBE.
func (s *stream) piece(n uint32) (off int, to smc.Span) {
	to, _ = s.out.Spans(s.out.At(s.sent), n)
	o := s.sent & (s.size - 1)
	to.Len = uint32(min(uint64(to.Len), s.size-o))
	return int(o), to
}

// wrote: a piece was posted.
func (s *stream) wrote(n uint32) {
	u := s.pending()
	if s.sent += uint64(n); s.sent == u {
		s.hold = u
	}
	s.reached = max(s.reached, s.sent)
}

// want is what the flags are to say.
func (s *stream) want() (f cdc.ProdFlags) {
	if s.tx == nil {
		return 0
	}
	if s.unsent() > 0 && s.window() == 0 {
		f |= cdc.WriterBlocked
	}
	if s.pending() != 0 {
		f |= cdc.UrgentPending
	}
	if s.peerCons < s.hold {
		f |= cdc.UrgentPending | cdc.UrgentPresent
	}
	return f
}

// due reports whether a CDC message is to be sent now: behind every write; when a flag has news that the peer has to
// act on; for a consumer update.
func (s *stream) due() bool {
	if s.tx == nil || s.connSaid&(cdc.Closed|cdc.Aborted) != 0 {
		return false
	}
	const news = cdc.WriterBlocked | cdc.UrgentPending
	return s.fresh || s.sent != s.said || s.conn != s.connSaid || s.want()&^s.flags&news != 0 || s.updateDue()
}

// updateDue has the rules of RFC 7609 §4.5.1, and §4.7.5: an urgent byte that was consumed is told at once.
func (s *stream) updateDue() bool {
	if s.cons == s.told || s.peerConn&(cdc.Closed|cdc.Aborted) != 0 {
		return false
	}
	return s.peerFlags&(cdc.WriterBlocked|cdc.UpdateRequested) != 0 || s.told < s.urgent && s.urgent <= s.cons ||
		s.in.UpdateDue(s.in.At(s.told), s.in.At(s.cons), s.in.At(s.prod))
}

// message is the CDC message to send now; all that it says counts as told.
func (s *stream) message(to smc.AlertToken) cdc.Message {
	s.seq = s.seq.Next()
	s.said, s.told, s.flags, s.connSaid, s.fresh = s.sent, s.cons, s.want(), s.conn, false
	return cdc.Message{
		Seq: s.seq, Token: to, Prod: s.out.At(s.sent), Cons: s.in.At(s.told), Flags: s.flags, Conn: s.conn,
	}
}

// completed: the message with that number, sent when sent was pos, was acknowledged, and all that was posted before it.
func (s *stream) completed(seq smc.Seq, pos uint64) {
	s.seqAcked = seq
	s.acked = max(s.acked, pos)
	s.tx.setCons(s.acked)
}

// rewind prepares for another link (RFC 7609 §4.6): what nobody acknowledged is written again, in one piece with what is
// new, under new sequence numbers, behind the validation message. Nothing of this stream is in flight.
//
// What the peer has consumed has arrived, whatever became of the acknowledgment. It must not be written again: its
// place may hold newer bytes.
func (s *stream) rewind() {
	s.acked = max(s.acked, s.peerCons)
	s.tx.setCons(s.acked)
	s.sent = s.acked
	if s.hold > s.sent {
		s.hold = 0
	}
	s.flags, s.connSaid, s.fresh = 0, 0, true
}

// validation is the first message on another link (RFC 7609 §4.6.1).
func (s *stream) validation(to smc.AlertToken) cdc.Message {
	return cdc.Message{Seq: s.seqAcked, Token: to, Flags: cdc.FailoverValidation}
}

// missing reports whether a validation message proves that data was lost.
func (s *stream) missing(m cdc.Message) bool { return s.recvSeq.Before(m.Seq) }

// receive takes a message that is no validation message. The error is a reason to abort.
func (s *stream) receive(m cdc.Message) error {
	if m.Seq.Before(s.recvSeq) {
		return nil // RFC 7609 §A.4: old control messages are never processed after newer ones
	}
	if string(s.eye) != string(smc.EyeCatcher[:len(s.eye)]) {
		return ErrOverlay
	}
	prod, ok1 := forward(s.in, s.prod, m.Prod, s.cons+uint64(s.in.Capacity()))
	cons, ok2 := forward(s.out, s.peerCons, m.Cons, s.reached)
	if !ok1 || !ok2 {
		return ErrCursor
	}
	s.recvSeq, s.peerFlags, s.peerConn = m.Seq, m.Flags, s.peerConn|m.Conn
	if s.peerCons = cons; cons > s.sent {
		// Written over another link, and it has arrived.
		s.sent = cons
	}
	switch {
	case m.Flags.Has(cdc.UrgentPresent):
		// The position first: who sees the flag reads it.
		s.urgent = prod
		s.rx.setUrg(prod)
		s.rx.flagWriter(Urgent)
		s.rx.unflagWriter(UrgentComing)
	case m.Flags.Has(cdc.UrgentPending):
		s.rx.flagWriter(UrgentComing)
	default:
		s.rx.unflagWriter(UrgentComing)
	}
	s.prod = prod
	s.rx.setProd(prod)
	// Behind the bytes: who sees the flag knows all of them.
	if m.Conn&(cdc.SendingDone|cdc.Closed) != 0 {
		s.rx.flagWriter(WriterDone)
	}
	if m.Conn.Has(cdc.Closed) {
		s.rx.flagWriter(WriterClosed)
		if s.tx != nil {
			s.tx.setReaderClosed()
		}
	}
	return nil
}

// forward returns the position that a cursor of the peer means, between lo, which it was, and hi. A cursor that went back
// is left alone: Linux lets its producer go back in a failover.
func forward(r smc.Ring, lo uint64, c smc.Cursor, hi uint64) (uint64, bool) {
	was := r.At(lo)
	if n, ok := r.Used(was, c); ok && lo+uint64(n) <= hi {
		return lo + uint64(n), true
	}
	n, ok := r.Used(c, was)
	return lo, ok && uint64(n) <= lo
}

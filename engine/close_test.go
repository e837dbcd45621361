package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"libsmcr/engine/fsm"
	"libsmcr/verbs/simfab"
)

// free checks that nobody holds an element any more, in a moment.
func (s *sim) free() {
	s.run(time.Millisecond, nil)
	for _, h := range s.hosts {
		if n := len(h.e.conns); n > 0 {
			s.failf("%s: %d connections are left", h.name, n)
		}
	}
}

// RFC 7609 §4.8.1, 3A: bytes that the program has not read when it closes make it a reset.
func TestClosedWithUnreadBytes(t *testing.T) {
	mustSimulate(t, "unread", simOptions{}, func(s *sim) {
		a, b := s.pair()
		a.chunk = 0 // reads no more
		b.more(10)
		s.run(time.Millisecond, nil)
		a.close()
		s.run(time.Millisecond, nil)
		s.wantErr(b, ErrAborted)
		b.close()
		s.free()
	})
}

// What arrives when the program has closed, and its own last bytes are still on their way, resets the connection too.
func TestBytesAfterClose(t *testing.T) {
	mustSimulate(t, "late", simOptions{}, func(s *sim) {
		a, b := s.pair()
		b.chunk = 0
		a.more(200_000) // more than fits
		s.run(time.Millisecond, nil)
		a.close()
		if a.c.stream.conn != 0 {
			s.failf("told %s before all is written", a.c.stream.conn)
		}
		b.chunk = 10
		b.more(10)
		s.run(time.Millisecond, nil)
		s.wantErr(b, ErrAborted)
		b.close()
		s.free()
	})
}

// RFC 7609 §4.8.1, 4A: the peer has closed, and takes nothing any more.
func TestBytesForAPeerThatHasClosed(t *testing.T) {
	mustSimulate(t, "undone", simOptions{}, func(s *sim) {
		a, b := s.pair()
		b.wake = s.since() + time.Hour
		a.close()
		s.run(time.Millisecond, nil)
		if f := headAt(b.rings.PeerHead); !f.readerClosed() {
			s.failf("the program cannot see that nobody reads")
		}
		b.more(1)
		b.write()
		b.c.Kick(s.now())
		s.run(time.Millisecond, nil)
		s.wantErr(b, ErrUndone)
		b.close()
		s.free()
	})
}

// Figure 22, 3A: a pending close. All that was written is delivered first.
func TestCloseDeliversWhatWasWritten(t *testing.T) {
	mustSimulate(t, "pending", simOptions{}, func(s *sim) {
		a, b := s.pair()
		b.chunk = 0
		a.more(100_000)
		s.run(time.Millisecond, nil)
		a.close()
		s.run(time.Millisecond, nil)
		b.chunk, b.stay, b.ready = 1000, false, true
		s.run(time.Second, s.allOver)
		if b.err != nil || b.got != a.sent {
			s.failf("%v, %d bytes of %d", b.err, b.got, a.sent)
		}
		s.free()
	})
}

// Figure 23, 1: both sides abort at once; and one of them alone.
func TestAbort(t *testing.T) {
	for _, both := range []bool{false, true} {
		mustSimulate(t, fmt.Sprint("both ", both), simOptions{}, func(s *sim) {
			a, b := s.pair()
			reset := errors.New("reset")
			a.more(50_000)
			b.more(50_000)
			s.run(lan/2, nil)
			a.c.Abort(reset, s.now())
			if both {
				b.c.Abort(reset, s.now())
			}
			if a.c.conn != fsm.PeerAbortWait {
				s.failf("in %s", a.c.conn)
			}
			s.run(time.Millisecond, nil)
			s.wantErr(a, reset)
			s.wantErr(b, map[bool]error{false: ErrAborted, true: reset}[both])
			a.close()
			b.close()
			s.free()
		})
	}
}

// RFC 7609 §4.8.1 and §4.8.2: nobody is stranded when the peer never closes, or never answers.
func TestNobodyIsStranded(t *testing.T) {
	for _, c := range []struct {
		name string
		act  func(s *sim, a *simEnd)
		wait int // timers
	}{
		{"closed", func(s *sim, a *simEnd) { a.close() }, 1},
		{"aborted", func(s *sim, a *simEnd) { a.c.Abort(ErrEOF, s.now()); a.close() }, 1},
		{"closed, and the bytes are not taken", func(s *sim, a *simEnd) {
			a.peer.chunk = 0
			a.more(200_000)
			s.run(time.Millisecond, nil)
			a.close()
		}, 2},
	} {
		mustSimulate(t, c.name, simOptions{}, func(s *sim) {
			a, b := s.pair()
			s.run(time.Millisecond, nil)
			deaf := c.wait > 0
			s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
				if deaf && st.from == b.h && st.what == "cdc" {
					return simfab.Drop, 0
				}
				return simfab.Deliver, 0
			}
			c.act(s, a)
			limit := time.Duration(c.wait) * DefaultTimeouts.Close
			s.run(limit-time.Second, nil)
			if len(a.h.e.conns) == 0 {
				s.failf("given up too early")
			}
			s.run(2*time.Second, nil)
			if n := len(a.h.e.conns); n != 0 {
				s.failf("still there after %v, in %s", limit, a.c.conn)
			}
		})
	}
}

// RFC 7609 §4.4.2: an element whose peer never closed is given out again; the peer then ends the old connection, and
// writes nothing.
func TestElementOfAStrandedConnectionIsReused(t *testing.T) {
	mustSimulate(t, "reuse", simOptions{}, func(s *sim) {
		a, b := s.pair()
		index := a.rings.Index
		b.wake = s.since() + time.Hour // its program does not see the end
		a.close()
		s.run(DefaultTimeouts.Close+time.Second, nil)
		told := 0
		s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
			if st.from == b.h && st.what == "cdc" {
				told++
			}
			return simfab.Deliver, 0
		}
		c, d := s.dial(a.h, b.h, [2]int{0, 0})
		c.stay, d.stay = true, true
		s.run(time.Second, nil)
		if c.rings == nil || c.rings.Index != index || d.err != nil {
			s.failf("%+v, %v", c.rings, d.err)
		}
		s.wantErr(b, ErrReused)
		if told != 0 {
			s.failf("%d messages", told)
		}
		c.more(1000)
		d.more(1000)
		s.run(time.Second, nil)
		if c.got != 1000 || d.got != 1000 {
			s.failf("%d and %d bytes", c.got, d.got)
		}
	})
}

// A connection that was handed on to a forked child lives until that has marked it closed.
func TestConnectionOfAChild(t *testing.T) {
	mustSimulate(t, "child", simOptions{}, func(s *sim) {
		a, b := s.pair()
		a.c.Leave(nil, s.now())
		s.more(5000)
		s.run(time.Millisecond, nil)
		if b.got != a.size || a.got != b.size {
			s.failf("%d and %d bytes", a.got, b.got)
		}
		MarkClosed(a.rings.LocalHead, a.rings.PeerHead)
		a.c.Kick(s.now())
		a.closed = true
		b.stay = false
		s.run(time.Millisecond, nil)
		if b.err != nil || !b.closed {
			s.failf("%v", b.err)
		}
		s.free()
	})
}

// The peer is told that this side is done with its element only when no write may have to be repeated.
func TestCloseWaitsForAcknowledgments(t *testing.T) {
	mustSimulate(t, "acknowledgments", simOptions{}, func(s *sim) {
		a, b := s.pair()
		a.more(1000)
		a.work()
		a.close()
		if c := a.c; c.inflight == 0 || c.stream.conn != 0 || c.conn != fsm.Active {
			s.failf("%d in flight, told %s in %s", c.inflight, c.stream.conn, c.conn)
		}
		b.stay = false
		s.run(time.Millisecond, nil)
		if b.err != nil || b.got != a.sent {
			s.failf("%v, %d bytes of %d", b.err, b.got, a.sent)
		}
		s.free()
	})
}

// An element, and the send buffer that belongs to it, is not given back while the RNIC still reads there, or while the
// peer has not been told.
func TestElementWaitsForItsWorkRequests(t *testing.T) {
	mustSimulate(t, "in flight", simOptions{}, func(s *sim) {
		a, b := s.pair()
		b.close()
		a.more(100_000) // more than fits
		a.work()
		s.run(lan, nil)
		s.wantErr(a, ErrUndone)
		a.close()
		if a.c.conn != fsm.Closed || a.c.inflight == 0 || a.c.group == nil {
			s.failf("in %s with %d in flight, given back %t", a.c.conn, a.c.inflight, a.c.group == nil)
		}
		s.free()
	})
	mustSimulate(t, "not told", simOptions{}, func(s *sim) {
		a, b := s.pair()
		b.wake, a.wake = s.since()+time.Hour, s.since()+time.Hour
		b.close()
		s.run(time.Millisecond, nil)
		q := &a.c.link.queue
		q.busy += sendWRs
		a.c.Abort(ErrEOF, s.now())
		a.close()
		if a.c.conn != fsm.Closed || a.c.group == nil {
			s.failf("in %s, given back %t", a.c.conn, a.c.group == nil)
		}
		q.busy -= sendWRs
		func() { defer a.h.e.enter(s.now())(); a.c.link.next() }()
		s.free()
	})
}

// RFC 7609 §4.8.2, 1A: behind an abort nothing reaches the program any more.
func TestNothingIsTakenBehindAnAbort(t *testing.T) {
	mustSimulate(t, "behind", simOptions{}, func(s *sim) {
		a, b := s.pair()
		b.more(1000)
		b.work()
		was := a.c.stream
		a.c.Abort(ErrEOF, s.now())
		s.run(time.Millisecond, nil)
		if was.prod != 100 || was.recvSeq < 3 {
			s.failf("%d bytes, %s messages", was.prod, was.recvSeq)
		}
		s.wantErr(b, ErrAborted)
	})
}

// A negotiation that broke when the client could write already: its element is free when the client is done, or has been
// silent for long.
func TestElementThatTheClientAloneKnows(t *testing.T) {
	for _, silent := range []bool{false, true} {
		mustSimulate(t, fmt.Sprint("silent ", silent), simOptions{}, func(s *sim) {
			s.pair()
			s.strike = func(st simStep) (bool, time.Duration) { return st.what == "CONFIRM", 0 }
			a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{1000, 1000})
			a.stay = true
			s.run(5*time.Second, nil)
			if a.rings == nil {
				s.failf("client %s", a.outcome())
			}
			a.wake = s.since() + time.Hour
			s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
				if silent && st.what == "cdc" && st.from == a.h {
					return simfab.Drop, 0
				}
				return simfab.Deliver, 0
			}
			s.run(2*time.Second, nil)
			if b.outcome() != "broken" || len(a.in) > 0 {
				s.failf("server %s", b.outcome())
			}
			s.run(time.Second, nil)
			if free := b.c.group == nil; free == silent {
				s.failf("given back %t", free)
			}
			s.run(abandonedFor, nil)
			if b.c.group != nil {
				s.failf("never given back")
			}
			s.judge = nil
		})
	}
}

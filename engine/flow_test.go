package engine

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"libsmcr/abi/cdc"
	"libsmcr/abi/smc"
	"libsmcr/verbs/simfab"
)

// The data path over RNICs that map nothing, from end to end: bytes, windows, both dialects, and the end.
func TestStreamsOverOneLink(t *testing.T) {
	for _, want := range []smc.Dialect{smc.RFC, smc.Linux} {
		t.Run(want.String(), func(t *testing.T) {
			mustSimulate(t, want.String(), simOptions{rfc: want == smc.RFC}, func(s *sim) {
				for _, size := range [][2]int{{1 << 20, 0}, {0, 300_000}, {1, 1}, {500_000, 700_000}, {0, 0}} {
					s.dial(s.hosts[0], s.hosts[1], size)
				}
				s.run(longest, s.allOver)
				for _, x := range s.ends {
					if x.outcome() != "smc" || x.got != x.peer.size {
						s.failf("%s%d: %s, got %d of %d", x.h.name, x.id, x.outcome(), x.got, x.peer.size)
					}
					if x.c.group != nil && x.c.group.dialect != want {
						s.failf("%s%d: dialect %s", x.h.name, x.id, x.c.group.dialect)
					}
				}
				if n := s.since(); n > 3700e9 {
					s.failf("took until %v: somebody waited for a timer", n)
				}
			})
		})
	}
}

// A host whose peers speak both dialects uses to each its own, also when another one opens the connection.
func TestPeersOfBothDialects(t *testing.T) {
	mustSimulate(t, "both", simOptions{rnics: [2]int{2, 2}, hosts: 3, mixed: true}, func(s *sim) {
		a, b, c := s.hosts[0], s.hosts[1], s.hosts[2]
		for _, pair := range [][2]*simHost{{a, b}, {a, c}, {c, a}, {b, c}, {b, a}} {
			x, y := s.dial(pair[0], pair[1], [2]int{200_000, 150_000})
			x.stay, y.stay = true, true
		}
		s.run(longest, s.allOver)
		for _, x := range s.ends {
			if x.outcome() != "smc" || x.got != x.peer.size || x.c.group.dialect != s.dialect(x.h, x.peer.h) || len(x.c.group.links) != 2 {
				s.failf("%s%d: %s, got %d of %d", x.h.name, x.id, x.outcome(), x.got, x.peer.size)
			}
		}
	})
}

// breakQP breaks the queue pair of a link.
func (l *Link) breakQP() { l.dev.(*simfab.Device).BreakQP(l.qp.QPN()) }

// RFC 7609 §4.6: whenever a link fails, and whichever side is the first to see it, not a byte is lost or comes twice.
func TestEveryStepFailsOver(t *testing.T) {
	for _, o := range []simOptions{{rnics: [2]int{2, 2}}, {rnics: [2]int{2, 2}, rfc: true}} {
		for _, gap := range []time.Duration{0, 5 * time.Microsecond, 15 * time.Microsecond, 300 * time.Microsecond, -15 * time.Microsecond} {
			for n := 0; ; n += stride {
				fired := false
				mustSimulate(t, fmt.Sprintf("step %d, %v between both sides, rfc %t", n, gap, o.rfc), o, func(s *sim) {
					fired = false
					s.staying(2, 100)
					one, two := s.ends[0].c.link, s.ends[1].c.link
					if gap < 0 {
						one, two = two, one
					}
					first := s.steps + n
					s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
						if st.n == first && !fired {
							fired = true
							s.later = append(s.later, one.breakQP)
							s.after(max(gap, -gap), two.breakQP)
						}
						return simfab.Deliver, 0
					}
					s.more(150_000)
					s.run(2*time.Second, s.allOver)
					s.release()
					s.run(2*time.Second, s.allOver)
					s.judge = nil
					for _, x := range s.ends {
						if x.err != nil || x.got != x.peer.size || !x.closed {
							s.failf("%s%d: %v, got %d of %d, closed %t", x.h.name, x.id, x.err, x.got, x.peer.size, x.closed)
						}
					}
				})
				if t.Failed() || !fired {
					t.Logf("%d steps", n)
					break
				}
			}
		}
	}
}

// pair makes one connection that carries some bytes and stays.
func (s *sim) pair() (a, b *simEnd) {
	s.staying(1, 100)
	return s.ends[len(s.ends)-2], s.ends[len(s.ends)-1]
}

func (s *sim) wantErr(x *simEnd, want error) {
	if !errors.Is(x.err, want) {
		s.failf("%s%d: %v, want %v", x.h.name, x.id, x.err, want)
	}
}

// more lets the program write n bytes more.
func (x *simEnd) more(n int) { x.size, x.ready = x.size+n, true }

// RFC 7609 §4.6.1: an RNIC that answered and then lost what it had answered. The receiver resets the connection.
func TestLossIsDetectedInFailover(t *testing.T) {
	mustSimulate(t, "loss", simOptions{rnics: [2]int{2, 2}}, func(s *sim) {
		a, b := s.pair()
		old := a.c.link
		s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
			if st.from == a.h && st.qp == old.qp.QPN() {
				return simfab.Drop, 0
			}
			return simfab.Deliver, 0
		}
		a.more(1000)
		s.run(time.Millisecond, nil)
		old.breakQP()
		s.run(time.Millisecond, nil)
		s.wantErr(b, ErrDataLost)
		s.wantErr(a, ErrAborted)
	})
}

// A validation message that overtakes, by way of another device, what the old link brought proves nothing.
func TestValidationWaitsForWhatHasArrived(t *testing.T) {
	mustSimulate(t, "overtaken", simOptions{}, func(s *sim) {
		a, b := s.pair()
		a.more(1000)
		a.work() // the write and its message are under way
		time.Sleep(lan)
		func() {
			defer b.h.e.enter(s.now())()
			b.c.onCDC(b.c.link, cdc.Message{Seq: a.c.stream.seq, Flags: cdc.FailoverValidation})
		}()
		s.run(time.Second, nil)
		if b.err != nil || b.got != a.size {
			s.failf("%v, %d of %d bytes", b.err, b.got, a.size)
		}
	})
}

// The same when all of it is taken from the devices at once: the validation message and another connection's from one,
// what was sent before over the old link from the other.
func TestValidationAmongOthers(t *testing.T) {
	mustSimulate(t, "at once", simOptions{rnics: [2]int{2, 2}, elements: [2]int{8, 8}}, func(s *sim) {
		s.staying(4, 100)
		links := s.hosts[0].group().links
		byLink := map[*Link][]*simEnd{}
		for i := 0; i < len(s.ends); i += 2 {
			byLink[s.ends[i].c.link] = append(byLink[s.ends[i].c.link], s.ends[i])
		}
		for _, x := range byLink[links[1]] {
			x.more(1000)
			x.work()
		}
		moves := byLink[links[1]][0]
		m := cdc.Message{Seq: moves.c.stream.seq, Token: moves.c.peer.Token, Flags: cdc.FailoverValidation}
		if err := links[0].qp.PostSend(1, m.Append(nil)); err != nil {
			s.failf("%v", err)
		}
		links[0].queue.busy++
		for _, x := range byLink[links[0]] {
			x.more(1000)
			x.work()
		}
		s.run(time.Second, nil)
		for _, x := range s.ends {
			if x.err != nil || x.got != x.peer.size {
				s.failf("%s%d: %v, %d of %d bytes", x.h.name, x.id, x.err, x.got, x.peer.size)
			}
		}
	})
}

// RFC 7609 §A.4, F bit: nothing counts in a validation message but its sequence number, whatever else it says.
func TestValidationSaysNothingElse(t *testing.T) {
	mustSimulate(t, "wild", simOptions{}, func(s *sim) {
		a, b := s.pair()
		m := cdc.Message{
			Seq: b.c.stream.recvSeq, Flags: cdc.FailoverValidation | cdc.WriterBlocked | cdc.UrgentPresent, Conn: cdc.Aborted | cdc.Closed,
			Prod: smc.Cursor{Wrap: 7, Count: 1 << 30}, Cons: smc.Cursor{Wrap: 9, Count: 1 << 31},
		}
		func() {
			defer b.h.e.enter(s.now())()
			b.c.onCDC(b.c.link, m)
		}()
		s.run(time.Millisecond, nil)
		a.more(1000)
		b.more(1000)
		s.run(time.Second, nil)
		if b.err != nil || a.err != nil || b.got != a.size || a.got != b.size {
			s.failf("%v, %v, %d and %d bytes", a.err, b.err, a.got, b.got)
		}
	})
}

// Connections leave a link that works, and come back, while bytes flow: nothing of the order is lost.
func TestRebalance(t *testing.T) {
	for n := 0; n < 60; n += stride {
		mustSimulate(t, fmt.Sprint("step ", n), simOptions{rnics: [2]int{2, 2}, elements: [2]int{8, 8}}, func(s *sim) {
			s.staying(4, 100)
			first := s.steps + n
			all := func(fn func(g *LinkGroup)) {
				s.later = append(s.later, func() {
					for _, h := range s.hosts {
						g := h.e.sortedGroups()[0]
						func() { defer h.e.enter(s.now())(); fn(g) }()
					}
				})
			}
			s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
				switch st.n {
				case first:
					all(func(g *LinkGroup) {
						for _, c := range sorted(g.conns) {
							if c.link != g.links[0] {
								c.move(g.links[0], false)
							}
						}
					})
				case first + 10:
					all((*LinkGroup).rebalance)
				}
				return simfab.Deliver, 0
			}
			s.more(100_000)
			if !s.run(time.Second, s.allOver) {
				s.failf("it takes too long")
			}
			s.run(time.Millisecond, nil)
			for _, h := range s.hosts {
				for l, n := range h.e.sortedGroups()[0].load() {
					if n != 2 || l.queue.busy != 0 {
						s.failf("%s: %d connections on link %d, %d work requests", h.name, n, l.num, l.queue.busy)
					}
				}
			}
		})
	}
}

// Many connections share a send queue that is shorter than what they have to say.
func TestSendQueueIsShared(t *testing.T) {
	mustSimulate(t, "shared", simOptions{elements: [2]int{60, 60}}, func(s *sim) {
		s.staying(60, 100)
		most := 0
		s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
			for _, h := range s.hosts {
				for _, l := range h.e.sortedGroups()[0].links {
					most = max(most, l.queue.busy)
				}
			}
			return simfab.Deliver, 0
		}
		s.more(200_000)
		if !s.run(time.Second, s.allOver) || most > sendWRs-reserve || most < sendWRs-reserve-batch {
			s.failf("%d work requests at most", most)
		}
	})
}

// RFC 7609 §4.7.5, from program to program.
func TestUrgentData(t *testing.T) {
	mustSimulate(t, "urgent", simOptions{}, func(s *sim) {
		a, b := s.pair()
		b.chunk = 0
		out, in := headAt(a.rings.PeerHead), headAt(b.rings.LocalHead)
		out.setUrg(103)
		out.flagWriter(Urgent)
		a.urgents = append(a.urgents, 103)
		a.more(3)
		s.run(time.Millisecond, nil)
		a.more(1000)
		s.run(time.Millisecond, nil)
		if in.writerFlags()&Urgent == 0 || in.urg() != 103 || in.prod() != 103 {
			s.failf("flags %d, mark at %d, %d bytes", in.writerFlags(), in.urg(), in.prod())
		}
		b.chunk, b.ready = 1<<20, true
		s.run(time.Millisecond, nil)
		if b.got != a.size {
			s.failf("%d of %d bytes", b.got, a.size)
		}
	})
}

// RFC 7609 §4.7.6, from program to program: urgent data that finds no room is announced, and comes when there is some.
func TestUrgentDataThatHasToWait(t *testing.T) {
	for _, o := range []simOptions{linux11, rfc11} {
		mustSimulate(t, o.kind(), o, func(s *sim) {
			a, b := s.pair()
			room := len(b.rings.LocalRing)
			b.wake = s.since() + time.Hour
			a.more(room)
			s.run(time.Millisecond, nil)
			out, in, mark := headAt(a.rings.PeerHead), headAt(b.rings.LocalHead), uint64(100+room+500)
			out.setUrg(mark)
			out.flagWriter(Urgent)
			a.urgents = append(a.urgents, mark)
			a.more(1500)
			reads := func(n int, want uint32, prod int) {
				b.chunk = n
				b.read()
				b.c.Kick(s.now())
				s.run(time.Millisecond, nil)
				if f := in.writerFlags(); f != want || in.prod() != uint64(100+prod) {
					s.failf("after %d bytes: flags %d, %d bytes have come, want %d and %d", b.got-100, f, in.prod()-100, want, prod)
				}
			}
			reads(0, UrgentComing, room)
			reads(300, UrgentComing, room+300) // there is room for a part of it
			reads(room, Urgent, room+500)
			reads(200, Urgent, room+1500)
			b.wake = 0
			b.chunk, b.ready = 1<<20, true
			s.run(time.Millisecond, nil)
			if b.got != a.size || in.urg() != mark {
				s.failf("%d of %d bytes, the mark at %d", b.got, a.size, in.urg())
			}
		})
	}
}

// A peer whose cursors lie is cut off, and this side goes on.
func TestHostileCDC(t *testing.T) {
	for name, m := range map[string]cdc.Message{
		"producer":       {Seq: 9, Prod: smc.Cursor{Count: MinRMBESize}},
		"consumer":       {Seq: 9, Prod: smc.Cursor{Count: 100}, Cons: smc.Cursor{Wrap: 3}},
		"gap":            {Seq: 99, Flags: cdc.FailoverValidation},
		"closed, hungry": {Seq: 9, Prod: smc.Cursor{Wrap: 1, Count: 101}, Conn: cdc.Closed},
	} {
		mustSimulate(t, name, simOptions{}, func(s *sim) {
			a, b := s.pair()
			m.Token = b.c.token
			if err := a.c.link.qp.PostSend(1, m.Append(nil)); err != nil {
				s.failf("%v", err)
			}
			a.c.link.queue.busy++
			s.run(time.Millisecond, nil)
			s.wantErr(b, map[bool]error{false: ErrCursor, true: ErrDataLost}[name == "gap"])
			s.wantErr(a, ErrAborted)
			a.close()
			b.close()
			s.run(time.Millisecond, nil)
			s.free()
			c, d := s.dial(a.h, b.h, [2]int{1000, 1000})
			s.run(time.Second, s.allOver)
			if c.got != 1000 || d.got != 1000 {
				s.failf("the next connection has %d and %d bytes", c.got, d.got)
			}
		})
	}
}

// RFC 7609 §3.5.2.4: the client's bytes are there before its Confirm; the program gets them behind it.
func TestDataOvertakesConfirm(t *testing.T) {
	mustSimulate(t, "overtakes", simOptions{}, func(s *sim) {
		s.pair()
		s.strike = func(st simStep) (bool, time.Duration) {
			return false, map[bool]time.Duration{true: time.Second}[st.what == "CONFIRM"]
		}
		a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{30_000, 1000})
		s.run(time.Millisecond, nil)
		if a.rings == nil || b.rings != nil || b.c.stream == nil || b.c.stream.prod != 30_000 {
			s.failf("client established %t, server %t", a.rings != nil, b.rings != nil)
		}
		s.run(2*time.Second, s.allOver)
		if b.err != nil || b.got != 30_000 || a.got != 1000 {
			s.failf("%v, %d and %d bytes", b.err, a.got, b.got)
		}
	})
}

// Data proves that the answers of a first contact have arrived, whatever becomes of their acknowledgment.
func TestDataAcknowledgesConfirmLink(t *testing.T) {
	mustSimulate(t, "acknowledges", simOptions{}, func(s *sim) {
		n := 0
		s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
			if st.what == "CONFIRM LINK" {
				if n++; n == 2 {
					return simfab.Unacked, 0
				}
			}
			return simfab.Deliver, 0
		}
		a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{0, 1000})
		s.run(time.Millisecond, nil)
		if a.outcome() != "smc" || b.outcome() != "smc" || a.got != 1000 {
			s.failf("%s and %s, %d bytes", a.outcome(), b.outcome(), a.got)
		}
	})
}

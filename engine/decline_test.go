package engine

import (
	"testing"
	"time"

	"libsmcr/engine/fsm"
	"libsmcr/verbs/simfab"
)

// RFC 7609 §C.2: the server cannot know that its CONFIRM LINK arrived, the client cannot send its own; both decline, and
// the Declines cross. Neither program gets to see one, whatever its peer does next.
func TestDeclinesThatCross(t *testing.T) {
	const slow = 1400 * time.Millisecond // three retransmissions of TCP (§C.7); the server declines after 0.5 s, the client after 1 s
	for _, c := range []struct {
		name string
		act  func(s *sim, client, server *simEnd)
	}{
		{"both come", func(s *sim, client, server *simEnd) {
			s.run(1200*time.Millisecond, nil)
			if client.c.State() != fsm.Declined || server.c.State() != fsm.Declined || client.fell || server.fell {
				s.failf("client %s, server %s", client.c.State(), server.c.State())
			}
			for _, h := range s.hosts {
				if n := len(h.e.groups); n != 0 {
					s.failf("%s: %d link groups are kept", h.name, n)
				}
			}
			s.run(slow, nil)
		}},
		{"data instead", func(s *sim, client, server *simEnd) {
			s.run(1200*time.Millisecond, nil)
			client.in, server.in = nil, nil
			for _, x := range []*simEnd{client, server} {
				// Need has it that these are no CLC bytes: they stay where they are.
				if x.c.CLC([]byte("GET / HTTP/1.1"), s.now()); !x.fell {
					s.failf("%s%d: %s", x.h.name, x.id, x.c.State())
				}
			}
		}},
		{"nothing", func(s *sim, client, server *simEnd) {
			s.run(1200*time.Millisecond, nil)
			client.in, server.in = nil, nil
			s.run(DefaultTimeouts.LLC, nil)
		}},
		{"end of TCP", func(s *sim, client, server *simEnd) {
			s.run(1200*time.Millisecond, nil)
			client.in, server.in = nil, nil
			client.c.EOF(s.now())
			server.c.EOF(s.now())
		}},
		{"the program cannot wait", func(s *sim, client, server *simEnd) {
			s.run(1200*time.Millisecond, nil)
			client.in, server.in = nil, nil
			client.c.Decline(1, s.now())
			server.c.Decline(1, s.now())
		}},
	} {
		mustSimulate(t, c.name, simOptions{}, func(s *sim) {
			n := 0
			s.judge = func(st simStep) (simfab.Verdict, time.Duration) {
				if st.what == "CONFIRM LINK" {
					if n++; n == 1 {
						return simfab.Unacked, 0
					}
					return simfab.Refuse, 0
				}
				return simfab.Deliver, 0
			}
			declines := 0
			s.strike = func(st simStep) (bool, time.Duration) {
				if st.what != "DECLINE" {
					return false, 0
				}
				declines++
				return false, slow
			}
			a, b := s.dial(s.hosts[0], s.hosts[1], [2]int{100, 100})
			c.act(s, a, b)
			if declines != 2 || !a.fell || !b.fell || a.err != nil || b.err != nil {
				s.failf("%d Declines; client %s in %s, server %s in %s", declines, a.outcome(), a.c.State(), b.outcome(), b.c.State())
			}
			s.run(slow, nil) // none is left for the program
		})
	}
}

package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"libsmcr/abi/clc"
	"libsmcr/abi/smc"
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

// fault is what happens to a message of a negotiation, or at that moment.
type fault uint8

const (
	drop fault = iota
	garble
	refuse
	hold
	killSender
	killReceiver
	eofs
	sendFails
	declineSender
	declineReceiver
	closeSender
	closeReceiver
	faults
)

var faultNames = [...]string{
	"drop", "garble", "refuse", "hold", "kill sender", "kill receiver", "EOF", "TCP send fails",
	"sender's program wants TCP", "receiver's program wants TCP", "sender closes", "receiver closes",
}

// RFC 7609 §C.1 to §C.7.1: each message of each scenario is lost, garbled, refused, delayed; each process dies, each
// program gives up, at each message. Both sides must come to the same end or to none, in time, and leave nothing
// behind.
func TestEveryFaultAtEveryMessage(t *testing.T) {
	scenarios := []struct {
		name    string
		prepare func(*world)
	}{
		{"first contact", func(*world) {}},
		{"subsequent contact", func(w *world) { w.established(w.a(), w.b()) }},
		{"subsequent contact with new RMBs", func(w *world) { w.established(w.a(), w.b()); w.established(w.a(), w.b()) }},
	}
	outcomes := map[string]int{}
	for _, sc := range scenarios {
		for f := range faults {
			for at := 0; ; at++ {
				hit := ""
				name := fmt.Sprintf("%s, %s at message %d", sc.name, faultNames[f], at)
				ok := t.Run(name, func(t *testing.T) { hit = playFault(t, sc.prepare, f, at, outcomes) })
				if hit == "" || !ok {
					break
				}
			}
		}
	}
	t.Logf("%v", outcomes)
	for _, want := range []string{"smc/smc", "fallback/fallback", "broken/broken"} {
		if outcomes[want] == 0 {
			t.Errorf("no run ended in %s: %v", want, outcomes)
		}
	}
}

// playFault runs one case and returns the message that was hit, "" if the scenario has fewer.
func playFault(t *testing.T, prepare func(*world), f fault, at int, outcomes map[string]int) (hit string) {
	w := newWorld(t, false, func(c *Config) { c.Elements = 2 })
	prepare(w)
	n := 0
	var client, server *end
	var then func() // after the step that sends the message
	act := func(sender *end, what string, isCLC bool) (verdict simfab.Verdict, skip, garbled bool) {
		n++
		if n-1 != at {
			return simfab.Deliver, false, false
		}
		hit = what
		receiver := sender.peer
		switch f {
		case drop:
			return simfab.Drop, true, false
		case garble:
			return simfab.Deliver, false, isCLC
		case refuse:
			return simfab.Refuse, false, false
		case hold:
			then = func() { w.fabric.Filter = w.observe }
			w.fabric.Filter = func(simfab.Event) simfab.Verdict { return simfab.Hold }
			return simfab.Hold, false, false
		case killSender:
			then = func() { w.kill(sender.h) }
		case killReceiver:
			then = func() { w.kill(receiver.h) }
			return simfab.Drop, true, false
		case eofs:
			receiver.eof = true
			return simfab.Drop, true, false
		case sendFails:
			sender.sendErr = errors.New("connection reset")
			if isCLC {
				receiver.eof = true
				return simfab.Drop, true, false
			}
		case declineSender:
			then = func() { sender.c.Decline(clc.DeclineInternal, w.now) }
		case declineReceiver:
			then = func() { receiver.c.Decline(clc.DeclineInternal, w.now) }
		case closeSender:
			then = func() { sender.c.Close(w.now); receiver.eof = true; sender.calls = 1; sender.err = ErrEOF }
		case closeReceiver:
			then = func() { receiver.c.Close(w.now); sender.eof = true; receiver.calls = 1; receiver.err = ErrEOF }
		}
		return simfab.Deliver, false, false
	}
	endOf := func(gid byte) *end {
		if gid == 'A' {
			return client
		}
		return server
	}
	client, server = &end{w: w, h: w.a()}, &end{w: w, h: w.b()}
	client.peer, server.peer = server, client
	w.ends = append(w.ends, client, server)
	w.clc = func(from *end, b []byte) []byte {
		_, skip, garbled := act(from, describe(b), true)
		if skip {
			return nil
		}
		if garbled {
			return []byte("GET / HTTP/1.1\r\n\r\n")
		}
		return b
	}
	w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
		w.observe(e)
		v, _, _ := act(endOf(e.From[0]), e.Op.String(), false)
		return v
	}
	server.c = w.b().e.Server(server, aLAN, w.now)
	client.c = w.a().e.Client(client, aLAN, w.now)
	for range 200 {
		if then != nil {
			fn := then
			then = nil
			fn()
		}
		for _, h := range w.hosts {
			if !h.dead && then == nil {
				h.e.Poll(w.now)
			}
		}
		for _, x := range w.ends {
			if then == nil {
				x.deliver()
			}
		}
	}
	w.advance(30 * time.Second)
	agreed(t, client, server)
	if hit != "" {
		outcomes[client.outcome()+"/"+server.outcome()]++
	}
	if t.Failed() {
		t.Logf("hit %s; client %v %v, server %v %v; %q", hit, client.fallback, client.err, server.fallback, server.err, w.trace)
	}
	// Connections that were there before live on, whatever happened (but for the dead).
	for i := 0; i+1 < len(w.ends)-2; i += 2 {
		if !w.a().dead && !w.b().dead {
			w.mustBeSMC(w.ends[i], w.ends[i+1])
		}
	}
	w.clc, w.fabric.Filter = nil, nil
	// And the next connection works, if both still live.
	if !w.a().dead && !w.b().dead && f != sendFails {
		w.established(w.a(), w.b())
	}
	for _, x := range w.ends {
		x.sendErr = nil
	}
	w.finish()
	return hit
}

func TestTimeouts(t *testing.T) {
	for _, c := range []struct {
		name           string
		lost           string
		after          time.Duration
		client, server string
		code           clc.DeclineCode
	}{
		{"Proposal", "A PROPOSAL", 6 * time.Second, "broken", "broken", 0},
		{"Accept", "B ACCEPT F", 6 * time.Second, "broken", "broken", 0},
		// §C.7: the client waits for CONFIRM LINK, not quite as long as the server for the Confirm.
		{"Confirm", "A CONFIRM F", 4 * time.Second, "broken", "broken", 0},
		{"client's RMB", "A export", 2 * time.Second, "fallback", "fallback", clc.DeclineConfirmLink},
		{"server's RMB", "B export", time.Second, "fallback", "fallback", clc.DeclineConfirmLink},
		{"CONFIRM LINK", "B CONFIRM LINK", 2 * time.Second, "broken", "broken", 0},
		// §C.7.1, first row: the client believes that the link is confirmed.
		{"CONFIRM LINK response", "A CONFIRM LINK rsp", 2 * time.Second, "smc", "broken", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, false)
			w.clc = func(from *end, b []byte) []byte {
				if from.h.name+" "+describe(b) == c.lost {
					return nil
				}
				return b
			}
			w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
				w.observe(e)
				if w.trace[len(w.trace)-1] == c.lost {
					return simfab.Drop
				}
				return simfab.Deliver
			}
			a, b := w.dial(w.a(), w.b())
			w.advance(c.after - time.Millisecond)
			if c.client != "smc" && a.outcome() != "open" || b.outcome() != "open" {
				t.Errorf("too early: client %s, server %s", a.outcome(), b.outcome())
			}
			w.advance(2 * time.Millisecond)
			if a.outcome() != c.client || b.outcome() != c.server {
				t.Errorf("client %s %v %v, server %s %v %v", a.outcome(), a.fallback, a.err, b.outcome(), b.fallback, b.err)
			}
			if c.code != 0 && a.fallback != nil && a.fallback.Code != c.code {
				t.Errorf("%v", a.fallback)
			}
			w.finish()
		})
	}
}

// RFC 7609 §C.6: what is no CLC message ends the TCP connection; a reserved value leads to a Decline.
func TestHostileCLC(t *testing.T) {
	patch := func(off int, v ...byte) func([]byte) []byte {
		return func(b []byte) []byte {
			b = slices.Clone(b)
			copy(b[off:], v)
			return b
		}
	}
	first := func(*world) {}
	second := func(w *world) { w.established(w.a(), w.b()) }
	for _, c := range []struct {
		name    string
		prepare func(*world)
		msg     string
		edit    func([]byte) []byte
		a, b    string
		code    clc.DeclineCode
	}{
		{"Proposal, version 2 for SMC-D only", first, "PROPOSAL", func([]byte) []byte {
			return clc.Proposal{Version: smc.V2, TypeV1: clc.TransportD, TypeV2: clc.TransportNone}.Append(smc.Linux, nil)
		}, "fallback", "fallback", clc.DeclineMode},
		{"Proposal, no peer ID", first, "PROPOSAL", patch(8, 0, 0, 0, 0, 0, 0, 0, 0), "fallback", "fallback", clc.DeclineNoDevice},
		{"Proposal, GID of nobody", first, "PROPOSAL", patch(16, 0xfe, 0x80), "fallback", "fallback", clc.DeclineNoDevice},
		{"Proposal, length", first, "PROPOSAL", patch(5, 0, 20), "broken", "broken", 0},
		{"Proposal, trailer", first, "PROPOSAL", patch(48, 0), "broken", "broken", 0},
		{"Accept in place of Proposal", first, "PROPOSAL", func([]byte) []byte { return clc.Accept{Version: smc.V1}.Append(nil) }, "broken", "broken", 0},
		{"Accept, GID of nobody", first, "ACCEPT F", patch(16, 9), "fallback", "fallback", clc.DeclineNoDevice},
		{"Accept, reserved MTU", first, "ACCEPT F", patch(50, 0x2F), "fallback", "fallback", clc.DeclineMode},
		{"Accept, version 3", first, "ACCEPT F", patch(7, 0x38), "fallback", "fallback", clc.DeclineMode},
		{"Accept, index 0", first, "ACCEPT F", patch(45, 0), "fallback", "fallback", clc.DeclineRToken},
		{"Accept, index beyond the RMB", first, "ACCEPT F", patch(45, 33), "fallback", "fallback", clc.DeclineRToken},
		{"Accept, element larger than the RMB", first, "ACCEPT F", patch(50, 0xF3), "fallback", "fallback", clc.DeclineRToken},
		{"Accept, token that is not in the head", first, "ACCEPT F", patch(46, 0xAA), "fallback", "fallback", clc.DeclineRToken},
		{"Accept, address outside the region", first, "ACCEPT F", patch(52, 0x7F), "fallback", "fallback", clc.DeclineMemory},
		{"Confirm, other peer ID", first, "CONFIRM F", patch(8, 1), "broken", "broken", 0},
		{"Confirm, other GID", first, "CONFIRM F", patch(16, 'B'), "broken", "broken", 0},
		{"Confirm, reserved MTU", first, "CONFIRM F", patch(50, 0x2F), "fallback", "fallback", clc.DeclineMode},
		{"Confirm, index 0", first, "CONFIRM F", patch(45, 0), "fallback", "fallback", clc.DeclineRToken},
		{"Confirm, token that is not in the head", first, "CONFIRM F", patch(46, 0xAA), "fallback", "fallback", clc.DeclineRToken},
		{"Proposal twice", first, "CONFIRM F", func([]byte) []byte { return clc.Proposal{Version: smc.V1}.Append(smc.Linux, nil) }, "broken", "broken", 0},
		// §C.4: the client does not know the link: Decline with the S bit.
		{"Accept, unknown link", second, "ACCEPT", patch(38, 9, 9, 9), "fallback", "fallback", clc.DeclineSync},
		{"Accept, unknown RKey", second, "ACCEPT", patch(41, 9, 9, 9), "fallback", "fallback", clc.DeclineRToken},
		{"Accept, subsequent, index 0", second, "ACCEPT", patch(45, 0), "fallback", "fallback", clc.DeclineRToken},
		// After its Accept the server cannot decline any more (§C.1).
		{"Confirm, subsequent, unknown link", second, "CONFIRM", patch(38, 9, 9, 9), "smc", "broken", 0},
		{"Confirm, subsequent, unknown RKey", second, "CONFIRM", patch(41, 9, 9, 9), "smc", "broken", 0},
		{"Confirm, subsequent, index 0", second, "CONFIRM", patch(45, 0), "smc", "broken", 0},
		{"Confirm, subsequent, other size", second, "CONFIRM", patch(50, 0x13), "smc", "broken", 0},
		{"Confirm, subsequent, other peer ID", second, "CONFIRM", patch(8, 1), "smc", "broken", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, false)
			c.prepare(w)
			done := false
			w.clc = func(_ *end, b []byte) []byte {
				if !done && describe(b) == c.msg {
					done = true
					return c.edit(b)
				}
				return b
			}
			a, b := w.dial(w.a(), w.b())
			w.advance(8 * time.Second)
			if a.outcome() != c.a || b.outcome() != c.b || c.code != 0 && a.fallback.Code != c.code {
				t.Errorf("client %s %v %v, server %s %v %v", a.outcome(), a.fallback, a.err, b.outcome(), b.fallback, b.err)
			}
			w.clc = nil
			w.established(w.a(), w.b())
			w.finish()
		})
	}
}

// RFC 7609 §C.4: a Decline with the S bit takes the server's link group down, so the next contact is a first one.
func TestOutOfSync(t *testing.T) {
	w := newWorld(t, false)
	a1, b1 := w.established(w.a(), w.b())
	// The client's side of the link fails unseen by the server.
	w.fabric.Filter = func(simfab.Event) simfab.Verdict { return simfab.Drop }
	w.a().e.byPeer[a1.c.group.key][0].down(fsm.LinkFailed)
	drain(w.b())
	a2, b2 := w.dial(w.a(), w.b())
	w.settle()
	if a2.outcome() != "fallback" || b2.outcome() != "fallback" || b2.fallback.Code != clc.DeclineSync || !b2.fallback.Remote {
		t.Errorf("%v, %v", a2.fallback, b2.fallback)
	}
	w.fabric.Filter = w.observe
	w.trace = nil
	w.established(w.a(), w.b())
	if !slices.Contains(w.trace, "B ACCEPT F") {
		t.Errorf("%q", w.trace)
	}
	w.mustBeSMC(a1, b1)
	w.finish()
}

// drain throws away what the fabric has for a host.
func drain(h *host) {
	for _, l := range h.e.ports[0].links {
		defer func() { l.links[l.qp.QPN()] = l }()
		delete(l.links, l.qp.QPN())
	}
	h.fake.Discard()
}

// Figure 42: the client cannot send its CONFIRM LINK response, and declines.
func TestResponseThatCannotBeSent(t *testing.T) {
	w := newWorld(t, false)
	w.fabric.Filter = func(e simfab.Event) simfab.Verdict {
		w.observe(e)
		if w.trace[len(w.trace)-1] == "A CONFIRM LINK rsp" {
			return simfab.Refuse
		}
		return simfab.Deliver
	}
	a, b := w.dial(w.a(), w.b())
	w.advance(time.Second) // the server might decline as well
	if a.outcome() != "fallback" || b.outcome() != "fallback" || !b.fallback.Remote || b.fallback.Code != clc.DeclineConfirmLink {
		t.Errorf("%v %v, %v %v", a.fallback, a.err, b.fallback, b.err)
	}
	w.finish()
}

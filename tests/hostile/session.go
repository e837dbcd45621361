package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/engine"
	"libsmcr/verbs"
)

const (
	wait     = 50 * time.Millisecond // for an answer to a lie, which may deserve none
	patience = 2 * time.Second       // for one that is due
)

// lie is what one session says otherwise than an honest peer would. A function that is nil is honest.
type lie struct {
	name   string
	before func(c *conn)                       // the TCP connection is there
	clc    func(n int, b []byte) [][]byte      // what to send in place of the n-th CLC message
	llc    func(n int, b []byte) []byte        // in place of the n-th LLC message
	export func(q *liar, m verbs.MR) error     // in place of telling of our memory
	after  func(c *conn)                       // it is established
	wants  func(c *conn, how string) (ok bool) // how it has to end; nil = as it likes
	slow   bool                                // there is an answer to wait for
}

// conn is one session.
type conn struct {
	a      *attacker
	fd     int
	sent   int
	end    string
	code   clc.DeclineCode
	rings  engine.Rings
	victim roce.GID
}

func (c *conn) SendCLC(b []byte) error {
	all := [][]byte{bytes.Clone(b)}
	if c.a.lie.clc != nil {
		all = c.a.lie.clc(c.sent, all[0])
	}
	c.sent++
	for _, b := range all {
		c.say(b)
	}
	return nil
}

// say is patient with a full socket buffer, not with a victim that takes nothing.
func (c *conn) say(b []byte) {
	for end := time.Now().Add(wait); len(b) > 0 && time.Now().Before(end); {
		n, err := unix.SendmsgN(c.fd, b, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if err == unix.EAGAIN {
			time.Sleep(time.Millisecond)
		} else if err != nil {
			return
		}
		b = b[max(n, 0):]
	}
}

func (c *conn) Established(r engine.Rings) { c.end, c.rings = "established", r }
func (c *conn) Broken(error)               { c.end = "broken" }
func (c *conn) Fallback(code clc.DeclineCode, own bool) {
	if c.end, c.code = "declined", code; own {
		c.end = "declined by ourselves"
	}
}

// converse runs one negotiation to its end, or until the victim has nothing more to say.
func (a *attacker) converse(fd int, begin func(c *conn) *engine.Conn) *conn {
	c := &conn{a: a, fd: fd}
	ec := begin(c)
	var heard []byte
	limit := wait
	if a.lie.slow || a.lie.clc == nil && a.lie.llc == nil && a.lie.export == nil {
		limit = patience
	}
	a.until(limit, func() bool {
		if c.end != "" {
			return true
		}
		var b [4096]byte
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT)
		if n > 0 {
			heard = append(heard, b[:n]...)
		} else if err == nil || err == unix.ECONNRESET {
			ec.EOF(now())
			c.end = "ended by the victim"
			return true
		}
		for c.end == "" {
			need, err := engine.Need(heard)
			if err != nil || need > len(heard) {
				break
			}
			m := heard[:need]
			heard = heard[need:]
			var p clc.Proposal
			var acc clc.Accept
			if acc.Decode(m) == nil {
				c.victim = acc.Endpoint.GID
			} else if p.Decode(smc.Linux, m) == nil {
				c.victim = p.GID
			}
			ec.CLC(m, now())
		}
		return false
	})
	if c.end == "" {
		c.end = "no answer"
	}
	// What we believe is one thing; the victim says where it writes, see sock_established.
	if c.end == "established" && !a.until(limit, func() bool { return binary.NativeEndian.Uint32(c.rings.LocalHead[wtagAt:]) != 0 }) {
		c.end = "established for us only"
	}
	if c.end == "established" && a.lie.after != nil {
		a.lie.after(c)
	}
	ec.Close(now())
	return c
}

// connect is a session as a client.
func (a *attacker) connect(l lie) (c *conn) {
	a.lie = &l
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	defer unix.Close(fd)
	s, ok := a.reg.offer(fd, a.gid)
	if !ok {
		a.tally["no place"]++
		return nil
	}
	defer s.free()
	must(0, unix.Connect(fd, a.to))
	if l.before != nil {
		l.before(&conn{a: a, fd: fd})
	}
	if !a.until(patience, func() bool { return s.is(claimed) }) {
		a.tally["not claimed"]++
		return nil
	}
	s.free()
	c = a.converse(fd, func(c *conn) *engine.Conn {
		return a.eng.Client(c, engine.LAN{Subnet: netip.MustParsePrefix("127.0.0.1/32")}, now())
	})
	a.note(c)
	return c
}

// accept is a session as the server of whoever comes next.
func (a *attacker) accept(listener int, l lie) {
	a.lie = &l
	fd := -1
	for fd < 0 { // whoever has lost patience meanwhile has taken his offer with him
		n, _, err := unix.Accept(listener)
		if info := must(unix.GetsockoptTCPInfo(must(n, err), unix.IPPROTO_TCP, unix.TCP_INFO)); info.State == unix.BPF_TCP_ESTABLISHED {
			fd = n
		} else {
			unix.Close(n)
		}
	}
	defer unix.Close(fd)
	var s slot
	if !a.until(patience, func() (ok bool) { s, ok = a.reg.claim(); return ok }) {
		a.tally["not offered"]++
		return
	}
	a.send(s.gid(), claimType, append(bytes.Clone(word(s.cookie)), word(uint64(s.n))[:4]...))
	if l.before != nil {
		l.before(&conn{a: a, fd: fd})
	}
	a.note(a.converse(fd, func(c *conn) *engine.Conn {
		return a.eng.Server(c, engine.LAN{Subnet: netip.MustParsePrefix("127.0.0.1/32")}, now())
	}))
}

// note counts, and says what should not have been.
func (a *attacker) note(c *conn) {
	a.tally[c.end]++
	if l := a.lie; l.wants != nil && !l.wants(c, c.end) {
		a.wrong = append(a.wrong, fmt.Sprintf("%s: %s, code %#x", l.name, c.end, uint32(c.code)))
	}
	if verbose {
		fmt.Println(a.lie.name+":", c.end)
	}
}

// ---- the device, which lies in LLC messages and about memory

type device struct {
	verbs.Device
	a *attacker
}

type domain struct {
	verbs.PD
	a *attacker
}

// liar is a queue pair. It knows what the shared memory's datagrams need.
type liar struct {
	verbs.QP
	a    *attacker
	peer verbs.Peer
	psn  roce.PSN // of the next message
	sent int
}

func (d device) AllocPD() (verbs.PD, error) {
	p, err := d.Device.AllocPD()
	return domain{p, d.a}, err
}

func (d domain) CreateQP(cq verbs.CQ, c verbs.QPCap) (verbs.QP, error) {
	q, err := d.PD.CreateQP(cq, c)
	d.a.qp = &liar{QP: q, a: d.a}
	return d.a.qp, err
}

func (q *liar) ReadyToReceive(p verbs.Peer) error { q.peer = p; return q.QP.ReadyToReceive(p) }
func (q *liar) ReadyToSend(n roce.PSN) error      { q.psn = n; return q.QP.ReadyToSend(n) }

func (q *liar) PostSend(id verbs.WRID, b []byte) error {
	if l := q.a.lie.llc; l != nil {
		b = l(q.sent, bytes.Clone(b))
	}
	q.sent++
	q.psn = q.psn.Next()
	return q.QP.PostSend(id, b)
}

func (q *liar) Export(m verbs.MR) error {
	if l := q.a.lie.export; l != nil {
		return l(q, m)
	}
	return q.QP.Export(m)
}

package hooks

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/engine"
)

// How long a client leaves its offer open (ARCHITECTURE "Life of one connection", 4).
const (
	firstLook    = engine.Instant(20 * time.Millisecond) // a listener that the registry does not know answers for the port: nobody will claim
	claimTimeout = engine.Instant(2 * time.Second)       // accepted, but not claimed
	lookEvery    = engine.Instant(500 * time.Millisecond)
	lookRarely   = engine.Instant(30 * time.Second)
	stageTimeout = engine.Instant(20 * time.Millisecond)  // a sender waits for room in staging, and nobody has accepted
	stageAgain   = engine.Instant(200 * time.Millisecond) // the same, accepted: that process may have an engine to start
	settleTime   = engine.Instant(100 * time.Millisecond)
	agreedTime   = engine.Instant(6 * time.Second) // as long as a kernel waits for each message (RFC 7609 §C.2)
	dueAfter     = engine.Instant(500 * time.Millisecond)
	halfEvery    = engine.Instant(50 * time.Millisecond)
)

// Edges only: a peer that sends half a message and stops must not keep the loop busy.
const (
	watchCLC    = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET
	watchFlush  = unix.EPOLLOUT
	watchActive = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET // the end; or bytes that should not be there: sock_tcp_event
)

// maxCLC is longer than any CLC message that RFC 7609 or SMC-R v2 knows.
const maxCLC = 4096

var errTooLong = errors.New("CLC message longer than any that is known")

type phase uint8

const (
	phaseOffered phase = iota // client: waits for a claim
	phaseWaiting              // client, agreed: the server on this host has not accepted yet
	phaseCLC                  // the engine negotiates
	phaseFlush                // staged bytes go out over TCP
	phaseActive               // C carries the bytes; only the end of the TCP socket is watched
	phaseDone                 // plain TCP, or closed
)

// conn is what the loop knows of one connection; the sock and its block (shim.h) are what the program sees of it.
type conn struct {
	l        *loop
	idx, gen uint32
	s        *C.struct_sock
	ec       *engine.Conn // from phaseCLC on
	phase    phase
	slot     C.int
	cookie   uint64
	deadline engine.Instant // the next thing to look at; 0 = nothing
	accepted engine.Instant // since when the peer's socket is known to be accepted
	leaving  uint32         // why the program cannot wait; 0 = it can
	looked   int
	full     int    // a sender waits for room in staging: 1 for the first time, 2 longer
	heard    bool   // a CLC message came
	late     bool   // agreedTime has passed once
	ended    bool   // the TCP connection ended during the handshake
	over     func() // once, when the handshake is
	crowded  bool   // the peer has too many of them
	visible  bool   // established, and sock_diag finds our socket
}

func (l *loop) newConn(idx, gen uint32) *conn {
	c := &conn{l: l, idx: idx, gen: gen, s: C.sock_at(C.u32(idx), C.u32(gen))}
	if c.s == nil { // gone before its request was read
		c.phase = phaseDone
		return c
	}
	c.cookie = uint64(c.s.b.cookie)
	l.conns[idx] = c
	return c
}

func (c *conn) setDeadline(t engine.Instant) {
	c.deadline = t
	if t == 0 {
		delete(c.l.timed, c)
	} else {
		c.l.timed[c] = struct{}{}
	}
}

// begun: a server's handshake counts until it is over; number is reg_begin's.
func (c *conn) begun(number uint32) {
	c.over, c.crowded = func() { C.reg_over(C.u32(number)) }, number == C.HALF_OPEN_NONE
	if c.s == nil {
		c.handshakeOver()
	}
}

func (c *conn) handshakeOver() {
	if c.over != nil {
		c.over()
		c.over = nil
	}
}

// drop ends what the loop does for a connection that is plain TCP or closed.
func (c *conn) drop() {
	c.phase = phaseDone
	c.handshakeOver()
	c.setDeadline(0)
	delete(c.l.owed, c)
	if c.l.conns[c.idx] == c {
		delete(c.l.conns, c.idx)
	}
	if c.s != nil {
		s := c.s
		c.s = nil
		C.sock_drop(s)
	}
}

func (c *conn) fd() int { return int(c.s.fd) }

// ---- client: the offer ----

func (c *conn) offered(slot int) {
	if c.s == nil {
		return
	}
	c.slot = C.int(slot)
	c.l.owed[c] = struct{}{}
	c.setDeadline(c.l.now + firstLook)
	if c.claimedByNow() {
		return
	}
	if c.phase == phaseOffered {
		c.watch(watchCLC)
	}
}

// claimedByNow looks at the offer; true: it is decided and acted upon.
func (c *conn) claimedByNow() bool {
	switch C.reg_state(c.slot, C.u64(c.cookie)) {
	case C.REG_CLAIMED:
		c.startClient()
	case C.REG_OFFERED:
		return false
	default: // by the server, which cannot; or by the program's own thread (close, fork …), which then has fallen back itself
		C.reg_done(c.slot, C.u64(c.cookie))
		c.fallback(C.R_UNCLAIMED, 0)
	}
	return true
}

func (c *conn) startClient() {
	C.sock_claimed(c.s)
	C.reg_done(c.slot, C.u64(c.cookie))
	delete(c.l.owed, c)
	c.negotiate(func() *engine.Conn { return c.l.eng.Client(c, c.lan(), c.l.now) })
}

// withdraw makes the connection plain TCP unless somebody claimed it meanwhile.
func (c *conn) withdraw(reason uint32) {
	if C.reg_withdraw(c.slot, C.u64(c.cookie)) != 0 {
		C.reg_done(c.slot, C.u64(c.cookie))
		c.fallback(reason, 0)
		return
	}
	if !c.claimedByNow() {
		c.fallback(reason, 0)
	}
}

// look asks the kernel whether the other end was accepted, and by whom.
func (c *conn) look() {
	c.looked++
	if c.claimedByNow() {
		return
	}
	d, here := c.mirror()
	if !here {
		c.withdraw(C.R_UNCLAIMED) // closed already: TCP shows what that means
		return
	}
	if d.inode != 0 {
		if c.looked == 1 && C.diag_foreign_listener(c.s.fd) != 0 {
			c.withdraw(C.R_UNCLAIMED)
			return
		}
		if c.accepted == 0 {
			c.accepted = c.l.now
		}
		if c.l.now-c.accepted >= claimTimeout-firstLook {
			c.withdraw(C.R_UNCLAIMED)
			return
		}
		c.setDeadline(min(c.l.now+lookEvery, c.accepted+claimTimeout))
		return
	}
	c.setDeadline(c.l.now + min(lookEvery<<min(c.looked, 6), lookRarely))
}

func (c *conn) stageFull() {
	if c.phase <= phaseWaiting && c.full == 0 {
		c.full = 1
		c.setDeadline(c.l.now + stageTimeout)
	}
}

// mirror is what the kernel knows of the other end, if that is on this host; without an inode its program has not accepted it.
func (c *conn) mirror() (d C.struct_diag, here bool) {
	here = C.diag_mirror(c.s.fd, &d) == 0
	return d, here
}

func (c *conn) peerAccepted() bool {
	d, here := c.mirror()
	return here && d.inode != 0
}

// ---- server: the claim ----

func (c *conn) claimed(slot int) {
	if c.s == nil {
		return
	}
	var gid [16]C.u8
	peer := C.u64(c.s.b.peer_cookie)
	if C.reg_get_gid(C.int(slot), peer, &gid[0]) == 0 {
		c.l.sendClaim(gid, uint64(peer), uint32(slot))
	}
	c.negotiate(func() *engine.Conn { return c.l.eng.Server(c, c.lan(), c.l.now) })
}

// ---- agreed: by SYN and SYN-ACK, or by a rule ----

func (c *conn) isAgreed() bool { return c.s != nil && uint32(c.s.b.flags)&C.BF_AGREED != 0 }

// agreed begins at once: the peer may be anywhere, waits for us, and tells nobody when it has lost patience.
func (c *conn) agreed(start func() *engine.Conn) {
	c.negotiate(start)
	if c.phase == phaseCLC {
		c.setDeadline(c.l.now + agreedTime)
	}
}

// agreedClient holds the Proposal back until the server has accepted, where that can be seen. Before it a client may still decline,
// behind it not until the Accept (RFC 7609 §C.1); and a program that sends, closes and ends without either loses what it sent.
func (c *conn) agreedClient() {
	switch {
	case c.s == nil:
	case c.leaving != 0:
		c.declineFirst(c.leaving)
	case c.full > 0:
		c.declineFirst(C.R_STAGING_FULL)
	default:
		switch d, here := c.mirror(); {
		case here && unaccepted(d):
			c.phase = phaseWaiting
			c.setDeadline(c.l.now + engine.Instant(time.Millisecond)<<min(c.looked, 5))
			c.looked++
		case here && d.inode == 0:
			c.fallback(C.R_LEFT_EARLY, 0) // its program has ended, and a FIN is all that it has sent: TCP itself shows it
		default:
			c.agreed(func() *engine.Conn { return c.l.eng.Client(c, c.lan(), c.l.now) })
		}
	}
}

func (c *conn) onThisHost() bool {
	_, here := c.mirror()
	return here
}

// unaccepted reports whether the server's program has not accepted the connection. What it has closed is nobody's, too.
func unaccepted(d C.struct_diag) bool {
	return d.inode == 0 && (d.tcp_state == unix.BPF_TCP_ESTABLISHED || d.tcp_state == unix.BPF_TCP_SYN_RECV || d.tcp_state == unix.BPF_TCP_CLOSE_WAIT)
}

// declineFirst gives SMC-R up in place of the Proposal.
func (c *conn) declineFirst(reason uint32) {
	C.hook_decline(c.s.fd, 1, C.u32(reason))
	c.fallback(reason, 0)
}

// due is a connection that was accepted and may not have been used yet.
type due struct {
	idx, gen uint32
	at       engine.Instant
}

// useDue negotiates for a program that does not look at its connection. One that a forked child has too is that child's.
func (l *loop) useDue(d due) {
	s := C.sock_at(C.u32(d.idx), C.u32(d.gen))
	if s == nil {
		return
	}
	defer C.sock_drop(s)
	switch {
	case uint32(s.b.state) != C.S_ACCEPTED || s.fd < 0:
	case atomic.LoadUint32((*uint32)(unsafe.Pointer(&s.b.procs))) > 1:
		l.due = append(l.due, due{d.idx, d.gen, l.now + dueAfter})
	default:
		C.sock_use(s)
	}
}

// ---- CLC over the TCP socket ----

func (c *conn) negotiate(start func() *engine.Conn) {
	c.phase = phaseCLC
	c.setDeadline(0)
	c.ec = start()
	if c.phase == phaseCLC && c.leaving != 0 { // before it may be too late
		c.decline()
	}
	if c.phase != phaseCLC { // refused at once
		return
	}
	c.watch(watchCLC)
	c.readCLC()
}

func (c *conn) watch(events uint32) {
	if err := c.l.watch(c.fd(), int32(c.idx), c.gen, events); err != nil {
		c.l.log.Warn().Err(err).Uint32("conn", c.idx).Msg("cannot watch the TCP socket")
	}
}

func (c *conn) tcpEvent(events uint32) {
	switch c.phase {
	case phaseOffered:
		// Bytes or EOF before a claim: the peer is plain, or gone.
		c.withdraw(C.R_PLAIN_BYTES)
	case phaseWaiting:
		c.agreedClient()
	case phaseCLC:
		c.readCLC()
		if c.phase == phaseCLC && events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
			c.eof(false) // behind half a message, which hides it and is nothing for the program to read
		}
	case phaseFlush:
		c.flush()
	case phaseActive:
		C.sock_tcp_event(c.s, C.u32(events))
	}
}

// readCLC takes one message after the other off the TCP socket, exactly: what follows the last one is the program's.
func (c *conn) readCLC() {
	var buf [maxCLC]byte
	for c.phase == phaseCLC {
		n, _, err := unix.Recvfrom(c.fd(), buf[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err == unix.EAGAIN || err == unix.EINTR {
			return
		}
		if err != nil || n == 0 {
			c.eof(true)
			return
		}
		need, err := engine.Need(buf[:n])
		if err == nil && need > len(buf) {
			need = 0
			err = errTooLong
		}
		if err == nil && need > n {
			return
		}
		if err != nil { // the engine says what it thinks of these bytes; they stay in the socket
			c.ec.CLC(buf[:n], c.l.now)
			return
		}
		c.heard = true
		if _, _, err = unix.Recvfrom(c.fd(), buf[:need], unix.MSG_DONTWAIT); err != nil {
			c.eof(true)
			return
		}
		c.ec.CLC(buf[:need], c.l.now)
	}
}

// eof: the TCP connection ended. What the peer sent over the link before it closed came first, and may be all that was still missing.
func (c *conn) eof(clean bool) {
	c.l.poll()
	if c.phase == phaseCLC {
		c.ended = clean
		c.ec.EOF(c.l.now)
	}
}

// ---- engine.Handler: what the engine tells ----

// SendCLC sends one message; it is small and nothing else was sent before, so it fits the socket buffer.
func (c *conn) SendCLC(b []byte) error {
	err := unix.Sendto(c.fd(), b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	if err != nil {
		return fmt.Errorf("send CLC message: %w", err)
	}
	return nil
}

// Established hands the rings to C. From here on the program's threads move the bytes.
func (c *conn) Established(r engine.Rings) {
	var cr C.struct_rings
	cr.rx_head, cr.rx_buf, cr.rx_size = addrOf(r.LocalHead), addrOf(r.LocalRing), C.u64(len(r.LocalRing))
	cr.tx_head, cr.tx_buf, cr.tx_size = addrOf(r.PeerHead), addrOf(r.PeerRing), C.u64(len(r.PeerRing))
	cr.rx_token, cr.tx_token = C.u32(r.LocalToken), C.u32(r.PeerToken)
	cr.rmb, cr.rmbe, cr.lgr = C.u32(r.RMB), C.u32(r.Index), C.u32(r.LinkGroup)
	peer := c.l.peer(r.PeerGID)
	c.meet(peer, r.PeerGID)
	cr.peer = C.u32(peer)
	for i := 0; i < len(r.Provider) && i < len(cr.provider)-1; i++ {
		cr.provider[i] = C.char(r.Provider[i])
	}
	c.setDeadline(0)
	c.phase = phaseActive
	c.handshakeOver()
	c.watch(watchActive)
	c.visible = C.diag_held(c.s.b) == 1 // not if the program made it in another network namespace
	c.s.watched = 1
	C.sock_established(c.s, &cr)
	if c.l.sweep == 0 {
		c.l.sweep = c.l.now + sweepEvery
	}
	c.l.log.Info().Uint32("conn", c.idx).Int("fd", c.fd()).Int("lgr", int(r.LinkGroup)).Msg("connection uses SMC-R")
}

// Fallback: a Decline was sent or received; the TCP socket is the program's from here on.
func (c *conn) Fallback(diagnosis clc.DeclineCode, sent bool) {
	reason := uint32(C.R_DECLINED)
	switch {
	case c.leaving != 0:
		reason = c.leaving
	case c.crowded:
		reason = C.R_HALF_OPEN
	case sent && diagnosis == clc.DeclineMemory:
		reason = C.R_MEMORY
	case sent:
		reason = C.R_DECLINE_SENT
	}
	c.fallback(reason, uint32(diagnosis))
}

// Broken: the peer ended or broke the handshake; or, much later, gave our element away (engine.ErrReused).
func (c *conn) Broken(err error) {
	c.l.log.Warn().Err(err).Uint32("conn", c.idx).Msg("handshake broken")
	if c.phase == phaseActive {
		C.sock_gone(c.s) // the engine has it until the program closes
		return
	}
	c.ec = nil
	if c.s.b.source == C.SOURCE_KERNEL && c.s.b.role == 0 && !c.heard {
		C.reg_shun(c.s.b) // it, or a box on the way, sends back options that it does not know
	}
	switch {
	case c.ended && !c.isAgreed():
		c.fallback(C.R_LEFT_EARLY, 0) // the peer is gone, killed perhaps: TCP itself shows it to the program
	default:
		c.l.unwatch(c.fd())
		C.sock_broken(c.s, C.R_PROTOCOL, C.int(unix.ECONNRESET))
		c.drop()
	}
}

// ---- TCP again ----

func (c *conn) fallback(reason, diagnosis uint32) {
	if c.s == nil {
		return
	}
	c.l.log.Warn().Uint32("conn", c.idx).Int("fd", c.fd()).Uint32("diagnosis", diagnosis).
		Str("reason", C.GoString(C.reason_word(C.u32(reason)))).Msg("connection uses plain TCP")
	c.l.unwatch(c.fd()) // before the fd is the program's alone
	c.handshakeOver()
	delete(c.l.owed, c)
	if C.sock_fallback(c.s, C.u32(reason), C.u32(diagnosis)) > 0 {
		c.phase = phaseFlush
		c.setDeadline(0)
		c.watch(watchFlush)
		return
	}
	c.drop()
}

func (c *conn) flush() {
	if c.phase != phaseFlush {
		return
	}
	fd := c.fd()
	if C.sock_flush(c.s) == 0 {
		c.l.unwatch(fd)
		c.drop()
	}
}

// ---- the program closes, forks, waits ----

// settle ends a handshake for a program that cannot wait, for that reason: finish within settleTime, or decline. decline: give up now.
func (c *conn) settle(decline bool, reason uint32) {
	switch c.phase {
	case phaseOffered:
		if !c.claimedByNow() {
			c.withdraw(reason)
		}
		if c.phase == phaseCLC {
			c.settle(decline, reason)
		}
	case phaseWaiting:
		c.declineFirst(reason)
	case phaseCLC:
		first := c.leaving == 0
		if first {
			c.leaving = reason
		}
		if decline {
			c.decline()
			return
		}
		if first {
			c.setDeadline(c.l.now + settleTime)
		}
	}
}

// decline: the engine answers by Fallback, or by Established where it is too late to decline.
func (c *conn) decline() {
	if c.isAgreed() {
		c.setDeadline(c.l.now + agreedTime)
	}
	c.ec.Decline(clc.DeclineInternal, c.l.now)
}

// timeout acts on the deadline.
func (c *conn) timeout() {
	c.setDeadline(0)
	switch c.phase {
	case phaseOffered:
		switch {
		case c.full == 1 && c.peerAccepted():
			c.full = 2
			c.setDeadline(c.l.now + stageAgain)
		case c.full > 0:
			c.withdraw(C.R_STAGING_FULL)
		default:
			c.look()
		}
	case phaseWaiting:
		if d, here := c.mirror(); c.full > 0 && !(here && unaccepted(d)) { // it just has
			c.full = 0
		}
		c.agreedClient()
	case phaseCLC:
		switch {
		case c.isAgreed() && (c.late || c.leaving == 0) && c.onThisHost():
			// It is stopped or has no processor, and TCP would wait for it: localTimeouts are enough.
		case c.isAgreed() && c.late:
			c.ec.EOF(c.l.now)
		default:
			c.late = true
			c.decline()
		}
	case phaseActive:
		C.sock_half(c.s)
		c.halfAgain()
	}
}

// half: a thread waits to write to a half-closed peer.
func (c *conn) half() {
	if c.phase == phaseActive && c.deadline == 0 {
		c.setDeadline(c.l.now + halfEvery)
	}
}

func (c *conn) halfAgain() {
	const wanted = C.BF_FIN
	if flags := uint32(c.s.b.flags); flags&(C.BF_FIN|C.BF_GONE) == wanted && C.sock_waits(c.s) != 0 {
		c.setDeadline(c.l.now + halfEvery)
	}
}

// closed: no fd of this process names the connection any more. The peer learns of it from the kernel.
func (l *loop) closed(c *conn) {
	if c == nil {
		return
	}
	if c.ec != nil {
		if atomic.LoadUint32((*uint32)(unsafe.Pointer(&c.s.b.procs))) > 1 {
			c.leave() // a forked child goes on with it
		} else {
			c.ec.Close(l.now)
		}
		c.ec = nil
	}
	c.drop()
}

// adopt watches a connection that another process established: our parent, before it forked us.
func (l *loop) adopt(idx, gen uint32) {
	if l.conns[idx] != nil {
		return
	}
	c := l.newConn(idx, gen)
	if c.s == nil {
		return
	}
	c.phase = phaseActive
	c.watch(watchActive)
	c.s.watched = 1
	C.sock_tcp_event(c.s, unix.EPOLLRDHUP) // what happened before
}

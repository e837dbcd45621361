package engine

import (
	"fmt"
	"time"

	"libsmcr/abi/cdc"
	"libsmcr/abi/clc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
)

// Role says which side of the TCP connection, hence of the link group, this is.
type Role uint8

const (
	RoleClient Role = iota
	RoleServer
)

func (r Role) String() string {
	if r == RoleServer {
		return "server"
	}
	return "client"
}

// ConnID numbers the connections of an engine.
type ConnID uint64

// Conn is the engine's part of one TCP connection: first its negotiation, then the element that it holds.
type Conn struct {
	e     *Engine
	h     Handler
	id    ConnID
	role  Role
	state fsm.Handshake // written by step only
	conn  fsm.Conn      // once established; written by connStep only
	timer timer

	port   *port // whose GID this side offers
	lan    LAN   // server
	group  *LinkGroup
	link   *Link // this side writes over; each side chooses its own (RFC 7609 §2.3)
	local  element
	token  smc.AlertToken
	peer   clc.Endpoint // from Accept or Confirm; a server has peer ID, GID and MAC from the Proposal
	remote *remoteRMB   // nil until the peer's RMB can be reached
	told   bool         // the peer may know our element

	code      clc.DeclineCode // why to decline, or why it was declined
	outOfSync bool
	declined  bool // the Decline is ours
	err       error
	silent    bool        // the owner has left: no calls any more
	closing   bool        // established, closed here, the element is not free yet
	left      bool        // closed here, but a process that shares the connection may go on
	gone      func() bool // see Leave
	since     Instant
	queue     *LinkGroup // whose first contact this connection waits for

	stream   *stream // the data path without mapped memory
	inflight int     // work requests of it that link has not completed
	next     *Link   // where to go when they are
	moved    bool    // link is new: the validation message comes first
	waits    bool    // in link's queue
	woken    bool    // the owner is to be told that the rings have changed
	doubt    timer   // see validate
	doubted  smc.Seq
	held     []cdc.Message
}

func (e *Engine) newConn(h Handler, r Role) *Conn {
	e.lastConn++
	c := &Conn{e: e, h: h, id: e.lastConn, role: r, state: fsm.Idle, conn: fsm.Closed}
	c.timer.fire, c.doubt.fire = c.timeout, c.decide
	e.conns[c.id] = c
	e.count.Handshakes[r]++
	return c
}

// ID is the number that log lines show.
func (c *Conn) ID() ConnID { return c.id }

// State is where the negotiation stands.
func (c *Conn) State() fsm.Handshake { return c.state }

// wait is how long a state may last.
func (c *Conn) wait() time.Duration {
	t := c.e.cfg.Timeouts
	switch c.state {
	case fsm.AwaitAccept, fsm.AwaitProposal, fsm.AwaitFirstConfirm, fsm.AwaitConfirm:
		return t.CLC
	case fsm.AwaitConfirmLink:
		// §C.7: long enough for the server to run into its own timer and decline.
		return 2 * t.LLC
	case fsm.Queued, fsm.AwaitServerRMB, fsm.AwaitClientRMB:
		// The peer waits for our CLC message all the while, with its own timer running.
		return t.CLC / 2
	case fsm.AwaitPeerRMB, fsm.RequestPosted, fsm.AwaitReply, fsm.Declined:
		// §C.7: time enough for some retransmissions of a Decline.
		return t.LLC
	case fsm.AddingLink:
		// The exchange has timers of its own; together they never take that long.
		return 12 * t.LLC
	case fsm.LinkReceived, fsm.ReplyPosted:
		// Before the server gives up.
		return t.LLC / 2
	}
	return 0
}

// step is the only writer of the state: table, trace, timer, effects of the states that end a negotiation.
func (c *Conn) step(ev fsm.HandshakeEvent) error {
	next, err := c.state.On(ev)
	if err != nil {
		c.e.log.Debug().Uint64("conn", uint64(c.id)).Stringer("from", c.state).Stringer("ev", ev).Msg("not allowed")
		return err
	}
	if next == c.state {
		return nil
	}
	if l := c.e.log.Debug(); l.Enabled() {
		l.Uint64("conn", uint64(c.id)).Stringer("role", c.role).
			Stringer("from", c.state).Stringer("to", next).Stringer("ev", ev).Msg("handshake")
	}
	was := c.state
	c.state = next
	c.e.timers.stop(&c.timer)
	if d := c.wait(); d > 0 {
		c.e.after(&c.timer, d)
	}
	switch next {
	case fsm.Declining:
		c.decline(was)
	case fsm.Declined:
		c.leaveGroup()
	case fsm.Established:
		c.connStep(fsm.Open)
		c.openStream()
		c.e.count.Established++
		c.e.outbox = append(c.e.outbox, notice{c, next, c.rings()})
	case fsm.Fallback, fsm.Broken:
		c.end()
	default:
		// What had to wait while the peer had the word.
		if c.code != 0 && next.CanDecline() {
			return c.step(fsm.Failed)
		}
	}
	return nil
}

// to steps and reports whether that led where the caller goes on; if not, the negotiation is over or waits.
func (c *Conn) to(ev fsm.HandshakeEvent, want fsm.Handshake) bool {
	if err := c.step(ev); err != nil {
		c.broken(err)
		return false
	}
	return c.state == want
}

// fail: this side does not want SMC-R or cannot. The Decline goes out as soon as it is allowed.
func (c *Conn) fail(code clc.DeclineCode) {
	if c.code == 0 {
		c.code = code
	}
	c.step(fsm.Failed)
}

// broken: the peer did what it must not, or nothing.
func (c *Conn) broken(err error) {
	if c.err == nil {
		c.err = err
	}
	c.step(fsm.RecvGarbage)
}

func (c *Conn) timeout() {
	if c.state.Done() {
		c.closeTimeout()
		return
	}
	c.err = ErrTimeout
	ev := fsm.Timeout
	// A device of mapped memory tells the sender at once.
	if c.state == fsm.ReplyPosted && (c.code != 0 || c.port.mapped()) {
		ev = fsm.TurnOver
	}
	if c.code == 0 {
		c.code = clc.DeclineConfirmLink
		if c.state == fsm.AwaitServerRMB || c.state == fsm.AwaitClientRMB {
			c.code = clc.DeclineRMBRegister
		}
	}
	c.step(ev)
}

// lost: the link group of the connection is down.
func (c *Conn) lost() {
	if c.state == fsm.Established {
		c.cut()
		return
	}
	if c.code == 0 {
		c.code = clc.DeclineLinkFailed
	}
	if c.err == nil {
		c.err = ErrLinksLost
	}
	c.step(fsm.LinkLost)
}

// decline sends the Decline that c.code asks for, in place of what was due in that state.
func (c *Conn) decline(in fsm.Handshake) {
	m := clc.Decline{Version: smc.V1, OutOfSync: c.outOfSync, PeerID: c.e.cfg.PeerID, Diagnosis: c.code}
	if !c.send(m.Append(nil)) {
		return
	}
	c.declined = true
	c.e.count.Declined[c.code]++
	ev := fsm.DeclineSent
	if in.PeerMayDecline() && !c.port.mapped() {
		ev = fsm.MayCross
	}
	c.step(ev)
}

// send hands a CLC message to TCP; on failure the connection is broken.
func (c *Conn) send(b []byte) bool {
	err := c.h.SendCLC(b)
	if err != nil {
		c.err = fmt.Errorf("engine: sending a CLC message: %w", err)
		c.step(fsm.SendFailed)
		return false
	}
	return true
}

// end gives back what a negotiation that failed had taken.
func (c *Conn) end() {
	if c.state == fsm.Broken {
		c.e.count.Broken++
	}
	c.e.outbox = append(c.e.outbox, notice{c: c, to: c.state})
	c.leaveGroup()
}

// leaveGroup gives back what belongs to the link group.
func (c *Conn) leaveGroup() {
	if c.queue != nil {
		c.queue.queue = without(c.queue.queue, c)
		c.queue = nil
	}
	g := c.group
	switch {
	case g == nil:
		c.forget()
	case g.first == c:
		// The link was made for this connection, and is not confirmed.
		g.first = nil
		c.release()
		g.down(fsm.LinkFailed)
	case c.conn != fsm.Closed || c.opened():
		// It was established: the owner still reads, and will close.
	case c.told && c.state == fsm.Broken:
		// The peer may still send its Confirm and write.
		c.remote.drop(c)
		c.closing, c.since = true, c.e.now
		c.e.after(&c.timer, time.Duration(abandoned))
		c.sweep()
	default:
		c.release()
	}
}

func without(list []*Conn, c *Conn) []*Conn {
	for i, x := range list {
		if x == c {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

// release frees the element and forgets the connection.
func (c *Conn) release() {
	g := c.group
	c.remote.drop(c)
	if rmb := c.local.rmb; rmb != nil {
		rmb.waiters = without(rmb.waiters, c)
		rmb.free(c.local.index)
	}
	delete(g.byToken, c.token)
	delete(g.conns, c.id)
	c.closing, c.group, c.link, c.local, c.remote, c.stream = false, nil, nil, element{}, nil, nil
	if c.state.Done() {
		c.forget()
	}
	g.quiet()
}

func (c *Conn) forget() {
	c.e.timers.stop(&c.timer)
	c.e.timers.stop(&c.doubt)
	delete(c.e.conns, c.id)
}

func (c *Conn) notify(n notice) {
	if c.silent {
		return
	}
	switch n.to {
	case fsm.Established:
		c.h.Established(n.rings)
		c.begin()
	case fsm.Fallback:
		c.h.Fallback(c.code, c.declined)
	case fsm.Broken:
		c.h.Broken(c.err)
	}
}

func (c *Conn) rings() Rings {
	lh, lr := c.local.memory()
	var ph, pr []byte
	if c.stream == nil {
		ph, pr = c.remote.element(c.peer.Index, c.peer.Size)
	} else {
		// The element itself is the engine's to write, behind the eye catcher begins the program's ring.
		lr = lr[c.stream.in.Origin:]
		ph, pr = c.local.sendBuffer()
	}
	return Rings{
		LocalHead: lh, LocalRing: lr, PeerHead: ph, PeerRing: pr,
		LocalToken: c.token, PeerToken: c.peer.Token,
		RMB: c.local.rmb.id, Index: c.local.index,
		PeerGID: c.group.gid, LinkGroup: c.group.id, Provider: c.port.attr.Provider,
	}
}

// CLC takes one CLC message, or bytes that are none.
func (c *Conn) CLC(b []byte, now Instant) {
	defer c.e.enter(now)()
	if c.state.Done() {
		return
	}
	h, err := clc.Peek(b)
	if err != nil {
		if c.step(fsm.RecvData) != nil {
			c.broken(err)
		}
		return
	}
	switch h.Type {
	case clc.TypeProposal:
		c.onProposal(b)
	case clc.TypeAccept:
		c.onAccept(b)
	case clc.TypeConfirm:
		c.onConfirm(b)
	case clc.TypeDecline:
		c.onDecline(b)
	}
}

func (c *Conn) onDecline(b []byte) {
	var m clc.Decline
	if err := m.Decode(b); err != nil {
		c.broken(err)
		return
	}
	g := c.group
	if c.code, c.declined = m.Diagnosis, false; !c.to(fsm.RecvDecline, fsm.Fallback) {
		return
	}
	c.e.count.PeerDeclined[m.Diagnosis]++
	// §C.4 and Figure 30, S bit: the peer does not know the link that we wanted to use.
	if m.OutOfSync && g != nil {
		g.down(fsm.LinkFailed)
	}
}

// EOF: the TCP connection ended during the negotiation.
func (c *Conn) EOF(now Instant) {
	defer c.e.enter(now)()
	if !c.state.Done() {
		c.err = ErrEOF
		c.step(fsm.RecvEOF)
	}
}

// Decline asks for TCP: the program closes, forks or the like. It takes effect at once where RFC 7609 §C.1 and §C.2
// allow it, else when it is our turn; if it is too late the negotiation goes on to its end.
func (c *Conn) Decline(code clc.DeclineCode, now Instant) {
	defer c.e.enter(now)()
	if !c.state.Done() {
		c.fail(code)
	}
}

// Close: this side has closed the connection. The Handler is called no more. Of an established connection the peer is
// told, and the element is free as soon as the peer is done with it too; a negotiation is dropped.
func (c *Conn) Close(now Instant) {
	defer c.e.enter(now)()
	c.silent = true
	switch {
	case !c.state.Done():
		c.err = ErrEOF
		c.step(fsm.RecvEOF)
	case c.group == nil || c.closing:
		// All is given back, or will be.
	case c.stream != nil:
		c.closeStream()
	case c.state == fsm.Broken:
		// Broken after it was established: the peer's element is not ours to write any more.
		c.closing, c.since = true, c.e.now
		c.sweep()
	default:
		c.closing, c.since = true, c.e.now
		lh, ph := c.heads()
		if ph.writerFlags()&WriterDone != 0 {
			c.connStep(fsm.AppShutWrite)
		}
		if lh.writerFlags()&WriterDone != 0 {
			c.connStep(fsm.PeerDoneWriting)
		}
		lh.setReaderClosed()
		ph.setWriterClosed()
		c.remote.drop(c)
		if c.group.state == groupDown {
			c.connStep(fsm.PeerGone)
		}
		c.connStep(fsm.AppClose)
		c.sweep()
	}
}

// Leave is Close for a process that has handed the connection on to a forked child: the peer is told nothing. The
// element is free when the child's side has marked it closed, see MarkClosed, and the peer is done too. Without mapped
// memory the bytes still go through this engine, and the Handler is called as before. gone, unless nil, is asked from time to
// time whether that process has ended without a mark.
func (c *Conn) Leave(gone func() bool, now Instant) {
	defer c.e.enter(now)()
	if c.state != fsm.Established || c.group == nil || c.closing {
		return
	}
	if c.stream != nil {
		return // Kick sees the flags
	}
	c.silent, c.closing, c.left, c.gone, c.since = true, true, true, gone, c.e.now
	c.sweep()
}

func (c *Conn) heads() (local, peer *Head) {
	lh, _ := c.local.memory()
	ph, _ := c.remote.element(c.peer.Index, c.peer.Size)
	return headAt(lh), headAt(ph)
}

// connStep is the only writer of c.conn.
func (c *Conn) connStep(ev fsm.ConnEvent) {
	next, err := c.conn.On(ev)
	if err != nil {
		c.e.log.Error().Uint64("conn", uint64(c.id)).Err(err).Msg("not allowed")
		return
	}
	if l := c.e.log.Debug(); l.Enabled() && next != c.conn {
		l.Uint64("conn", uint64(c.id)).Stringer("from", c.conn).Stringer("to", next).Stringer("ev", ev).Msg("connection")
	}
	if c.conn = next; next == fsm.Closed && c.state.Done() {
		c.e.timers.stop(&c.timer)
	}
}

// abandoned is how long an element is kept that the peer was told of in a negotiation which then broke, and in which
// it never wrote.
const abandoned = Instant(60 * time.Second)

// sweep looks whether the element of a closed connection is free by now.
func (c *Conn) sweep() {
	if c.closing && c.elementFree() {
		c.release()
	} else if c.closing {
		c.group.sweepSoon()
	}
}

func (c *Conn) elementFree() bool {
	// An RMB of a dead link group is never given out again: nobody can be harmed.
	if c.group.state == groupDown {
		return true
	}
	if !c.port.mapped() {
		return c.streamOver()
	}
	lh, _ := c.local.memory()
	h := headAt(lh)
	peerClosed := h.writerFlags()&WriterClosed != 0
	switch {
	case c.state == fsm.Broken:
		return peerClosed || c.e.now-c.since >= abandoned && h.neverWritten()
	case c.left:
		if c.gone != nil && !h.readerClosed() && c.gone() {
			_, peer := c.heads()
			h.setReaderClosed()
			peer.setWriterClosed()
		}
		return peerClosed && h.readerClosed()
	}
	if peerClosed {
		c.connStep(fsm.PeerConnClosed)
		c.connStep(fsm.AppClose) // 3D: we have closed already
	}
	return c.conn == fsm.Closed
}

// reused: the peer has given its element to another connection.
func (c *Conn) reused() {
	c.err = ErrReused
	c.remote.drop(c)
	c.silence()
	c.step(fsm.RecvGarbage)
}

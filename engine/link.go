package engine

import (
	"errors"

	"libsmcr/abi/cdc"
	"libsmcr/abi/clc"
	"libsmcr/abi/llc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
)

const (
	recvBuffers = 16
	recvSize    = 64 // LLC and CDC messages of SMC-R v1 have 44 bytes
	sendWRs     = 64
)

// Link is one path of a link group: a queue pair on each side (RFC 7609 §2).
type Link struct {
	*port   // of this side
	g       *LinkGroup
	num     smc.LinkNum    // assigned by the server
	uid     smc.LinkUserID // for people, each side has its own
	peerUID smc.LinkUserID
	state   fsm.Link // written by step only
	pd      verbs.PD
	qp      verbs.QP
	psn     roce.PSN // the first we send
	peer    verbs.Peer
	remotes map[smc.RKey]*remoteRMB // RMBs of the peer, as this link names them
	bufs    [recvBuffers][recvSize]byte
	lastID  verbs.WRID
	sent    map[verbs.WRID]func(verbs.Status) // who wants to know how a send ended
	queue   sendQueue                         // of all connections on this link
}

// newLink makes a queue pair in INIT, ready for the peer's messages.
func (g *LinkGroup) newLink(p *port) (*Link, error) {
	pd, err := p.dev.AllocPD()
	if err != nil {
		return nil, err
	}
	qp, err := pd.CreateQP(p.cq, verbs.QPCap{SendWR: sendWRs, RecvWR: recvBuffers})
	if err != nil {
		return nil, errors.Join(err, pd.Close())
	}
	l := &Link{
		port: p, g: g, pd: pd, qp: qp, remotes: map[smc.RKey]*remoteRMB{}, state: fsm.LinkInit, psn: roce.PSN(g.e.cfg.Rand()) & roce.PSNMask,
		uid: smc.LinkUserID(g.id)<<8 | smc.LinkUserID(g.lastNum+1), sent: map[verbs.WRID]func(verbs.Status){},
	}
	err = qp.Init()
	for i := 0; err == nil && i < recvBuffers; i++ {
		err = qp.PostRecv(verbs.WRID(i), l.bufs[i][:])
	}
	if err != nil {
		return nil, errors.Join(err, qp.Close(), pd.Close())
	}
	g.links = append(g.links, l)
	p.links[qp.QPN()] = l
	return l, nil
}

// step is the only writer of the state.
func (l *Link) step(ev fsm.LinkEvent) {
	next, err := l.state.On(ev)
	if err != nil {
		l.g.e.log.Error().Uint32("lgr", uint32(l.g.id)).Err(err).Msg("not allowed")
		return
	}
	if d := l.g.e.log.Debug(); d.Enabled() && next != l.state {
		d.Uint32("lgr", uint32(l.g.id)).Uint8("link", uint8(l.num)).Stringer("qpn", l.qp.QPN()).
			Stringer("from", l.state).Stringer("to", next).Stringer("ev", ev).Msg("link")
	}
	l.state = next
}

// connect takes the queue pair to RTR: the peer is known.
func (l *Link) connect(p clc.Endpoint) error {
	l.peer = verbs.Peer{GID: p.GID, MAC: p.MAC, QPN: p.QPN, PSN: p.PSN, MTU: min(l.attr.MTU, p.MTU)}
	if err := l.qp.ReadyToReceive(l.peer); err != nil {
		return err
	}
	l.step(fsm.LinkConnect)
	return nil
}

// send posts an LLC message. done, if not nil, learns how that ended.
func (l *Link) send(m llc.Message, done func(verbs.Status)) {
	if t := l.g.e.log.Trace(); t.Enabled() {
		t.Uint32("lgr", uint32(l.g.id)).Uint8("link", uint8(l.num)).Stringer("send", m).Msg("llc")
	}
	if err := l.postSend(m.Append(l.g.dialect, nil), done); err != nil {
		// In ERR the completions that say so are on their way; a full queue is a peer that takes nothing.
		if done != nil {
			done(verbs.StatusFlushed)
		}
		l.fail()
	}
}

// postSend posts an LLC message.
func (l *Link) postSend(b []byte, done func(verbs.Status)) error {
	l.lastID++
	err := l.qp.PostSend(l.lastID, b)
	if err != nil {
		return err
	}
	if l.queue.busy++; done != nil {
		l.sent[l.lastID] = done
	}
	return nil
}

// fail: the link does not work any more. RFC 7609 moves connections to another link; a group without one is down.
func (l *Link) fail() {
	if l.state == fsm.LinkDown {
		return
	}
	l.g.down(fsm.LinkFailed)
}

// protocol: the peer sent what it must not (RFC 7609 §C.7.1: treat as if the link was detected to have gone down).
func (l *Link) protocol(err error) {
	l.g.e.log.Warn().Uint32("lgr", uint32(l.g.id)).Err(err).Msg("protocol error of the peer")
	l.fail()
}

func (l *Link) complete(c verbs.Completion) {
	switch c.Op {
	case verbs.OpRecv:
		if c.Status != verbs.StatusOK {
			l.fail()
			return
		}
		buf := l.bufs[c.ID][:]
		l.receive(buf[:c.Len])
		if l.state != fsm.LinkDown {
			if err := l.qp.PostRecv(c.ID, buf); err != nil && !errors.Is(err, verbs.ErrState) {
				l.fail()
			}
		}
	case verbs.OpSend, verbs.OpWrite:
		if l.queue.busy--; c.ID&dataID != 0 {
			l.carried(c)
			return
		}
		done := l.sent[c.ID]
		delete(l.sent, c.ID)
		if done != nil {
			done(c.Status)
		}
		if c.Status != verbs.StatusOK {
			l.fail()
		} else {
			l.next()
		}
	case verbs.OpExported:
		if f := l.g.first; f != nil {
			f.proceed()
		}
	}
}

// errUnexpected is an LLC message out of turn.
var errUnexpected = errors.New("engine: LLC message out of turn")

// receive takes one message, LLC or CDC.
func (l *Link) receive(b []byte) {
	if cdc.Is(b) && !l.mapped() {
		l.receiveCDC(b)
		return
	}
	m, err := llc.Decode(smc.Linux, b)
	if err != nil {
		// RFC 7609 §A.3: unknown optional messages are discarded.
		if u, ok := errors.AsType[*llc.UnknownTypeError](err); !ok || !u.Discard {
			l.protocol(err)
		}
		return
	}
	if t := l.g.e.log.Trace(); t.Enabled() {
		t.Uint32("lgr", uint32(l.g.id)).Uint8("link", uint8(l.num)).Stringer("recv", m).Msg("llc")
	}
	if l.state != fsm.LinkActive {
		// Before CONFIRM LINK nothing else may come but the end.
		switch m.Head().Type {
		case llc.TypeConfirmLink, llc.TypeDeleteLink:
		default:
			l.protocol(errUnexpected)
			return
		}
	}
	switch m := m.(type) {
	case *llc.ConfirmLink:
		l.onConfirmLink(m)
	case *llc.ConfirmRKey:
		l.onConfirmRKey(m)
	case *llc.DeleteRKey:
		l.onDeleteRKey(m)
	case *llc.DeleteLink:
		l.onDeleteLink(m)
	case *llc.AddLink:
		l.onAddLink(m)
	case *llc.TestLink:
		if !m.Reply {
			l.send(&llc.TestLink{Reply: true, UserData: m.UserData}, nil)
		}
	default:
		// ADD LINK CONTINUATION, CONFIRM RKEY CONTINUATION: belong to exchanges that were not begun.
		l.protocol(errUnexpected)
	}
}

// receiveCDC finds the connection that a CDC message is for. One that is over here may still hear from its peer.
func (l *Link) receiveCDC(b []byte) {
	var m cdc.Message
	if err := m.Decode(b); err != nil {
		l.protocol(err)
		return
	}
	if c := l.g.byToken[m.Token]; c != nil {
		c.onCDC(l, m)
	}
}

func (l *Link) confirmLink(reply bool) *llc.ConfirmLink {
	a := l.attr
	return &llc.ConfirmLink{
		Reply: reply, NoEyeCatcher: true, MAC: a.MAC, GID: a.GID, QPN: l.qp.QPN(),
		Link: l.num, UserID: l.uid, MaxLinks: l.linkLimit(),
	}
}

func (l *Link) onConfirmLink(m *llc.ConfirmLink) {
	c := l.g.first
	ok := c != nil && m.Reply == (c.role == RoleServer)
	if ok && c.role == RoleServer {
		ok = c.state == fsm.RequestPosted || c.state == fsm.AwaitReply
	} else if ok {
		ok = c.state == fsm.AwaitConfirmLink
	}
	if !ok {
		l.protocol(errUnexpected)
		return
	}
	c.onConfirmLink(l, m)
}

// announce begins the CONFIRM RKEY exchange for an RMB, after those that are under way (RFC 7609 §3.5.5.2.1).
func (g *LinkGroup) announce(r *RMB) {
	if g.confirming = append(g.confirming, r); len(g.confirming) == 1 {
		g.nextAnnouncement()
	}
}

func (g *LinkGroup) nextAnnouncement() {
	if len(g.confirming) == 0 {
		return
	}
	r, l := g.confirming[0], g.active()
	if l == nil {
		return
	}
	if err := l.export(r); err != nil {
		l.fail()
		return
	}
	g.e.after(&g.exchange, g.e.cfg.Timeouts.LLC)
	l.send(&llc.ConfirmRKey{Token: r.token(l)}, nil)
}

// announced ends the exchange that is under way.
func (g *LinkGroup) announced(ok bool) {
	g.e.timers.stop(&g.exchange)
	r := g.confirming[0]
	g.confirming = g.confirming[1:]
	waiters := r.waiters
	r.waiters, r.confirmed = nil, ok
	for _, c := range waiters {
		if ok {
			c.rmbReady()
		} else {
			c.fail(clc.DeclineRMBRegister)
		}
	}
	if !ok && g.state == groupActive {
		// Nobody uses what the peer does not want.
		for i, x := range g.rmbs {
			if x == r && r.inUse == 0 {
				g.rmbs = append(g.rmbs[:i:i], g.rmbs[i+1:]...)
				r.close()
				break
			}
		}
	}
	g.nextAnnouncement()
}

// exchangeTimeout: RFC 7609 §C.7.1, CONFIRM RKEY: the link over which the message was sent has failed.
func (g *LinkGroup) exchangeTimeout() {
	waiters := g.confirming[0].waiters
	for _, c := range append([]*Conn(nil), waiters...) {
		c.fail(clc.DeclineRMBRegister)
	}
	g.down(fsm.LinkFailed)
}

func (l *Link) onConfirmRKey(m *llc.ConfirmRKey) {
	g := l.g
	if m.Reply {
		if len(g.confirming) == 0 || m.Token != g.confirming[0].token(l) {
			l.protocol(errUnexpected)
			return
		}
		g.announced(!m.Negative)
		return
	}
	reply := *m
	reply.Reply, reply.Retry = true, false
	// Announcing one again is harmless; Linux does so for each connection.
	if _, err := g.reach(l, m.Token); err != nil {
		g.e.log.Warn().Uint32("lgr", uint32(g.id)).Err(err).Msg("RMB of the peer")
		reply.Negative = true
	}
	l.send(&reply, nil)
}

func (l *Link) onDeleteRKey(m *llc.DeleteRKey) {
	if m.Reply {
		return
	}
	reply := *m
	reply.Reply, reply.Negative, reply.Errors = true, false, 0
	for i := range int(m.Count) {
		r := l.remotes[m.RKeys[i]]
		if r == nil || r.gone {
			reply.Fail(i)
			continue
		}
		if r.gone = true; len(r.use) == 0 {
			r.close()
		}
	}
	l.send(&reply, nil)
}

// onDeleteLink: with one link in the group its end is that of the group.
func (l *Link) onDeleteLink(m *llc.DeleteLink) {
	switch {
	case m.Reply:
	case !m.All && m.Link != l.num:
		l.send(&llc.DeleteLink{Reply: true, Orderly: m.Orderly, Link: m.Link, Reason: llc.ReasonUnknownLink}, nil)
	case l.g.key.role == RoleServer:
		// RFC 7609 §3.5.4: the client asks, the server complies by a DELETE LINK of its own.
		l.send(&llc.DeleteLink{All: true, Orderly: m.Orderly, Reason: m.Reason}, nil)
		l.g.down(fsm.LinkDelete)
	default:
		if !m.All {
			l.send(&llc.DeleteLink{Reply: true, Orderly: m.Orderly, Link: m.Link}, nil)
		}
		l.g.down(fsm.LinkDelete)
	}
}

// onAddLink: this side has no second path. A client's ADD LINK is for information (RFC 7609 §3.5.5.1.2).
func (l *Link) onAddLink(m *llc.AddLink) {
	if m.Reply || l.g.key.role == RoleServer {
		return
	}
	reply := *m
	reply.Reply, reply.Reject, reply.Reason = true, true, llc.RejectNoAltPath
	l.send(&reply, nil)
}

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
	recvBuffers = 64 // what the peer may have on its way, so that no RNIC has to come again
	recvSize    = 64 // LLC and CDC messages of SMC-R v1 have 44 bytes
	sendWRs     = 64
)

// Link is one path of a link group: a queue pair on each side (RFC 7609 §2).
type Link struct {
	*port        // of this side
	g            *LinkGroup
	num          smc.LinkNum    // assigned by the server
	uid          smc.LinkUserID // for people, each side has its own
	peerUID      smc.LinkUserID
	state        fsm.Link // written by step only
	worked       bool     // was ACTIVE
	pd           verbs.PD
	qp           verbs.QP
	psn          roce.PSN // the first we send
	peer         verbs.Peer
	remotes      map[smc.RKey]*remoteRMB // RMBs of the peer, as this link names them
	why          leaving                 // once it is DELETING
	timer        timer                   // client: the server has to delete it
	stale        map[smc.RToken]bool     // CONFIRM RKEYs whose answer does not matter any more
	staleDeletes int
	test         timer
	testing      bool
	probe        [16]byte
	heard        Instant // when something came last
	bufs         [recvBuffers][recvSize]byte
	lastID       verbs.WRID
	sent         map[verbs.WRID]func(verbs.Status) // who wants to know how a send ended
	queue        sendQueue                         // of all connections on this link
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
		port: p, g: g, pd: pd, qp: qp, remotes: map[smc.RKey]*remoteRMB{},
		stale: map[smc.RToken]bool{}, state: fsm.LinkInit, psn: roce.PSN(g.e.cfg.Rand()) & roce.PSNMask,
		uid: smc.LinkUserID(g.id)<<8 | smc.LinkUserID(g.lastNum+1), sent: map[verbs.WRID]func(verbs.Status){},
	}
	l.timer.fire, l.test.fire = l.askedInVain, l.quiet
	err = qp.Init()
	for i := 0; err == nil && i < recvBuffers; i++ {
		err = qp.PostRecv(verbs.WRID(i), l.bufs[i][:])
	}
	if err != nil {
		return nil, errors.Join(err, qp.Close(), pd.Close())
	}
	g.links = append(g.links, l)
	p.links[qp.QPN()] = l
	// Every link gives access to all RMBs (RFC 7609 §3.5.5.2).
	for _, r := range g.rmbs {
		if err := r.register(l); err != nil {
			g.remove(l)
			return nil, err
		}
	}
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
	if l.state = next; next == fsm.LinkActive {
		l.worked, l.heard = true, l.g.e.now
	}
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
		l.heard = l.g.e.now
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
	m, err := llc.Decode(l.g.dialect, b)
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
	t := m.Head().Type
	if c := l.g.first; c != nil && c.state == fsm.ReplyPosted && t == llc.TypeAddLink {
		c.linkSent(verbs.StatusOK) // the server has our response, whatever became of the acknowledgment
	}
	switch {
	case l.state == fsm.LinkActive || t == llc.TypeDeleteLink:
	case l.state == fsm.LinkDeleting:
		// §C.7.1: what the server sends over a link that the client has had deleted is ignored.
		if l.g.key.role == RoleClient {
			return
		}
	case t != llc.TypeConfirmLink:
		// Before CONFIRM LINK nothing else may come but the end.
		l.protocol(errUnexpected)
		return
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
		switch server := l.g.key.role == RoleServer; {
		case server && m.Reply:
			l.g.onAddLinkReply(l, m)
		case server:
			l.g.onInvitation()
		case m.Reply:
			l.protocol(errUnexpected)
		default:
			l.g.onAddLink(l, m)
		}
	case *llc.AddLinkCont:
		l.g.onCont(l, m)
	case *llc.ConfirmRKeyCont:
		l.onConfirmRKeyCont(m)
	case *llc.TestLink:
		l.onTestLink(m)
	default:
		// SMC-R v2 was not agreed.
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
		Link: l.num, UserID: l.uid, MaxLinks: l.g.max,
	}
}

func (l *Link) onConfirmLink(m *llc.ConfirmLink) {
	if l == l.g.x.link {
		l.g.onNewLink(l, m)
		return
	}
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

package engine

import (
	"errors"
	"net/netip"

	"libsmcr/abi/clc"
	"libsmcr/abi/llc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
)

// First and subsequent contact, RFC 7609 §3.5.1 and §3.5.2, both sides. What follows what is in fsm/handshake.go.

// ---- client

// propose sends the Proposal. No resources are taken yet: whose link it will be shows in the Accept.
func (c *Conn) propose(subnet netip.Prefix) {
	a := c.port.attr
	m := clc.Proposal{Version: smc.V1, PeerID: c.e.cfg.PeerID, GID: a.GID, MAC: a.MAC}
	if subnet.IsValid() {
		if subnet.Addr().Is4() {
			m.Subnet = clc.SubnetOf(smc.Linux, subnet)
		} else {
			m.Prefixes = []clc.Prefix{clc.PrefixOf(subnet)}
		}
	}
	c.send(m.Append(smc.Linux, nil))
}

func (c *Conn) onAccept(b []byte) {
	var m clc.Accept
	err := m.Decode(b)
	class := clc.ClassOf(err)
	if class != clc.Good && class != clc.BadEnum {
		c.broken(err)
		return
	}
	c.peer = m.Endpoint
	if m.FirstContact {
		if !c.to(fsm.RecvFirstAccept, fsm.Joining) {
			return
		}
	} else if !c.to(fsm.RecvAccept, fsm.AwaitClientRMB) {
		return
	}
	switch {
	case class == clc.BadEnum || m.Version != smc.V1:
		// We proposed version 1 only.
		c.fail(clc.DeclineMode)
	case m.FirstContact:
		c.join()
	default:
		c.useLink()
	}
}

// join makes the client's half of a new link group and confirms it (§3.5.1.3).
func (c *Conn) join() {
	if !c.port.dev.Reachable(c.peer.GID) {
		c.fail(clc.DeclineNoDevice)
		return
	}
	g := c.e.newGroup(peerKey{RoleClient, c.peer.PeerID}, c.port, c.peer.GID, c)
	l, code := c.equip(g)
	if code != 0 {
		c.fail(code)
		return
	}
	if err := l.connect(c.peer); err != nil {
		c.fail(clc.DeclineLinkFailed)
		return
	}
	if !c.sendConfirm(l, true) {
		return
	}
	// It may overtake the Confirm: the server's device keeps it. So the server can reach our RMB before it confirms
	// the link, and we know it then.
	if err := l.export(c.local.rmb); err != nil {
		c.fail(clc.DeclineLinkFailed)
		return
	}
	c.to(fsm.ConfirmSent, fsm.AwaitConfirmLink)
}

// equip gives a new link group its first link, and the connection an element.
func (c *Conn) equip(g *LinkGroup) (*Link, clc.DeclineCode) {
	// The group is the connection's from here on: if it fails, the group goes with it.
	c.group = g
	g.conns[c.id] = c
	l, err := g.newLink(g.port)
	c.link = l
	if err != nil {
		c.e.log.Warn().Uint32("lgr", uint32(g.id)).Err(err).Msg("no link")
		return nil, clc.DeclineMemory
	}
	return l, g.take(c)
}

// endpoint is what Accept and Confirm tell the peer.
func (c *Conn) endpoint(l *Link) clc.Endpoint {
	t := c.local.rmb.token(l)
	return clc.Endpoint{
		PeerID: c.e.cfg.PeerID, GID: l.attr.GID, MAC: l.attr.MAC, QPN: l.qp.QPN(), RKey: t.RKey, VAddr: t.VAddr,
		Index: c.local.index, Token: c.token, Size: smc.BufSizeFor(uint32(c.local.rmb.size)), MTU: l.attr.MTU, PSN: l.psn,
	}
}

func (c *Conn) sendConfirm(l *Link, first bool) bool {
	m := clc.Confirm{Version: smc.V1, FirstContact: first, Endpoint: c.endpoint(l)}
	m.MTU = l.peer.MTU
	c.told = true
	return c.send(m.Append(smc.Linux, nil))
}

// useLink: the server has chosen a link that exists (§3.5.2.2).
func (c *Conn) useLink() {
	var l *Link
	for _, g := range c.e.byPeer[peerKey{RoleClient, c.peer.PeerID}] {
		if x := g.linkTo(c.peer); x != nil && g.port.kin(c.port) {
			l = x
		}
	}
	if l == nil {
		// §C.4: the server believes in a link that we do not know. If a link group with it is there, that link has just
		// been deleted; with the S bit it would take the whole group down.
		c.outOfSync = len(c.e.byPeer[peerKey{RoleClient, c.peer.PeerID}]) == 0
		c.fail(clc.DeclineSync)
		return
	}
	g, r := l.g, l.remote(c.peer.RToken())
	if r == nil {
		c.fail(clc.DeclineRToken)
		return
	}
	if code := g.take(c); code != 0 {
		c.fail(code)
		return
	}
	if c.link = l; !r.claim(c) {
		c.fail(clc.DeclineRToken)
		return
	}
	c.announceRMB()
}

// announceRMB goes on with rmbReady once the peer knows the RMB.
func (c *Conn) announceRMB() {
	r := c.local.rmb
	if r.confirmed {
		c.rmbReady()
		return
	}
	if r.waiters = append(r.waiters, c); len(r.waiters) == 1 {
		c.group.announce(r)
	}
}

// rmbReady: the peer knows our RMB; now it may learn of the element.
func (c *Conn) rmbReady() {
	l := c.link
	if l == nil || l.state != fsm.LinkActive {
		l = c.group.lightest(c)
	}
	if c.link = l; l == nil {
		c.fail(clc.DeclineLinkFailed)
		return
	}
	if c.role == RoleServer {
		if c.to(fsm.RMBReady, fsm.AwaitConfirm) {
			c.told = true
			c.send(clc.Accept{Version: smc.V1, Endpoint: c.endpoint(l)}.Append(nil))
		}
		return
	}
	// §3.5.2.4: with its Confirm the client is committed, and may send.
	if c.sendConfirm(l, false) {
		c.to(fsm.RMBReady, fsm.Established)
	}
}

// ---- server

func (c *Conn) onProposal(b []byte) {
	var m clc.Proposal
	if err := m.Decode(smc.Linux, b); err != nil {
		c.broken(err)
		return
	}
	if !c.to(fsm.RecvProposal, fsm.Choosing) {
		return
	}
	// As Linux does, the link goes to the GID and MAC that were proposed.
	c.peer = clc.Endpoint{PeerID: m.PeerID, GID: m.GID, MAC: m.MAC}
	switch {
	case !m.OffersV1():
		c.fail(clc.DeclineMode)
	case m.PeerID.IsZero() || m.GID.IsZero():
		c.fail(clc.DeclineNoDevice)
	default:
		if c.port = c.e.portTo(m.GID, c.lan.VLAN); c.port == nil {
			c.fail(absent(c.lan.VLAN))
			return
		}
		if !c.port.attr.Caps.Has(verbs.CapLocal) && !m.Covers(c.lan.Subnet) {
			c.fail(clc.DeclinePrefix)
			return
		}
		c.choose()
	}
}

// choose decides between a link group that exists, one that is being formed, and a new one. It is the server's choice
// (§3.5.1.2, §3.5.3).
func (c *Conn) choose() {
	k := peerKey{RoleServer, c.peer.PeerID}
	var forming *LinkGroup
	for _, g := range c.e.byPeer[k] {
		switch {
		case !g.port.kin(c.port):
		case g.state == groupForming:
			forming = g
		case g.reaches(c.peer) && g.hasRoom():
			c.useGroup(g)
			return
		}
	}
	if forming != nil {
		// Two first contacts at once would make two link groups.
		if c.to(fsm.FirstPending, fsm.Queued) {
			c.queue = forming
			forming.queue = append(forming.queue, c)
		}
		return
	}
	c.firstContact(k)
}

func (c *Conn) useGroup(g *LinkGroup) {
	if code := g.take(c); code != 0 {
		c.fail(code)
		return
	}
	c.link = g.lightest(c)
	if c.to(fsm.Subsequent, fsm.AwaitServerRMB) {
		c.announceRMB()
	}
}

func (c *Conn) firstContact(k peerKey) {
	if c.e.closed {
		c.fail(clc.DeclineInternal)
		return
	}
	g := c.e.newGroup(k, c.port, c.peer.GID, c)
	l, code := c.equip(g)
	if code != 0 {
		c.fail(code)
		return
	}
	if !c.to(fsm.FirstContact, fsm.AwaitFirstConfirm) {
		return
	}
	c.told = true
	c.send(clc.Accept{Version: smc.V1, FirstContact: true, Endpoint: c.endpoint(l)}.Append(nil))
}

func (c *Conn) onConfirm(b []byte) {
	var m clc.Confirm
	err := m.Decode(smc.Linux, b)
	class := clc.ClassOf(err)
	if class != clc.Good && class != clc.BadEnum {
		c.broken(err)
		return
	}
	if c.state != fsm.AwaitFirstConfirm {
		c.onSubsequentConfirm(m)
		return
	}
	if m.PeerID != c.peer.PeerID || m.GID != c.peer.GID || m.MAC != c.peer.MAC {
		c.broken(ErrMismatch)
		return
	}
	c.peer = m.Endpoint
	if !c.to(fsm.RecvConfirm, fsm.AwaitPeerRMB) {
		return
	}
	if class == clc.BadEnum || m.Version != smc.V1 || m.CheckFirstContact() != nil {
		c.fail(clc.DeclineMode)
		return
	}
	l := c.group.links[0]
	err = l.connect(c.peer)
	if err == nil {
		err = l.qp.ReadyToSend(l.psn)
	}
	if err == nil {
		err = l.export(c.local.rmb)
	}
	if err != nil {
		c.fail(clc.DeclineLinkFailed)
		return
	}
	c.proceed()
}

// onSubsequentConfirm: §3.5.2.3. The client announced its RMB before, and has had our answer.
func (c *Conn) onSubsequentConfirm(m clc.Confirm) {
	if _, err := c.state.On(fsm.RecvConfirm); err != nil {
		c.broken(err)
		return
	}
	g := c.group
	l := g.linkTo(m.Endpoint)
	if l == nil || m.PeerID != c.peer.PeerID {
		c.broken(ErrMismatch)
		return
	}
	r := l.remote(m.RToken())
	if r == nil {
		c.broken(ErrMismatch)
		return
	}
	if c.peer = m.Endpoint; !r.claim(c) {
		c.broken(ErrMismatch)
		return
	}
	if c.link == nil || !r.on(c.link) {
		if c.link = g.lightest(c); c.link == nil {
			c.broken(ErrLinksLost)
			return
		}
	}
	c.to(fsm.RecvConfirm, fsm.Established)
}

// ---- first contact over the link

// proceed goes on with a first contact when the peer's RMB has arrived, which takes its own way, in the state where
// it is needed.
func (c *Conn) proceed() {
	if c.state != fsm.AwaitPeerRMB && c.state != fsm.LinkReceived {
		return
	}
	g := c.group
	l := g.links[0]
	r, err := g.reach(l, c.peer.RToken())
	switch {
	case errors.Is(err, verbs.ErrUnmapped):
		return // it will come, or the timer
	case errors.Is(err, verbs.ErrState):
		return // the completions that say why are on their way
	case errors.Is(err, verbs.ErrMemory):
		c.fail(clc.DeclineMemory)
		return
	case err != nil || !r.claim(c):
		c.fail(clc.DeclineRToken)
		return
	}
	if c.role == RoleServer {
		if c.to(fsm.PeerRMBReady, fsm.RequestPosted) {
			l.num = g.nextNum()
			l.send(l.confirmLink(false), c.linkSent)
		}
		return
	}
	if !c.to(fsm.PeerRMBReady, fsm.ReplyPosted) {
		return
	}
	if err := l.qp.ReadyToSend(l.psn); err != nil {
		c.fail(clc.DeclineLinkFailed)
		return
	}
	l.send(l.confirmLink(true), c.linkSent)
}

// linkSent: how sending our CONFIRM LINK ended. After a failure RFC 7609 §C.2 lets us decline (Figure 42).
func (c *Conn) linkSent(s verbs.Status) {
	if c.state != fsm.ReplyPosted && c.state != fsm.RequestPosted {
		return
	}
	switch s {
	case verbs.StatusOK:
		g := c.group
		if c.to(fsm.LinkSent, fsm.AddingLink) {
			g.activate(g.links[0], g.max)
		}
	case verbs.StatusFlushed:
		// The peer has closed the link: what it has to say comes over TCP.
	default:
		c.fail(clc.DeclineConfirmLink)
	}
}

func (c *Conn) onConfirmLink(l *Link, m *llc.ConfirmLink) {
	p := l.peer
	good := m.QPN == p.QPN && m.GID == p.GID && m.MAC == p.MAC && m.Link != 0
	g := c.group
	if c.role == RoleClient {
		if !c.to(fsm.RecvLink, fsm.LinkReceived) {
			return
		}
		switch {
		case !m.NoEyeCatcher && l.mapped():
			// What is mapped has the layout of Linux: no eye catcher, positions from 0.
			c.fail(clc.DeclineEyeCatcher)
		case !good:
			c.fail(clc.DeclineConfirmLink)
		default:
			l.num, l.peerUID = m.Link, m.UserID
			g.dialect, g.max = m.Dialect(), negotiated(g.max, m.MaxLinks)
			c.proceed()
		}
		return
	}
	// Ours was sent: too late for a Decline.
	if !good || m.Link != l.num || !m.NoEyeCatcher && l.mapped() {
		c.broken(ErrMismatch)
		return
	}
	g.dialect, l.peerUID = m.Dialect(), m.UserID
	if c.to(fsm.RecvLinkReply, fsm.AddingLink) {
		g.activate(l, m.MaxLinks)
	}
}

package engine

import (
	"time"

	"libsmcr/abi/llc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
)

// More links: RFC 7609 §2.2.2 (which ones), §3.5.1.6, §3.5.5.1, §3.5.5.2.3 (how), §C.8 (what if not).

// path is where a link runs: an RNIC on each side.
type path struct {
	port *port
	gid  roce.GID
	mac  roce.MAC
}

func (l *Link) path() path { return path{l.port, l.peer.GID, l.peer.MAC} }

func (p path) shares(q path) bool { return p.port == q.port || p.gid == q.gid && p.mac == q.mac }

// paths returns the paths in use. A link is asymmetric if it shares an RNIC with an older one that is symmetric; the
// oldest always counts as symmetric (§2.2.2).
func (g *LinkGroup) paths() (symmetric, asymmetric []path) {
	for _, l := range g.links {
		if l.state == fsm.LinkActive {
			if p := l.path(); shared(p, symmetric) {
				asymmetric = append(asymmetric, p)
			} else {
				symmetric = append(symmetric, p)
			}
		}
	}
	return symmetric, asymmetric
}

func shared(p path, with []path) bool {
	for _, q := range with {
		if p.shares(q) {
			return true
		}
	}
	return false
}

// fits reports whether a link may run there, and why not: no parallel link; one asymmetric link, as long as there is
// nothing better; no more symmetric ones than agreed.
func (g *LinkGroup) fits(p path) (ok bool, why llc.DeleteReason) {
	symmetric, asymmetric := g.paths()
	for _, q := range append(asymmetric, symmetric...) {
		if p == q {
			return false, llc.ReasonProtocol
		}
	}
	if shared(p, symmetric) {
		return len(asymmetric) == 0 && len(symmetric) < 2, llc.ReasonAsymmetricUnused
	}
	return len(symmetric) < int(g.max), llc.ReasonProtocol
}

// redundant: the failure of any RNIC leaves a link.
func (g *LinkGroup) redundant() bool {
	symmetric, _ := g.paths()
	return len(symmetric) >= 2
}

// uses says whether links run over a port: symmetric ones, any.
func (g *LinkGroup) uses(p *port) (symmetric, any bool) {
	s, a := g.paths()
	for _, q := range s {
		symmetric = symmetric || q.port == p
	}
	for _, q := range a {
		any = any || q.port == p
	}
	return symmetric, any || symmetric
}

// spare returns the preferred port that no link uses, nil if there is none.
func (g *LinkGroup) spare() *port {
	for _, p := range g.e.ports {
		if _, used := g.uses(p); !used && p.up() && p.kin(g.port) {
			return p
		}
	}
	return nil
}

// nextPort is the port that a server offers: one that no link uses; else one that only the asymmetric link uses, which a
// new RNIC of the client makes symmetric; else any, for an asymmetric link.
func (g *LinkGroup) nextPort() *port {
	symmetric, asymmetric := g.paths()
	if len(symmetric) >= int(g.max) {
		return nil
	}
	if p := g.spare(); p != nil {
		return p
	}
	for _, p := range g.e.ports {
		if s, used := g.uses(p); used && p.up() && (!s || len(asymmetric) == 0) {
			return p
		}
	}
	return nil
}

// nextNum: link numbers are not used again before all have been (§2.2.2).
func (g *LinkGroup) nextNum() smc.LinkNum {
	for {
		if g.lastNum++; g.lastNum != 0 && g.link(g.lastNum) == nil {
			return g.lastNum
		}
	}
}

// link returns the link with that number.
func (g *LinkGroup) link(n smc.LinkNum) *Link {
	for _, l := range g.links {
		if l.num == n && n != 0 {
			return l
		}
	}
	return nil
}

func (l *Link) addLink(m llc.AddLink) *llc.AddLink {
	m.MAC, m.GID, m.QPN, m.Link, m.MTU, m.PSN = l.attr.MAC, l.attr.GID, l.qp.QPN(), l.num, l.attr.MTU, l.psn
	return &m
}

// ---- server

func (g *LinkGroup) beginAddLink(via *Link) {
	p := g.nextPort()
	if p == nil && !g.adding() {
		return
	}
	var l *Link
	if p != nil {
		var err error
		if l, err = g.newLink(p); err != nil {
			g.e.log.Warn().Uint32("lgr", uint32(g.id)).Err(err).Msg("no further link")
		}
	}
	if l == nil {
		if g.adding() {
			// The client waits for this message. Without an MTU it is refused and the first contact goes on.
			g.x.via = via
			g.check(g.step(fsm.BeginAddLink))
			via.send(&llc.AddLink{MAC: via.attr.MAC, GID: via.attr.GID, Link: g.nextNum()}, nil)
		}
		return
	}
	l.num = g.nextNum()
	g.x.via, g.x.link = via, l
	g.check(g.step(fsm.BeginAddLink))
	via.send(l.addLink(llc.AddLink{}), nil)
}

func (g *LinkGroup) onAddLinkReply(l *Link, m *llc.AddLink) {
	x := &g.x
	if x.via != l || x.link != nil && m.Link != x.link.num {
		l.protocol(errUnexpected)
		return
	}
	nl := x.link
	if m.Reject || nl == nil {
		if err := g.step(fsm.RecvAddLinkReject); err != nil {
			l.protocol(err)
			return
		}
		g.e.log.Info().Uint32("lgr", uint32(g.id)).Stringer("reason", m.Reason).Msg("no further link")
		g.reset()
		if nl != nil {
			g.remove(nl)
		}
		g.next()
		return
	}
	if err := g.step(fsm.RecvAddLinkReply); err != nil {
		l.protocol(err)
		return
	}
	// §C.7.1: parallel links are not permitted, whatever the client thinks.
	ok, why := g.fits(path{nl.port, m.GID, m.MAC})
	if ok {
		ok = nl.join(*m) == nil
		why = llc.ReasonLostPath
	}
	if !ok {
		g.e.log.Warn().Uint32("lgr", uint32(g.id)).Stringer("reason", why).Msg("no further link")
		g.over(fsm.ExchangeTimeout)
		g.drop(nl, why, false)
		return
	}
	x.rest, x.owed = g.pairs(l, nl), -1
	g.sendCont(false)
}

// join connects the queue pair of a further link.
func (l *Link) join(m llc.AddLink) error {
	l.peer = verbs.Peer{GID: m.GID, MAC: m.MAC, QPN: m.QPN, PSN: m.PSN, MTU: min(l.attr.MTU, m.MTU)}
	if !m.MTU.Valid() {
		return ErrMismatch
	}
	if err := l.qp.ReadyToReceive(l.peer); err != nil {
		return err
	}
	l.step(fsm.LinkConnect)
	return l.qp.ReadyToSend(l.psn)
}

// pairs are the RTokens of the RMBs that the peer knows, on the new link. What it does not know yet is announced later
// for all links.
func (g *LinkGroup) pairs(via, l *Link) (p []llc.RKeyPair) {
	for _, r := range g.rmbs {
		if r.confirmed && !r.retiring {
			p = append(p, llc.RKeyPair{Ref: r.token(via).RKey, New: r.token(l)})
		}
	}
	return p
}

// sendCont tells the next RTokens.
func (g *LinkGroup) sendCont(reply bool) {
	x := &g.x
	m := llc.AddLinkCont{Reply: reply, Link: x.link.num, Remaining: uint8(len(x.rest))}
	x.rest = x.rest[copy(m.Pairs[:], x.rest):]
	x.via.send(&m, nil)
}

// takeCont notes the peer's RTokens. It reports whether they fit what came before (§C.7.1).
func (g *LinkGroup) takeCont(m *llc.AddLinkCont) bool {
	x := &g.x
	if x.owed >= 0 && int(m.Remaining) != x.owed {
		return false
	}
	x.owed = int(m.Remaining) - m.Count()
	for _, p := range m.Pairs[:m.Count()] {
		r := x.via.remotes[p.Ref]
		if r == nil || r.name(x.link, p.New) != nil {
			return false
		}
	}
	return true
}

// onCont is an ADD LINK CONTINUATION in either direction: requests of the server draw the client's answers (§A.3.3).
func (g *LinkGroup) onCont(l *Link, m *llc.AddLinkCont) {
	x := &g.x
	server := g.key.role == RoleServer
	if x.via != l || x.link == nil || m.Link != x.link.num || m.Reply != server {
		l.protocol(errUnexpected)
		return
	}
	more, last := fsm.RecvCont, fsm.RecvLastCont
	if server {
		more, last = fsm.RecvContReply, fsm.RecvLastContReply
	} else if x.owed < 0 {
		x.rest = g.pairs(l, x.link)
	}
	ev := more
	if m.Remaining <= 2 && (server && len(x.rest) == 0 || !server && len(x.rest) <= 2) {
		ev = last
	}
	if _, err := x.state.On(ev); err != nil {
		l.protocol(err)
		return
	}
	if !g.takeCont(m) {
		l.protocol(ErrMismatch)
		return
	}
	g.check(g.step(ev))
	switch {
	case !server:
		g.sendCont(true)
	case ev == more:
		g.sendCont(false)
	default:
		x.link.send(x.link.confirmLink(false), nil)
	}
}

// ---- client

// onAddLink: the server adds a link, and says from which of its RNICs.
func (g *LinkGroup) onAddLink(l *Link, m *llc.AddLink) {
	x := &g.x
	old := *x
	if _, err := x.state.On(fsm.RecvAddLink); err != nil || m.Link == 0 || g.link(m.Link) != nil && g.link(m.Link) != old.link {
		l.protocol(errUnexpected)
		return
	}
	// §3.5.5.3.3: our own exchange is done again afterwards.
	switch old.state {
	case fsm.ConfirmRKeySent:
		old.via.stale[old.rmb.token(old.via)] = true
		g.todo.confirm = append([]*RMB{old.rmb}, g.todo.confirm...)
	case fsm.DeleteRKeySent:
		g.todo.retire = append(old.rmbs, g.todo.retire...)
		old.via.staleDeletes++
	}
	*x = exchange{state: old.state, timer: old.timer, via: l, owed: -1}
	g.check(g.step(fsm.RecvAddLink))
	if old.link != nil {
		g.remove(old.link)
	}
	nl, reason := g.accept(m)
	if nl == nil {
		reply := *m
		reply.Reply, reply.Reject, reply.Reason = true, true, reason
		g.settling = g.adding()
		l.send(&reply, g.settled)
		if g.state != groupDown && x.via == l { // else the link has failed, and the exchange with it
			g.over(fsm.Refused)
			g.next()
		}
		return
	}
	x.link = nl
	l.send(nl.addLink(llc.AddLink{Reply: true}), nil)
}

// settled: what a first contact waited for before data may flow has been sent, or the link that carries it is gone.
func (g *LinkGroup) settled(s verbs.Status) {
	if g.settling = false; s == verbs.StatusOK {
		g.next()
	}
}

// accept makes the client's half of a new link (§3.5.1.6), or says why not.
func (g *LinkGroup) accept(m *llc.AddLink) (*Link, llc.RejectReason) {
	if !m.MTU.Valid() {
		return nil, llc.RejectMTU
	}
	// An RNIC of its own first, then one that only the asymmetric link uses.
	var choice *port
	best := 3
	for _, p := range g.e.ports {
		if ok, _ := g.fits(path{p, m.GID, m.MAC}); !ok || !p.up() || !p.kin(g.port) || !p.dev.Reachable(m.GID) {
			continue
		}
		rank := 0
		if s, used := g.uses(p); s {
			rank = 2
		} else if used {
			rank = 1
		}
		if rank < best {
			choice, best = p, rank
		}
	}
	if choice == nil {
		return nil, llc.RejectNoAltPath
	}
	l, err := g.newLink(choice)
	if err == nil {
		l.num = m.Link
		if err = l.join(*m); err != nil {
			g.remove(l)
		}
	}
	if err != nil {
		g.e.log.Warn().Uint32("lgr", uint32(g.id)).Err(err).Msg("no further link")
		return nil, llc.RejectNoAltPath
	}
	return l, 0
}

// invite tells the server of an RNIC that is free. It answers or not (§3.5.5.1.2).
func (g *LinkGroup) invite(p *port) {
	if l := g.active(); l != nil {
		l.send(&llc.AddLink{MAC: p.attr.MAC, GID: p.attr.GID}, nil)
	}
}

// ---- both

// onInvitation: the client has a free RNIC.
func (g *LinkGroup) onInvitation() {
	symmetric, _ := g.paths()
	// §3.5.5.3.1: the client takes the ADD LINK that is under way for the answer.
	if len(symmetric) < int(g.max) && !g.x.state.AddsLink() {
		g.todo.addLink = true
		g.next()
	}
}

// onNewLink is CONFIRM LINK over a further link.
func (g *LinkGroup) onNewLink(l *Link, m *llc.ConfirmLink) {
	server, p := g.key.role == RoleServer, l.peer
	ev := fsm.RecvNewLink
	if server {
		ev = fsm.RecvNewLinkReply
	}
	if _, err := g.x.state.On(ev); err != nil || m.Reply != server {
		l.protocol(errUnexpected)
		return
	}
	if m.QPN != p.QPN || m.GID != p.GID || m.MAC != p.MAC || m.Link != l.num {
		g.over(fsm.NewLinkFailed)
		g.drop(l, llc.ReasonProtocol, false)
		return
	}
	g.over(ev)
	l.peerUID = m.UserID
	l.step(fsm.LinkConfirmed)
	if !server {
		g.settling = g.adding()
		l.send(l.confirmLink(true), g.settled)
	}
	if l.state == fsm.LinkActive {
		g.linkUp(l)
	}
	g.next()
}

// newLinkFailed: the link that is being added does not work.
func (g *LinkGroup) newLinkFailed() {
	l := g.x.link
	g.check(g.step(fsm.NewLinkFailed))
	if g.x.state != fsm.Quiet {
		l.qp.Fail()
		return
	}
	g.reset()
	g.drop(l, llc.ReasonLostPath, false)
}

// linkUp: a further link works.
func (g *LinkGroup) linkUp(l *Link) {
	g.e.log.Info().Uint32("lgr", uint32(g.id)).Uint8("link", uint8(l.num)).Msg("link up")
	l.watch()
	g.unwait()
	g.unpause()
	g.rebalance()
	if g.key.role != RoleServer {
		return
	}
	symmetric, asymmetric := g.paths()
	if len(symmetric) >= 2 {
		// §2.2.1: a symmetric link takes the place of the asymmetric one.
		for _, p := range asymmetric {
			for _, x := range g.links {
				if x.state == fsm.LinkActive && x.path() == p {
					g.drop(x, llc.ReasonAsymmetricUnused, true)
				}
			}
		}
	}
	// One after another as long as both sides have free RNICs.
	if len(asymmetric) == 0 && len(symmetric) < int(g.max) && g.spare() != nil {
		g.todo.addLink = true
	}
}

const (
	firstWait = 30 * time.Second
	lastWait  = 15 * time.Minute
)

// endeavor keeps a timer running while the second link is missing (§C.8), on the client's side while it has an RNIC for
// one (§C.7.1).
func (g *LinkGroup) endeavor() {
	a := &g.todo
	if g.max < 2 || g.redundant() || g.key.role == RoleClient && g.spare() == nil || g.key.role == RoleServer && g.nextPort() == nil {
		g.unwait()
		return
	}
	if a.retry.pos == 0 {
		a.wait = min(max(firstWait, 2*a.wait), lastWait)
		g.e.after(&a.retry, a.wait)
	}
}

func (g *LinkGroup) unwait() {
	g.e.timers.stop(&g.todo.retry)
	g.todo.wait = 0
}

func (g *LinkGroup) tryAgain() {
	if g.key.role == RoleServer {
		g.todo.addLink = true
	} else if p := g.spare(); p != nil {
		g.invite(p)
	}
	g.next()
}

// portUp: §C.8, a new RNIC.
func (g *LinkGroup) portUp(p *port) {
	symmetric, _ := g.paths()
	if _, used := g.uses(p); used || g.state != groupActive || !p.kin(g.port) || len(symmetric) >= int(g.max) {
		return
	}
	g.unwait()
	if g.key.role == RoleServer {
		g.todo.addLink = true
	} else {
		g.invite(p)
	}
	g.next()
}

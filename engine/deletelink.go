package engine

import (
	"maps"
	"slices"

	"libsmcr/abi/llc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
)

// The end of links: RFC 7609 §3.5.4, §3.5.5.1.3 and §3.5.5.1.4 (Figures 10 and 11). A client asks, the server deletes.

// leaving is why a link goes.
type leaving struct {
	reason  llc.DeleteReason
	orderly bool
	asked   *Link // client: over which the server was asked
}

// alone reports whether no other link is active.
func (g *LinkGroup) alone(l *Link) bool {
	for _, x := range g.links {
		if x != l && x.state == fsm.LinkActive {
			return false
		}
	}
	return true
}

// fail: the link does not work any more. Its connections go on over another one; without one the group is down.
func (l *Link) fail() {
	g := l.g
	switch {
	case l.state == fsm.LinkDown || g.state == groupDown:
	case l.state == fsm.LinkDeleting:
		g.failover(l) // whoever was leaving in order
	case l == g.x.link:
		g.newLinkFailed()
	case g.alone(l):
		g.down(fsm.LinkFailed)
	default:
		g.drop(l, llc.ReasonLostPath, false)
	}
}

// drop takes a link out of use and has it deleted. Orderly, what is under way on it may still complete.
func (g *LinkGroup) drop(l *Link, why llc.DeleteReason, orderly bool) {
	if l.state == fsm.LinkDeleting {
		return
	}
	l.why = leaving{reason: why, orderly: orderly}
	if !orderly {
		l.qp.Fail()
	}
	g.linkDown(l)
	if g.x.via == l {
		g.carrierFailed()
	}
	if g.key.role == RoleServer {
		g.todo.drops = append(g.todo.drops, l)
	} else {
		l.ask()
		for _, x := range slices.Clone(g.links) {
			if x.why.asked == l && x.state == fsm.LinkDeleting {
				x.ask()
			}
		}
	}
	g.next()
}

// linkDown: the connections leave the link (§2.3). In order, what is in flight comes to its end first.
func (g *LinkGroup) linkDown(l *Link) {
	g.e.log.Info().Uint32("lgr", uint32(g.id)).Uint8("link", uint8(l.num)).Msg("link leaves")
	l.step(fsm.LinkLeave)
	g.e.timers.stop(&l.test)
	if !l.why.orderly {
		g.failover(l)
		return
	}
	for _, c := range sorted(g.conns) {
		if to := g.lightest(c); c.link == l && to != nil {
			c.move(to, false)
		}
	}
}

// remove forgets a link that both sides have deleted, or that never came to be.
func (g *LinkGroup) remove(l *Link) {
	l.step(fsm.LinkDelete)
	g.failover(l) // whoever has not left yet
	l.closeQP()
	l.forget()
	g.links = slices.DeleteFunc(g.links, func(x *Link) bool { return x == l })
	g.settling = false
	g.unpause()
	// What was sent over it last may have been the answer for another link: no completion comes any more.
	for _, id := range slices.Sorted(maps.Keys(l.sent)) {
		done := l.sent[id]
		delete(l.sent, id)
		done(verbs.StatusFlushed)
	}
}

func (l *Link) closeQP() {
	l.g.e.timers.stop(&l.test)
	l.g.e.timers.stop(&l.timer)
	delete(l.links, l.qp.QPN())
	l.g.check(l.qp.Close())
}

// forget gives back what a link had registered.
func (l *Link) forget() {
	g := l.g
	for _, r := range g.rmbs {
		r.unregister(l)
	}
	for r := range g.remotes {
		delete(r.tokens, l)
	}
	g.check(l.pd.Close())
}

// ---- server

func (g *LinkGroup) beginDeleteLink(via *Link) {
	l := g.todo.drops[0]
	g.todo.drops = g.todo.drops[1:]
	g.x.via, g.x.link = via, l
	g.check(g.step(fsm.BeginDeleteLink))
	via.send(&llc.DeleteLink{Link: l.num, Orderly: l.why.orderly, Reason: l.why.reason}, nil)
}

func (g *LinkGroup) onDeleteLinkReply(l *Link, m *llc.DeleteLink) {
	if g.key.role == RoleClient {
		// The server has never had the link, or not any more.
		if x := g.link(m.Link); x != nil && x.state == fsm.LinkDeleting && m.Reason == llc.ReasonUnknownLink {
			g.remove(x)
			g.next()
		}
		return
	}
	x := g.x.link
	if m.All {
		return
	}
	if g.x.via != l || x == nil || m.Link != x.num {
		l.protocol(errUnexpected)
		return
	}
	if err := g.step(fsm.RecvDeleteLinkReply); err != nil {
		l.protocol(err)
		return
	}
	g.reset()
	g.remove(x)
	// One that never worked waits for its timer (§C.8).
	g.todo.addLink = g.todo.addLink || x.worked && !g.redundant() && g.spare() != nil
	g.next()
}

// ---- client

// ask tells the server of a link that is to be deleted.
func (l *Link) ask() {
	g := l.g
	via := g.active()
	if l.why.asked = via; via == nil {
		return
	}
	// The server may be in the middle of another exchange (§3.5.5.3.1).
	g.e.after(&l.timer, 4*g.e.cfg.Timeouts.LLC)
	via.send(&llc.DeleteLink{Link: l.num, Orderly: l.why.orderly, Reason: l.why.reason}, nil)
}

// askedInVain: §C.7.1, DELETE LINK from the client: the link over which it was sent cannot be used either.
func (l *Link) askedInVain() {
	via := l.why.asked
	if via != nil && via.state == fsm.LinkActive {
		via.fail() // which asks again
	} else if l.state == fsm.LinkDeleting {
		l.ask()
	}
}

// ---- both

func (l *Link) onDeleteLink(m *llc.DeleteLink) {
	g := l.g
	x := g.link(m.Link)
	switch {
	case m.Reply:
		g.onDeleteLinkReply(l, m)
	case m.All:
		g.onDeleteAll(l, m)
	case x == nil:
		l.send(&llc.DeleteLink{Reply: true, Orderly: m.Orderly, Link: m.Link, Reason: llc.ReasonUnknownLink}, nil)
	case g.key.role == RoleServer:
		l.onDeleteRequest(x, m)
	default:
		l.comply(x, m)
	}
}

// onDeleteAll: §3.5.4. The server complies by a DELETE LINK of its own.
func (g *LinkGroup) onDeleteAll(l *Link, m *llc.DeleteLink) {
	if g.key.role == RoleServer {
		g.delete(llc.DeleteLink{Orderly: m.Orderly, Reason: m.Reason})
		return
	}
	g.down(fsm.LinkDelete)
}

// onDeleteRequest: the client asks for the end of a link.
func (l *Link) onDeleteRequest(x *Link, m *llc.DeleteLink) {
	g := l.g
	switch {
	case x.state == fsm.LinkDeleting:
		// §C.7.1: a timing window.
	case x == g.x.link:
		g.newLinkFailed()
	case g.alone(x):
		g.delete(llc.DeleteLink{Orderly: m.Orderly, Reason: m.Reason})
	default:
		g.drop(x, m.Reason, m.Orderly)
	}
}

// comply: the client cannot refuse.
func (l *Link) comply(x *Link, m *llc.DeleteLink) {
	g := l.g
	reply := &llc.DeleteLink{Reply: true, Orderly: m.Orderly, Link: m.Link}
	last := x.state == fsm.LinkActive && g.alone(x)
	switch {
	case x == g.x.link:
		g.over(fsm.NewLinkDeleted)
		x.step(fsm.LinkLeave)
	case !last && x.state != fsm.LinkDeleting:
		x.why = leaving{reason: m.Reason, orderly: m.Orderly}
		g.linkDown(x)
		if g.x.via == x {
			g.carrierFailed()
		}
	}
	g.e.timers.stop(&x.timer)
	l.send(reply, func(verbs.Status) {
		// Whether it arrived or not: the server that asks again over another link learns that there is none.
		switch {
		case x.state == fsm.LinkDown:
		case last:
			g.down(fsm.LinkDelete)
		default:
			g.remove(x)
			g.next()
		}
	})
}

// delete ends the group in order: RFC 7609 §3.5.4. The links go when the adapter says that the peer was told, over
// whichever of them works (§C.7.1).
func (g *LinkGroup) delete(m llc.DeleteLink) {
	if g.state == groupDown || g.state == groupEnding {
		return
	}
	m.All = true
	l := g.active()
	if l == nil || g.port.mapped() {
		if l != nil {
			l.send(&m, nil)
		}
		g.down(fsm.LinkDelete)
		return
	}
	g.leavePeer()
	g.state = groupEnding
	g.stopped()
	g.e.after(&g.x.timer, g.e.cfg.Timeouts.LLC)
	for _, x := range slices.Clone(g.links) {
		if x.state == fsm.LinkActive && g.state == groupEnding {
			x.send(&m, func(s verbs.Status) {
				if s == verbs.StatusOK {
					g.down(fsm.LinkDelete)
				}
			})
		}
	}
}

// DeleteLink ends one link of a group in order, as an operator wants it: connections go on over the others. Number 0, or
// the last link, is the whole group. It reports whether there is such a link.
func (e *Engine) DeleteLink(id GroupID, n smc.LinkNum, now Instant) bool {
	defer e.enter(now)()
	g := e.groups[id]
	if g == nil || g.state != groupActive {
		return false
	}
	l := g.link(n)
	switch {
	case n == 0 || l != nil && l.state == fsm.LinkActive && g.alone(l):
		g.delete(llc.DeleteLink{Orderly: true, Reason: llc.ReasonOperator})
	case l == nil || l.state != fsm.LinkActive:
		return false
	case g.key.role == RoleServer:
		g.drop(l, llc.ReasonOperator, true)
	default:
		// Asking in order is no more than that: the server deletes the link when it suits it (§3.5.5.1.4).
		if via := g.active(); via != nil {
			via.send(&llc.DeleteLink{Link: n, Orderly: true, Reason: llc.ReasonOperator}, nil)
		}
	}
	return true
}

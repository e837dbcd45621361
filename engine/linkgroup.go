package engine

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"libsmcr/abi/clc"
	"libsmcr/abi/llc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
)

// GroupID numbers the link groups of an engine.
type GroupID uint32

// peerKey says whose link group it is. Roles reversed are another group (RFC 7609 §2.2). Which of its RNICs the peer
// speaks from is a matter of the links.
type peerKey struct {
	role Role // of this side
	id   smc.PeerID
}

type groupState uint8

const (
	groupForming groupState = iota // its first contact is under way
	groupActive
	groupEnding // DELETE LINK for all links is on its way
	groupDown   // no link left; lives on while connections hold its memory
)

func (s groupState) String() string { return [...]string{"FORMING", "ACTIVE", "ENDING", "DOWN"}[s] }

// LinkGroup is all that two peers share in one pair of roles: links, RMBs and connections (RFC 7609 §2.2).
type LinkGroup struct {
	e       *Engine
	id      GroupID
	key     peerKey
	port    *port    // of the first link
	gid     roce.GID // of the peer, first link
	state   groupState
	links   []*Link
	lastNum smc.LinkNum
	max     uint8       // links, negotiated by CONFIRM LINK
	dialect smc.Dialect // of the peer

	first *Conn   // whose first contact forms the group
	queue []*Conn // server: Proposals that wait for it

	rmbs    []*RMB
	remotes map[*remoteRMB]struct{}  // RMBs of the peer
	byToken map[smc.AlertToken]*Conn // alert tokens of this side, which CDC messages name
	conns   map[ConnID]*Conn

	x            exchange // that is under way
	todo         agenda
	settling     bool     // client, first contact: what ends it has been posted, not sent
	partial      *partial // CONFIRM RKEY of the peer that is not complete
	partialTimer timer
	shrinker     timer

	sweeper timer
	pause   time.Duration // until the next sweep
	idle    timer
}

// linkLimit is what CONFIRM LINK tells (RFC 7609 §2.2.2): 2 to 8, but 1 over a device that knows one path to each peer.
func (p *port) linkLimit() uint8 { return uint8(max(1, min(p.attr.MaxLinks, smc.MaxLinks))) }

func (e *Engine) newGroup(k peerKey, p *port, gid roce.GID, first *Conn) *LinkGroup {
	e.lastGroup++
	g := &LinkGroup{
		e: e, id: e.lastGroup, key: k, port: p, gid: gid, first: first, max: p.linkLimit(), dialect: smc.Linux,
		x:       exchange{state: fsm.Quiet},
		remotes: map[*remoteRMB]struct{}{}, conns: map[ConnID]*Conn{}, byToken: map[smc.AlertToken]*Conn{},
	}
	g.sweeper.fire, g.shrinker.fire, g.x.timer.fire, g.partialTimer.fire = g.sweep, g.shrink, g.timeout, g.partialTimeout
	g.todo.pause.fire, g.todo.retry.fire = g.unhold, g.tryAgain
	g.idle.fire = func() { g.delete(llc.DeleteLink{Orderly: true, Reason: llc.ReasonProgram}) }
	e.groups[g.id] = g
	e.byPeer[k] = append(e.byPeer[k], g)
	e.count.Groups++
	return g
}

// check notes an error that the engine could not have caused and cannot cure.
func (g *LinkGroup) check(err error) {
	if err != nil {
		g.e.log.Error().Uint32("lgr", uint32(g.id)).Err(err).Msg("resources")
	}
}

// active returns a link that works.
func (g *LinkGroup) active() *Link {
	for _, l := range g.links {
		if l.state == fsm.LinkActive {
			return l
		}
	}
	return nil
}

// linkTo returns the link whose other end that is; it may be one that is being deleted, which the peer did not know yet.
func (g *LinkGroup) linkTo(p clc.Endpoint) *Link {
	for _, l := range g.links {
		if (l.state == fsm.LinkActive || l.state == fsm.LinkDeleting) && l.peer.QPN == p.QPN && l.peer.GID == p.GID && l.peer.MAC == p.MAC {
			return l
		}
	}
	return nil
}

// reaches: the RNIC that a Proposal comes from is the other end of a link that works.
func (g *LinkGroup) reaches(p clc.Endpoint) bool {
	for _, l := range g.links {
		if l.state == fsm.LinkActive && l.peer.GID == p.GID && l.peer.MAC == p.MAC {
			return true
		}
	}
	return false
}

// activate: the first link is confirmed.
func (g *LinkGroup) activate(l *Link, peerMax uint8) {
	l.step(fsm.LinkConfirmed)
	g.max = negotiated(g.max, peerMax)
	for _, r := range g.rmbs {
		r.confirmed = true
	}
	g.e.log.Info().Uint32("lgr", uint32(g.id)).Stringer("role", g.key.role).Stringer("peer", g.key.id).Msg("link group up")
	l.watch()
	if g.max > 1 {
		if g.key.role == RoleServer {
			g.todo.addLink = true
		} else {
			g.check(g.step(fsm.FirstLinkUp))
		}
	}
	g.next()
}

// negotiated is the number of links: a client that says nothing accepts the server's (RFC 7609 §2.2.2).
func negotiated(local, peer uint8) uint8 {
	if peer == 0 {
		return local
	}
	return min(local, peer)
}

// down ends all links. Connections that are established keep their rings; what was being negotiated is told.
func (g *LinkGroup) down(why fsm.LinkEvent) {
	if g.state == groupDown {
		return
	}
	g.state = groupDown
	g.e.log.Info().Uint32("lgr", uint32(g.id)).Stringer("ev", why).Msg("link group down")
	g.leavePeer()
	g.e.timers.stop(&g.sweeper)
	g.e.timers.stop(&g.idle)
	g.stopped()
	for _, l := range g.links {
		l.step(why)
		l.closeQP()
	}
	queue := g.queue
	g.queue = nil
	for _, c := range sorted(g.conns) {
		if c.closing {
			c.sweep()
		} else {
			c.lost()
		}
	}
	// One of those that waited makes the next attempt.
	for _, c := range queue {
		c.queue = nil
		c.choose()
	}
	g.quiet()
}

// leavePeer: no further connections.
func (g *LinkGroup) leavePeer() {
	if rest := slices.DeleteFunc(g.e.byPeer[g.key], func(x *LinkGroup) bool { return x == g }); len(rest) > 0 {
		g.e.byPeer[g.key] = rest
	} else {
		delete(g.e.byPeer, g.key)
	}
}

// quiet is called when a connection has left.
func (g *LinkGroup) quiet() {
	if len(g.conns) > 0 {
		return
	}
	switch g.state {
	case groupActive:
		// RFC 7609 §3.5.4: it is the server who decides about the end of a link group.
		if g.key.role == RoleServer {
			g.e.after(&g.idle, g.e.cfg.Timeouts.Idle)
		}
		g.sweepSoon()
	case groupDown:
		if g.e.groups[g.id] == g {
			delete(g.e.groups, g.id)
			g.free()
		}
	}
}

// busy is called when a connection joins.
func (g *LinkGroup) busy() { g.e.timers.stop(&g.idle) }

func (g *LinkGroup) free() {
	for r := range g.remotes {
		r.close()
	}
	for _, l := range g.links {
		l.forget()
	}
	for _, r := range g.rmbs {
		r.close()
	}
}

const (
	firstSweep = 20 * time.Millisecond
	lastSweep  = 30 * time.Second
)

// sweepSoon begins to look after elements that the peer has not left yet, and after the peer itself: nothing else
// tells that an idle peer's process has ended. An RNIC is not asked: it is one of several, and TEST LINK will tell.
func (g *LinkGroup) sweepSoon() {
	if g.state != groupActive {
		return
	}
	g.pause = firstSweep
	g.e.after(&g.sweeper, g.pause)
}

func (g *LinkGroup) sweep() {
	waiting := false
	for _, c := range sorted(g.conns) {
		switch {
		case !c.closing:
		case c.elementFree():
			c.release()
		default:
			waiting = true
		}
	}
	if g.state != groupActive || !waiting && (len(g.conns) > 0 || !g.port.mapped()) {
		return
	}
	if g.port.mapped() && !g.port.dev.Reachable(g.gid) {
		g.down(fsm.LinkFailed)
		return
	}
	g.pause = min(2*g.pause, lastSweep)
	g.e.after(&g.sweeper, g.pause)
}

func sorted(m map[ConnID]*Conn) []*Conn {
	return slices.SortedFunc(maps.Values(m), func(a, b *Conn) int { return cmp.Compare(a.id, b.id) })
}

func (e *Engine) sortedConns() []*Conn { return sorted(e.conns) }

func (e *Engine) sortedGroups() []*LinkGroup {
	return slices.SortedFunc(maps.Values(e.groups), func(a, b *LinkGroup) int { return cmp.Compare(a.id, b.id) })
}

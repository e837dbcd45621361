package engine

import (
	"slices"
	"time"

	"libsmcr/abi/clc"
	"libsmcr/abi/llc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
)

// One LLC exchange of a link group at a time (RFC 7609 §3.5.5.3): what has to be done waits in lists, next begins it when
// the one before is over. What follows what is in fsm/exchange.go, who does what in addlink.go, deletelink.go, rkey.go.

// exchange is the one that is under way. Fields beside the state belong to some kinds only.
type exchange struct {
	state fsm.Exchange // written by step only
	timer timer
	via   *Link            // carries it
	link  *Link            // being added or deleted
	rest  []llc.RKeyPair   // ADD LINK CONTINUATION: still to be told
	owed  int              // and what the peer's next one has to say that it has left; -1 = it has not begun
	rmb   *RMB             // CONFIRM RKEY
	more  []llc.LinkRToken // and what is left for its continuations
	rmbs  []*RMB           // DELETE RKEY
}

// agenda is what waits for its turn.
type agenda struct {
	addLink bool    // server
	drops   []*Link // server: to be deleted
	confirm []*RMB  // to be announced
	retire  []*RMB  // to be deleted
	paused  bool    // the peer is busy: CONFIRM RKEY waits for a while
	pause   timer
	retry   timer // of the missing second link: §C.8
	wait    time.Duration
}

// pauseFor is how long an exchange waits that the peer had no time for, unless the peer's own ends first.
const pauseFor = 100 * time.Millisecond

// step is the only writer of the exchange's state.
func (g *LinkGroup) step(ev fsm.ExchangeEvent) error {
	x := &g.x
	next, err := x.state.On(ev)
	if err != nil {
		return err
	}
	if d := g.e.log.Debug(); d.Enabled() && next != x.state {
		d.Uint32("lgr", uint32(g.id)).Stringer("from", x.state).Stringer("to", next).Stringer("ev", ev).Msg("exchange")
	}
	x.state = next
	if next == fsm.Quiet {
		g.e.timers.stop(&x.timer)
		return nil
	}
	g.e.after(&x.timer, g.patience())
	return nil
}

// patience is how long the peer has for its answer. A client waits longer than its server, so that the server is the
// one who gives up (§C.7).
func (g *LinkGroup) patience() time.Duration {
	t := g.e.cfg.Timeouts.LLC
	switch g.x.state {
	case fsm.AwaitAddLink, fsm.AwaitCont, fsm.AwaitNewLink:
		return 2 * t
	}
	return t
}

// next begins what is to be done, if nothing is under way.
func (g *LinkGroup) next() {
	for g.x.state == fsm.Quiet && (g.state == groupActive || g.adding()) {
		via, a := g.active(), &g.todo
		switch {
		case via == nil:
			return
		case len(a.drops) > 0 && g.partial == nil:
			g.beginDeleteLink(via)
		case a.addLink && g.partial == nil:
			a.addLink = false
			g.beginAddLink(via)
		case g.adding():
			if g.settling || slices.ContainsFunc(g.links, func(l *Link) bool { return l.state == fsm.LinkDeleting }) {
				return
			}
			g.ready()
		case len(a.confirm) > 0 && !a.paused:
			g.beginConfirmRKey(via)
		case len(a.retire) > 0 && !a.paused:
			g.beginDeleteRKey(via)
		default:
			g.endeavor()
			return
		}
	}
}

// adding: first contact, the first link is confirmed.
func (g *LinkGroup) adding() bool { return g.first != nil && g.first.state == fsm.AddingLink }

// ready: no data flowed until the second link was there or known not to come (§3.5.1.6). Now it may.
func (g *LinkGroup) ready() {
	c := g.first
	g.first, g.state = nil, groupActive
	c.to(fsm.LinksReady, fsm.Established)
	queue := g.queue
	g.queue = nil
	for _, c := range queue {
		c.queue = nil
		c.choose()
	}
}

// over ends an exchange whose answer has come, and goes on.
func (g *LinkGroup) over(ev fsm.ExchangeEvent) {
	if err := g.step(ev); err != nil {
		g.check(err)
		return
	}
	g.reset()
}

// reset forgets what an exchange was about.
func (g *LinkGroup) reset() { g.x = exchange{state: g.x.state, timer: g.x.timer} }

func (g *LinkGroup) hold() {
	g.todo.paused = true
	g.e.after(&g.todo.pause, pauseFor)
}

func (g *LinkGroup) unhold() {
	g.unpause()
	g.next()
}

// unpause: the links have changed, which may be what the peer was busy with.
func (g *LinkGroup) unpause() {
	g.e.timers.stop(&g.todo.pause)
	g.todo.paused = false
}

// timeout: §C.7.1, row by row. A send that fails takes the same way, since it fails the link.
func (g *LinkGroup) timeout() {
	if g.state == groupEnding {
		g.down(fsm.LinkDelete)
		return
	}
	x := g.x
	g.e.log.Info().Uint32("lgr", uint32(g.id)).Stringer("state", x.state).Msg("no answer")
	g.over(fsm.ExchangeTimeout)
	switch x.state {
	case fsm.AwaitAddLink, fsm.AddLinkSent, fsm.ContSent, fsm.AwaitCont:
		g.addLinkFailed(x)
	case fsm.NewLinkSent, fsm.AwaitNewLink:
		g.drop(x.link, llc.ReasonLostPath, false)
	case fsm.DeleteLinkSent:
		// The link over which it was sent cannot be used either; the others remain to be told.
		g.todo.drops = append([]*Link{x.link}, g.todo.drops...)
		x.via.fail()
	case fsm.ConfirmRKeySent:
		g.todo.confirm = append([]*RMB{x.rmb}, g.todo.confirm...)
		if g.alone(x.via) {
			for _, c := range slices.Clone(x.rmb.waiters) {
				c.fail(clc.DeclineRMBRegister)
			}
		}
		x.via.fail()
	case fsm.DeleteRKeySent:
		if g.dialect == smc.Linux {
			// Nobody of either side uses them: Linux goes on.
			g.retired(x.rmbs)
		} else {
			g.todo.retire = append(x.rmbs, g.todo.retire...)
			x.via.fail()
		}
	}
	g.next()
}

// addLinkFailed: the peer does not answer in an ADD LINK exchange that has not come to CONFIRM LINK.
func (g *LinkGroup) addLinkFailed(x exchange) {
	if x.link != nil {
		g.remove(x.link)
	}
	if g.dialect == smc.Linux {
		// Linux never lets the carrying link pay for it.
		return
	}
	if c := g.first; c != nil {
		c.broken(ErrTimeout)
		return
	}
	if g.key.role == RoleServer {
		g.todo.addLink = true
	}
	if x.via != nil {
		x.via.fail()
	}
}

// carrierFailed: the exchange cannot go on. It is not repeated over another link, but begun anew (§2.3).
func (g *LinkGroup) carrierFailed() {
	x := g.x
	if err := g.step(fsm.CarrierFailed); err != nil {
		g.check(err)
		return
	}
	if g.x.state != fsm.Quiet || x.state == fsm.Quiet {
		return
	}
	g.reset()
	switch x.state {
	case fsm.AddLinkSent, fsm.ContSent, fsm.AwaitCont:
		if x.link != nil { // a refusal that could not be sent is of no link
			g.remove(x.link)
		}
		g.todo.addLink = g.key.role == RoleServer
	case fsm.DeleteLinkSent:
		g.todo.drops = append([]*Link{x.link}, g.todo.drops...)
	case fsm.ConfirmRKeySent:
		g.todo.confirm = append([]*RMB{x.rmb}, g.todo.confirm...)
	case fsm.DeleteRKeySent:
		g.todo.retire = append(x.rmbs, g.todo.retire...)
	}
}

// stopped gives up what waits: the link group is down.
func (g *LinkGroup) stopped() {
	for _, t := range []*timer{&g.x.timer, &g.todo.pause, &g.todo.retry, &g.shrinker, &g.partialTimer} {
		g.e.timers.stop(t)
	}
	g.todo.addLink, g.todo.drops, g.todo.confirm, g.todo.retire, g.partial = false, nil, nil, nil, nil
	g.x = exchange{state: fsm.Quiet, timer: g.x.timer}
}

package engine

import (
	"slices"
	"time"

	"libsmcr/abi/clc"
	"libsmcr/abi/llc"
	"libsmcr/engine/fsm"
)

// RMBs that come and go: RFC 7609 §3.5.5.2.1 and §3.5.5.2.2. An RMB is announced on all links at once, or a connection
// that uses it could not change links.

// ---- own RMBs

// announce begins the CONFIRM RKEY exchange for an RMB, after those that are under way.
func (g *LinkGroup) announce(r *RMB) {
	g.todo.confirm = append(g.todo.confirm, r)
	g.next()
}

func (g *LinkGroup) beginConfirmRKey(via *Link) {
	r := g.todo.confirm[0]
	g.todo.confirm = g.todo.confirm[1:]
	g.x.via, g.x.rmb = via, r
	g.check(g.step(fsm.BeginConfirmRKey))
	if err := via.export(r); err != nil {
		via.fail()
		return
	}
	var others []llc.LinkRToken
	for _, l := range g.links {
		if l != via && l.state == fsm.LinkActive {
			others = append(others, llc.LinkRToken{Link: l.num, Token: r.token(l)})
		}
	}
	m := llc.ConfirmRKey{Token: r.token(via), NumOthers: uint8(len(others))}
	g.x.more = others[copy(m.Others[:], others):]
	via.send(&m, nil)
}

func (g *LinkGroup) onConfirmRKeyReply(l *Link, m *llc.ConfirmRKey) {
	if l.stale[m.Token] {
		delete(l.stale, m.Token)
		return
	}
	x := &g.x
	if x.rmb == nil || x.via != l || m.Token != x.rmb.token(l) {
		l.protocol(errUnexpected)
		return
	}
	g.confirmed(l, !m.Negative, m.Retry)
}

// confirmed goes on when a part of a CONFIRM RKEY has been answered.
func (g *LinkGroup) confirmed(l *Link, ok, retry bool) {
	x := &g.x
	if ok && len(x.more) > 0 {
		if err := g.step(fsm.RecvConfirmRKeyMore); err != nil {
			l.protocol(err)
			return
		}
		m := llc.ConfirmRKeyCont{Remaining: uint8(len(x.more))}
		x.more = x.more[copy(m.Others[:], x.more):]
		l.send(&m, nil)
		return
	}
	r := x.rmb
	if err := g.step(fsm.RecvConfirmRKeyReply); err != nil {
		l.protocol(err)
		return
	}
	g.reset()
	if !ok && retry {
		// §A.3.5: as soon as the change of the links that the peer is at has come to its end.
		g.todo.confirm = append([]*RMB{r}, g.todo.confirm...)
		g.hold()
	} else {
		g.announced(r, ok)
	}
	g.next()
}

// announced: the peer has said what it thinks of an RMB.
func (g *LinkGroup) announced(r *RMB, ok bool) {
	waiters := r.waiters
	r.waiters, r.confirmed = nil, ok
	for _, c := range waiters {
		if ok {
			c.rmbReady()
		} else {
			c.fail(clc.DeclineRMBRegister)
		}
	}
	// Nobody uses what the peer does not want.
	if !ok && g.state == groupActive && r.inUse == 0 {
		g.close(r)
	}
}

func (g *LinkGroup) close(r *RMB) {
	if i := slices.Index(g.rmbs, r); i >= 0 {
		g.rmbs = slices.Delete(g.rmbs, i, i+1)
		r.close()
	}
}

// shrinkAfter is how long an RMB is kept that nobody uses (§3.5.5.2.2).
const shrinkAfter = Instant(time.Minute)

// idleRMB: the last connection has left an RMB. The peer of a mapped one has mapped it, and it costs no memory: it stays.
func (g *LinkGroup) idleRMB(r *RMB) {
	r.idleSince = g.e.now
	if !g.port.mapped() && g.state == groupActive && g.shrinker.pos == 0 {
		g.e.after(&g.shrinker, time.Duration(shrinkAfter))
	}
}

// shrink deletes RMBs that have been idle for long. One is always kept.
func (g *LinkGroup) shrink() {
	var idle []*RMB
	var next Instant
	for _, r := range g.rmbs {
		switch {
		case r.inUse > 0 || !r.confirmed || r.retiring:
		case g.e.now-r.idleSince < shrinkAfter:
			if at := r.idleSince + shrinkAfter; next == 0 || at < next {
				next = at
			}
		default:
			idle = append(idle, r)
		}
	}
	if len(idle) == len(g.rmbs) {
		idle = idle[1:]
	}
	for _, r := range idle {
		r.retiring = true
		g.todo.retire = append(g.todo.retire, r)
	}
	if next != 0 {
		g.e.timers.start(&g.shrinker, next)
	}
	g.next()
}

func (g *LinkGroup) beginDeleteRKey(via *Link) {
	n := min(len(g.todo.retire), llc.MaxDeleted)
	g.x.via, g.x.rmbs = via, g.todo.retire[:n:n]
	g.todo.retire = g.todo.retire[n:]
	g.check(g.step(fsm.BeginDeleteRKey))
	m := llc.DeleteRKey{Count: uint8(n)}
	for i, r := range g.x.rmbs {
		m.RKeys[i] = r.token(via).RKey
	}
	via.send(&m, nil)
}

// onDeleteRKeyReply: what the peer did not know it cannot use either (§A.3.7: no more than a line in the log).
func (g *LinkGroup) onDeleteRKeyReply(l *Link, m *llc.DeleteRKey) {
	if l.staleDeletes > 0 {
		l.staleDeletes--
		return
	}
	rmbs := g.x.rmbs
	if g.x.via != l {
		l.protocol(errUnexpected)
		return
	}
	if err := g.step(fsm.RecvDeleteRKeyReply); err != nil {
		l.protocol(err)
		return
	}
	if m.Negative {
		g.e.log.Warn().Uint32("lgr", uint32(g.id)).Uint8("mask", m.Errors).Msg("the peer did not know RMBs")
	}
	g.reset()
	g.retired(rmbs)
	g.next()
}

func (g *LinkGroup) retired(rmbs []*RMB) {
	for _, r := range rmbs {
		g.close(r)
	}
}

// ---- RMBs of the peer

// partial is a CONFIRM RKEY of the peer whose continuations have not all come.
type partial struct {
	l    *Link
	r    *remoteRMB
	owed uint8
}

func (l *Link) onConfirmRKey(m *llc.ConfirmRKey) {
	g := l.g
	if m.Reply {
		g.onConfirmRKeyReply(l, m)
		return
	}
	reply := *m
	reply.Reply, reply.Retry = true, false
	if g.x.state.ChangesLinks() && !l.knows(m) {
		// §3.5.5.3.1, §3.5.5.3.2: the RTokens would not be those of the links that there will be.
		reply.Negative, reply.Retry = true, true
		l.send(&reply, nil)
		return
	}
	// Announcing one again is harmless; Linux does so for each connection.
	r, err := g.reach(l, m.Token)
	if err != nil {
		g.e.log.Warn().Uint32("lgr", uint32(g.id)).Err(err).Msg("RMB of the peer")
		reply.Negative = true
		l.send(&reply, nil)
		return
	}
	if !l.nameOthers(r, m.Others[:m.Count()]) {
		return
	}
	l.send(&reply, nil)
	if m.More() {
		g.partial = &partial{l, r, m.NumOthers - uint8(m.Count())}
		g.e.after(&g.partialTimer, g.e.cfg.Timeouts.LLC)
		return
	}
	g.complete(r)
}

// knows reports whether a CONFIRM RKEY tells nothing new.
func (l *Link) knows(m *llc.ConfirmRKey) bool {
	r := l.remote(m.Token)
	if r == nil || r.gone || m.More() {
		return false
	}
	for _, o := range m.Others[:m.Count()] {
		if x := l.g.link(o.Link); x == nil || r.tokens[x] != o.Token {
			return false
		}
	}
	return true
}

func (l *Link) onConfirmRKeyCont(m *llc.ConfirmRKeyCont) {
	g := l.g
	if m.Reply {
		if g.x.rmb == nil || g.x.via != l {
			l.protocol(errUnexpected)
			return
		}
		g.confirmed(l, !m.Negative, false)
		return
	}
	p := g.partial
	if p == nil || p.l != l || p.owed != m.Remaining {
		l.protocol(errUnexpected)
		return
	}
	if !l.nameOthers(p.r, m.Others[:m.Count()]) {
		return
	}
	reply := *m
	reply.Reply = true
	l.send(&reply, nil)
	if p.owed -= uint8(m.Count()); p.owed > 0 {
		g.e.after(&g.partialTimer, g.e.cfg.Timeouts.LLC)
		return
	}
	g.partial = nil
	g.e.timers.stop(&g.partialTimer)
	g.complete(p.r)
	g.next()
}

// partialTimeout: continuations that do not come leave the RTokens of the link group out of step.
func (g *LinkGroup) partialTimeout() {
	l := g.partial.l
	g.partial = nil
	l.protocol(ErrTimeout)
	g.next()
}

// nameOthers notes RTokens on other links. A link that is being deleted, or was, does not matter any more.
func (l *Link) nameOthers(r *remoteRMB, others []llc.LinkRToken) bool {
	for _, o := range others {
		if x := l.g.link(o.Link); x != nil && x.state == fsm.LinkActive {
			if err := r.name(x, o.Token); err != nil {
				l.protocol(err)
				return false
			}
		}
	}
	return true
}

// complete: §C.7.1: a link for which no RKey was given counts as failed.
func (g *LinkGroup) complete(r *remoteRMB) {
	for _, l := range slices.Clone(g.links) {
		if _, ok := r.tokens[l]; !ok && l.state == fsm.LinkActive {
			l.protocol(ErrMismatch)
		}
	}
}

func (l *Link) onDeleteRKey(m *llc.DeleteRKey) {
	if m.Reply {
		l.g.onDeleteRKeyReply(l, m)
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

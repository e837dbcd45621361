package engine

import (
	"libsmcr/abi/cdc"
	"libsmcr/engine/fsm"
)

// A connection moves to another link: RFC 7609 §4.6.

// move takes a connection to another link. If the one that it is on has failed, that is at once; what was in flight is
// repeated. If it works, all that is in flight comes first: two queue pairs keep no order between them.
func (c *Conn) move(to *Link, failed bool) {
	if !c.opened() {
		c.link = to
		return
	}
	if c.next = to; failed {
		c.inflight, c.waits = 0, false
	}
	if c.inflight == 0 {
		c.switchLink()
		c.advance()
	}
}

// switchLink: nothing is in flight. A fresh message follows in any case: with the old link a consumer update may have
// been lost, and nobody else would repeat it.
func (c *Conn) switchLink() {
	c.link, c.next, c.moved, c.waits = c.next, nil, true, false
	c.stream.rewind()
	c.stir()
}

// failover moves the connections of a link that has failed to those that work. Some may be on their way already.
func (g *LinkGroup) failover(from *Link) {
	for _, c := range sorted(g.conns) {
		switch {
		case c.link == from:
			to := c.next
			if to == nil {
				to = g.lightest(c)
			}
			if to != nil {
				c.move(to, true)
			} else {
				c.lost()
			}
		case c.next == from:
			c.next = nil
			c.advance()
		}
	}
}

// rebalance spreads the connections over the links that work, one of which is new.
func (g *LinkGroup) rebalance() {
	load := g.load()
	for _, c := range sorted(g.conns) {
		if to := g.lightest(c); to != nil && c.opened() && c.next == nil && load[c.link] > load[to]+1 {
			load[c.link]--
			load[to]++
			c.move(to, false)
		}
	}
}

// load counts the connections of each link.
func (g *LinkGroup) load() map[*Link]int {
	n := map[*Link]int{}
	for _, c := range g.conns {
		if c.next != nil {
			n[c.next]++
		} else {
			n[c.link]++
		}
	}
	return n
}

// lightest returns the link with the fewest connections over which this one's peer can be reached; nil if there is none.
func (g *LinkGroup) lightest(c *Conn) (best *Link) {
	var load map[*Link]int
	if len(g.links) > 1 {
		load = g.load() // as long as there are connections
	}
	for _, l := range g.links {
		if l.state != fsm.LinkActive {
			continue
		}
		if c.remote != nil {
			if _, ok := c.remote.tokens[l]; !ok {
				continue
			}
		}
		if best == nil || load[l] < load[best] {
			best = l
		}
	}
	return best
}

// validate takes a validation message. A gap is not proved before every message was seen that had arrived earlier: the
// old link's may wait in the completion queue of another device. Until then the new link's are held.
func (c *Conn) validate(m cdc.Message) {
	if c.stream.missing(m) {
		c.doubted = m.Seq
		c.e.after(&c.doubt, 0)
	}
}

// hold keeps a message that is newer than what is in doubt.
func (c *Conn) hold(m cdc.Message) bool {
	if c.doubt.pos == 0 || !c.doubted.Before(m.Seq) {
		return false
	}
	if len(c.held) == sendWRs {
		c.abort(ErrDataLost) // nobody sends so much at once
	} else {
		c.held = append(c.held, m)
	}
	return true
}

// decide follows a validation message that told of more than had been received.
func (c *Conn) decide() {
	c.e.poll()
	c.e.reap()
	held := c.held
	c.held = nil
	if c.stream == nil {
		return
	}
	if c.stream.recvSeq.Before(c.doubted) {
		c.abort(ErrDataLost)
	}
	for _, m := range held {
		if c.stream != nil {
			c.take(m)
		}
	}
}

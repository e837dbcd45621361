package engine

import (
	"time"

	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
	"libsmcr/verbs/simfab"
)

// What must be true at the end of every simulation.

// longest is the longest that anything may take which has a timer of its own.
const longest = 15 * time.Minute

// recovers is how long it takes to be as good as before once all paths are there again (RFC 7609 §C.8), and elements to
// be free that nobody gives back.
const recovers = 5 * time.Minute

// finish lets all connections come to their end, closes what is left and ends the engines.
func (s *sim) finish() {
	s.release()
	if !s.run(longest, s.allOver) {
		for _, x := range s.ends {
			if !x.over() {
				s.failf("%s%d hangs: %s in %s/%s, sent %d of %d, got %d, shut %t, saw the end %t",
					x.h.name, x.id, x.outcome(), x.c.State(), x.c.conn, x.sent, x.size, x.got, x.shut, x.sawEnd)
			}
		}
	}
	for i := 0; i < len(s.ends); i += 2 {
		s.agreed(s.ends[i], s.ends[i+1])
	}
	for _, x := range s.ends {
		x.close()
	}
	s.judge, s.strike, s.timers = nil, nil, nil
	s.fab.RepairAll()
	s.run(recovers, nil)
	for _, h := range s.hosts {
		s.legal(h)
		if !h.dead {
			h.e.Shutdown(s.now())
		}
	}
	s.run(2*abandonedFor, nil)
	for _, h := range s.hosts {
		if h.dead {
			continue // the kernel frees what it held
		}
		if at, ok := h.e.NextDeadline(); ok || h.reserved != 0 || len(h.e.conns)+len(h.e.groups)+len(h.e.byPeer)+len(h.e.outbox) != 0 {
			s.failf("%s: left over: %d connections, %d groups, %d bytes, a timer at %v", h.name, len(h.e.conns), len(h.e.groups), h.reserved, time.Duration(at))
		}
		if err := h.e.Close(); err != nil {
			s.failf("%s: %v", h.name, err)
		}
		for i, d := range h.devs {
			if d.Open() != (simfab.Open{}) {
				s.failf("%s%d: left over: %+v", h.name, i, d.Open())
			}
		}
	}
}

// agreed: never is one side on SMC-R and the other on TCP, and the handler is called as often as it should be.
func (s *sim) agreed(client, server *simEnd) {
	a, b := client.outcome(), server.outcome()
	if a == "smc" && b == "fallback" || a == "fallback" && b == "smc" {
		s.failf("%s%d is on %s, %s%d on %s", client.h.name, client.id, a, server.h.name, server.id, b)
	}
	for _, x := range []*simEnd{client, server} {
		limit := 1
		if x.rings != nil && x.err != nil {
			limit = 2
		}
		if !x.h.dead && x.calls > limit {
			s.failf("%s%d: %d calls of the handler", x.h.name, x.id, x.calls)
		}
	}
}

// legal: what may be there when nothing is under way.
func (s *sim) legal(h *simHost) {
	if h.dead {
		return
	}
	for _, g := range h.e.sortedGroups() {
		for _, l := range g.links {
			if g.state == groupActive && l.state != fsm.LinkActive {
				s.failf("%s: link %d of group %d is %s", h.name, l.num, g.id, l.state)
			}
		}
		// §C.8: a second link is tried for again and again.
		if peer := s.hosts[g.key.id[1]]; g.state == groupActive && !peer.dead && len(g.links) < min(2, max(h.in(g.port.attr.VLAN), peer.in(g.port.attr.VLAN))) && !s.mapped {
			s.failf("%s: group %d has %d links", h.name, g.id, len(g.links))
		}
		if peer := s.hosts[g.key.id[1]]; g.state == groupActive && g.dialect != s.dialect(h, peer) {
			s.failf("%s: group %d speaks %s", h.name, g.id, g.dialect)
		}
		if g.state == groupActive && g.x.state != fsm.Quiet {
			s.failf("%s: group %d is in %s for ever", h.name, g.id, g.x.state)
		}
		if g.state == groupActive && !s.mapped {
			s.mirrored(h, g)
		}
		if g.state == groupForming {
			s.failf("%s: group %d is %s for ever", h.name, g.id, g.state)
		}
		if len(g.conns) > 0 && g.state == groupActive {
			for _, c := range sorted(g.conns) {
				if s.mapped && c.closing && c.state == fsm.Established {
					continue // a peer that broke off without having known the element cannot give it back: docs/rfc-map.md, §4.8.1
				}
				s.failf("%s: connection %d is still in %s/%s", h.name, c.id, c.state, c.conn)
			}
		}
	}
}

// in counts the RNICs of a VLAN.
func (h *simHost) in(v roce.VLAN) (n int) {
	for _, d := range h.devs {
		if d.Attr().VLAN == v {
			n++
		}
	}
	return n
}

// mirrored: both sides of a link group know the same links and the same RMBs.
func (s *sim) mirrored(h *simHost, g *LinkGroup) {
	peer := s.hosts[g.key.id[1]]
	if peer.dead {
		return
	}
	for _, l := range g.links {
		_, d := s.device(l.peer.GID)
		var x *Link
		for _, p := range peer.e.ports {
			if p.dev == verbs.Device(d) {
				x = p.links[l.peer.QPN]
			}
		}
		if x == nil || x.num != l.num || x.peer.QPN != l.qp.QPN() || x.peer.GID != l.attr.GID || x.state != l.state {
			s.failf("%s: the peer knows nothing of link %d of group %d", h.name, l.num, g.id)
			continue
		}
		known := 0
		for _, r := range g.rmbs {
			t := r.token(l)
			if m := x.remotes[t.RKey]; m != nil && m.tokens[x] == t {
				known++
			} else if r.confirmed && !r.retiring {
				s.failf("%s: the peer does not know RMB %d of group %d on link %d", h.name, r.id, g.id, l.num)
			}
		}
		// Linux goes on when there is no answer to DELETE RKEY.
		if known != len(x.remotes) && g.dialect == smc.RFC {
			s.failf("%s: the peer knows %d RMBs of group %d on link %d, %d are there", h.name, len(x.remotes), g.id, l.num, known)
		}
	}
}

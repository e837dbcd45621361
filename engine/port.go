package engine

import (
	"slices"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

// port is one device of the engine, an RNIC: links over it share its completion queue.
type port struct {
	dev   verbs.Device
	attr  verbs.Attr
	cq    verbs.CQ
	links map[roce.QPN]*Link // queue pair numbers are the device's own
}

func newPort(d verbs.Device) (*port, error) {
	cq, err := d.CreateCQ()
	if err != nil {
		return nil, err
	}
	return &port{dev: d, attr: d.Attr(), cq: cq, links: map[roce.QPN]*Link{}}, nil
}

// mapped: a store into the peer's memory is the RDMA write.
func (p *port) mapped() bool { return p.attr.Caps.Has(verbs.CapMapped) }

// kin: links over both fit into one link group. RMBs of one can be registered with the other, and they are in the same LAN (RFC 7609 §2).
func (p *port) kin(q *port) bool {
	return p.attr.Provider == q.attr.Provider && p.mapped() == q.mapped() && p.attr.VLAN == q.attr.VLAN
}

// in: connections of that VLAN may use the port (§5.1).
func (p *port) in(v roce.VLAN) bool { return p.attr.Caps.Has(verbs.CapLocal) || p.attr.VLAN == v }

// poll lets the devices work and reports whether more is waiting.
func (e *Engine) poll() (more bool) {
	for _, p := range e.ports {
		more = p.dev.Poll() || more
	}
	return more
}

// reap takes all completions.
func (e *Engine) reap() {
	for again := true; again; {
		again = false
		for _, p := range e.ports {
			n := p.cq.Poll(e.done[:])
			for _, c := range e.done[:n] {
				// Completions of a queue pair that is closed by now have nobody to go to.
				if l := p.links[c.QPN]; l != nil {
					l.complete(c)
				} else if c.Op == verbs.OpPort {
					e.changed(p)
				}
			}
			again = again || n > 0
		}
	}
}

// up: the port works.
func (p *port) up() bool { return p.dev.Reachable(p.attr.GID) }

// preferred returns the first device of a VLAN that works; if none does, the Accept will show whether it does again. nil: there is none.
func (e *Engine) preferred(v roce.VLAN) (first *port) {
	for _, p := range e.ports {
		switch {
		case !p.in(v):
		case p.up():
			return p
		case first == nil:
			first = p
		}
	}
	return first
}

// absent is why there is no device.
func absent(v roce.VLAN) clc.DeclineCode {
	if v == roce.UnknownVLAN {
		return clc.DeclineVLAN
	}
	return clc.DeclineNoDevice
}

// changed: the port went up or down.
func (e *Engine) changed(p *port) {
	up := p.up()
	for _, g := range e.sortedGroups() {
		if up {
			g.portUp(p)
			continue
		}
		for _, l := range slices.Clone(g.links) {
			if l.port == p {
				l.fail()
			}
		}
	}
}

// portTo returns the preferred device of a VLAN that reaches a GID, nil if none does.
func (e *Engine) portTo(gid roce.GID, v roce.VLAN) *port {
	for _, p := range e.ports {
		if p.in(v) && p.dev.Reachable(gid) {
			return p
		}
	}
	return nil
}

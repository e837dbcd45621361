package engine

import (
	"maps"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// Counters only grow.
type Counters struct {
	Handshakes   [2]uint64 // begun, by Role
	Established  uint64
	Broken       uint64
	Groups       uint64                     // link groups begun
	Declined     map[clc.DeclineCode]uint64 // Declines sent
	PeerDeclined map[clc.DeclineCode]uint64 // Declines received
}

// Snapshot is the state of an engine for people.
type Snapshot struct {
	PeerID   smc.PeerID
	Provider string
	GID      roce.GID
	Conns    int // negotiations, established connections, and elements that are not free yet
	Groups   []GroupInfo
	Counters Counters
}

// GroupInfo describes a link group.
type GroupInfo struct {
	ID       GroupID
	Role     Role
	State    string
	Type     string // as smcr says it
	PeerID   smc.PeerID
	PeerGID  roce.GID
	VLAN     roce.VLAN
	Conns    int // connections that hold an element
	RMBs     []RMBInfo
	PeerRMBs int
	MaxLinks uint8
	Links    []LinkInfo
}

// RMBInfo describes a local RMB.
type RMBInfo struct {
	ID       RMBID
	Elements int
	InUse    int
	Size     int // of an element
	RKey     roce.RKey
}

// LinkInfo describes a link.
type LinkInfo struct {
	Num             smc.LinkNum
	State           string
	UserID, PeerUID smc.LinkUserID
	QPN, PeerQPN    roce.QPN
	GID, PeerGID    roce.GID
}

// kind is the redundancy of a link group in the words of smcr.
func (g *LinkGroup) kind() string {
	symmetric, asymmetric := g.paths()
	switch {
	case len(symmetric) >= 2:
		return "SYM"
	case len(asymmetric) == 0:
		return "SINGLE"
	case asymmetric[0].port == symmetric[0].port:
		return "ASYM_LOCAL"
	}
	return "ASYM_PEER"
}

// Snapshot copies what there is to see.
func (e *Engine) Snapshot() Snapshot {
	a := e.ports[0].attr
	s := Snapshot{PeerID: e.cfg.PeerID, Provider: a.Provider, GID: a.GID, Conns: len(e.conns), Counters: e.count}
	s.Counters.Declined, s.Counters.PeerDeclined = maps.Clone(e.count.Declined), maps.Clone(e.count.PeerDeclined)
	for _, g := range e.sortedGroups() {
		i := GroupInfo{
			ID: g.id, Role: g.key.role, State: g.state.String(), Type: g.kind(), PeerID: g.key.id, PeerGID: g.gid, VLAN: g.port.attr.VLAN,
			Conns: len(g.conns), PeerRMBs: len(g.remotes), MaxLinks: g.max,
		}
		for _, l := range g.links {
			i.Links = append(i.Links, LinkInfo{
				Num: l.num, State: l.state.String(), UserID: l.uid, PeerUID: l.peerUID,
				QPN: l.qp.QPN(), PeerQPN: l.peer.QPN, GID: l.attr.GID, PeerGID: l.peer.GID,
			})
		}
		for _, r := range g.rmbs {
			x := RMBInfo{ID: r.id, Elements: len(r.used), InUse: r.inUse, Size: r.size}
			for _, mr := range r.mrs {
				x.RKey = mr.RKey()
			}
			i.RMBs = append(i.RMBs, x)
		}
		s.Groups = append(s.Groups, i)
	}
	return s
}

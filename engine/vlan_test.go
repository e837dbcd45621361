package engine

import (
	"testing"
	"time"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// meet makes a connection by a VLAN, as each side sees it, and waits until it is decided.
func (s *sim) meet(client, server roce.VLAN) (a, b *simEnd) {
	s.hosts[0].net.VLAN, s.hosts[1].net.VLAN = client, server
	a, b = s.dial(s.hosts[0], s.hosts[1], [2]int{})
	a.stay, b.stay = true, true
	if !s.run(time.Minute, func() bool { return a.outcome() != "open" && b.outcome() != "open" }) {
		s.failf("VLAN %s and %s: client %s, server %s", client, server, a.outcome(), b.outcome())
	}
	return a, b
}

// RFC 7609 §2, §5.1: a link group is in one VLAN.
func TestEachVLANHasItsLinkGroup(t *testing.T) {
	both := []roce.VLAN{10, 20}
	mustSimulate(t, "two VLANs", simOptions{rnics: [2]int{2, 2}, vlans: [2][]roce.VLAN{both, both}}, func(s *sim) {
		for _, v := range []roce.VLAN{10, 20, 10, 20} {
			if a, b := s.meet(v, v); a.outcome() != "smc" || b.outcome() != "smc" {
				s.failf("VLAN %s: client %s, server %s", v, a.outcome(), b.outcome())
			}
		}
		s.run(recovers, nil)
		for i, h := range s.hosts {
			groups, peer := h.e.Snapshot().Groups, s.hosts[1-i]
			if len(groups) != 2 {
				s.failf("%s: %d link groups", h.name, len(groups))
				continue
			}
			for j, g := range groups {
				if g.VLAN != both[j] || g.Conns != 2 || g.Type != "SINGLE" || g.Links[0].GID != h.devs[j].Attr().GID || g.Links[0].PeerGID != peer.devs[j].Attr().GID {
					s.failf("%s: VLAN %s: %+v", h.name, both[j], g)
				}
			}
		}
	})
}

// RNICs that are in another VLAN make no further link, neither at once nor when their port comes up.
func TestFurtherLinksStayInTheVLAN(t *testing.T) {
	for _, c := range []struct {
		name         string
		vlans        [2][]roce.VLAN
		client, serv string
	}{
		{"none of the client's", [2][]roce.VLAN{{10, 20}, {10, 10}}, "ASYM_LOCAL", "ASYM_PEER"},
		{"none of the server's", [2][]roce.VLAN{{10, 10}, {10, 20}}, "ASYM_PEER", "ASYM_LOCAL"},
		{"untagged", [2][]roce.VLAN{{10, 0}, {10, 0}}, "SINGLE", "SINGLE"},
		{"another one each", [2][]roce.VLAN{{10, 20}, {10, 30}}, "SINGLE", "SINGLE"},
		{"in order", [2][]roce.VLAN{{10, 10}, {10, 10}}, "SYM", "SYM"},
	} {
		mustSimulate(t, c.name, simOptions{rnics: [2]int{2, 2}, vlans: c.vlans}, func(s *sim) {
			s.meet(10, 10)
			s.run(recovers, nil)
			for _, h := range s.hosts {
				h.devs[1].SetDown(true)
				s.run(recovers, nil)
				h.devs[1].SetDown(false)
				s.run(recovers, nil)
			}
			s.wantKind(c.client, c.serv)
			for i, h := range s.hosts {
				if n := len(h.devs[1].QPNs()); c.vlans[i][1] != 10 && n != 0 {
					s.failf("%s: %d queue pairs in VLAN %s", h.name, n, c.vlans[i][1])
				}
			}
		})
	}
}

// What does not fit ends in plain TCP, for a reason that both know.
func TestWrongVLANIsDeclined(t *testing.T) {
	const unknown = roce.UnknownVLAN
	for _, c := range []struct {
		name           string
		client, server roce.VLAN // of the connection
		vlans          [2]roce.VLAN
		mapped         bool
		by             int // who declines
		code           clc.DeclineCode
	}{
		{"the client has no device there", 20, 10, [2]roce.VLAN{10, 10}, false, 0, clc.DeclineNoDevice},
		{"the server has no device there", 10, 20, [2]roce.VLAN{10, 10}, false, 1, clc.DeclineNoDevice},
		{"all devices are tagged", 0, 0, [2]roce.VLAN{10, 10}, false, 0, clc.DeclineNoDevice},
		{"no device is tagged", 10, 10, [2]roce.VLAN{}, false, 0, clc.DeclineNoDevice},
		{"the client does not know", unknown, 10, [2]roce.VLAN{10, 10}, false, 0, clc.DeclineVLAN},
		{"the server does not know", 10, unknown, [2]roce.VLAN{10, 10}, false, 1, clc.DeclineVLAN},
		{"each is sure of its own", 10, 20, [2]roce.VLAN{10, 20}, false, 1, clc.DeclineConfirmLink},
		{"shared memory knows no VLANs", unknown, 20, [2]roce.VLAN{}, true, 0, 0},
	} {
		mustSimulate(t, c.name, simOptions{vlans: [2][]roce.VLAN{{c.vlans[0]}, {c.vlans[1]}}, mapped: c.mapped}, func(s *sim) {
			a, b := s.meet(c.client, c.server)
			want := "fallback"
			if c.code == 0 {
				want = "smc"
			}
			if got := s.hosts[c.by].e.count.Declined; a.outcome() != want || b.outcome() != want || c.code != 0 && got[c.code] != 1 {
				s.failf("client %s, server %s, declined %v", a.outcome(), b.outcome(), got)
			}
		})
	}
}

// hearsay is a Handler that keeps why it was declined.
type hearsay struct{ fell clc.DeclineCode }

func (h *hearsay) SendCLC([]byte) error                  { return nil }
func (h *hearsay) Established(Rings)                     {}
func (h *hearsay) Fallback(code clc.DeclineCode, _ bool) { h.fell = code }
func (h *hearsay) Broken(error)                          {}

// RFC 7609 §3.5.1.3: the VLAN that the connection is set up over is part of what the client looks for.
func TestAcceptNamesALinkInAnotherVLAN(t *testing.T) {
	both := []roce.VLAN{10, 20}
	mustSimulate(t, "subsequent contact", simOptions{rnics: [2]int{2, 2}, vlans: [2][]roce.VLAN{both, both}}, func(s *sim) {
		s.meet(10, 10)
		server := s.hosts[1]
		l := server.group().links[0]
		r := server.group().rmbs[0].token(l)
		accept := clc.Accept{Version: smc.V1, Endpoint: clc.Endpoint{
			PeerID: server.e.cfg.PeerID, GID: l.attr.GID, MAC: l.attr.MAC, QPN: l.qp.QPN(), RKey: r.RKey, VAddr: r.VAddr,
			Index: 2, Token: 7, Size: smc.BufSizeFor(MinRMBESize), MTU: roce.MTU1024, PSN: l.psn,
		}}.Append(nil)
		for v, want := range map[roce.VLAN]clc.DeclineCode{10: 0, 20: clc.DeclineSync} {
			h := &hearsay{}
			c := s.hosts[0].e.Client(h, LAN{VLAN: v}, s.now())
			c.CLC(accept, s.now())
			if h.fell != want {
				s.failf("VLAN %s: declined: %s", v, h.fell)
			}
			c.Close(s.now())
		}
		if g := s.hosts[0].e.Snapshot().Groups; len(g) != 1 || g[0].State != "ACTIVE" {
			s.failf("%+v", g)
		}
		s.kill(server) // it knows nothing of the one that was accepted for it
	})
}

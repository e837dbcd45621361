package clc

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// Offsets of Proposal.
const (
	offArea      = 38 // 16 bits: bytes to skip behind this field
	offPrefix    = 40 // growth area, then the prefix area
	prefixFixed  = 8  // subnet, its length, 2 reserved, number of IPv6 prefixes
	prefixSize   = 17 // of one IPv6 prefix
	prefixLen    = 4  // within the prefix area
	prefixCount  = 7
	ProposalSize = 52 // IPv4, version 1

	// From version 2 on the growth area is 40 bytes for SMC-D, with the offset of the v2 extension in it.
	areaSize   = 40
	offV2      = 50 // 16 bits, counted from endV2
	endV2      = 52
	v2Fixed    = 40 // of the v2 extension, rest relative to its start
	v2EIDCount = 0
	v2Release  = 3 // high nibble
	v2GID      = 8
	v2MaxConns = 24
	v2MaxLinks = 25
	v2Features = 26
	eidSize    = 32
)

// Limits of a Proposal.
const (
	MaxPrefixes = 8 // RFC 7609 §A.2.2
	MaxEIDs     = 8 // Linux
)

// Transport is what a Linux client offers for one version: two bits of byte 7. In the RFC they are reserved, hence zero,
// hence TransportR.
type Transport uint8

const (
	TransportR    Transport = 0 // SMC-R
	TransportD    Transport = 1 // SMC-D
	TransportNone Transport = 2
	TransportBoth Transport = 3
)

// R reports whether SMC-R is among what is offered.
func (t Transport) R() bool { return t == TransportR || t == TransportBoth }

func (t Transport) String() string {
	switch t {
	case TransportR:
		return "R"
	case TransportD:
		return "D"
	case TransportNone:
		return "none"
	case TransportBoth:
		return "RD"
	}
	return fmt.Sprintf("0x%x", uint8(t))
}

// Subnet is the IPv4 part of the prefix area. What Addr means depends on the dialect: the RFC's text says subnet mask,
// Linux sends and compares the network number. Both are zero on an IPv6 connection.
type Subnet struct {
	Addr [4]byte
	Bits uint8
}

// SubnetOf returns what a client on this IPv4 network sends.
func SubnetOf(d smc.Dialect, p netip.Prefix) Subnet {
	s := Subnet{Bits: uint8(p.Bits())}
	if d == smc.Linux {
		s.Addr = p.Masked().Addr().As4()
	} else {
		binary.BigEndian.PutUint32(s.Addr[:], ^uint32(0)<<(32-p.Bits()))
	}
	return s
}

// Matches reports whether a server on this IPv4 network is in the subnet that the client told. With the RFC's dialect only
// the masks can be compared.
func (s Subnet) Matches(d smc.Dialect, p netip.Prefix) bool {
	return p.Addr().Is4() && s == SubnetOf(d, p)
}

// Covers reports whether a server with this local address and prefix is in one of the client's networks: the same length and
// the same bits (RFC 7609 §3.5.1.2). As the dialect of a client is not known yet, a mask that fits is as good as a network.
func (m *Proposal) Covers(p netip.Prefix) bool {
	if !p.IsValid() {
		return false
	}
	if p.Addr().Is4() {
		return m.Subnet.Matches(smc.Linux, p) || m.Subnet.Matches(smc.RFC, p)
	}
	return slices.Contains(m.Prefixes, PrefixOf(p))
}

func (s Subnet) String() string { return fmt.Sprintf("%s/%d", netip.AddrFrom4(s.Addr), s.Bits) }

// Prefix is one element of the IPv6 prefix array (RFC 7609 §A.2.2, Figure 27); 17 bytes.
type Prefix struct {
	Addr [16]byte
	Bits uint8
}

// PrefixOf returns what a client on this IPv6 network sends.
func PrefixOf(p netip.Prefix) Prefix {
	return Prefix{Addr: p.Masked().Addr().As16(), Bits: uint8(p.Bits())}
}

func (p Prefix) String() string { return fmt.Sprintf("%s/%d", netip.AddrFrom16(p.Addr), p.Bits) }

// ProposalExt is the extension by which a client offers SMC-R v2.
//
//	 0    1  number of EIDs
//	 1    1  number of ISM GIDs (SMC-D)
//	 2    1  reserved
//	 3    1  4 release, 3 reserved, 1 SEID present (SMC-D)
//	 4    2  reserved
//	 6    2  offset of the SMC-D extension
//	 8   16  GID for SMC-R v2
//	24    1  max connections
//	25    1  max links
//	26    2  features
//	28   12  reserved
//	40 32·n  EIDs
//
// What belongs to SMC-D is skipped and sent as zero.
type ProposalExt struct {
	Release  uint8
	GID      roce.GID
	MaxConns uint8
	MaxLinks uint8
	Features uint16
	EIDs     []smc.EID // at most MaxEIDs
}

// Proposal is the SMC Proposal message, RFC 7609 §A.2.2, Figure 26. Version 1 has 52+17·n bytes, n being the number of IPv6
// prefixes; version 2 of Linux has 40 more for SMC-D, and 40+32·m for m EIDs.
//
//	  0  4  E2 D4 C3 D9
//	  4  1  type 1
//	  5  2  length
//	  7  1  4 version; Linux: 2 transports of v2, 2 of v1; RFC: 4 reserved
//	  8  8  client's peer ID
//	 16 16  client's preferred GID
//	 32  6  client's preferred MAC
//	 38  2  offset of the prefix area, from 40
//	 40     growth area, skipped; version 2: 8 ISM GID, 2 CHID, 2 offset of the v2 extension from 52, 28 reserved
//	  +  4  IPv4 subnet, see Subnet
//	  +  1  its length
//	  +  2  reserved
//	  +  1  number of IPv6 prefixes
//	  +     prefixes
//	  +     version 2: ProposalExt
//	end  4  E2 D4 C3 D9
//
// With TypeV1 TransportNone there is no prefix area.
type Proposal struct {
	Version  smc.Version
	TypeV1   Transport // offered for v1
	TypeV2   Transport // offered for v2; meaningful from version 2 on
	PeerID   smc.PeerID
	GID      roce.GID // Linux uses GID and MAC of the Proposal, not those of the Confirm
	MAC      roce.MAC
	Subnet   Subnet
	Prefixes []Prefix     // at most MaxPrefixes
	Ext      *ProposalExt // nil if v2 is not offered
}

// OffersV1 reports whether SMC-R v1 is on offer.
func (m Proposal) OffersV1() bool { return m.TypeV1.R() }

// OffersV2 reports whether SMC-R v2 is on offer.
func (m Proposal) OffersV2() bool { return m.Version >= smc.V2 && m.TypeV2.R() && m.Ext != nil }

// Decode reads the message. A growth area, and whatever a later version puts behind what we know, is skipped. The transport
// bits of a version 1 Proposal are reserved in the RFC's dialect and ignored there.
func (m *Proposal) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(b, TypeProposal)
	if err != nil {
		return err
	}
	bad := func(format string, args ...any) error {
		return &ProtocolError{TypeProposal, fmt.Sprintf(format, args...)}
	}
	a := Proposal{
		Version: h.Version,
		PeerID:  smc.PeerID(p[offPeerID:]),
		GID:     roce.GID(p[offGID:]),
		MAC:     roce.MAC(p[offMAC:]),
	}
	end := len(p) - TrailerSize // of all areas
	if d == smc.Linux || a.Version >= smc.V2 {
		a.TypeV1 = Transport(h.Flags & maskTypeV1)
	}
	if a.Version >= smc.V2 {
		a.TypeV2 = Transport(h.Flags & maskTypeV2 >> shiftTypeV2)
	}
	if hasPrefixArea(a.Version, a.TypeV1) {
		at := offPrefix + int(binary.BigEndian.Uint16(p[offArea:]))
		if at+prefixFixed > end {
			return bad("prefix area at %d of %d bytes", at, len(p))
		}
		n := int(p[at+prefixCount])
		if n > MaxPrefixes || at+prefixFixed+n*prefixSize > end {
			return bad("%d IPv6 prefixes in %d bytes", n, len(p))
		}
		if a.Version == smc.V1 && at+prefixFixed+n*prefixSize != end {
			return bad("length %d with %d IPv6 prefixes", len(p), n)
		}
		a.Subnet = Subnet{Addr: [4]byte(p[at:]), Bits: p[at+prefixLen]}
		if n > 0 {
			a.Prefixes = make([]Prefix, n)
			for i := range a.Prefixes {
				q := p[at+prefixFixed+i*prefixSize:]
				a.Prefixes[i] = Prefix{Addr: [16]byte(q), Bits: q[16]}
			}
		}
	}
	// Offset 0 means that there is no extension, whatever the transports say.
	if a.Version >= smc.V2 && a.TypeV2 != TransportNone {
		if off := int(binary.BigEndian.Uint16(p[offV2:])); off != 0 {
			at := endV2 + off
			if at < offPrefix+areaSize || at+v2Fixed > end {
				return bad("v2 extension at %d of %d bytes", at, len(p))
			}
			n := int(p[at+v2EIDCount])
			if n > MaxEIDs || at+v2Fixed+n*eidSize > end {
				return bad("%d EIDs in %d bytes", n, len(p))
			}
			a.Ext = decodeProposalExt(p[at:], n)
		}
	}
	*m = a
	return nil
}

// hasPrefixArea reports whether the message has a prefix area: only a client that does not offer v1 at all leaves it out,
// and such a client speaks version 2.
func hasPrefixArea(v smc.Version, t Transport) bool { return v == smc.V1 || t != TransportNone }

func decodeProposalExt(p []byte, eids int) *ProposalExt {
	x := &ProposalExt{
		Release:  p[v2Release] >> 4,
		GID:      roce.GID(p[v2GID:]),
		MaxConns: p[v2MaxConns],
		MaxLinks: p[v2MaxLinks],
		Features: binary.BigEndian.Uint16(p[v2Features:]),
	}
	if eids > 0 {
		x.EIDs = make([]smc.EID, eids)
		for i := range x.EIDs {
			x.EIDs[i] = smc.EID(p[v2Fixed+i*eidSize:])
		}
	}
	return x
}

// Append writes the whole message: version 1 as in Figure 26 without growth area, version 2 with the areas that Linux
// expects. Ext goes out if there is one and TypeV2 is not TransportNone. Lists are cut to their limits.
func (m Proposal) Append(d smc.Dialect, b []byte) []byte {
	v := max(m.Version, smc.V1)
	prefixes := m.Prefixes[:min(len(m.Prefixes), MaxPrefixes)]
	var eids []smc.EID
	var flags uint8
	at, n := offPrefix, 0 // prefix area, its length
	if d == smc.Linux || v >= smc.V2 {
		flags = uint8(m.TypeV1) & maskTypeV1
	}
	if v >= smc.V2 {
		flags |= uint8(m.TypeV2) << shiftTypeV2 & maskTypeV2
		at += areaSize
	}
	hasPrefix := hasPrefixArea(v, m.TypeV1)
	if hasPrefix {
		n = prefixFixed + len(prefixes)*prefixSize
	}
	ext := at + n
	end := ext
	hasExt := v >= smc.V2 && m.TypeV2 != TransportNone && m.Ext != nil
	if hasExt {
		eids = m.Ext.EIDs[:min(len(m.Ext.EIDs), MaxEIDs)]
		end += v2Fixed + len(eids)*eidSize
	}
	b, p := start(b, TypeProposal, v, flags, end+TrailerSize)
	copy(p[offPeerID:], m.PeerID[:])
	copy(p[offGID:], m.GID[:])
	copy(p[offMAC:], m.MAC[:])
	if hasPrefix {
		binary.BigEndian.PutUint16(p[offArea:], uint16(at-offPrefix))
		copy(p[at:], m.Subnet.Addr[:])
		p[at+prefixLen], p[at+prefixCount] = m.Subnet.Bits, byte(len(prefixes))
		for i, x := range prefixes {
			q := p[at+prefixFixed+i*prefixSize:]
			copy(q, x.Addr[:])
			q[16] = x.Bits
		}
	}
	if hasExt {
		binary.BigEndian.PutUint16(p[offV2:], uint16(ext-endV2))
		m.Ext.put(p[ext:], eids)
	}
	return b
}

func (x ProposalExt) put(p []byte, eids []smc.EID) {
	p[v2EIDCount] = byte(len(eids))
	p[v2Release] = x.Release << 4
	copy(p[v2GID:], x.GID[:])
	p[v2MaxConns], p[v2MaxLinks] = x.MaxConns, x.MaxLinks
	binary.BigEndian.PutUint16(p[v2Features:], x.Features)
	for i, e := range eids {
		copy(p[v2Fixed+i*eidSize:], e[:])
	}
}

func (m Proposal) String() string {
	s := fmt.Sprintf("%s %s", TypeProposal, m.Version)
	if m.Version >= smc.V2 {
		s += fmt.Sprintf(" v1=%s v2=%s", m.TypeV1, m.TypeV2)
	} else if m.TypeV1 != TransportR {
		s += " v1=" + m.TypeV1.String()
	}
	s += fmt.Sprintf(" peer=%s gid=%s mac=%s", m.PeerID, m.GID, m.MAC)
	if hasPrefixArea(m.Version, m.TypeV1) {
		s += " subnet=" + m.Subnet.String()
	}
	if len(m.Prefixes) > 0 {
		s += fmt.Sprintf(" prefixes=%s", m.Prefixes)
	}
	if x := m.Ext; x != nil {
		s += fmt.Sprintf(" release=%d v2gid=%s maxconns=%d maxlinks=%d features=0x%x eids=%q",
			x.Release, x.GID, x.MaxConns, x.MaxLinks, x.Features, x.EIDs)
	}
	return s
}

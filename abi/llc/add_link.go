package llc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// Offsets of ADD LINK. RFC 7609 Figure 32 has the GID right behind the MAC; Linux leaves two pad bytes there, which moves
// everything behind them. alReason and the flags are in the header, the same in both.
const (
	alReason = 2 // low nibble; v1 only, the v2 length covers it
	alMAC    = 4
	alGID    = 10 // +alPad from here on
	alQPN    = 26
	alLink   = 29
	alMTU    = 30 // low nibble
	alPSN    = 31
	alPad    = 2

	// The extension of SMC-R v2, always in the Linux layout.
	alDirect    = 44
	alTargetGID = 46
	alCount     = 70 // 16 bits, little-endian
	alPairs     = 72

	flagReject = 0x40
	flagDirect = 0x80
)

// MaxPairs is how many RMBs an ADD LINK of SMC-R v2 or a series of ADD LINK CONTINUATIONs can name.
const MaxPairs = 255

// RejectReason says why an ADD LINK was rejected (RFC 7609 §A.3.2).
type RejectReason uint8

const (
	RejectNoAltPath RejectReason = 1 // no alternate path available; the only one Linux sends
	RejectMTU       RejectReason = 2 // invalid MTU value
)

func (r RejectReason) String() string {
	switch r {
	case 0:
		return "none"
	case RejectNoAltPath:
		return "no alternate path"
	case RejectMTU:
		return "invalid MTU"
	}
	return fmt.Sprintf("0x%x", uint8(r))
}

// AddLink is ADD LINK, RFC 7609 §A.3.2, Figure 32; 44 bytes, with SMC-R v2 longer.
//
//	RFC Linux
//	 0   0   1  type 2
//	 1   1   1  length 44 (v2: two bytes, whole message)
//	 2   2   1  4 reserved, 4 reason (v1)
//	 3   3   1  R Z, 6 reserved
//	 4   4   6  sender's MAC
//	 -  10   2  pad
//	10  12  16  sender's GID
//	26  28   3  sender's QP number
//	29  31   1  link number
//	30  32   1  4 reserved, 4 MTU
//	31  33   3  initial packet sequence number
//	34  36      reserved up to 44
//
// From a client it is an invitation to the server to add a link. Linux then leaves everything from the QP number on zero.
type AddLink struct {
	Version smc.Version
	Reply   bool
	Reject  bool         // Z flag of a reply
	Reason  RejectReason // v1 only; v2 has no room for it
	MAC     roce.MAC
	GID     roce.GID
	QPN     roce.QPN
	Link    smc.LinkNum
	MTU     roce.MTU // not checked here: a bad one is answered with RejectMTU
	PSN     roce.PSN
	Ext     *AddLinkExt // v2 only; a rejecting reply has none
}

// AddLinkExt is what SMC-R v2 sends behind the 44 bytes, in place of ADD LINK CONTINUATION.
//
//	44    1  0x80: direct, no gateway in between
//	45    1  reserved
//	46   16  GID of the client that the server wants to reach
//	62    8  reserved
//	70    2  number of pairs, in the sender's byte order
//	72 16·n  reference RKey, new RKey, new virtual address
type AddLinkExt struct {
	Direct    bool
	TargetGID roce.GID
	Pairs     []RKeyPair // at most MaxPairs
}

func (m AddLink) Head() Header {
	return Header{Type: TypeAddLink, Version: versionOf(m.Version), Reply: m.Reply}
}

// shift is how far the fields from the GID on are behind their place in Figure 32.
func shift(d smc.Dialect, v smc.Version) int {
	if d == smc.Linux || v >= smc.V2 {
		return alPad
	}
	return 0
}

func (m *AddLink) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeAddLink)
	if err != nil {
		return err
	}
	s := shift(d, h.Version)
	*m = AddLink{
		Version: h.Version,
		Reply:   h.Reply,
		Reject:  p[offFlags]&flagReject != 0,
		MAC:     roce.MAC(p[alMAC:]),
		GID:     roce.GID(p[alGID+s:]),
		QPN:     roce.QPNAt(p[alQPN+s:]),
		Link:    smc.LinkNum(p[alLink+s]),
		MTU:     roce.MTU(p[alMTU+s] & 0xF),
		PSN:     roce.PSNAt(p[alPSN+s:]),
	}
	if h.Version != smc.V2 {
		m.Reason = RejectReason(p[alReason] & 0xF)
		return nil
	}
	if len(p) == Size {
		return nil
	}
	if len(p) < alPairs {
		return &Error{TypeAddLink, fmt.Sprintf("extension ends at %d", len(p))}
	}
	n := int(binary.LittleEndian.Uint16(p[alCount:]))
	if n > MaxPairs || alPairs+n*pairSize > len(p) {
		return &Error{TypeAddLink, fmt.Sprintf("%d RKey pairs in %d bytes", n, len(p))}
	}
	m.Ext = &AddLinkExt{Direct: p[alDirect]&flagDirect != 0, TargetGID: roce.GID(p[alTargetGID:])}
	if n > 0 {
		m.Ext.Pairs = make([]RKeyPair, n)
		for i := range m.Ext.Pairs {
			m.Ext.Pairs[i] = pairAt(p[alPairs+i*pairSize:])
		}
	}
	return nil
}

// Append writes the message; more than MaxPairs pairs cannot be told and are cut off.
func (m AddLink) Append(d smc.Dialect, b []byte) []byte {
	n := Size
	var pairs []RKeyPair
	if m.Version >= smc.V2 && m.Ext != nil {
		pairs = m.Ext.Pairs[:min(len(m.Ext.Pairs), MaxPairs)]
		n = alPairs + len(pairs)*pairSize
	}
	b, p := start(b, TypeAddLink, m.Version, m.Reply, n)
	if m.Reject {
		p[offFlags] |= flagReject
	}
	s := shift(d, m.Version)
	copy(p[alMAC:], m.MAC[:])
	copy(p[alGID+s:], m.GID[:])
	m.QPN.Put(p[alQPN+s:])
	p[alLink+s] = byte(m.Link)
	p[alMTU+s] = byte(m.MTU) & 0xF
	m.PSN.Put(p[alPSN+s:])
	if m.Version < smc.V2 {
		p[alReason] = byte(m.Reason) & 0xF
		return b
	}
	if m.Ext == nil {
		return b
	}
	if m.Ext.Direct {
		p[alDirect] = flagDirect
	}
	copy(p[alTargetGID:], m.Ext.TargetGID[:])
	binary.LittleEndian.PutUint16(p[alCount:], uint16(len(pairs)))
	for i, pair := range pairs {
		pair.put(p[alPairs+i*pairSize:])
	}
	return b
}

func (m AddLink) String() string {
	s := fmt.Sprintf("%s link=%s qpn=%s gid=%s mac=%s mtu=%s psn=%s", name(TypeAddLink, m.Version, m.Reply),
		m.Link, m.QPN, m.GID, m.MAC, m.MTU, m.PSN)
	if m.Reject {
		s += fmt.Sprintf(" rejected: %s", m.Reason)
	}
	if m.Ext != nil {
		s += fmt.Sprintf(" direct=%t target=%s pairs=%d", m.Ext.Direct, m.Ext.TargetGID, len(m.Ext.Pairs))
		for _, pair := range m.Ext.Pairs {
			s += " " + pair.String()
		}
	}
	return s
}

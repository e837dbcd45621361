package llc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/smc"
)

// Offsets and flags of DELETE LINK.
const (
	dlLink   = 4
	dlReason = 5

	flagAll     = 0x40
	flagOrderly = 0x20
)

// DeleteReason says why a link goes away, or why a request failed (RFC 7609 §A.3.4).
type DeleteReason uint32

const (
	ReasonLostPath         DeleteReason = 0x00010000
	ReasonOperator         DeleteReason = 0x00020000 // operator initiated
	ReasonProgram          DeleteReason = 0x00030000 // program initiated: link inactivity
	ReasonProtocol         DeleteReason = 0x00040000 // LLC protocol violation
	ReasonAsymmetricUnused DeleteReason = 0x00050000 // asymmetric link no longer needed
	ReasonUnknownLink      DeleteReason = 0x00100000 // response: no such link
	ReasonUnknownGroup     DeleteReason = 0x00200000 // response: no such link group; Linux only
)

func (r DeleteReason) String() string {
	switch r {
	case 0:
		return "none"
	case ReasonLostPath:
		return "lost path"
	case ReasonOperator:
		return "operator"
	case ReasonProgram:
		return "inactivity"
	case ReasonProtocol:
		return "protocol violation"
	case ReasonAsymmetricUnused:
		return "asymmetric link not needed"
	case ReasonUnknownLink:
		return "unknown link"
	case ReasonUnknownGroup:
		return "unknown link group"
	}
	return fmt.Sprintf("0x%08x", uint32(r))
}

// DeleteLink is DELETE LINK, RFC 7609 §A.3.4, Figure 35; 44 bytes.
//
//	0  1  type 4
//	1  1  length 44
//	2  1  reserved
//	3  1  R A O, 5 reserved
//	4  1  link number, 0 with A
//	5  4  reason
//	9 35  reserved
type DeleteLink struct {
	Version smc.Version
	Reply   bool
	All     bool // A: all links, hence the link group
	Orderly bool // O: orderly termination
	Link    smc.LinkNum
	Reason  DeleteReason
}

func (m DeleteLink) Head() Header {
	return Header{Type: TypeDeleteLink, Version: versionOf(m.Version), Reply: m.Reply}
}

func (m *DeleteLink) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeDeleteLink)
	if err != nil {
		return err
	}
	*m = DeleteLink{
		Version: h.Version,
		Reply:   h.Reply,
		All:     p[offFlags]&flagAll != 0,
		Orderly: p[offFlags]&flagOrderly != 0,
		Link:    smc.LinkNum(p[dlLink]),
		Reason:  DeleteReason(binary.BigEndian.Uint32(p[dlReason:])),
	}
	return nil
}

func (m DeleteLink) Append(_ smc.Dialect, b []byte) []byte {
	b, p := start(b, TypeDeleteLink, m.Version, m.Reply, Size)
	if m.All {
		p[offFlags] |= flagAll
	}
	if m.Orderly {
		p[offFlags] |= flagOrderly
	}
	p[dlLink] = byte(m.Link)
	binary.BigEndian.PutUint32(p[dlReason:], uint32(m.Reason))
	return b
}

func (m DeleteLink) String() string {
	s := name(TypeDeleteLink, m.Version, m.Reply)
	if m.All {
		s += " all"
	} else {
		s += " link=" + m.Link.String()
	}
	if m.Orderly {
		s += " orderly"
	}
	return s + " reason: " + m.Reason.String()
}

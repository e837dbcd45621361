package clc

import (
	"fmt"

	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// Confirm is the SMC Confirm message, RFC 7609 §A.2.4, Figure 29: the client's endpoint. 68 bytes; with SMC-R v2 164+16·n
// on first contact, n being the number of GIDs, else 108.
//
//	  0  4  E2 D4 C3 D9
//	  4  1  type 3
//	  5  2  length
//	  7  1  4 version, F (Linux; reserved in the RFC), 3 reserved
//	  8 56  Endpoint
//	 64     v2: 32 EID, 8 reserved
//	104     v2 with F: 52 FirstContactExt, 1 number of GIDs, 3 reserved, 16·n GIDs
//	end  4  E2 D4 C3 D9
type Confirm struct {
	Version      smc.Version
	FirstContact bool // F, Linux dialect only: the client made a link group
	Endpoint
	EID  smc.EID          // v2
	Ext  *FirstContactExt // v2 with F, nil otherwise
	GIDs []roce.GID       // v2 with F, at most MaxGIDs: where the client can be reached
}

// MaxGIDs is how many GIDs a Confirm can list.
const MaxGIDs = 255

// Decode reads the message. The RFC has no F bit here: with that dialect it is ignored in version 1, and the caller, who
// knows whether this is a first contact, calls CheckFirstContact. Version 2 exists only as Linux has it.
// *EnumError: as with Accept.
func (m *Confirm) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(b, TypeConfirm)
	if err != nil {
		return err
	}
	var c Confirm
	c.Version = h.Version
	c.FirstContact = h.Flags&flagFirstContact != 0 && c.hasF(d)
	c.Endpoint.decode(p)
	if c.Version == smc.V2 {
		c.EID = smc.EID(p[offEID:])
		if c.FirstContact {
			if len(p) < offGIDs+TrailerSize {
				return &ProtocolError{TypeConfirm, fmt.Sprintf("first contact with length %d", len(p))}
			}
			c.Ext = new(FirstContactExt)
			c.Ext.decode(p)
			n := int(p[offGIDCount])
			if offGIDs+n*len(roce.GID{})+TrailerSize > len(p) {
				return &ProtocolError{TypeConfirm, fmt.Sprintf("%d GIDs in %d bytes", n, len(p))}
			}
			if n > 0 {
				c.GIDs = make([]roce.GID, n)
				for i := range c.GIDs {
					c.GIDs[i] = roce.GID(p[offGIDs+i*len(roce.GID{}):])
				}
			}
		}
	}
	*m = c
	if c.Version > smc.V2 {
		return &EnumError{TypeConfirm, "version", uint8(c.Version)}
	}
	if c.FirstContact {
		return c.checkMTU(TypeConfirm)
	}
	return nil
}

// hasF reports whether this version has the F bit in the dialect.
func (m Confirm) hasF(d smc.Dialect) bool { return d == smc.Linux || m.Version >= smc.V2 }

// CheckFirstContact is the check of enumerated values that RFC 7609 §A.2.4 wants in a first contact exchange only:
// *EnumError if the MTU is reserved.
func (m Confirm) CheckFirstContact() error { return m.checkMTU(TypeConfirm) }

// Append writes the whole message; in version 2 Ext and GIDs go out exactly if FirstContact is set.
func (m Confirm) Append(d smc.Dialect, b []byte) []byte {
	n := Size
	var flags uint8
	if m.FirstContact && m.hasF(d) {
		flags = flagFirstContact
	}
	gids := m.GIDs[:min(len(m.GIDs), MaxGIDs)]
	if m.Version == smc.V2 {
		n = SizeV2
		if m.FirstContact {
			n = offGIDs + len(gids)*len(roce.GID{}) + TrailerSize
		}
	}
	b, p := start(b, TypeConfirm, m.Version, flags, n)
	m.Endpoint.put(p)
	if m.Version == smc.V2 {
		copy(p[offEID:], m.EID[:])
		if m.FirstContact {
			if m.Ext != nil {
				m.Ext.put(p)
			}
			p[offGIDCount] = byte(len(gids))
			for i, g := range gids {
				copy(p[offGIDs+i*len(g):], g[:])
			}
		}
	}
	return b
}

func (m Confirm) String() string {
	s := fmt.Sprintf("%s %s", TypeConfirm, m.Version)
	if m.FirstContact {
		s += " first"
	}
	s += " " + m.Endpoint.String()
	if m.Version == smc.V2 {
		s += fmt.Sprintf(" eid=%q", m.EID)
	}
	if m.Ext != nil {
		s += fmt.Sprintf(" %s gids=%v", m.Ext, m.GIDs)
	}
	return s
}

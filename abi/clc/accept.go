package clc

import (
	"fmt"

	"libsmcr/abi/smc"
)

// Accept is the SMC Accept message, RFC 7609 §A.2.3, Figure 28: the server's endpoint. 68 bytes; with SMC-R v2 160 on first
// contact, else 108.
//
//	  0  4  E2 D4 C3 D9
//	  4  1  type 2
//	  5  2  length
//	  7  1  4 version, F, 3 reserved
//	  8 56  Endpoint
//	 64     v2: 32 EID, 8 reserved
//	104     v2 with F: 52 FirstContactExt
//	end  4  E2 D4 C3 D9
type Accept struct {
	Version      smc.Version
	FirstContact bool // F: the server takes this for the first contact of a link group
	Endpoint
	EID smc.EID          // v2
	Ext *FirstContactExt // v2 with F, nil otherwise
}

// Decode reads the message. *EnumError: a first contact with a reserved MTU, or a version above 2, of which only the fields
// of version 1 are understood.
func (m *Accept) Decode(b []byte) error {
	h, p, err := open(b, TypeAccept)
	if err != nil {
		return err
	}
	var a Accept
	a.Version, a.FirstContact = h.Version, h.Flags&flagFirstContact != 0
	a.Endpoint.decode(p)
	if a.Version == smc.V2 {
		a.EID = smc.EID(p[offEID:])
		if a.FirstContact {
			if len(p) < endFCE+TrailerSize {
				return &ProtocolError{TypeAccept, fmt.Sprintf("first contact with length %d", len(p))}
			}
			a.Ext = new(FirstContactExt)
			a.Ext.decode(p)
		}
	}
	*m = a
	if a.Version > smc.V2 {
		return &EnumError{TypeAccept, "version", uint8(a.Version)}
	}
	if a.FirstContact {
		return a.checkMTU(TypeAccept)
	}
	return nil
}

// Append writes the whole message. In version 2 Ext goes out exactly if FirstContact is set; nil counts as all zero.
func (m Accept) Append(b []byte) []byte {
	n := Size
	var flags uint8
	if m.FirstContact {
		flags = flagFirstContact
	}
	if m.Version == smc.V2 {
		n = SizeV2
		if m.FirstContact {
			n = endFCE + TrailerSize
		}
	}
	b, p := start(b, TypeAccept, m.Version, flags, n)
	m.Endpoint.put(p)
	if m.Version == smc.V2 {
		copy(p[offEID:], m.EID[:])
		if m.FirstContact && m.Ext != nil {
			m.Ext.put(p)
		}
	}
	return b
}

func (m Accept) String() string {
	s := fmt.Sprintf("%s %s", TypeAccept, m.Version)
	if m.FirstContact {
		s += " first"
	}
	s += " " + m.Endpoint.String()
	if m.Version == smc.V2 {
		s += fmt.Sprintf(" eid=%q", m.EID)
	}
	if m.Ext != nil {
		s += " " + m.Ext.String()
	}
	return s
}

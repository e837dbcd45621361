package clc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/smc"
)

// Offsets and sizes of Decline.
const (
	offDiagnosis  = 16
	offDeclineOS  = 20 // version 2, high nibble
	offMore       = 24 // version 2: four words of further diagnosis
	DeclineSize   = 28 // version 1
	DeclineSizeV2 = 44 // version 2
)

// Decline is the SMC Decline message, RFC 7609 §A.2.5, Figure 30: falls back to TCP. 28 bytes; version 2 has 44.
//
//	  0  4  E2 D4 C3 D9
//	  4  1  type 4
//	  5  2  length
//	  7  1  4 version, S, 3 reserved
//	  8  8  sender's peer ID
//	 16  4  peer diagnosis information
//	 20  1  reserved; v2: 4 OS, 4 reserved
//	 21  3  reserved
//	 24 16  v2: further diagnosis
//	end  4  E2 D4 C3 D9
type Decline struct {
	Version   smc.Version
	OutOfSync bool // S: the receiver must clean up its link group
	PeerID    smc.PeerID
	Diagnosis DeclineCode
	OS        OS        // v2
	More      [4]uint32 // v2; Linux sends zeros
}

// Decode reads the message, of either length in each version.
func (m *Decline) Decode(b []byte) error {
	h, p, err := open(b, TypeDecline)
	if err != nil {
		return err
	}
	*m = Decline{
		Version:   h.Version,
		OutOfSync: h.Flags&flagOutOfSync != 0,
		PeerID:    smc.PeerID(p[offPeerID:]),
		Diagnosis: DeclineCode(binary.BigEndian.Uint32(p[offDiagnosis:])),
	}
	if h.Version >= smc.V2 {
		m.OS = OS(p[offDeclineOS] >> 4)
		if len(p) == DeclineSizeV2 {
			for i := range m.More {
				m.More[i] = binary.BigEndian.Uint32(p[offMore+4*i:])
			}
		}
	}
	return nil
}

// Append writes 28 bytes, in version 2 and above 44.
func (m Decline) Append(b []byte) []byte {
	n := DeclineSize
	var flags uint8
	if m.OutOfSync {
		flags = flagOutOfSync
	}
	if m.Version >= smc.V2 {
		n = DeclineSizeV2
	}
	b, p := start(b, TypeDecline, m.Version, flags, n)
	copy(p[offPeerID:], m.PeerID[:])
	binary.BigEndian.PutUint32(p[offDiagnosis:], uint32(m.Diagnosis))
	if m.Version >= smc.V2 {
		p[offDeclineOS] = byte(m.OS) << 4
		for i, v := range m.More {
			binary.BigEndian.PutUint32(p[offMore+4*i:], v)
		}
	}
	return b
}

func (m Decline) String() string {
	s := fmt.Sprintf("%s %s peer=%s %s", TypeDecline, m.Version, m.PeerID, m.Diagnosis)
	if m.OutOfSync {
		s += " out-of-sync"
	}
	if m.Version >= smc.V2 {
		s += " os=" + m.OS.String()
	}
	return s
}

package llc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/smc"
)

// Offsets of DELETE RKEY.
const (
	drCount = 4
	drMask  = 5
	drRKeys = 8
)

// MaxDeleted is how many RMBs one DELETE RKEY can name.
const MaxDeleted = 8

// DeleteRKey is DELETE RKEY, RFC 7609 §A.3.7, Figure 39; 44 bytes.
//
//	 0  1  type 9
//	 1  1  length 44
//	 2  1  reserved
//	 3  1  R 0 Z, 5 reserved
//	 4  1  count, at most 8
//	 5  1  error mask, most significant bit for the first RKey
//	 6  2  reserved
//	 8 32  RKeys, unused ones zero
//	40  4  reserved
//
// The RFC echoes the RKeys in the reply; Linux sends them as zero in replies of SMC-R v2.
type DeleteRKey struct {
	Version  smc.Version
	Reply    bool
	Negative bool  // Z flag of a reply
	Count    uint8 // at most MaxDeleted
	Errors   uint8 // bit 0x80>>i: RKey i was not deleted
	RKeys    [MaxDeleted]smc.RKey
}

// Failed reports whether the reply says that RKey i was not deleted.
func (m DeleteRKey) Failed(i int) bool { return m.Errors&(0x80>>i) != 0 }

// Fail marks RKey i as not deleted and the reply as negative.
func (m *DeleteRKey) Fail(i int) { m.Errors, m.Negative = m.Errors|0x80>>i, true }

func (m DeleteRKey) Head() Header {
	return Header{Type: TypeDeleteRKey, Version: versionOf(m.Version), Reply: m.Reply}
}

func (m *DeleteRKey) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeDeleteRKey)
	if err != nil {
		return err
	}
	if p[drCount] > MaxDeleted {
		return &Error{TypeDeleteRKey, fmt.Sprintf("%d RKeys", p[drCount])}
	}
	*m = DeleteRKey{
		Version:  h.Version,
		Reply:    h.Reply,
		Negative: p[offFlags]&flagNegative != 0,
		Count:    p[drCount],
		Errors:   p[drMask],
	}
	for i := range m.Count {
		m.RKeys[i] = smc.RKey(binary.BigEndian.Uint32(p[drRKeys+4*int(i):]))
	}
	return nil
}

// Append writes the message; a Count above MaxDeleted is sent as MaxDeleted.
func (m DeleteRKey) Append(_ smc.Dialect, b []byte) []byte {
	b, p := start(b, TypeDeleteRKey, m.Version, m.Reply, Size)
	if m.Negative {
		p[offFlags] |= flagNegative
	}
	n := min(m.Count, MaxDeleted)
	p[drCount], p[drMask] = n, m.Errors
	for i := range n {
		binary.BigEndian.PutUint32(p[drRKeys+4*int(i):], uint32(m.RKeys[i]))
	}
	return b
}

func (m DeleteRKey) String() string {
	s := fmt.Sprintf("%s count=%d", name(TypeDeleteRKey, m.Version, m.Reply), m.Count)
	for _, k := range m.RKeys[:min(m.Count, MaxDeleted)] {
		s += " " + k.String()
	}
	if m.Negative {
		s += fmt.Sprintf(" negative mask=%08b", m.Errors)
	}
	return s
}

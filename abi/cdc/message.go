// Package cdc is the Connection Data Control message: the cursors and flags of one connection, sent after data was written
// into the peer's RMBE and when data was consumed.
package cdc

import (
	"encoding/binary"
	"fmt"
	"strings"

	"libsmcr/abi/smc"
)

// Type is the first byte of the message. Its two high bits tell it from every LLC message (RFC 7609 §A.3).
const Type = 0xFE

const (
	offType      = 0
	offLen       = 1
	offSeq       = 2
	offToken     = 4
	offProdWrap  = 10
	offProd      = 12
	offConsWrap  = 18
	offCons      = 20
	offProdFlags = 24
	offConnFlags = 25
	Size         = 44
)

// ProdFlags are about the data that the sender writes: byte 24.
type ProdFlags uint8

const (
	WriterBlocked      ProdFlags = 0x80 // B: tell me when space becomes free
	UrgentPending      ProdFlags = 0x40 // P: urgent data is on its way
	UrgentPresent      ProdFlags = 0x20 // U: the producer cursor is one past the last urgent byte
	UpdateRequested    ProdFlags = 0x10 // R: tell me your consumer cursor at once
	FailoverValidation ProdFlags = 0x08 // F: only sequence number and token count (§4.6.1)

	prodFlagsMask = WriterBlocked | UrgentPending | UrgentPresent | UpdateRequested | FailoverValidation
)

// Has reports whether all bits of g are set.
func (f ProdFlags) Has(g ProdFlags) bool { return f&g == g }

func (f ProdFlags) String() string { return letters(uint8(f), "BPURF") }

// ConnFlags are about the state of the connection: byte 25.
type ConnFlags uint8

const (
	SendingDone ConnFlags = 0x80 // D: no more data from me
	Closed      ConnFlags = 0x40 // C: done with the connection
	Aborted     ConnFlags = 0x20 // A: done with it abnormally, as by RST

	connFlagsMask = SendingDone | Closed | Aborted
)

// Has reports whether all bits of g are set.
func (f ConnFlags) Has(g ConnFlags) bool { return f&g == g }

func (f ConnFlags) String() string { return letters(uint8(f), "DCA") }

// letters names the bits of v from the most significant on; bits beyond the names are shown in hexadecimal.
func letters(v uint8, names string) string {
	if v == 0 {
		return "-"
	}
	var s strings.Builder
	for i := range len(names) {
		if bit := uint8(0x80) >> i; v&bit != 0 {
			s.WriteByte(names[i])
			v &^= bit
		}
	}
	if v != 0 {
		fmt.Fprintf(&s, "+0x%02x", v)
	}
	return s.String()
}

// Message is the CDC message, RFC 7609 §A.4, Figure 41; 44 bytes.
//
//	 0  1  type 0xFE
//	 1  1  length 44
//	 2  2  sequence number
//	 4  4  alert token of the receiver
//	 8  2  reserved
//	10  2  producer wrap number
//	12  4  producer cursor, in the receiver's RMBE
//	16  2  reserved
//	18  2  consumer wrap number
//	20  4  consumer cursor, in the sender's RMBE
//	24  1  B P U R F, 3 reserved
//	25  1  D C A, 5 reserved
//	26 18  reserved
//
// The bytes are the same in both dialects; they differ in where cursors start (smc.Dialect.Origin).
type Message struct {
	Seq   smc.Seq
	Token smc.AlertToken
	Prod  smc.Cursor
	Cons  smc.Cursor
	Flags ProdFlags
	Conn  ConnFlags
}

// Error says why bytes are not a CDC message.
type Error struct{ What string }

func (e *Error) Error() string { return "cdc: " + e.What }

// Is reports whether a received message is for this package rather than for llc: both high bits of the type are set.
func Is(b []byte) bool { return len(b) > 0 && b[offType]>>6 == 3 }

// Decode reads the first Size bytes of b.
func (m *Message) Decode(b []byte) error {
	if len(b) < Size {
		return &Error{fmt.Sprintf("%d of %d bytes", len(b), Size)}
	}
	if b[offType] != Type {
		return &Error{fmt.Sprintf("type 0x%02x", b[offType])}
	}
	if b[offLen] != Size {
		return &Error{fmt.Sprintf("length byte %d", b[offLen])}
	}
	*m = Message{
		Seq:   smc.Seq(binary.BigEndian.Uint16(b[offSeq:])),
		Token: smc.AlertToken(binary.BigEndian.Uint32(b[offToken:])),
		Prod:  smc.Cursor{Wrap: binary.BigEndian.Uint16(b[offProdWrap:]), Count: binary.BigEndian.Uint32(b[offProd:])},
		Cons:  smc.Cursor{Wrap: binary.BigEndian.Uint16(b[offConsWrap:]), Count: binary.BigEndian.Uint32(b[offCons:])},
		Flags: ProdFlags(b[offProdFlags]) & prodFlagsMask,
		Conn:  ConnFlags(b[offConnFlags]) & connFlagsMask,
	}
	return nil
}

// Append writes all Size bytes, reserved ones as zero.
func (m Message) Append(b []byte) []byte {
	n := len(b)
	b = append(b, make([]byte, Size)...)
	p := b[n:]
	p[offType], p[offLen] = Type, Size
	binary.BigEndian.PutUint16(p[offSeq:], uint16(m.Seq))
	binary.BigEndian.PutUint32(p[offToken:], uint32(m.Token))
	binary.BigEndian.PutUint16(p[offProdWrap:], m.Prod.Wrap)
	binary.BigEndian.PutUint32(p[offProd:], m.Prod.Count)
	binary.BigEndian.PutUint16(p[offConsWrap:], m.Cons.Wrap)
	binary.BigEndian.PutUint32(p[offCons:], m.Cons.Count)
	p[offProdFlags] = byte(m.Flags & prodFlagsMask)
	p[offConnFlags] = byte(m.Conn & connFlagsMask)
	return b
}

func (m Message) String() string {
	return fmt.Sprintf("CDC seq=%s token=%s prod=%s cons=%s flags=%s conn=%s", m.Seq, m.Token, m.Prod, m.Cons, m.Flags, m.Conn)
}

package roce

import (
	"encoding/binary"
	"fmt"
)

const (
	bthOpcode = 0
	bthFlags  = 1
	bthPKey   = 2
	bthResv   = 4 // FECN, BECN and reserved bits: not covered by the ICRC
	bthDestQP = 5
	bthAck    = 8
	bthPSN    = 9
	BTHSize   = 12

	bthSolicited = 0x80
	bthMigReq    = 0x40
	bthPadShift  = 4
	bthVersion   = 0x0F
	bthAckReq    = 0x80
)

// DefaultPKey is the partition key that every RoCE port has at index 0.
const DefaultPKey = 0xFFFF

// BTH is the base transport header, the first 12 bytes of every packet.
//
//	0 1  opcode
//	1 1  solicited event, migration request, 2 pad count, 4 header version (0)
//	2 2  partition key
//	4 1  FECN, BECN, 6 reserved
//	5 3  destination QP
//	8 1  acknowledge request, 7 reserved
//	9 3  packet sequence number
//
// The accessors are good as soon as Valid is true.
type BTH []byte

// Valid reports whether all of the header is there in the only version there is.
func (h BTH) Valid() bool { return len(h) >= BTHSize && h[bthFlags]&bthVersion == 0 }

func (h BTH) Opcode() Opcode  { return Opcode(h[bthOpcode]) }
func (h BTH) Solicited() bool { return h[bthFlags]&bthSolicited != 0 }
func (h BTH) MigReq() bool    { return h[bthFlags]&bthMigReq != 0 }
func (h BTH) PadCount() int   { return int(h[bthFlags] >> bthPadShift & 3) }
func (h BTH) PKey() uint16    { return binary.BigEndian.Uint16(h[bthPKey:]) }
func (h BTH) DestQP() QPN     { return QPNAt(h[bthDestQP:]) }
func (h BTH) AckReq() bool    { return h[bthAck]&bthAckReq != 0 }
func (h BTH) PSN() PSN        { return PSNAt(h[bthPSN:]) }

func (h BTH) String() string {
	s := fmt.Sprintf("%s qpn=%s psn=%s", h.Opcode(), h.DestQP(), h.PSN())
	if h.Solicited() {
		s += " se"
	}
	if h.AckReq() {
		s += " ackreq"
	}
	if n := h.PadCount(); n != 0 {
		s += fmt.Sprintf(" pad=%d", n)
	}
	return s
}

// BTHFields is what a sender puts into a BTH.
type BTHFields struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	PadCount  int // 0 to 3
	PKey      uint16
	DestQP    QPN
	AckReq    bool
	PSN       PSN
}

// Fields returns the header as a struct.
func (h BTH) Fields() BTHFields {
	return BTHFields{h.Opcode(), h.Solicited(), h.MigReq(), h.PadCount(), h.PKey(), h.DestQP(), h.AckReq(), h.PSN()}
}

// Append writes the 12 bytes, reserved ones as zero.
func (f BTHFields) Append(b []byte) []byte {
	n := len(b)
	b = append(b, make([]byte, BTHSize)...)
	p := b[n:]
	p[bthOpcode] = byte(f.Opcode)
	p[bthFlags] = byte(f.PadCount&3) << bthPadShift
	if f.Solicited {
		p[bthFlags] |= bthSolicited
	}
	if f.MigReq {
		p[bthFlags] |= bthMigReq
	}
	binary.BigEndian.PutUint16(p[bthPKey:], f.PKey)
	f.DestQP.Put(p[bthDestQP:])
	if f.AckReq {
		p[bthAck] = bthAckReq
	}
	f.PSN.Put(p[bthPSN:])
	return b
}

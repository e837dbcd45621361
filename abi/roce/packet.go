package roce

import (
	"encoding/binary"
	"fmt"
)

// Sizes around the headers.
const (
	ImmSize  = 4
	ICRCSize = 4
)

// UDPPort is the destination port of RoCE v2.
const UDPPort = 4791

// Packet is what a RoCE v2 datagram carries: BTH, then by opcode RETH, AETH or immediate data, payload, 0 to 3 bytes of pad
// and the ICRC. The accessors are good as soon as Valid says nil.
type Packet []byte

// Error says why bytes are not a packet of ours.
type Error struct{ What string }

func (e *Error) Error() string { return "roce: " + e.What }

// Valid checks that the headers that the opcode wants, the pad and the ICRC are there. It does not check the ICRC's value.
func (p Packet) Valid() error {
	if !BTH(p).Valid() {
		return &Error{fmt.Sprintf("no base transport header in %d bytes", len(p))}
	}
	op := p.BTH().Opcode()
	if !op.Known() {
		return &Error{fmt.Sprintf("opcode %s", op)}
	}
	// Everything but the pad is a multiple of four, hence so is the sum; a pad without payload has nothing to pad.
	body := len(p) - op.headers() - ICRCSize
	if body < 0 || body%4 != 0 || p.BTH().PadCount() > body || body > 0 && !opcodes[op].payload {
		return &Error{fmt.Sprintf("%s with %d bytes, pad %d", op, len(p), p.BTH().PadCount())}
	}
	return nil
}

// BTH returns the base transport header.
func (p Packet) BTH() BTH { return BTH(p[:BTHSize]) }

// RETH returns the RDMA header; only if the opcode has one.
func (p Packet) RETH() RETH { return RETH(p[BTHSize : BTHSize+RETHSize]) }

// AETH returns the acknowledge header; only if the opcode has one.
func (p Packet) AETH() AETH { return AETH(p[BTHSize : BTHSize+AETHSize]) }

// Imm returns the immediate data; only if the opcode has it.
func (p Packet) Imm() uint32 {
	return binary.BigEndian.Uint32(p[p.BTH().Opcode().headers()-ImmSize:])
}

// Payload returns the data without its pad.
func (p Packet) Payload() []byte {
	return p[p.BTH().Opcode().headers() : len(p)-ICRCSize-p.BTH().PadCount()]
}

// ICRC returns the checksum that the packet carries.
func (p Packet) ICRC() uint32 { return binary.LittleEndian.Uint32(p[len(p)-ICRCSize:]) }

// Covered returns the part of the packet that the ICRC covers.
func (p Packet) Covered() []byte { return p[:len(p)-ICRCSize] }

func (p Packet) String() string {
	if err := p.Valid(); err != nil {
		return err.Error()
	}
	s := p.BTH().String()
	op := p.BTH().Opcode()
	if op.HasRETH() {
		s += " " + p.RETH().String()
	}
	if op.HasAETH() {
		s += " " + p.AETH().String()
	}
	if op.HasImm() {
		s += fmt.Sprintf(" imm=0x%x", p.Imm())
	}
	return fmt.Sprintf("%s payload=%d", s, len(p.Payload()))
}

// Pad returns how many bytes make n a multiple of four.
func Pad(n int) int { return -n & 3 }

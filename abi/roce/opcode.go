package roce

import "fmt"

// Opcode is the first byte of a packet. The top three bits choose the transport service, 000 is RC, the only one here.
type Opcode uint8

const (
	SendFirst    Opcode = 0x00
	SendMiddle   Opcode = 0x01
	SendLast     Opcode = 0x02
	SendLastImm  Opcode = 0x03
	SendOnly     Opcode = 0x04
	SendOnlyImm  Opcode = 0x05
	WriteFirst   Opcode = 0x06
	WriteMiddle  Opcode = 0x07
	WriteLast    Opcode = 0x08
	WriteLastImm Opcode = 0x09
	WriteOnly    Opcode = 0x0A
	WriteOnlyImm Opcode = 0x0B
	Acknowledge  Opcode = 0x11
	numOpcodes          = 0x12
)

// parts says what a packet of an opcode consists of.
type parts struct {
	name    string
	reth    bool
	aeth    bool
	imm     bool
	payload bool
}

var opcodes = [numOpcodes]parts{
	SendFirst:    {name: "SEND FIRST", payload: true},
	SendMiddle:   {name: "SEND MIDDLE", payload: true},
	SendLast:     {name: "SEND LAST", payload: true},
	SendLastImm:  {name: "SEND LAST IMM", imm: true, payload: true},
	SendOnly:     {name: "SEND ONLY", payload: true},
	SendOnlyImm:  {name: "SEND ONLY IMM", imm: true, payload: true},
	WriteFirst:   {name: "WRITE FIRST", reth: true, payload: true},
	WriteMiddle:  {name: "WRITE MIDDLE", payload: true},
	WriteLast:    {name: "WRITE LAST", payload: true},
	WriteLastImm: {name: "WRITE LAST IMM", imm: true, payload: true},
	WriteOnly:    {name: "WRITE ONLY", reth: true, payload: true},
	WriteOnlyImm: {name: "WRITE ONLY IMM", reth: true, imm: true, payload: true},
	Acknowledge:  {name: "ACK", aeth: true},
}

// Known reports whether o is one of the RC opcodes that SMC-R's traffic consists of; reads and atomics are not.
func (o Opcode) Known() bool { return int(o) < len(opcodes) && opcodes[o].name != "" }

// HasRETH reports whether a RETH follows the BTH.
func (o Opcode) HasRETH() bool { return o.Known() && opcodes[o].reth }

// HasAETH reports whether an AETH follows the BTH.
func (o Opcode) HasAETH() bool { return o.Known() && opcodes[o].aeth }

// HasImm reports whether four bytes of immediate data follow the headers.
func (o Opcode) HasImm() bool { return o.Known() && opcodes[o].imm }

// IsSend reports whether o is part of a SEND.
func (o Opcode) IsSend() bool { return o <= SendOnlyImm }

// IsWrite reports whether o is part of an RDMA WRITE.
func (o Opcode) IsWrite() bool { return WriteFirst <= o && o <= WriteOnlyImm }

// Begins reports whether the packet is the first or the only one of its message.
func (o Opcode) Begins() bool {
	switch o {
	case SendFirst, SendOnly, SendOnlyImm, WriteFirst, WriteOnly, WriteOnlyImm:
		return true
	}
	return false
}

// Ends reports whether the packet is the last or the only one of its message.
func (o Opcode) Ends() bool {
	switch o {
	case SendLast, SendLastImm, SendOnly, SendOnlyImm, WriteLast, WriteLastImm, WriteOnly, WriteOnlyImm:
		return true
	}
	return false
}

func (o Opcode) String() string {
	if o.Known() {
		return opcodes[o].name
	}
	return fmt.Sprintf("0x%02x", uint8(o))
}

// headers returns the length of everything between the start of the packet and its payload.
func (o Opcode) headers() int {
	n := BTHSize
	if o.HasRETH() {
		n += RETHSize
	}
	if o.HasAETH() {
		n += AETHSize
	}
	if o.HasImm() {
		n += ImmSize
	}
	return n
}

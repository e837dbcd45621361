package llc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/smc"
)

// Size is the length of every LLC message of RFC 7609 (§A.3). Only ADD LINK and REQUEST ADD LINK of SMC-R v2 are longer.
const Size = 44

const (
	offType  = 0 // opcode; SMC-R v2 sets the high nibble to 2
	offLen   = 1 // v1: one byte, 44; v2: two bytes, little-endian
	offFlags = 3
	offBody  = 4
)

// Type is the opcode without the version nibble.
type Type uint8

const (
	TypeConfirmLink     Type = 1
	TypeAddLink         Type = 2
	TypeAddLinkCont     Type = 3 // v1 only
	TypeDeleteLink      Type = 4
	TypeReqAddLink      Type = 5 // v2 only
	TypeConfirmRKey     Type = 6
	TypeTestLink        Type = 7
	TypeConfirmRKeyCont Type = 8 // v1 only
	TypeDeleteRKey      Type = 9
)

var typeNames = [...]string{
	TypeConfirmLink: "CONFIRM LINK", TypeAddLink: "ADD LINK", TypeAddLinkCont: "ADD LINK CONT", TypeDeleteLink: "DELETE LINK",
	TypeReqAddLink: "REQ ADD LINK", TypeConfirmRKey: "CONFIRM RKEY", TypeTestLink: "TEST LINK",
	TypeConfirmRKeyCont: "CONFIRM RKEY CONT", TypeDeleteRKey: "DELETE RKEY",
}

func (t Type) String() string {
	if int(t) < len(typeNames) && typeNames[t] != "" {
		return typeNames[t]
	}
	return fmt.Sprintf("0x%02x", uint8(t))
}

// known reports whether this version of the protocol has the message.
func (t Type) known(v smc.Version) bool {
	switch t {
	case TypeConfirmLink, TypeAddLink, TypeDeleteLink, TypeConfirmRKey, TypeTestLink, TypeDeleteRKey:
		return true
	case TypeAddLinkCont, TypeConfirmRKeyCont:
		return v == smc.V1
	case TypeReqAddLink:
		return v == smc.V2
	}
	return false
}

// flagReply is the R bit, the same in every message; the other bits of the byte belong to the message.
const flagReply = 0x80

// Error says why bytes are not the LLC message they should be: a protocol error.
type Error struct {
	Type Type
	What string
}

func (e *Error) Error() string { return fmt.Sprintf("llc: %s: %s", e.Type, e.What) }

// UnknownTypeError is an opcode that we do not support. RFC 7609 §A.3 says by its two high bits what follows: 00 is a
// protocol error, 10 is silently discarded; 11 belongs to CDC and 01 is not assigned, both are protocol errors here.
// Linux ignores whatever it does not know, so with that dialect everything but CDC is discarded.
type UnknownTypeError struct {
	Opcode  byte
	Discard bool
}

func (e *UnknownTypeError) Error() string {
	if e.Discard {
		return fmt.Sprintf("llc: unknown optional type 0x%02x", e.Opcode)
	}
	return fmt.Sprintf("llc: unknown type 0x%02x", e.Opcode)
}

// Header is what all LLC messages start with.
type Header struct {
	Type    Type
	Version smc.Version // V1, or V2 for types 0x2N; zero is sent as V1
	Reply   bool        // R flag
	Length  int         // bytes of the message
}

// Peek checks length and type and says which message b holds. The error is *UnknownTypeError or *Error.
func Peek(d smc.Dialect, b []byte) (Header, error) {
	if len(b) < Size {
		return Header{}, &Error{What: fmt.Sprintf("%d of %d bytes", len(b), Size)}
	}
	op := b[offType]
	h := Header{Type: Type(op), Version: smc.V1, Reply: b[offFlags]&flagReply != 0, Length: int(b[offLen])}
	if op>>4 == 2 && d == smc.Linux {
		h.Type, h.Version = Type(op&0xF), smc.V2
		h.Length = int(binary.LittleEndian.Uint16(b[offLen:]))
	}
	if !h.Type.known(h.Version) {
		top := op >> 6
		return Header{}, &UnknownTypeError{Opcode: op, Discard: top == 2 || d == smc.Linux && top != 3}
	}
	switch {
	case h.Length == Size:
	case h.Version == smc.V2 && h.Length > Size && h.Length <= len(b):
	default:
		return Header{}, &Error{h.Type, fmt.Sprintf("length field %d of %d bytes", h.Length, len(b))}
	}
	return h, nil
}

// open is the common start of all decoders: b must hold the wanted message. It returns the bytes of the message.
func open(d smc.Dialect, b []byte, want Type) (Header, []byte, error) {
	h, err := Peek(d, b)
	if err != nil {
		return h, nil, err
	}
	if h.Type != want {
		return h, nil, &Error{want, "is a " + h.Type.String()}
	}
	return h, b[:h.Length], nil
}

// start appends a message of n zero bytes with its header filled in, and returns it beside the grown slice.
func start(b []byte, t Type, v smc.Version, reply bool, n int) (all, msg []byte) {
	at := len(b)
	all = append(b, make([]byte, n)...)
	msg = all[at:]
	if v >= smc.V2 {
		msg[offType] = 0x20 | byte(t)
		binary.LittleEndian.PutUint16(msg[offLen:], uint16(n))
	} else {
		msg[offType], msg[offLen] = byte(t), byte(n)
	}
	if reply {
		msg[offFlags] = flagReply
	}
	return all, msg
}

// Message is any of the messages of this package.
type Message interface {
	// Head returns type, version and direction; Length is 0.
	Head() Header
	// Append writes the whole message, reserved bytes as zero.
	Append(d smc.Dialect, b []byte) []byte
	// String is one line for traces.
	String() string
}

// Decode reads whichever message b holds. The error is *UnknownTypeError or *Error.
func Decode(d smc.Dialect, b []byte) (Message, error) {
	h, err := Peek(d, b)
	if err != nil {
		return nil, err
	}
	var m interface {
		Message
		Decode(smc.Dialect, []byte) error
	}
	switch h.Type {
	case TypeConfirmLink:
		m = new(ConfirmLink)
	case TypeAddLink:
		m = new(AddLink)
	case TypeAddLinkCont:
		m = new(AddLinkCont)
	case TypeDeleteLink:
		m = new(DeleteLink)
	case TypeReqAddLink:
		m = new(ReqAddLink)
	case TypeConfirmRKey:
		m = new(ConfirmRKey)
	case TypeTestLink:
		m = new(TestLink)
	case TypeConfirmRKeyCont:
		m = new(ConfirmRKeyCont)
	case TypeDeleteRKey:
		m = new(DeleteRKey)
	}
	if err := m.Decode(d, b); err != nil {
		return nil, err
	}
	return m, nil
}

// name is how a trace begins: message, version 2 only if it is one, direction.
func name(t Type, v smc.Version, reply bool) string {
	s := t.String()
	if v >= smc.V2 {
		s += " v2"
	}
	if reply {
		return s + " rsp"
	}
	return s + " req"
}

func versionOf(v smc.Version) smc.Version {
	if v >= smc.V2 {
		return smc.V2
	}
	return smc.V1
}

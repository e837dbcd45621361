package clc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"libsmcr/abi/smc"
)

// HeaderSize is what Peek needs; TrailerSize is the eye catcher at the end.
const (
	HeaderSize  = 8
	TrailerSize = 4
)

const (
	offEye     = 0
	offType    = 4
	offLen     = 5
	offVersion = 7 // high nibble version; low nibble flags, see below
	offPeerID  = 8

	// Low nibble of byte 7. In a Proposal of Linux the two pairs of bits are transports; in the other messages the upper
	// bit is F (first contact) or S (out of sync).
	flagFirstContact = 0x08
	flagOutOfSync    = 0x08
	maskTypeV1       = 0x03
	maskTypeV2       = 0x0C
	shiftTypeV2      = 2
	shiftVersion     = 4
)

// Type is the fifth byte of a CLC message.
type Type uint8

const (
	TypeProposal Type = 1
	TypeAccept   Type = 2
	TypeConfirm  Type = 3
	TypeDecline  Type = 4
)

func (t Type) String() string {
	switch t {
	case TypeProposal:
		return "PROPOSAL"
	case TypeAccept:
		return "ACCEPT"
	case TypeConfirm:
		return "CONFIRM"
	case TypeDecline:
		return "DECLINE"
	}
	return fmt.Sprintf("0x%02x", uint8(t))
}

// ErrShort is returned by Peek if what is there may be the beginning of a CLC message, but is less than HeaderSize.
var ErrShort = errors.New("clc: header incomplete")

// ProtocolError says that the bytes are not the CLC message they should be. RFC 7609 §C.6: they count as application data
// that came too early; the TCP connection is terminated, falling back is not allowed.
type ProtocolError struct {
	Type Type // 0 if not even that could be read
	What string
}

func (e *ProtocolError) Error() string {
	if e.Type == 0 {
		return "clc: " + e.What
	}
	return fmt.Sprintf("clc: %s: %s", e.Type, e.What)
}

// EnumError says that a message is sound but has a reserved value in an enumerated field. RFC 7609 §C.6: the peer can do
// more than we can; Decline and fall back.
type EnumError struct {
	Type  Type
	Field string
	Value uint8
}

func (e *EnumError) Error() string {
	return fmt.Sprintf("clc: %s: reserved %s 0x%x", e.Type, e.Field, e.Value)
}

// Class is what RFC 7609 §C.6 wants done about a decoding error.
type Class uint8

const (
	Good     Class = iota // no error
	BadEnum               // send Decline, fall back
	NotCLC                // terminate the TCP connection
	TooShort              // read on
)

func (c Class) String() string {
	switch c {
	case Good:
		return "good"
	case BadEnum:
		return "bad enumerated value"
	case NotCLC:
		return "not a CLC message"
	case TooShort:
		return "incomplete"
	}
	return fmt.Sprintf("0x%02x", uint8(c))
}

// ClassOf sorts an error of this package. An error of anybody else is NotCLC: only what is known to be harmless may fall back.
func ClassOf(err error) Class {
	if err == nil {
		return Good
	}
	if errors.Is(err, ErrShort) {
		return TooShort
	}
	if _, ok := errors.AsType[*EnumError](err); ok {
		return BadEnum
	}
	return NotCLC
}

// Header is what the first eight bytes say.
type Header struct {
	Type    Type
	Version smc.Version
	Length  int   // of the whole message, both eye catchers included
	Flags   uint8 // low nibble of byte 7
}

// Peek reads the header of the CLC message that b begins with. It wants HeaderSize bytes; of fewer it says ErrShort as long
// as they agree with the eye catcher. Length is one that the message can have, so that nobody waits for bytes of a message
// that would be refused anyway; a Proposal and whatever is above version 1 may have up to 65535, for what later versions add.
func Peek(b []byte) (Header, error) {
	for i := range min(len(b), len(smc.EyeCatcher)) {
		if b[offEye+i] != smc.EyeCatcher[i] {
			return Header{}, &ProtocolError{What: "no eye catcher at the start"}
		}
	}
	if len(b) < HeaderSize {
		return Header{}, ErrShort
	}
	h := Header{
		Type:    Type(b[offType]),
		Version: smc.Version(b[offVersion] >> shiftVersion),
		Length:  int(binary.BigEndian.Uint16(b[offLen:])),
		Flags:   b[offVersion] & 0xF,
	}
	if h.Type < TypeProposal || h.Type > TypeDecline {
		return Header{}, &ProtocolError{h.Type, "unknown type"}
	}
	if h.Version < smc.V1 {
		return Header{}, &ProtocolError{h.Type, "version 0"}
	}
	if !h.lengthFits() {
		return Header{}, &ProtocolError{h.Type, fmt.Sprintf("%s with length %d", h.Version, h.Length)}
	}
	return h, nil
}

// lengthFits reports whether a message of this type and version can be that long.
func (h Header) lengthFits() bool {
	switch h.Type {
	case TypeProposal:
		if h.Version >= smc.V2 {
			return h.Length >= offPrefix+areaSize+TrailerSize
		}
		return h.Length >= ProposalSize
	case TypeDecline:
		// Both in each version: what a Decline means does not depend on it.
		return h.Length == DeclineSize || h.Length == DeclineSizeV2
	}
	switch h.Version {
	case smc.V1:
		return h.Length == Size
	case smc.V2:
		return h.Length >= SizeV2
	}
	return h.Length >= Size
}

// open is the common start of all decoders: b must begin with the wanted message, whole, with both eye catchers. It returns
// the bytes of the message.
func open(b []byte, want Type) (Header, []byte, error) {
	h, err := Peek(b)
	if errors.Is(err, ErrShort) {
		err = &ProtocolError{want, fmt.Sprintf("%d bytes", len(b))}
	}
	if err != nil {
		return h, nil, err
	}
	if h.Type != want {
		return h, nil, &ProtocolError{want, "is a " + h.Type.String()}
	}
	if len(b) < h.Length {
		return h, nil, &ProtocolError{want, fmt.Sprintf("%d of %d bytes", len(b), h.Length)}
	}
	p := b[:h.Length]
	if [4]byte(p[h.Length-TrailerSize:]) != smc.EyeCatcher {
		return h, nil, &ProtocolError{want, "no eye catcher at the end"}
	}
	return h, p, nil
}

// start appends a message of n bytes with header and eye catchers filled in and zeros between, and returns it beside the
// grown slice. Version 0 is sent as 1.
func start(b []byte, t Type, v smc.Version, flags uint8, n int) (all, msg []byte) {
	at := len(b)
	all = append(b, make([]byte, n)...)
	msg = all[at:]
	copy(msg[offEye:], smc.EyeCatcher[:])
	msg[offType] = byte(t)
	binary.BigEndian.PutUint16(msg[offLen:], uint16(n))
	msg[offVersion] = byte(max(v, smc.V1))<<shiftVersion | flags
	copy(msg[n-TrailerSize:], smc.EyeCatcher[:])
	return all, msg
}

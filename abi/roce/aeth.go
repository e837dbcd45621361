package roce

import "fmt"

const (
	aethSyndrome = 0
	aethMSN      = 1
	AETHSize     = 4
)

// Syndrome is the first byte of an AETH: two bits of kind and five bits of detail; the top bit is reserved.
type Syndrome uint8

const (
	kindMask   Syndrome = 0x60
	detailMask Syndrome = 0x1F

	kindAck Syndrome = 0x00
	kindRNR Syndrome = 0x20
	kindNak Syndrome = 0x60

	// AckNoCredits is an acknowledgement from a receiver that does not count credits; rxe sends it.
	AckNoCredits Syndrome = kindAck | 0x1F

	NakSequence    Syndrome = kindNak     // PSN missing: repeat from the one that the packet names
	NakInvalid     Syndrome = kindNak | 1 // invalid request
	NakAccess      Syndrome = kindNak | 2 // remote access error: bad RKey, address or length
	NakOperational Syndrome = kindNak | 3 // remote operational error
)

// RNRNak returns the syndrome of a receiver that has no receive posted; timer is the 5-bit code of the time to wait.
func RNRNak(timer uint8) Syndrome { return kindRNR | Syndrome(timer)&detailMask }

// IsAck, IsRNR and IsNak tell the kinds apart; none is true for the reserved kind.
func (s Syndrome) IsAck() bool { return s&kindMask == kindAck }
func (s Syndrome) IsRNR() bool { return s&kindMask == kindRNR }
func (s Syndrome) IsNak() bool { return s&kindMask == kindNak }

// Detail returns the credit count, the RNR timer or the NAK code.
func (s Syndrome) Detail() uint8 { return uint8(s & detailMask) }

func (s Syndrome) String() string {
	switch {
	case s.IsAck():
		return fmt.Sprintf("ack(credits=%d)", s.Detail())
	case s.IsRNR():
		return fmt.Sprintf("rnr(timer=%d)", s.Detail())
	case s&^0x80 == NakSequence:
		return "nak(sequence)"
	case s&^0x80 == NakInvalid:
		return "nak(invalid request)"
	case s&^0x80 == NakAccess:
		return "nak(access)"
	case s&^0x80 == NakOperational:
		return "nak(operational)"
	}
	return fmt.Sprintf("0x%02x", uint8(s))
}

// AETH is the acknowledge extended transport header.
//
//	0 1  syndrome
//	1 3  message sequence number: how many messages the responder has completed
//
// The accessors are good as soon as Valid is true.
type AETH []byte

// Valid reports whether all of the header is there.
func (h AETH) Valid() bool { return len(h) >= AETHSize }

func (h AETH) Syndrome() Syndrome { return Syndrome(h[aethSyndrome]) }
func (h AETH) MSN() uint32        { return get24(h[aethMSN:]) }

func (h AETH) String() string { return fmt.Sprintf("%s msn=%d", h.Syndrome(), h.MSN()) }

// AETHFields is what a responder puts into an AETH.
type AETHFields struct {
	Syndrome Syndrome
	MSN      uint32 // 24 bits
}

// Fields returns the header as a struct.
func (h AETH) Fields() AETHFields { return AETHFields{h.Syndrome(), h.MSN()} }

// Append writes the 4 bytes.
func (f AETHFields) Append(b []byte) []byte {
	return append(b, byte(f.Syndrome), byte(f.MSN>>16), byte(f.MSN>>8), byte(f.MSN))
}

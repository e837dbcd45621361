package smc

// Dialect says how the peer spells the protocol where Linux AF_SMC departs from RFC 7609. It is always chosen by the
// caller: no decoder guesses it.
//
//	topic                    RFC                      Linux
//	RMBE eye catcher         4 bytes, cursors from 4  none, cursors from 0
//	ADD LINK                 GID right after the MAC  two pad bytes in between, GID at 12
//	CONFIRM LINK flags 0x03  reserved                 "no eye catcher in my RMBEs", required
//	Proposal, IPv4 field     subnet mask              network number
//	F bit in Confirm         reserved                 first contact
//	unknown LLC types        00xxxxxx: protocol error ignored
//	LLC types 0x2N           unknown                  SMC-R v2
type Dialect uint8

const (
	RFC   Dialect = iota // as RFC 7609 is written
	Linux                // as net/smc does it; SMC-R v2 exists only here
)

// EyeCatcherSize is the length of the mark at the start of each RMBE (RFC 7609 §4.2).
const EyeCatcherSize = 4

// Origin returns the offset of the first data byte in an RMBE, where cursors start and wrap to.
func (d Dialect) Origin() uint32 {
	if d == Linux {
		return 0
	}
	return EyeCatcherSize
}

// Ring returns the geometry of an RMBE of the given size, eye catcher included, in this dialect.
func (d Dialect) Ring(size uint32) Ring { return Ring{Origin: d.Origin(), Size: size} }

func (d Dialect) String() string {
	switch d {
	case RFC:
		return "rfc"
	case Linux:
		return "linux"
	}
	return hex8(uint8(d))
}

package smc

import "bytes"

// The TCP option by which both ends say that they speak SMC-R, on SYN and SYN-ACK (RFC 7609 §3.1, §A.1, Figure 24):
//
//	0        1        2..5
//	Kind=254 Length=6 E2 D4 C3 D9
//
// It follows RFC 6994: kind 254 is shared, the four bytes are the experiment's identifier.
const (
	TCPOptionKind = 254
	TCPOptionSize = 6
)

// AppendTCPOption appends the six bytes of Figure 24.
func AppendTCPOption(b []byte) []byte {
	b = append(b, TCPOptionKind, TCPOptionSize)
	return append(b, EyeCatcher[:]...)
}

// AppendTCPOptionPadded appends the option as Linux sends it, two NOPs in front, so that the options stay aligned to
// four bytes.
func AppendTCPOptionPadded(b []byte) []byte { return AppendTCPOption(append(b, 1, 1)) }

// HasTCPOption walks the options of a TCP header and reports whether SMC-R is among them. Like Linux it accepts any even
// length from 6 on, the identifier first. A malformed list ends the walk.
func HasTCPOption(options []byte) bool {
	for len(options) > 0 {
		switch options[0] {
		case 0: // end of list
			return false
		case 1: // no operation
			options = options[1:]
			continue
		}
		if len(options) < 2 {
			return false
		}
		n := int(options[1])
		if n < 2 || n > len(options) {
			return false
		}
		if options[0] == TCPOptionKind && n >= TCPOptionSize && n%2 == 0 && bytes.Equal(options[2:6], EyeCatcher[:]) {
			return true
		}
		options = options[n:]
	}
	return false
}

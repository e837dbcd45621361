package llc

import (
	"fmt"

	"libsmcr/abi/smc"
)

// Offsets of CONFIRM RKEY CONTINUATION.
const (
	ccRemaining = 4
	ccOther     = 5

	othersPerCont = 3
)

// ConfirmRKeyCont is CONFIRM RKEY CONTINUATION, RFC 7609 §A.3.6, Figure 38; 44 bytes. It has no counterpart in SMC-R v2,
// and Linux never sends it.
//
//	 0  1  type 8
//	 1  1  length 44
//	 2  1  reserved
//	 3  1  R 0 Z, 5 reserved
//	 4  1  pairs left, these included
//	 5 13  other link
//	18 13  other link, or zeros
//	31 13  other link, or zeros
//
// Figure 38 draws twelve bytes for the first entry and a reserved byte at 43, but refers to Figure 37, whose entries have
// thirteen: three of them fill 5 to 43 exactly.
type ConfirmRKeyCont struct {
	Reply     bool
	Negative  bool  // Z flag of a reply
	Remaining uint8 // including those of this message; 3 or less: the last one; at most MaxOthers
	Others    [othersPerCont]LinkRToken
}

// Count returns how many of Others are in use.
func (m ConfirmRKeyCont) Count() int { return min(int(m.Remaining), othersPerCont) }

// More reports whether another continuation follows.
func (m ConfirmRKeyCont) More() bool { return m.Remaining > othersPerCont }

func (m ConfirmRKeyCont) Head() Header {
	return Header{Type: TypeConfirmRKeyCont, Version: smc.V1, Reply: m.Reply}
}

func (m *ConfirmRKeyCont) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeConfirmRKeyCont)
	if err != nil {
		return err
	}
	if p[ccRemaining] > MaxOthers {
		return &Error{TypeConfirmRKeyCont, fmt.Sprintf("%d other links", p[ccRemaining])}
	}
	*m = ConfirmRKeyCont{Reply: h.Reply, Negative: p[offFlags]&flagNegative != 0, Remaining: p[ccRemaining]}
	for i := range m.Count() {
		m.Others[i] = linkRTokenAt(p[ccOther+i*linkRTokenSize:])
	}
	return nil
}

func (m ConfirmRKeyCont) Append(_ smc.Dialect, b []byte) []byte {
	b, p := start(b, TypeConfirmRKeyCont, smc.V1, m.Reply, Size)
	if m.Negative {
		p[offFlags] |= flagNegative
	}
	p[ccRemaining] = m.Remaining
	for i := range m.Count() {
		m.Others[i].put(p[ccOther+i*linkRTokenSize:])
	}
	return b
}

func (m ConfirmRKeyCont) String() string {
	s := fmt.Sprintf("%s remaining=%d", name(TypeConfirmRKeyCont, smc.V1, m.Reply), m.Remaining)
	for i := range m.Count() {
		s += " " + m.Others[i].String()
	}
	if m.Negative {
		s += " negative"
	}
	return s
}

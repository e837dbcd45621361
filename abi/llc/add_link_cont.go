package llc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/smc"
)

// Offsets of ADD LINK CONTINUATION.
const (
	acLink      = 4
	acRemaining = 5
	acPairs     = 8

	pairsPerCont = 2
)

// RKeyPair names an RMB by its RKey on the link that carries the message, and gives its RToken on the new link
// (RFC 7609 §A.3.3, Figure 34); 16 bytes.
type RKeyPair struct {
	Ref smc.RKey
	New smc.RToken
}

const pairSize = 16

func pairAt(b []byte) RKeyPair {
	return RKeyPair{
		Ref: smc.RKey(binary.BigEndian.Uint32(b)),
		New: smc.RToken{RKey: smc.RKey(binary.BigEndian.Uint32(b[4:])), VAddr: smc.VAddr(binary.BigEndian.Uint64(b[8:]))},
	}
}

func (r RKeyPair) put(b []byte) {
	binary.BigEndian.PutUint32(b, uint32(r.Ref))
	binary.BigEndian.PutUint32(b[4:], uint32(r.New.RKey))
	binary.BigEndian.PutUint64(b[8:], uint64(r.New.VAddr))
}

func (r RKeyPair) String() string { return fmt.Sprintf("%s=%s", r.Ref, r.New) }

// AddLinkCont is ADD LINK CONTINUATION, RFC 7609 §A.3.3, Figure 33; 44 bytes. It has no counterpart in SMC-R v2.
//
//	 0  1  type 3
//	 1  1  length 44
//	 2  1  reserved
//	 3  1  R, 7 reserved
//	 4  1  link number of the new link
//	 5  1  RTokens left, these included
//	 6  2  reserved
//	 8 16  pair
//	24 16  pair or zeros
//	40  4  reserved
type AddLinkCont struct {
	Reply     bool
	Link      smc.LinkNum
	Remaining uint8 // including the pairs of this message; 2 or less: the last one
	Pairs     [pairsPerCont]RKeyPair
}

// Count returns how many of Pairs are in use.
func (m AddLinkCont) Count() int { return min(int(m.Remaining), pairsPerCont) }

// More reports whether the sender has further RTokens to tell.
func (m AddLinkCont) More() bool { return m.Remaining > pairsPerCont }

func (m AddLinkCont) Head() Header {
	return Header{Type: TypeAddLinkCont, Version: smc.V1, Reply: m.Reply}
}

func (m *AddLinkCont) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeAddLinkCont)
	if err != nil {
		return err
	}
	*m = AddLinkCont{Reply: h.Reply, Link: smc.LinkNum(p[acLink]), Remaining: p[acRemaining]}
	for i := range m.Count() {
		m.Pairs[i] = pairAt(p[acPairs+i*pairSize:])
	}
	return nil
}

func (m AddLinkCont) Append(_ smc.Dialect, b []byte) []byte {
	b, p := start(b, TypeAddLinkCont, smc.V1, m.Reply, Size)
	p[acLink], p[acRemaining] = byte(m.Link), m.Remaining
	for i := range m.Count() {
		m.Pairs[i].put(p[acPairs+i*pairSize:])
	}
	return b
}

func (m AddLinkCont) String() string {
	s := fmt.Sprintf("%s link=%s remaining=%d", name(TypeAddLinkCont, smc.V1, m.Reply), m.Link, m.Remaining)
	for i := range m.Count() {
		s += " " + m.Pairs[i].String()
	}
	return s
}

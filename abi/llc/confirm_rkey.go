package llc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/smc"
)

// Offsets and flags of CONFIRM RKEY.
const (
	crOthers = 4
	crRKey   = 5
	crVAddr  = 9
	crOther  = 17

	othersPerConfirm = 2

	flagNegative = 0x20 // Z; also in CONFIRM RKEY CONTINUATION and DELETE RKEY
	flagRetry    = 0x10 // C
)

// MaxOthers is the largest number of other links an RMB can be announced for: a link group has eight links at most, one of
// them carries the message.
const MaxOthers = smc.MaxLinks - 1

// LinkRToken is an RToken on a link that is named beside it (RFC 7609 §A.3.5, Figure 37); 13 bytes.
type LinkRToken struct {
	Link  smc.LinkNum
	Token smc.RToken
}

const linkRTokenSize = 13

func linkRTokenAt(b []byte) LinkRToken {
	return LinkRToken{
		Link:  smc.LinkNum(b[0]),
		Token: smc.RToken{RKey: smc.RKey(binary.BigEndian.Uint32(b[1:])), VAddr: smc.VAddr(binary.BigEndian.Uint64(b[5:]))},
	}
}

func (r LinkRToken) put(b []byte) {
	b[0] = byte(r.Link)
	binary.BigEndian.PutUint32(b[1:], uint32(r.Token.RKey))
	binary.BigEndian.PutUint64(b[5:], uint64(r.Token.VAddr))
}

func (r LinkRToken) String() string { return fmt.Sprintf("%s:%s", r.Link, r.Token) }

// ConfirmRKey is CONFIRM RKEY, RFC 7609 §A.3.5, Figure 36; 44 bytes. It announces a new RMB on all links of the group.
//
//	 0  1  type 6
//	 1  1  length 44
//	 2  1  reserved
//	 3  1  R 0 Z C, 4 reserved
//	 4  1  number of other link/RToken pairs, these included, this link's not
//	 5  4  RKey on this link
//	 9  8  virtual address on this link
//	17 13  other link, or zeros
//	30 13  other link, or zeros
//	43  1  reserved
//
// The RFC's text says both that the count is at most 2 and that CONFIRM RKEY CONTINUATION follows if it is more than 3. The
// message has room for two, so here a continuation follows whenever the count is more than 2. Linux never sends more.
type ConfirmRKey struct {
	Version   smc.Version
	Reply     bool
	Negative  bool  // Z flag of a reply
	Retry     bool  // C flag of a negative reply: try again when the configuration change is over
	NumOthers uint8 // other links to announce, those of continuations included; at most MaxOthers
	Token     smc.RToken
	Others    [othersPerConfirm]LinkRToken
}

// Count returns how many of Others are in use.
func (m ConfirmRKey) Count() int { return min(int(m.NumOthers), othersPerConfirm) }

// More reports whether CONFIRM RKEY CONTINUATION follows.
func (m ConfirmRKey) More() bool { return m.NumOthers > othersPerConfirm }

func (m ConfirmRKey) Head() Header {
	return Header{Type: TypeConfirmRKey, Version: versionOf(m.Version), Reply: m.Reply}
}

func (m *ConfirmRKey) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeConfirmRKey)
	if err != nil {
		return err
	}
	if p[crOthers] > MaxOthers {
		return &Error{TypeConfirmRKey, fmt.Sprintf("%d other links", p[crOthers])}
	}
	*m = ConfirmRKey{
		Version:   h.Version,
		Reply:     h.Reply,
		Negative:  p[offFlags]&flagNegative != 0,
		Retry:     p[offFlags]&flagRetry != 0,
		NumOthers: p[crOthers],
		Token: smc.RToken{
			RKey:  smc.RKey(binary.BigEndian.Uint32(p[crRKey:])),
			VAddr: smc.VAddr(binary.BigEndian.Uint64(p[crVAddr:])),
		},
	}
	for i := range m.Count() {
		m.Others[i] = linkRTokenAt(p[crOther+i*linkRTokenSize:])
	}
	return nil
}

func (m ConfirmRKey) Append(_ smc.Dialect, b []byte) []byte {
	b, p := start(b, TypeConfirmRKey, m.Version, m.Reply, Size)
	if m.Negative {
		p[offFlags] |= flagNegative
	}
	if m.Retry {
		p[offFlags] |= flagRetry
	}
	p[crOthers] = m.NumOthers
	binary.BigEndian.PutUint32(p[crRKey:], uint32(m.Token.RKey))
	binary.BigEndian.PutUint64(p[crVAddr:], uint64(m.Token.VAddr))
	for i := range m.Count() {
		m.Others[i].put(p[crOther+i*linkRTokenSize:])
	}
	return b
}

func (m ConfirmRKey) String() string {
	s := fmt.Sprintf("%s rtoken=%s others=%d", name(TypeConfirmRKey, m.Version, m.Reply), m.Token, m.NumOthers)
	for i := range m.Count() {
		s += " " + m.Others[i].String()
	}
	if m.Negative {
		s += " negative"
	}
	if m.Retry {
		s += " retry"
	}
	return s
}

// Package packet is what the tests see on a network.
package packet

import (
	"encoding/binary"
	"net/netip"
	"syscall"
)

// TCP is one segment.
type TCP struct {
	From, To netip.AddrPort
	Seq      uint32
	Flags    uint8
	Kinds    []byte // of its options, NOPs left out
	SMC      bool   // has the option of RFC 7609 §3.1, with exactly its bytes
	Data     []byte
}

// Flags of a segment.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// Parse reads an IP packet. It says no to one that is not a whole TCP segment.
func Parse(ip []byte) (s TCP, ok bool) {
	var from, to netip.Addr
	var proto byte
	var tcp []byte
	switch {
	case len(ip) > 20 && ip[0]>>4 == 4:
		head, end := int(ip[0]&15)*4, int(binary.BigEndian.Uint16(ip[2:]))
		if head > end || end > len(ip) {
			return s, false
		}
		from, to, proto, tcp = netip.AddrFrom4([4]byte(ip[12:])), netip.AddrFrom4([4]byte(ip[16:])), ip[9], ip[head:end]
	case len(ip) > 40 && ip[0]>>4 == 6:
		end := 40 + int(binary.BigEndian.Uint16(ip[4:]))
		if end > len(ip) {
			return s, false
		}
		from, to, proto, tcp = netip.AddrFrom16([16]byte(ip[8:])), netip.AddrFrom16([16]byte(ip[24:])), ip[6], ip[40:end]
	}
	if proto == syscall.IPPROTO_AH && len(tcp) > 2 { // RFC 4302: signed, not hidden
		proto, tcp = tcp[0], tcp[min(len(tcp), 4*(int(tcp[1])+2)):]
	}
	if proto != syscall.IPPROTO_TCP || len(tcp) < 20 || len(tcp) < int(tcp[12]>>4)*4 {
		return s, false
	}
	head := int(tcp[12]>>4) * 4
	s = TCP{
		From:  netip.AddrPortFrom(from, binary.BigEndian.Uint16(tcp)),
		To:    netip.AddrPortFrom(to, binary.BigEndian.Uint16(tcp[2:])),
		Seq:   binary.BigEndian.Uint32(tcp[4:]),
		Flags: tcp[13],
		Data:  tcp[head:],
	}
	for o := tcp[20:head]; len(o) > 0 && o[0] != 0; {
		if o[0] == 1 {
			o = o[1:]
			continue
		}
		if len(o) < 2 || o[1] < 2 || int(o[1]) > len(o) {
			return s, false
		}
		s.Kinds = append(s.Kinds, o[0])
		s.SMC = s.SMC || string(o[:o[1]]) == "\xfe\x06\xe2\xd4\xc3\xd9"
		o = o[o[1]:]
	}
	return s, true
}

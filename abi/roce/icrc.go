package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// The lengths of the network headers that the ICRC covers.
const (
	IPv4Size = 20
	IPv6Size = 40
	UDPSize  = 8
)

// ICRC computes the invariant CRC of a RoCE v2 packet: the Ethernet CRC-32 over eight bytes of ones in place of an
// InfiniBand link header, the IP header, the UDP header and ib, the packet without its ICRC (Packet.Covered). What routers
// may change counts as ones: type of service, time to live and checksum of IPv4; traffic class, flow label and hop limit of
// IPv6; the UDP checksum; FECN, BECN and their neighbours in the BTH.
//
// ip must be an IPv4 header with or without options or an IPv6 header without extensions, udp the 8 bytes behind it, ib at
// least a BTH; otherwise ok is false. Nothing is modified.
func ICRC(ip, udp, ib []byte) (crc uint32, ok bool) {
	if len(ip) == 0 || len(udp) != UDPSize || len(ib) < BTHSize {
		return 0, false
	}
	// The headers go through the table byte by byte, with the free bits set; only the payload is worth the fast path of
	// the standard library, which would make a buffer for the headers escape to the heap.
	crc = crcOfLink
	switch ip[0] >> 4 {
	case 4:
		if len(ip) < IPv4Size || len(ip) != int(ip[0]&0xF)*4 {
			return 0, false
		}
		for i, c := range ip {
			switch i {
			case 1, 8, 10, 11: // type of service, time to live, checksum
				c = 0xFF
			}
			crc = crcByte(crc, c)
		}
	case 6:
		if len(ip) != IPv6Size {
			return 0, false
		}
		for i, c := range ip {
			switch i {
			case 0: // version stays, traffic class begins
				c |= 0x0F
			case 1, 2, 3, 7: // traffic class, flow label, hop limit
				c = 0xFF
			}
			crc = crcByte(crc, c)
		}
	default:
		return 0, false
	}
	for i, c := range udp {
		if i >= 6 { // checksum
			c = 0xFF
		}
		crc = crcByte(crc, c)
	}
	for i, c := range ib[:BTHSize] {
		if i == bthResv {
			c = 0xFF
		}
		crc = crcByte(crc, c)
	}
	// Update inverts on entry and exit, crcByte does not.
	return crc32.Update(^crc, crc32.IEEETable, ib[BTHSize:]), true
}

// crcOfLink is the state of the CRC behind the eight bytes of ones.
var crcOfLink = func() uint32 {
	crc := ^uint32(0)
	for range 8 {
		crc = crcByte(crc, 0xFF)
	}
	return crc
}()

func crcByte(crc uint32, c byte) uint32 { return crc32.IEEETable[byte(crc)^c] ^ crc>>8 }

// AppendICRC appends the checksum as it goes onto the wire.
func AppendICRC(b []byte, crc uint32) []byte { return binary.LittleEndian.AppendUint32(b, crc) }

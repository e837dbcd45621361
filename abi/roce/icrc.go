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
	const maxIPv4 = 60
	var head [8 + maxIPv4 + UDPSize + BTHSize]byte
	for i := range 8 {
		head[i] = 0xFF
	}
	if len(ip) == 0 || len(udp) != UDPSize || len(ib) < BTHSize {
		return 0, false
	}
	h := head[8:]
	n := len(ip)
	switch ip[0] >> 4 {
	case 4:
		if n < IPv4Size || n != int(ip[0]&0xF)*4 {
			return 0, false
		}
		copy(h, ip)
		h[1] = 0xFF               // type of service
		h[8] = 0xFF               // time to live
		h[10], h[11] = 0xFF, 0xFF // checksum
	case 6:
		if n != IPv6Size {
			return 0, false
		}
		copy(h, ip)
		h[0] |= 0x0F // traffic class, flow label
		h[1], h[2], h[3] = 0xFF, 0xFF, 0xFF
		h[7] = 0xFF // hop limit
	default:
		return 0, false
	}
	copy(h[n:], udp)
	h[n+6], h[n+7] = 0xFF, 0xFF // checksum
	copy(h[n+UDPSize:], ib[:BTHSize])
	h[n+UDPSize+bthResv] = 0xFF
	crc = crc32.ChecksumIEEE(head[:8+n+UDPSize+BTHSize])
	return crc32.Update(crc, crc32.IEEETable, ib[BTHSize:]), true
}

// AppendICRC appends the checksum as it goes onto the wire.
func AppendICRC(b []byte, crc uint32) []byte { return binary.LittleEndian.AppendUint32(b, crc) }

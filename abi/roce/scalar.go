package roce

import (
	"fmt"
	"net/netip"
)

// QPN is a 24-bit queue pair number.
type QPN uint32

// QPNMask keeps the 24 bits that exist on the wire.
const QPNMask QPN = 1<<24 - 1

// QPNAt reads the three bytes at the start of b.
func QPNAt(b []byte) QPN { return QPN(get24(b)) }

// Put writes three bytes, most significant first.
func (q QPN) Put(b []byte) { put24(b, uint32(q)) }

func (q QPN) String() string { return fmt.Sprintf("0x%x", uint32(q)) }

// PSN is a 24-bit packet sequence number. It wraps, so two of them are compared by Sub, never by <.
type PSN uint32

// PSNMask keeps the 24 bits that exist on the wire.
const PSNMask PSN = 1<<24 - 1

// PSNAt reads the three bytes at the start of b.
func PSNAt(b []byte) PSN { return PSN(get24(b)) }

// Put writes three bytes, most significant first.
func (p PSN) Put(b []byte) { put24(b, uint32(p)) }

// Add returns the number n packets later, modulo 2^24.
func (p PSN) Add(n uint32) PSN { return PSN(uint32(p)+n) & PSNMask }

// Next returns the number of the following packet.
func (p PSN) Next() PSN { return p.Add(1) }

// Sub returns p-q as a signed distance in [-2^23, 2^23): negative means that p is before q.
func (p PSN) Sub(q PSN) int32 { return int32(uint32(p-q)<<8) >> 8 }

// Before reports whether p comes before q in the wrapping order.
func (p PSN) Before(q PSN) bool { return p.Sub(q) < 0 }

func (p PSN) String() string { return fmt.Sprintf("0x%x", uint32(p)) }

func get24(b []byte) uint32 {
	_ = b[2]
	return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2])
}

func put24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

// GID is the address of a RoCE port. It has the shape of an IPv6 address: link-local for RoCE v1, IPv4-mapped or a real
// IPv6 address for RoCE v2.
type GID [16]byte

// GIDFrom makes a GID of an address; IPv4 becomes ::ffff:a.b.c.d.
func GIDFrom(a netip.Addr) GID { return GID(a.As16()) }

// Addr returns the GID as an address, IPv4 addresses unmapped.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// IsZero reports whether no GID was filled in.
func (g GID) IsZero() bool { return g == GID{} }

// IsV4Mapped reports whether g is ::ffff:a.b.c.d, the only kind that SMC-R v2 of Linux uses.
func (g GID) IsV4Mapped() bool { return netip.AddrFrom16(g).Is4In6() }

func (g GID) String() string { return netip.AddrFrom16(g).String() }

// MAC is the Ethernet address of a RoCE port.
type MAC [6]byte

// IsZero reports whether no MAC was filled in.
func (m MAC) IsZero() bool { return m == MAC{} }

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// VLAN is the VLAN ID (IEEE 802.1Q) of a LAN's frames; 0 = they carry no tag.
type VLAN uint16

// UnknownVLAN is no VLAN ID: it could not be found out.
const UnknownVLAN VLAN = 0xffff

func (v VLAN) String() string {
	switch v {
	case 0:
		return "untagged"
	case UnknownVLAN:
		return "unknown"
	}
	return fmt.Sprint(uint16(v))
}

// MTU is the enumerated path MTU of a queue pair (RFC 7609 §A.2.3); 0 and 6 to 15 are reserved.
type MTU uint8

const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Valid reports whether m is one of the five defined values.
func (m MTU) Valid() bool { return MTU256 <= m && m <= MTU4096 }

// Bytes returns the payload bytes per packet, 0 for a reserved value.
func (m MTU) Bytes() int {
	if !m.Valid() {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string {
	if !m.Valid() {
		return fmt.Sprintf("0x%x", uint8(m))
	}
	return fmt.Sprint(m.Bytes())
}

// RKey is the remote key of a registered memory region.
type RKey uint32

func (k RKey) String() string { return fmt.Sprintf("0x%x", uint32(k)) }

// VAddr is an address as the owner of a memory region counts it; opaque to everybody else.
type VAddr uint64

// Add returns the address n bytes later.
func (a VAddr) Add(n uint64) VAddr { return a + VAddr(n) }

func (a VAddr) String() string { return fmt.Sprintf("0x%x", uint64(a)) }

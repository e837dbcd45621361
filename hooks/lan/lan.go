// Package lan asks the kernel for the network by which a TCP connection runs: its subnet and its VLAN (RFC 7609 §3.5.1.2, §5.1).
package lan

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
)

// Of returns the network of a connection's local address, which is that address alone if it is on no interface, and the VLAN of the
// interface by which its segments leave. bound is the interface that the socket is bound to, itself or by a link-local address;
// 0 = none. fd is a socket of NETLINK_ROUTE with a time limit for reading.
func Of(fd int, local, peer netip.Addr, bound int) (subnet netip.Prefix, vlan roce.VLAN) {
	k := kernel{fd}
	out := k.route(local, peer, bound)
	return k.subnet(local, out), k.vlan(out, 0)
}

type kernel struct{ fd int }

// ask sends a request and calls each with what is behind the header of the answers. It reports whether they came to their end.
func (k kernel) ask(kind, flags uint16, body []byte, each func(body []byte)) bool {
	req := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	req = binary.NativeEndian.AppendUint16(req, kind)
	req = binary.NativeEndian.AppendUint16(req, unix.NLM_F_REQUEST|unix.NLM_F_ACK|flags)
	req = append(append(req, make([]byte, 8)...), body...)
	if _, err := unix.Write(k.fd, req); err != nil {
		return false
	}
	buf := make([]byte, 64<<10)
	for range 1024 {
		n, err := unix.Read(k.fd, buf)
		if err != nil {
			return false
		}
		for b := buf[:n]; len(b) >= unix.SizeofNlMsghdr; {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.SizeofNlMsghdr || size > len(b) {
				return false
			}
			body := b[unix.SizeofNlMsghdr:size]
			switch binary.NativeEndian.Uint16(b[4:]) {
			case unix.NLMSG_DONE:
				return true
			case unix.NLMSG_ERROR:
				return len(body) >= 4 && binary.NativeEndian.Uint32(body) == 0
			default:
				each(body)
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
	return false
}

// attributes of a message, behind a fixed part of so many bytes.
func attributes(b []byte, fixed int) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for b := b[min(fixed, len(b)):]; len(b) >= 4; {
			size := int(binary.NativeEndian.Uint16(b))
			if size < 4 || size > len(b) || !yield(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:size]) {
				return
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

func appendAttribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	return append(binary.NativeEndian.AppendUint16(b, kind), value...) // of four bytes, or sixteen
}

func number(b []byte) int {
	if len(b) != 4 {
		return 0
	}
	return int(binary.NativeEndian.Uint32(b))
}

func word(n int) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(n)) }

func family(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// route returns the interface by which the connection's segments leave; 0 = nobody knows.
func (k kernel) route(local, peer netip.Addr, bound int) (out int) {
	req := make([]byte, unix.SizeofRtMsg)
	req[0], req[1], req[2] = family(local), byte(peer.BitLen()), byte(local.BitLen())
	req = appendAttribute(req, unix.RTA_DST, peer.AsSlice())
	req = appendAttribute(req, unix.RTA_SRC, local.AsSlice())
	if bound != 0 {
		req = appendAttribute(req, unix.RTA_OIF, word(bound))
	}
	k.ask(unix.RTM_GETROUTE, 0, req, func(b []byte) {
		for kind, value := range attributes(b, unix.SizeofRtMsg) {
			if kind == unix.RTA_OIF {
				out = number(value)
			}
		}
	})
	return out
}

// subnet asks how long the prefix of a local address is, on that interface if it is on several.
func (k kernel) subnet(local netip.Addr, out int) netip.Prefix {
	bits, sure := local.BitLen(), false
	req := make([]byte, unix.SizeofIfAddrmsg)
	req[0] = family(local)
	k.ask(unix.RTM_GETADDR, unix.NLM_F_DUMP, req, func(b []byte) {
		var addr, other []byte
		for kind, value := range attributes(b, unix.SizeofIfAddrmsg) {
			switch kind {
			case unix.IFA_LOCAL:
				addr = value
			case unix.IFA_ADDRESS:
				other = value
			}
		}
		if addr == nil { // of a point-to-point interface IFA_ADDRESS is the other end; IPv6 has no IFA_LOCAL without one
			addr = other
		}
		if slices.Equal(addr, local.AsSlice()) && !sure {
			bits, sure = int(b[1]), int(binary.NativeEndian.Uint32(b[4:])) == out
		}
	})
	return netip.PrefixFrom(local, bits)
}

// deepest is how many interfaces may lie above each other; the kernel itself allows no more.
const deepest = 8

// link is what the kernel says of an interface.
type link struct {
	kind   string
	vlan   roce.VLAN
	below  int
	away   bool // what is below is in another network namespace
	master int
	index  int
}

func parse(b []byte) (l link) {
	if len(b) >= unix.SizeofIfInfomsg {
		l.index = number(b[4:8])
	}
	for kind, value := range attributes(b, unix.SizeofIfInfomsg) {
		switch kind {
		case unix.IFLA_LINK:
			l.below = number(value)
		case unix.IFLA_LINK_NETNSID:
			l.away = true
		case unix.IFLA_MASTER:
			l.master = number(value)
		case unix.IFLA_LINKINFO:
			for kind, value := range attributes(value, 0) {
				switch kind {
				case unix.IFLA_INFO_KIND:
					l.kind = unix.ByteSliceToString(value)
				case unix.IFLA_INFO_DATA:
					for kind, value := range attributes(value, 0) {
						if kind == unix.IFLA_VLAN_ID && l.kind == "vlan" && len(value) == 2 {
							l.vlan = roce.VLAN(binary.NativeEndian.Uint16(value))
						}
					}
				}
			}
		}
	}
	return l
}

// vlan returns the VLAN of an interface. As in Linux's SMC it is that of the first VLAN interface that lies below, if it is none itself.
func (k kernel) vlan(index, depth int) roce.VLAN {
	req := make([]byte, unix.SizeofIfInfomsg)
	copy(req[4:], word(index))
	var l link
	if index == 0 || depth > deepest || !k.ask(unix.RTM_GETLINK, 0, req, func(b []byte) { l = parse(b) }) {
		return roce.UnknownVLAN
	}
	switch l.kind {
	case "vlan":
		return l.vlan
	case "macvlan", "macvtap", "ipvlan", "ipvtap":
		if l.away {
			return roce.UnknownVLAN
		}
		return k.vlan(l.below, depth+1)
	case "bond", "bridge", "team":
		var ports []int
		req := appendAttribute(make([]byte, unix.SizeofIfInfomsg), unix.IFLA_MASTER, word(index)) // kernels that do not know it tell of all
		if !k.ask(unix.RTM_GETLINK, unix.NLM_F_DUMP, req, func(b []byte) {
			if p := parse(b); p.master == index {
				ports = append(ports, p.index)
			}
		}) {
			return roce.UnknownVLAN
		}
		for _, p := range ports {
			if v := k.vlan(p, depth+1); v != 0 {
				return v
			}
		}
	}
	return 0
}

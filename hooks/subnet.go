package hooks

// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// local is the address of our end.
func (c *conn) local() netip.Addr {
	b := c.s.b
	var raw [16]byte
	for i := range raw {
		raw[i] = byte(b.laddr[i])
	}
	if b.family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(raw[:4]))
	}
	return netip.AddrFrom16(raw).Unmap()
}

// subnet is the network of the connection's local address, which a Proposal tells (RFC 7609 §3.5.1.2). Between processes that
// met by the registry it is known to be one host, and only the address itself is told.
func (c *conn) subnet() netip.Prefix {
	a := c.local()
	if c.isAgreed() {
		if p, ok := prefixOf(a); ok {
			return p
		}
	}
	return netip.PrefixFrom(a, a.BitLen())
}

// prefixOf asks the kernel how long the prefix of one of this host's addresses is.
func prefixOf(a netip.Addr) (found netip.Prefix, ok bool) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return found, false
	}
	fd = hide(fd)
	defer C.fd_unhide(C.int(fd))
	family := byte(unix.AF_INET6)
	if a.Is4() {
		family = unix.AF_INET
	}
	req := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfAddrmsg)
	binary.NativeEndian.PutUint32(req, uint32(len(req)))
	binary.NativeEndian.PutUint16(req[4:], unix.RTM_GETADDR)
	binary.NativeEndian.PutUint16(req[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	req[unix.SizeofNlMsghdr] = family
	limit := unix.Timeval{Sec: 1} // an answer from the kernel itself: never seen
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit) != nil || unix.Sendto(fd, req, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}) != nil {
		return found, false
	}
	buf := make([]byte, 64<<10)
	for range 1024 {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return found, ok
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return found, ok
		}
		for i := range msgs {
			switch msgs[i].Header.Type {
			case unix.RTM_NEWADDR:
				if p, is := addressIn(&msgs[i]); is && p.Addr() == a {
					found, ok = p, true
				}
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return found, ok
			}
		}
	}
	return found, ok
}

// addressIn reads a RTM_NEWADDR message.
func addressIn(m *syscall.NetlinkMessage) (p netip.Prefix, ok bool) {
	attrs, err := syscall.ParseNetlinkRouteAttr(m)
	if err != nil || len(m.Data) < unix.SizeofIfAddrmsg {
		return p, false
	}
	bits := int(m.Data[1])
	for _, a := range attrs {
		// Of a point-to-point interface IFA_ADDRESS is the other end; IPv6 has no IFA_LOCAL without one.
		if a.Attr.Type != unix.IFA_LOCAL && (a.Attr.Type != unix.IFA_ADDRESS || ok) {
			continue
		}
		if addr, good := netip.AddrFromSlice(a.Value); good {
			p, ok = netip.PrefixFrom(addr, bits), true
		}
	}
	return p, ok
}

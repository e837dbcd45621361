package hooks

// #include "shim.h"
import "C"

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
	"libsmcr/engine"
	"libsmcr/hooks/lan"
)

// address is one of the block's.
func (c *conn) address(raw [16]C.u8) netip.Addr {
	var a [16]byte
	for i := range a {
		a[i] = byte(raw[i])
	}
	if c.s.b.family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(a[:4]))
	}
	return netip.AddrFrom16(a).Unmap()
}

// lan is the network by which the connection runs (RFC 7609 §3.5.1.2, §5.1). Between processes that met by the registry it is known to
// be one host, and only the address itself is told.
func (c *conn) lan() engine.LAN {
	local := c.address(c.s.b.laddr)
	alone := engine.LAN{Subnet: netip.PrefixFrom(local, local.BitLen())}
	if !c.isAgreed() {
		return alone
	}
	alone.VLAN = roce.UnknownVLAN
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return alone
	}
	fd = hide(fd)
	defer C.fd_unhide(C.int(fd))
	limit := unix.Timeval{Sec: 1} // an answer from the kernel itself: never seen
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit) != nil {
		return alone
	}
	subnet, vlan := lan.Of(fd, local, c.address(c.s.b.paddr), c.bound())
	return engine.LAN{Subnet: subnet, VLAN: vlan}
}

// bound is the interface that the socket is bound to, by itself or because its address is link-local.
func (c *conn) bound() int {
	if i, err := unix.GetsockoptInt(c.fd(), unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err == nil && i != 0 {
		return i
	}
	if a, err := unix.Getsockname(c.fd()); err == nil {
		if a, ok := a.(*unix.SockaddrInet6); ok {
			return int(a.ZoneId)
		}
	}
	return 0
}

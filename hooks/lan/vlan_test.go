//go:build interop

package lan

import (
	"testing"

	"libsmcr/abi/roce"
)

// Needs a kernel with VLANs and bonding: tests/interop has it run on one.
func TestVLANs(t *testing.T) {
	const (
		address = "; ip addr add 10.0.0.1/24 dev "
		tagged  = cable + "ip link add link eth0 name eth0.10 type vlan id 10; ip link set eth0.10 up\n"
		private = "; ip link add m0 link eth0.10 type macvlan; ip link set m0 up"
	)
	for _, n := range []network{
		{"a VLAN", tagged + address[2:] + "eth0.10", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 10, ""},
		{"beside a VLAN", tagged + address[2:] + "eth0", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 0, ""},
		{"the largest", cable + "ip link add link eth0 name v type vlan id 4094; ip link set v up" + address + "v", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 4094, ""},
		{"a VLAN in a VLAN", tagged + "ip link add link eth0.10 name v type vlan id 20; ip link set v up" + address + "v", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 20, ""},
		{"802.1ad", cable + "ip link add link eth0 name v type vlan proto 802.1ad id 30; ip link set v up" + address + "v", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 30, ""},
		{"link-local addresses that differ by the interface alone", tagged + "ip addr add fe80::7/64 dev eth0 nodad; ip addr add fe80::7/64 dev eth0.10 nodad", "fe80::7", "fe80::8", "eth0.10", "fe80::7/64", 10, ""},
		{"the same, untagged", tagged + "ip addr add fe80::7/64 dev eth0 nodad; ip addr add fe80::7/64 dev eth0.10 nodad", "fe80::7", "fe80::8", "eth0", "fe80::7/64", 0, ""},
		{"the route decides", tagged + "ip addr add 10.0.0.1/24 dev eth0; ip addr add 10.1.0.1/24 dev eth0.10; ip route add 10.2.0.0/16 via 10.1.0.2", "10.0.0.1", "10.2.0.9", "", "10.0.0.1/24", 10, ""},
		{"a bridge over a VLAN", tagged + "ip link add br0 type bridge; ip link set br0 up; ip link set eth0.10 master br0" + address + "br0", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 10, ""},
		{"a VLAN on a bridge", cable + "ip link add br0 type bridge; ip link set br0 up; ip link set eth0 master br0; ip link add link br0 name v type vlan id 11; ip link set v up" + address + "v", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 11, ""},
		{"macvlan above a VLAN", tagged + private[2:] + address + "m0", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 10, ""},
		{"a VLAN on a bond", cable + "ip link set eth0 down; ip link add bond0 type bond mode active-backup; ip link set eth0 master bond0; ip link set bond0 up; ip link add link bond0 name v type vlan id 12; ip link set v up" + address + "v", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 12, ""},
		{"a bond of VLANs", tagged + "ip link set eth0.10 down; ip link add bond0 type bond mode active-backup; ip link set eth0.10 master bond0; ip link set bond0 up" + address + "bond0", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 10, ""},
		{"a VLAN of a container", tagged + "ip link set eth0.10 name m0", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 10, "ip link set m0 up; ip addr add 10.0.0.1/24 dev m0"},
		{"macvlan of a container above a VLAN that it does not see", tagged + "ip link add m0 link eth0.10 type macvlan", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", roce.UnknownVLAN, "ip link set m0 up; ip addr add 10.0.0.1/24 dev m0"},
	} {
		t.Run(n.name, func(t *testing.T) { n.try(t) })
	}
}

package lan

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
)

// network is interfaces, and the connection of which is asked.
type network struct {
	name, links string // made by these commands
	local, peer string
	bound       string // interface
	subnet      string
	vlan        roce.VLAN
	moved       string // what is done to m0 in a further namespace, in which is asked
}

// A cable that ends in the same namespace.
const cable = "ip link add eth0 type veth peer name far; ip link set far up; ip link set eth0 up\n"

var networks = []network{
	{"a cable", cable + "ip addr add 10.0.0.1/24 dev eth0", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 0, ""},
	{"IPv6", cable + "ip addr add fd00::1/64 dev eth0 nodad", "fd00::1", "fd00::2", "", "fd00::1/64", 0, ""},
	{"loopback", "", "127.0.0.1", "127.0.0.1", "", "127.0.0.1/8", 0, ""},
	{"a gateway", cable + "ip addr add 10.0.0.1/24 dev eth0; ip route add default via 10.0.0.2", "10.0.0.1", "8.8.8.8", "", "10.0.0.1/24", 0, ""},
	{"point to point", cable + "ip addr add 10.0.0.1 peer 10.0.1.1/32 dev eth0", "10.0.0.1", "10.0.1.1", "", "10.0.0.1/32", 0, ""},
	{"no way", "", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/32", roce.UnknownVLAN, ""},
	{"the same address twice", "ip link add o type bridge; ip link set o up; ip addr add fe80::7/10 dev o nodad\n" + cable + "ip addr add fe80::7/64 dev eth0 nodad", "fe80::7", "fe80::8", "eth0", "fe80::7/64", 0, ""},
	{"a bridge", cable + "ip link add br0 type bridge; ip link set br0 up; ip link set eth0 master br0; ip addr add 10.0.0.1/24 dev br0", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 0, ""},
	{"macvlan", cable + "ip link add m0 link eth0 type macvlan; ip link set m0 up; ip addr add 10.0.0.1/24 dev m0", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", 0, ""},
	{"macvlan above what is elsewhere", cable + "ip link add m0 link eth0 type macvlan", "10.0.0.1", "10.0.0.2", "", "10.0.0.1/24", roce.UnknownVLAN, "ip link set m0 up; ip addr add 10.0.0.1/24 dev m0"},
}

func TestNetworks(t *testing.T) {
	for _, n := range networks {
		t.Run(n.name, func(t *testing.T) { n.try(t) })
	}
}

func (n network) try(t *testing.T) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and the namespace with it
		done <- n.inside()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// space puts this thread into a network namespace of its own.
func space() (fd int, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, err
	}
	return unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
}

func run(commands string) error {
	ip, err := exec.LookPath("ip") // a shell may have a small one of its own
	if err != nil {
		return err
	}
	if out, err := exec.Command("sh", "-ec", `ip() { `+ip+` "$@"; }`+"\n"+commands).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (n network) inside() error {
	first, err := space()
	if err != nil {
		return err
	}
	defer unix.Close(first)
	if err := run("ip link set lo up\n" + n.links); err != nil {
		return err
	}
	if n.moved != "" {
		second, err := space()
		if err != nil {
			return err
		}
		defer unix.Close(second)
		if err := errors.Join(unix.Setns(first, unix.CLONE_NEWNET), run(fmt.Sprintf("ip link set m0 netns /proc/%d/fd/%d", os.Getpid(), second)),
			unix.Setns(second, unix.CLONE_NEWNET), run(n.moved)); err != nil {
			return err
		}
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	bound := 0
	if n.bound != "" {
		ifr, err := unix.NewIfreq(n.bound)
		s, sockErr := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err := errors.Join(err, sockErr); err != nil {
			return err
		}
		defer unix.Close(s)
		if err := unix.IoctlIfreq(s, unix.SIOCGIFINDEX, ifr); err != nil {
			return err
		}
		bound = int(ifr.Uint32())
	}
	subnet, vlan := Of(fd, netip.MustParseAddr(n.local), netip.MustParseAddr(n.peer), bound)
	if subnet != netip.MustParsePrefix(n.subnet) || vlan != n.vlan {
		return fmt.Errorf("%s, VLAN %s; want %s, %s", subnet, vlan, n.subnet, n.vlan)
	}
	return nil
}

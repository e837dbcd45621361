//go:build interop

package interop

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Networks of both machines; the rig has made the first.
var (
	net4 = network{"10.99.0.1/24", "10.99.0.2/24"}
	net6 = network{"fd99::1/64", "fd99::2/64"}
	odd4 = network{"10.97.0.1/24", "10.97.0.2/16"} // the ends disagree about the subnet
)

type network struct{ kernel, ours string }

func address(prefix string) string { return netip.MustParsePrefix(prefix).Addr().String() }

// meeting is one connection between the kernel's AF_SMC and a program on our side.
type meeting struct {
	net  network
	role string // ours: connect or serve
	ours program
	wire []string
	fell string // the kernel to TCP: in which role and why

	ueid string // the kernel's, if not as usual; "none"
}

// program says what to run on our side; rigt is at the other one.
type program interface {
	command(role, address string, port int) string
	echoes() string // what rigt asks of it
	check(t *testing.T, role, out string)
}

func (m *machines) meet(t *testing.T, x meeting) {
	t.Helper()
	port := m.freePort()
	if x.ueid != "" {
		m.setUEID(t, x.ueid)
		defer m.setUEID(t, usual[m.flavour])
	}
	before := m.fallbacks(t)
	var out string
	if x.role == "connect" {
		at := address(x.net.kernel)
		server := m.kernel.start(t, "rigt srv -m tcp -n 1 -t 30 %s %d", at, port)
		m.kernel.listening(t, port)
		out = m.ours.run(t, "%s", x.ours.command(x.role, at, port))
		server.ok()
	} else {
		at := address(x.net.ours)
		server := m.ours.start(t, "%s", x.ours.command(x.role, at, port))
		m.ours.listening(t, port)
		m.kernel.run(t, "rigt cli -m tcp -t 30 %s %d %s", at, port, x.ours.echoes())
		out = server.ok()
	}
	x.ours.check(t, x.role, out)
	if d := cmp.Diff([][]string{x.wire}, m.wire(t, port)); d != "" {
		t.Errorf("on the wire (-want +got):\n%s", d)
	}
	if fell := m.fallbacks(t).since(before); fell != x.fell {
		t.Errorf("the kernel fell back: %q, want %q", fell, x.fell)
	}
}

// usual is the UEID that a kernel has from the rig.
var usual = map[string]string{"v1": "none", "stock": "SMCRRIG"}

func (m *machines) setUEID(t *testing.T, name string) {
	t.Helper()
	m.kernel.run(t, "rigt ueidflush")
	if name != "none" {
		m.kernel.run(t, "rigt ueid %s", name)
	}
}

// fallbacks of a kernel, by role and reason.
type fallbacks map[string]int

var fallback = regexp.MustCompile(`fback\.type=(\d).* fback\.reason=(\w+) fback\.cnt=(\d+)`)

func (m *machines) fallbacks(t *testing.T) fallbacks {
	t.Helper()
	counts := fallbacks{}
	for _, f := range fallback.FindAllStringSubmatch(m.kernel.run(t, "rigt fback"), -1) {
		role := map[string]string{"0": "client", "1": "server"}[f[1]]
		counts[role+" "+f[2]], _ = strconv.Atoi(f[3])
	}
	return counts
}

func (f fallbacks) since(before fallbacks) string {
	var told []string
	for _, why := range slices.Sorted(maps.Keys(f)) {
		for range f[why] - before[why] {
			told = append(told, why)
		}
	}
	return strings.Join(told, ", ")
}

func TestKernel(t *testing.T) {
	for _, flavour := range []string{"v1", "stock"} {
		t.Run(flavour, func(t *testing.T) {
			m := boot(t, flavour)
			for _, n := range []network{net6, odd4} {
				m.kernel.run(t, "ip addr add %s dev eth0", n.kernel)
				m.ours.run(t, "ip addr add %s dev eth0", n.ours)
			}
			m.withoutHook(t)
			if out := m.ours.run(t, "smcr enable && smcr status"); !strings.HasPrefix(out, "the kernel hook is on /sys/fs/cgroup\nthe kernel hook serves ") {
				t.Fatal(out)
			}
			for _, x := range bareMeetings[flavour] {
				t.Run(x.name, func(t *testing.T) { m.meet(t, x.meeting) })
			}
			if out := m.ours.run(t, "smcr disable; smcr status; ls /sys/fs/bpf"); out != "the kernel hook is gone\nthe kernel hook does not serve programs that are started here\n" {
				t.Error(out)
			}
			t.Run("after disable", func(t *testing.T) {
				m.meet(t, meeting{net: net4, role: "connect", ours: bare{mark: "offer", peer: "none"}, wire: []string{"> SYN", "< SYN-ACK"}, fell: "server 03010000"})
			})
		})
	}
}

// withoutHook: nobody offers on our side, whatever the other one does, and everything is TCP.
func (m *machines) withoutHook(t *testing.T) {
	for _, n := range []network{net4, net6} {
		for name, ours := range map[string]program{
			"native": native{}, "bare": bare{mark: "offer", peer: "none"}, "library": library{connect: "peer-not-offering", serve: "client-not-offering"},
		} {
			t.Run(fmt.Sprintf("%s to %s without the hook", name, address(n.kernel)), func(t *testing.T) {
				m.meet(t, meeting{net: n, role: "connect", ours: ours, wire: []string{"> SYN", "< SYN-ACK"}, fell: "server 03010000"})
			})
			t.Run(fmt.Sprintf("%s at %s without the hook", name, address(n.ours)), func(t *testing.T) {
				m.meet(t, meeting{net: n, role: "serve", ours: ours, wire: []string{"> SYN SMC", "< SYN-ACK"}, fell: "client 03010000"})
			})
		}
	}
}

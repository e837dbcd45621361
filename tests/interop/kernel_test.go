//go:build interop

package interop

import (
	"maps"
	"net/netip"
	"path"
	"regexp"
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

// meeting is a program on our side with one of the kernel's AF_SMC.
type meeting struct {
	net  network
	role string // ours: connect or serve
	ours program
	wire []string // what passes on each connection
	fell string   // the kernel to TCP: in which role and why; "" = it had no part in it
	ueid string   // the kernel's, if not as usual; "none"
}

// program says what to run on our side, and on the kernel's.
type program interface {
	ours(role, address string, port int) string
	kernels(role, address string, port int) string
	check(t *testing.T, out string, connections int)
}

func (m *machines) meet(t *testing.T, x meeting) {
	t.Helper()
	if x.ueid != "" {
		m.setUEID(t, x.ueid)
		defer m.setUEID(t, usual[m.flavour])
	}
	port := m.freePort()
	before := m.fallbacks(t)
	var out string
	if x.role == "connect" {
		at := address(x.net.kernel)
		server := m.kernel.start(t, "%s", x.ours.kernels("serve", at, port))
		m.kernel.listening(t, port)
		out = m.ours.run(t, "%s", x.ours.ours("connect", at, port))
		server.ok()
	} else {
		at := address(x.net.ours)
		server := m.ours.start(t, "%s", x.ours.ours("serve", at, port))
		m.ours.listening(t, port)
		m.kernel.run(t, "%s", x.ours.kernels("connect", at, port))
		out = server.ok()
	}
	wire := m.wire(t, port)
	if len(wire) == 0 {
		t.Fatal("no connection on the wire")
	}
	for _, w := range wire {
		if d := cmp.Diff(x.wire, w, x.alike()); d != "" {
			t.Errorf("on the wire (-want +got):\n%s", d)
		}
	}
	fell := fallbacks{}
	if x.fell != "" {
		fell[x.fell] = len(wire)
	}
	if d := cmp.Diff(fell, m.fallbacks(t).since(before)); d != "" {
		t.Errorf("the kernel fell back (-want +got):\n%s", d)
	}
	x.ours.check(t, out, len(wire))
}

// alike leaves the code of a Decline of ours open if we may have left meanwhile.
func (x meeting) alike() cmp.Option {
	app, ok := x.ours.(application)
	return cmp.FilterValues(func(a, b string) bool {
		return ok && app.leaves() && x.role == "connect" && strings.HasPrefix(a, "> DECLINE 10 28 ") && strings.HasPrefix(b, "> DECLINE 10 28 ")
	}, cmp.Ignore())
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

func (f fallbacks) since(before fallbacks) fallbacks {
	maps.DeleteFunc(f, func(why string, _ int) bool { f[why] -= before[why]; return f[why] == 0 })
	return f
}

var vlanModules = []string{"drivers/net/macvlan", "net/tls/tls", "drivers/net/bonding/bonding"}

// vlans: the networks of connections, on a kernel that is known to have VLANs.
func (m *machines) vlans(t *testing.T) {
	m.ours.run(t, "for i in 8021q bridge; do modprobe $i; done")
	m.ours.load(t, vlanModules)
	t.Log(m.ours.run(t, "PATH=%s:$PATH lan.test -test.v -test.run TestVLANs", path.Dir(ipTool)))
}

func TestAgainstTheKernel(t *testing.T) {
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
			m.library(t)
			if flavour == "v1" { // the kernel is the same
				m.ipsec(t)
				t.Run("VLANs", m.vlans)
			}
			if out := m.kernel.run(t, "rigt stats; rigt lgrs"); !strings.HasSuffix(out, " stats.clnt_hs_err=0 stats.srv_hs_err=0 \n") {
				t.Errorf("handshakes failed, or link groups are left: %s", out)
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

//go:build interop

package interop

import (
	"fmt"
	"path"
	"testing"
)

// ipTool is the whole ip, beside that of the machines' shell.
const ipTool = "/usr/local/iproute2/ip"

var ipsecModules = []string{"net/xfrm/xfrm_algo", "net/xfrm/xfrm_user", "net/ipv4/ah4"} // in this order

// sec4 is what IPsec protects, some of it: with AH, so that the wire still shows who offers.
var sec4 = network{"10.96.0.1/24", "10.96.0.2/24"}

// load loads modules that the rig leaves out.
func (v *machine) load(t *testing.T, modules []string) {
	for _, m := range modules {
		v.run(t, "insmod /lib/more/%s.ko", path.Base(m))
	}
}

// protect has IPsec protect what these machines send, by policies of the system.
func (m *machines) protect(t *testing.T, senders ...*machine) {
	t.Helper()
	for _, v := range []*machine{m.kernel, m.ours} {
		v.run(t, "%s xfrm state flush; %[1]s xfrm policy flush", ipTool)
	}
	for _, sender := range senders {
		from, to := address(sec4.kernel), address(sec4.ours)
		if sender == m.ours {
			from, to = to, from
		}
		for _, v := range []*machine{m.kernel, m.ours} {
			dir := "in"
			if v == sender {
				dir = "out"
			}
			v.run(t, `set -e
%s xfrm state add src %s dst %s proto ah spi 0x10%s reqid 1 mode transport auth 'hmac(sha256)' 0x%064d
%[1]s xfrm policy add src %[2]s dst %[3]s dir %[6]s tmpl proto ah reqid 1 mode transport`, ipTool, from, to, sender.role, 7, dir)
		}
	}
}

// ipsec: neither end offers, or answers an offer, on what IPsec protects; in one direction is enough (RFC 7609 §5.5). The kernel's own
// SMC knows policies of the socket only: it offers, and where it answers under protection we decline.
func (m *machines) ipsec(t *testing.T) {
	for _, v := range []*machine{m.kernel, m.ours} {
		v.load(t, ipsecModules)
	}
	m.kernel.run(t, "ip addr add %s dev eth0", sec4.kernel)
	m.ours.run(t, "ip addr add %s dev eth0", sec4.ours)
	app := applications["rigt"]
	both := app
	both.both = true
	offered, none := []string{"> SYN SMC", "< SYN-ACK"}, []string{"> SYN", "< SYN-ACK"}
	agreed := []string{"> SYN SMC", "< SYN-ACK SMC", "> DECLINE 10 28 03020000"}
	app.why, both.why = "ipsec", "ipsec"
	for _, x := range []struct {
		name           string
		senders        []*machine
		serve, connect meeting  // with the kernel's SMC
		theirs, with   []string // where both have the library
	}{
		{"what both send", []*machine{m.kernel, m.ours},
			meeting{wire: offered, fell: "client 03010000"}, meeting{wire: none, fell: "server 03010000"}, none, none},
		{"what the kernel's machine sends", []*machine{m.kernel},
			meeting{wire: offered, fell: "client 03010000"}, meeting{wire: agreed, fell: "server 05000000"}, none, offered},
		{"what ours sends", []*machine{m.ours},
			meeting{wire: offered, fell: "client 03010000"}, meeting{wire: none, fell: "server 03010000"}, offered, none},
	} {
		m.protect(t, x.senders...)
		for role, w := range map[string]meeting{"serve": x.serve, "connect": x.connect} {
			w.net, w.role, w.ours = sec4, role, app
			t.Run(fmt.Sprintf("IPsec protects %s, ours to %s", x.name, role), func(t *testing.T) { m.meet(t, w) })
		}
		m.kernel.run(t, "smcr enable")
		for role, wire := range map[string][]string{"serve": x.theirs, "connect": x.with} {
			w := meeting{net: sec4, role: role, ours: both, wire: wire}
			t.Run(fmt.Sprintf("IPsec protects %s, two hosts with the library, ours to %s", x.name, role), func(t *testing.T) { m.meet(t, w) })
		}
		m.kernel.run(t, "smcr disable")
	}
	m.protect(t)
	both.why = "peer-declined"
	m.kernel.run(t, "smcr enable")
	m.meet(t, meeting{net: sec4, role: "connect", ours: both, wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 52", "< DECLINE 10 28 03030000"}})
	m.kernel.run(t, "smcr disable")
}

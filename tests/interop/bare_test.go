//go:build interop

package interop

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// bare is tests/apps/bare.c, which speaks CLC by hand: what goes out is made by our encoders, what comes in is read by our
// decoders.
type bare struct {
	mark, peer string   // offers or not; what the hook must say of the handshake
	steps      []string // before the first bytes of rigt's protocol
	see        func(t *testing.T, m []byte)
}

const echo = 100

func (bare) kernels(role, address string, port int) string {
	if role == "serve" {
		return fmt.Sprintf("rigt srv -m tcp -n 1 -t 30 %s %d", address, port)
	}
	return fmt.Sprintf("rigt cli -m tcp -t 30 %s %d echo:%d", address, port, echo)
}

func (b bare) ours(role, address string, port int) string {
	steps := append([]string{"peer"}, b.steps...)
	if role == "connect" {
		// An echo as rigt wants it: a header of four words, and the bytes.
		data := strings.Repeat("5a", echo)
		steps = append(steps, fmt.Sprintf("send:%x%08x%08x%08x%s", "RIGT", 1, echo, 0, data), "got:"+data)
	} else {
		steps = append(steps, fmt.Sprintf("echo:16:%d", echo), "end")
	}
	return fmt.Sprintf("bare %s %s %s %d %s", b.mark, role, address, port, strings.Join(steps, " "))
}

func (b bare) check(t *testing.T, out string, _ int) {
	t.Helper()
	hook := "peer " + b.peer + "\n"
	if b.peer == "none" {
		hook = "no hook\n" + hook
	}
	rest, ok := strings.CutPrefix(out, hook)
	if !ok {
		t.Errorf("%q, want %q", out, hook)
	}
	if text, ok := strings.CutPrefix(rest, "clc "); ok {
		m, err := hex.DecodeString(strings.TrimSpace(text))
		if err != nil || b.see == nil {
			t.Fatalf("%v: %s", err, rest)
		}
		b.see(t, m)
	} else if b.see != nil {
		t.Errorf("no CLC message: %q", out)
	}
}

// What our encoders make of one Proposal or Decline each; the first is that of RFC 7609 §A.2.2, of 52 bytes over IPv4.
var (
	ourMAC = roce.MAC{0x52, 0x54, 0, 0xaa, 0, 2}
	ourID  = smc.NewPeerID(0x1234, ourMAC)
	rigEID = eid("SMCRRIG")
)

func eid(name string) smc.EID {
	e, err := smc.ParseEID(name)
	if err != nil {
		panic(err)
	}
	return e
}

func gid(address string) roce.GID { return roce.GIDFrom(netip.MustParseAddr(address)) }

func send(m []byte) string { return "send:" + hex.EncodeToString(m) }

// proposeV1 is a Proposal of version 1 from our end of a network.
func proposeV1(n network) string {
	m := clc.Proposal{Version: smc.V1, PeerID: ourID, GID: gid("fe80::5054:ff:feaa:2"), MAC: ourMAC}
	if p := netip.MustParsePrefix(n.ours); p.Addr().Is4() {
		m.Subnet = clc.SubnetOf(smc.Linux, p)
	} else {
		m.Prefixes = []clc.Prefix{clc.PrefixOf(p)}
	}
	return send(m.Append(smc.Linux, nil))
}

// proposeV2 offers version 2 alone.
func proposeV2(name string) string {
	return send(clc.Proposal{Version: smc.V2, TypeV1: clc.TransportNone, PeerID: ourID, MAC: ourMAC,
		Ext: &clc.ProposalExt{GID: gid("::ffff:10.99.0.2"), EIDs: []smc.EID{eid(name)}}}.Append(smc.Linux, nil))
}

func declineWith(v smc.Version) string {
	return send(clc.Decline{Version: v, PeerID: ourID, Diagnosis: clc.DeclineNoDevice, OS: clc.OSLinux}.Append(nil))
}

// The kernel's messages, as it must have meant them: only instance numbers and what it drew by lot is taken as it came.
func proposal(want clc.Proposal) func(*testing.T, []byte) {
	return func(t *testing.T, b []byte) {
		t.Helper()
		var m clc.Proposal
		if err := m.Decode(smc.Linux, b); err != nil {
			t.Fatal(err)
		}
		want.Version = smc.V2
		if want.TypeV1 != clc.TransportNone {
			want.GID, want.MAC = gid("fe80::5054:ff:feaa:1"), roce.MAC{0x52, 0x54, 0, 0xaa, 0, 1}
			want.PeerID = smc.NewPeerID(m.PeerID.Instance(), want.MAC)
		}
		if d := cmp.Diff(want, m); d != "" {
			t.Errorf("the kernel's Proposal (-want +got):\n%s", d)
		}
	}
}

func accept(version smc.Version, address string, e smc.EID) func(*testing.T, []byte) {
	return func(t *testing.T, b []byte) {
		t.Helper()
		var m clc.Accept
		if err := m.Decode(b); err != nil {
			t.Fatal(err)
		}
		if !m.FirstContact || m.Version != version || m.GID != gid(address) || m.MAC != (roce.MAC{0x52, 0x54, 0, 0xaa, 0, 1}) || m.Index != 1 || m.EID != e {
			t.Errorf("the kernel's Accept: %s", m)
		}
	}
}

func declined(code clc.DeclineCode) func(*testing.T, []byte) {
	return func(t *testing.T, b []byte) {
		t.Helper()
		var m clc.Decline
		if err := m.Decode(b); err != nil || m.Diagnosis != code || m.OutOfSync {
			t.Errorf("%v: %s", err, m)
		}
	}
}

// The kernel's own Proposals and Declines, what it answers to ours, and that it goes on over TCP after a Decline of either
// side. Our Declines come where the library's would.
var bareMeetings = map[string][]struct {
	name string
	meeting
}{
	"v1": {
		{"a program that does not offer", meeting{net: net4, role: "connect", ours: bare{mark: "plain", peer: "unknown"},
			wire: []string{"> SYN", "< SYN-ACK"}, fell: "server 03010000"}},
		{"Decline of a v1 Proposal", meeting{net: net4, role: "serve",
			ours: bare{mark: "offer", peer: "yes", steps: []string{"clc", declineWith(smc.V1)}, see: proposal(clc.Proposal{TypeV2: clc.TransportNone, Subnet: subnet("10.99.0.0/24")})},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 28 92", "< DECLINE 10 28 03030000"}, fell: "client 05000000"}},
		{"Decline of version 2", meeting{net: net4, role: "serve",
			ours: bare{mark: "offer", peer: "yes", steps: []string{"clc", declineWith(smc.V2)}, see: proposal(clc.Proposal{TypeV2: clc.TransportNone, Subnet: subnet("10.99.0.0/24")})},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 28 92", "< DECLINE 20 44 03030000"}, fell: "client 05000000"}},
		{"v1 Proposal over IPv6", meeting{net: net6, role: "serve",
			ours: bare{mark: "offer", peer: "yes", steps: []string{"clc", declineWith(smc.V1)}, see: proposal(clc.Proposal{TypeV2: clc.TransportNone, Prefixes: prefixes("fd99::/64")})},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 28 109", "< DECLINE 10 28 03030000"}, fell: "client 05000000"}},
		{"our v1 Proposal of 52 bytes", meeting{net: net4, role: "connect",
			ours: bare{mark: "offer", peer: "yes", steps: []string{proposeV1(net4), "clc", declineWith(smc.V1)}, see: accept(smc.V1, "fe80::5054:ff:feaa:1", smc.EID{})},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 52", "< ACCEPT 18 68", "> DECLINE 10 28 03030000"}, fell: "server 05000000"}},
		{"our v1 Proposal over IPv6", meeting{net: net6, role: "connect",
			ours: bare{mark: "offer", peer: "yes", steps: []string{proposeV1(net6), "clc", declineWith(smc.V1)}, see: accept(smc.V1, "fe80::5054:ff:feaa:1", smc.EID{})},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 69", "< ACCEPT 18 68", "> DECLINE 10 28 03030000"}, fell: "server 05000000"}},
		{"Decline in place of a Proposal", meeting{net: net4, role: "connect", ours: bare{mark: "offer", peer: "yes", steps: []string{declineWith(smc.V1)}},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> DECLINE 10 28 03030000"}, fell: "server 05000000"}},
		{"another subnet", meeting{net: odd4, role: "connect",
			ours: bare{mark: "offer", peer: "yes", steps: []string{proposeV1(odd4), "clc"}, see: declined(clc.DeclinePrefix)},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 52", "< DECLINE 10 28 03070000"}, fell: "server 03070000"}},
		{"our v2 Proposal to a kernel without UEID", meeting{net: net4, role: "connect",
			ours: bare{mark: "offer", peer: "yes", steps: []string{proposeV2("SMCRRIG"), "clc"}, see: declined(clc.DeclineNoDevice)},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 22 156", "< DECLINE 20 44 03030000"}, fell: "server 03030000"}},
		{"v1 and v2 Proposal", meeting{net: net4, role: "serve", ueid: "SMCRRIG",
			ours: bare{mark: "offer", peer: "yes", steps: []string{"clc", declineWith(smc.V1)}, see: proposal(clc.Proposal{Subnet: subnet("10.99.0.0/24"), Ext: kernelExt})},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 20 164", "< DECLINE 10 28 03030000"}, fell: "client 05000000"}},
	},
	"stock": {
		{"v2 Proposal", meeting{net: net4, role: "serve",
			ours: bare{mark: "offer", peer: "yes", steps: []string{"clc", declineWith(smc.V2)}, see: proposal(clc.Proposal{TypeV1: clc.TransportNone, Ext: kernelExt})},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 22 156", "< DECLINE 20 44 03030000"}, fell: "client 05000000"}},
		{"Decline of version 1", meeting{net: net4, role: "serve",
			ours: bare{mark: "offer", peer: "yes", steps: []string{"clc", declineWith(smc.V1)}, see: proposal(clc.Proposal{TypeV1: clc.TransportNone, Ext: kernelExt})},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 22 156", "< DECLINE 10 28 03030000"}, fell: "client 05000000"}},
		{"IPv6, where v2 does not go", meeting{net: net6, role: "serve", ours: bare{mark: "offer", peer: "yes", steps: []string{"clc"}, see: declined(clc.DeclineNoDevice)},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> DECLINE 10 28 03030000"}, fell: "client 03030000"}},
		{"our v1 Proposal", meeting{net: net4, role: "connect", ours: bare{mark: "offer", peer: "yes", steps: []string{proposeV1(net4), "clc"}, see: declined(clc.DeclineNoDevice)},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 52", "< DECLINE 10 28 03030000"}, fell: "server 03030000"}},
		{"our v2 Proposal", meeting{net: net4, role: "connect",
			ours: bare{mark: "offer", peer: "yes", steps: []string{proposeV2("SMCRRIG"), "clc", declineWith(smc.V2)}, see: accept(smc.V2, "::ffff:10.99.0.1", rigEID)},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 22 156", "< ACCEPT 28 160", "> DECLINE 20 44 03030000"}, fell: "server 05000000"}},
		{"another UEID", meeting{net: net4, role: "connect", ours: bare{mark: "offer", peer: "yes", steps: []string{proposeV2("OTHER"), "clc"}, see: declined(clc.DeclineNoDevice)},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 22 156", "< DECLINE 20 44 03030000"}, fell: "server 03030000"}},
		{"no UEID", meeting{net: net4, role: "serve", ueid: "none", ours: bare{mark: "offer", peer: "yes", steps: []string{"clc"}, see: declined(clc.DeclineNoDevice)},
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> DECLINE 10 28 03030000"}, fell: "client 03030000"}},
	},
}

// kernelExt is what 6.12 says of itself beside its UEID.
var kernelExt = &clc.ProposalExt{Release: 1, GID: gid("::ffff:10.99.0.1"), MaxConns: 255, MaxLinks: 2, Features: 1, EIDs: []smc.EID{rigEID}}

func subnet(s string) clc.Subnet { return clc.SubnetOf(smc.Linux, netip.MustParsePrefix(s)) }

func prefixes(s string) []clc.Prefix { return []clc.Prefix{clc.PrefixOf(netip.MustParsePrefix(s))} }

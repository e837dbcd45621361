package hook

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"libsmcr/tests/harness"
)

// A policy that transforms nothing protects nothing. What IPsec does protect is in tests/interop, whose kernel is known to have AH.
func TestPolicyWithoutProtection(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	for _, s := range []*space{a, b} {
		s.run("ip xfrm policy add dir out; ip xfrm policy add dir in tmpl proto ah mode transport level use")
	}
	l := b.listener(server4, true)
	client := connect(a, l, server4, true)
	w.want("policies that let pass", client, l.accept(), want(true, true))
}

// taken has the hook as it would be on a kernel whose structures are others.
func taken(t *testing.T, change func(dst, skb *btf.Struct, ext *btf.Enum)) {
	t.Helper()
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	types = types.Copy()
	var dst, skb *btf.Struct
	var ext *btf.Enum
	for name, as := range map[string]any{"dst_entry": &dst, "sk_buff": &skb, "skb_ext_id": &ext} {
		if err := types.TypeByName(name, as); err != nil {
			t.Fatal(err)
		}
	}
	change(dst, skb, ext)
	spec, err := ebpf.LoadCollectionSpec(filepath.Join(harness.Root(), "kernel", "smcr_bpfel.o"))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{KernelTypes: types}})
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	for name, p := range loaded.Programs {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: outer, Attach: spec.Programs[name].AttachType, Program: p})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
}

// member finds what must be there.
func member(t *testing.T, s *btf.Struct, name string) *btf.Member {
	t.Helper()
	i := slices.IndexFunc(s.Members, func(m btf.Member) bool { return m.Name == name })
	if i < 0 {
		t.Fatalf("struct %s has no %s", s.Name, name)
	}
	return &s.Members[i]
}

func TestKernelWithoutIPsec(t *testing.T) {
	taken(t, func(dst, skb *btf.Struct, ext *btf.Enum) {
		member(t, dst, "xfrm").Name = "__pad1"
		member(t, skb, "active_extensions").Name = "other"
		for i := range ext.Values {
			ext.Values[i].Name = "OTHER"
		}
	})
	a, b := hosts(t)
	w := a.wire("eth0")
	l := b.listener(server4, true)
	client := connect(a, l, server4, true)
	w.want("no IPsec in this kernel", client, l.accept(), want(true, true))
}

// Routes that encapsulate are taken for such that transform: they can be made on any kernel, and each host has its own.
func TestProtectionOfEachDirection(t *testing.T) {
	taken(t, func(dst, _ *btf.Struct, _ *btf.Enum) {
		x, encap := member(t, dst, "xfrm"), member(t, dst, "lwtstate")
		x.Offset, encap.Offset = encap.Offset, x.Offset
	})
	for _, c := range []struct {
		name           string
		client, server bool
		want           handshake
	}{
		{"neither", false, false, want(true, true)},
		{"client", true, false, handshake{client: ipsec, server: no}},
		{"server", false, true, handshake{client: no, server: ipsec, syn: true}},
		{"both", true, true, handshake{client: ipsec, server: ipsec}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := hosts(t)
			w := a.wire("eth0")
			for host, s := range map[int]*space{1: b, 2: a} {
				if c.client && s == a || c.server && s == b {
					s.run(fmt.Sprintf("ip route add 10.0.0.%d encap ip id 1 dst 10.0.0.%d dev eth0; ip -6 route add fd00::%d encap ip6 id 1 dst fd00::%d dev eth0", host, host, host, host))
				}
			}
			l := b.listener(any6, true)
			for _, to := range []netip.Addr{server4, server6} {
				client := connect(a, l, to, true)
				w.want(to.String(), client, l.accept(), c.want)
			}
			if c.client && c.server {
				sums := talk(t, a, b, server4)
				sums.want(t, "client", 0, map[string]int{"ipsec": 2})
				sums.want(t, "server", 0, map[string]int{"ipsec": 2})
			}
		})
	}
}

// The registry does not overrule it.
func TestProtectedLoopback(t *testing.T) {
	taken(t, func(dst, _ *btf.Struct, _ *btf.Enum) {
		x, encap := member(t, dst, "xfrm"), member(t, dst, "lwtstate")
		x.Offset, encap.Offset = encap.Offset, x.Offset
	})
	s := newSpace(t)
	s.run("ip route add local 127.0.0.9 encap ip id 1 dst 127.0.0.1 dev lo table local; ip route get 127.0.0.9")
	sums := talk(t, s, s, netip.MustParseAddr("127.0.0.9"))
	sums.want(t, "client", 0, map[string]int{"ipsec": 2})
	sums.want(t, "server", 0, map[string]int{"ipsec": 2})
}

package clc

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// figure26 is RFC 7609 §A.2.2, Figure 26, on an IPv4 connection. The subnet field holds a mask, as the RFC's text has it.
const figure26 = `
	e2d4c3d9
	01 0034 10               # type, length, version
	0102030405060708         # client's peer ID
	fe801112 13141516 1718191a 1b1c1d1e # client's preferred GID
	212223242526             # client's preferred MAC
	0000                     # offset to mask/prefix area
	fffff000                 # IPv4 subnet mask
	14 0000 00               # mask length, reserved, number of IPv6 prefixes
	e2d4c3d9`

func figureProposal(t testing.TB) Proposal {
	return Proposal{Version: smc.V1, PeerID: peerID(t, figPeerID), GID: gid(t, figGID), MAC: roce.MAC(golden.Hex(t, figMAC))}
}

func TestProposalFigure26(t *testing.T) {
	want := figureProposal(t)
	want.Subnet = Subnet{Addr: [4]byte{255, 255, 240, 0}, Bits: 20}
	golden.Check(t, proposals(smc.RFC), golden.Hex(t, figure26), want, "7:0f 45-46")
	// With Linux the two low bits of byte 7 are the transports of v1: SMC-R, here.
	golden.Check(t, proposals(smc.Linux), golden.Hex(t, figure26), want, "7:0c 45-46")
	if !want.OffersV1() || want.OffersV2() {
		t.Error("offers")
	}
}

// TestProposalFigure27 has IPv6 prefixes as in RFC 7609 §A.2.2, Figure 27.
func TestProposalFigure27(t *testing.T) {
	want := figureProposal(t)
	want.Prefixes = []Prefix{
		{Addr: netip.MustParseAddr("2001:db8:1234::").As16(), Bits: 48},
		{Addr: netip.MustParseAddr("fd00:1:2:3:4:5:6:7").As16(), Bits: 128},
	}
	golden.Check(t, proposals(smc.RFC), golden.Hex(t, `
		e2d4c3d9 01 0056 10 0102030405060708
		fe801112 13141516 1718191a 1b1c1d1e 212223242526
		0000
		00000000 00 0000 02
		20010db8 12340000 00000000 00000000 30
		fd000001 00020003 00040005 00060007 80
		e2d4c3d9`), want, "7:0f 45-46")
}

// TestProposalGrowthArea: RFC 7609 §A.2.2: the area for future growth is skipped by its offset; it is never sent.
func TestProposalGrowthArea(t *testing.T) {
	want := figureProposal(t)
	want.Subnet = Subnet{Addr: [4]byte{255, 255, 240, 0}, Bits: 20}
	plain := golden.Hex(t, figure26)
	for _, n := range []int{1, 4, 40, 41, 1000, 65535 - 52} {
		b := append([]byte(nil), plain[:40]...)
		b = append(b, strings.Repeat("\xff", n)...)
		b = append(b, plain[40:]...)
		b[5], b[6] = byte(len(b)>>8), byte(len(b))
		b[38], b[39] = byte(n>>8), byte(n)
		golden.CheckDecode(t, proposals(smc.RFC), b, want)
		golden.CheckNoAlias(t, proposals(smc.RFC), b)
		golden.CheckAppend(t, proposals(smc.RFC), want, plain)
		// One byte less or more does not add up.
		for _, off := range []int{n - 1, n + 1, n + 7, n + 8, 65535} {
			b[38], b[39] = byte(off>>8), byte(off)
			if off > 65535 {
				continue
			}
			var m Proposal
			if err := m.Decode(smc.RFC, b); ClassOf(err) != NotCLC {
				t.Errorf("area of %d bytes, offset %d: %v", n, off, err)
			}
		}
	}
}

func TestProposalGoldens(t *testing.T) {
	v1 := Proposal{
		Version: smc.V2, TypeV1: TransportR, TypeV2: TransportNone,
		PeerID: peerID(t, "1184525400aa0002"), GID: gid(t, "fe80000000000000 505400fffeaa0002"), MAC: macB,
		Subnet: Subnet{Addr: [4]byte{10, 99, 0, 0}, Bits: 24},
	}
	checkGolden(t, proposals(smc.Linux), "v1-proposal-b7_28-len92-from_B", v1, "40-79 85-86")
	if !v1.OffersV1() || v1.OffersV2() {
		t.Error("offers")
	}
	v2 := Proposal{
		Version: smc.V2, TypeV1: TransportNone, TypeV2: TransportR,
		Ext: &ProposalExt{Release: 1, GID: gid(t, "00000000000000000000ffff0a630002"), MaxConns: 255, MaxLinks: 2, Features: 1, EIDs: []smc.EID{eid(t, "SMCRRIG")}},
	}
	checkGolden(t, proposals(smc.Linux), "v2-proposal-b7_22-len156-from_B", v2, "38-49 52-79 81-82 83:0f 84-87 108-119")
	if v2.OffersV1() || !v2.OffersV2() {
		t.Error("offers")
	}
}

// TestProposalOfBothVersions is what a client with one UEID on hardware sends: 164 bytes for IPv4.
func TestProposalOfBothVersions(t *testing.T) {
	m := figureProposal(t)
	m.Version = smc.V2
	m.Subnet = Subnet{Addr: [4]byte{10, 99, 0, 0}, Bits: 24}
	m.Ext = &ProposalExt{GID: gid(t, "00000000000000000000ffff0a630002"), EIDs: []smc.EID{eid(t, "A")}}
	b := m.Append(smc.Linux, nil)
	if len(b) != 164 || b[7] != 0x20 {
		t.Errorf("%d bytes, byte 7 0x%02x", len(b), b[7])
	}
	golden.Check(t, proposals(smc.Linux), golden.Hex(t, `
		e2d4c3d9 01 00a4 20 0102030405060708
		fe801112 13141516 1718191a 1b1c1d1e 212223242526
		0028
		0000000000000000 0000 0024 00000000000000000000000000000000000000000000000000000000 # SMC-D, v2 extension at 52+36
		0a630000 18 0000 00
		01 00 00 00 0000 0000 00000000000000000000ffff0a630002 00 00 0000 000000000000000000000000
		4120202020202020 2020202020202020 2020202020202020 2020202020202020
		e2d4c3d9`), m, "40-49 52-79 85-86 89-90 91:0f 92-95 116-127")
	if !m.OffersV1() || !m.OffersV2() {
		t.Error("offers")
	}
}

// linuxLength is the length that a Linux server wants of a Proposal of version 2.
func linuxLength(m Proposal) int {
	n := 40 + 40 + 4
	if m.TypeV1 != TransportNone {
		n += 8 + 17*len(m.Prefixes)
	}
	if m.TypeV2 != TransportNone && m.Ext != nil {
		n += 40 + 32*len(m.Ext.EIDs)
	}
	return n
}

func TestProposalSizes(t *testing.T) {
	for prefixes := range MaxPrefixes + 2 {
		m := figureProposal(t)
		m.Prefixes = make([]Prefix, prefixes)
		for i := range m.Prefixes {
			m.Prefixes[i] = Prefix{Addr: [16]byte{0x20, 1, byte(i)}, Bits: uint8(40 + i)}
		}
		n := min(prefixes, MaxPrefixes)
		b := m.Append(smc.RFC, nil)
		if len(b) != 52+17*n || int(b[47]) != n {
			t.Errorf("%d prefixes: %d bytes, count %d", prefixes, len(b), b[47])
		}
		var got Proposal
		if err := got.Decode(smc.RFC, b); err != nil || fmt.Sprint(got.Prefixes) != fmt.Sprint(m.Prefixes[:n]) {
			t.Errorf("%d prefixes: %v, %s", prefixes, err, got)
		}
		for eids := range MaxEIDs + 2 {
			m := m
			m.Version, m.Prefixes = smc.V2, m.Prefixes[:n]
			m.Ext = &ProposalExt{EIDs: make([]smc.EID, eids)}
			for _, v1 := range []Transport{TransportR, TransportNone} {
				m.TypeV1 = v1
				b := m.Append(smc.Linux, nil)
				m.Ext.EIDs = m.Ext.EIDs[:min(eids, MaxEIDs)]
				if len(b) != linuxLength(m) {
					t.Errorf("%d prefixes, %d EIDs: %d bytes, Linux wants %d", n, eids, len(b), linuxLength(m))
				}
				if err := got.Decode(smc.Linux, b); err != nil || len(got.Ext.EIDs) != min(eids, MaxEIDs) {
					t.Errorf("%d prefixes, %d EIDs: %v", n, eids, err)
				}
			}
		}
	}
}

// TestProposalCountsBeyondTheMessage: counts and offsets that reach beyond the message are protocol errors.
func TestProposalCountsBeyondTheMessage(t *testing.T) {
	at := func(m Proposal, off int, v ...byte) []byte {
		b := m.Append(smc.Linux, nil)
		copy(b[off:], v)
		return b
	}
	v1, v2 := figureProposal(t), figureProposal(t)
	v2.Version, v2.TypeV1 = smc.V2, TransportNone
	v2.Ext = &ProposalExt{EIDs: make([]smc.EID, 8)}
	for name, b := range map[string][]byte{
		"one prefix more than there is":    at(v1, 47, 1),
		"255 prefixes":                     at(v1, 47, 255),
		"nine EIDs":                        at(v2, 80, 9),
		"255 EIDs":                         at(v2, 80, 255),
		"v2 extension in the fixed fields": at(v2, 50, 0, 27),
		"v2 extension at the end":          at(v2, 50, 1, 0x1d),
		"v2 extension far away":            at(v2, 50, 0xff, 0xff),
	} {
		var m Proposal
		if err := m.Decode(smc.Linux, b); ClassOf(err) != NotCLC {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Nine prefixes with room for them are still one too many (RFC 7609 §A.2.2).
	b := v1.Append(smc.RFC, nil)
	b = append(append(b[:48:48], make([]byte, 9*17)...), smc.EyeCatcher[:]...)
	b[6], b[47] = byte(len(b)), 9
	var m Proposal
	if err := m.Decode(smc.RFC, b); ClassOf(err) != NotCLC {
		t.Errorf("nine prefixes: %v", err)
	}
}

// TestProposalOfLaterVersion: the lowest common version is used (RFC 7609 §A.2), so that a later one must be readable.
func TestProposalOfLaterVersion(t *testing.T) {
	for _, f := range golden.Load(t, files) {
		if !strings.HasPrefix(f.Name, "v1-proposal") && !strings.HasPrefix(f.Name, "v2-proposal") {
			continue
		}
		n := len(f.Bytes) - TrailerSize
		b := append(append(append([]byte(nil), f.Bytes[:n]...), "what version 3 adds"...), f.Bytes[n:]...)
		b[5], b[6], b[7] = byte(len(b)>>8), byte(len(b)), 0x30|b[7]&0xf
		var later, now Proposal
		if err := later.Decode(smc.Linux, b); err != nil {
			t.Fatal(err)
		}
		if err := now.Decode(smc.Linux, f.Bytes); err != nil {
			t.Fatal(err)
		}
		now.Version = 3
		if later.String() != now.String() {
			t.Errorf("%s, want %s", later, now)
		}
	}
}

// TestTransports: Linux selects transports with bits that are reserved in the RFC's version 1.
func TestTransports(t *testing.T) {
	b := golden.Hex(t, figure26)
	for typ, want := range map[Transport]string{TransportR: "R", TransportD: "D", TransportNone: "none", TransportBoth: "RD"} {
		if typ.String() != want || typ.R() != strings.HasPrefix(want, "R") {
			t.Error(typ)
		}
		b[7] = 0x10 | byte(typ)
		var rfc, linux Proposal
		if err := rfc.Decode(smc.RFC, b); err != nil || rfc.TypeV1 != TransportR || !rfc.OffersV1() {
			t.Errorf("RFC, %s: %s, %v", typ, rfc, err)
		}
		if err := linux.Decode(smc.Linux, b); err != nil || linux.TypeV1 != typ || linux.OffersV1() != typ.R() || linux.Subnet.Bits != 20 {
			t.Errorf("Linux, %s: %s, %v", typ, linux, err)
		}
		if b := linux.Append(smc.RFC, nil); b[7] != 0x10 {
			t.Errorf("reserved bits are sent to a peer of the RFC: 0x%02x", b[7])
		}
	}
	// SMC-D also on offer, as on s390: bits, not whole bytes, are what counts.
	m := figureProposal(t)
	m.Version, m.TypeV1, m.TypeV2, m.Ext = smc.V2, TransportBoth, TransportBoth, &ProposalExt{}
	if b := m.Append(smc.Linux, nil); b[7] != 0x2f || !m.OffersV1() || !m.OffersV2() {
		t.Errorf("0x%02x", b[7])
	}
}

// TestSubnet has the field in which the dialects differ: the RFC's text says mask, Linux has the network number.
func TestSubnet(t *testing.T) {
	net := netip.MustParsePrefix("10.99.17.5/20")
	rfc, linux := SubnetOf(smc.RFC, net), SubnetOf(smc.Linux, net)
	if rfc.String() != "255.255.240.0/20" || linux.String() != "10.99.16.0/20" {
		t.Errorf("%s, %s", rfc, linux)
	}
	for _, c := range []struct {
		d    smc.Dialect
		s    Subnet
		net  string
		want bool
	}{
		{smc.Linux, linux, "10.99.31.255/20", true},
		{smc.Linux, linux, "10.99.32.1/20", false},
		{smc.Linux, linux, "10.99.16.1/24", false},
		{smc.Linux, linux, "2001:db8::/20", false},
		{smc.Linux, rfc, "10.99.17.5/20", false},
		{smc.RFC, rfc, "10.99.17.5/20", true},
		{smc.RFC, rfc, "192.168.0.1/20", true}, // a mask does not tell networks apart
		{smc.RFC, rfc, "10.99.17.5/24", false},
	} {
		if got := c.s.Matches(c.d, netip.MustParsePrefix(c.net)); got != c.want {
			t.Errorf("%s: %s in %s: %t", c.d, c.net, c.s, got)
		}
	}
	for bits, want := range map[int]string{0: "0.0.0.0/0", 1: "128.0.0.0/1", 32: "255.255.255.255/32"} {
		if s := SubnetOf(smc.RFC, netip.PrefixFrom(netip.MustParseAddr("1.2.3.4"), bits)); s.String() != want {
			t.Errorf("%s, want %s", s, want)
		}
	}
	if p := PrefixOf(netip.MustParsePrefix("2001:db8:1:2:3::/64")); p.String() != "2001:db8:1:2::/64" {
		t.Error(p)
	}
}

func TestProposalCovers(t *testing.T) {
	m := Proposal{
		Subnet:   SubnetOf(smc.Linux, netip.MustParsePrefix("10.99.17.5/20")),
		Prefixes: []Prefix{PrefixOf(netip.MustParsePrefix("2001:db8::/32")), PrefixOf(netip.MustParsePrefix("fd00::1/64"))},
	}
	for net, want := range map[string]bool{
		"10.99.31.255/20": true, "10.99.32.1/20": false, "10.99.17.5/24": false, "fd00::2/64": true, "2001:db8:1::1/32": true, "fd00::2/48": false, "fd01::2/64": false,
	} {
		if got := m.Covers(netip.MustParsePrefix(net)); got != want {
			t.Errorf("%s: %t", net, got)
		}
	}
	if m.Covers(netip.Prefix{}) {
		t.Error("no network is covered")
	}
	if mask := (Proposal{Subnet: SubnetOf(smc.RFC, netip.MustParsePrefix("10.99.17.5/20"))}); !mask.Covers(netip.MustParsePrefix("10.99.17.6/20")) {
		t.Error("a mask that fits")
	}
}

func TestProposalString(t *testing.T) {
	m := figureProposal(t)
	m.Prefixes = []Prefix{PrefixOf(netip.MustParsePrefix("2001:db8::/32"))}
	if s := m.String(); s != "PROPOSAL v1 peer=0102-03:04:05:06:07:08 gid=fe80:1112:1314:1516:1718:191a:1b1c:1d1e mac=21:22:23:24:25:26 subnet=0.0.0.0/0 prefixes=[2001:db8::/32]" {
		t.Error(s)
	}
	m = Proposal{Version: smc.V2, TypeV1: TransportNone, Ext: &ProposalExt{Release: 1, MaxConns: 255, MaxLinks: 2, Features: 1, EIDs: []smc.EID{eid(t, "A"), eid(t, "B")}}}
	if s := m.String(); s != `PROPOSAL v2 v1=none v2=R peer=0000-00:00:00:00:00:00 gid=:: mac=00:00:00:00:00:00 release=1 v2gid=:: maxconns=255 maxlinks=2 features=0x1 eids=["A" "B"]` {
		t.Error(s)
	}
	if s := (Proposal{Version: smc.V1, TypeV1: TransportD}).String(); !strings.HasPrefix(s, "PROPOSAL v1 v1=D ") {
		t.Error(s)
	}
}

func FuzzProposal(f *testing.F) {
	seed(f, TypeProposal)
	f.Fuzz(func(t *testing.T, b []byte) {
		fixedPoint(t, TypeProposal, proposals(smc.RFC), b)
		fixedPoint(t, TypeProposal, proposals(smc.Linux), b)
	})
}

package llc

import (
	"testing"

	"libsmcr/abi/smc"
)

// figure33 is RFC 7609 §A.3.3, Figure 33, with two pairs of Figure 34.
const figure33 = `
	03 2c 00 80              # type, length, reserved, R
	11 03 0000               # link number, RTokens left, reserved
	21222324 31323334 4142434445464748 # reference RKey, new RKey, new virtual address
	51525354 61626364 7172737475767778
	00000000                 # reserved`

func TestAddLinkContFigures33And34(t *testing.T) {
	checkFigure(t, figure33, AddLinkCont{
		Reply: true, Link: 0x11, Remaining: 3, Pairs: [2]RKeyPair{
			{0x21222324, smc.RToken{RKey: 0x31323334, VAddr: 0x4142434445464748}},
			{0x51525354, smc.RToken{RKey: 0x61626364, VAddr: 0x7172737475767778}},
		}}, "2 3:7f 6-7 40-43")
}

// TestAddLinkContCounts: 2 or less is the last message; empty ones draw out the other side's RTokens.
func TestAddLinkContCounts(t *testing.T) {
	one := AddLinkCont{Link: 2, Remaining: 1, Pairs: [2]RKeyPair{{Ref: 1, New: smc.RToken{RKey: 2, VAddr: 3}}}}
	checkFigure(t, "032c0000 02010000 00000001 00000002 0000000000000003 00000000 00000000 0000000000000000 00000000", one, "2 3:7f 6-7 24-43")
	checkFigure(t, "032c0080 02000000"+zeros(36), AddLinkCont{Reply: true, Link: 2}, "2 3:7f 6-43")
	for remaining, want := range map[uint8]struct {
		count int
		more  bool
	}{0: {0, false}, 1: {1, false}, 2: {2, false}, 3: {2, true}, 255: {2, true}} {
		m := AddLinkCont{Remaining: remaining}
		if m.Count() != want.count || m.More() != want.more {
			t.Errorf("%d: %d, %t", remaining, m.Count(), m.More())
		}
	}
}

func zeros(n int) string {
	s := ""
	for range n {
		s += "00"
	}
	return s
}

func TestAddLinkContGoldens(t *testing.T) {
	const reserved = "2 3:7f 6-7 40-43"
	pair := func(ref, new smc.RKey, page smc.VAddr) RKeyPair {
		return RKeyPair{ref, smc.RToken{RKey: new, VAddr: 0xff11000000000000 | page<<16}}
	}
	for name, want := range map[string]AddLinkCont{
		"v1-add-link-cont-req-remaining_2-from_A": {Link: 3, Remaining: 2, Pairs: [2]RKeyPair{pair(0x689, 0x103e, 0x695), pair(0x3dc, 0x1139, 0x693)}},
		"v1-add-link-cont-req-remaining_4-from_A": {Link: 3, Remaining: 4, Pairs: [2]RKeyPair{pair(0x815, 0xef7, 0x699), pair(0x7a9, 0xf82, 0x697)}},
		"v1-add-link-cont-req-remaining_6-from_A": {Link: 3, Remaining: 6, Pairs: [2]RKeyPair{pair(0xa84, 0xcb0, 0x69d), pair(0x9c5, 0xd15, 0x69b)}},
		"v1-add-link-cont-req-remaining_8-from_A": {Link: 5, Remaining: 8, Pairs: [2]RKeyPair{pair(0x1376, 0x1561, 0x6ff), pair(0x1269, 0x1635, 0x6fd)}},
		"v1-add-link-cont-rsp-remaining_2-from_B": {Reply: true, Link: 3, Remaining: 2, Pairs: [2]RKeyPair{pair(0x4d9, 0x76a, 0x632), pair(0x322, 0x864, 0x630)}},
		"v1-add-link-cont-rsp-remaining_4-from_B": {Reply: true, Link: 3, Remaining: 4, Pairs: [2]RKeyPair{pair(0x6c8, 0x531, 0x63d), pair(0x520, 0x6d5, 0x634)}},
		"v1-add-link-cont-rsp-remaining_6-from_B": {Reply: true, Link: 3, Remaining: 6, Pairs: [2]RKeyPair{pair(0x836, 0x30f, 0x641), pair(0x77f, 0x434, 0x63f)}},
		"v1-add-link-cont-rsp-remaining_8-from_B": {Reply: true, Link: 5, Remaining: 8, Pairs: [2]RKeyPair{pair(0xae0, 0x133f, 0x6ce), pair(0x918, 0x1447, 0x6c9)}},
	} {
		checkGolden(t, name, want, reserved)
	}
}

func TestAddLinkContString(t *testing.T) {
	m := AddLinkCont{Link: 2, Remaining: 1, Pairs: [2]RKeyPair{{Ref: 1, New: smc.RToken{RKey: 2, VAddr: 3}}}}
	if s := m.String(); s != "ADD LINK CONT req link=2 remaining=1 0x1=0x2@0x3" {
		t.Error(s)
	}
}

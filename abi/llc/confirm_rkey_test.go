package llc

import (
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/smc"
)

// figure36 is RFC 7609 §A.3.5, Figure 36, with two entries of Figure 37.
const figure36 = `
	06 2c 00 b0              # type, length, reserved, R 0 Z C
	02                       # other links
	11121314 2122232425262728 # RKey and virtual address on this link
	31 41424344 5152535455565758 # other link
	61 71727374 8182838485868788 # other link
	00                       # reserved`

func TestConfirmRKeyFigures36And37(t *testing.T) {
	checkFigure(t, figure36, ConfirmRKey{
		Version: smc.V1, Reply: true, Negative: true, Retry: true, NumOthers: 2,
		Token: smc.RToken{RKey: 0x11121314, VAddr: 0x2122232425262728},
		Others: [2]LinkRToken{
			{0x31, smc.RToken{RKey: 0x41424344, VAddr: 0x5152535455565758}},
			{0x61, smc.RToken{RKey: 0x71727374, VAddr: 0x8182838485868788}},
		}}, "2 3:4f 43")
}

func TestConfirmRKeyGoldens(t *testing.T) {
	for name, want := range map[string]ConfirmRKey{
		"v1-confirm-rkey-req-from_A": {Version: smc.V1, Token: smc.RToken{RKey: 0x3da, VAddr: 0xff11000006f30000}},
		"v1-confirm-rkey-req-from_B": {Version: smc.V1, Token: smc.RToken{RKey: 0x348, VAddr: 0xff11000006b30000}},
		"v1-confirm-rkey-rsp-from_A": {Version: smc.V1, Reply: true, Token: smc.RToken{RKey: 0x348, VAddr: 0xff11000006b30000}},
		"v1-confirm-rkey-rsp-from_B": {Version: smc.V1, Reply: true, Token: smc.RToken{RKey: 0x3da, VAddr: 0xff11000006f30000}},
		"v1-confirm-rkey-req-other_1-from_A": {
			Version: smc.V1, NumOthers: 1, Token: smc.RToken{RKey: 0x1269, VAddr: 0xff11000006fd0000},
			Others: [2]LinkRToken{{4, smc.RToken{RKey: 0x9eb, VAddr: 0xff11000006fd0000}}}},
		"v1-confirm-rkey-req-other_1-from_B": {
			Version: smc.V1, NumOthers: 1, Token: smc.RToken{RKey: 0x918, VAddr: 0xff11000006c90000},
			Others: [2]LinkRToken{{4, smc.RToken{RKey: 0x1092, VAddr: 0xff11000006c90000}}}},
		"v1-confirm-rkey-rsp-other_1-from_A": {
			Version: smc.V1, Reply: true, NumOthers: 1, Token: smc.RToken{RKey: 0x918, VAddr: 0xff11000006c90000},
			Others: [2]LinkRToken{{4, smc.RToken{RKey: 0x1092, VAddr: 0xff11000006c90000}}}},
		"v1-confirm-rkey-rsp-other_1-from_B": {
			Version: smc.V1, Reply: true, NumOthers: 1, Token: smc.RToken{RKey: 0x1269, VAddr: 0xff11000006fd0000},
			Others: [2]LinkRToken{{4, smc.RToken{RKey: 0x9eb, VAddr: 0xff11000006fd0000}}}},
		"v2-confirm-rkey-req-from_A": {Version: smc.V2, Token: smc.RToken{RKey: 0x386, VAddr: 0xff11000006720000}},
		"v2-confirm-rkey-req-from_B": {Version: smc.V2, Token: smc.RToken{RKey: 0x336, VAddr: 0xff11000006f40000}},
		"v2-confirm-rkey-rsp-from_A": {Version: smc.V2, Reply: true, Token: smc.RToken{RKey: 0x336, VAddr: 0xff11000006f40000}},
		"v2-confirm-rkey-rsp-from_B": {Version: smc.V2, Reply: true, Token: smc.RToken{RKey: 0x386, VAddr: 0xff11000006720000}},
		"v2-confirm-rkey-req-other_1-from_A": {
			Version: smc.V2, NumOthers: 1, Token: smc.RToken{RKey: 0x1227, VAddr: 0xff11000007460000},
			Others: [2]LinkRToken{{4, smc.RToken{RKey: 0x9dc, VAddr: 0xff11000007460000}}}},
		"v2-confirm-rkey-req-other_1-from_B": {
			Version: smc.V2, NumOthers: 1, Token: smc.RToken{RKey: 0x95f, VAddr: 0xff11000006fa0000},
			Others: [2]LinkRToken{{4, smc.RToken{RKey: 0x1003, VAddr: 0xff11000006fa0000}}}},
		"v2-confirm-rkey-rsp-other_1-from_A": {
			Version: smc.V2, Reply: true, NumOthers: 1, Token: smc.RToken{RKey: 0x95f, VAddr: 0xff11000006fa0000},
			Others: [2]LinkRToken{{4, smc.RToken{RKey: 0x1003, VAddr: 0xff11000006fa0000}}}},
		"v2-confirm-rkey-rsp-other_1-from_B": {
			Version: smc.V2, Reply: true, NumOthers: 1, Token: smc.RToken{RKey: 0x1227, VAddr: 0xff11000007460000},
			Others: [2]LinkRToken{{4, smc.RToken{RKey: 0x9dc, VAddr: 0xff11000007460000}}}},
	} {
		reserved := "3:4f"
		if want.Version == smc.V1 {
			reserved += " 2"
		}
		if want.NumOthers == 0 {
			reserved += " 17-43"
		} else {
			reserved += " 30-43"
		}
		checkGolden(t, name, want, reserved)
	}
}

// TestConfirmRKeyCounts: two others fit; more want a continuation; eight links are the most a group can have.
func TestConfirmRKeyCounts(t *testing.T) {
	for n := range 256 {
		b := golden.Hex(t, figure36)
		b[4] = byte(n)
		var m ConfirmRKey
		err := m.Decode(smc.RFC, b)
		if (err == nil) != (n <= 7) {
			t.Errorf("%d others: %v", n, err)
		}
		if err == nil && (m.Count() != min(n, 2) || m.More() != (n > 2)) {
			t.Errorf("%d others: %d, %t", n, m.Count(), m.More())
		}
	}
}

func TestConfirmRKeyString(t *testing.T) {
	m := ConfirmRKey{Reply: true, Negative: true, Retry: true, NumOthers: 1, Token: smc.RToken{RKey: 1, VAddr: 2},
		Others: [2]LinkRToken{{3, smc.RToken{RKey: 4, VAddr: 5}}}}
	if s := m.String(); s != "CONFIRM RKEY rsp rtoken=0x1@0x2 others=1 3:0x4@0x5 negative retry" {
		t.Error(s)
	}
}

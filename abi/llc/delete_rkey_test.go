package llc

import (
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/smc"
)

// figure39 is RFC 7609 §A.3.7, Figure 39, with the error mask of its text: the second and fourth RKeys were not deleted.
const figure39 = `
	09 2c 00 a0              # type, length, reserved, R 0 Z
	08 50 0000               # count, error mask b'01010000', reserved
	11121314 21222324 31323334 41424344
	51525354 61626364 71727374 81828384
	00000000                 # reserved`

func TestDeleteRKeyFigure39(t *testing.T) {
	want := DeleteRKey{
		Version: smc.V1, Reply: true, Negative: true, Count: 8, Errors: 0x50,
		RKeys: [8]smc.RKey{0x11121314, 0x21222324, 0x31323334, 0x41424344, 0x51525354, 0x61626364, 0x71727374, 0x81828384},
	}
	checkFigure(t, figure39, want, "2 3:5f 6-7 40-43")
	var built DeleteRKey
	built.Fail(1)
	built.Fail(3)
	if built.Errors != want.Errors || !built.Negative {
		t.Errorf("%08b", built.Errors)
	}
	for i := range 8 {
		if want.Failed(i) != (i == 1 || i == 3) {
			t.Errorf("RKey %d", i)
		}
	}
}

func TestDeleteRKeyGoldens(t *testing.T) {
	for name, want := range map[string]DeleteRKey{
		"v1-delete-rkey-req-from_A": {Version: smc.V1, Count: 1, RKeys: [8]smc.RKey{0x3da}},
		"v1-delete-rkey-req-from_B": {Version: smc.V1, Count: 1, RKeys: [8]smc.RKey{0x348}},
		"v1-delete-rkey-rsp-from_A": {Version: smc.V1, Reply: true, Count: 1, RKeys: [8]smc.RKey{0x348}},
		"v1-delete-rkey-rsp-from_B": {Version: smc.V1, Reply: true, Count: 1, RKeys: [8]smc.RKey{0x3da}},
		"v2-delete-rkey-req-from_A": {Version: smc.V2, Count: 1, RKeys: [8]smc.RKey{0x386}},
		"v2-delete-rkey-req-from_B": {Version: smc.V2, Count: 1, RKeys: [8]smc.RKey{0x336}},
		// Linux zeroes the RKeys in replies of version 2.
		"v2-delete-rkey-rsp-from_A": {Version: smc.V2, Reply: true, Count: 1},
		"v2-delete-rkey-rsp-from_B": {Version: smc.V2, Reply: true, Count: 1},
	} {
		reserved := "3:5f 6-7 12-43"
		if want.Version == smc.V1 {
			reserved += " 2"
		}
		checkGolden(t, name, want, reserved)
	}
}

func TestDeleteRKeyCounts(t *testing.T) {
	for n := range 256 {
		b := golden.Hex(t, figure39)
		b[4] = byte(n)
		var m DeleteRKey
		err := m.Decode(smc.RFC, b)
		if (err == nil) != (n <= 8) {
			t.Errorf("%d RKeys: %v", n, err)
		}
		for i, k := range m.RKeys {
			if err == nil && (k != 0) != (i < n) {
				t.Errorf("%d RKeys: number %d is %s", n, i, k)
			}
		}
	}
	if b := (DeleteRKey{Count: 200}).Append(smc.RFC, nil); b[4] != 8 || len(b) != Size {
		t.Errorf("% x", b)
	}
	if s := (DeleteRKey{Count: 200}).String(); s != "DELETE RKEY req count=200 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0" {
		t.Error(s)
	}
}

func TestDeleteRKeyString(t *testing.T) {
	m := DeleteRKey{Version: smc.V2, Reply: true, Negative: true, Count: 2, Errors: 0x40, RKeys: [8]smc.RKey{1, 2}}
	if s := m.String(); s != "DELETE RKEY v2 rsp count=2 0x1 0x2 negative mask=01000000" {
		t.Error(s)
	}
}

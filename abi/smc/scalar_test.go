package smc

import (
	"strings"
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/roce"
)

// TestPeerIDFigure25 has RFC 7609 §A.2.1, Figure 25: instance ID, then the MAC.
func TestPeerIDFigure25(t *testing.T) {
	id := NewPeerID(0x1184, roce.MAC{0x52, 0x54, 0x00, 0xaa, 0x00, 0x02})
	if string(id[:]) != string(golden.Hex(t, "1184 525400aa0002")) {
		t.Errorf("% x", id[:])
	}
	if id.Instance() != 0x1184 || id.MAC() != (roce.MAC{0x52, 0x54, 0x00, 0xaa, 0x00, 0x02}) || id.IsZero() || !(PeerID{}).IsZero() {
		t.Error("parts")
	}
	if id.String() != "1184-52:54:00:aa:00:02" {
		t.Error(id)
	}
}

func TestEyeCatcherIsSMCRInEBCDIC(t *testing.T) {
	if EyeCatcher != [4]byte{0xE2, 0xD4, 0xC3, 0xD9} {
		t.Errorf("% x", EyeCatcher)
	}
}

// TestBufSize: RFC 7609 §A.2.3: (2^(x+4))*1K, 16K to 512K; Linux goes on to 512M.
func TestBufSize(t *testing.T) {
	for x, want := range map[BufSize]uint32{0: 16 << 10, 1: 32 << 10, 2: 64 << 10, 5: 512 << 10, 6: 1 << 20, 15: 512 << 20} {
		if x.Bytes() != want || BufSizeFor(want) != x {
			t.Errorf("%d: %d, %d", x, x.Bytes(), BufSizeFor(want))
		}
	}
	for n, want := range map[uint32]BufSize{0: 0, 1: 0, 16<<10 + 1: 1, 65535: 2, 65537: 3, 1 << 29: 15, 1<<29 + 1: 15, 1<<32 - 1: 15} {
		if got := BufSizeFor(n); got != want {
			t.Errorf("%d bytes: %d, want %d", n, got, want)
		}
	}
	if BufSize(0).String() != "16K" || BufSize(5).String() != "512K" || BufSize(6).String() != "1M" || BufSize(15).String() != "512M" {
		t.Error("String")
	}
}

func TestRMBEIndexCountsFromOne(t *testing.T) {
	if RMBEIndex(1).Offset(65536) != 0 || RMBEIndex(3).Offset(65536) != 131072 || RMBEIndex(255).Offset(1<<29) != 254<<29 {
		t.Error("Offset")
	}
}

func TestEID(t *testing.T) {
	e, err := ParseEID("smcrig")
	if err != nil || string(e[:]) != "SMCRIG"+strings.Repeat(" ", 26) || e.String() != "SMCRIG" {
		t.Errorf("%q, %v", e, err)
	}
	if _, err := ParseEID("0A.B-C" + strings.Repeat("9", 26)); err != nil {
		t.Errorf("32 characters: %v", err)
	}
	for _, bad := range []string{"", " ", "-A", ".A", "A..B", "A B", "A_B", "É", strings.Repeat("A", 33), "A\x00"} {
		if _, err := ParseEID(bad); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
	if s := (EID{'A', 0x1b, '\n', 0xff, ' '}).String(); s != "A???" {
		t.Errorf("%q: a peer's control characters reach the trace", s)
	}
}

func TestHostname(t *testing.T) {
	if h := NewHostname("rig-a"); string(h[:]) != "rig-a"+strings.Repeat(" ", 27) || h.String() != "rig-a" {
		t.Errorf("%q", h)
	}
	if h := NewHostname(strings.Repeat("x", 40)); h.String() != strings.Repeat("x", 32) {
		t.Errorf("%q", h)
	}
}

func TestScalarStrings(t *testing.T) {
	for got, want := range map[string]string{
		AlertToken(6).String():                      "0x6",
		RToken{RKey: 0x3da, VAddr: 0xff11}.String(): "0x3da@0xff11",
		LinkNum(3).String():                         "3",
		LinkUserID(0x101).String():                  "00000101",
		V2.String():                                 "v2",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

package clc

import (
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/smc"
)

// figure30 is RFC 7609 §A.2.5, Figure 30.
const figure30 = `
	e2d4c3d9
	04 001c 18               # type, length, version and S
	0102030405060708         # sender's peer ID
	11121314                 # peer diagnosis information
	00000000
	e2d4c3d9`

func TestDeclineFigure30(t *testing.T) {
	golden.Check(t, declines, golden.Hex(t, figure30),
		Decline{Version: smc.V1, OutOfSync: true, PeerID: peerID(t, figPeerID), Diagnosis: 0x11121314}, "7:07 20-23")
}

func TestDeclineGoldens(t *testing.T) {
	for name, want := range map[string]Decline{
		"v1-decline-b7_10-len28-diag_03030000-from_B": {PeerID: peerID(t, "cc5b525400aa0002"), Diagnosis: DeclineNoDevice},
		"v2-decline-b7_10-len28-diag_03030000-from_B": {PeerID: peerID(t, "8ee8525400aa0002"), Diagnosis: DeclineNoDevice},
	} {
		want.Version = smc.V1
		checkGolden(t, declines, name, want, "7:07 20-23")
	}
	for name, want := range map[string]Decline{
		"v1-decline-b7_20-len44-diag_02010000-from_A": {PeerID: peerID(t, "0e12525400aa0001"), Diagnosis: DeclineConfirmLink},
		"v1-decline-b7_20-len44-diag_03030000-from_A": {PeerID: peerID(t, "0e12525400aa0001"), Diagnosis: DeclineNoDevice},
		"v1-decline-b7_20-len44-diag_03070000-from_A": {PeerID: peerID(t, "0e12525400aa0001"), Diagnosis: DeclinePrefix},
		"v1-decline-b7_20-len44-diag_09990003-from_A": {PeerID: peerID(t, "0e12525400aa0001"), Diagnosis: DeclineRMBRegister},
		"v2-decline-b7_20-len44-diag_02010000-from_A": {PeerID: peerID(t, "6f8d525400aa0001"), Diagnosis: DeclineConfirmLink},
		"v2-decline-b7_20-len44-diag_03030000-from_A": {PeerID: peerID(t, "6f8d525400aa0001"), Diagnosis: DeclineNoDevice},
		"v2-decline-b7_20-len44-diag_09990003-from_A": {PeerID: peerID(t, "6f8d525400aa0001"), Diagnosis: DeclineRMBRegister},
	} {
		want.Version, want.OS = smc.V2, OSLinux
		checkGolden(t, declines, name, want, "7:07 20:0f 21-23")
	}
}

// TestDeclineLengths: 28 and 44 in every version, nothing else; version 2 is sent with 44.
func TestDeclineLengths(t *testing.T) {
	for _, v := range []byte{1, 2, 3, 15} {
		for n := 28; n < 80; n++ {
			b := make([]byte, n)
			copy(b, golden.Hex(t, figure30)[:24])
			b[6], b[7] = byte(n), v<<4
			copy(b[n-4:], smc.EyeCatcher[:])
			var m Decline
			err := m.Decode(b)
			if ok := n == 28 || n == 44; (err == nil) != ok || !ok && ClassOf(err) != NotCLC {
				t.Errorf("version %d, length %d: %v", v, n, err)
			}
		}
	}
	m := Decline{Version: smc.V2, OS: OSLinux, More: [4]uint32{1, 2, 3, 0xfffefdfc}, OutOfSync: true, PeerID: peerID(t, figPeerID), Diagnosis: DeclineSync}
	golden.Check(t, declines, golden.Hex(t, `
		e2d4c3d9 04 002c 28 0102030405060708 04000000 20000000
		00000001 00000002 00000003 fffefdfc e2d4c3d9`), m, "7:07 20:0f 21-23")
}

// TestDeclineCodes has the list of the tools, number by number.
func TestDeclineCodes(t *testing.T) {
	want := map[DeclineCode]string{
		0x01010000: "out of memory", 0x02010000: "timeout confirm link", 0x02020000: "timeout add link",
		0x03000000: "configuration error", 0x03010000: "peer does not support SMC", 0x03020000: "IPsec",
		0x03030000: "no SMC devices", 0x03030001: "no ISM device", 0x03030002: "no RDMA device", 0x03030003: "no ISMv2 support",
		0x03030004: "no SMCv2 extension", 0x03030005: "no SMC-Dv2 extension", 0x03030006: "no SEID",
		0x03030007: "no SMC-Dv2 device", 0x03030008: "no UEID", 0x03030009: "release mismatch",
		0x0303000a: "max connections mismatch", 0x0303000b: "max links mismatch", 0x03040000: "mode mismatch",
		0x03050000: "eyecatcher in RMBE", 0x03060000: "sockopt unsupported", 0x03070000: "prefix/subnet mismatch",
		0x03080000: "VLAN id error", 0x03090000: "VLAN register error", 0x030a0000: "no active link",
		0x030b0000: "server link not found", 0x030c0000: "version mismatch", 0x030d0000: "max DMBs", 0x030e0000: "v2 no route",
		0x030f0000: "v2 direct/indirect mismatch", 0x04000000: "sync error", 0x05000000: "peer declined",
		0x09990000: "internal error", 0x09990001: "rtoken error", 0x09990002: "link failed", 0x09990003: "RMB registration",
	}
	for c, text := range want {
		if c.Text() != text {
			t.Errorf("0x%08x: %q, want %q", uint32(c), c.Text(), text)
		}
	}
	if len(declineText) != len(want) {
		t.Errorf("%d codes, want %d", len(declineText), len(want))
	}
	if s := DeclineNoUEID.String() + DeclineCode(0x42).String(); s != "0x03030008 (no UEID)0x00000042" {
		t.Error(s)
	}
}

func TestDeclineStrings(t *testing.T) {
	m := Decline{Version: smc.V2, OS: OSLinux, OutOfSync: true, PeerID: peerID(t, figPeerID), Diagnosis: DeclineSync}
	if s := m.String(); s != "DECLINE v2 peer=0102-03:04:05:06:07:08 0x04000000 (sync error) out-of-sync os=Linux" {
		t.Error(s)
	}
	for want, e := range map[string]DeclineError{
		"clc: declined: 0x03070000 (prefix/subnet mismatch)":       {Code: DeclinePrefix},
		"clc: peer declined, out of sync: 0x04000000 (sync error)": {Code: DeclineSync, OutOfSync: true, Remote: true},
	} {
		if e.Error() != want {
			t.Errorf("%s, want %s", e.Error(), want)
		}
	}
}

func FuzzDecline(f *testing.F) {
	seed(f, TypeDecline)
	f.Fuzz(func(t *testing.T, b []byte) { fixedPoint(t, TypeDecline, declines, b) })
}

package clc

import (
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// figure29 is RFC 7609 §A.2.4, Figure 29.
const figure29 = `
	e2d4c3d9
	03 0044 10               # type, length, version
	0102030405060708         # client's peer ID
	fe801112 13141516 1718191a 1b1c1d1e # client's GID
	212223242526             # client's MAC
	313233                   # client's QP number
	41424344                 # RMB RKey
	51                       # RMB index
	61626364                 # RMB alert token
	35 00                    # Bsize 3, MTU 5, reserved
	7172737475767778         # RMB virtual address
	00 818283                # reserved, initial packet sequence number
	e2d4c3d9`

// TestConfirmFigure29 has the one difference between the dialects: the bit that Linux calls F is reserved in the RFC.
func TestConfirmFigure29(t *testing.T) {
	b := golden.Hex(t, figure29)
	want := Confirm{Version: smc.V1, Endpoint: figureEndpoint(t)}
	golden.Check(t, confirms(smc.RFC), b, want, "7:0f 51 60")
	golden.Check(t, confirms(smc.Linux), b, want, "7:07 51 60")
	want.FirstContact = true
	golden.CheckAppend(t, confirms(smc.RFC), want, b)
	b[7] = 0x18
	golden.Check(t, confirms(smc.Linux), b, want, "7:07 51 60")
}

func TestConfirmGoldens(t *testing.T) {
	c := Confirm{Version: smc.V1, FirstContact: true, Endpoint: Endpoint{
		PeerID: peerID(t, "1184525400aa0002"), GID: gid(t, "fe80000000000000 505400fffeaa0002"), MAC: macB,
		QPN: 17, RKey: 0x348, Index: 1, Token: 1, Size: 2, MTU: roce.MTU1024, VAddr: 0xff11000006b30000, PSN: 0x01599f,
	}}
	checkGolden(t, confirms(smc.Linux), "v1-confirm-b7_18-len68-from_B", c, "7:07 51 60")
	c.FirstContact, c.Token = false, 2
	checkGolden(t, confirms(smc.Linux), "v1-confirm-b7_10-len68-from_B", c, "7:07 51 60")

	c = Confirm{Version: smc.V2, FirstContact: true, EID: eid(t, "SMCRRIG"),
		Endpoint: Endpoint{
			PeerID: peerID(t, "a307525400aa0002"), GID: gid(t, "00000000000000000000ffff0a630002"), MAC: macB,
			QPN: 17, RKey: 0x336, Index: 1, Token: 1, Size: 2, MTU: roce.MTU1024, VAddr: 0xff11000006f40000, PSN: 0x42c3e4,
		},
		Ext:  &FirstContactExt{Direct: true, OS: OSLinux, Release: 1, Hostname: smc.NewHostname("rig-b"), MaxConns: 255, MaxLinks: 2, Features: 1},
		GIDs: []roce.GID{gid(t, "00000000000000000000ffff0a630002")},
	}
	// Version 2 has the F bit whatever the dialect: it exists only as Linux has it.
	for _, d := range []smc.Dialect{smc.RFC, smc.Linux} {
		checkGolden(t, confirms(d), "v2-confirm-b7_28-len180-from_B", c, "7:07 51 60 96-103 104:7f 106-107 148-155 157-159")
	}
	c.FirstContact, c.Token, c.Ext, c.GIDs = false, 2, nil, nil
	checkGolden(t, confirms(smc.Linux), "v2-confirm-b7_20-len108-from_B", c, "7:07 51 60 96-103")
}

func TestConfirmGIDCounts(t *testing.T) {
	for n, size := range map[int]int{0: 164, 1: 180, 8: 292, 255: 164 + 16*255, 300: 164 + 16*255} {
		m := Confirm{Version: smc.V2, FirstContact: true, Endpoint: figureEndpoint(t), GIDs: make([]roce.GID, n)}
		b := m.Append(smc.Linux, nil)
		if len(b) != size || int(b[156]) != min(n, 255) {
			t.Errorf("%d GIDs: %d bytes, count %d", n, len(b), b[156])
			continue
		}
		if err := m.Decode(smc.Linux, b); err != nil || len(m.GIDs) != min(n, 255) {
			t.Errorf("%d GIDs: %d, %v", n, len(m.GIDs), err)
		}
		if n < 255 {
			b[156]++
			if err := m.Decode(smc.Linux, b); ClassOf(err) != NotCLC {
				t.Errorf("%d GIDs pass as %d: %v", n, n+1, err)
			}
		}
	}
}

func TestConfirmVersionsAndLengths(t *testing.T) {
	for _, c := range []struct {
		b7     byte
		length int
		ok     bool
	}{
		{0x10, 68, true}, {0x10, 72, false}, {0x18, 68, true}, {0x18, 180, false},
		{0x20, 68, false}, {0x20, 107, false}, {0x20, 108, true}, {0x28, 108, false}, {0x28, 160, false}, {0x28, 163, false}, {0x28, 164, true},
	} {
		b := make([]byte, c.length)
		copy(b, golden.Hex(t, figure29)[:64])
		b[5], b[6], b[7] = byte(c.length>>8), byte(c.length), c.b7
		copy(b[c.length-4:], smc.EyeCatcher[:])
		var m Confirm
		if err := m.Decode(smc.Linux, b); (err == nil) != c.ok || err != nil && ClassOf(err) != NotCLC {
			t.Errorf("byte 7 0x%02x, length %d: %v", c.b7, c.length, err)
		}
	}
}

func TestConfirmString(t *testing.T) {
	c := Confirm{Version: smc.V2, FirstContact: true, Endpoint: figureEndpoint(t), EID: eid(t, "A"),
		Ext: &FirstContactExt{OS: OSAIX}, GIDs: []roce.GID{gid(t, "00000000000000000000ffff0a630002")}}
	if s := c.String(); s != `CONFIRM v2 first peer=0102-03:04:05:06:07:08 gid=fe80:1112:1314:1516:1718:191a:1b1c:1d1e mac=21:22:23:24:25:26 qpn=0x313233 rtoken=0x41424344@0x7172737475767778 idx=81 token=0x61626364 size=128K mtu=4096 psn=0x818283 eid="A" direct=false os=AIX release=0 host="" maxconns=0 maxlinks=0 features=0x0 gids=[::ffff:10.99.0.2]` {
		t.Error(s)
	}
}

func FuzzConfirm(f *testing.F) {
	seed(f, TypeConfirm)
	f.Fuzz(func(t *testing.T, b []byte) {
		fixedPoint(t, TypeConfirm, confirms(smc.RFC), b)
		fixedPoint(t, TypeConfirm, confirms(smc.Linux), b)
	})
}

package clc

import (
	"errors"
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// figure28 is RFC 7609 §A.2.3, Figure 28.
const figure28 = `
	e2d4c3d9
	02 0044 18               # type, length, version and F
	0102030405060708         # server's peer ID
	fe801112 13141516 1718191a 1b1c1d1e # server's GID
	212223242526             # server's MAC
	313233                   # server's QP number
	41424344                 # RMB RKey
	51                       # RMB index
	61626364                 # RMB alert token
	35 00                    # Bsize 3, MTU 5, reserved
	7172737475767778         # RMB virtual address
	00 818283                # reserved, initial packet sequence number
	e2d4c3d9`

// figureEndpoint is what Figures 28 and 29 tell about the sender.
func figureEndpoint(t testing.TB) Endpoint {
	return Endpoint{
		PeerID: peerID(t, figPeerID), GID: gid(t, figGID), MAC: roce.MAC(golden.Hex(t, figMAC)),
		QPN: 0x313233, RKey: 0x41424344, Index: 0x51, Token: 0x61626364, Size: 3, MTU: roce.MTU4096,
		VAddr: 0x7172737475767778, PSN: 0x818283,
	}
}

func TestAcceptFigure28(t *testing.T) {
	b := golden.Hex(t, figure28)
	golden.Check(t, accepts, b, Accept{Version: smc.V1, FirstContact: true, Endpoint: figureEndpoint(t)}, "7:07 51 60")
	b[7] = 0x10
	golden.Check(t, accepts, b, Accept{Version: smc.V1, Endpoint: figureEndpoint(t)}, "7:07 51 60")
}

func TestAcceptGoldens(t *testing.T) {
	a := Accept{Version: smc.V1, FirstContact: true, Endpoint: Endpoint{
		PeerID: peerID(t, "d414525400aa0001"), GID: gid(t, "fe80000000000000 505400fffeaa0001"), MAC: macA,
		QPN: 17, RKey: 0x3da, Index: 1, Token: 1, Size: 2, MTU: roce.MTU1024, VAddr: 0xff11000006f30000, PSN: 0x313ac9,
	}}
	checkGolden(t, accepts, "v1-accept-b7_18-len68-from_A", a, "7:07 51 60")
	a.FirstContact, a.Token = false, 2
	checkGolden(t, accepts, "v1-accept-b7_10-len68-from_A", a, "7:07 51 60")

	a = Accept{Version: smc.V2, FirstContact: true, EID: eid(t, "SMCRRIG"),
		Endpoint: Endpoint{
			PeerID: peerID(t, "9b48525400aa0001"), GID: gid(t, "00000000000000000000ffff0a630001"), MAC: macA,
			QPN: 17, RKey: 0x386, Index: 1, Token: 1, Size: 2, MTU: roce.MTU1024, VAddr: 0xff11000006720000, PSN: 0xbc4a71,
		},
		Ext: &FirstContactExt{Direct: true, OS: OSLinux, Release: 1, Hostname: smc.NewHostname("rig-a"), MaxConns: 255, MaxLinks: 2, Features: 1},
	}
	checkGolden(t, accepts, "v2-accept-b7_28-len160-from_A", a, "7:07 51 60 96-103 104:7f 106-107 148-155")
	a.FirstContact, a.Token, a.Ext = false, 2, nil
	checkGolden(t, accepts, "v2-accept-b7_20-len108-from_A", a, "7:07 51 60 96-103")
}

// TestReservedMTU is RFC 7609 §C.6 with §A.2.3: a reserved MTU is a bad enumerated value, not a protocol error, and only the
// first contact exchange looks at it. The message is decoded all the same.
func TestReservedMTU(t *testing.T) {
	for mtu := range 16 {
		valid := mtu >= 1 && mtu <= 5
		b := golden.Hex(t, figure28)
		b[50] = 0x30 | byte(mtu)
		var a Accept
		err := a.Decode(b)
		want := Good
		if !valid {
			want = BadEnum
		}
		if ClassOf(err) != want || int(a.MTU) != mtu || a.PSN != 0x818283 {
			t.Errorf("first contact, MTU %d: %v, %s", mtu, err, a)
		}
		if bad, ok := errors.AsType[*EnumError](err); ok && (bad.Field != "MTU" || int(bad.Value) != mtu) {
			t.Errorf("%v", err)
		}
		b[7] = 0x10
		if err := a.Decode(b); err != nil || int(a.MTU) != mtu {
			t.Errorf("subsequent contact, MTU %d: %v", mtu, err)
		}
		b[4] = 3
		var c Confirm
		if err := c.Decode(smc.RFC, b); err != nil {
			t.Errorf("Confirm, MTU %d: %v", mtu, err)
		}
		if ClassOf(c.CheckFirstContact()) != want {
			t.Errorf("Confirm, first contact, MTU %d: %v", mtu, c.CheckFirstContact())
		}
		b[7] = 0x18
		if err := c.Decode(smc.Linux, b); ClassOf(err) != want {
			t.Errorf("Confirm with F, MTU %d: %v", mtu, err)
		}
		if err := c.Decode(smc.RFC, b); err != nil || c.FirstContact {
			t.Errorf("Confirm with a reserved bit where Linux has F, MTU %d: %v", mtu, err)
		}
	}
}

// TestUnknownVersion: a peer that answers with a version above 2 can do more than we can: Decline.
func TestUnknownVersion(t *testing.T) {
	for v := byte(3); v < 16; v++ {
		b := golden.Hex(t, figure28)
		b[7] = v<<4 | 8
		var a Accept
		if err := a.Decode(b); ClassOf(err) != BadEnum || a.Version != smc.Version(v) || a.Endpoint != figureEndpoint(t) {
			t.Errorf("version %d: %v, %s", v, err, a)
		}
		b[4] = 3
		var c Confirm
		if err := c.Decode(smc.Linux, b); ClassOf(err) != BadEnum || c.Version != smc.Version(v) || c.Endpoint != figureEndpoint(t) {
			t.Errorf("version %d: %v, %s", v, err, c)
		}
	}
}

// TestLongerVersion2: what a later release puts behind the known fields of version 2 is skipped.
func TestLongerVersion2(t *testing.T) {
	for _, f := range golden.Load(t, files) {
		switch f.Name {
		case "v2-accept-b7_28-len160-from_A", "v2-accept-b7_20-len108-from_A", "v2-confirm-b7_28-len180-from_B", "v2-confirm-b7_20-len108-from_B":
		default:
			continue
		}
		n := len(f.Bytes) - TrailerSize
		b := append(append(append([]byte(nil), f.Bytes[:n]...), 1, 2, 3, 4, 5, 6, 7, 8), f.Bytes[n:]...)
		b[5], b[6] = byte(len(b)>>8), byte(len(b))
		long, err := decode(b)
		short, _ := decode(f.Bytes)
		if err != nil || long.String() != short.String() {
			t.Errorf("%s: %v, %s", f.Name, err, long)
		}
	}
}

func TestAcceptVersionsAndLengths(t *testing.T) {
	// Version 1 has exactly 68 bytes, version 2 at least 108, and 160 on first contact.
	for _, c := range []struct {
		b7     byte
		length int
		ok     bool
	}{
		{0x10, 68, true}, {0x10, 69, false}, {0x10, 108, false}, {0x18, 68, true}, {0x18, 160, false},
		{0x20, 68, false}, {0x20, 107, false}, {0x20, 108, true}, {0x20, 160, true}, {0x28, 108, false}, {0x28, 159, false}, {0x28, 160, true},
	} {
		b := make([]byte, c.length)
		copy(b, golden.Hex(t, figure28)[:64])
		b[5], b[6], b[7] = byte(c.length>>8), byte(c.length), c.b7
		copy(b[c.length-4:], smc.EyeCatcher[:])
		var a Accept
		if err := a.Decode(b); (err == nil) != c.ok || err != nil && ClassOf(err) != NotCLC {
			t.Errorf("byte 7 0x%02x, length %d: %v", c.b7, c.length, err)
		}
	}
	// Version 0 is sent as 1; first contact of version 2 without Ext still has its room.
	if b := (Accept{}).Append(nil); b[7] != 0x10 || len(b) != 68 {
		t.Errorf("% x", b)
	}
	if b := (Accept{Version: smc.V2, FirstContact: true}).Append(nil); b[7] != 0x28 || len(b) != 160 {
		t.Errorf("% x", b)
	}
	if b := (Accept{Version: smc.V2, Ext: &FirstContactExt{MaxLinks: 2}}).Append(nil); len(b) != 108 {
		t.Errorf("subsequent contact with extension: % x", b)
	}
}

func TestAcceptString(t *testing.T) {
	a := Accept{Version: smc.V2, FirstContact: true, Endpoint: figureEndpoint(t), EID: eid(t, "A.B"),
		Ext: &FirstContactExt{Direct: true, OS: OSLinux, Release: 1, Hostname: smc.NewHostname("h"), MaxConns: 32, MaxLinks: 2, Features: 1}}
	if s := a.String(); s != `ACCEPT v2 first peer=0102-03:04:05:06:07:08 gid=fe80:1112:1314:1516:1718:191a:1b1c:1d1e mac=21:22:23:24:25:26 qpn=0x313233 rtoken=0x41424344@0x7172737475767778 idx=81 token=0x61626364 size=128K mtu=4096 psn=0x818283 eid="A.B" direct=true os=Linux release=1 host="h" maxconns=32 maxlinks=2 features=0x1` {
		t.Error(s)
	}
	for o, want := range map[OS]string{OSzOS: "z/OS", OSLinux: "Linux", OSAIX: "AIX"} {
		if o.String() != want {
			t.Error(o)
		}
	}
	if a.RToken() != (smc.RToken{RKey: 0x41424344, VAddr: 0x7172737475767778}) {
		t.Error(a.RToken())
	}
}

func FuzzAccept(f *testing.F) {
	seed(f, TypeAccept)
	f.Fuzz(func(t *testing.T, b []byte) { fixedPoint(t, TypeAccept, accepts, b) })
}

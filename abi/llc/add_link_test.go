package llc

import (
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// figure32 is RFC 7609 §A.3.2, Figure 32: the GID right behind the MAC.
const figure32 = `
	02 2c 02 c0              # type, length, reason code, R Z
	021112131415             # sender's MAC
	fe8021222324 25262728 292a2b2c 2d2e # sender's GID
	313233                   # sender's QP number
	41                       # link number
	05                       # MTU
	515253                   # initial PSN
	00000000 00000000 0000   # reserved`

// figure32Linux is the same message in the layout of Linux: two pad bytes behind the MAC.
const figure32Linux = `
	02 2c 02 c0
	021112131415 0000
	fe802122 23242526 2728292a 2b2c2d2e
	313233 41 05 515253
	00000000 00000000`

var addLinkOfFigure32 = AddLink{
	Version: smc.V1, Reply: true, Reject: true, Reason: RejectMTU, MAC: figMAC, GID: figGID,
	QPN: 0x313233, Link: 0x41, MTU: roce.MTU4096, PSN: 0x515253,
}

func TestAddLinkFigure32(t *testing.T) {
	checkFigure(t, figure32, addLinkOfFigure32, "2:f0 3:3f 30:f0 34-43", smc.RFC)
	checkFigure(t, figure32Linux, addLinkOfFigure32, "2:f0 3:3f 10-11 32:f0 36-43", smc.Linux)
}

// TestAddLinkDialectsAreNotGuessed: the same bytes are two different messages, and the caller says which.
func TestAddLinkDialectsAreNotGuessed(t *testing.T) {
	var m AddLink
	if err := m.Decode(smc.Linux, golden.Hex(t, figure32)); err != nil || m.QPN == 0x313233 || m.GID == figGID {
		t.Errorf("%s, %v", m, err)
	}
	if err := m.Decode(smc.RFC, golden.Hex(t, figure32Linux)); err != nil || m.QPN == 0x313233 || m.GID == figGID {
		t.Errorf("%s, %v", m, err)
	}
}

func TestAddLinkGoldens(t *testing.T) {
	const v1, v2 = "2:f0 3:3f 10-11 32:f0 36-43", "3:3f 10-11 32:f0 36-43"
	const ext = " 44:7f 45 62-69"
	asked := AddLink{Version: smc.V1, MAC: macA0, GID: linkLocal(t, "aa0001"), QPN: 18, Link: 2, MTU: roce.MTU1024, PSN: 0xa7139d}
	checkGolden(t, "v1-add-link-req-from_A", asked, v1)
	asked.Reply, asked.Reject, asked.Reason = true, true, RejectNoAltPath
	checkGolden(t, "v1-add-link-rsp-flags_c0-from_B", asked, v1) // the request echoed
	checkGolden(t, "v1-add-link-req-from_B", AddLink{Version: smc.V1, MAC: macB1, GID: linkLocal(t, "aa0102")}, v1)
	checkGolden(t, "v1-add-link-rsp-from_B",
		AddLink{Version: smc.V1, Reply: true, MAC: macB1, GID: linkLocal(t, "aa0102"), QPN: 17, Link: 3, MTU: roce.MTU1024, PSN: 0x89e0f8}, v1)

	asked = AddLink{
		Version: smc.V2, MAC: macA0, GID: mapped(t, "01"), QPN: 18, Link: 2, MTU: roce.MTU1024, PSN: 0xb20525,
		Ext: &AddLinkExt{Direct: true, TargetGID: mapped(t, "01"), Pairs: []RKeyPair{{0x386, smc.RToken{RKey: 0x544, VAddr: 0xff11000006720000}}}},
	}
	checkGolden(t, "v2-add-link-req-from_A", asked, v2+ext)
	asked.Reply, asked.Reject, asked.Ext = true, true, nil
	checkGolden(t, "v2-add-link-rsp-flags_c0-from_B", asked, v2)
	checkGolden(t, "v2-add-link-rsp-from_B", AddLink{
		Version: smc.V2, Reply: true, MAC: macB1, GID: mapped(t, "0c"), QPN: 17, Link: 3, MTU: roce.MTU1024, PSN: 0x58d349,
		Ext: &AddLinkExt{Direct: true, TargetGID: mapped(t, "0c"), Pairs: []RKeyPair{
			{0x8ce, smc.RToken{RKey: 0x39c, VAddr: 0xff110000067e0000}},
			{0x783, smc.RToken{RKey: 0x49f, VAddr: 0xff110000067c0000}},
			{0x607, smc.RToken{RKey: 0x5b8, VAddr: 0xff11000006760000}},
			{0x5fd, smc.RToken{RKey: 0x696, VAddr: 0xff11000006710000}},
			{0x4eb, smc.RToken{RKey: 0x703, VAddr: 0xff110000066f0000}},
			{0x3ca, smc.RToken{RKey: 0x82f, VAddr: 0xff110000066d0000}},
		}},
	}, v2+ext)
}

// TestAddLinkKeepsReservedMTU: an unknown MTU is no decoding error; it is answered with RejectMTU.
func TestAddLinkKeepsReservedMTU(t *testing.T) {
	b := golden.Hex(t, figure32)
	for mtu := range 16 {
		b[30] = byte(mtu)
		var m AddLink
		if err := m.Decode(smc.RFC, b); err != nil || int(m.MTU) != mtu || m.MTU.Valid() != (mtu >= 1 && mtu <= 5) {
			t.Errorf("%d: %s, %v", mtu, m, err)
		}
	}
}

// TestAddLinkExtensionLimits: the count may not reach beyond the message, however long the memory behind it is.
func TestAddLinkExtensionLimits(t *testing.T) {
	msg := func(length, count int) []byte {
		b := make([]byte, 9000)
		b[0], b[1], b[2] = 0x22, byte(length), byte(length>>8)
		b[70], b[71] = byte(count), byte(count>>8)
		return b
	}
	for _, c := range []struct {
		length, count int
		ok            bool
	}{
		{44, 0, true}, {44, 65535, true}, // no extension: the count is not looked at
		{45, 0, false}, {71, 0, false}, {72, 0, true}, {72, 1, false}, {87, 1, false}, {88, 1, true}, {104, 1, true},
		{72 + 16*255, 255, true}, {72 + 16*255 - 1, 255, false}, {72 + 16*256, 256, false}, {8192, 65535, false}, {8192, 256, false},
	} {
		var m AddLink
		err := m.Decode(smc.Linux, msg(c.length, c.count))
		if (err == nil) != c.ok {
			t.Errorf("length %d, count %d: %v", c.length, c.count, err)
		}
		if err == nil && c.length > 44 && (m.Ext == nil || len(m.Ext.Pairs) != c.count) {
			t.Errorf("length %d, count %d: %+v", c.length, c.count, m.Ext)
		}
	}
	// Sending: 255 is the most.
	m := AddLink{Version: smc.V2, Ext: &AddLinkExt{Pairs: make([]RKeyPair, 300)}}
	if b := m.Append(smc.Linux, nil); len(b) != 72+16*255 || b[70] != 255 || b[71] != 0 {
		t.Errorf("%d bytes, count % x", len(b), b[70:72])
	}
	// Version 1 has no extension.
	m.Version = smc.V1
	if b := m.Append(smc.Linux, nil); len(b) != Size {
		t.Errorf("v1 with %d bytes", len(b))
	}
}

func TestAddLinkString(t *testing.T) {
	if s := addLinkOfFigure32.String(); s != "ADD LINK rsp link=65 qpn=0x313233 gid=fe80:2122:2324:2526:2728:292a:2b2c:2d2e mac=02:11:12:13:14:15 mtu=4096 psn=0x515253 rejected: invalid MTU" {
		t.Error(s)
	}
	m := AddLink{Version: smc.V2, GID: mapped(t, "01"), MTU: 7, Ext: &AddLinkExt{Direct: true, TargetGID: mapped(t, "02"), Pairs: []RKeyPair{{1, smc.RToken{RKey: 2, VAddr: 3}}}}}
	if s := m.String(); s != "ADD LINK v2 req link=0 qpn=0x0 gid=::ffff:10.99.0.1 mac=00:00:00:00:00:00 mtu=0x7 psn=0x0 direct=true target=::ffff:10.99.0.2 pairs=1 0x1=0x2@0x3" {
		t.Error(s)
	}
	for r, want := range map[RejectReason]string{0: "none", 1: "no alternate path", 2: "invalid MTU", 9: "0x9"} {
		if r.String() != want {
			t.Error(r)
		}
	}
}

package llc

import (
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/smc"
)

// figure31 is RFC 7609 §A.3.1, Figure 31, with flags as Linux sends them.
const figure31 = `
	01 2c 00 83              # type, length, reserved, R and the two low bits
	021112131415             # sender's MAC
	fe8021222324 25262728 292a2b2c 2d2e # sender's GID
	313233                   # sender's QP number
	41                       # link number
	51525354                 # sender's link user ID
	08                       # max links
	00 0000000000000000      # reserved`

func TestConfirmLinkFigure31(t *testing.T) {
	want := ConfirmLink{
		Version: smc.V1, Reply: true, NoEyeCatcher: true, MAC: figMAC, GID: figGID,
		QPN: 0x313233, Link: 0x41, UserID: 0x51525354, MaxLinks: 8,
	}
	for _, d := range []smc.Dialect{smc.RFC, smc.Linux} {
		c := codec[ConfirmLink](d)
		b := golden.Hex(t, figure31)
		golden.CheckDecode(t, c, b, want)
		golden.CheckAppend(t, c, want, b)
		golden.CheckPrefixes(t, c, b)
		golden.CheckNoAlias(t, c, b)
		// One of the two low bits is as good as both, so that each alone is not reserved and not needed beside the other.
		b[3] = 0x81
		golden.CheckBits(t, c, b, "2 3:7e 35-43")
		b[3] = 0x82
		golden.CheckBits(t, c, b, "2 3:7d 35-43")

		// As the RFC has it: without them.
		b[3] = 0x80
		want := want
		want.NoEyeCatcher = false
		golden.Check(t, c, b, want, "2 3:7c 35-43")
	}
}

// TestConfirmLinkTellsTheDialect: Linux refuses a peer without the bits, so that sending them is how it says what it speaks.
func TestConfirmLinkTellsTheDialect(t *testing.T) {
	for flags, want := range map[byte]smc.Dialect{0x00: smc.RFC, 0x80: smc.RFC, 0x7c: smc.RFC, 0x01: smc.Linux, 0x02: smc.Linux, 0x83: smc.Linux} {
		b := golden.Hex(t, figure31)
		b[3] = flags
		var m ConfirmLink
		if err := m.Decode(smc.RFC, b); err != nil || m.Dialect() != want {
			t.Errorf("flags 0x%02x: %s, %v", flags, m.Dialect(), err)
		}
	}
}

func TestConfirmLinkGoldens(t *testing.T) {
	for name, want := range map[string]ConfirmLink{
		"v1-confirm-link-req-flags_03-from_A": {
			Version: smc.V1, NoEyeCatcher: true, MAC: macA0, GID: linkLocal(t, "aa0001"), QPN: 17, Link: 1, UserID: 0x101, MaxLinks: 2},
		"v1-confirm-link-rsp-flags_83-from_B": {
			Version: smc.V1, Reply: true, NoEyeCatcher: true, MAC: macB0, GID: linkLocal(t, "aa0002"), QPN: 17, Link: 1, UserID: 0x101, MaxLinks: 2},
		"v2-confirm-link-req-flags_03-from_A": {
			Version: smc.V2, NoEyeCatcher: true, MAC: macA0, GID: mapped(t, "01"), QPN: 17, Link: 1, UserID: 0x101, MaxLinks: 2, MaxConns: 255},
		"v2-confirm-link-rsp-flags_83-from_B": {
			Version: smc.V2, Reply: true, NoEyeCatcher: true, MAC: macB0, GID: mapped(t, "02"), QPN: 17, Link: 1, UserID: 0x101, MaxLinks: 2, MaxConns: 255},
	} {
		t.Run(name, func(t *testing.T) {
			c := codec[ConfirmLink](smc.Linux)
			b := load(t)[name].Bytes
			golden.CheckDecode(t, c, b, want)
			golden.CheckAppend(t, c, want, b)
			golden.CheckPrefixes(t, c, b)
			golden.CheckNoAlias(t, c, b)
			b[3] &^= 0x01
			if want.Version == smc.V1 {
				golden.CheckBits(t, c, b, "2 3:7d 35-43")
			} else {
				golden.CheckBits(t, c, b, "3:7d 36-43") // byte 2 is length, byte 35 max connections
			}
		})
	}
}

func TestConfirmLinkString(t *testing.T) {
	m := ConfirmLink{Version: smc.V2, Reply: true, NoEyeCatcher: true, MAC: macA0, GID: mapped(t, "01"), QPN: 17, Link: 1, UserID: 0x101, MaxLinks: 2, MaxConns: 255}
	if s := m.String(); s != "CONFIRM LINK v2 rsp link=1 qpn=0x11 gid=::ffff:10.99.0.1 mac=52:54:00:aa:00:01 uid=00000101 maxlinks=2 maxconns=255 no-eyecatcher" {
		t.Error(s)
	}
}

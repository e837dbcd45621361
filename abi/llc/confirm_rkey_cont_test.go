package llc

import (
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/smc"
)

// figure38 is RFC 7609 §A.3.6, Figure 38, with three entries of Figure 37, which fill the message to its end.
const figure38 = `
	08 2c 00 a0              # type, length, reserved, R 0 Z
	05                       # RTokens left
	11 21222324 3132333435363738 # other link
	41 51525354 6162636465666768 # other link
	71 81828384 9192939495969798 # other link`

func TestConfirmRKeyContFigure38(t *testing.T) {
	checkFigure(t, figure38, ConfirmRKeyCont{
		Reply: true, Negative: true, Remaining: 5, Others: [3]LinkRToken{
			{0x11, smc.RToken{RKey: 0x21222324, VAddr: 0x3132333435363738}},
			{0x41, smc.RToken{RKey: 0x51525354, VAddr: 0x6162636465666768}},
			{0x71, smc.RToken{RKey: 0x81828384, VAddr: 0x9192939495969798}},
		}}, "2 3:5f")
	one := ConfirmRKeyCont{Remaining: 1, Others: [3]LinkRToken{{1, smc.RToken{RKey: 2, VAddr: 3}}}}
	checkFigure(t, "082c0000 01 01 00000002 0000000000000003"+zeros(26), one, "2 3:5f 18-43")
	checkFigure(t, "082c0000"+zeros(40), ConfirmRKeyCont{}, "2 3:5f 5-43")
}

func TestConfirmRKeyContCounts(t *testing.T) {
	for n := range 256 {
		b := golden.Hex(t, figure38)
		b[4] = byte(n)
		var m ConfirmRKeyCont
		err := m.Decode(smc.RFC, b)
		if (err == nil) != (n <= 7) {
			t.Errorf("%d left: %v", n, err)
		}
		if err == nil && (m.Count() != min(n, 3) || m.More() != (n > 3)) {
			t.Errorf("%d left: %d, %t", n, m.Count(), m.More())
		}
	}
}

// TestEightLinks tells seven others in one CONFIRM RKEY and two continuations.
func TestEightLinks(t *testing.T) {
	others := make([]LinkRToken, 7)
	for i := range others {
		others[i] = LinkRToken{smc.LinkNum(i + 2), smc.RToken{RKey: smc.RKey(i + 100), VAddr: smc.VAddr(i) << 32}}
	}
	var got []LinkRToken
	first := ConfirmRKey{NumOthers: 7, Others: [2]LinkRToken(others)}
	if err := first.Decode(smc.RFC, first.Append(smc.RFC, nil)); err != nil || !first.More() {
		t.Fatal(err)
	}
	got = append(got, first.Others[:first.Count()]...)
	for more := first.More(); more; {
		var rest [3]LinkRToken
		copy(rest[:], others[len(got):])
		m := ConfirmRKeyCont{Remaining: uint8(7 - len(got)), Others: rest}
		if err := m.Decode(smc.RFC, m.Append(smc.RFC, nil)); err != nil {
			t.Fatal(err)
		}
		got = append(got, m.Others[:m.Count()]...)
		more = m.More()
	}
	if len(got) != 7 {
		t.Fatalf("%d told", len(got))
	}
	for i := range others {
		if got[i] != others[i] {
			t.Errorf("%s, want %s", got[i], others[i])
		}
	}
}

func TestConfirmRKeyContString(t *testing.T) {
	m := ConfirmRKeyCont{Reply: true, Negative: true, Remaining: 1, Others: [3]LinkRToken{{3, smc.RToken{RKey: 4, VAddr: 5}}}}
	if s := m.String(); s != "CONFIRM RKEY CONT rsp remaining=1 3:0x4@0x5 negative" {
		t.Error(s)
	}
}

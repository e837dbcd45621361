package smc

import "testing"

func TestSeq(t *testing.T) {
	if FirstSeq != 1 || Seq(0xFFFF).Next() != 0 || Seq(0).Next() != 1 {
		t.Error("RFC 7609 §A.4: starts at 1, wraps to 0")
	}
	for _, c := range []struct {
		a, b   Seq
		sub    int16
		before bool
	}{
		{1, 1, 0, false},
		{1, 2, -1, true},
		{2, 1, 1, false},
		{0xFFFF, 0, -1, true}, // over the wrap
		{0, 0xFFFF, 1, false},
		{0xFFF0, 0x0010, -0x20, true},
		{0, 0x7FFF, -0x7FFF, true},
		{0, 0x8000, -0x8000, true}, // exactly opposite: older both ways, as any signed distance has it
		{0x8000, 0, -0x8000, true},
		{0, 0x8001, 0x7FFF, false},
	} {
		if c.a.Sub(c.b) != c.sub || c.a.Before(c.b) != c.before {
			t.Errorf("%s against %s: %d, %t", c.a, c.b, c.a.Sub(c.b), c.a.Before(c.b))
		}
	}
	if Seq(7).String() != "7" {
		t.Error("String")
	}
}

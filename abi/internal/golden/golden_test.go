package golden

import "testing"

func TestParseWantsAnOrigin(t *testing.T) {
	if _, err := Parse("01 02\n"); err == nil {
		t.Error("no first line, but no error")
	}
	f, err := Parse("# from somewhere\n01 02 # two\n\n03\n")
	if err != nil || f.Origin != "from somewhere" || string(f.Bytes) != "\x01\x02\x03" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := Parse("#\n0\n"); err == nil {
		t.Error("half a byte, but no error")
	}
}

func TestMask(t *testing.T) {
	if got := string(Mask(t, 6, "1 3-4 4:0f 5:70")); got != "\x00\xff\x00\xff\xff\x70" {
		t.Errorf("% x", got)
	}
}

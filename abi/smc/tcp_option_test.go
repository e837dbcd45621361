package smc

import (
	"embed"
	"strings"
	"testing"

	"libsmcr/abi/internal/golden"
)

//go:embed testdata/*.hex
var files embed.FS

// TestFigure24 has RFC 7609 §A.1, Figure 24, and the eight bytes that Linux makes of it.
func TestFigure24(t *testing.T) {
	if got := AppendTCPOption(nil); string(got) != string(golden.Hex(t, "fe 06 e2 d4 c3 d9")) {
		t.Errorf("% x", got)
	}
	buf := []byte{0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5, 0xA5}
	if got := AppendTCPOptionPadded(buf[:1]); string(got) != string(golden.Hex(t, "a5 0101 fe06 e2d4c3d9")) || buf[9] != 0xA5 {
		t.Errorf("% x", got)
	}
}

func TestOptionsOfLinux(t *testing.T) {
	for _, f := range golden.Load(t, files) {
		bad := strings.HasPrefix(f.Name, "bad_")
		if HasTCPOption(f.Bytes) == bad {
			t.Errorf("%s: %t", f.Name, !bad)
		}
		if bad {
			continue
		}
		if tail := AppendTCPOptionPadded(nil); string(f.Bytes[len(f.Bytes)-len(tail):]) != string(tail) {
			t.Errorf("%s: ours is % x", f.Name, tail)
		}
		for n := range len(f.Bytes) { // the option stands last
			if HasTCPOption(f.Bytes[:n:n]) {
				t.Errorf("%s: found in the first %d bytes", f.Name, n)
			}
		}
	}
}

func TestHasTCPOption(t *testing.T) {
	for name, c := range map[string]struct {
		options string
		want    bool
	}{
		"none":                        {"", false},
		"alone":                       {"fe06e2d4c3d9", true},
		"behind NOPs":                 {"0101fe06e2d4c3d9", true},
		"between others":              {"020405b4 fe06e2d4c3d9 01 030307", true},
		"longer, even":                {"fe08e2d4c3d9 0000", true},
		"longer, odd":                 {"fe07e2d4c3d9 00", false},
		"too short":                   {"fe04e2d4", false},
		"other experiment":            {"fe06f989 0102", false},
		"other, then ours":            {"fe06f9890102 fe06e2d4c3d9", true},
		"kind 253":                    {"fd06e2d4c3d9", false},
		"behind the end of the list":  {"00 fe06e2d4c3d9", false},
		"length 0":                    {"0200 fe06e2d4c3d9", false},
		"length 1":                    {"0201 fe06e2d4c3d9", false},
		"kind without length":         {"02", false},
		"length beyond the list":      {"fe06e2d4c3", false},
		"other beyond the list":       {"0228 fe06e2d4c3d9", false},
		"bytes inside another option": {"080afe06e2d4c3d90000", false},
	} {
		if got := HasTCPOption(golden.Hex(t, c.options)); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func FuzzHasTCPOption(f *testing.F) {
	for _, g := range golden.Load(f, files) {
		f.Add(g.Bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		// What is found stays found behind options that are skipped, and vanishes behind the end of the list.
		found := HasTCPOption(b)
		if HasTCPOption(append([]byte{1, 2, 4, 0, 0}, b...)) != found {
			t.Fatalf("% x: lost behind other options", b)
		}
		if HasTCPOption(append([]byte{0}, b...)) {
			t.Fatalf("% x: found behind the end of the list", b)
		}
		if found && !strings.Contains(string(b), string(EyeCatcher[:])) {
			t.Fatalf("% x: found, but not there", b)
		}
	})
}

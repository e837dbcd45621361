package cdc

import (
	"embed"
	"fmt"
	"strings"
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/smc"
)

//go:embed testdata/*.hex
var files embed.FS

var codec = golden.Codec{
	Decode: func(b []byte) (any, error) { var m Message; err := m.Decode(b); return m, err },
	Append: func(m any, b []byte) []byte { return m.(Message).Append(b) },
}

// reserved are the bits that Figure 41 leaves free.
const reserved = "8-9 16-17 24:07 25:1f 26-43"

// TestGoldens compares with what the capturing tool, which shares no code with us, says about each message in its first
// line: "seq 3 tok 6 prod 0:0xbbd cons 0:0x25 - A".
func TestGoldens(t *testing.T) {
	for _, f := range golden.Load(t, files) {
		t.Run(f.Name, func(t *testing.T) {
			var m Message
			err := m.Decode(f.Bytes)
			if says, bad := f.Bad(); bad {
				if err == nil || !strings.Contains(err.Error(), says) {
					t.Errorf("%v, want %q", err, says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			none := func(s string) string { return strings.Replace(s, "-", "", 1) }
			said := fmt.Sprintf("seq %d tok %d prod %d:0x%x cons %d:0x%x", m.Seq, m.Token, m.Prod.Wrap, m.Prod.Count, m.Cons.Wrap, m.Cons.Count)
			_, want, _ := strings.Cut(f.Origin, "seq ")
			words := strings.Fields("seq " + want)
			if len(words) != 10 {
				t.Fatalf("first line: %q", f.Origin)
			}
			if strings.Join(words[:8], " ") != said || none(words[8]) != none(m.Flags.String()) || none(words[9]) != none(m.Conn.String()) {
				t.Errorf("%s %s %s, want %s", said, m.Flags, m.Conn, words)
			}
			golden.Check(t, codec, f.Bytes, m, reserved)
		})
	}
}

// figure41 is RFC 7609 §A.4, Figure 41, written out by hand with a different value in every field.
const figure41 = `
	fe 2c 1234      # type, length, sequence number
	89abcdef        # SMC-R alert token
	0000 2345       # reserved, producer cursor wrap
	00003456        # producer cursor
	0000 4567       # reserved, consumer cursor wrap
	00005678        # consumer cursor
	f8 e0 0000      # B P U R F, D C A
	00000000 00000000 00000000 00000000`

func TestFigure41(t *testing.T) {
	golden.Check(t, codec, golden.Hex(t, figure41), Message{
		Seq: 0x1234, Token: 0x89abcdef,
		Prod:  smc.Cursor{Wrap: 0x2345, Count: 0x3456},
		Cons:  smc.Cursor{Wrap: 0x4567, Count: 0x5678},
		Flags: WriterBlocked | UrgentPending | UrgentPresent | UpdateRequested | FailoverValidation,
		Conn:  SendingDone | Closed | Aborted,
	}, reserved)
}

// TestFlagBits pins each letter of Figure 41 to its bit.
func TestFlagBits(t *testing.T) {
	for i, f := range []ProdFlags{WriterBlocked, UrgentPending, UrgentPresent, UpdateRequested, FailoverValidation} {
		if f != 0x80>>i || f.String() != "BPURF"[i:i+1] {
			t.Errorf("%s is 0x%02x", f, uint8(f))
		}
	}
	for i, f := range []ConnFlags{SendingDone, Closed, Aborted} {
		if f != 0x80>>i || f.String() != "DCA"[i:i+1] {
			t.Errorf("%s is 0x%02x", f, uint8(f))
		}
	}
	if s := (WriterBlocked | 0x03).String(); s != "B+0x03" {
		t.Error(s)
	}
	if !(UrgentPending | UrgentPresent).Has(UrgentPresent) || UrgentPending.Has(UrgentPending|UrgentPresent) || !Closed.Has(Closed) {
		t.Error("Has")
	}
}

func TestReservedFlagsAreNotSent(t *testing.T) {
	b := Message{Flags: 0xFF, Conn: 0xFF}.Append(nil)
	if b[24] != 0xF8 || b[25] != 0xE0 {
		t.Errorf("% x", b[24:26])
	}
}

func TestBadMessages(t *testing.T) {
	good := golden.Hex(t, figure41)
	change := func(at int, v byte) []byte {
		b := append([]byte(nil), good...)
		b[at] = v
		return b
	}
	for name, b := range map[string][]byte{
		"nil":               nil,
		"empty":             {},
		"one byte short":    good[:43],
		"length 43":         change(1, 43),
		"length 45":         change(1, 45),
		"length 0":          change(1, 0),
		"length 255":        change(1, 255),
		"type of LLC":       change(0, 0x01),
		"other type 11":     change(0, 0xFF),
		"other type 11 low": change(0, 0xC0),
		"optional LLC type": change(0, 0xBE),
	} {
		m := Message{Seq: 7}
		err := m.Decode(b)
		if err == nil || m != (Message{Seq: 7}) {
			t.Errorf("%s: %v, %+v", name, err, m)
		} else if !strings.HasPrefix(err.Error(), "cdc: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What lies behind the 44 bytes is not ours.
	var m Message
	if err := m.Decode(append(change(0, 0xFE), 0xFF)); err != nil {
		t.Error(err)
	}
}

func TestIsLooksAtTheTwoHighBits(t *testing.T) {
	for typ, want := range map[byte]bool{0xFE: true, 0xC0: true, 0xFF: true, 0xBF: false, 0x80: false, 0x40: false, 0x01: false, 0x21: false} {
		if Is([]byte{typ}) != want {
			t.Errorf("0x%02x", typ)
		}
	}
	if Is(nil) {
		t.Error("nil")
	}
}

func TestDecodeAndAppendDoNotAllocate(t *testing.T) {
	b := golden.Hex(t, figure41)
	buf := make([]byte, 0, Size)
	if n := testing.AllocsPerRun(100, func() {
		var m Message
		if m.Decode(b) != nil {
			t.Error("decode")
		}
		buf = m.Append(buf[:0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestString(t *testing.T) {
	m := Message{Seq: 5, Token: 1, Prod: smc.Cursor{Wrap: 1, Count: 0x3f}, Cons: smc.Cursor{Count: 0xf}, Flags: WriterBlocked}
	if s := m.String(); s != "CDC seq=5 token=0x1 prod=0001:0000003f cons=0000:0000000f flags=B conn=-" {
		t.Error(s)
	}
}

func FuzzMessage(f *testing.F) {
	for _, g := range golden.Load(f, files) {
		f.Add(g.Bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		golden.FixedPoint(t, codec, b)
		if len(b) >= Size { // past type and length
			golden.FixedPoint(t, codec, append([]byte{Type, Size}, b[2:]...))
		}
	})
}

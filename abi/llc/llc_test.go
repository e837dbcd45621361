package llc

import (
	"embed"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

//go:embed testdata/*.hex
var files embed.FS

// message is what a pointer to each message type can do.
type message[T any] interface {
	*T
	Message
	Decode(smc.Dialect, []byte) error
}

// codec makes a golden.Codec of a message type in a dialect.
func codec[T any, P message[T]](d smc.Dialect) golden.Codec {
	return golden.Codec{
		Decode: func(b []byte) (any, error) { var m T; err := P(&m).Decode(d, b); return m, err },
		Append: func(m any, b []byte) []byte { v := m.(T); return P(&v).Append(d, b) },
	}
}

// load returns the goldens that were captured or written by hand, by name.
func load(t testing.TB) map[string]golden.File {
	t.Helper()
	m := make(map[string]golden.File)
	for _, f := range golden.Load(t, files) {
		m[f.Name] = f
	}
	return m
}

// checkGolden runs the five tests on a captured message, all of which are of the Linux dialect.
func checkGolden[T any, P message[T]](t *testing.T, name string, want T, reserved string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Helper()
		f, ok := load(t)[name]
		if !ok {
			t.Fatal("no such golden")
		}
		golden.Check(t, codec[T, P](smc.Linux), f.Bytes, want, reserved)
	})
}

// checkFigure runs the five tests on a figure of the RFC, in the dialects in which it holds.
func checkFigure[T any, P message[T]](t *testing.T, figure string, want T, reserved string, in ...smc.Dialect) {
	t.Helper()
	if len(in) == 0 {
		in = []smc.Dialect{smc.RFC, smc.Linux}
	}
	for _, d := range in {
		t.Run(d.String(), func(t *testing.T) {
			t.Helper()
			golden.Check(t, codec[T, P](d), golden.Hex(t, figure), want, reserved)
		})
	}
}

var (
	macA0 = roce.MAC{0x52, 0x54, 0x00, 0xaa, 0x00, 0x01}
	macB0 = roce.MAC{0x52, 0x54, 0x00, 0xaa, 0x00, 0x02}
	macB1 = roce.MAC{0x52, 0x54, 0x00, 0xaa, 0x01, 0x02}

	// The values that figures are filled with: none is zero, no two are alike.
	figMAC = roce.MAC{0x02, 0x11, 0x12, 0x13, 0x14, 0x15}
	figGID = roce.GID{0xfe, 0x80, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e}
)

// gid parses an address.
func gid(t testing.TB, last string) roce.GID { return roce.GID(golden.Hex(t, last)) }

func linkLocal(t testing.TB, last string) roce.GID {
	return gid(t, "fe80 0000 0000 0000 5054 00ff fe"+last)
}

func mapped(t testing.TB, last string) roce.GID {
	return gid(t, "0000 0000 0000 0000 0000 ffff 0a63 00"+last)
}

// TestGoldensSayTheSame compares every captured message with the first line of its file, which the capturing tool wrote:
// "ADD_LINK v1 flags c0", "DELETE_LINK v2 flags 20 link 3 reason 00050000". It shares no code with us.
func TestGoldensSayTheSame(t *testing.T) {
	for _, f := range golden.Load(t, files) {
		if _, bad := f.Bad(); bad {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			m, err := Decode(smc.Linux, f.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			golden.CheckMemory(t, func(b []byte) { _, _ = Decode(smc.Linux, b) }, f.Bytes)
			h := m.Head()
			_, said, _ := strings.Cut(f.Origin, "NIC ")
			_, said, _ = strings.Cut(said, "; ")
			ours := fmt.Sprintf("%s %s flags %02x", strings.ReplaceAll(h.Type.String(), " ", "_"), h.Version, f.Bytes[3])
			if dl, ok := m.(*DeleteLink); ok {
				ours += fmt.Sprintf(" link %d reason %08x", dl.Link, uint32(dl.Reason))
			}
			if ours != said {
				t.Errorf("%s, the first line has %s", ours, said)
			}
			if h.Reply != (f.Bytes[3]&0x80 != 0) || h.Reply != strings.Contains(f.Name, "-rsp") {
				t.Errorf("reply %t", h.Reply)
			}
			if got := m.Append(smc.Linux, nil); string(got) != string(f.Bytes) {
				t.Errorf("appends to\n% x, want\n% x", got, f.Bytes)
			}
			if s := m.String(); !strings.HasPrefix(s, h.Type.String()) || strings.ContainsAny(s, "\n") {
				t.Errorf("trace: %q", s)
			}
		})
	}
}

// TestGoldensCoverEveryMessage: request and reply of each message that Linux sends, in both versions.
func TestGoldensCoverEveryMessage(t *testing.T) {
	captured := map[Header]bool{}
	for _, f := range golden.Load(t, files) {
		if _, bad := f.Bad(); bad {
			continue
		}
		h, err := Peek(smc.Linux, f.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		h.Length = 0
		captured[h] = true
	}
	for typ := TypeConfirmLink; typ <= TypeDeleteRKey; typ++ {
		for _, v := range []smc.Version{smc.V1, smc.V2} {
			if typ == TypeConfirmRKeyCont || !typ.known(v) {
				continue // Linux never sends the one; the other does not exist
			}
			if !captured[Header{Type: typ, Version: v}] {
				t.Errorf("no request of %s %s", typ, v)
			}
			if typ != TypeReqAddLink && !captured[Header{Type: typ, Version: v, Reply: true}] {
				t.Errorf("no reply of %s %s", typ, v)
			}
		}
	}
}

func TestBadGoldens(t *testing.T) {
	n := 0
	for _, f := range golden.Load(t, files) {
		says, bad := f.Bad()
		if !bad {
			continue
		}
		n++
		golden.CheckMemory(t, func(b []byte) { _, _ = Decode(smc.Linux, b) }, f.Bytes)
		m, err := Decode(smc.Linux, f.Bytes)
		if err == nil {
			t.Errorf("%s decodes to %s", f.Name, m)
		} else if !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %q, want %q", f.Name, err, says)
		}
	}
	if n == 0 {
		t.Error("no bad goldens")
	}
}

// TestUnknownTypes goes through all 256 opcodes in both dialects (RFC 7609 §A.3): with the two high bits 00 an unknown opcode
// is a protocol error, with 10 it is discarded, 11 is CDC. Linux ignores what it does not know.
func TestUnknownTypes(t *testing.T) {
	b := make([]byte, Size)
	for op := range 256 {
		b[0], b[1] = byte(op), Size
		for _, d := range []smc.Dialect{smc.RFC, smc.Linux} {
			h, err := Peek(d, b)
			var known bool
			switch op {
			case 1, 2, 3, 4, 6, 7, 8, 9:
				known = true
			case 0x21, 0x22, 0x24, 0x25, 0x26, 0x27, 0x29:
				known = d == smc.Linux
			}
			if known {
				if err != nil || h.Length != Size || h.Reply {
					t.Errorf("%s: 0x%02x: %+v, %v", d, op, h, err)
				}
				continue
			}
			unknown, ok := errors.AsType[*UnknownTypeError](err)
			if !ok {
				t.Errorf("%s: 0x%02x: %v", d, op, err)
				continue
			}
			var discard bool
			switch op >> 6 {
			case 0, 1:
				discard = d == smc.Linux
			case 2:
				discard = true
			case 3:
				discard = false // not ours at all
			}
			if unknown.Discard != discard || int(unknown.Opcode) != op {
				t.Errorf("%s: 0x%02x: discard %t", d, op, unknown.Discard)
			}
			if _, err := Decode(d, b); !reflect.DeepEqual(err, error(unknown)) {
				t.Errorf("%s: 0x%02x: Decode says %v", d, op, err)
			}
			if !strings.Contains(err.Error(), fmt.Sprintf("0x%02x", op)) {
				t.Errorf("%v", err)
			}
		}
	}
}

// TestLengths: v1 has one length byte, which must be 44; v2 has two in little-endian order, from 44 to what is there.
func TestLengths(t *testing.T) {
	for n := range 256 {
		b := make([]byte, 300)
		b[0], b[1] = byte(TypeTestLink), byte(n)
		if _, err := Peek(smc.Linux, b); (err == nil) != (n == Size) {
			t.Errorf("v1 length byte %d: %v", n, err)
		}
		b[0] = 0x27
		if h, err := Peek(smc.Linux, b); (err == nil) != (n >= Size) || err == nil && h.Length != n {
			t.Errorf("v2 length %d: %+v, %v", n, h, err)
		}
	}
	b := make([]byte, 300)
	b[0], b[1], b[2] = 0x27, 0x2c, 0x01 // 300
	if h, err := Peek(smc.Linux, b); err != nil || h.Length != 300 {
		t.Errorf("v2 length 300: %+v, %v", h, err)
	}
	if _, err := Peek(smc.Linux, b[:299:299]); err == nil {
		t.Error("v2 length 300 of 299 bytes passes")
	}
	b[1], b[2] = 0x00, 0x2c // 44 of a big-endian host
	if _, err := Peek(smc.Linux, b); err == nil {
		t.Error("big-endian length passes")
	}
	for n := range Size {
		if _, err := Peek(smc.Linux, b[:n:n]); err == nil {
			t.Errorf("%d bytes pass", n)
		}
	}
	if _, err := Peek(smc.RFC, nil); err == nil {
		t.Error("nil passes")
	}
}

// TestWrongMessage: each decoder refuses the others' messages, and leaves its receiver alone.
func TestWrongMessage(t *testing.T) {
	b := TestLink{}.Append(smc.RFC, nil)
	m := DeleteLink{Link: 9}
	err := m.Decode(smc.RFC, b)
	if err == nil || m != (DeleteLink{Link: 9}) || err.Error() != "llc: DELETE LINK: is a TEST LINK" {
		t.Errorf("%v, %+v", err, m)
	}
	for typ := TypeConfirmLink; typ <= TypeDeleteRKey; typ++ {
		b := make([]byte, Size)
		b[0], b[1] = byte(typ), Size
		ok := 0
		for _, m := range []interface {
			Decode(smc.Dialect, []byte) error
		}{
			new(ConfirmLink), new(AddLink), new(AddLinkCont), new(DeleteLink), new(ConfirmRKey), new(ConfirmRKeyCont), new(DeleteRKey), new(TestLink), new(ReqAddLink),
		} {
			if m.Decode(smc.RFC, b) == nil {
				ok++
			}
		}
		if want := map[bool]int{true: 1}[typ.known(smc.V1)]; ok != want {
			t.Errorf("%s is decoded by %d types", typ, ok)
		}
	}
}

func TestDecodeReturnsEachType(t *testing.T) {
	for _, m := range []Message{
		&ConfirmLink{Version: smc.V1, Link: 1}, &AddLink{Version: smc.V1, Link: 1}, &AddLinkCont{Link: 1}, &DeleteLink{Version: smc.V1, Link: 1},
		&ReqAddLink{GIDs: []roce.GID{figGID}}, &ConfirmRKey{Version: smc.V1, NumOthers: 1}, &TestLink{Version: smc.V1, Reply: true},
		&ConfirmRKeyCont{Remaining: 2}, &DeleteRKey{Version: smc.V1, Count: 1},
	} {
		got, err := Decode(smc.Linux, m.Append(smc.Linux, nil))
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%s: got %v, %v", m, got, err)
		}
		// Version 0 is sent as 1.
		if h := m.Head(); h.Type != TypeReqAddLink && h.Version != smc.V1 {
			t.Errorf("%s: %s", m, h.Version)
		}
	}
	if h := (TestLink{}).Head(); h.Version != smc.V1 {
		t.Errorf("zero version is %s", h.Version)
	}
}

func TestTypeString(t *testing.T) {
	if TypeAddLinkCont.String() != "ADD LINK CONT" || Type(0).String() != "0x00" || Type(0x7f).String() != "0x7f" {
		t.Error("String")
	}
}

// FuzzDecode looks at the dispatch: it must agree with the decoder of the type, in both dialects.
func FuzzDecode(f *testing.F) {
	for _, g := range golden.Load(f, files) {
		f.Add(g.Bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, d := range []smc.Dialect{smc.RFC, smc.Linux} {
			golden.FixedPoint(t, golden.Codec{
				Decode: func(b []byte) (any, error) { return Decode(d, b) },
				Append: func(m any, b []byte) []byte { return m.(Message).Append(d, b) },
			}, b)
		}
	})
}

// mend puts type and length right, so that the fuzzer gets past them; the high nibble of the type chooses the version.
func mend(b []byte, typ Type) []byte {
	b = append([]byte(nil), b...)
	if n := len(b); n >= Size && n <= 65535 {
		if b[offType]&0x20 != 0 {
			b[offType], b[offLen], b[offLen+1] = 0x20|byte(typ), byte(n), byte(n>>8)
		} else {
			b[offType], b[offLen] = byte(typ), Size
		}
	}
	return b
}

// fuzz is the body of the fuzz target of one message: seeds are the goldens of its type.
func fuzz[T any, P message[T]](f *testing.F, typ Type) {
	for _, g := range golden.Load(f, files) {
		if len(g.Bytes) > 0 && Type(g.Bytes[0]&0xF) == typ {
			f.Add(g.Bytes)
		}
	}
	var zero T
	for _, d := range []smc.Dialect{smc.RFC, smc.Linux} {
		f.Add(P(&zero).Append(d, nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, mend(b, typ)} {
			golden.FixedPoint(t, codec[T, P](smc.RFC), b)
			golden.FixedPoint(t, codec[T, P](smc.Linux), b)
		}
	})
}

func FuzzConfirmLink(f *testing.F)     { fuzz[ConfirmLink](f, TypeConfirmLink) }
func FuzzAddLink(f *testing.F)         { fuzz[AddLink](f, TypeAddLink) }
func FuzzAddLinkCont(f *testing.F)     { fuzz[AddLinkCont](f, TypeAddLinkCont) }
func FuzzDeleteLink(f *testing.F)      { fuzz[DeleteLink](f, TypeDeleteLink) }
func FuzzReqAddLink(f *testing.F)      { fuzz[ReqAddLink](f, TypeReqAddLink) }
func FuzzConfirmRKey(f *testing.F)     { fuzz[ConfirmRKey](f, TypeConfirmRKey) }
func FuzzTestLink(f *testing.F)        { fuzz[TestLink](f, TypeTestLink) }
func FuzzConfirmRKeyCont(f *testing.F) { fuzz[ConfirmRKeyCont](f, TypeConfirmRKeyCont) }
func FuzzDeleteRKey(f *testing.F)      { fuzz[DeleteRKey](f, TypeDeleteRKey) }

package clc

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"libsmcr/abi/internal/golden"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

//go:embed testdata/*.hex
var files embed.FS

func proposals(d smc.Dialect) golden.Codec {
	return golden.Codec{
		Decode: func(b []byte) (any, error) { var m Proposal; err := m.Decode(d, b); return m, err },
		Append: func(m any, b []byte) []byte { return m.(Proposal).Append(d, b) },
	}
}

func confirms(d smc.Dialect) golden.Codec {
	return golden.Codec{
		Decode: func(b []byte) (any, error) { var m Confirm; err := m.Decode(d, b); return m, err },
		Append: func(m any, b []byte) []byte { return m.(Confirm).Append(d, b) },
	}
}

var (
	accepts = golden.Codec{
		Decode: func(b []byte) (any, error) { var m Accept; err := m.Decode(b); return m, err },
		Append: func(m any, b []byte) []byte { return m.(Accept).Append(b) },
	}
	declines = golden.Codec{
		Decode: func(b []byte) (any, error) { var m Decline; err := m.Decode(b); return m, err },
		Append: func(m any, b []byte) []byte { return m.(Decline).Append(b) },
	}
)

// decode reads whichever message b holds, in the Linux dialect.
func decode(b []byte) (fmt.Stringer, error) {
	h, err := Peek(b)
	if err != nil {
		return nil, err
	}
	switch h.Type {
	case TypeProposal:
		var m Proposal
		return &m, m.Decode(smc.Linux, b)
	case TypeAccept:
		var m Accept
		return &m, m.Decode(b)
	case TypeConfirm:
		var m Confirm
		return &m, m.Decode(smc.Linux, b)
	default:
		var m Decline
		return &m, m.Decode(b)
	}
}

// checkGolden runs the five tests on a captured message, all of which are of the Linux dialect.
func checkGolden(t *testing.T, c golden.Codec, name string, want any, reserved string) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Helper()
		for _, f := range golden.Load(t, files) {
			if f.Name == name {
				golden.Check(t, c, f.Bytes, want, reserved)
				return
			}
		}
		t.Fatal("no such golden")
	})
}

func gid(t testing.TB, text string) roce.GID { return roce.GID(golden.Hex(t, text)) }

func peerID(t testing.TB, text string) smc.PeerID { return smc.PeerID(golden.Hex(t, text)) }

func eid(t testing.TB, name string) smc.EID {
	t.Helper()
	e, err := smc.ParseEID(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

var (
	macA = roce.MAC{0x52, 0x54, 0x00, 0xaa, 0x00, 0x01}
	macB = roce.MAC{0x52, 0x54, 0x00, 0xaa, 0x00, 0x02}
)

// The values that figures are filled with: none is zero, no two are alike.
const (
	figPeerID = "0102030405060708"
	figGID    = "fe801112 13141516 1718191a 1b1c1d1e"
	figMAC    = "212223242526"
)

// TestGoldensSayTheSame compares every captured message with the first line of its file, which the capturing tool wrote:
// "ACCEPT v1 F len 68 b7=18", "DECLINE v2 len 44 b7=20 diag 02010000". It shares no code with us.
func TestGoldensSayTheSame(t *testing.T) {
	for _, f := range golden.Load(t, files) {
		if _, bad := f.Bad(); bad {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			h, err := Peek(f.Bytes[:HeaderSize])
			if err != nil {
				t.Fatal(err)
			}
			if h.Length != len(f.Bytes) {
				t.Errorf("length %d of %d", h.Length, len(f.Bytes))
			}
			golden.CheckMemory(t, func(b []byte) { _, _ = decode(b) }, f.Bytes)
			m, err := decode(f.Bytes)
			if err != nil || ClassOf(err) != Good {
				t.Fatal(err)
			}
			_, said, _ := strings.Cut(f.Origin, "NIC ")
			_, said, _ = strings.Cut(said, "; ")
			ours := fmt.Sprintf("%s %s", h.Type, h.Version)
			if h.Type != TypeProposal && h.Flags&0x08 != 0 {
				ours += " F"
			}
			ours += fmt.Sprintf(" len %d b7=%x%x", h.Length, uint8(h.Version), h.Flags)
			if d, ok := m.(*Decline); ok {
				ours += fmt.Sprintf(" diag %08x", uint32(d.Diagnosis))
			}
			if ours != strings.Join(strings.Fields(said), " ") {
				t.Errorf("%s, the first line has %s", ours, said)
			}
			if s := m.String(); !strings.HasPrefix(s, h.Type.String()+" "+h.Version.String()) || strings.ContainsAny(s, "\n") {
				t.Errorf("trace: %q", s)
			}
		})
	}
}

// TestBadGoldens: RFC 7609 §C.6 knows two classes of bad messages; the name of the file says which one is in it.
func TestBadGoldens(t *testing.T) {
	seen := map[Class]int{}
	for _, f := range golden.Load(t, files) {
		says, bad := f.Bad()
		if !bad {
			continue
		}
		want := NotCLC
		if strings.HasPrefix(f.Name, "bad_enum-") {
			want = BadEnum
		}
		seen[want]++
		golden.CheckMemory(t, func(b []byte) { _, _ = decode(b) }, f.Bytes)
		_, err := decode(f.Bytes)
		if ClassOf(err) != want || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %s: %v, want %s: %q", f.Name, ClassOf(err), err, want, says)
		}
	}
	if seen[NotCLC] == 0 || seen[BadEnum] == 0 {
		t.Error("a class without a golden")
	}
}

func TestPeek(t *testing.T) {
	good := golden.Hex(t, "e2d4c3d9 02 0044 18")
	h, err := Peek(good)
	if err != nil || h != (Header{Type: TypeAccept, Version: smc.V1, Length: 68, Flags: 8}) {
		t.Errorf("%+v, %v", h, err)
	}
	// Less than a header is the beginning of one as long as it agrees with the eye catcher.
	for n := range good {
		if _, err := Peek(good[:n:n]); err != ErrShort || ClassOf(err) != TooShort {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, text := range []string{"47", "e2d4c3d8", "e2d4c3c4 02 0044 18", "e2d4c4", "00e2d4c3d9020044"} {
		if _, err := Peek(golden.Hex(t, text)); ClassOf(err) != NotCLC {
			t.Errorf("%s: %v", text, err)
		}
	}
	for at, values := range map[int][]byte{4: {0, 5, 0xff}, 7: {0x00, 0x0f}} {
		for _, v := range values {
			b := append([]byte(nil), good...)
			b[at] = v
			if _, err := Peek(b); ClassOf(err) != NotCLC {
				t.Errorf("byte %d = 0x%02x: %v", at, v, err)
			}
		}
	}
	// The lengths that a message can have, and that it is of no use to wait for others.
	for _, c := range []struct {
		typ, version byte
		lengths      string
	}{
		{1, 1, "52-65535"}, {1, 2, "84-65535"}, {1, 3, "84-65535"},
		{2, 1, "68-68"}, {2, 2, "108-65535"}, {2, 3, "68-65535"},
		{3, 1, "68-68"}, {3, 2, "108-65535"}, {3, 15, "68-65535"},
		{4, 1, "28-28 44-44"}, {4, 2, "28-28 44-44"}, {4, 15, "28-28 44-44"},
	} {
		want := make(map[int]bool)
		for _, r := range strings.Fields(c.lengths) {
			var lo, hi int
			if _, err := fmt.Sscanf(r, "%d-%d", &lo, &hi); err != nil {
				t.Fatal(err)
			}
			for n := lo; n <= hi; n++ {
				want[n] = true
			}
		}
		for n := range 65536 {
			if n > 300 && n < 65500 {
				continue
			}
			b := append([]byte(nil), good...)
			b[4], b[5], b[6], b[7] = c.typ, byte(n>>8), byte(n), c.version<<4
			h, err := Peek(b)
			if (err == nil) != want[n] || err == nil && h.Length != n || err != nil && ClassOf(err) != NotCLC {
				t.Fatalf("type %d version %d length %d: %+v, %v", c.typ, c.version, n, h, err)
			}
		}
	}
}

func TestClassOf(t *testing.T) {
	for want, errs := range map[Class][]error{
		Good:     {nil},
		TooShort: {ErrShort, fmt.Errorf("reading: %w", ErrShort)},
		BadEnum:  {&EnumError{}, fmt.Errorf("server: %w", &EnumError{TypeAccept, "MTU", 6})},
		NotCLC:   {&ProtocolError{}, fmt.Errorf("server: %w", &ProtocolError{}), io.EOF, errors.New("x")},
	} {
		for _, err := range errs {
			if ClassOf(err) != want {
				t.Errorf("%v: %s", err, ClassOf(err))
			}
		}
		if want.String() == "" {
			t.Error("no name")
		}
	}
	if Class(9).String() != "0x09" || Type(9).String() != "0x09" || OS(9).String() != "0x9" || Transport(9).String() != "0x9" {
		t.Error("unknown values")
	}
	if s := (&EnumError{TypeAccept, "MTU", 6}).Error(); s != "clc: ACCEPT: reserved MTU 0x6" {
		t.Error(s)
	}
	if s := (&ProtocolError{What: "x"}).Error() + (&ProtocolError{TypeDecline, "y"}).Error(); s != "clc: xclc: DECLINE: y" {
		t.Error(s)
	}
}

// TestWrongMessage: each decoder refuses the others' messages and leaves its receiver alone.
func TestWrongMessage(t *testing.T) {
	b := Decline{Version: smc.V1}.Append(nil)
	p, a, c := Proposal{Version: 9}, Accept{Version: 9}, Confirm{Version: 9}
	if ClassOf(p.Decode(smc.RFC, b)) != NotCLC || ClassOf(a.Decode(b)) != NotCLC || ClassOf(c.Decode(smc.RFC, b)) != NotCLC {
		t.Error("a Decline passes as something else")
	}
	if p.Version != 9 || a.Version != 9 || c.Version != 9 {
		t.Error("a failed Decode changes the message")
	}
	d := Decline{Version: 9}
	if err := d.Decode(Accept{Version: smc.V1}.Append(nil)); ClassOf(err) != NotCLC || d.Version != 9 || err.Error() != "clc: DECLINE: is a ACCEPT" {
		t.Errorf("%v", err)
	}
}

// TestBytesBehindTheMessage: what follows on the stream is not ours; it may be application data behind a Decline.
func TestBytesBehindTheMessage(t *testing.T) {
	for _, f := range golden.Load(t, files) {
		if _, bad := f.Bad(); bad {
			continue
		}
		with, err1 := decode(append(append([]byte(nil), f.Bytes...), "GET / HTTP/1.1"...))
		alone, err2 := decode(f.Bytes)
		if err1 != nil || err2 != nil || with.String() != alone.String() {
			t.Errorf("%s: %v, %v", f.Name, err1, err2)
		}
	}
}

// seed adds the goldens of a type, bad ones included, to a fuzz target.
func seed(f *testing.F, typ Type) {
	for _, g := range golden.Load(f, files) {
		if len(g.Bytes) > offType && Type(g.Bytes[offType]) == typ {
			f.Add(g.Bytes)
		}
	}
}

// fixedPoint is golden.FixedPoint for decoders that give a whole message together with an *EnumError: it takes those, too.
// It looks at b as it is, and with eye catchers, type and length put right, so that the fuzzer gets past them.
func fixedPoint(t *testing.T, typ Type, c golden.Codec, b []byte) {
	lenient := golden.Codec{
		Append: c.Append,
		Decode: func(b []byte) (any, error) {
			m, err := c.Decode(b)
			if ClassOf(err) == BadEnum {
				err = nil
			}
			return m, err
		},
	}
	golden.FixedPoint(t, lenient, b)
	if n := len(b); n >= DeclineSize && n <= 65535 {
		b = append([]byte(nil), b...)
		copy(b, smc.EyeCatcher[:])
		copy(b[n-TrailerSize:], smc.EyeCatcher[:])
		b[offType], b[offLen], b[offLen+1] = byte(typ), byte(n>>8), byte(n)
		golden.FixedPoint(t, lenient, b)
	}
}

func FuzzPeek(f *testing.F) {
	for _, g := range golden.Load(f, files) {
		f.Add(g.Bytes)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := Peek(b)
		if err == nil && (h.Length < DeclineSize || h.Length > 65535) {
			t.Fatalf("length %d", h.Length)
		}
		// More bytes never change a verdict.
		if _, again := Peek(append(append([]byte(nil), b...), 0)); ClassOf(err) != TooShort && ClassOf(again) != ClassOf(err) {
			t.Fatalf("%v, then %v", err, again)
		}
		m, err := decode(b)
		if class := ClassOf(err); class == Good || class == BadEnum {
			_ = m.String()
		}
	})
}

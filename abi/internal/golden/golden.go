// Package golden is the test template for wire messages: files with captured bytes, and the checks that every message has to
// pass. Only tests import it.
//
// A file is hexadecimal text. Its first line begins with # and says where the bytes come from; what stands behind # on other
// lines is comment. Captured files are never written by our own encoder.
package golden

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// File is one golden.
type File struct {
	Name   string // without .hex
	Origin string // the first line without #
	Bytes  []byte
}

// Load returns the .hex files of testdata in the order of their names.
func Load(t testing.TB, files fs.FS) []File {
	t.Helper()
	names, err := fs.Glob(files, "testdata/*.hex")
	if err != nil || len(names) == 0 {
		t.Fatalf("no goldens: %v", err)
	}
	var all []File
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.Name = strings.TrimSuffix(strings.TrimPrefix(name, "testdata/"), ".hex")
		if says, bad := f.Bad(); bad && says == "" {
			t.Fatalf("%s: the first line does not say what is wrong", name)
		}
		all = append(all, f)
	}
	return all
}

// Parse reads the text of a golden.
func Parse(text string) (File, error) {
	first, rest, _ := strings.Cut(text, "\n")
	if !strings.HasPrefix(first, "#") {
		return File{}, fmt.Errorf("the first line does not say where the bytes come from")
	}
	b, err := ParseHex(rest)
	return File{Origin: strings.TrimSpace(first[1:]), Bytes: b}, err
}

// ParseHex reads hexadecimal digits, ignoring white space and what follows # on a line.
func ParseHex(text string) ([]byte, error) {
	var digits strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		for _, w := range strings.Fields(line) {
			digits.WriteString(w)
		}
	}
	return hex.DecodeString(digits.String())
}

// Hex is ParseHex for texts inside a test.
func Hex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := ParseHex(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Bad reports whether the golden is one that must not decode, by its name, and what the error has to say: that stands behind
// the last | of its first line.
func (f File) Bad() (says string, bad bool) {
	if !strings.HasPrefix(f.Name, "bad_") {
		return "", false
	}
	at := strings.LastIndex(f.Origin, "|")
	return strings.TrimSpace(f.Origin[at+1:]), true
}

// Codec is a message type seen from outside.
type Codec struct {
	Decode func(b []byte) (any, error) // the message as a value, not a pointer
	Append func(m any, b []byte) []byte
}

// Check runs the tests that every message passes: the bytes decode to want; want appends to the same bytes, whatever was in
// the memory before; every prefix fails; reserved bits, and only they, do not matter; nothing of the input is kept.
//
// reserved lists the bits that the decoder has to ignore: "2" a byte, "6-7" a range, "3:7f" some bits of a byte.
func Check(t *testing.T, c Codec, b []byte, want any, reserved string) {
	t.Helper()
	CheckDecode(t, c, b, want)
	CheckAppend(t, c, want, b)
	CheckPrefixes(t, c, b)
	CheckBits(t, c, b, reserved)
	CheckNoAlias(t, c, b)
}

// CheckDecode decodes b, which must give want.
func CheckDecode(t *testing.T, c Codec, b []byte, want any) {
	t.Helper()
	got, err := c.Decode(b)
	if err != nil {
		t.Errorf("decode: %v", err)
	} else if !reflect.DeepEqual(got, want) {
		t.Errorf("decoded\n%+v, want\n%+v", got, want)
	}
}

// CheckAppend appends m to memory full of 0xA5: the bytes must be want, and nothing before or behind them may change.
func CheckAppend(t *testing.T, c Codec, m any, want []byte) {
	t.Helper()
	const before, behind = 3, 5
	buf := make([]byte, before+len(want)+behind)
	for i := range buf {
		buf[i] = 0xA5
	}
	got := c.Append(m, buf[:before])
	if string(got[before:]) != string(want) {
		t.Errorf("appended\n% x, want\n% x", got[before:], want)
	}
	if string(got[:before]) != "\xa5\xa5\xa5" || string(buf[len(buf)-behind:]) != "\xa5\xa5\xa5\xa5\xa5" {
		t.Errorf("append wrote outside of its bytes: % x", buf)
	}
	// Without room the result is the same.
	if got := c.Append(m, nil); string(got) != string(want) {
		t.Errorf("appended to nil\n% x, want\n% x", got, want)
	}
}

// CheckPrefixes decodes every proper prefix of b, with the rest of the memory out of reach: all must fail.
func CheckPrefixes(t *testing.T, c Codec, b []byte) {
	t.Helper()
	for n := range b {
		if _, err := c.Decode(b[:n:n]); err == nil {
			t.Errorf("the first %d of %d bytes decode", n, len(b))
		}
	}
}

// CheckBits flips every bit of b. A reserved one must not change what is decoded; any other must change it or be refused.
func CheckBits(t *testing.T, c Codec, b []byte, reserved string) {
	t.Helper()
	mask := Mask(t, len(b), reserved)
	base, err := c.Decode(b)
	if err != nil {
		t.Error(err)
		return
	}
	for i := range b {
		for bit := byte(0x80); bit != 0; bit >>= 1 {
			noisy := append([]byte(nil), b...)
			noisy[i] ^= bit
			got, err := c.Decode(noisy)
			same := err == nil && reflect.DeepEqual(got, base)
			if free := mask[i]&bit != 0; free != same {
				t.Errorf("byte %d bit 0x%02x: reserved %t, but ignored %t (%v)", i, bit, free, same, err)
			}
		}
	}
	// All of them at once.
	noisy := append([]byte(nil), b...)
	for i := range noisy {
		noisy[i] ^= mask[i]
	}
	if got, err := c.Decode(noisy); err != nil || !reflect.DeepEqual(got, base) {
		t.Errorf("all reserved bits flipped: %+v, %v", got, err)
	}
}

// CheckNoAlias overwrites the input after decoding: the message must not change with it.
func CheckNoAlias(t *testing.T, c Codec, b []byte) {
	t.Helper()
	mine := append([]byte(nil), b...)
	m, err := c.Decode(mine)
	if err != nil {
		t.Error(err)
		return
	}
	for i := range mine {
		mine[i] ^= 0xFF
	}
	if again, err := c.Decode(b); err != nil || !reflect.DeepEqual(m, again) {
		t.Errorf("the message keeps its input: %+v", m)
	}
}

// CheckMemory decodes b many times: on the average it may allocate little more than the message is long, whatever counts and
// lengths are in it.
func CheckMemory(t *testing.T, decode func(b []byte), b []byte) {
	t.Helper()
	const runs = 64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		decode(b)
	}
	runtime.ReadMemStats(&after)
	// A struct, an error and its text come on top of the lists.
	if got, most := (after.TotalAlloc-before.TotalAlloc)/runs, uint64(2*len(b)+1024); got > most {
		t.Errorf("%d bytes allocated for a message of %d", got, len(b))
	}
}

// Mask expands the notation of Check for n bytes.
func Mask(t testing.TB, n int, reserved string) []byte {
	t.Helper()
	mask := make([]byte, n)
	for _, word := range strings.Fields(reserved) {
		span, bits, some := strings.Cut(word, ":")
		m := uint64(0xFF)
		var err error
		if some {
			if m, err = strconv.ParseUint(bits, 16, 8); err != nil {
				t.Fatal(err)
			}
		}
		lo, hi, isRange := strings.Cut(span, "-")
		if !isRange {
			hi = lo
		}
		from, err1 := strconv.Atoi(lo)
		to, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil || from > to || to >= n {
			t.Fatalf("bad word %q for %d bytes", word, n)
		}
		for i := from; i <= to; i++ {
			mask[i] |= byte(m)
		}
	}
	return mask
}

// FixedPoint is the body of a fuzz target: whatever decodes must append to something that decodes to the same, and that
// appends to the same bytes again.
func FixedPoint(t *testing.T, c Codec, b []byte) {
	t.Helper()
	b = b[:len(b):len(b)] // reading past it panics
	before := string(b)
	m, err := c.Decode(b)
	if string(b) != before {
		t.Fatal("decoding changed the input")
	}
	if err != nil {
		return
	}
	once := c.Append(m, nil)
	again, err := c.Decode(once)
	if err != nil {
		t.Fatalf("% x\ndecodes to %+v\nwhich appends to % x\nwhich fails: %v", b, m, once, err)
	}
	if !reflect.DeepEqual(m, again) {
		t.Fatalf("% x\ndecodes to %+v\nafter appending to %+v", b, m, again)
	}
	if twice := c.Append(again, nil); string(twice) != string(once) {
		t.Fatalf("% x\nappends to % x\nand then to % x", b, once, twice)
	}
	if s, ok := m.(fmt.Stringer); ok && strings.ContainsAny(s.String(), "\n\r\x1b") {
		t.Fatalf("trace is not one clean line: %q", s.String())
	}
}

package smc

import (
	"math"
	"testing"
)

// The two geometries that occur: an element of 10,000 bytes as in RFC 7609 §4.7, in both dialects.
var (
	rfcRing   = RFC.Ring(10000)
	linuxRing = Linux.Ring(10000)
)

func TestDialectsDifferInTheOrigin(t *testing.T) {
	if rfcRing != (Ring{4, 10000}) || rfcRing.Capacity() != 9996 || rfcRing.Start() != (Cursor{0, 4}) {
		t.Errorf("%+v", rfcRing)
	}
	if linuxRing != (Ring{0, 10000}) || linuxRing.Capacity() != 10000 || linuxRing.Start() != (Cursor{}) {
		t.Errorf("%+v", linuxRing)
	}
	if RFC.String() != "rfc" || Linux.String() != "linux" || Dialect(9).String() != "0x09" {
		t.Error("String")
	}
}

func TestAdvance(t *testing.T) {
	for _, c := range []struct {
		name string
		r    Ring
		from Cursor
		n    uint32
		want Cursor
	}{
		{"nothing", rfcRing, Cursor{0, 4}, 0, Cursor{0, 4}},
		{"one byte", rfcRing, Cursor{0, 4}, 1, Cursor{0, 5}},
		{"up to the last byte", rfcRing, Cursor{0, 4}, 9995, Cursor{0, 9999}},
		{"exactly to the end is a wrap", rfcRing, Cursor{0, 4}, 9996, Cursor{1, 4}},
		{"over the end", rfcRing, Cursor{3, 9000}, 1500, Cursor{4, 504}},
		{"last byte, one", rfcRing, Cursor{0, 9999}, 1, Cursor{1, 4}},
		{"full turn", rfcRing, Cursor{7, 1004}, 9996, Cursor{8, 1004}},
		{"wrap number wraps", rfcRing, Cursor{math.MaxUint16, 9999}, 1, Cursor{0, 4}},
		{"linux: exactly to the end", linuxRing, Cursor{0, 0}, 10000, Cursor{1, 0}},
		{"linux: over the end", linuxRing, Cursor{0, 9999}, 2, Cursor{1, 1}},
		{"linux: wrap number wraps", linuxRing, Cursor{math.MaxUint16, 5000}, 10000, Cursor{0, 5000}},
	} {
		if got := c.r.Advance(c.from, c.n); got != c.want {
			t.Errorf("%s: %s + %d = %s, want %s", c.name, c.from, c.n, got, c.want)
		}
	}
}

func TestUsed(t *testing.T) {
	for _, c := range []struct {
		name       string
		r          Ring
		cons, prod Cursor
		used       uint32
		ok         bool
	}{
		{"empty: same count, same wrap", rfcRing, Cursor{5, 777}, Cursor{5, 777}, 0, true},
		{"full: same count, next wrap", rfcRing, Cursor{5, 777}, Cursor{6, 777}, 9996, true},
		{"full over the wrap of the wrap number", rfcRing, Cursor{math.MaxUint16, 777}, Cursor{0, 777}, 9996, true},
		{"one byte", rfcRing, Cursor{0, 4}, Cursor{0, 5}, 1, true},
		{"one byte over the end", rfcRing, Cursor{0, 9999}, Cursor{1, 4}, 1, true},
		{"all but one", rfcRing, Cursor{0, 5}, Cursor{1, 4}, 9995, true},
		{"whole from the start", rfcRing, Cursor{0, 4}, Cursor{1, 4}, 9996, true},
		{"producer behind", rfcRing, Cursor{0, 5}, Cursor{0, 4}, 0, false},
		{"one more than full", rfcRing, Cursor{5, 777}, Cursor{6, 778}, 0, false},
		{"two wraps ahead", rfcRing, Cursor{5, 777}, Cursor{7, 4}, 0, false},
		{"wrap behind", rfcRing, Cursor{5, 777}, Cursor{4, 777}, 0, false},
		{"half the wrap numbers away", rfcRing, Cursor{5, 777}, Cursor{0x8005, 777}, 0, false},
		{"cursor inside the eye catcher", rfcRing, Cursor{0, 0}, Cursor{0, 100}, 0, false},
		{"cursor at the size", rfcRing, Cursor{0, 4}, Cursor{0, 10000}, 0, false},
		{"absurd cursor", rfcRing, Cursor{0, 4}, Cursor{0, math.MaxUint32}, 0, false},
		{"linux: 0 is valid", linuxRing, Cursor{0, 0}, Cursor{0, 100}, 100, true},
		{"linux: whole from the start", linuxRing, Cursor{0, 0}, Cursor{1, 0}, 10000, true},
		{"linux: cursor at the size", linuxRing, Cursor{0, 0}, Cursor{0, 10000}, 0, false},
	} {
		used, ok := c.r.Used(c.cons, c.prod)
		if used != c.used || ok != c.ok {
			t.Errorf("%s: %d, %t", c.name, used, ok)
		}
		free, ok := c.r.Free(c.cons, c.prod)
		if want := c.r.Capacity() - c.used; ok != c.ok || ok && free != want {
			t.Errorf("%s: free %d, %t", c.name, free, ok)
		}
	}
}

func TestBetween(t *testing.T) {
	lo, hi := Cursor{1, 9000}, Cursor{2, 500}
	for x, want := range map[Cursor]bool{
		lo: true, hi: true, {1, 9999}: true, {2, 4}: true, {2, 499}: true,
		{1, 8999}: false, {2, 501}: false, {2, 9000}: false, {3, 4}: false, {0, 9500}: false, {2, 3}: false, {1, 10000}: false,
	} {
		if rfcRing.Between(lo, x, hi) != want {
			t.Errorf("%s: %t", x, !want)
		}
	}
	if rfcRing.Between(hi, hi, lo) {
		t.Error("the upper end is behind the lower")
	}
	// A producer update is good up to Limit of the consumer, however far the last one was.
	cons := Cursor{math.MaxUint16, 700}
	if limit := rfcRing.Limit(cons); limit != (Cursor{0, 700}) || limit != rfcRing.Advance(cons, rfcRing.Capacity()) {
		t.Errorf("limit %s", limit)
	}
	if !rfcRing.Between(Cursor{math.MaxUint16, 800}, Cursor{0, 700}, rfcRing.Limit(cons)) {
		t.Error("a full ring is allowed")
	}
	if rfcRing.Between(Cursor{math.MaxUint16, 800}, Cursor{0, 701}, rfcRing.Limit(cons)) {
		t.Error("more than a full ring is not")
	}
}

func TestSpans(t *testing.T) {
	for _, c := range []struct {
		r             Ring
		from          Cursor
		n             uint32
		first, second Span
	}{
		{rfcRing, Cursor{0, 4}, 1000, Span{4, 1000}, Span{4, 0}},
		{rfcRing, Cursor{1, 1004}, 9996, Span{1004, 8996}, Span{4, 1000}},
		{rfcRing, Cursor{1, 1004}, 8996, Span{1004, 8996}, Span{4, 0}}, // ends exactly at the end: one piece
		{rfcRing, Cursor{1, 9999}, 1, Span{9999, 1}, Span{4, 0}},
		{rfcRing, Cursor{1, 9999}, 2, Span{9999, 1}, Span{4, 1}},
		{rfcRing, Cursor{1, 500}, 0, Span{500, 0}, Span{4, 0}},
		{linuxRing, Cursor{0, 16}, 10000, Span{16, 9984}, Span{0, 16}},
	} {
		first, second := c.r.Spans(c.from, c.n)
		if first != c.first || second != c.second {
			t.Errorf("%s + %d: %v %v", c.from, c.n, first, second)
		}
	}
}

// TestUpdateDue has the examples of RFC 7609 §4.5.1 in an element of 64 KiB whose data area is all of it.
func TestUpdateDue(t *testing.T) {
	const k = 1024
	r := Linux.Ring(64 * k)
	at := func(n uint32) Cursor { return r.Advance(r.Start(), n) }
	for _, c := range []struct {
		name               string
		senders, receivers uint32 // window as each of them sees it
		want               bool
	}{
		{"a: plenty of space", 50 * k, 64 * k, false},
		{"b: less than half, but only 1K more", 30 * k, 31 * k, false},
		{"c: less than half, and much more", 30 * k, 64 * k, true},
		{"exactly half is not less", 32 * k, 64 * k, false},
		{"one less than half", 32*k - 1, 64 * k, true},
		{"a tenth is 6553.6: 6553 is less", 10 * k, 10*k + 6553, false},
		{"6554 is more", 10 * k, 10*k + 6554, true},
		{"nothing consumed", 0, 0, false},
		{"full ring, all consumed", 0, 64 * k, true},
	} {
		// The producer stands at 64K; the sender knows a consumer that leaves it `senders` bytes.
		prod := at(64 * k)
		told, cons := at(c.senders), at(c.receivers)
		if got := r.UpdateDue(told, cons, prod); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
	if r.UpdateDue(at(10), at(5), at(20)) || r.UpdateDue(at(30), at(40), at(20)) {
		t.Error("due with cursors that do not belong together")
	}
	if !(Ring{Size: 1 << 31}).UpdateDue(Cursor{}, Cursor{0, 1<<31 - 1}, Cursor{0, 1<<31 - 1}) {
		t.Error("overflow in a huge ring")
	}
}

func TestCursorString(t *testing.T) {
	if s := (Cursor{0xFFFF, 0x897e}).String(); s != "ffff:0000897e" {
		t.Error(s)
	}
}

// FuzzRing compares the arithmetic with plain 64-bit stream positions.
func FuzzRing(f *testing.F) {
	f.Add(uint8(0), uint32(10000), uint64(0), uint32(1000), uint32(500))
	f.Add(uint8(1), uint32(16384), uint64(65535)*16384, uint32(16384), uint32(16384))
	f.Add(uint8(0), uint32(5), uint64(1<<40), uint32(1), uint32(1))
	f.Fuzz(func(t *testing.T, dialect uint8, size uint32, pos uint64, ahead, part uint32) {
		r := Dialect(dialect % 2).Ring(max(size, EyeCatcherSize+1))
		c := uint64(r.Capacity())
		at := r.At
		n := uint64(ahead) % (c + 1)
		k := uint64(part) % (n + 1)
		pos %= 1 << 62
		cons, prod, mid := at(pos), at(pos+n), at(pos+k)
		if got := r.Advance(cons, uint32(n)); got != prod {
			t.Fatalf("%+v: %s + %d = %s, want %s", r, cons, n, got, prod)
		}
		if used, ok := r.Used(cons, prod); !ok || uint64(used) != n {
			t.Fatalf("%+v: used(%s, %s) = %d, %t, want %d", r, cons, prod, used, ok, n)
		}
		if !r.Between(cons, mid, prod) {
			t.Fatalf("%+v: %s not between %s and %s", r, mid, cons, prod)
		}
		if _, ok := r.Used(cons, at(pos+c+1+k)); ok {
			t.Fatalf("%+v: more than a ring ahead of %s passes", r, cons)
		}
		if _, ok := r.Used(prod, cons); ok && n > 0 {
			t.Fatalf("%+v: the consumer ahead of the producer passes", r)
		}
		a, b := r.Spans(cons, uint32(n))
		if uint64(a.Len)+uint64(b.Len) != n || a.Off != cons.Count || b.Off != r.Origin ||
			uint64(a.Off)+uint64(a.Len) > uint64(r.Size) || b.Len > 0 && b.Off+b.Len > cons.Count {
			t.Fatalf("%+v: spans(%s, %d) = %v %v", r, cons, n, a, b)
		}
		_ = r.UpdateDue(cons, mid, prod)
	})
}

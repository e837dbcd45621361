package roce

import (
	"net/netip"
	"testing"
)

func TestPSN(t *testing.T) {
	for _, c := range []struct {
		p      PSN
		n      uint32
		want   PSN
		before bool // p before want
	}{
		{0, 0, 0, false},
		{0, 1, 1, true},
		{0xFFFFFF, 1, 0, true},
		{0xFFFFFE, 5, 3, true},
		{0, 0x7FFFFF, 0x7FFFFF, true},
		{5, 0x800000, 0x800005, true}, // exactly opposite: as any signed distance has it
		{0, 0x800001, 0x800001, false},
		{0x800000, 0x7FFFFF, 0xFFFFFF, true},
		{1, 0xFFFFFF, 0, false},
		{0, 0x1000000, 0, false},
	} {
		if got := c.p.Add(c.n); got != c.want || c.p.Before(got) != c.before {
			t.Errorf("%s + %d = %s, before %t", c.p, c.n, got, c.p.Before(got))
		}
	}
	for _, c := range []struct {
		p, q PSN
		want int32
	}{{3, 0xFFFFFE, 5}, {0xFFFFFE, 3, -5}, {0, 0x800000, -0x800000}, {0x800000, 0, -0x800000}, {0x7FFFFF, 0, 0x7FFFFF}} {
		if got := c.p.Sub(c.q); got != c.want {
			t.Errorf("%s - %s = %d, want %d", c.p, c.q, got, c.want)
		}
	}
	if PSN(0xFFFFFF).Next() != 0 {
		t.Error("Next")
	}
}

func Test24Bits(t *testing.T) {
	b := []byte{0xA5, 0xA5, 0xA5, 0xA5, 0xA5}
	QPN(0xFF123456).Put(b[1:])
	if string(b) != "\xa5\x12\x34\x56\xa5" || QPNAt(b[1:]) != 0x123456 {
		t.Errorf("% x", b)
	}
	PSN(0xFF654321).Put(b[1:])
	if string(b) != "\xa5\x65\x43\x21\xa5" || PSNAt(b[1:]) != 0x654321 {
		t.Errorf("% x", b)
	}
}

// TestMTU has the values of RFC 7609 §A.2.3.
func TestMTU(t *testing.T) {
	for m, want := range []int{0, 256, 512, 1024, 2048, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0} {
		if MTU(m).Bytes() != want || MTU(m).Valid() != (want != 0) {
			t.Errorf("%d: %d, %t", m, MTU(m).Bytes(), MTU(m).Valid())
		}
	}
	if MTU1024.String() != "1024" || MTU(6).String() != "0x6" {
		t.Error("String")
	}
}

func TestAddresses(t *testing.T) {
	v4 := GIDFrom(netip.MustParseAddr("10.99.0.1"))
	if v4.String() != "::ffff:10.99.0.1" || !v4.IsV4Mapped() || v4.Addr() != netip.MustParseAddr("10.99.0.1") || v4.IsZero() {
		t.Error(v4)
	}
	v6 := GIDFrom(netip.MustParseAddr("fe80::5054:ff:feaa:1"))
	if v6.String() != "fe80::5054:ff:feaa:1" || v6.IsV4Mapped() || v6.Addr().String() != v6.String() || !(GID{}).IsZero() {
		t.Error(v6)
	}
	if m := (MAC{0x52, 0x54, 0, 0xaa, 0, 1}); m.String() != "52:54:00:aa:00:01" || m.IsZero() || !(MAC{}).IsZero() {
		t.Error(m)
	}
	if QPN(17).String() != "0x11" || RKey(0x3da).String() != "0x3da" || VAddr(0xff).Add(1).String() != "0x100" || PSN(16).String() != "0x10" {
		t.Error("String")
	}
}

package roce

import (
	"bytes"
	"embed"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"libsmcr/abi/internal/golden"
)

//go:embed testdata/*.hex
var files embed.FS

// frame is a captured datagram from its IP header on.
type frame struct {
	golden.File
	ip, udp []byte
	packet  Packet
}

func frames(t testing.TB) []frame {
	t.Helper()
	var all []frame
	for _, f := range golden.Load(t, files) {
		if _, bad := f.Bad(); bad {
			continue
		}
		n := IPv6Size
		if f.Bytes[0]>>4 == 4 {
			n = int(f.Bytes[0]&0xF) * 4
		}
		b := f.Bytes
		all = append(all, frame{f, b[:n], b[n : n+UDPSize], Packet(b[n+UDPSize:])})
	}
	return all
}

// rebuild makes the packet anew of what its headers say.
func (f frame) rebuild() []byte {
	p := f.packet
	b := p.BTH().Fields().Append(nil)
	op := p.BTH().Opcode()
	if op.HasRETH() {
		b = p.RETH().Fields().Append(b)
	}
	if op.HasAETH() {
		b = p.AETH().Fields().Append(b)
	}
	b = append(b, p.Payload()...)
	b = append(b, make([]byte, Pad(len(p.Payload())))...)
	crc, _ := ICRC(f.ip, f.udp, b)
	return AppendICRC(b, crc)
}

// TestGoldens: every captured packet is valid, its checksum is what we compute, and taking it apart and building it again
// gives the same bytes. The first line of a golden, written by the capturing tool, names opcode and pad.
func TestGoldens(t *testing.T) {
	for _, f := range frames(t) {
		t.Run(f.Name, func(t *testing.T) {
			if err := f.packet.Valid(); err != nil {
				t.Fatal(err)
			}
			if binary.BigEndian.Uint16(f.udp[2:]) != UDPPort {
				t.Errorf("UDP port %d", binary.BigEndian.Uint16(f.udp[2:]))
			}
			_, said, _ := strings.Cut(f.Origin, "on: ")
			if ours := fmt.Sprintf("%s pad %d", f.packet.BTH().Opcode(), f.packet.BTH().PadCount()); ours != said {
				t.Errorf("%s, the first line has %s", ours, said)
			}
			if crc, ok := ICRC(f.ip, f.udp, f.packet.Covered()); !ok || crc != f.packet.ICRC() {
				t.Errorf("ICRC %08x, %t; the packet has %08x", crc, ok, f.packet.ICRC())
			}
			if got := f.rebuild(); !bytes.Equal(got, f.packet) {
				t.Errorf("rebuilt to\n% x, want\n% x", got, []byte(f.packet))
			}
			if f.packet.BTH().PKey() != DefaultPKey {
				t.Errorf("partition key %04x", f.packet.BTH().PKey())
			}
			// SMC-R of Linux asks for an event with every SEND; rxe does not count credits.
			if op := f.packet.BTH().Opcode(); f.packet.BTH().Solicited() != (op == SendOnly) {
				t.Errorf("%s", f.packet)
			}
			if f.packet.BTH().Opcode() == Acknowledge && f.packet.AETH().Syndrome() != AckNoCredits {
				t.Errorf("%s", f.packet)
			}
		})
	}
}

// TestGoldensInWords has one packet of each kind, read by hand.
func TestGoldensInWords(t *testing.T) {
	want := map[string]string{
		"ipv4-send-only-from_A":       "SEND ONLY qpn=0x11 psn=0xbc4a71 se ackreq payload=44",
		"ipv4-ack-from_B":             "ACK qpn=0x11 psn=0xbc4a71 ack(credits=31) msn=1 payload=0",
		"ipv4-write-only-pad3-from_B": "WRITE ONLY qpn=0x11 psn=0x42c3e6 ackreq pad=3 vaddr=0xff11000006720000 rkey=0x386 len=21 payload=21",
	}
	for _, f := range frames(t) {
		if w, ok := want[f.Name]; ok {
			delete(want, f.Name)
			if f.packet.String() != w {
				t.Errorf("%s:\n%s, want\n%s", f.Name, f.packet, w)
			}
		}
	}
	if len(want) != 0 {
		t.Errorf("missing %v", want)
	}
}

// TestICRCCovers flips every bit of a datagram: those that routers may change do not matter to the checksum, all others do.
func TestICRCCovers(t *testing.T) {
	free := map[byte]string{
		4: "1 8 10-11 26-27 32",  // type of service, time to live, checksum; UDP checksum; BTH byte 4
		6: "0:0f 1-3 7 46-47 52", // traffic class, flow label, hop limit; UDP checksum; BTH byte 4
	}
	for _, f := range frames(t) {
		b := append([]byte(nil), f.Bytes[:len(f.Bytes)-ICRCSize]...)
		n := len(f.ip)
		icrc := func() (uint32, bool) { return ICRC(b[:n], b[n:n+UDPSize], b[n+UDPSize:]) }
		mask := golden.Mask(t, len(b), free[b[0]>>4])
		want, _ := icrc()
		for i := range b {
			for bit := byte(0x80); bit != 0; bit >>= 1 {
				b[i] ^= bit
				got, ok := icrc()
				if same := ok && got == want; same != (mask[i]&bit != 0) {
					t.Fatalf("%s: byte %d bit 0x%02x: covered %t", f.Name, i, bit, !same)
				}
				b[i] ^= bit
			}
		}
	}
}

// TestICRCByDefinition computes the checksum the long way: fill a buffer, run the CRC over it.
func TestICRCByDefinition(t *testing.T) {
	f := frames(t)[0]
	b := bytes.Repeat([]byte{0xFF}, 8)
	b = append(b, f.Bytes[:len(f.Bytes)-ICRCSize]...)
	for _, at := range []int{1, 8, 10, 11, 26, 27, 32} {
		b[8+at] = 0xFF
	}
	if f.ip[0] != 0x45 || crc32.ChecksumIEEE(b) != f.packet.ICRC() {
		t.Errorf("%s: %08x", f.Name, crc32.ChecksumIEEE(b))
	}
}

func TestICRCRefuses(t *testing.T) {
	f := frames(t)[0]
	ib := f.packet.Covered()
	opts := append([]byte{0x46}, f.ip[1:]...)
	opts = append(opts, 1, 1, 1, 0)
	if _, ok := ICRC(opts, f.udp, ib); !ok {
		t.Error("IPv4 with options")
	}
	longest := make([]byte, 60)
	longest[0] = 0x4f
	if _, ok := ICRC(longest, f.udp, ib); !ok {
		t.Error("IPv4 with most options")
	}
	for name, c := range map[string][3][]byte{
		"no IP header":       {nil, f.udp, ib},
		"short IPv4":         {f.ip[:19], f.udp, ib},
		"IHL says more":      {opts[:20], f.udp, ib},
		"IHL says less":      {append([]byte{0x44}, f.ip[1:]...), f.udp, ib},
		"IPv6 of 20 bytes":   {append([]byte{0x60}, f.ip[1:]...), f.udp, ib},
		"IP version 5":       {append([]byte{0x55}, f.ip[1:]...), f.udp, ib},
		"short UDP":          {f.ip, f.udp[:7], ib},
		"long UDP":           {f.ip, append(f.udp[:8:8], 0), ib},
		"short BTH":          {f.ip, f.udp, ib[:11]},
		"IPv6 and extension": {make([]byte, 48), f.udp, ib},
	} {
		if name == "IPv6 and extension" {
			c[0][0] = 0x60
		}
		if _, ok := ICRC(c[0], c[1], c[2]); ok {
			t.Error(name)
		}
	}
}

func TestICRCDoesNotAllocate(t *testing.T) {
	f := frames(t)[0]
	if n := testing.AllocsPerRun(100, func() { ICRC(f.ip, f.udp, f.packet.Covered()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// bthCodec shows the BTH to the checks of golden.
var bthCodec = golden.Codec{
	Decode: func(b []byte) (any, error) {
		if !BTH(b).Valid() {
			return BTHFields{}, &Error{"invalid"}
		}
		return BTH(b).Fields(), nil
	},
	Append: func(m any, b []byte) []byte { return m.(BTHFields).Append(b) },
}

func TestBTH(t *testing.T) {
	golden.Check(t, bthCodec, golden.Hex(t, "0a e0 1234 00 212223 80 313233"),
		BTHFields{Opcode: WriteOnly, Solicited: true, MigReq: true, PadCount: 2, PKey: 0x1234, DestQP: 0x212223, AckReq: true, PSN: 0x313233}, "4 8:7f")
	if b := (BTHFields{PadCount: 7, DestQP: 0xFFFFFFFF, PSN: 0xFFFFFFFF}).Append(nil); !bytes.Equal(b, golden.Hex(t, "00 30 0000 00 ffffff 00 ffffff")) {
		t.Errorf("% x", b)
	}
	for v := range 16 {
		b := golden.Hex(t, "0a e0 1234 00 212223 80 313233")
		b[1] |= byte(v)
		if BTH(b).Valid() != (v == 0) {
			t.Errorf("header version %d", v)
		}
	}
}

func TestRETH(t *testing.T) {
	golden.Check(t, golden.Codec{
		Decode: func(b []byte) (any, error) {
			if !RETH(b).Valid() {
				return nil, &Error{"invalid"}
			}
			return RETH(b).Fields(), nil
		},
		Append: func(m any, b []byte) []byte { return m.(RETHFields).Append(b) },
	}, golden.Hex(t, "1112131415161718 21222324 31323334"), RETHFields{VAddr: 0x1112131415161718, RKey: 0x21222324, Length: 0x31323334}, "")
}

func TestAETH(t *testing.T) {
	golden.Check(t, golden.Codec{
		Decode: func(b []byte) (any, error) {
			if !AETH(b).Valid() {
				return nil, &Error{"invalid"}
			}
			return AETH(b).Fields(), nil
		},
		Append: func(m any, b []byte) []byte { return m.(AETHFields).Append(b) },
	}, golden.Hex(t, "1f 212223"), AETHFields{Syndrome: AckNoCredits, MSN: 0x212223}, "")
	for s, want := range map[Syndrome]string{
		0x00: "ack(credits=0)", 0x1f: "ack(credits=31)", 0x20: "rnr(timer=0)", 0x25: "rnr(timer=5)", 0x3f: "rnr(timer=31)",
		0x60: "nak(sequence)", 0x61: "nak(invalid request)", 0x62: "nak(access)", 0x63: "nak(operational)", 0x64: "0x64", 0x40: "0x40",
	} {
		if s.String() != want {
			t.Errorf("%s, want %s", s, want)
		}
		kinds := 0
		for _, is := range []bool{s.IsAck(), s.IsRNR(), s.IsNak()} {
			if is {
				kinds++
			}
		}
		if (kinds == 1) != (s != 0x40) {
			t.Errorf("%s is of %d kinds", s, kinds)
		}
	}
	if RNRNak(5) != 0x25 || RNRNak(0xFF) != 0x3f || NakSequence != 0x60 || NakOperational != 0x63 || Syndrome(0x25).Detail() != 5 {
		t.Error("values")
	}
}

func TestOpcodes(t *testing.T) {
	for op := range 256 {
		o := Opcode(op)
		if known := op <= 0x0b || op == 0x11; o.Known() != known {
			t.Errorf("0x%02x: %t", op, o.Known())
		}
		if !o.Known() {
			if o.HasRETH() || o.HasAETH() || o.HasImm() || o.Begins() || o.Ends() || o.IsWrite() || o.IsSend() || o.String() != fmt.Sprintf("0x%02x", op) {
				t.Errorf("%s", o)
			}
			continue
		}
		name := o.String()
		has := func(words ...string) bool {
			for _, w := range words {
				if strings.Contains(name, w) {
					return true
				}
			}
			return false
		}
		if o.IsSend() != has("SEND") || o.IsWrite() != has("WRITE") || o.Begins() != has("FIRST", "ONLY") || o.Ends() != has("LAST", "ONLY") ||
			o.HasImm() != has("IMM") || o.HasAETH() != has("ACK") || o.HasRETH() != (has("WRITE") && has("FIRST", "ONLY")) {
			t.Errorf("%s", o)
		}
	}
}

func TestPacketLengths(t *testing.T) {
	packet := func(op Opcode, pad, n int) Packet {
		return append(BTHFields{Opcode: op, PadCount: pad}.Append(nil), make([]byte, n)...)
	}
	for _, c := range []struct {
		name string
		p    Packet
		ok   bool
	}{
		{"empty", nil, false},
		{"half a BTH", packet(SendOnly, 0, 0)[:11], false},
		{"no ICRC", packet(SendOnly, 0, 0), false},
		{"SEND of nothing", packet(SendOnly, 0, 4), true},
		{"SEND of 4", packet(SendOnly, 0, 8), true},
		{"SEND of 1", packet(SendOnly, 3, 8), true},
		{"not a multiple of four", packet(SendOnly, 3, 9), false},
		{"pad without payload", packet(SendOnly, 1, 4), false},
		{"WRITE without RETH", packet(WriteOnly, 0, 4), false},
		{"WRITE of nothing", packet(WriteOnly, 0, 20), true},
		{"WRITE MIDDLE has none", packet(WriteMiddle, 0, 1028), true},
		{"ACK", packet(Acknowledge, 0, 8), true},
		{"ACK without AETH", packet(Acknowledge, 0, 4), false},
		{"ACK with payload", packet(Acknowledge, 0, 12), false},
		{"immediate data", packet(SendOnlyImm, 0, 8), true},
		{"immediate data missing", packet(SendOnlyImm, 0, 4), false},
		{"WRITE with immediate data", packet(WriteOnlyImm, 0, 24), true},
		{"RDMA READ", packet(0x0c, 0, 20), false},
		{"datagram service", packet(0x64, 0, 20), false},
	} {
		if err := c.p.Valid(); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		} else if err != nil && c.p.String() != err.Error() {
			t.Errorf("%s: %s", c.name, c.p)
		}
	}
	p := AppendICRC(append(append(BTHFields{Opcode: WriteOnlyImm, PadCount: 2}.Append(nil), golden.Hex(t, "0000000000000001 00000002 00000002 89abcdef")...), 7, 8, 0, 0), 0x01020304)
	if q := Packet(p); q.Valid() != nil || q.Imm() != 0x89abcdef || string(q.Payload()) != "\x07\x08" || q.ICRC() != 0x01020304 || p[len(p)-4] != 4 {
		t.Errorf("%s", q)
	}
	if s := Packet(p).String(); s != "WRITE ONLY IMM qpn=0x0 psn=0x0 pad=2 vaddr=0x1 rkey=0x2 len=2 imm=0x89abcdef payload=2" {
		t.Error(s)
	}
}

func TestPad(t *testing.T) {
	for n, want := range []int{0, 3, 2, 1, 0, 3} {
		if Pad(n) != want {
			t.Errorf("%d: %d", n, Pad(n))
		}
	}
}

// TestBadGoldens: packets that must not pass.
func TestBadGoldens(t *testing.T) {
	n := 0
	for _, f := range golden.Load(t, files) {
		if says, bad := f.Bad(); bad {
			n++
			if err := Packet(f.Bytes).Valid(); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %q", f.Name, err, says)
			}
		}
	}
	if n == 0 {
		t.Error("no bad goldens")
	}
}

// FuzzPacket: what Valid lets pass may be taken apart and built again, and nothing of it lies outside of the packet.
func FuzzPacket(f *testing.F) {
	for _, g := range frames(f) {
		f.Add([]byte(g.packet))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := Packet(b)
		_ = p.String()
		if p.Valid() != nil {
			return
		}
		op := p.BTH().Opcode()
		n := BTHSize + len(p.Payload()) + p.BTH().PadCount() + ICRCSize
		again := p.BTH().Fields().Append(nil)
		if op.HasRETH() {
			n += RETHSize
			again = p.RETH().Fields().Append(again)
		}
		if op.HasAETH() {
			n += AETHSize
			again = p.AETH().Fields().Append(again)
		}
		if op.HasImm() {
			n += ImmSize
			again = binary.BigEndian.AppendUint32(again, p.Imm())
		}
		if n != len(b) || len(p.Covered())+ICRCSize != len(b) {
			t.Fatalf("%s: parts of %d bytes make %d", p, len(b), n)
		}
		again = append(again, b[len(again):len(b)-ICRCSize]...)
		again = AppendICRC(again, p.ICRC())
		// Only reserved bits of the BTH may differ.
		want := append([]byte(nil), b...)
		want[4], want[8] = 0, want[8]&0x80
		if !bytes.Equal(again, want) {
			t.Fatalf("% x, want % x", again, want)
		}
		if Packet(again).Valid() != nil || !reflect.DeepEqual(Packet(again).BTH().Fields(), p.BTH().Fields()) {
			t.Fatalf("% x is no longer valid", again)
		}
	})
}

// FuzzICRC: no header, however odd, makes it read beyond its input; equal input, equal checksum.
func FuzzICRC(f *testing.F) {
	for _, g := range frames(f) {
		f.Add(g.ip, g.udp, []byte(g.packet.Covered()))
	}
	f.Fuzz(func(t *testing.T, ip, udp, ib []byte) {
		before := fmt.Sprintf("%x %x %x", ip, udp, ib)
		crc, ok := ICRC(ip[:len(ip):len(ip)], udp[:len(udp):len(udp)], ib[:len(ib):len(ib)])
		if before != fmt.Sprintf("%x %x %x", ip, udp, ib) {
			t.Fatal("input changed")
		}
		if !ok {
			return
		}
		ib = append([]byte(nil), ib...)
		ib[4] ^= 0xFF // not covered
		if again, _ := ICRC(ip, udp, ib); again != crc {
			t.Fatal("byte 4 of the BTH matters")
		}
		ib[5] ^= 0x01 // covered
		if again, _ := ICRC(ip, udp, ib); again == crc {
			t.Fatal("the destination QP does not matter")
		}
	})
}

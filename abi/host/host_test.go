package host

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestABlockSurvivesAppendAndDecode(t *testing.T) {
	want := Block{
		State: Active, Flags: FIN | ShutWR, Gen: 7, Role: Server, Reason: ReasonNone, Diagnosis: 0x03010000, SoError: -1, Procs: 2,
		Lock: 1, RxLock: 2, TxLock: 3, Arm: 1, Cookie: 11, PeerCookie: 12, StageLen: 13, StageDone: 14, RcvTimeoUS: -15,
		SndTimeoUS: 16, RcvLowat: 17, Slot: 31, RxSize: 1 << 18, TxSize: 1 << 19, RxToken: 18, TxToken: 19, RMB: 20, RMBE: 21, Peer: 22,
		LinkGroup: 23, TxBytes: 1 << 40, RxBytes: 25, FD: 26, PID: 27, Family: AFInet, LocalPort: 28, PeerPort: 29,
		LocalAddr: [16]byte{127, 0, 0, 1}, PeerAddr: [16]byte{10, 1, 2, 3}, Provider: [16]byte{'s', 'h', 'm'}, SinceNS: 30,
	}
	b := want.Append([]byte("before"))
	if len(b) != 6+BlockSize {
		t.Fatalf("a block of %d bytes", len(b)-6)
	}
	var got Block
	if err := got.Decode(b[6:]); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := got.Decode(b[6 : 6+BlockSize-1]); err == nil {
		t.Error("a short block was decoded")
	}
}

func TestAPageSurvivesAppendAndDecode(t *testing.T) {
	want := ProcPage{Magic: ProcMagic, ABI: ABI, PID: 3, NBlocks: 64, Start: 4, Comm: [16]byte{'s', 'h'}, Engine: Dead,
		EngineReason: ReasonSeccomp, RingBytes: 5, SMCConns: 6, TCPConns: 7, TxBytes: 8, RxBytes: 9, PIDNS: 11}
	want.Fallbacks[63] = 10
	b := want.Append(nil)
	if len(b) != PageSize {
		t.Fatalf("a page of %d bytes", len(b))
	}
	var got ProcPage
	if err := got.Decode(b); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if err := got.Decode(b[:PageSize-1]); err == nil {
		t.Error("a short page was decoded")
	}
}

func TestAddressesAndNames(t *testing.T) {
	b := Block{Family: AFInet6, LocalPort: 80, PeerPort: 81}
	b.LocalAddr[15] = 1
	b.PeerAddr = [16]byte{0: 0xfe, 1: 0x80, 15: 2}
	full := Block{Family: 99, Provider: [16]byte([]byte("sixteen-letters!"))}
	page := ProcPage{Comm: [16]byte([]byte("redis-server\x00\x00old"))}
	for _, c := range []struct{ got, want string }{
		{b.Local().String(), "[::1]:80"},
		{b.PeerEnd().String(), "[fe80::2]:81"},
		{full.Local().String(), "invalid AddrPort"},
		{full.ProviderName(), "sixteen-letters!"},
		{b.ProviderName(), ""},
		{page.Command(), "redis-server"},
		{Active.String(), "active"},
		{ConnState(9).String(), "0x09"},
		{(FIN | Broken | 1<<31).String(), "fin|broken|0x80000000"},
		{Flags(0).String(), ""},
		{Server.String(), "server"},
		{Ready.String(), "ready"},
		{ReasonDeclined.String(), "peer-declined"},
		{Reason(1 << 31).String(), "0x80000000"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

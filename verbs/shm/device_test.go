package shm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
	"libsmcr/verbs/verbstest"
)

// bind makes a datagram socket with the abstract name.
func bind(t testing.TB, gid roce.GID) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: "@" + string(gid[:])}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// freshGID has NUL bytes in it, which a C string would not survive.
func freshGID(t testing.TB) roce.GID {
	t.Helper()
	r, err := random()
	if err != nil {
		t.Fatal(err)
	}
	var g roce.GID
	binary.LittleEndian.PutUint64(g[4:], r)
	g[0], g[1], g[15] = 'T', 0, 0
	return g
}

func newDevice(t testing.TB, edit func(*Config)) *Device {
	t.Helper()
	c := Config{GID: freshGID(t)}
	c.FD = bind(t, c.GID)
	fd := c.FD
	t.Cleanup(func() { unix.Close(fd) })
	if edit != nil {
		edit(&c)
	}
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func fds(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func maps(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("memfd:smcr-rmb"))
}

// noLeaks checks that a test ends with the descriptors and mappings it began with.
func noLeaks(t testing.TB) {
	t.Helper()
	f, m := fds(t), maps(t)
	t.Cleanup(func() {
		if n := fds(t); n != f {
			t.Errorf("%d descriptors, %d at the start", n, f)
		}
		if n := maps(t); n != m {
			t.Errorf("%d mappings, %d at the start", n, m)
		}
	})
}

func settle(devices ...*Device) func() {
	return func() {
		for range 20 {
			for _, d := range devices {
				d.Poll()
			}
		}
	}
}

func TestShmIsAProvider(t *testing.T) {
	verbstest.Run(t, func(t *testing.T) verbstest.Pair {
		noLeaks(t)
		var fdB int
		a := newDevice(t, nil)
		b := newDevice(t, func(c *Config) { fdB = c.FD })
		gone := func() {
			null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Dup3(null, fdB, unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			unix.Close(null)
			// The kernel would close and unmap the rest.
			for _, q := range b.qps {
				p := q.pd
				q.Close()
				for _, r := range p.mrs {
					r.Close()
					r.mem.Close()
				}
			}
		}
		return verbstest.Pair{A: a, B: b, Step: settle(a, b), Gone: gone}
	})
}

// end is a queue pair with 64 KiB of registered memory.
type end struct {
	*qp
	mem *memory
	mr  *mr
}

func newEnd(t testing.TB, d *Device, state verbs.QPState, to verbs.Peer) *end {
	t.Helper()
	p, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	c, _ := d.CreateCQ()
	q, err := p.CreateQP(c, verbs.QPCap{SendWR: 32, RecvWR: 32})
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.AllocMemory(64 << 10)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Register(m, verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	e := &end{q.(*qp), m.(*memory), r.(*mr)}
	e.advance(t, state, to)
	t.Cleanup(func() {
		e.Close()
		if err := errors.Join(e.mr.Close(), e.mem.Close(), c.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *end) advance(t testing.TB, state verbs.QPState, to verbs.Peer) {
	t.Helper()
	var err error
	for e.State() < state && err == nil {
		switch e.State() {
		case verbs.Reset:
			err = e.Init()
		case verbs.Init:
			err = e.ReadyToReceive(to)
		case verbs.RTR:
			err = e.ReadyToSend(0)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (e *end) peer() verbs.Peer { return verbs.Peer{GID: e.d.cfg.GID, QPN: e.num} }

func (e *end) completions() []verbs.Completion {
	var c [128]verbs.Completion
	return append([]verbs.Completion(nil), c[:e.cq.Poll(c[:])]...)
}

func pair(t testing.TB) (a, b *end) {
	t.Helper()
	da, db := newDevice(t, nil), newDevice(t, nil)
	a = newEnd(t, da, verbs.Init, verbs.Peer{})
	b = newEnd(t, db, verbs.RTS, a.peer())
	a.advance(t, verbs.RTS, b.peer())
	return a, b
}

// The receiver's queue holds only a few datagrams (net.unix.max_dgram_qlen): the rest waits here, in order, bounded.
func TestFullReceiverDelaysSends(t *testing.T) {
	noLeaks(t)
	a, b := pair(t)
	posted := 0
	for {
		err := a.PostSend(verbs.WRID(posted), fmt.Appendf(nil, "%04d", posted))
		if errors.Is(err, verbs.ErrQueueFull) {
			break
		}
		if err != nil || posted > 10000 {
			t.Fatal(posted, err)
		}
		posted++
	}
	if !a.d.Pending() || len(a.sq) != 32 {
		t.Fatalf("pending %t, %d queued", a.d.Pending(), len(a.sq))
	}
	if err := a.Export(a.mr); !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("Export: %v", err)
	}
	var got int
	for round := 0; got < posted && round < 10*posted; round++ {
		buf := make([]byte, 8)
		if err := b.PostRecv(0, buf); err != nil {
			t.Fatal(err)
		}
		b.d.Poll()
		a.d.Poll()
		for _, c := range b.completions() {
			if c.Status != verbs.StatusOK {
				t.Fatalf("%+v", c)
			}
			got++
		}
		if want := fmt.Sprintf("%04d", round); got == round+1 && string(buf[:4]) != want {
			t.Fatalf("%q, want %q", buf[:4], want)
		}
	}
	if got != posted || a.d.Pending() {
		t.Fatalf("%d of %d arrived, pending %t", got, posted, a.d.Pending())
	}
	for i, c := range a.completions() {
		if c.Status != verbs.StatusOK || c.ID != verbs.WRID(i) {
			t.Fatalf("%+v", c)
		}
	}
}

func TestExportWaitsForRoomAndIsDroppedWithItsRegion(t *testing.T) {
	noLeaks(t)
	a, b := pair(t)
	for i := 0; !a.d.Pending(); i++ {
		if err := a.PostSend(0, nil); err != nil {
			t.Fatal(err)
		}
	}
	second, err := a.pd.Register(a.mem, verbs.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Export(second), a.Export(a.mr)); err != nil {
		t.Fatal(err)
	}
	key := second.RKey()
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Export(second); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("exporting a closed region: %v", err)
	}
	settle(a.d, b.d)()
	if _, err := b.MapRemote(key, 0); !errors.Is(err, verbs.ErrUnmapped) {
		t.Errorf("closed region: %v", err)
	}
	r, err := b.MapRemote(a.mr.key, a.mr.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// The client exports its RMB right behind the CLC Confirm; the datagram may overtake it.
func TestExportBeforeThePeerIsKnown(t *testing.T) {
	noLeaks(t)
	d := newDevice(t, nil)
	b := newEnd(t, d, verbs.Init, verbs.Peer{})
	a := newEnd(t, newDevice(t, nil), verbs.RTS, b.peer())
	stranger := newEnd(t, newDevice(t, nil), verbs.RTS, b.peer())
	if err := errors.Join(stranger.Export(stranger.mr), a.Export(a.mr)); err != nil {
		t.Fatal(err)
	}
	d.Poll()
	if len(b.offers) != 2 || len(b.completions()) != 0 {
		t.Fatalf("%d offers", len(b.offers))
	}
	if _, err := b.MapRemote(a.mr.key, a.mr.addr); !errors.Is(err, verbs.ErrState) {
		t.Errorf("in INIT: %v", err)
	}
	b.advance(t, verbs.RTR, a.peer())
	if c := b.completions(); len(c) != 1 || c[0].Op != verbs.OpExported || c[0].RKey != a.mr.key {
		t.Errorf("%+v", c)
	}
	if _, err := b.MapRemote(stranger.mr.key, stranger.mr.addr); !errors.Is(err, verbs.ErrUnmapped) {
		t.Errorf("the stranger's region: %v", err)
	}
	r, err := b.MapRemote(a.mr.key, a.mr.addr)
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
}

func TestOffersAreBounded(t *testing.T) {
	noLeaks(t)
	b := newEnd(t, newDevice(t, nil), verbs.Init, verbs.Peer{})
	a := newEnd(t, newDevice(t, nil), verbs.RTS, b.peer())
	var all []verbs.MR
	for range 3 * maxOffered {
		r, err := a.pd.Register(a.mem, verbs.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
		if err := a.Export(r); err != nil {
			t.Fatal(err)
		}
		b.d.Poll()
	}
	if len(b.offers) != maxOffered {
		t.Errorf("%d offers", len(b.offers))
	}
	for _, r := range all {
		r.Close()
	}
}

func TestInboxIsBounded(t *testing.T) {
	a, b := pair(t)
	for range maxInbox + 1 {
		if err := a.PostSend(0, []byte{1}); err != nil {
			t.Fatal(err)
		}
		b.d.Poll()
	}
	if b.State() != verbs.Err {
		t.Errorf("%s with %d messages", b.State(), len(b.inbox))
	}
}

// hostile sends raw datagrams and checks what the receiver makes of them.
func TestHostileDatagrams(t *testing.T) {
	noLeaks(t)
	a, b := pair(t)
	good := route{b.num, a.num}
	psn := b.rqPSN
	anon, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(anon) })
	stranger := newDevice(t, nil).cfg.FD
	le := binary.LittleEndian.AppendUint32
	for _, c := range []struct {
		name string
		from int
		b    []byte
	}{
		{"empty", a.d.cfg.FD, nil},
		{"one byte", a.d.cfg.FD, []byte{3}},
		{"header only", a.d.cfg.FD, AppendHeader(nil, typeSend, 0)},
		{"length too small", a.d.cfg.FD, append(AppendHeader(nil, typeSend, 15), make([]byte, 16)...)},
		{"length too large", a.d.cfg.FD, append(AppendHeader(nil, typeSend, 1<<31), make([]byte, 16)...)},
		{"short SEND", a.d.cfg.FD, append(AppendHeader(nil, typeSend, 12), good.append(make([]byte, 0, 12))[:8:8]...)},
		{"SEND of a stranger", stranger, appendSend(nil, good, psn, []byte("x"))},
		{"SEND without a name", anon, appendSend(nil, good, psn, []byte("x"))},
		{"SEND from another QPN", a.d.cfg.FD, appendSend(nil, route{b.num, a.num ^ 1}, psn, []byte("x"))},
		{"SEND with 32-bit QPN", a.d.cfg.FD, appendSend(nil, route{b.num | 1<<24, a.num}, psn, []byte("x"))},
		{"SEND with 32-bit PSN", a.d.cfg.FD, appendSend(nil, good, psn|1<<24, []byte("x"))},
		{"SEND longer than anything", a.d.cfg.FD, appendSend(nil, good, psn, make([]byte, maxMessage+1))},
		{"GONE of a stranger", stranger, appendGone(nil, good)},
		{"GONE without a name", anon, appendGone(nil, good)},
		{"GONE of another QPN", a.d.cfg.FD, appendGone(nil, route{b.num, a.num ^ 1})},
		{"GONE with a tail", a.d.cfg.FD, append(AppendHeader(nil, typeGone, 12), le(good.append(nil), 0)...)},
		{"GONE for nobody", a.d.cfg.FD, appendGone(nil, route{b.num ^ 1, a.num})},
		{"EXPORT without descriptor", a.d.cfg.FD, appendExport(nil, good, region{1, 4096, 4096})},
		{"unknown type", a.d.cfg.FD, AppendHeader(nil, 99, 0)},
		{"CLAIM that nobody wants", a.d.cfg.FD, append(AppendHeader(nil, 1, 12), make([]byte, 12)...)},
	} {
		if err := sendTo(c.from, b.d.cfg.GID, c.b, -1); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		b.d.Poll()
		if b.State() != verbs.RTS || len(b.inbox) != 0 || len(b.offers) != 0 || len(b.completions()) != 0 {
			t.Fatalf("%s: state %s, %d messages, %d offers", c.name, b.State(), len(b.inbox), len(b.offers))
		}
	}
	// The answer to "GONE for nobody" and the like must not be a datagram of its own, else two devices could talk for ever.
	a.d.Poll()
	if a.State() != verbs.RTS {
		t.Errorf("state of the sender: %s", a.State())
	}
	// A gap in the numbers of the true peer is its end.
	if err := sendTo(a.d.cfg.FD, b.d.cfg.GID, appendSend(nil, good, psn.Next(), []byte("x")), -1); err != nil {
		t.Fatal(err)
	}
	b.d.Poll()
	if b.State() != verbs.Err {
		t.Errorf("state after a gap: %s", b.State())
	}
}

func memfd(t *testing.T, size int64, flags, seals int) int {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		t.Fatalf("memfd_create with flags %#x: %v", flags, err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if seals != 0 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
	}
	return fd
}

// Each of these would let the peer raise SIGBUS in us, or is not memory at all.
func TestHostileExports(t *testing.T) {
	noLeaks(t)
	const size = 64 << 10
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	const shrinkGrow = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	for _, c := range []struct {
		name string
		fd   int
		g    region
		ask  roce.VAddr
	}{
		{"no seals", memfd(t, size, 0, 0), region{5, 1 << 40, size}, 1 << 40},
		{"may shrink", memfd(t, size, 0, unix.F_SEAL_GROW|unix.F_SEAL_SEAL), region{5, 1 << 40, size}, 1 << 40},
		{"may grow", memfd(t, size, 0, unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL), region{5, 1 << 40, size}, 1 << 40},
		{"more seals could follow", memfd(t, size, 0, shrinkGrow), region{5, 1 << 40, size}, 1 << 40},
		{"smaller than said", memfd(t, size/2, 0, seals), region{5, 1 << 40, size}, 1 << 40},
		{"larger than said", memfd(t, size*2, 0, seals), region{5, 1 << 40, size}, 1 << 40},
		{"read-only", memfd(t, size, 0, seals|unix.F_SEAL_WRITE), region{5, 1 << 40, size}, 1 << 40},
		{"a file", int(file.Fd()), region{5, 1 << 40, size}, 1 << 40},
		{"a device", int(null.Fd()), region{5, 1 << 40, size}, 1 << 40},
		{"address before the region", memfd(t, size, 0, seals), region{5, 1 << 40, size}, 1<<40 - 1},
		{"address behind the region", memfd(t, size, 0, seals), region{5, 1 << 40, size}, 1<<40 + size},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := pair(t)
			if err := sendTo(a.d.cfg.FD, b.d.cfg.GID, appendExport(nil, route{b.num, a.num}, c.g), c.fd); err != nil {
				t.Fatal(err)
			}
			b.d.Poll()
			if got := b.completions(); len(got) != 1 || got[0].Op != verbs.OpExported {
				t.Fatalf("%+v", got)
			}
			if r, err := b.MapRemote(5, c.ask); err == nil || errors.Is(err, verbs.ErrUnmapped) {
				t.Errorf("%v, %v", r, err)
			}
			if _, err := b.MapRemote(5, c.ask); !errors.Is(err, verbs.ErrUnmapped) {
				t.Errorf("asked again: %v", err)
			}
		})
	}
	for _, g := range []region{{5, 1 << 40, 0}, {5, 1 << 40, 100}, {5, 1 << 40, maxRegion + pageSize}, {5, ^roce.VAddr(0) - 4095, 8192}, {5, ^roce.VAddr(0) &^ 4095, 4096}} {
		a, b := pair(t)
		if err := sendTo(a.d.cfg.FD, b.d.cfg.GID, appendExport(nil, route{b.num, a.num}, g), memfd(t, size, 0, seals)); err != nil {
			t.Fatal(err)
		}
		b.d.Poll()
		if len(b.offers) != 0 {
			t.Errorf("region %+v was taken", g)
		}
	}
	t.Run("huge pages", func(t *testing.T) {
		if fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_HUGETLB); err != nil {
			t.Logf("nobody can send huge pages on this kernel: %v", err)
			return
		} else {
			unix.Close(fd)
		}
		fd := memfd(t, 2<<20, unix.MFD_HUGETLB, seals)
		if _, err := mapOffered(fd, 2<<20); !errors.Is(err, errSeals) {
			t.Errorf("%v", err)
		}
	})
}

func TestExportWithTwoDescriptorsOrByAStranger(t *testing.T) {
	noLeaks(t)
	a, b := pair(t)
	stranger := newEnd(t, newDevice(t, nil), verbs.RTS, b.peer())
	if err := stranger.Export(stranger.mr); err != nil {
		t.Fatal(err)
	}
	msg := appendExport(nil, route{b.num, a.num}, a.mr.region)
	to := &unix.SockaddrUnix{Name: "@" + string(b.d.cfg.GID[:])}
	if err := unix.Sendmsg(a.d.cfg.FD, msg, unix.UnixRights(a.mem.fd, a.mem.fd), to, 0); err != nil {
		t.Fatal(err)
	}
	// More than fit: the kernel says so, and what came is closed.
	if err := unix.Sendmsg(a.d.cfg.FD, msg, unix.UnixRights(a.mem.fd, a.mem.fd, a.mem.fd, a.mem.fd, a.mem.fd, a.mem.fd, a.mem.fd), to, 0); err != nil {
		t.Fatal(err)
	}
	b.d.Poll()
	if len(b.offers) != 0 {
		t.Errorf("%d offers", len(b.offers))
	}
}

func TestForeignDatagramsKeepTheirDescriptors(t *testing.T) {
	noLeaks(t)
	a := newDevice(t, nil)
	var got []Datagram
	b := newDevice(t, func(c *Config) {
		c.Foreign = func(d Datagram) { d.Body = bytes.Clone(d.Body); got = append(got, d) }
	})
	null, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := sendTo(a.cfg.FD, b.cfg.GID, append(AppendHeader(nil, 2, 20), "sixteen bytes + four"...), null); err != nil {
		t.Fatal(err)
	}
	unix.Close(null)
	b.Poll()
	if len(got) != 1 || got[0].Type != 2 || string(got[0].Body) != "sixteen bytes + four" || got[0].From != a.cfg.GID || got[0].UID != unix.Getuid() || len(got[0].FDs) != 1 {
		t.Fatalf("%+v", got)
	}
	if fl, err := unix.FcntlInt(uintptr(got[0].FDs[0]), unix.F_GETFD, 0); err != nil || fl&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v", fl, err)
	}
	unix.Close(got[0].FDs[0])
}

func TestTalkingToAQueuePairThatIsGoneIsAnswered(t *testing.T) {
	a, b := pair(t)
	// The GONE of the closing side gets lost.
	b.d.gone = make([]gone, maxGone)
	b.Close()
	b.d.gone = nil
	if a.d.Poll(); a.State() != verbs.RTS {
		t.Fatal("the GONE was not lost")
	}
	if err := a.PostSend(1, []byte("anybody?")); err != nil {
		t.Fatal(err)
	}
	settle(a.d, b.d)()
	if a.State() != verbs.Err {
		t.Errorf("state %s", a.State())
	}
}

func TestConnectionToOneself(t *testing.T) {
	noLeaks(t)
	d := newDevice(t, nil)
	a := newEnd(t, d, verbs.Init, verbs.Peer{})
	b := newEnd(t, d, verbs.RTS, a.peer())
	a.advance(t, verbs.RTS, b.peer())
	if err := a.Export(a.mr); err != nil {
		t.Fatal(err)
	}
	d.Poll()
	r, err := b.MapRemote(a.mr.key, a.mr.addr)
	if err != nil {
		t.Fatal(err)
	}
	r.Bytes()[0] = 9
	if a.mem.b[0] != 9 || &r.Bytes()[0] == &a.mem.b[0] {
		t.Error("not a second mapping of the same memory")
	}
	r.Close()
}

func TestMemoryIsSealedAndLazy(t *testing.T) {
	noLeaks(t)
	d := newDevice(t, nil)
	m, err := d.AllocMemory(8<<20 + 1)
	if err != nil {
		t.Fatal(err)
	}
	fd := m.(*memory).fd
	if len(m.Bytes()) != 8<<20+4096 {
		t.Errorf("%d bytes", len(m.Bytes()))
	}
	if err := unix.Ftruncate(fd, 0); err == nil {
		t.Error("could be cut")
	}
	blocks := func() int64 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks
	}
	if n := blocks(); n != 0 {
		t.Errorf("%d blocks before use", n)
	}
	for i := 0; i < 1<<20; i += 4096 {
		m.Bytes()[i] = 1
	}
	if n := blocks(); n < 1<<20/512 {
		t.Errorf("%d blocks in use", n)
	}
	if err := m.Zero(0, 1<<20); err != nil {
		t.Fatal(err)
	}
	if n := blocks(); n != 0 {
		t.Errorf("%d blocks after zeroing", n)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}

// Without the check the program would get SIGXFSZ, which ends it.
func TestFileSizeLimit(t *testing.T) {
	d := newDevice(t, nil)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	_, err := d.AllocMemory(1<<20 + 1)
	unix.Setrlimit(unix.RLIMIT_FSIZE, &old)
	if !errors.Is(err, verbs.ErrMemory) {
		t.Errorf("%v", err)
	}
}

func TestNoDescriptorLeft(t *testing.T) {
	noLeaks(t)
	full := false
	b := newDevice(t, func(c *Config) {
		c.Hide = func(fd int) int {
			if full {
				return -1
			}
			return fd
		}
	})
	eb := newEnd(t, b, verbs.Init, verbs.Peer{})
	ea := newEnd(t, newDevice(t, nil), verbs.RTS, eb.peer())
	eb.advance(t, verbs.RTS, ea.peer())
	full = true
	if _, err := b.AllocMemory(4096); !errors.Is(err, verbs.ErrMemory) {
		t.Errorf("%v", err)
	}
	if !b.Reachable(ea.d.cfg.GID) {
		t.Error("unknown must count as reachable")
	}
	if err := ea.Export(ea.mr); err != nil {
		t.Fatal(err)
	}
	b.Poll()
	if len(eb.offers) != 0 {
		t.Error("a descriptor was kept in sight of the program")
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []Config{{FD: -1, GID: roce.GID{1}}, {FD: 3}} {
		if _, err := New(c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
}

func FuzzReceive(f *testing.F) {
	f.Add(appendSend(nil, route{1, 2}, 3, []byte("message")))
	f.Add(appendExport(nil, route{1, 2}, region{5, 1 << 40, 4096}))
	f.Add(appendGone(nil, route{1, 2}))
	f.Add(AppendHeader(nil, 1, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := newDevice(t, nil)
		q := newEnd(t, d, verbs.Init, verbs.Peer{})
		delete(d.qps, q.num)
		delete(q.pd.qps, q.num)
		q.num = 1
		d.qps[1], q.pd.qps[1] = q.qp, q.qp
		from := roce.GID{7}
		q.advance(t, verbs.RTS, verbs.Peer{GID: from, QPN: 2, PSN: 3})
		d.receive(received{b: b, from: from, ok: true})
		if typ, body, ok := open(b); ok && typ == typeSend {
			if psn, msg, ok := sendAt(body); ok && psn == 3 && len(q.inbox) == 1 && !bytes.Equal(q.inbox[0], msg) {
				t.Error("message changed")
			}
		}
	})
}

func BenchmarkSend(b *testing.B) {
	x, y := pair(b)
	msg, buf := make([]byte, 44), make([]byte, 44)
	var c [4]verbs.Completion
	b.ReportAllocs()
	for b.Loop() {
		if err := y.PostRecv(1, buf); err != nil {
			b.Fatal(err)
		}
		if err := x.PostSend(1, msg); err != nil {
			b.Fatal(err)
		}
		y.d.Poll()
		if x.cq.Poll(c[:]) != 1 || y.cq.Poll(c[:]) != 1 {
			b.Fatal("lost")
		}
	}
}

package hook

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"libsmcr/kernel"
)

// stranger is a program of somebody else below ours, so that it runs first: it has callbacks on every listener and what is
// accepted, counts them, and takes the room of SYN-ACKs if it is greedy.
type stranger struct {
	t     *testing.T
	count *ebpf.Map
}

func newStranger(t *testing.T, greedy bool) stranger {
	t.Helper()
	// Of struct bpf_sock_ops, and values of its op.
	const op, tcpFlags, listenCallback, lengthCallback = 0, 212, 11, 14
	room := int32(0)
	if greedy {
		room = 16
	}
	count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R2, asm.R6, op, asm.Word),
		asm.JEq.Imm(asm.R2, listenCallback, "listen"),
		asm.JNE.Imm(asm.R2, lengthCallback, "out"),
		asm.LoadMem(asm.R2, asm.R6, tcpFlags, asm.Word),
		asm.And.Imm(asm.R2, 0x12),
		asm.JNE.Imm(asm.R2, 0x12, "count"),
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, room), asm.Mov.Imm(asm.R3, 0),
		asm.FnReserveHdrOpt.Call(),
		asm.Ja.Label("out"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word).WithSymbol("count"),
		asm.LoadMapPtr(asm.R1, count.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.Ja.Label("out"),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol("listen"),
		asm.Mov.Imm(asm.R2, 1<<6), // BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG
		asm.FnSockOpsCbFlagsSet.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: inner, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Detach(), l.Close(), prog.Close(), count.Close()); err != nil {
			t.Error(err)
		}
	})
	return stranger{t, count}
}

// calls is how often it was asked about segments other than SYN-ACKs.
func (s stranger) calls() (n uint64) {
	s.t.Helper()
	if err := s.count.Lookup(uint32(0), &n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestCallbacksOfOthersStay(t *testing.T) {
	hooked(t)
	s := newStranger(t, false)
	a, b := hosts(t)
	w := a.wire("eth0")
	l := b.listener(server4, false)
	for _, offers := range []bool{false, true} {
		if offers {
			_, err := unix.GetsockoptUint64(l.fd, unix.SOL_SOCKET, unix.SO_COOKIE)
			l.must(err)
			l.offer(true)
		}
		client := connect(a, l, server4, true)
		server := l.accept()
		w.want("beside a stranger", client, server, want(true, offers))
		before := s.calls()
		w.talk(client, server)
		if s.calls() == before {
			t.Errorf("server offers %t: the stranger's callbacks are off", offers)
		}
	}
}

func TestMarkOfAListenerComesAndGoes(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	l := b.listener(server4, false)
	try := func(what string, offers bool) {
		t.Helper()
		client := connect(a, l, server4, true)
		w.want(what, client, l.accept(), want(true, offers))
	}
	try("before", false)
	if err := unix.SetsockoptInt(l.fd, kernel.SolSMCR, kernel.OptOffer, 1); err != unix.EAGAIN {
		t.Errorf("a listener without a cookie: %v", err)
	}
	if _, err := unix.GetsockoptUint64(l.fd, unix.SOL_SOCKET, unix.SO_COOKIE); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l.offer(true)
		l.offer(true)
		try("marked", true)
		l.offer(false)
		l.offer(false)
		try("withdrawn", false)
	}
	if v, err := unix.GetsockoptInt(l.fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN); v != 0 || err != nil {
		t.Errorf("TCP_SAVE_SYN stays at %d, %v", v, err)
	}
	// What was established stays what it is.
	l.offer(true)
	client := connect(a, l, server4, true)
	server := l.accept()
	l.offer(false)
	w.want("established before", client, server, want(true, true))

	if err := unix.SetsockoptInt(client.fd, kernel.SolSMCR, kernel.OptOffer, 1); err != nil && err != unix.EISCONN {
		t.Error(err)
	}
	if err := unix.SetsockoptInt(server.fd, kernel.SolSMCR, kernel.OptOffer, 1); err != unix.EISCONN {
		t.Errorf("an offer of an established socket: %v", err)
	}
}

// Who connects the socket next may be kept from SMC-R by a rule, or be another program: his bytes would be taken for CLC.
func TestAnOfferIsForOneConnect(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	w := s.wire("lo")
	home := netip.MustParseAddr("127.0.0.1")
	plain, l := s.listener(home, false), s.listener(home, true)
	at := netip.AddrPortFrom(home, l.port())
	disconnect := func(k *socket) {
		_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(k.fd), uintptr(unsafe.Pointer(&unix.RawSockaddr{})), unix.SizeofSockaddrInet4)
		if errno != 0 {
			t.Fatal(errno)
		}
	}
	for what, before := range map[string]func(*socket){
		"refused": func(k *socket) {
			_, sa := sockaddr(netip.AddrPortFrom(home, 9))
			if err := unix.Connect(k.fd, sa); err != unix.ECONNREFUSED {
				t.Fatal(err)
			}
		},
		"with a plain server": func(k *socket) { k.connect(netip.AddrPortFrom(home, plain.port())); disconnect(k) },
		"agreed":              func(k *socket) { k.connect(at); l.accept(); disconnect(k) },
		"a listener": func(k *socket) {
			k.bind(netip.AddrPortFrom(home, 0))
			k.listen()
			k.must(unix.Shutdown(k.fd, unix.SHUT_RD))
		},
	} {
		k := s.socket(unix.AF_INET)
		k.offer(true)
		before(k)
		w.seen()
		k.connect(at)
		w.want(what, k, l.accept(), want(false, true))
		disconnect(k)
		k.offer(true)
		k.connect(at)
		w.want(what+", offered anew", k, l.accept(), want(true, true))
	}
}

func TestListenersAreForgottenWithTheirSockets(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	var open []*socket
	for range 20 {
		open = append(open, s.listener(any4, true))
	}
	if n := entries(t); n != len(open) {
		t.Errorf("%d listeners are known, want %d", n, len(open))
	}
	for i, l := range open {
		if i%2 == 0 {
			l.must(unix.Shutdown(l.fd, unix.SHUT_RD))
		}
		l.close()
	}
	if n := entries(t); n != 0 {
		t.Errorf("%d listeners are known, none is left", n)
	}
}

func entries(t *testing.T) (n int) {
	t.Helper()
	m, err := ebpf.LoadPinnedMap("/sys/fs/bpf/smcr/listeners", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var cookie uint64
	var one uint8
	all := m.Iterate()
	for all.Next(&cookie, &one) {
		n++
	}
	if all.Err() != nil {
		t.Fatal(all.Err())
	}
	return n
}

func TestWordIsExchangedAtOnce(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	l := s.listener(netip.MustParseAddr("127.0.0.1"), true)
	exchange := func(k *socket, from, to uint64) error {
		b := binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, from), to)
		return unix.SetsockoptString(k.fd, kernel.SolSMCR, kernel.OptWord, string(b))
	}
	if err := exchange(l, 0, 9); err != nil {
		t.Fatal(err)
	}
	client := connect(s, l, netip.MustParseAddr("127.0.0.1"), true)
	k := l.accept()
	if k.peer().word != 0 {
		t.Error("an accepted socket has its listener's word")
	}
	if err := errors.Join(exchange(k, 0, 1<<40|7), exchange(k, 1<<40|7, 8)); err != nil || k.peer().word != 8 {
		t.Errorf("%v, %+v", err, k.peer())
	}
	if err := exchange(k, 0, 1); err != unix.EBUSY || k.peer().word != 8 {
		t.Errorf("%v, %+v", err, k.peer())
	}
	dup, err := unix.FcntlInt(uintptr(k.fd), unix.F_DUPFD_CLOEXEC, 0)
	k.must(err)
	other := &socket{t, dup}
	defer other.close()
	if other.peer() != k.peer() || client.peer().word != 0 {
		t.Errorf("%+v, %+v, the client's %+v", other.peer(), k.peer(), client.peer())
	}
}

func TestWrongOptionsAreRefused(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	k := s.socket(unix.AF_INET)
	for _, c := range []struct {
		name  int
		value string
		want  error
	}{
		{kernel.OptOffer, "\x02\x00\x00\x00", unix.EINVAL},
		{kernel.OptOffer, "\x01\x00\x00", unix.EINVAL},
		{kernel.OptOffer, "\x01\x00\x00\x00\x00", unix.EINVAL},
		{kernel.OptWord, strings.Repeat("\x00", 15), unix.EINVAL},
		{kernel.OptPeer, "\x01\x00\x00\x00", unix.ENOPROTOOPT},
		{99, "\x01\x00\x00\x00", unix.ENOPROTOOPT},
	} {
		if err := unix.SetsockoptString(k.fd, kernel.SolSMCR, c.name, c.value); err != c.want {
			t.Errorf("option %d = %q: %v, want %v", c.name, c.value, err, c.want)
		}
	}
	if _, err := getsockopt(k.fd, kernel.SolSMCR, kernel.OptPeer, make([]byte, 15)); err != unix.EINVAL {
		t.Errorf("15 bytes: %v", err)
	}
	if _, err := getsockopt(k.fd, kernel.SolSMCR, 99, make([]byte, 16)); err == nil {
		t.Error("option 99 has a value")
	}
	if k.peer() != (peer{}) {
		t.Errorf("%+v", k.peer())
	}
	s.do(func() error {
		for _, kind := range [][3]int{{unix.AF_INET, unix.SOCK_DGRAM, 0}, {unix.AF_UNIX, unix.SOCK_STREAM, 0}, {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}} {
			fd, err := unix.Socket(kind[0], kind[1]|unix.SOCK_CLOEXEC, kind[2])
			if err == unix.EPROTONOSUPPORT {
				continue
			}
			if err != nil {
				return err
			}
			if err := unix.SetsockoptInt(fd, kernel.SolSMCR, kernel.OptOffer, 1); err == nil {
				t.Errorf("a socket of %v offers", kind)
			}
			unix.Close(fd)
		}
		return nil
	})
}

func TestAnyUserMayOffer(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	var fds [2]int
	ports := make(chan error)
	l := &socket{t: t}
	for i, s := range []*space{b, a} {
		go func() {
			runtime.LockOSThread() // this thread becomes nobody and ends
			err := unix.Setns(s.fd, unix.CLONE_NEWNET)
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
				err = e
			}
			if err == nil {
				fds[i], err = tcp(unix.AF_INET)
			}
			if err == nil {
				err = unix.SetsockoptInt(fds[i], kernel.SolSMCR, kernel.OptOffer, 1)
			}
			ports <- err
		}()
		if err := <-ports; err != nil {
			t.Fatal(err)
		}
	}
	l.fd = fds[0]
	defer l.close()
	l.bind(netip.AddrPortFrom(server4, 0))
	l.listen()
	client := &socket{t, fds[1]}
	defer client.close()
	client.connect(netip.AddrPortFrom(server4, l.port()))
	w.want("nobody", client, l.accept(), want(true, true))
}

// Options of others that are longer than a page: without care the hook would cut them off, or old kernels refuse them.
func TestLongOptionsOfOthers(t *testing.T) {
	s := newSpace(t)
	s.set("ipv4/igmp_max_msf", "4000")
	s.run("ip addr add 10.0.0.1/24 dev lo; ip link set lo multicast on; ip route add 224.0.0.0/4 dev lo")
	native := long(t, s)
	hooked(t)
	if d := cmp.Diff(native, long(t, s)); d != "" || len(native) < 2*4096 {
		t.Errorf("not as without the hook (-without +with):\n%s", d)
	}
}

// long sets and gets IP_MSFILTER with 3000 sources, and gets TCP_INFO into two pages.
func long(t *testing.T, s *space) string {
	t.Helper()
	var all string
	s.do(func() error {
		u, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(u)
		if err := unix.SetsockoptIPMreq(u, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreq{Multiaddr: [4]byte{239, 1, 1, 1}, Interface: [4]byte{10, 0, 0, 1}}); err != nil {
			return err
		}
		filter := []byte{239, 1, 1, 1, 10, 0, 0, 1}
		filter = binary.NativeEndian.AppendUint32(filter, 0) // MCAST_EXCLUDE
		filter = binary.NativeEndian.AppendUint32(filter, 3000)
		for i := range uint32(3000) {
			filter = binary.BigEndian.AppendUint32(filter, 0x0a010000+i)
		}
		if err := unix.SetsockoptString(u, unix.IPPROTO_IP, unix.IP_MSFILTER, string(filter)); err != nil {
			return err
		}
		b := make([]byte, len(filter))
		copy(b, filter[:16])
		got, err := getsockopt(u, unix.IPPROTO_IP, unix.IP_MSFILTER, b)
		if err != nil {
			return err
		}
		k, err := tcp(unix.AF_INET)
		if err != nil {
			return err
		}
		defer unix.Close(k)
		info, err := getsockopt(k, unix.IPPROTO_TCP, unix.TCP_INFO, make([]byte, 8192))
		all = fmt.Sprintf("%x and %d bytes", got, len(info)) // which tell the time
		return err
	})
	return all
}

func TestProgramsAreServedByCgroup(t *testing.T) {
	hooked(t)
	if out, code := tool("status"); code != 0 || !strings.HasPrefix(out, "the kernel hook serves ") || !strings.Contains(out, filepath.Base(outer)) {
		t.Errorf("below the hook's cgroup: exit %d: %s", code, out)
	}
	c := exec.Command("sh", "-c", "echo 0 >$1/cgroup.procs && exec $0 status", smcr, filepath.Dir(outer))
	out, err := c.Output()
	if c.ProcessState.ExitCode() != 1 || !strings.HasPrefix(string(out), "the kernel hook does not serve ") || !strings.Contains(string(out), filepath.Base(outer)) {
		t.Errorf("above it: %v: %s", err, out)
	}
}

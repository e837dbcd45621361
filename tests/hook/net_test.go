package hook

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"libsmcr/kernel"
	"libsmcr/tests/packet"
)

// space is a network namespace: one host.
type space struct {
	t  *testing.T
	fd int
}

func newSpace(t *testing.T) *space {
	t.Helper()
	s := &space{t: t, fd: -1}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			s.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(s.fd) })
	s.run("ip link set lo up")
	return s
}

// do calls f on a thread in the namespace; what it opens stays there.
func (s *space) do(f func() error) {
	s.t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := unix.Setns(s.fd, unix.CLONE_NEWNET)
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

func (s *space) run(line string) {
	s.t.Helper()
	s.do(func() error {
		out, err := exec.Command("sh", "-ec", line).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", line, err, out)
		}
		return nil
	})
}

// set writes a sysctl: /proc/sys/net is that of the thread that opens it.
func (s *space) set(name, value string) {
	s.t.Helper()
	s.do(func() error { return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0) })
}

// hosts are two namespaces with a cable.
func hosts(t *testing.T) (client, server *space) {
	t.Helper()
	client, server = newSpace(t), newSpace(t)
	client.run(fmt.Sprintf("ip link add eth0 type veth peer name eth0 netns /proc/%d/fd/%d", os.Getpid(), server.fd))
	for host, s := range []*space{client, server} {
		s.run(fmt.Sprintf("ip addr add 10.0.0.%d/24 dev eth0; ip -6 addr add fd00::%d/64 dev eth0 nodad; ip link set eth0 up", host+1, host+1))
	}
	return client, server
}

var (
	server4 = netip.MustParseAddr("10.0.0.2")
	server6 = netip.MustParseAddr("fd00::2")
	any4    = netip.IPv4Unspecified()
	any6    = netip.IPv6Unspecified()
)

func mapped(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }

func sockaddr(a netip.AddrPort) (int, unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// socket is a TCP socket of a test.
type socket struct {
	t  *testing.T
	fd int
}

func (s *space) socket(family int) *socket {
	s.t.Helper()
	k := &socket{t: s.t}
	s.do(func() (err error) { k.fd, err = tcp(family); return err })
	s.t.Cleanup(k.close)
	return k
}

func tcp(family int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fd, err
	}
	limit := unix.Timeval{Sec: 20} // an error then, not a hang
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit))
}

func (k *socket) close() {
	if k.fd >= 0 {
		unix.Close(k.fd)
		k.fd = -1
	}
}

func (k *socket) must(err error) {
	k.t.Helper()
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *socket) int(level, name, value int) {
	k.t.Helper()
	k.must(unix.SetsockoptInt(k.fd, level, name, value))
}

func (k *socket) offer(on bool) {
	k.t.Helper()
	value := 0
	if on {
		value = 1
	}
	k.int(kernel.SolSMCR, kernel.OptOffer, value)
}

func (k *socket) bind(a netip.AddrPort) {
	k.t.Helper()
	_, sa := sockaddr(a)
	k.must(unix.Bind(k.fd, sa))
}

func (k *socket) listen() { k.t.Helper(); k.must(unix.Listen(k.fd, 128)) }

func (k *socket) connect(a netip.AddrPort) {
	k.t.Helper()
	_, sa := sockaddr(a)
	if _, err := restarted(func() (int, error) { return 0, unix.Connect(k.fd, sa) }); err != unix.EISCONN {
		k.must(err)
	}
}

// restarted: what has a time limit is interrupted by the Go runtime's signals.
func restarted(call func() (int, error)) (n int, err error) {
	for n, err = call(); err == unix.EINTR; n, err = call() {
	}
	return n, err
}

func (k *socket) some(b []byte) (n int, err error) {
	return restarted(func() (int, error) { return unix.Read(k.fd, b) })
}

func (k *socket) accept() *socket {
	k.t.Helper()
	fd, err := restarted(func() (int, error) {
		fd, _, err := unix.Accept4(k.fd, unix.SOCK_CLOEXEC)
		return fd, err
	})
	k.must(err)
	n := &socket{k.t, fd}
	k.t.Cleanup(n.close)
	return n
}

func (k *socket) port() uint16 {
	k.t.Helper()
	sa, err := unix.Getsockname(k.fd)
	k.must(err)
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return uint16(sa.Port)
	case *unix.SockaddrInet6:
		return uint16(sa.Port)
	}
	k.t.Fatalf("%T", sa)
	return 0
}

// peer is struct smcr_peer.
type peer struct {
	verdict, offer uint32
	word           uint64
}

const unknown, yes, no, ipsec, decline = 0, 1, 2, 3, 4

func (k *socket) peer() peer {
	k.t.Helper()
	b, err := getsockopt(k.fd, kernel.SolSMCR, kernel.OptPeer, make([]byte, 16))
	k.must(err)
	return peer{binary.NativeEndian.Uint32(b), binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint64(b[8:])}
}

// listener listens in a namespace on a port of its own.
func (s *space) listener(a netip.Addr, offers bool) *socket {
	s.t.Helper()
	family, _ := sockaddr(netip.AddrPortFrom(a, 0))
	l := s.socket(family)
	if offers {
		l.offer(true)
	}
	l.bind(netip.AddrPortFrom(a, 0))
	l.listen()
	return l
}

// wire records the segments with SYN that pass an interface, and whether any other carried the option.
type wire struct {
	t   *testing.T
	fd  int
	clc [][]byte // segments that begin as a CLC message does
}

func (s *space) wire(device string) *wire {
	s.t.Helper()
	w := &wire{t: s.t}
	s.do(func() (err error) {
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		var index uint32
		ifr, err := unix.NewIfreq(device)
		if err == nil {
			err = unix.IoctlIfreq(w.fd, unix.SIOCGIFINDEX, ifr)
			index = ifr.Uint32()
		}
		return errors.Join(err, unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20), unix.Bind(w.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: int(index)}))
	})
	s.t.Cleanup(func() { unix.Close(w.fd) })
	return w
}

// seen returns the segments with SYN since the last call.
func (w *wire) seen() (segments []packet.TCP) {
	w.t.Helper()
	b := make([]byte, 65536)
	for {
		n, _, err := unix.Recvfrom(w.fd, b, 0)
		if err == unix.EAGAIN {
			return segments
		}
		if err != nil {
			w.t.Fatal(err)
		}
		found, ok := packet.Parse(bytes.Clone(b[:n]))
		if strings.HasPrefix(string(found.Data), "\xe2\xd4\xc3\xd9") {
			w.clc = append(w.clc, found.Data)
		}
		switch {
		case ok && found.Flags&packet.SYN != 0:
			segments = append(segments, found)
		case found.SMC:
			w.t.Errorf("a segment without SYN carries the option: %+v", found)
		}
	}
}

// handshake is one as both ends and the wire saw it.
type handshake struct {
	client, server uint32 // verdicts
	syn, synAck    bool   // carried the option
}

func (h handshake) String() string {
	words := []string{"unknown", "yes", "no", "ipsec", "decline"}
	return fmt.Sprintf("client says %s, server says %s, SYN %t, SYN-ACK %t", words[h.client], words[h.server], h.syn, h.synAck)
}

// handshakes is what may be: the option is on the SYN-ACK exactly if both sides know so.
func (w *wire) handshake(client, server *socket) handshake {
	w.t.Helper()
	h := handshake{client: client.peer().verdict, server: server.peer().verdict}
	segments := w.seen()
	if len(segments) < 2 {
		w.t.Fatalf("the wire saw %+v", segments)
	}
	for _, s := range segments {
		if s.Flags&packet.ACK != 0 {
			h.synAck = h.synAck || s.SMC
		} else {
			h.syn = h.syn || s.SMC
		}
	}
	return h
}

func (w *wire) want(what string, client, server *socket, want handshake) {
	w.t.Helper()
	if got := w.handshake(client, server); got != want {
		w.t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
	}
	w.talk(client, server)
}

// talk: the connection carries bytes both ways, and no option.
func (w *wire) talk(client, server *socket) {
	w.t.Helper()
	for _, way := range [][2]*socket{{client, server}, {server, client}} {
		b := make([]byte, 16)
		if _, err := unix.Write(way[0].fd, []byte("some bytes")); err != nil {
			w.t.Fatal(err)
		}
		if n, err := way[1].some(b); err != nil || !strings.HasPrefix("some bytes", string(b[:n])) {
			w.t.Fatalf("%q, %v", b[:max(n, 0)], err)
		}
	}
	w.seen()
}

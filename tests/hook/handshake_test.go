package hook

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"libsmcr/tests/packet"
)

// want is what must come of two ends that offer or not.
func want(client, server bool) handshake {
	h := handshake{syn: client, synAck: client && server}
	verdict := uint32(no)
	if h.synAck {
		verdict = yes
	}
	if client {
		h.client = verdict
	}
	if server {
		h.server = verdict
	}
	return h
}

func TestOptionIsThereIfBothOffer(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	for _, c := range []struct {
		name           string
		listen, server netip.Addr
	}{
		{"IPv4", any4, server4},
		{"IPv6", server6, server6},
		{"IPv4 to a dual-stack listener", any6, server4},
		{"v4-mapped to a dual-stack listener", any6, mapped(server4)},
		{"v4-mapped to IPv4", server4, mapped(server4)},
		{"IPv6 to a dual-stack listener", any6, server6},
	} {
		for _, offers := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
			l := b.listener(c.listen, offers[1])
			client := connect(a, l, c.server, offers[0])
			w.want(fmt.Sprintf("%s, client offers %t, server %t", c.name, offers[0], offers[1]), client, l.accept(), want(offers[0], offers[1]))
		}
	}
}

// address is that of a listener of the second host.
func address(l *socket) netip.AddrPort { return netip.AddrPortFrom(server4, l.port()) }

func connect(s *space, l *socket, to netip.Addr, offers bool) *socket {
	s.t.Helper()
	at := netip.AddrPortFrom(to, l.port())
	family, _ := sockaddr(at)
	k := s.socket(family)
	if offers {
		k.offer(true)
	}
	k.connect(at)
	return k
}

func TestOnLoopback(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	w := s.wire("lo")
	l := s.listener(any6, true)
	for _, to := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()} {
		client := connect(s, l, to, true)
		w.want(to.String(), client, l.accept(), want(true, true))
	}
	// A socket that meets itself is client and server at once: simultaneous open.
	k := s.socket(unix.AF_INET)
	k.offer(true)
	k.bind(netip.MustParseAddrPort("127.0.0.1:0"))
	k.connect(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), k.port()))
	if h := w.handshake(k, k); h.client != no || h.synAck {
		t.Errorf("a socket that meets itself: %s", h)
	}
}

func TestReusePortGroupOfDifferentMinds(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	at := netip.AddrPortFrom(server4, 4000)
	var group [2]*socket
	for i := range group {
		group[i] = b.socket(unix.AF_INET)
		group[i].int(unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		group[i].offer(i == 0)
		group[i].bind(at)
		group[i].listen()
	}
	var met [2]int
	for range 40 {
		client := connect(a, group[0], server4, true)
		ready := []unix.PollFd{{Fd: int32(group[0].fd), Events: unix.POLLIN}, {Fd: int32(group[1].fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, 20000); err != nil {
			t.Fatal(err)
		}
		for i := range ready {
			if ready[i].Revents != 0 {
				met[i]++
				w.want(fmt.Sprintf("listener %d", i), client, group[i].accept(), want(true, i == 0))
			}
		}
	}
	if met[0] == 0 || met[1] == 0 {
		t.Errorf("connections went to %v", met)
	}
}

// Both ways in which a SYN-ACK can lack the option although the SYN had it and the listener offers.
func TestSynCookies(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	b.set("ipv4/tcp_syncookies", "2")
	for _, to := range []netip.Addr{server4, server6} {
		l := b.listener(any6, true)
		client := connect(a, l, to, true)
		w.want(to.String(), client, l.accept(), handshake{client: no, server: no, syn: true})
	}
}

func TestSynAckWithoutRoom(t *testing.T) {
	hooked(t)
	newStranger(t, true)
	a, b := hosts(t)
	w := a.wire("eth0")
	l := b.listener(server4, true)
	for range 3 {
		client := connect(a, l, server4, true)
		w.want("another program takes the room", client, l.accept(), handshake{client: no, server: no, syn: true})
	}
	// Its callbacks are on for every listener: that of somebody who does not offer must not answer.
	plain := b.listener(server4, false)
	plain.int(unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1)
	client := connect(a, plain, server4, true)
	w.want("a listener with callbacks and saved SYNs that does not offer", client, plain.accept(), handshake{client: no, syn: true})
}

// Timestamps, SACK, window scale and MD5 leave room for our eight bytes; with the request for a TFO cookie there is none.
func TestFullOptions(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	for _, s := range []*space{a, b} {
		s.set("ipv4/tcp_fastopen", "3")
	}
	for _, fastOpen := range []bool{false, true} {
		l := b.socket(unix.AF_INET)
		l.offer(true)
		l.bind(netip.AddrPortFrom(server4, 0))
		l.md5(netip.MustParseAddr("10.0.0.1"))
		l.listen()
		k := a.socket(unix.AF_INET)
		k.offer(true)
		k.md5(server4)
		if fastOpen {
			k.int(unix.IPPROTO_TCP, unix.TCP_FASTOPEN_CONNECT, 1)
		}
		k.connect(netip.AddrPortFrom(server4, l.port()))
		if fastOpen {
			w.want("MD5 and a TFO request", k, l.accept(), handshake{client: no, server: no})
		} else {
			w.want("MD5", k, l.accept(), want(true, true))
		}
	}
}

// md5 is TCP_MD5SIG with one key for one peer: struct tcp_md5sig begins with the address, the key's length is at 128+2, the key at 128+8.
func (k *socket) md5(to netip.Addr) {
	k.t.Helper()
	b := make([]byte, 128+8+80)
	b[0] = unix.AF_INET
	copy(b[4:], to.AsSlice())
	b[128+2] = 3
	copy(b[128+8:], "key")
	k.must(unix.SetsockoptString(k.fd, unix.IPPROTO_TCP, unix.TCP_MD5SIG, string(b)))
}

func TestFastOpen(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	for _, s := range []*space{a, b} {
		s.set("ipv4/tcp_fastopen", "3")
	}
	l := b.socket(unix.AF_INET)
	l.offer(true)
	l.int(unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 16)
	l.bind(netip.AddrPortFrom(server4, 0))
	l.listen()
	at := netip.AddrPortFrom(server4, l.port())
	_, sa := sockaddr(at)
	send := func(offers bool, data string) (*socket, *socket) {
		k := a.socket(unix.AF_INET)
		k.offer(offers)
		k.must(unix.Sendto(k.fd, []byte(data), unix.MSG_FASTOPEN, sa))
		s := l.accept()
		if b := make([]byte, 16); data != "" {
			if n, err := s.some(b); err != nil || string(b[:n]) != data {
				t.Fatalf("%q, %v", b[:max(n, 0)], err)
			}
		}
		return k, s
	}
	first, accepted := send(false, "cookie?")
	w.want("the request for a cookie", first, accepted, want(false, true))

	early, accepted := send(true, "early")
	if s := early.wireData(w); s == 0 {
		t.Fatal("no bytes in the SYN: this was no TFO")
	}
	if c, s := early.peer(), accepted.peer(); c.verdict == yes || s.verdict != no || c.offer != 0 {
		t.Errorf("bytes in the SYN: client %+v, server %+v", c, s)
	}
	w.talk(early, accepted)

	// A SYN with a good cookie and our option, as others may send it: the SYN makes the socket.
	empty := a.socket(unix.AF_INET)
	empty.offer(true)
	empty.must(unix.Sendto(empty.fd, nil, unix.MSG_FASTOPEN, sa))
	w.want("a cookie and no bytes", empty, l.accept(), handshake{client: no, server: no, syn: true})

	normal := connect(a, l, server4, true)
	w.want("a listener with TFO, a client without", normal, l.accept(), want(true, true))
}

// wireData is how many bytes came with a SYN, which must not carry the option then.
func (k *socket) wireData(w *wire) (n int) {
	k.t.Helper()
	for _, s := range w.seen() {
		if s.SMC {
			k.t.Errorf("the option is on %+v", s)
		}
		if s.Flags&packet.ACK == 0 {
			n += len(s.Data)
		}
	}
	return n
}

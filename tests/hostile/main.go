// Command hostile is a peer that lies: it offers connections in the registry as a client of the library would, negotiates
// with the library's own engine, and changes what it says at random: CLC messages, datagrams, cursors, arm words and
// rings. Its victim, a preloaded echo server, may lose those connections and nothing else.
//
//	hostile ADDRESS RUNDIR ATTACKS SEED
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/engine"
	"libsmcr/verbs"
	"libsmcr/verbs/shm"
)

// The registry's layout, hooks/registry.c.
const (
	offers   = 4096
	stateAt  = 4096 + 1024*64
	ownAt    = stateAt + 8*offers
	offerAt  = ownAt + 8*offers
	offered  = 1
	claimed  = 2
	abi      = 1
	wait     = 50 * time.Millisecond
	patience = 2 * time.Second
)

func must[T any](v T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
	return v
}

func now() engine.Instant {
	var t unix.Timespec
	must(0, unix.ClockGettime(unix.CLOCK_MONOTONIC, &t))
	return engine.Instant(t.Nano())
}

type attacker struct {
	rnd   *rand.Rand
	reg   []byte
	own   uint64
	start uint64
	to    *unix.SockaddrInet4
	dgram int
	gid   roce.GID
	eng   *engine.Engine
	dev   *shm.Device
	tally map[string]int
}

// conn is one attack.
type conn struct {
	a      *attacker
	fd     int
	lie    int // the CLC message to change, counted from 0; none if larger
	sent   int
	end    string
	rings  engine.Rings
	victim roce.GID
}

func (c *conn) SendCLC(b []byte) error {
	b = bytes.Clone(b)
	if c.sent == c.lie {
		b = c.a.garble(b)
	}
	c.sent++
	return unix.Sendto(c.fd, b, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT, nil)
}
func (c *conn) Established(r engine.Rings)            { c.end, c.rings = "established", r }
func (c *conn) Fallback(code clc.DeclineCode, _ bool) { c.end = "fallback" }
func (c *conn) Broken(err error)                      { c.end = "broken" }

// garble changes, cuts or lengthens a message.
func (a *attacker) garble(b []byte) []byte {
	switch a.rnd.IntN(6) {
	case 0:
		return b[:a.rnd.IntN(len(b)+1)]
	case 1:
		b = append(b, make([]byte, a.rnd.IntN(9000))...)
	case 2: // the length field
		binary.BigEndian.PutUint16(b[5:], uint16(a.rnd.Uint32()))
		return b
	case 3:
		for i := range b[8:] {
			b[8+i] = byte(a.rnd.Uint32())
		}
		return b
	}
	for range 1 + a.rnd.IntN(4) {
		b[a.rnd.IntN(len(b))] ^= byte(1 << a.rnd.IntN(8))
	}
	return b
}

// datagrams sends the victim's engine what it may or may not know, with descriptors of all kinds.
func (a *attacker) datagrams(to roce.GID) {
	name := "\x00" + string(to[:])
	for range a.rnd.IntN(20) {
		b := make([]byte, a.rnd.IntN(100))
		for i := range b {
			b[i] = byte(a.rnd.Uint32())
		}
		if len(b) >= 8 && a.rnd.IntN(4) > 0 {
			binary.NativeEndian.PutUint32(b, 1+a.rnd.Uint32N(6))
			binary.NativeEndian.PutUint32(b[4:], uint32(len(b)-8))
		}
		if a.rnd.IntN(3) == 0 { // a bell
			b = binary.NativeEndian.AppendUint32(nil, 2)
			b = binary.NativeEndian.AppendUint32(b, 20)
			b = append(b, a.gid[:]...)
			b = binary.NativeEndian.AppendUint32(b, a.rnd.Uint32()&(1<<(8+a.rnd.IntN(16))-1))
		}
		var fds []int
		for range a.rnd.IntN(4) {
			fds = append(fds, a.descriptor())
		}
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		_ = unix.Sendmsg(a.dgram, b, oob, &unix.SockaddrUnix{Name: name}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}

func (a *attacker) descriptor() int {
	switch a.rnd.IntN(4) {
	case 0:
		return must(unix.Eventfd(a.rnd.UintN(2), unix.EFD_CLOEXEC))
	case 1:
		return must(unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0))
	}
	fd := must(unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
	must(0, unix.Ftruncate(fd, int64(a.rnd.IntN(2))*1024*576))
	if a.rnd.IntN(2) == 0 {
		must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, a.rnd.IntN(8)))
	}
	return fd
}

// offer makes a socket known as the library would before it connects.
func (a *attacker) offer(fd int) (slot uint32, word *uint64) {
	cookie := must(unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE))
	bucket := uint32(cookie*0x9E3779B97F4A7C15>>55) * 8
	for i := range uint32(16) {
		n := (bucket ^ i&8) + i&7
		if a.u64(ownAt, n) != 0 {
			continue
		}
		*a.at(ownAt + 8*int(n)) = a.own
		o := offerAt + 64*int(n)
		*a.at(o) = a.start
		copy(a.reg[o+8:], a.gid[:])
		*a.at(o + 24) = cookie
		binary.NativeEndian.PutUint32(a.reg[o+32:], uint32(os.Geteuid()))
		binary.NativeEndian.PutUint32(a.reg[o+36:], abi)
		*a.at(stateAt + 8*int(n)) = cookie<<2 | offered
		return n, a.at(stateAt + 8*int(n))
	}
	return 0, nil
}

func (a *attacker) at(off int) *uint64             { return (*uint64)(unsafe.Pointer(&a.reg[off])) }
func (a *attacker) u64(table int, n uint32) uint64 { return *a.at(table + 8*int(n)) }

// until drives the engine until the condition holds or the time is over.
func (a *attacker) until(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Microsecond) {
		a.eng.Poll(now())
		a.eng.Tick(now())
		if done() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

func (a *attacker) attack() {
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	defer unix.Close(fd)
	slot, word := a.offer(fd)
	if word == nil {
		a.tally["no place"]++
		return
	}
	defer func() {
		*word = 0
		*a.at(ownAt + 8*int(slot)) = 0
	}()
	must(0, unix.Connect(fd, a.to))
	if a.rnd.IntN(20) == 0 {
		a.tally["connect and close"]++
		return
	}
	if a.rnd.IntN(20) == 0 {
		_ = unix.Sendto(fd, a.garble([]byte("GET / HTTP/1.0\r\n\r\n")), unix.MSG_NOSIGNAL, nil)
	}
	if !a.until(patience, func() bool { return *word&3 == claimed }) {
		a.tally["not claimed"]++
		return
	}
	c := &conn{a: a, fd: fd, lie: a.rnd.IntN(4)}
	ec := a.eng.Client(c, netip.MustParsePrefix("127.0.0.1/32"), now())
	heard := []byte{}
	limit := wait
	if c.lie > 2 {
		limit = patience
	}
	a.until(limit, func() bool {
		if c.end != "" {
			return true
		}
		var b [4096]byte
		n, _, err := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT)
		if n > 0 {
			heard = append(heard, b[:n]...)
		} else if err == nil {
			ec.EOF(now())
			return true
		}
		for {
			need, err := engine.Need(heard)
			if err != nil || need > len(heard) {
				break
			}
			m := heard[:need]
			heard = heard[need:]
			var acc clc.Accept
			if acc.Decode(m) == nil {
				c.victim = acc.Endpoint.GID
			}
			if a.rnd.IntN(4) == 0 {
				a.datagrams(c.victim)
			}
			ec.CLC(m, now())
		}
		return false
	})
	if c.end == "" {
		c.end = "stuck"
	}
	a.tally[fmt.Sprintf("%s, lie %d", c.end, c.lie)]++
	if !c.victim.IsZero() {
		a.datagrams(c.victim)
	}
	if c.end == "established" {
		a.scribble(c)
	}
	ec.Close(now())
}

// scribble writes over everything that the two share.
func (a *attacker) scribble(c *conn) {
	for range 1 + a.rnd.IntN(30) {
		head := c.rings.PeerHead
		if a.rnd.IntN(3) == 0 {
			head = c.rings.LocalHead
		}
		w := (*uint64)(unsafe.Pointer(&head[8*a.rnd.IntN(len(head)/8)]))
		switch a.rnd.IntN(4) {
		case 0:
			*w = a.rnd.Uint64()
		case 1:
			*w += uint64(a.rnd.IntN(300000))
		case 2:
			*w |= 1 << a.rnd.IntN(64)
		default:
			*w = uint64(a.rnd.IntN(100))
		}
		if a.rnd.IntN(2) == 0 {
			copy(c.rings.PeerRing[a.rnd.IntN(1000):], "scribble")
		}
		time.Sleep(time.Duration(a.rnd.IntN(300)) * time.Microsecond)
		a.eng.Poll(now())
	}
}

func field(path string, n int) uint64 {
	s := string(must(os.ReadFile(path)))
	return must(strconv.ParseUint(strings.Fields(s[strings.LastIndexByte(s, ')')+1:])[n-3], 10, 64))
}

func main() {
	to := netip.MustParseAddrPort(os.Args[1])
	attacks, seed := must(strconv.Atoi(os.Args[3])), must(strconv.ParseUint(os.Args[4], 10, 64))
	file := must(unix.Open(os.Args[2]+"/registry", unix.O_RDWR|unix.O_CLOEXEC, 0))
	var ns unix.Stat_t
	must(0, unix.Stat("/proc/self/ns/pid", &ns))
	a := &attacker{
		rnd:   rand.New(rand.NewPCG(seed, 0)),
		reg:   must(unix.Mmap(file, 0, offerAt+64*offers, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)),
		own:   ns.Ino<<32 | uint64(os.Getpid()),
		start: field("/proc/self/stat", 22),
		to:    &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())},
		dgram: must(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)),
		tally: map[string]int{},
	}
	for i := range a.gid {
		a.gid[i] = byte(1 + a.rnd.IntN(255))
	}
	must(0, unix.Bind(a.dgram, &unix.SockaddrUnix{Name: "\x00" + string(a.gid[:])}))
	a.dev = must(shm.New(shm.Config{FD: a.dgram, GID: a.gid}))
	cfg := engine.Config{Devices: []verbs.Device{a.dev}}
	copy(cfg.PeerID[:], a.gid[:])
	a.eng = must(engine.New(cfg))
	for range attacks {
		a.attack()
	}
	for what, n := range a.tally {
		fmt.Printf("%6d %s\n", n, what)
	}
}

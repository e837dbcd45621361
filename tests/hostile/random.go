package main

import (
	"encoding/binary"
	"math/rand/v2"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
)

// random lies in several places at once, for what no table has thought of. One identity stays for a while, so that link groups are
// in all states.
func (a *attacker) random(count int) {
	for range count {
		if a.rnd.IntN(8) == 0 {
			a.renew()
		}
		a.connect(a.anyLie())
	}
}

func (a *attacker) anyLie() lie {
	l := lie{name: "random", after: a.scribble}
	if a.rnd.IntN(20) == 0 {
		l.before = func(c *conn) { c.say(a.garble([]byte("GET / HTTP/1.0\r\n\r\n"))) }
	}
	if n := a.rnd.IntN(4); n < 2 {
		l.clc = func(i int, b []byte) [][]byte {
			if a.rnd.IntN(4) == 0 {
				a.datagrams(a.rnd, a.someone())
			}
			if i == n {
				b = a.garble(b)
			}
			return [][]byte{b}
		}
	} else if n == 2 && a.rnd.IntN(4) == 0 {
		l.llc = func(_ int, b []byte) []byte { return a.garble(b) }
	}
	return l
}

// someone whom we have met.
func (a *attacker) someone() roce.GID {
	if a.qp != nil {
		return a.qp.peer.GID
	}
	return a.gid
}

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

// datagrams sends an engine what it may or may not know, with descriptors of all kinds.
func (a *attacker) datagrams(rnd *rand.Rand, to roce.GID) {
	for range rnd.IntN(20) {
		b := make([]byte, rnd.IntN(100))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		if len(b) >= 8 && rnd.IntN(4) > 0 {
			binary.NativeEndian.PutUint32(b, 1+rnd.Uint32N(6))
			binary.NativeEndian.PutUint32(b[4:], uint32(len(b)-8))
		}
		var fds []int
		for range rnd.IntN(4) {
			fds = append(fds, descriptor(rnd))
		}
		if rnd.IntN(3) == 0 {
			a.bell(to, rnd.Uint32()&(1<<(8+rnd.IntN(16))-1), fds...)
		} else {
			a.sendRaw(to, b, fds...)
		}
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
}

func descriptor(rnd *rand.Rand) int {
	switch rnd.IntN(4) {
	case 0:
		return must(unix.Eventfd(rnd.UintN(2), unix.EFD_CLOEXEC))
	case 1:
		return must(unix.Open("/dev/zero", unix.O_RDWR|unix.O_CLOEXEC, 0))
	}
	fd := must(unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
	must(0, unix.Ftruncate(fd, int64(rnd.IntN(2))*bellPage))
	if rnd.IntN(2) == 0 {
		must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, rnd.IntN(8)))
	}
	return fd
}

// scribble writes over everything that the two share.
func (a *attacker) scribble(c *conn) {
	a.datagrams(a.rnd, c.victim)
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
		if a.rnd.IntN(2) == 0 {
			a.ring(c)
		}
		a.eng.Poll(now())
	}
}

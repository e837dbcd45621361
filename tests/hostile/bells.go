package main

import (
	"encoding/binary"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
	"libsmcr/verbs/shm"
)

// bells are what a victim has handed us to wake it.
type bells struct {
	page []byte
	fds  []int
}

const bellPage = 1024 * 576 // words of struct bell_word, hooks/shim.h

func (a *attacker) foreign(d shm.Datagram) {
	b := a.bells[d.From]
	if b == nil {
		b = &bells{}
		a.bells[d.From] = b
	}
	for i, fd := range d.FDs {
		if i == 1 && b.page == nil {
			b.page, _ = unix.Mmap(fd, 0, bellPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}
		if i == 0 {
			b.fds = append(b.fds, fd)
		} else {
			unix.Close(fd)
		}
	}
}

// ring wakes the victim, whoever it takes for the cause: all bits of all its bells.
func (a *attacker) ring(c *conn) {
	a.eng.Poll(now())
	if b := a.bells[c.victim]; b != nil && b.page != nil {
		for at := 0; at < 8*576; at += 576 { // the first ones are used first
			for i := range 64 {
				atomic.StoreUint64((*uint64)(unsafe.Pointer(&b.page[at+64+8*i])), ^uint64(0))
			}
			atomic.StoreUint64((*uint64)(unsafe.Pointer(&b.page[at])), ^uint64(0))
		}
		for _, fd := range b.fds {
			_, _ = unix.Write(fd, binary.NativeEndian.AppendUint64(nil, 1))
		}
	}
	time.Sleep(200 * time.Microsecond)
}

// silence takes from the victim's bells, for a while, whatever others ring.
func (a *attacker) silence(c *conn, limit time.Duration) {
	if !a.until(patience, func() bool { return a.bells[c.victim] != nil && a.bells[c.victim].page != nil }) {
		a.wrong = append(a.wrong, "no bell was handed over")
		return
	}
	b := a.bells[c.victim]
	for end := time.Now().Add(limit); time.Now().Before(end); {
		for range 1000 {
			for at := 0; at < 4*576; at += 8 {
				atomic.StoreUint64((*uint64)(unsafe.Pointer(&b.page[at])), 0)
			}
		}
	}
}

// bell is a BELL datagram of ours.
func (a *attacker) bell(to roce.GID, id uint32, fds ...int) {
	a.send(to, 2, binary.NativeEndian.AppendUint32(a.gid[:16:16], id), fds...)
}

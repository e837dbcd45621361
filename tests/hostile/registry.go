package main

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
)

// The registry's layout, hooks/registry.c.
const (
	listeners   = 1024
	listenersAt = 4096
	offers      = 4096
	stateAt     = listenersAt + 64*listeners
	openAt      = 16 + 128 + 16 + 64 + 4*512 // how many offers are open; a server looks at them if it is not 0
	ownAt       = stateAt + 8*offers
	offerAt     = ownAt + 8*offers
	tableSize   = offerAt + 64*offers
	offered     = 1
	claimed     = 2
	abi         = 1
	claimType   = 1 // of a datagram
)

// registry is the table as one writes it who knows its layout and keeps none of its rules.
type registry struct {
	b          []byte
	own, start uint64
}

func openRegistry(dir string) *registry {
	file := must(unix.Open(dir+"/registry", unix.O_RDWR|unix.O_CLOEXEC, 0))
	var ns unix.Stat_t
	must(0, unix.Stat("/proc/self/ns/pid", &ns))
	return &registry{
		b:     must(unix.Mmap(file, 0, tableSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)),
		own:   ns.Ino<<32 | uint64(os.Getpid()),
		start: field("/proc/self/stat", 22),
	}
}

func (r *registry) at(off int) *uint64 { return (*uint64)(unsafe.Pointer(&r.b[off])) }

// slot is an offer.
type slot struct {
	r      *registry
	n      uint32
	cookie uint64
}

func (s slot) state() *uint64 { return s.r.at(stateAt + 8*int(s.n)) }
func (s slot) is(state uint64) bool {
	return atomic.LoadUint64(s.state()) == s.cookie<<2|state
}

func (s slot) gid() (g roce.GID) {
	copy(g[:], s.r.b[offerAt+64*int(s.n)+8:])
	return g
}

func (s slot) free() {
	atomic.StoreUint64(s.state(), 0)
	atomic.StoreUint64(s.r.at(ownAt+8*int(s.n)), 0)
}

// offer makes a socket known as the library would before it connects; false: both buckets are full.
func (r *registry) offer(fd int, gid roce.GID) (slot, bool) {
	cookie := must(unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE))
	bucket := uint32(cookie*0x9E3779B97F4A7C15>>55) * 8
	for i := range uint32(16) {
		s := slot{r, (bucket ^ i&8) + i&7, cookie}
		if !atomic.CompareAndSwapUint64(r.at(ownAt+8*int(s.n)), 0, r.own) {
			continue
		}
		o := offerAt + 64*int(s.n)
		*r.at(o) = r.start
		copy(r.b[o+8:], gid[:])
		*r.at(o + 24) = cookie
		binary.NativeEndian.PutUint32(r.b[o+32:], uint32(os.Geteuid()))
		binary.NativeEndian.PutUint32(r.b[o+36:], abi)
		atomic.AddUint32((*uint32)(unsafe.Pointer(&r.b[openAt])), 1)
		atomic.StoreUint64(s.state(), cookie<<2|offered)
		return s, true
	}
	return slot{}, false
}

// listen publishes a listening socket.
func (r *registry) listen(fd int, a *unix.SockaddrInet4) {
	for n := a.Port % 128 * 8; n < a.Port%128*8+8; n++ {
		o := listenersAt + 64*n
		if !atomic.CompareAndSwapUint64(r.at(o), 0, r.own) {
			continue
		}
		*r.at(o + 16) = r.start
		*r.at(o + 24) = must(unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE))
		copy(r.b[o+32:o+48], append(a.Addr[:], make([]byte, 12)...))
		binary.NativeEndian.PutUint16(r.b[o+48:], uint16(a.Port))
		r.b[o+50], r.b[o+51] = unix.AF_INET, 0
		binary.NativeEndian.PutUint32(r.b[o+56:], uint32(os.Geteuid()))
		binary.NativeEndian.PutUint32(r.b[o+60:], abi)
		atomic.StoreUint64(r.at(o+8), must(unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)))
		return
	}
	fail("no place for a listener")
}

// claim takes somebody's offer, as the server would that has accepted the connection: one is enough for us.
func (r *registry) claim() (slot, bool) {
	for n := range uint32(offers) {
		w := atomic.LoadUint64(r.at(stateAt + 8*int(n)))
		if w&3 != offered || *r.at(ownAt + 8*int(n)) == r.own {
			continue
		}
		s := slot{r, n, w >> 2}
		if atomic.CompareAndSwapUint64(s.state(), w, s.cookie<<2|claimed) {
			return s, true
		}
	}
	return slot{}, false
}

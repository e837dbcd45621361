package hooks

// #include "shim.h"
import "C"

import (
	"encoding/binary"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
	"libsmcr/engine"
	"libsmcr/verbs/shm"
)

// Datagrams between engines that belong to this package (ARCHITECTURE "Datagrams between engines"); the others are verbs/shm's.
// Numbers are in host order: the sender is on this host.
const (
	dgClaim = C.DGRAM_CLAIM // cookie u64, slot u32; only makes the receiver look at its offers
	dgRing  = C.DGRAM_RING  // bell's id u32, tag u32: a program of the sender's, of another user, rings
	dgBell  = C.DGRAM_BELL  // sender's gid [16]byte, id u32; with the bell's eventfd and, the first time, the sender's bell page

	dgHead    = 8 // u32 type, u32 length of the body
	claimSize = 12
	bellSize  = 20
	ringSize  = 8
)

// datagram takes what verbs/shm got and does not know.
func (l *loop) datagram(d shm.Datagram) {
	from, kind, body, fds := d.From, d.Type, d.Body, d.FDs
	same := d.UID == unix.Geteuid() || d.UID == unix.Getuid()
	switch {
	case kind == dgRing && len(body) == ringSize && (same || l.eng.Knows(from)):
		C.bell_rung(C.u32(binary.NativeEndian.Uint32(body)), C.u32(binary.NativeEndian.Uint32(body[4:])))
	case kind == dgBell && len(body) == bellSize && len(fds) >= 1 && len(fds) <= 2:
		var gid roce.GID
		copy(gid[:], body)
		// Anybody on the host can send, and a bell costs a descriptor. A peer's forked child has a name that we do not know.
		if !same && !l.eng.Knows(from) {
			break
		}
		peer := l.peer(from)
		if gid != from || peer == 0 || peer == C.SELF_PEER || l.sh.peer[peer].stranger != 0 {
			break
		}
		page := C.int(-1)
		if len(fds) == 2 {
			page = C.int(fds[1])
		}
		C.bell_install(C.u32(peer), C.u32(binary.NativeEndian.Uint32(body[16:])), C.int(fds[0]), page)
		return // both descriptors are bell.c's now
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// peer is the number under which C knows the process with that engine; 0 = no room for another one.
func (l *loop) peer(gid roce.GID) uint32 {
	if n, ok := l.peers[gid]; ok {
		return n
	}
	if len(l.peers) >= l.crowd {
		l.forgetDead()
		l.crowd = 2*len(l.peers) + smallCrowd
	}
	for n := uint32(C.SELF_PEER + 1); n < C.PEER_MAX; n++ {
		p := &l.sh.peer[n]
		if p.used != 0 {
			continue
		}
		for i, b := range gid {
			p.gid[i] = C.u8(b)
		}
		p.stranger = 0
		p.used = 1
		l.peers[gid] = n
		return n
	}
	return 0
}

// smallCrowd is how many peers are kept without asking whether they live.
const smallCrowd = 8

// forgetDead gives back what processes cost that are gone: each left its bell page mapped and its bells open. Those that
// a connection of the program still names stay. It runs when the number of peers has doubled.
func (l *loop) forgetDead() {
	named := map[uint32]bool{C.SELF_PEER: true}
	for i := range min(uint32(l.sh.sock_top), C.SOCK_MAX) {
		if s := &l.sh.sock[i]; s.refs != 0 {
			named[uint32(s.peer)] = true
		}
	}
	for gid, n := range l.peers {
		if named[n] || l.dev.Reachable(gid) {
			continue
		}
		C.bell_forget(C.u32(n))
		delete(l.peers, gid)
		l.sh.peer[n].used = 0
	}
}

func (l *loop) sendClaim(gid [16]C.u8, cookie uint64, slot uint32) {
	b := binary.NativeEndian.AppendUint64(nil, cookie)
	b = binary.NativeEndian.AppendUint32(b, slot)
	if err := l.send(gid, dgClaim, b); err != nil { // gone, or its queue is full
		l.log.Debug().Err(err).Msg("claim not delivered")
	}
}

func (l *loop) send(gid [16]C.u8, kind uint32, body []byte) error {
	b := binary.NativeEndian.AppendUint32(make([]byte, 0, dgHead+len(body)), kind)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(body)))
	name := make([]byte, 1, 17) // abstract: a zero byte first
	for _, c := range gid {
		name = append(name, byte(c))
	}
	return unix.Sendto(int(l.sh.dgram), append(b, body...), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, &unix.SockaddrUnix{Name: string(name)})
}

// ring is one that could not be delivered yet.
type ring struct {
	peer, id uint32
}

// sendRing rings at a peer that is another user's. What does not fit the queue there is sent again.
func (l *loop) sendRing(r ring, tag uint32) {
	b := binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(nil, r.id), tag)
	if err := l.send(l.sh.peer[r.peer].gid, dgRing, b); err == unix.EAGAIN || err == unix.ENOBUFS {
		if l.rings == nil {
			l.rings = map[ring][]uint32{}
		}
		if tags := l.rings[r]; !slices.Contains(tags, tag) {
			l.rings[r] = append(tags, tag)
		}
	}
}

// ringSoon is how long a full queue is given.
const ringSoon = engine.Instant(2 * time.Millisecond)

func (l *loop) ringAgain() {
	rings := l.rings
	l.rings = nil
	for r, tags := range rings {
		for _, tag := range tags {
			l.sendRing(r, tag)
		}
	}
}

// meet notes whether the peer of a connection is another user's. The kernel says of each process's datagrams whose they are, so both
// ends see it alike; of the sockets it says who made them, which need not be who uses them.
func (c *conn) meet(peer uint32, gid roce.GID) {
	if !c.isAgreed() || peer == 0 || peer == C.SELF_PEER { // the registry is one user's
		return
	}
	if c.l.dev.User(gid) == unix.Geteuid() {
		return
	}
	if p := &c.l.sh.peer[peer]; p.stranger == 0 {
		p.stranger = 1
		C.bell_forget(C.u32(peer)) // what it handed over before we knew
	}
}

// lookAtOffers follows every read of the datagram socket. The slots are the truth, a CLAIM only says when to look; so one that
// found our queue full (net.unix.max_dgram_qlen, 10) is not missed: what fills the queue is read after that claim.
func (l *loop) lookAtOffers() {
	for c := range l.owed {
		l.guard(c, func() { c.claimedByNow() })
	}
}

func addrOf(b []byte) C.u64 { return C.u64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Package hooks answers what Linux would return to a socket call of the program. What runs per call is C (the .c files, shim.h);
// what runs per connection is the event loop here: one goroutine per process, started with the runtime, that watches the TCP
// sockets under negotiation, the engine's datagram socket and the queue that C fills, and drives package engine.
//
// The goroutine blocks in epoll_wait and in nothing else. No Go timer, net or os.File may be used here or below: they would
// open descriptors of the runtime's own in the program's low fd numbers.
package hooks

/*
#cgo CFLAGS: -std=gnu11 -O2 -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/engine"
	"libsmcr/verbs"
	"libsmcr/verbs/shm"
)

// What an epoll event of the loop belongs to: a connection's sock index, or one of these.
const (
	evWake  = -1
	evDgram = -2
)

// maxEvents bounds the work between two looks at the queue and the clock.
const maxEvents = 64

// maxRMBE bounds SMCR_RMBE.
const maxRMBE = 16 << 20

// sweepEvery is how often idle rings are looked for while there are any that may have pages to give back.
const sweepEvery = engine.Instant(2 * time.Second)

// now is CLOCK_MONOTONIC, the clock that C uses too.
func now() engine.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return engine.Instant(ts.Nano())
}

// loop is the engine's thread of one process.
type loop struct {
	sh    *C.struct_shim
	log   zerolog.Logger
	dev   *shm.Device
	eng   *engine.Engine
	now   engine.Instant
	conns map[uint32]*conn   // by sock index
	owed  map[*conn]struct{} // client connections that wait for a claim
	peers map[roce.GID]uint32
	crowd int                // so many peers, and it is time to look who is gone
	timed map[*conn]struct{} // connections with a deadline
	due   []due              // accepted, and the peer's patience is short; oldest first
	rings map[ring][]uint32  // tags that wait for room in a peer's queue
	sweep engine.Instant     // when to look for idle rings; 0 = nothing to look for

	heirs               []*heir
	heirsAt, heirsPause engine.Instant // when to look after them; 0 = there are none
}

//export smcr_go_main
func smcr_go_main(p unsafe.Pointer) (ok C.int) {
	defer func() {
		if r := recover(); r != nil {
			ok = -C.R_ENGINE
		}
	}()
	C.smcr_shim = (*C.struct_shim)(p)
	l, err := newLoop(C.smcr_shim)
	if err != nil {
		return -C.R_ENGINE
	}
	go l.run()
	return 0
}

func newLoop(sh *C.struct_shim) (*loop, error) {
	l := &loop{
		sh: sh, log: newLogger(), now: now(),
		conns: map[uint32]*conn{}, owed: map[*conn]struct{}{}, timed: map[*conn]struct{}{}, peers: map[roce.GID]uint32{},
		crowd: smallCrowd,
	}
	var gid roce.GID
	for i := range gid {
		gid[i] = byte(sh.gid[i])
	}
	l.peers[gid] = C.SELF_PEER
	loadRules(sh, l.log)
	lim := newLimits(sh)
	dev, err := shm.New(shm.Config{FD: int(sh.dgram), GID: gid, Hide: lim.hide, CloseFD: lim.closeFD, Foreign: l.datagram})
	if err != nil {
		return nil, err
	}
	cfg := engine.Config{
		Devices: []verbs.Device{dev}, RMBESize: rmbeSize(uint32(sh.rmbe)), Reserve: lim.reserve, Log: l.log, Timeouts: localTimeouts,
	}
	// Unique per engine: a peer keys link groups on it, and each process, each forked child, has its own.
	copy(cfg.PeerID[:], gid[:])
	cfg.PeerID[0] |= 1 // never zero
	l.dev = dev
	if l.eng, err = engine.New(cfg); err != nil {
		return nil, err
	}
	if err = l.watch(int(sh.wakefd), evWake, 0, unix.EPOLLIN); err == nil {
		err = l.watch(int(sh.dgram), evDgram, 0, unix.EPOLLIN)
	}
	return l, err
}

// localTimeouts are longer than those of a network: the kernel tells when a peer on this host has ended, so one that is silent lacks
// a processor, or is stopped, and TCP would wait for it.
var localTimeouts = engine.Timeouts{CLC: 60 * time.Second, LLC: 30 * time.Second}

// rmbeSize is SMCR_RMBE as the engine takes it: a power of two within its limits; 0 = its default.
func rmbeSize(n uint32) int {
	if n == 0 {
		return 0
	}
	size := engine.MinRMBESize
	for size < int(n) && size < maxRMBE {
		size *= 2
	}
	return size
}

// hide moves a descriptor of ours out of the program's way and protects it.
func hide(fd int) int { return int(C.fd_hide(C.int(fd))) }

// hide and closeFD count the descriptors that connections cost, for reserve.
func (m *limits) hide(fd int) int {
	m.fds++
	return hide(fd)
}

func (m *limits) closeFD(fd int) {
	m.fds--
	C.fd_unhide(C.int(fd))
}

func (l *loop) watch(fd int, what int32, gen uint32, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: what, Pad: int32(gen)}
	err := unix.EpollCtl(int(l.sh.epfd), unix.EPOLL_CTL_ADD, fd, &ev)
	if err == unix.EEXIST {
		err = unix.EpollCtl(int(l.sh.epfd), unix.EPOLL_CTL_MOD, fd, &ev)
	}
	return err
}

func (l *loop) unwatch(fd int) {
	_ = unix.EpollCtl(int(l.sh.epfd), unix.EPOLL_CTL_DEL, fd, nil) // ENOENT, EBADF: the kernel was quicker
}

func (l *loop) run() {
	C.life_make_spare()
	var evs [maxEvents]unix.EpollEvent
	asleep := (*uint32)(unsafe.Pointer(&l.sh.engine_asleep))
	for {
		l.now = now()
		wait := l.timeout()
		atomic.StoreUint32(asleep, 1)
		if l.takeRequests() > 0 {
			wait = 0
		}
		n, err := unix.EpollWait(int(l.sh.epfd), evs[:], wait)
		atomic.StoreUint32(asleep, 0)
		if err != nil && err != unix.EINTR {
			l.log.Error().Err(err).Msg("event loop ends: its epoll descriptor is gone; connections go on, new ones are plain TCP")
			atomic.StoreUint32((*uint32)(unsafe.Pointer(&l.sh.engine)), C.ENG_DEAD)
			return
		}
		l.now = now()
		l.takeRequests()
		for _, ev := range evs[:max(n, 0)] {
			l.event(ev)
		}
		l.timers()
	}
}

// timeout is how long epoll_wait may sleep, in milliseconds, rounded up; -1 = for ever.
func (l *loop) timeout() int {
	next := engine.Instant(-1)
	earlier := func(t engine.Instant) {
		if t > 0 && (next < 0 || t < next) {
			next = t
		}
	}
	earlier(l.sweep)
	earlier(l.heirsAt)
	if len(l.rings) > 0 {
		earlier(l.now + ringSoon)
	}
	if len(l.due) > 0 {
		earlier(l.due[0].at)
	}
	if t, ok := l.eng.NextDeadline(); ok {
		earlier(max(t, 1))
	}
	for c := range l.timed {
		earlier(c.deadline)
	}
	if next < 0 {
		return -1
	}
	const ms = engine.Instant(time.Millisecond)
	return int(max(0, (next-l.now+ms-1)/ms))
}

// guard keeps a bug in one connection's handling from ending the program: the connection is given up, the rest goes on.
func (l *loop) guard(c *conn, f func()) {
	defer func() {
		if r := recover(); r != nil {
			l.log.Error().Str("panic", fmt.Sprint(r)).Bytes("stack", debug.Stack()).Msg("internal error")
			if c != nil {
				l.log.Error().Uint32("conn", c.idx).Msg("connection given up")
			}
		}
	}()
	f()
}

func (l *loop) event(ev unix.EpollEvent) {
	switch ev.Fd {
	case evWake:
		var b [8]byte
		_, _ = unix.Read(int(l.sh.wakefd), b[:])
	case evDgram:
		l.guard(nil, l.poll)
	default:
		if c := l.conns[uint32(ev.Fd)]; c != nil && c.gen == uint32(ev.Pad) {
			l.guard(c, func() { c.tcpEvent(ev.Events) })
		}
	}
}

// poll takes what the datagram socket has and lets the engine act on completions.
func (l *loop) poll() {
	for n := 0; n < 64 && l.eng.Poll(l.now); n++ {
	}
	l.lookAtOffers()
}

func (l *loop) takeRequests() int {
	var r C.struct_req
	n := 0
	for n < C.QUEUE_LEN && C.queue_take(&r) != 0 {
		n++
		l.guard(l.conns[uint32(r.sock)], func() { l.request(&r) })
	}
	return n
}

func (l *loop) request(r *C.struct_req) {
	idx, gen := uint32(r.sock), uint32(r.gen)
	c := l.conns[idx]
	if c != nil && c.gen != gen {
		c = nil
	}
	switch r.op {
	case C.REQ_CLIENT:
		c := l.newConn(idx, gen)
		if r.arg&C.REQ_LEAVE != 0 {
			c.leaving = C.R_EPOLL_EARLY
		}
		if c.isAgreed() {
			c.agreedClient()
		} else {
			c.offered(int(uint32(r.arg)))
		}
		if c.leaving != 0 {
			c.settle(true, c.leaving)
		}
	case C.REQ_SERVER:
		c := l.newConn(idx, gen)
		c.begun(uint32(r.arg >> 32))
		if c.isAgreed() {
			c.agreed(func() *engine.Conn {
				ec := l.eng.Server(c, c.lan(), l.now)
				if c.crowded { // when the Proposal comes
					ec.Decline(clc.DeclineMemory, l.now)
				}
				return ec
			})
		} else {
			c.claimed(int(uint32(r.arg)))
		}
	case C.REQ_RING:
		if s := C.sock_at(C.u32(idx), C.u32(gen)); s != nil {
			if s.peer != 0 {
				l.sendRing(ring{uint32(s.peer), uint32(r.arg >> 32)}, uint32(r.arg))
			}
			C.sock_drop(s)
		}
	case C.REQ_DUE:
		l.due = append(l.due, due{idx, gen, l.now + dueAfter})
	case C.REQ_SETTLE:
		if c != nil {
			c.settle(uint32(r.arg) != 0, uint32(r.arg>>32))
		}
	case C.REQ_STAGE_FULL:
		if c != nil {
			c.stageFull()
		}
	case C.REQ_CLOSED:
		l.closed(c)
	case C.REQ_TOUCHED:
		if l.sweep == 0 {
			l.sweep = l.now + sweepEvery
		}
	case C.REQ_WATCH:
		l.adopt(idx, gen)
	case C.REQ_HALF:
		if c != nil {
			c.half()
		}
	}
}

func (l *loop) timers() {
	if t, ok := l.eng.NextDeadline(); ok && t <= l.now {
		l.guard(nil, func() { l.eng.Tick(l.now) })
	}
	for c := range l.timed {
		if c.deadline <= l.now {
			l.guard(c, c.timeout)
		}
	}
	if len(l.rings) > 0 {
		l.ringAgain()
	}
	for len(l.due) > 0 && l.due[0].at <= l.now {
		d := l.due[0]
		l.due = l.due[1:]
		l.guard(nil, func() { l.useDue(d) })
	}
	if l.heirsAt != 0 && l.heirsAt <= l.now {
		l.guard(nil, l.lookAfterHeirs)
	}
	if l.sweep != 0 && l.sweep <= l.now {
		l.sweepRings()
	}
}

// sweepRings gives the pages of idle empty rings back and goes on as long as one is not idle.
func (l *loop) sweepRings() {
	l.sweep = 0
	for _, c := range l.conns {
		if c.phase == phaseActive && C.sock_sweep(c.s) != 0 {
			l.sweep = l.now + sweepEvery
		}
	}
}

// Package simfab is a provider that lives in memory, so that what is built on verbs can be tested without a kernel:
// nothing is delivered before Poll, time is what the test says, all numbers follow from a seed, and each message can be
// watched, lost, delayed or turned into an error.
//
// Devices come in both kinds. With CapMapped they are like verbs/shm: a message is the sender's business no longer once
// it is on its way, and the peer is told when a queue pair closes. Without, they are RNICs: reliable connections that
// keep order and complete a work request when the other RNIC has answered, whatever the host behind it does.
package simfab

import (
	"cmp"
	"container/heap"
	"fmt"
	"time"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

// Verdict is what a Fabric does with a message.
type Verdict uint8

const (
	Deliver Verdict = iota
	Drop            // it is lost, and the sender believes that it was delivered
	Refuse          // it is lost, the sender learns that nobody answers, and its queue pair fails
	Hold            // the receiver has no room: the sender keeps it until the next Poll
	Unacked         // it arrives, but the answers are lost: the sender learns that nobody answers
	Break           // it was answered but never written: the receiver's queue pair fails, and then the sender's
)

func (v Verdict) String() string {
	return [...]string{"deliver", "drop", "refuse", "hold", "unacked", "break"}[v]
}

// Event is a message on its way.
type Event struct {
	N        int // counts the messages of the fabric
	From, To roce.GID
	Src, Dst roce.QPN
	Op       verbs.Opcode // OpSend, OpWrite or OpExported
	Msg      []byte
}

// Fabric connects the devices made from it.
type Fabric struct {
	// Filter decides about each message; nil delivers all.
	Filter func(Event) Verdict
	// Now is the clock; nil for tests in which no time passes between devices.
	Now func() time.Duration
	// Latency says how long a message takes, and how long then its answer; nil means no time. What follows on the same
	// queue pair does not overtake it.
	Latency func(Event) (there, back time.Duration)
	// Patience is how long an RNIC tries to reach one that does not answer.
	Patience time.Duration
	// Trace is told what becomes of each message, one line each; nil if nobody wants to know.
	Trace func(line string)

	devices map[address]*Device
	cut     map[[2]address]bool
	flights flights
	started int // flights
	count   int // messages
	rnd     uint32
}

// address names a device. In another VLAN the same GID is somebody else's: they are LANs of their own.
type address struct {
	vlan roce.VLAN
	gid  roce.GID
}

// New returns an empty fabric. All numbers that its devices give out follow from the seed.
func New(seed uint32) *Fabric {
	return &Fabric{devices: map[address]*Device{}, cut: map[[2]address]bool{}, rnd: seed | 1}
}

// Device adds a device with the given GID.
func (f *Fabric) Device(gid roce.GID, caps verbs.Caps) *Device {
	d := &Device{f: f, qps: map[roce.QPN]*qp{}, cqs: map[*cq]bool{}, attr: verbs.Attr{
		Provider: "simfab", GID: gid, MTU: roce.MTU1024, Caps: caps, MaxLinks: 8,
	}}
	d.host = d
	copy(d.attr.MAC[:], gid[:])
	if caps.Has(verbs.CapMapped) {
		d.attr.MAC, d.attr.MaxLinks = roce.MAC{}, 1
	}
	f.devices[d.address()] = d
	return d
}

// Tag puts the device, of which nothing has been made yet, into a VLAN.
func (d *Device) Tag(v roce.VLAN) *Device {
	delete(d.f.devices, d.address())
	d.attr.VLAN = v
	d.f.devices[d.address()] = d
	return d
}

func (d *Device) address() address { return address{d.attr.VLAN, d.attr.GID} }

// Kill makes the device vanish as the death of its process would.
func (f *Fabric) Kill(d *Device) { delete(f.devices, d.address()) }

func (f *Fabric) alive(d *Device) bool { return f.devices[d.address()] == d }

// Cut ends the path between two devices, Repair brings it back.
func (f *Fabric) Cut(a, b *Device)    { f.cut[path(a.address(), b.address())] = true }
func (f *Fabric) Repair(a, b *Device) { delete(f.cut, path(a.address(), b.address())) }

// RepairAll brings back every path and port.
func (f *Fabric) RepairAll() {
	clear(f.cut)
	for _, d := range f.devices {
		d.SetDown(false)
	}
}

func path(a, b address) [2]address {
	if cmp.Or(cmp.Compare(a.vlan, b.vlan), cmp.Compare(string(a.gid[:]), string(b.gid[:]))) > 0 {
		a, b = b, a
	}
	return [2]address{a, b}
}

// route returns the device that a message from d arrives at, or nil.
func (f *Fabric) route(d *Device, to roce.GID) *Device {
	x := f.devices[address{d.attr.VLAN, to}]
	if x == nil || x.down || d.down || !f.alive(d) || f.cut[path(d.address(), x.address())] {
		return nil
	}
	return x
}

// Next returns when something arrives; false if nothing is on its way.
func (f *Fabric) Next() (time.Duration, bool) {
	if len(f.flights) == 0 {
		return 0, false
	}
	return f.flights[0].at, true
}

func (f *Fabric) now() time.Duration {
	if f.Now == nil {
		return 0
	}
	return f.Now()
}

// at calls fn when it is that late, within the Poll of some device.
func (f *Fabric) at(at time.Duration, fn func()) {
	f.started++
	heap.Push(&f.flights, flight{at, f.started, fn})
}

func (f *Fabric) run() {
	for len(f.flights) > 0 && f.flights[0].at <= f.now() {
		heap.Pop(&f.flights).(flight).fn()
	}
}

func (f *Fabric) random() uint32 {
	f.rnd ^= f.rnd << 13
	f.rnd ^= f.rnd >> 17
	f.rnd ^= f.rnd << 5
	return f.rnd
}

func (f *Fabric) tell(q *qp, w *request, what any) {
	if f.Trace != nil {
		from, to := q.d.attr.GID, q.peer.GID
		f.Trace(fmt.Sprintf("%s/%s>%s/%s %s of %d bytes: %v", name(from), q.num, name(to), q.peer.QPN, w.Op, len(w.msg), what))
	}
}

// name prints a GID that is a word as that word.
func name(g roce.GID) string {
	n := 0
	for n < len(g) && g[n] > ' ' && g[n] < 0x7f {
		n++
	}
	if n == 0 {
		return g.String()
	}
	return string(g[:n])
}

type flight struct {
	at  time.Duration
	seq int
	fn  func()
}

type flights []flight

func (h flights) Len() int { return len(h) }
func (h flights) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h flights) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *flights) Push(x any)   { *h = append(*h, x.(flight)) }
func (h *flights) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

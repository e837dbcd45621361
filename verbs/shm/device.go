package shm

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

// Datagram is one that is not ours.
type Datagram struct {
	Type uint32
	Body []byte // valid during the call only
	From roce.GID
	UID  int   // of who sent it, -1 if the kernel does not say
	FDs  []int // belong to the callee, who closes them
}

// Config is what a device is made of.
type Config struct {
	FD  int      // AF_UNIX datagram socket bound to the abstract name GID; stays the caller's
	GID roce.GID // 16 random bytes
	MAC roce.MAC // told in CLC messages, means nothing here

	// Hide moves a descriptor out of the program's sight and returns its new number, or -1 having done nothing.
	Hide func(fd int) int
	// CloseFD closes a descriptor that Hide returned.
	CloseFD func(fd int)
	// Foreign gets the datagrams of types that are not ours; nil drops them.
	Foreign func(Datagram)
}

// Device is the shared memory of this host as one process sees it. See the package comment.
type Device struct {
	cfg    Config
	qps    map[roce.QPN]*qp
	queued map[*qp]struct{} // queue pairs whose send queue is not empty
	gone   []gone           // GONE datagrams that did not go out yet
	probe  int              // socket of Reachable, -1 = not made yet
	buf    []byte
	next   roce.VAddr // where the next region lies
	closed bool
	open   struct{ memories, pds, cqs, maps int }
}

type gone struct {
	to roce.GID
	route
}

const (
	pollBudget = 64  // datagrams taken by one Poll
	maxGone    = 256 // more are dropped: the peer learns by the answer to its next SEND
	firstAddr  = 1 << 40
)

// New makes a device.
func New(cfg Config) (*Device, error) {
	if cfg.FD < 0 || cfg.GID.IsZero() {
		return nil, fmt.Errorf("shm: socket %d, GID %s", cfg.FD, cfg.GID)
	}
	if cfg.Hide == nil {
		cfg.Hide = func(fd int) int { return fd }
	}
	if cfg.CloseFD == nil {
		cfg.CloseFD = func(fd int) { unix.Close(fd) }
	}
	r, err := random()
	if err != nil {
		return nil, err
	}
	if err := unix.SetsockoptInt(cfg.FD, unix.SOL_SOCKET, unix.SO_PASSCRED, 1); err != nil {
		return nil, fmt.Errorf("shm: SO_PASSCRED: %w", err)
	}
	return &Device{
		cfg:    cfg,
		qps:    map[roce.QPN]*qp{},
		queued: map[*qp]struct{}{},
		probe:  -1,
		buf:    make([]byte, maxDgram),
		next:   roce.VAddr(firstAddr+r%firstAddr) &^ (pageSize - 1),
	}, nil
}

// random returns 64 bits that nobody can guess.
func random() (uint64, error) {
	var b [8]byte
	for n := 0; n < len(b); {
		m, err := unix.Getrandom(b[n:], 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("shm: getrandom: %w", err)
		}
		n += m
	}
	return binary.NativeEndian.Uint64(b[:]), nil
}

// Attr: one link to each peer, since there is one path.
func (d *Device) Attr() verbs.Attr {
	return verbs.Attr{
		Provider: "shm",
		GID:      d.cfg.GID,
		MAC:      d.cfg.MAC,
		MTU:      roce.MTU4096,
		Caps:     verbs.CapMapped | verbs.CapLocal,
		MaxLinks: 1,
	}
}

// hide moves a descriptor away; on failure it is closed.
func (d *Device) hide(fd int) (int, error) {
	if h := d.cfg.Hide(fd); h >= 0 {
		return h, nil
	}
	unix.Close(fd)
	return -1, fmt.Errorf("%w: no descriptor left", verbs.ErrMemory)
}

// User is whose process the peer is by the kernel's word, -1 while it has sent nothing.
func (d *Device) User(gid roce.GID) int {
	for _, q := range d.qps {
		if q.peer.GID == gid && q.user >= 0 {
			return q.user
		}
	}
	return -1
}

// Reachable asks the kernel whether the name is bound. The peer does not notice.
func (d *Device) Reachable(gid roce.GID) bool {
	if gid == d.cfg.GID {
		return true
	}
	if d.probe < 0 {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return true // not known to be unreachable
		}
		if d.probe, err = d.hide(fd); err != nil {
			return true
		}
	}
	return connectTo(d.probe, gid) != unix.ECONNREFUSED
}

func (d *Device) AllocPD() (verbs.PD, error) {
	if d.closed {
		return nil, verbs.ErrClosed
	}
	d.open.pds++
	return &pd{d: d, mrs: map[roce.RKey]*mr{}, qps: map[roce.QPN]*qp{}}, nil
}

type cq struct {
	verbs.Completions
	d    *Device
	used int // queue pairs
	done bool
}

func (d *Device) CreateCQ() (verbs.CQ, error) {
	if d.closed {
		return nil, verbs.ErrClosed
	}
	d.open.cqs++
	return &cq{d: d}, nil
}

func (c *cq) Close() error {
	switch {
	case c.done:
		return verbs.ErrClosed
	case c.used > 0:
		return verbs.ErrBusy
	}
	c.done = true
	c.d.open.cqs--
	return nil
}

type pd struct {
	d    *Device
	mrs  map[roce.RKey]*mr
	qps  map[roce.QPN]*qp
	done bool
}

func (p *pd) Register(m verbs.Memory, a verbs.Access) (verbs.MR, error) {
	mem, ok := m.(*memory)
	if !ok || mem.d != p.d {
		return nil, verbs.ErrForeign
	}
	if mem.b == nil || p.done {
		return nil, verbs.ErrClosed
	}
	key := roce.RKey(0)
	for key == 0 || p.mrs[key] != nil {
		r, err := random()
		if err != nil {
			return nil, err
		}
		key = roce.RKey(r)
	}
	// Addresses are never used twice, and there is always a gap in between.
	r := &mr{region{key, p.d.next, uint64(len(mem.b))}, p, mem, a}
	p.d.next = p.d.next.Add(r.size + pageSize)
	mem.used++
	p.mrs[key] = r
	return r, nil
}

func (p *pd) CreateQP(c verbs.CQ, limits verbs.QPCap) (verbs.QP, error) {
	q, ok := c.(*cq)
	if !ok || q.d != p.d {
		return nil, verbs.ErrForeign
	}
	if q.done || p.done {
		return nil, verbs.ErrClosed
	}
	n := roce.QPN(0)
	for n == 0 || p.d.qps[n] != nil {
		r, err := random()
		if err != nil {
			return nil, err
		}
		n = roce.QPN(r) & roce.QPNMask
	}
	x := &qp{d: p.d, pd: p, cq: q, num: n, limits: limits, user: -1, maps: map[roce.RKey]*remote{}}
	q.used++
	p.qps[n], p.d.qps[n] = x, x
	return x, nil
}

func (p *pd) Close() error {
	switch {
	case p.done:
		return verbs.ErrClosed
	case len(p.mrs) > 0 || len(p.qps) > 0:
		return verbs.ErrBusy
	}
	p.done = true
	p.d.open.pds--
	return nil
}

// Close refuses while something is open. The socket stays the caller's.
func (d *Device) Close() error {
	if d.closed {
		return verbs.ErrClosed
	}
	if o := d.open; len(d.qps)+o.memories+o.pds+o.cqs+o.maps > 0 {
		return fmt.Errorf("%w: %d QPs, %d memories, %d PDs, %d CQs, %d mappings",
			verbs.ErrBusy, len(d.qps), o.memories, o.pds, o.cqs, o.maps)
	}
	d.flushGone()
	d.closed = true
	if d.probe >= 0 {
		d.cfg.CloseFD(d.probe)
	}
	return nil
}

func (d *Device) Pending() bool { return len(d.queued)+len(d.gone) > 0 }

// Poll sends what waits and takes what has arrived.
func (d *Device) Poll() (more bool) {
	if d.closed {
		return false
	}
	for range pollBudget {
		r, err := recvFrom(d.cfg.FD, d.buf)
		if err != nil {
			d.flush()
			return false
		}
		d.receive(r)
	}
	d.flush()
	return true
}

func (d *Device) flush() {
	for q := range d.queued {
		q.flush()
	}
	d.flushGone()
}

func (d *Device) receive(r received) {
	typ, body, ok := open(r.b)
	if !ok || !r.ok {
		closeAll(r.fds)
		return
	}
	switch typ {
	case typeSend, typeExport, typeGone:
		if to, ok := routeAt(body); ok {
			d.deliver(typ, to, body, &r)
		}
	default:
		if d.cfg.Foreign != nil {
			d.cfg.Foreign(Datagram{typ, body, r.from, r.uid, r.fds})
			return
		}
	}
	closeAll(r.fds)
}

// deliver gives one of our datagrams to its queue pair. What is left in r.fds afterwards is closed.
func (d *Device) deliver(typ uint32, to route, body []byte, r *received) {
	q := d.qps[to.dst]
	if q == nil {
		// Whoever talks to a queue pair that is gone must learn it: our GONE may not have got through.
		if typ != typeGone {
			d.sendGone(r.from, route{to.src, to.dst})
		}
		return
	}
	if q.isPeer(r.from, to.src) {
		q.user = r.uid
	}
	switch typ {
	case typeSend:
		if psn, msg, ok := sendAt(body); ok && q.isPeer(r.from, to.src) {
			q.receive(psn, msg)
		}
	case typeExport:
		if g, ok := exportAt(body); ok && len(r.fds) == 1 && q.offer(r.from, to.src, g, r.fds[0]) {
			r.fds = nil
		}
	case typeGone:
		if len(body) == goneSize && q.isPeer(r.from, to.src) {
			q.Fail()
		}
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func (d *Device) sendGone(to roce.GID, r route) {
	if len(d.gone) < maxGone {
		d.gone = append(d.gone, gone{to, r})
		d.flushGone()
	}
}

func (d *Device) flushGone() {
	keep := d.gone[:0]
	var b [headerSize + goneSize]byte
	for _, g := range d.gone {
		if again(sendTo(d.cfg.FD, g.to, appendGone(b[:0], g.route), -1)) {
			keep = append(keep, g)
		}
	}
	d.gone = keep
}

// again reports whether a send may work later: the peer's queue is full, or the kernel short of something.
func again(err error) bool {
	switch err {
	case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.ETOOMANYREFS:
		return true
	}
	return false
}

package simfab

import (
	"slices"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

// Device is a device of a Fabric.
type Device struct {
	f      *Fabric
	host   *Device // the first one of its host
	attr   verbs.Attr
	qps    map[roce.QPN]*qp
	cqs    map[*cq]bool
	inbox  []func() // with CapMapped: deliveries since the last Poll
	held   []*qp
	down   bool
	closed bool
	open   Open
	// FailMemory, FailMap and FailQP make the next calls fail.
	FailMemory, FailMap, FailQP bool
}

// Open counts what is not closed.
type Open struct {
	QPs, PDs, CQs, Memories, MRs int
	Maps                         int // of peers' regions
}

// Open returns what is not closed.
func (d *Device) Open() Open {
	o := d.open
	o.QPs, o.CQs = len(d.qps), len(d.cqs)
	return o
}

// Waiting returns how many deliveries the next Poll makes, and how many completions wait.
func (d *Device) Waiting() int {
	n := len(d.inbox)
	for c := range d.cqs {
		n += c.Len()
	}
	return n
}

// Discard loses the deliveries that the next Poll would make.
func (d *Device) Discard() { d.inbox = nil }

// SetDown takes the port down or up. Whoever sends through it, or to it, finds nobody.
func (d *Device) SetDown(down bool) {
	if down == d.down {
		return
	}
	d.down = down
	for c := range d.cqs {
		c.Add(verbs.Completion{Op: verbs.OpPort})
	}
}

// Sibling adds another device of the same host: what is allocated from one can be registered with both.
func (d *Device) Sibling(gid roce.GID) *Device {
	x := d.f.Device(gid, d.attr.Caps)
	x.host = d.host
	return x
}

// FailQPs takes all queue pairs to ERR, as a fatal error of the RNIC does.
func (d *Device) FailQPs() {
	for _, n := range d.QPNs() {
		d.qps[n].Fail()
	}
}

// QPNs returns the queue pairs that are open.
func (d *Device) QPNs() []roce.QPN {
	all := make([]roce.QPN, 0, len(d.qps))
	for n := range d.qps {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// BreakQP takes one queue pair to ERR.
func (d *Device) BreakQP(n roce.QPN) {
	if q := d.qps[n]; q != nil {
		q.Fail()
	}
}

func (d *Device) Attr() verbs.Attr { return d.attr }

// Reachable of the device's own GID says whether its port is up; of another one, whether it is in any VLAN.
func (d *Device) Reachable(gid roce.GID) bool {
	for a := range d.f.devices {
		if a.gid == gid {
			return !d.down
		}
	}
	return false
}

func (d *Device) Pending() bool { return len(d.held) > 0 }
func (d *Device) mapped() bool  { return d.attr.Caps.Has(verbs.CapMapped) }

func (d *Device) AllocPD() (verbs.PD, error) { d.open.PDs++; return &pd{d: d}, nil }

func (d *Device) CreateCQ() (verbs.CQ, error) {
	c := &cq{d: d}
	d.cqs[c] = true
	return c, nil
}

func (d *Device) AllocMemory(size int) (verbs.Memory, error) {
	if d.FailMemory {
		return nil, verbs.ErrMemory
	}
	d.open.Memories++
	return &memory{d: d, b: make([]byte, (size+4095)&^4095)}, nil
}

func (d *Device) Poll() bool {
	d.f.run()
	held := d.held
	d.held = nil
	for _, q := range held {
		q.flush()
	}
	in := d.inbox
	d.inbox = nil
	for _, fn := range in {
		fn()
	}
	d.f.run()
	return len(d.inbox) > 0
}

func (d *Device) Close() error {
	switch {
	case d.closed:
		return verbs.ErrClosed
	case d.Open() != Open{}:
		return verbs.ErrBusy
	}
	d.closed = true
	return nil
}

type memory struct {
	d    *Device
	b    []byte
	used int
}

func (m *memory) Bytes() []byte { return m.b }

func (m *memory) Zero(off, n int) error {
	if m.b == nil {
		return verbs.ErrClosed
	}
	if off < 0 || n < 0 || off > len(m.b) || n > len(m.b)-off || (off|n)%4096 != 0 {
		return verbs.ErrTooLong
	}
	clear(m.b[off:][:n])
	return nil
}

func (m *memory) Close() error {
	switch {
	case m.b == nil:
		return verbs.ErrClosed
	case m.used > 0:
		return verbs.ErrBusy
	}
	m.b = nil
	m.d.open.Memories--
	return nil
}

type cq struct {
	verbs.Completions
	d    *Device
	used int
}

func (c *cq) Close() error {
	switch {
	case !c.d.cqs[c]:
		return verbs.ErrClosed
	case c.used > 0:
		return verbs.ErrBusy
	}
	delete(c.d.cqs, c)
	return nil
}

type pd struct {
	d    *Device
	mrs  []*mr
	used int
	done bool
}

func (p *pd) Register(m verbs.Memory, a verbs.Access) (verbs.MR, error) {
	mem, ok := m.(*memory)
	if !ok || mem.d.host != p.d.host {
		return nil, verbs.ErrForeign
	}
	if p.done || mem.b == nil {
		return nil, verbs.ErrClosed
	}
	mem.used++
	p.d.open.MRs++
	r := &mr{p, mem, roce.RKey(p.d.f.random()), roce.VAddr(p.d.f.random()) << 12, a, true}
	p.mrs = append(p.mrs, r)
	return r, nil
}

func (p *pd) CreateQP(c verbs.CQ, limits verbs.QPCap) (verbs.QP, error) {
	q, ok := c.(*cq)
	switch {
	case !ok || q.d != p.d:
		return nil, verbs.ErrForeign
	case p.done || !p.d.cqs[q]:
		return nil, verbs.ErrClosed
	case p.d.FailQP:
		return nil, verbs.ErrMemory
	}
	x := &qp{d: p.d, pd: p, cq: q, limits: limits}
	for x.num == 0 || p.d.qps[x.num] != nil {
		x.num = roce.QPN(p.d.f.random()) & (1<<24 - 1)
	}
	q.used++
	p.used++
	p.d.qps[x.num] = x
	return x, nil
}

func (p *pd) Close() error {
	switch {
	case p.done:
		return verbs.ErrClosed
	case p.used > 0 || len(p.mrs) > 0:
		return verbs.ErrBusy
	}
	p.done = true
	p.d.open.PDs--
	return nil
}

func (p *pd) find(key roce.RKey, addr roce.VAddr, n int) []byte {
	for _, r := range p.mrs {
		if r.key == key && r.access == verbs.RemoteWrite {
			return r.slice(addr, n)
		}
	}
	return nil
}

type mr struct {
	pd     *pd
	mem    *memory
	key    roce.RKey
	addr   roce.VAddr
	access verbs.Access
	live   bool
}

func (r *mr) Bytes() []byte    { return r.mem.b }
func (r *mr) RKey() roce.RKey  { return r.key }
func (r *mr) Addr() roce.VAddr { return r.addr }

func (r *mr) slice(addr roce.VAddr, n int) []byte {
	off := uint64(addr - r.addr)
	if addr < r.addr || off >= uint64(len(r.mem.b)) || uint64(n) > uint64(len(r.mem.b))-off {
		return nil
	}
	return r.mem.b[off:][:n]
}

func (r *mr) Close() error {
	if !r.live {
		return verbs.ErrClosed
	}
	r.live = false
	r.mem.used--
	r.pd.d.open.MRs--
	r.pd.mrs = slices.DeleteFunc(r.pd.mrs, func(x *mr) bool { return x == r })
	return nil
}

type remote struct {
	d    *Device
	key  roce.RKey
	addr roce.VAddr
	b    []byte
	refs int
}

func (r *remote) Bytes() []byte    { return r.b }
func (r *remote) RKey() roce.RKey  { return r.key }
func (r *remote) Addr() roce.VAddr { return r.addr }

func (r *remote) Close() error {
	if r.refs == 0 {
		return verbs.ErrClosed
	}
	if r.refs--; r.refs == 0 {
		r.d.open.Maps--
	}
	return nil
}

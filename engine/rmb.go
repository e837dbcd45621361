package engine

import (
	"errors"
	"fmt"

	"libsmcr/abi/clc"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
)

// RMBID numbers the RMBs of an engine, for people.
type RMBID uint32

// RMB is a local RMB: it belongs to one link group, and its elements to connections of that group.
type RMB struct {
	id        RMBID
	g         *LinkGroup
	mem       verbs.Memory
	head      verbs.Memory // where the heads are: mem itself, unless only this side needs them
	mrs       map[*Link]verbs.MR
	out       verbs.Memory // a send buffer for each element; nil with mapped memory
	outs      map[*Link]verbs.MR
	size      int // of an element
	heads     int // bytes of mem before the first element
	used      []bool
	inUse     int
	retiring  bool    // DELETE RKEY has been sent, or will be
	idleSince Instant // unused
	confirmed bool    // the peer knows the RToken: by CLC on first contact, else by CONFIRM RKEY
	waiters   []*Conn // have an element and wait for confirmed
}

func headsSize(elements int) int { return (elements*HeadSize + pageSize - 1) &^ (pageSize - 1) }

// newRMB allocates an RMB and registers it on all links.
func (g *LinkGroup) newRMB() (*RMB, error) {
	n, size := g.e.cfg.Elements, g.e.cfg.RMBESize
	r := &RMB{g: g, mrs: map[*Link]verbs.MR{}, outs: map[*Link]verbs.MR{}, size: size, used: make([]bool, n)}
	if g.port.mapped() {
		r.heads = headsSize(n)
	}
	mem, err := g.port.dev.AllocMemory(r.heads + n*size)
	if err != nil {
		return nil, err
	}
	r.mem, r.head = mem, mem
	if !g.port.mapped() {
		// The peer writes into registered memory: no head may lie there.
		if r.head, err = g.port.dev.AllocMemory(headsSize(2 * n)); err != nil {
			return nil, errors.Join(err, mem.Close())
		}
		if r.out, err = g.port.dev.AllocMemory(n * size); err != nil {
			return nil, errors.Join(err, r.head.Close(), mem.Close())
		}
	}
	for _, l := range g.links {
		if l.state == fsm.LinkDeleting {
			continue
		}
		if err := r.register(l); err != nil {
			r.close()
			return nil, err
		}
	}
	g.e.lastRMB++
	r.id = g.e.lastRMB
	g.rmbs = append(g.rmbs, r)
	return r, nil
}

// register makes the RMB reachable over a link, and its send buffers usable there.
func (r *RMB) register(l *Link) error {
	mr, err := l.pd.Register(r.mem, verbs.RemoteWrite)
	if err != nil {
		return err
	}
	if r.mrs[l] = mr; r.out == nil {
		return nil
	}
	if mr, err = l.pd.Register(r.out, verbs.Local); err == nil {
		r.outs[l] = mr
	}
	return err
}

// unregister ends what register began, before the link's PD is closed.
func (r *RMB) unregister(l *Link) {
	for _, m := range []map[*Link]verbs.MR{r.mrs, r.outs} {
		if mr := m[l]; mr != nil {
			r.g.check(mr.Close())
			delete(m, l)
		}
	}
}

// token is what the peer needs to reach the RMB over a link: the address is that of the first element.
func (r *RMB) token(l *Link) smc.RToken {
	mr := r.mrs[l]
	return smc.RToken{RKey: mr.RKey(), VAddr: mr.Addr().Add(uint64(r.heads))}
}

func (r *RMB) close() {
	for l := range r.mrs {
		r.unregister(l)
	}
	r.g.check(r.mem.Close())
	if r.out != nil {
		r.g.check(errors.Join(r.head.Close(), r.out.Close()))
	}
}

// export hands an RMB to the peer of a mapped device; elsewhere the RToken is all it takes.
func (l *Link) export(r *RMB) error {
	if !l.mapped() {
		return nil
	}
	return l.qp.Export(r.mrs[l])
}

// free zeroes an element, which gives its pages back, and makes it available again (RFC 7609 §4.4.1: not a byte of
// the previous connection).
func (r *RMB) free(i smc.RMBEIndex) {
	r.g.check(r.mem.Zero(r.heads+int(i-1)*r.size, r.size))
	headAt(r.head.Bytes()[int(i-1)*HeadSize:]).begin(0)
	if r.out != nil {
		r.g.check(r.out.Zero(int(i-1)*r.size, r.size))
		headAt(r.head.Bytes()[(len(r.used)+int(i-1))*HeadSize:]).begin(0)
	}
	r.used[i-1] = false
	if r.inUse--; r.inUse == 0 {
		r.g.idleRMB(r)
	}
	r.g.e.cfg.Reserve(-r.g.cost())
}

// cost is the ring memory of one connection.
func (g *LinkGroup) cost() int64 {
	if g.port.mapped() {
		return int64(g.e.cfg.RMBESize)
	}
	return 2 * int64(g.e.cfg.RMBESize)
}

// element is the local RMBE of a connection.
type element struct {
	rmb   *RMB
	index smc.RMBEIndex
}

func (m element) memory() (head, ring []byte) {
	i := int(m.index - 1)
	h, r := m.rmb.head.Bytes()[i*HeadSize:], m.rmb.mem.Bytes()[m.rmb.heads+i*m.rmb.size:]
	return h[:HeadSize:HeadSize], r[:m.rmb.size:m.rmb.size]
}

// sendBuffer is where a connection's bytes wait until they are in the peer's RMBE.
func (m element) sendBuffer() (head, ring []byte) {
	h, r := m.rmb.head.Bytes()[(len(m.rmb.used)+int(m.index-1))*HeadSize:], m.rmb.out.Bytes()[m.offset():]
	return h[:HeadSize:HeadSize], r[:m.rmb.size:m.rmb.size]
}

// offset of the send buffer in the region of all.
func (m element) offset() int { return int(m.index-1) * m.rmb.size }

// hasRoom reports whether one more connection fits into the link group.
func (g *LinkGroup) hasRoom() bool {
	for _, r := range g.rmbs {
		if r.inUse < len(r.used) && !r.retiring {
			return true
		}
	}
	return len(g.rmbs) < maxRMBs
}

// take gives a connection an element, in a new RMB if need be; the code says why not.
func (g *LinkGroup) take(c *Conn) clc.DeclineCode {
	if !g.e.cfg.Reserve(g.cost()) {
		return clc.DeclineMemory
	}
	var free *RMB
	for _, r := range g.rmbs {
		// One that the peer knows already is the faster choice.
		if r.inUse < len(r.used) && !r.retiring && (free == nil || !free.confirmed && r.confirmed) {
			free = r
		}
	}
	if free == nil {
		var err error
		if len(g.rmbs) >= maxRMBs {
			err = fmt.Errorf("%w: %d RMBs", verbs.ErrMemory, maxRMBs)
		} else {
			free, err = g.newRMB()
		}
		if err != nil {
			g.e.log.Warn().Uint32("lgr", uint32(g.id)).Err(err).Msg("no RMB")
			g.e.cfg.Reserve(-g.cost())
			return clc.DeclineMemory
		}
	}
	i := 0
	for free.used[i] {
		i++
	}
	free.used[i] = true
	free.inUse++
	c.local = element{free, smc.RMBEIndex(i + 1)}
	c.token = g.e.nextToken()
	c.group = g
	g.conns[c.id] = c
	g.byToken[c.token] = c
	g.busy()
	head, _ := c.local.memory()
	headAt(head).begin(uint32(c.token))
	return 0
}

// remoteRMB is an RMB of the peer. Each link has its own RToken for it (RFC 7609 §2.1).
type remoteRMB struct {
	g      *LinkGroup
	tokens map[*Link]smc.RToken
	mr     verbs.RemoteMR // mapped devices only
	heads  uint64         // mapped: bytes before the first element
	size   smc.BufSize
	use    map[smc.RMBEIndex]*Conn // elements that connections here write into
	gone   bool                    // the peer has deleted it: DELETE RKEY
}

// on reports whether the RMB can be reached over a link.
func (r *remoteRMB) on(l *Link) bool {
	_, ok := r.tokens[l]
	return ok
}

// remote returns the peer's RMB that has this RToken on the link, nil if the peer did not tell of it.
func (l *Link) remote(t smc.RToken) *remoteRMB {
	if r := l.remotes[t.RKey]; r != nil && r.tokens[l] == t {
		return r
	}
	return nil
}

// reach returns the peer's RMB with that RToken, new ones included. A mapped device maps it if it was exported;
// verbs.ErrUnmapped if it has not arrived.
func (g *LinkGroup) reach(l *Link, t smc.RToken) (*remoteRMB, error) {
	if r := l.remote(t); r != nil {
		return r, nil
	}
	if len(g.remotes) >= maxRMBs {
		return nil, fmt.Errorf("%w: %d RMBs of the peer", verbs.ErrMemory, len(g.remotes))
	}
	r := &remoteRMB{g: g, tokens: map[*Link]smc.RToken{}, use: map[smc.RMBEIndex]*Conn{}}
	if l.mapped() {
		mr, err := l.qp.MapRemote(t.RKey, t.VAddr)
		if err != nil {
			return nil, err
		}
		r.mr, r.heads = mr, uint64(t.VAddr-mr.Addr())
	}
	g.remotes[r] = struct{}{}
	if err := r.name(l, t); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// name notes the RToken of a link.
func (r *remoteRMB) name(l *Link, t smc.RToken) error {
	if old := l.remotes[t.RKey]; old != nil && (old != r || r.tokens[l] != t) {
		return fmt.Errorf("%w: RKey %s is %s already", ErrMismatch, t.RKey, old.tokens[l])
	}
	if old, ok := r.tokens[l]; ok && old != t {
		return fmt.Errorf("%w: RMB %s is %s now", ErrMismatch, old, t)
	}
	r.tokens[l], l.remotes[t.RKey] = t, r
	return nil
}

func (r *remoteRMB) close() {
	for l, t := range r.tokens {
		delete(l.remotes, t.RKey)
	}
	delete(r.g.remotes, r)
	if r.mr != nil {
		r.g.check(r.mr.Close())
	}
}

// element returns head and ring of a mapped element; nil if it is not inside the region.
func (r *remoteRMB) element(i smc.RMBEIndex, size smc.BufSize) (head, ring []byte) {
	b, n := r.mr.Bytes(), uint64(size.Bytes())
	if i == 0 || uint64(i)*HeadSize > r.heads || r.heads+uint64(i)*n > uint64(len(b)) {
		return nil, nil
	}
	h, d := b[uint64(i-1)*HeadSize:], b[r.heads+uint64(i-1)*n:]
	return h[:HeadSize:HeadSize], d[:n:n]
}

// claim makes a connection the writer of an element. All elements of an RMB have one size (RFC 7609 §2.1), else rings
// would overlap.
func (r *remoteRMB) claim(c *Conn) bool {
	if r.gone || c.peer.Index == 0 || len(r.use) > 0 && r.size != c.peer.Size {
		return false
	}
	if r.mr != nil {
		head, _ := r.element(c.peer.Index, c.peer.Size)
		if head == nil || headAt(head).token() != c.peer.Token {
			return false
		}
	}
	// RFC 7609 §4.4.2: the peer believes that the connection we knew is over.
	if old := r.use[c.peer.Index]; old != nil {
		old.reused()
	}
	r.size = c.peer.Size
	r.use[c.peer.Index] = c
	c.remote = r
	return true
}

// drop ends a connection's writing. The RMB stays known until the link group ends, or the peer has deleted it.
func (r *remoteRMB) drop(c *Conn) {
	if r == nil || r.use[c.peer.Index] != c {
		return
	}
	delete(r.use, c.peer.Index)
	if r.gone && len(r.use) == 0 && c.group != nil {
		r.close()
	}
}

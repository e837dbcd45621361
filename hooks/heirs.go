package hooks

// #include "shim.h"
import "C"

import (
	"slices"
	"time"

	"libsmcr/engine"
)

// heir is a connection that a forked child went on with and this process has left. A child that is killed tells nobody: its hold of
// the block, and with it the element of our RMB, would stay until this process ends. So the kernel is asked, seldom, whether that
// child is there, and the TCP socket: after a reset, or when both ends have sent a FIN, sock_diag knows no socket any more that the child
// may still read the ring of. Twice, as a child's child may be about to say that it has it.
type heir struct {
	b      *C.struct_block
	slab   C.u32
	was    C.struct_block // when we left: another connection may have the block by now
	missed bool
	gone   bool
}

const (
	heirsSoon   = engine.Instant(time.Second)
	heirsSeldom = engine.Instant(30 * time.Second)
)

// leave is close of a connection that others have, too. The engine keeps the element until they are done with it, or gone.
func (c *conn) leave() {
	if !c.visible {
		c.ec.Leave(nil, c.l.now)
		return
	}
	h := &heir{b: c.s.b, slab: c.s.slab, was: *c.s.b}
	c.l.heirs = append(c.l.heirs, h)
	c.l.heirsPause = heirsSoon
	c.l.heirsAt = c.l.now + heirsSoon
	c.ec.Leave(func() bool { return h.gone }, c.l.now)
}

func (l *loop) lookAfterHeirs() {
	l.heirsPause = min(2*l.heirsPause, heirsSeldom)
	l.heirs = slices.DeleteFunc(l.heirs, func(h *heir) bool {
		switch {
		case C.block_held(h.b, h.was.cookie) == 0:
			return true
		case C.block_heir_lives(h.b) != 0, C.diag_held(&h.was) != 0:
			h.missed = false
		case h.missed:
			C.block_lost(h.b, h.slab, h.was.cookie)
			h.gone = true
		default:
			h.missed = true
			l.heirsPause = heirsSoon
		}
		return h.gone
	})
	if l.heirsAt = 0; len(l.heirs) > 0 {
		l.heirsAt = l.now + l.heirsPause
	}
}

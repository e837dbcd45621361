package engine

import (
	"encoding/binary"

	"libsmcr/abi/llc"
	"libsmcr/engine/fsm"
)

// TEST LINK as keepalive (RFC 7609 §4.5.3, §A.3.8): a link over which nothing was heard for a while is tried. The device of
// mapped memory tells by itself of a peer that is gone.

func (l *Link) watch() {
	if !l.mapped() && l.state == fsm.LinkActive {
		l.g.e.after(&l.test, l.g.e.cfg.Timeouts.Test)
	}
}

// quiet: either it is time to try, or nothing came back.
func (l *Link) quiet() {
	e := l.g.e
	switch idle := e.now - l.heard; {
	case l.testing:
		// §C.7.1: the link over which the message was sent has failed.
		l.fail()
	case idle < Instant(e.cfg.Timeouts.Test):
		e.timers.start(&l.test, l.heard+Instant(e.cfg.Timeouts.Test))
	default:
		l.testing = true
		binary.BigEndian.PutUint32(l.probe[:], e.cfg.Rand())
		e.after(&l.test, e.cfg.Timeouts.LLC)
		l.send(&llc.TestLink{UserData: l.probe}, nil)
	}
}

func (l *Link) onTestLink(m *llc.TestLink) {
	switch {
	case !m.Reply:
		l.send(&llc.TestLink{Reply: true, UserData: m.UserData}, nil)
	case l.testing && m.UserData != l.probe:
		// §C.7.1: a protocol error.
		l.protocol(ErrMismatch)
	case l.testing:
		l.testing = false
		l.watch()
	}
}

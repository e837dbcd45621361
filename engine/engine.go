package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"libsmcr/abi/clc"
	"libsmcr/abi/llc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/engine/fsm"
	"libsmcr/verbs"
)

// Handler is the TCP connection behind a Conn, and what becomes of it. Exactly one of Established, Fallback and
// Broken ends a negotiation, unless Close came first. After Established, Broken may still come, see ErrReused.
type Handler interface {
	// SendCLC sends a whole CLC message over TCP. An error ends the connection. It must not call the engine.
	SendCLC(b []byte) error
	// Established: SMC-R carries the bytes from now on. Both sides can reach each other's rings.
	Established(r Rings)
	// Fallback: TCP carries the bytes. sent says whether the Decline was ours.
	Fallback(code clc.DeclineCode, sent bool)
	// Broken: the TCP connection must be ended as by a reset.
	Broken(err error)
}

// Waker is a Handler whose program may sleep on the heads of the rings: the engine has moved a position or set a flag
// there. With mapped memory it is the peer who does both, and Wake is not called.
type Waker interface{ Wake() }

// Rings is an established connection: two rings, each with its head. With mapped memory both sides see them. Without,
// all is local: PeerRing is the send buffer that the engine empties, and Kick has to follow whenever the program moved
// a position or set a flag. A ring's position is taken modulo its length, which with an eye catcher is no power of two.
type Rings struct {
	LocalHead, LocalRing  []byte // this side reads
	PeerHead, PeerRing    []byte // this side writes
	LocalToken, PeerToken smc.AlertToken
	RMB                   RMBID
	Index                 smc.RMBEIndex
	PeerGID               roce.GID
	LinkGroup             GroupID
	Provider              string
}

// Timeouts are the waits that end a negotiation or an exchange.
type Timeouts struct {
	CLC  time.Duration // for the next CLC message of the peer
	LLC  time.Duration // for an LLC answer; the client waits twice as long for CONFIRM LINK
	Idle time.Duration // how long a link group without connections is kept
	Test time.Duration // after how much silence a link is tried; not with mapped memory
	// Close is how long a connection that is closed here waits for the peer, or for the next sign that its last bytes
	// are taken (RFC 7609 §4.8.1). With mapped memory nobody waits for that.
	Close time.Duration
}

// DefaultTimeouts are those of Linux.
var DefaultTimeouts = Timeouts{CLC: 6 * time.Second, LLC: 2 * time.Second, Idle: 10 * time.Minute, Test: 30 * time.Second, Close: time.Minute}

// Config is what an engine is made of.
type Config struct {
	PeerID   smc.PeerID     // of this engine alone, on this host and on others
	Devices  []verbs.Device // RNICs of this host, the preferred one first
	RMBESize int            // bytes of a ring: a power of two, 64 KiB to 512 MiB; 0 = DefaultRMBESize
	Elements int            // elements of an RMB, 1 to 255; 0 = DefaultElements
	// Reserve asks for n more bytes of ring memory, or gives -n back, which is not refused. It is called for each
	// element as it is given out and freed: an RMB is address space only, its pages appear as rings are used. nil
	// allows everything.
	Reserve  func(n int64) bool
	Log      zerolog.Logger
	Timeouts Timeouts      // zero fields: DefaultTimeouts
	Rand     func() uint32 // for sequence numbers and the like; nil = a fresh generator
}

// Sizes.
const (
	DefaultRMBESize = 256 << 10
	MinRMBESize     = 64 << 10
	DefaultElements = 32
	maxRMBs         = 255 // of one peer in a link group, RFC 7609 §2.1
	pageSize        = 4096
)

const (
	firstRetry = 2 * time.Millisecond
	lastRetry  = time.Second
)

// Errors that Handler.Broken gets, beside those of clc and fsm.
var (
	ErrTimeout  = errors.New("engine: the peer does not answer")
	ErrEOF      = errors.New("engine: the TCP connection ended")
	ErrMismatch = errors.New("engine: the peer's message does not fit what was agreed")
	// ErrReused ends an established connection: the peer has given the element that this side writes into to
	// another connection, so it believes that this one is over (RFC 7609 §4.4.2). Nothing may be written any more;
	// what is in the local ring may be read until Close, which has to follow as ever.
	ErrReused = errors.New("engine: the peer reuses the RMB element")
)

// Engine is one SMC-R peer. See the package comment for how it is driven.
type Engine struct {
	cfg    Config
	ports  []*port // one for each device
	log    zerolog.Logger
	now    Instant
	depth  int
	closed bool

	groups map[GroupID]*LinkGroup   // all
	byPeer map[peerKey][]*LinkGroup // those that are not down
	conns  map[ConnID]*Conn         // all that are not released
	timers timerHeap
	retry  timer         // the device has something it could not send
	pause  time.Duration // until the next retry
	outbox []notice
	woken  []*Conn // whose owner is to be woken
	done   [32]verbs.Completion

	lastGroup GroupID
	lastConn  ConnID
	lastToken smc.AlertToken
	lastRMB   RMBID
	count     Counters
}

// notice is a call of a Handler that waits until the step is over.
type notice struct {
	c     *Conn
	to    fsm.Handshake
	rings Rings
}

// New makes an engine.
func New(cfg Config) (*Engine, error) {
	if cfg.RMBESize == 0 {
		cfg.RMBESize = DefaultRMBESize
	}
	if cfg.Elements == 0 {
		cfg.Elements = DefaultElements
	}
	if cfg.Timeouts.CLC == 0 {
		cfg.Timeouts.CLC = DefaultTimeouts.CLC
	}
	if cfg.Timeouts.LLC == 0 {
		cfg.Timeouts.LLC = DefaultTimeouts.LLC
	}
	if cfg.Timeouts.Close == 0 {
		cfg.Timeouts.Close = DefaultTimeouts.Close
	}
	if cfg.Timeouts.Idle == 0 {
		cfg.Timeouts.Idle = DefaultTimeouts.Idle
	}
	if cfg.Timeouts.Test == 0 {
		cfg.Timeouts.Test = DefaultTimeouts.Test
	}
	if cfg.Reserve == nil {
		cfg.Reserve = func(int64) bool { return true }
	}
	if cfg.Rand == nil {
		cfg.Rand = rand.Uint32
	}
	switch n := cfg.RMBESize; {
	case n < MinRMBESize || n&(n-1) != 0 || smc.BufSizeFor(uint32(n)).Bytes() != uint32(n):
		return nil, fmt.Errorf("engine: RMBE size %d", n)
	case cfg.Elements < 1 || cfg.Elements > 255:
		return nil, fmt.Errorf("engine: %d elements", cfg.Elements)
	case cfg.PeerID.IsZero():
		return nil, errors.New("engine: no peer ID")
	case len(cfg.Devices) == 0:
		return nil, errors.New("engine: no device")
	}
	e := &Engine{
		cfg: cfg, log: cfg.Log,
		groups: map[GroupID]*LinkGroup{}, byPeer: map[peerKey][]*LinkGroup{}, conns: map[ConnID]*Conn{},
		lastToken: smc.AlertToken(cfg.Rand()),
	}
	for _, d := range cfg.Devices {
		p, err := newPort(d)
		if err != nil {
			return nil, errors.Join(err, e.Close())
		}
		e.ports = append(e.ports, p)
	}
	e.retry.fire = func() { e.poll() }
	e.count.Declined, e.count.PeerDeclined = map[clc.DeclineCode]uint64{}, map[clc.DeclineCode]uint64{}
	return e, nil
}

// Need says how many bytes of the TCP stream the CLC message has that b begins with; 8 if b is too short to tell. The
// error means that these are not CLC bytes: pass them to Conn.CLC all the same, which ends the connection.
func Need(b []byte) (int, error) {
	h, err := clc.Peek(b)
	if errors.Is(err, clc.ErrShort) {
		return clc.HeaderSize, nil
	}
	return h.Length, err
}

// LAN is the network by which a TCP connection runs at this end, for peers on other hosts.
type LAN struct {
	Subnet netip.Prefix // of the local address
	VLAN   roce.VLAN    // of the interface
}

// Client begins as the TCP client: the Proposal goes out at once, from a device in the connection's VLAN.
func (e *Engine) Client(h Handler, on LAN, now Instant) *Conn {
	defer e.enter(now)()
	c := e.newConn(h, RoleClient)
	if e.closed {
		c.fail(clc.DeclineInternal)
		return c
	}
	if c.port = e.preferred(on.VLAN); c.port == nil {
		c.fail(absent(on.VLAN))
	} else if c.to(fsm.Connect, fsm.AwaitAccept) {
		c.propose(on.Subnet)
	}
	return c
}

// Server begins as the TCP server, who waits for the Proposal. Devices that reach one LAN only take clients of that network alone
// (RFC 7609 §3.5.1.2).
func (e *Engine) Server(h Handler, on LAN, now Instant) *Conn {
	defer e.enter(now)()
	c := e.newConn(h, RoleServer)
	c.lan = on
	c.step(fsm.Listen)
	if e.closed {
		c.fail(clc.DeclineInternal)
	}
	return c
}

// Poll lets the device work and takes what it completed. It reports whether more is waiting.
func (e *Engine) Poll(now Instant) (more bool) {
	defer e.enter(now)()
	return e.poll()
}

// Tick fires the timers that are due.
func (e *Engine) Tick(now Instant) {
	defer e.enter(now)()
	for t := e.timers.due(e.now); t != nil; t = e.timers.due(e.now) {
		t.fire()
	}
}

// NextDeadline returns when Tick is to be called next; false if nothing is pending.
func (e *Engine) NextDeadline() (Instant, bool) {
	if len(e.timers) == 0 {
		return 0, false
	}
	return e.timers[0].at, true
}

// Knows reports whether somebody with that GID is the peer of a link group.
func (e *Engine) Knows(gid roce.GID) bool {
	for _, g := range e.groups {
		if g.gid == gid || slices.ContainsFunc(g.links, func(l *Link) bool { return l.peer.GID == gid }) {
			return true
		}
	}
	return false
}

// Shutdown ends what can be ended: no new negotiations, running ones are declined or broken, link groups are deleted.
// Established connections keep their memory until they are closed.
func (e *Engine) Shutdown(now Instant) {
	defer e.enter(now)()
	e.closed = true
	for _, c := range e.sortedConns() {
		if !c.state.Done() {
			c.fail(clc.DeclineInternal)
		}
	}
	for _, g := range e.sortedGroups() {
		g.delete(llc.DeleteLink{Orderly: true, Reason: llc.ReasonProgram})
	}
}

// Close gives the completion queues back; verbs.ErrBusy while connections have not been released.
func (e *Engine) Close() error {
	var err error
	for _, p := range e.ports {
		err = errors.Join(err, p.cq.Close())
	}
	return err
}

// enter begins a call from outside; the function it returns ends it: completions are taken, and then the handlers called.
func (e *Engine) enter(now Instant) func() {
	e.now = max(e.now, now)
	e.depth++
	return e.leave
}

func (e *Engine) leave() {
	defer func() { e.depth-- }() // whatever happens: the owner may go on after a panic
	if e.depth == 1 {
		e.reap()
		for len(e.outbox) > 0 {
			n := e.outbox[0]
			e.outbox = e.outbox[1:]
			n.c.notify(n)
			e.reap()
		}
		e.outbox = nil
		for i := 0; i < len(e.woken); i++ {
			e.woken[i].wake()
			e.reap()
		}
		e.woken = e.woken[:0]
		// A peer that is merely busy makes room at once, one that is stopped perhaps never.
		if !slices.ContainsFunc(e.ports, func(p *port) bool { return p.dev.Pending() }) {
			e.timers.stop(&e.retry)
			e.pause = 0
		} else if e.retry.pos == 0 {
			e.pause = min(max(2*e.pause, firstRetry), lastRetry)
			e.after(&e.retry, e.pause)
		}
	}
}

func (e *Engine) after(t *timer, d time.Duration) { e.timers.start(t, e.now+Instant(d)) }

func (e *Engine) nextToken() smc.AlertToken {
	if e.lastToken++; e.lastToken == 0 {
		e.lastToken = 1
	}
	return e.lastToken
}

// Package verbs says how bytes reach another process's memory: devices, protection domains, memory regions, RC queue
// pairs and completion queues as interfaces. It follows the verbs of InfiniBand as far as RFC 7609 needs them, so
// that rdma-core, a user-space RoCE endpoint, shared memory and a simulated fabric all fit behind it.
//
// Nothing here is safe for concurrent use: a device and all that was made from it belong to one goroutine. Nothing blocks.
package verbs

import (
	"errors"

	"libsmcr/abi/roce"
)

// Caps says what a device can do beyond plain RC.
type Caps uint32

const (
	// CapMapped: memory regions are exported to the peer and mapped there (QP.Export, QP.MapRemote). A store into the
	// mapping is the RDMA write, so no send queue and no CDC message is needed to move data.
	CapMapped Caps = 1 << iota
	// CapLocal: every GID that Reachable accepts is on this host: subnets and VLANs do not matter.
	CapLocal
)

// Has reports whether all of want are there.
func (c Caps) Has(want Caps) bool { return c&want == want }

func (c Caps) String() string {
	s := ""
	if c.Has(CapMapped) {
		s += "mapped,"
	}
	if c.Has(CapLocal) {
		s += "local,"
	}
	if s == "" {
		return "none"
	}
	return s[:len(s)-1]
}

// Attr is what a device says about itself; it does not change.
type Attr struct {
	Provider string // the word shown to people: shm, ibv, softroce
	GID      roce.GID
	MAC      roce.MAC
	VLAN     roce.VLAN // of its GID: the tag of what its queue pairs send, and of what reaches them (RFC 7609 §5.1)
	MTU      roce.MTU
	Caps     Caps
	MaxLinks int // links to one peer that make sense over this device
}

// Errors of all providers. Anything else is the provider's own and means the same as ErrMemory: it did not work now.
var (
	ErrState     = errors.New("verbs: not allowed in this state of the queue pair")
	ErrQueueFull = errors.New("verbs: work queue full")
	ErrMemory    = errors.New("verbs: out of memory")
	ErrBusy      = errors.New("verbs: still in use")
	ErrUnmapped  = errors.New("verbs: the peer has not exported that memory yet")
	ErrForeign   = errors.New("verbs: belongs to another provider")
	ErrTooLong   = errors.New("verbs: message too long")
	ErrClosed    = errors.New("verbs: closed")
	ErrNotMapped = errors.New("verbs: this device does not map memory")
)

// Device is one port in one LAN: an RNIC, a soft RoCE endpoint, or the shared memory of this host. An RNIC with several VLANs is as
// many devices: in each of them it has a GID of its own, which the address handles of the queue pairs name.
type Device interface {
	Attr() Attr
	// Reachable reports whether somebody answers to that GID as far as can be told without talking to it. It is false for
	// certain only: a peer that has ended, an address of another kind, a port of this side that is down. In which VLAN the peer
	// is cannot be told. Its own GID is reachable while its port is up; each change is a completion with OpPort in all
	// completion queues.
	Reachable(gid roce.GID) bool
	AllocPD() (PD, error)
	CreateCQ() (CQ, error)
	// AllocMemory returns size zeroed bytes that Register accepts, also that of other devices of this provider in the
	// same process: an RMB belongs to the links over all of them.
	AllocMemory(size int) (Memory, error)
	// Poll moves what has arrived into completion queues and tries again what could not be sent. It does a bounded amount
	// of work and reports whether more is waiting.
	Poll() (more bool)
	// Pending reports whether sends wait for the peer to make room: no descriptor tells when it has, so Poll is to be
	// called again after a few milliseconds.
	Pending() bool
	// Close is refused with ErrBusy while anything made from the device is open.
	Close() error
}

// Memory is memory that can be registered, with one or several PDs.
type Memory interface {
	Bytes() []byte
	// Zero makes the range read as zeros again and gives its pages back where the provider can; off and n are
	// multiples of the page size.
	Zero(off, n int) error
	// Close is refused with ErrBusy while it is registered.
	Close() error
}

// Access says what a region is for. RKeys can be guessed: what the peer has no business in is Local.
type Access uint8

const (
	Local       Access = iota // a source for PostWrite
	RemoteWrite               // the peer writes there, or maps it
)

// PD is a protection domain: RKeys of its regions are good on its queue pairs only (RFC 7609 §2.1: one for every link).
type PD interface {
	Register(m Memory, a Access) (MR, error)
	CreateQP(cq CQ, cap QPCap) (QP, error)
	Close() error
}

// MR is a registered memory region.
type MR interface {
	Bytes() []byte
	RKey() roce.RKey
	Addr() roce.VAddr // of Bytes()[0], as the peer names it
	Close() error
}

// RemoteMR is a region of the peer that is mapped here. The peer changes it at any time: whoever reads it reads once
// and checks.
type RemoteMR interface {
	Bytes() []byte
	RKey() roce.RKey
	Addr() roce.VAddr // of Bytes()[0]
	Close() error
}

// QPCap sizes a queue pair.
type QPCap struct {
	SendWR, RecvWR int
}

// Peer is the other end of a queue pair, as CLC or ADD LINK told it.
type Peer struct {
	GID roce.GID
	MAC roce.MAC
	QPN roce.QPN
	PSN roce.PSN // the first number it sends
	MTU roce.MTU // the smaller of both
}

// WRID names a work request in its completion; the caller chooses it.
type WRID uint64

// QP is a reliably connected queue pair.
type QP interface {
	QPN() roce.QPN
	State() QPState

	// Init, ReadyToReceive and ReadyToSend go one state further; psn is the first number sent. ErrState if it is not
	// the turn.
	Init() error
	ReadyToReceive(p Peer) error
	ReadyToSend(psn roce.PSN) error
	// Fail moves to ERR; whatever was posted completes with StatusFlushed.
	Fail()

	// PostRecv gives a buffer for one SEND of the peer, from INIT on. The buffer belongs to the queue pair until its
	// completion.
	PostRecv(id WRID, buf []byte) error
	// PostSend and PostWrite need state RTS; a completion follows. PostSend copies msg before it returns (inline). The n
	// bytes at off of a region of the same PD, which PostWrite writes to addr at the peer, must not change before the
	// completion.
	PostSend(id WRID, msg []byte) error
	PostWrite(id WRID, src MR, off, n int, key roce.RKey, addr roce.VAddr) error

	// Export hands a region of the same PD to the peer, with CapMapped, from RTR on. What is sent later arrives later.
	Export(m MR) error
	// MapRemote returns the region of the peer that has this RKey and contains addr; ErrUnmapped while it has not
	// arrived. Its arrival is a completion with OpExported. Mapping again what is mapped returns the same region; it
	// is closed as often as it was returned.
	MapRemote(key roce.RKey, addr roce.VAddr) (RemoteMR, error)

	Close() error
}

// CQ is a completion queue.
type CQ interface {
	// Poll fills dst with the oldest completions and returns how many.
	Poll(dst []Completion) int
	Close() error
}

// Opcode says what a completion completes.
type Opcode uint8

const (
	OpSend Opcode = iota + 1
	OpWrite
	OpRecv
	OpExported // no work request: a region of the peer has arrived, RKey says which
	OpPort     // no work request, no queue pair: the device's port went up or down
)

func (o Opcode) String() string {
	switch o {
	case OpSend:
		return "send"
	case OpWrite:
		return "write"
	case OpRecv:
		return "recv"
	case OpExported:
		return "exported"
	case OpPort:
		return "port"
	}
	return "unknown"
}

// Status is how a work request ended. After anything but StatusOK the queue pair is in ERR.
type Status uint8

const (
	StatusOK          Status = iota
	StatusFlushed            // the queue pair failed first
	StatusUnreachable        // no answer: transport retry counter exceeded
	StatusAccess             // remote access error: RKey or range
	StatusLength             // local length error: the message does not fit the buffer
)

func (s Status) String() string {
	switch s {
	case StatusOK:
		return "ok"
	case StatusFlushed:
		return "flushed"
	case StatusUnreachable:
		return "unreachable"
	case StatusAccess:
		return "remote access error"
	case StatusLength:
		return "length error"
	}
	return "unknown"
}

// Completion is one entry of a completion queue.
type Completion struct {
	ID     WRID
	QPN    roce.QPN
	Op     Opcode
	Status Status
	Len    int       // OpRecv: bytes in the buffer
	RKey   roce.RKey // OpExported
}

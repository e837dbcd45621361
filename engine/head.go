package engine

import (
	"structs"

	"libsmcr/abi/smc"
)

// HeadSize is the size of a Head.
const HeadSize = 256

// Flags of a Head.
const (
	WriterDone   uint32 = 1 // WFlags: the writer has shut down sending: "sending done" of CDC, RFC 7609 §4.8
	WriterClosed uint32 = 2 // WFlags: the writer's last holder closed: PeerConnectionClosed
	Urgent       uint32 = 4 // WFlags: Urg, set before Prod, is the position behind the last urgent byte: "urgent present" of CDC
	UrgentComing uint32 = 8 // WFlags: urgent data waits for room: "urgent pending" of CDC
	ReaderClosed uint32 = 1 // RFlags: the reader's last holder closed
)

// Head is the head of one RMBE: `struct rmbe_head` of hooks/shim.h, which says what each field is for. It lies in the
// memory of the side that reads the element, and the other side maps it: every access is atomic, and what the other
// side may have written is believed only as far as it can do no harm. This package writes the token when an element
// is given out, and the two closed flags at the end.
type Head struct {
	_ structs.HostLayout

	// written by the writer, read by the reader
	Prod   uint64 // +checkatomic
	WFlags uint32 // +checkatomic
	WCPU   uint32
	Urg    uint64 // +checkatomic
	WTag   uint32
	_      [9]uint32

	// written by the reader, read by the writer
	Cons uint64 // +checkatomic
	RCPU uint32
	_    [13]uint32

	// armed by the reader, cleared by the writer; and what the reader seldom changes
	RArm   uint64
	RFlags uint32 // +checkatomic
	Token  uint32 // +checkatomic
	RTag   uint32
	RWakes uint32
	_      [10]uint32

	// armed by the writer, cleared by the reader
	WArm   uint64
	WWakes uint32
	_      [13]uint32
}

// MarkClosed sets the closed flags of a connection: nobody on this side will write into the peer's element or read
// from the local one. It is what Conn.Close does, for the last process that holds a connection which another process
// established.
func MarkClosed(localHead, peerHead []byte) {
	headAt(localHead).setReaderClosed()
	headAt(peerHead).setWriterClosed()
}

func (h *Head) token() smc.AlertToken { return smc.AlertToken(h.loadToken()) }

package roce

import (
	"encoding/binary"
	"fmt"
)

const (
	rethVAddr = 0
	rethRKey  = 8
	rethLen   = 12
	RETHSize  = 16
)

// RETH is the RDMA extended transport header: where a WRITE goes. It is in the first packet of the message only.
//
//	 0 8  virtual address
//	 8 4  RKey
//	12 4  length of the whole message
//
// The accessors are good as soon as Valid is true.
type RETH []byte

// Valid reports whether all of the header is there.
func (h RETH) Valid() bool { return len(h) >= RETHSize }

func (h RETH) VAddr() VAddr   { return VAddr(binary.BigEndian.Uint64(h[rethVAddr:])) }
func (h RETH) RKey() RKey     { return RKey(binary.BigEndian.Uint32(h[rethRKey:])) }
func (h RETH) Length() uint32 { return binary.BigEndian.Uint32(h[rethLen:]) }

func (h RETH) String() string {
	return fmt.Sprintf("vaddr=%s rkey=%s len=%d", h.VAddr(), h.RKey(), h.Length())
}

// RETHFields is what a sender puts into a RETH.
type RETHFields struct {
	VAddr  VAddr
	RKey   RKey
	Length uint32
}

// Fields returns the header as a struct.
func (h RETH) Fields() RETHFields { return RETHFields{h.VAddr(), h.RKey(), h.Length()} }

// Append writes the 16 bytes.
func (f RETHFields) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(f.VAddr))
	b = binary.BigEndian.AppendUint32(b, uint32(f.RKey))
	return binary.BigEndian.AppendUint32(b, f.Length)
}

package host

import (
	"encoding/binary"
	"structs"
)

// EngineState is what became of the engine of a process.
type EngineState uint32

const (
	Cold EngineState = iota
	Starting
	Ready
	Dead // not startable, see the reason
)

var engineWords = []string{"cold", "starting", "ready", "dead"}

func (e EngineState) String() string { return name(engineWords, uint32(e)) }

const (
	// ProcMagic starts a process page: "SMCR".
	ProcMagic = 0x52434d53
	// SlabBlocks is by how many blocks a page file grows.
	SlabBlocks = 64
	// BlocksOffset is where the blocks begin: behind the first page of the file.
	BlocksOffset = 4096
)

// ProcPage is the head of a process's file in the run directory (struct proc_page).
type ProcPage struct {
	_            structs.HostLayout
	Magic        uint32
	ABI          uint32
	PID          uint32
	NBlocks      uint32 // blocks that exist in the file
	Start        uint64 // field 22 of /proc/PID/stat: with PID the identity of the process
	Comm         [16]byte
	Engine       EngineState
	EngineReason Reason
	RingBytes    uint64 // memory promised to rings
	SMCConns     uint64 // connections that ever reached Active
	TCPConns     uint64 // decided for TCP
	TxBytes      uint64 // SMC-R bytes of connections that ended
	RxBytes      uint64
	Fallbacks    [64]uint64 // by Reason
}

// PageSize is the size of a ProcPage.
const PageSize = 600

// Decode reads the head of a page file. It judges nothing: the reader looks at Magic and ABI first.
func (p *ProcPage) Decode(b []byte) error {
	_, err := binary.Decode(b, binary.LittleEndian, p)
	return err
}

// Append adds the head as C lays it out.
func (p *ProcPage) Append(b []byte) []byte {
	b, err := binary.Append(b, binary.LittleEndian, p)
	if err != nil {
		panic(err) // only for a type without a fixed size
	}
	return b
}

// Command returns the name of the process as the kernel shows it.
func (p *ProcPage) Command() string { return cString(p.Comm[:]) }

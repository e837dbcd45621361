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
	Magic        uint32      `c:"magic"`
	ABI          uint32      `c:"abi"`
	PID          uint32      `c:"pid"`
	NBlocks      uint32      `c:"nblocks"` // blocks that exist in the file
	Start        uint64      `c:"start"`   // field 22 of /proc/PID/stat: with PID the identity of the process
	Comm         [16]byte    `c:"comm"`
	Engine       EngineState `c:"engine"`
	EngineReason Reason      `c:"engine_reason"`
	RingBytes    uint64      `c:"ring_bytes"` // memory promised to rings
	SMCConns     uint64      `c:"smc_conns"`  // connections that ever reached Active
	TCPConns     uint64      `c:"tcp_conns"`  // decided for TCP
	TxBytes      uint64      `c:"tx_bytes"`   // SMC-R bytes of connections that ended
	RxBytes      uint64      `c:"rx_bytes"`
	Fallbacks    [64]uint64  `c:"fallbacks"` // by Reason
	PIDNS        uint32      `c:"pidns"`     // inode of the pid namespace that PID belongs to, 0 = unknown
	Held         uint32      `c:"held"`      // 1 = as long as the process lives its mapping holds a shared flock on the file
}

// PageSize is the size of a ProcPage.
const PageSize = 608

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

package host

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"structs"
)

// ConnState is where a connection stands between accept or connect and its end.
type ConnState uint32

const (
	Free     ConnState = iota
	Accepted           // server: accepted, not used yet
	Offered            // client: offer in the registry, not claimed yet
	CLC                // claimed: CLC and LLC handshake under way
	Active             // SMC-R carries the bytes
	Flush              // falling back: staged bytes go out over TCP first
	TCP                // plain TCP
)

var stateWords = []string{"free", "accepted", "offered", "clc", "active", "flush", "tcp"}

func (s ConnState) String() string { return name(stateWords, uint32(s)) }

// Flags are facts about a connection; each is set once.
type Flags uint32

const (
	ShutRD    Flags = 1 << iota // the program shut down reading
	ShutWR                      // the program shut down writing
	FIN                         // the peer's FIN was seen
	Gone                        // nobody at the other end reads any more
	Reset                       // TCP would have shown RST
	NonBlock                    // O_NONBLOCK of the open file description
	Timeo                       // the receive and send timeouts are known
	Punched                     // the tx ring's pages were given back
	StageFull                   // a sender waits for staging to empty
	Broken                      // the peer broke the protocol
)

var flagWords = []string{"shut-rd", "shut-wr", "fin", "gone", "reset", "nonblock", "timeo", "punched", "stage-full", "broken"}

func (f Flags) String() string {
	var set []string
	for i := range uint32(32) {
		switch bit := Flags(1) << i; {
		case f&bit == 0:
		case i < uint32(len(flagWords)):
			set = append(set, flagWords[i])
		default:
			set = append(set, name(nil, uint32(bit)))
		}
	}
	return strings.Join(set, "|")
}

// Role is which end of the TCP connection we are.
type Role uint32

const (
	Client Role = 0
	Server Role = 1
)

var roleWords = []string{"client", "server"}

func (r Role) String() string { return name(roleWords, uint32(r)) }

// Address families as Linux numbers them: a block outlives the process that wrote it, and this package imports nothing of it.
const (
	afInet  = 2
	afInet6 = 10
)

// BlockSize is the size of one block.
const BlockSize = 512

// Block is the part of a connection that its process shares with forked children and shows to tools (struct block).
type Block struct {
	_          structs.HostLayout
	State      ConnState
	Flags      Flags
	Gen        uint32
	Role       Role
	Reason     Reason
	Diagnosis  uint32 // CLC Decline code (RFC 7609 §A.2.5), 0 = none
	SoError    int32
	Procs      uint32 // processes that hold it
	Lock       uint32 // lock words: the owner's thread id, bit 31 = somebody waits
	RxLock     uint32
	TxLock     uint32
	Pad0       uint32
	Arm        uint64 // who waits for a change of state
	Cookie     uint64 // SO_COOKIE of our TCP socket
	PeerCookie uint64
	StageLen   uint32
	StageDone  uint32
	RcvTimeoUS int64
	SndTimeoUS int64
	RcvLowat   uint32
	Pad1       uint32
	RxSize     uint64 // ring sizes
	TxSize     uint64
	RxToken    uint32 // alert tokens: ours, the peer's
	TxToken    uint32
	RMB        uint32
	RMBE       uint32 // element of RMB, from 1
	Peer       uint32
	LinkGroup  uint32
	TxBytes    uint64 // over SMC-R
	RxBytes    uint64
	FD         int32
	PID        uint32
	Family     uint16
	LocalPort  uint16
	PeerPort   uint16
	Pad2       uint16
	LocalAddr  [16]byte // v4 in the first four bytes
	PeerAddr   [16]byte
	Provider   [16]byte
	SinceNS    uint64 // CLOCK_MONOTONIC
	Pad3       [280]byte
}

// Decode reads a block from the first BlockSize bytes of a page file's block.
func (b *Block) Decode(p []byte) error {
	_, err := binary.Decode(p, binary.LittleEndian, b)
	return err
}

// Append adds the block as C lays it out.
func (b *Block) Append(p []byte) []byte {
	p, err := binary.Append(p, binary.LittleEndian, b)
	if err != nil {
		panic(err) // only for a type without a fixed size
	}
	return p
}

// Local returns the address of our end; it is not valid while the process has not written it.
func (b *Block) Local() netip.AddrPort { return addrPort(b.Family, b.LocalAddr, b.LocalPort) }

// PeerEnd returns the address of the other end, as Local.
func (b *Block) PeerEnd() netip.AddrPort { return addrPort(b.Family, b.PeerAddr, b.PeerPort) }

// ProviderName returns the name of the provider, "" before there is one.
func (b *Block) ProviderName() string { return cString(b.Provider[:]) }

func addrPort(family uint16, a [16]byte, port uint16) netip.AddrPort {
	switch family {
	case afInet:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[:4])), port)
	case afInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a), port)
	}
	return netip.AddrPort{}
}

// cString is the text up to the first NUL, or all of it.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

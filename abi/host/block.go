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
	ShutLater                   // the program shut down writing before the decision
	Lost                        // established, and another image has the socket and not the rings
	Require                     // SMC-R, or the connection fails
)

var flagWords = []string{"shut-rd", "shut-wr", "fin", "gone", "reset", "nonblock", "timeo", "punched", "stage-full", "broken", "shut-later", "lost", "require"}

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

// Source is who said that the peer speaks SMC-R (enum source).
type Source uint32

var sourceWords = []string{"", "kernel", "registry", "rules"}

func (s Source) String() string { return name(sourceWords, uint32(s)) }

// Address families as Linux numbers them: a block outlives the process that wrote it, and this package imports nothing of it.
const (
	AFInet  = 2
	AFInet6 = 10
)

// BlockSize is the size of one block.
const BlockSize = 512

// Block is the part of a connection that its process shares with forked children and shows to tools (struct block). The tags
// are the names in C.
type Block struct {
	_          structs.HostLayout
	State      ConnState `c:"state"`
	Flags      Flags     `c:"flags"`
	Gen        uint32    `c:"gen"`
	Role       Role      `c:"role"`
	Reason     Reason    `c:"reason"`
	Diagnosis  uint32    `c:"diagnosis"` // CLC Decline code (RFC 7609 §A.2.5), 0 = none
	SoError    int32     `c:"so_error"`
	Procs      uint32    `c:"procs"` // processes that hold it
	Lock       uint32    `c:"lock"`  // lock words: the owner's thread id, bit 31 = somebody waits
	RxLock     uint32    `c:"rx"`
	TxLock     uint32    `c:"tx"`
	Source     Source    `c:"source"`
	Arm        uint64    `c:"st"`     // who waits for a change of state
	Cookie     uint64    `c:"cookie"` // SO_COOKIE of our TCP socket
	PeerCookie uint64    `c:"peer_cookie"`
	StageLen   uint32    `c:"stage_len"`
	StageDone  uint32    `c:"stage_done"`
	RcvTimeoUS int64     `c:"rcvtimeo_us"`
	SndTimeoUS int64     `c:"sndtimeo_us"`
	RcvLowat   uint32    `c:"rcvlowat"`
	Slot       uint32    `c:"slot"` // client: its offer in the registry
	RxSize     uint64    `c:"rx_size"`
	TxSize     uint64    `c:"tx_size"`
	RxToken    uint32    `c:"rx_token"` // alert tokens: ours, the peer's
	TxToken    uint32    `c:"tx_token"`
	RMB        uint32    `c:"rmb"`
	RMBE       uint32    `c:"rmbe"` // element of RMB, from 1
	Peer       uint32    `c:"peer"`
	LinkGroup  uint32    `c:"lgr"`
	TxBytes    uint64    `c:"tx_bytes"` // over SMC-R
	RxBytes    uint64    `c:"rx_bytes"`
	FD         int32     `c:"fd"`
	PID        uint32    `c:"pid"`
	Family     uint16    `c:"family"`
	LocalPort  uint16    `c:"lport"`
	PeerPort   uint16    `c:"pport"`
	_          uint16    `c:"pad2"`
	LocalAddr  [16]byte  `c:"laddr"` // v4 in the first four bytes
	PeerAddr   [16]byte  `c:"paddr"`
	Provider   [16]byte  `c:"provider"`
	SinceNS    uint64    `c:"since_ns"` // CLOCK_MONOTONIC
	_          [280]byte // of the alignment
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
	case AFInet:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a[:4])), port)
	case AFInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a), port)
	}
	return netip.AddrPort{}
}

// cString is the text up to the first NUL, or all of it.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

package smc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"libsmcr/abi/roce"
)

// EyeCatcher is "SMCR" in EBCDIC (IBM-1047): both ends of each CLC message and the identifier of the TCP option.
var EyeCatcher = [4]byte{0xE2, 0xD4, 0xC3, 0xD9}

// Version is the SMC-R version nibble of a CLC message.
type Version uint8

const (
	V1 Version = 1 // RFC 7609
	V2 Version = 2 // routable RoCE, UEIDs; only with the Linux dialect
)

func (v Version) String() string { return fmt.Sprintf("v%d", uint8(v)) }

// PeerID names one instance of an SMC-R stack (RFC 7609 §A.2.1): two bytes of instance, six bytes of MAC. Peers key link
// groups on it, so every process, and every restart of one, needs a value of its own.
type PeerID [8]byte

// NewPeerID joins an instance number and the MAC address of one of the peer's ports.
func NewPeerID(instance uint16, mac roce.MAC) PeerID {
	var id PeerID
	binary.BigEndian.PutUint16(id[:2], instance)
	copy(id[2:], mac[:])
	return id
}

// Instance returns the first two bytes.
func (id PeerID) Instance() uint16 { return binary.BigEndian.Uint16(id[:2]) }

// MAC returns the last six bytes.
func (id PeerID) MAC() roce.MAC { return roce.MAC(id[2:]) }

// IsZero reports whether no peer ID was filled in; Linux does that when it proposes v2 only.
func (id PeerID) IsZero() bool { return id == PeerID{} }

func (id PeerID) String() string { return fmt.Sprintf("%04x-%s", id.Instance(), id.MAC()) }

// AlertToken identifies a connection to the peer that gave it out (RFC 7609 §A.2.3). 0 is never given out by Linux.
type AlertToken uint32

func (t AlertToken) String() string { return fmt.Sprintf("0x%x", uint32(t)) }

// RKey and VAddr are the verbs' own types, named here so that readers of SMC messages need only one package.
type (
	RKey  = roce.RKey
	VAddr = roce.VAddr
)

// RToken is what a writer needs to reach an RMB over one link (RFC 7609 §2.1).
type RToken struct {
	RKey  RKey
	VAddr VAddr
}

func (t RToken) String() string { return fmt.Sprintf("%s@%s", t.RKey, t.VAddr) }

// LinkNum identifies a link within its link group; the server assigns it (RFC 7609 §A.3.1).
type LinkNum uint8

func (n LinkNum) String() string { return fmt.Sprint(uint8(n)) }

// LinkUserID is the sender's own name for a link, for display only (RFC 7609 §A.3.1).
type LinkUserID uint32

func (id LinkUserID) String() string { return fmt.Sprintf("%08x", uint32(id)) }

// MaxLinks is the largest number of links in a link group that this version of the architecture knows (RFC 7609 §A.3.5).
const MaxLinks = 8

// RMBEIndex says which element of an RMB belongs to a connection. Counted from 1: the first element has index 1, and Linux
// computes the address of a write from index-1, so 0 would make it write before the buffer.
type RMBEIndex uint8

// Offset returns where the element begins inside its RMB of equal-sized elements; the index must not be 0.
func (i RMBEIndex) Offset(elementSize uint32) uint64 { return uint64(i-1) * uint64(elementSize) }

// BufSize is an RMBE size in the 4-bit notation of RFC 7609 §A.2.3: x means 2^(x+4) KiB. The RFC stops at 5 (512 KiB);
// newer Linux kernels send up to 15 (512 MiB).
type BufSize uint8

const (
	BufSize16K  BufSize = 0
	BufSize512K BufSize = 5  // the largest of RFC 7609
	BufSizeMax  BufSize = 15 // the largest that four bits can say
)

// BufSizeFor returns the smallest notation that holds n bytes, at most BufSizeMax.
func BufSizeFor(n uint32) BufSize {
	s := BufSize16K
	for s < BufSizeMax && s.Bytes() < n {
		s++
	}
	return s
}

// Bytes returns the size of the RMBE, eye catcher included; only the low four bits count.
func (s BufSize) Bytes() uint32 { return 1 << (14 + s&0xF) }

func (s BufSize) String() string {
	if k := s.Bytes() >> 10; k < 1024 {
		return fmt.Sprintf("%dK", k)
	}
	return fmt.Sprintf("%dM", s.Bytes()>>20)
}

// EID is an enterprise identifier of SMC-R v2: 32 characters out of A-Z, 0-9, '.' and '-', blank padded.
type EID [32]byte

// ErrEID is returned by ParseEID for a name that cannot be an EID.
var ErrEID = errors.New("smc: EID must be 1 to 32 characters of A-Z 0-9 . -, the first a letter or digit, without \"..\"")

// ParseEID checks a name and pads it; lower case becomes upper case.
func ParseEID(name string) (EID, error) {
	var e EID
	name = strings.ToUpper(name)
	if name == "" || len(name) > len(e) || strings.Contains(name, "..") || !alnum(name[0]) {
		return e, ErrEID
	}
	for i := range e {
		e[i] = ' '
	}
	for i := range len(name) {
		if c := name[i]; !alnum(c) && c != '.' && c != '-' {
			return EID{}, ErrEID
		}
		e[i] = name[i]
	}
	return e, nil
}

func alnum(c byte) bool { return 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' }

func (e EID) String() string { return printable(e[:]) }

// printable returns blank-padded ASCII without its padding; what is not printable becomes '?', so that a peer cannot put
// control characters into a trace.
func printable(b []byte) string {
	s := strings.TrimRight(string(b), " \x00")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// Hostname is the blank-padded host name of the first-contact extension of SMC-R v2.
type Hostname [32]byte

// NewHostname cuts or pads a name to 32 characters.
func NewHostname(name string) Hostname {
	var h Hostname
	for i := copy(h[:], name); i < len(h); i++ {
		h[i] = ' '
	}
	return h
}

func (h Hostname) String() string { return printable(h[:]) }

func hex8(v uint8) string { return fmt.Sprintf("0x%02x", v) }

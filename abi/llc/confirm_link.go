package llc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// Offsets of CONFIRM LINK.
const (
	clMAC      = 4
	clGID      = 10
	clQPN      = 26
	clLink     = 29
	clUserID   = 30
	clMaxLinks = 34
	clMaxConns = 35

	// flagNoEyeCatcher are the two bits of which Linux requires at least one and sends both.
	flagNoEyeCatcher = 0x03
)

// ConfirmLink is CONFIRM LINK, RFC 7609 §A.3.1, Figure 31; 44 bytes. It flows over the link that it confirms.
//
//	 0  1  type 1
//	 1  1  length 44
//	 2  1  reserved
//	 3  1  R, 5 reserved, 2 "no eye catcher" (reserved in the RFC)
//	 4  6  sender's MAC
//	10 16  sender's GID
//	26  3  sender's QP number
//	29  1  link number
//	30  4  sender's link user ID
//	34  1  max links
//	35  1  reserved; SMC-R v2.1: max connections
//	36  8  reserved
type ConfirmLink struct {
	Version      smc.Version
	Reply        bool
	NoEyeCatcher bool // flags 0x03: the sender's RMBEs have no eye catcher
	MAC          roce.MAC
	GID          roce.GID
	QPN          roce.QPN
	Link         smc.LinkNum
	UserID       smc.LinkUserID
	MaxLinks     uint8
	MaxConns     uint8 // v2 only
}

// Dialect says what the sender of this message speaks: the flag is how a Linux peer makes itself known.
func (m ConfirmLink) Dialect() smc.Dialect {
	if m.NoEyeCatcher {
		return smc.Linux
	}
	return smc.RFC
}

func (m ConfirmLink) Head() Header {
	return Header{Type: TypeConfirmLink, Version: versionOf(m.Version), Reply: m.Reply}
}

// Decode reads the message. The two low flag bits are told in both dialects, since they are what tells the dialects apart.
func (m *ConfirmLink) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeConfirmLink)
	if err != nil {
		return err
	}
	*m = ConfirmLink{
		Version:      h.Version,
		Reply:        h.Reply,
		NoEyeCatcher: p[offFlags]&flagNoEyeCatcher != 0,
		MAC:          roce.MAC(p[clMAC:]),
		GID:          roce.GID(p[clGID:]),
		QPN:          roce.QPNAt(p[clQPN:]),
		Link:         smc.LinkNum(p[clLink]),
		UserID:       smc.LinkUserID(binary.BigEndian.Uint32(p[clUserID:])),
		MaxLinks:     p[clMaxLinks],
	}
	if h.Version == smc.V2 {
		m.MaxConns = p[clMaxConns]
	}
	return nil
}

func (m ConfirmLink) Append(_ smc.Dialect, b []byte) []byte {
	b, p := start(b, TypeConfirmLink, m.Version, m.Reply, Size)
	if m.NoEyeCatcher {
		p[offFlags] |= flagNoEyeCatcher
	}
	copy(p[clMAC:], m.MAC[:])
	copy(p[clGID:], m.GID[:])
	m.QPN.Put(p[clQPN:])
	p[clLink] = byte(m.Link)
	binary.BigEndian.PutUint32(p[clUserID:], uint32(m.UserID))
	p[clMaxLinks] = m.MaxLinks
	if m.Version >= smc.V2 {
		p[clMaxConns] = m.MaxConns
	}
	return b
}

func (m ConfirmLink) String() string {
	s := fmt.Sprintf("%s link=%s qpn=%s gid=%s mac=%s uid=%s maxlinks=%d", name(TypeConfirmLink, m.Version, m.Reply),
		m.Link, m.QPN, m.GID, m.MAC, m.UserID, m.MaxLinks)
	if m.Version >= smc.V2 {
		s += fmt.Sprintf(" maxconns=%d", m.MaxConns)
	}
	if m.NoEyeCatcher {
		s += " no-eyecatcher"
	}
	return s
}

package clc

import (
	"encoding/binary"
	"fmt"

	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// Offsets that Accept and Confirm share.
const (
	offGID   = 16
	offMAC   = 32
	offQPN   = 38
	offRKey  = 41
	offIndex = 45
	offToken = 46
	offSizes = 50 // high nibble RMBE size, low nibble MTU
	offVAddr = 52
	offPSN   = 61
	Size     = 68 // of Accept and Confirm, version 1

	// SMC-R v2.
	offEID      = 64
	SizeV2      = 108 // subsequent contact
	offFCE      = 104 // first-contact extension
	offOS       = 105 // high nibble OS, low nibble release
	offHostname = 108
	offMaxConns = 140
	offMaxLinks = 141
	offFeatures = 142
	offVendor   = 144
	endFCE      = 156
	offGIDCount = 156 // Confirm only
	offGIDs     = 160

	flagDirect = 0x80
)

// Endpoint is what Accept and Confirm tell about their sender: bytes 8 to 63, the same in both and in both versions.
//
//	 8  8  peer ID
//	16 16  GID
//	32  6  MAC
//	38  3  QP number
//	41  4  RMB RKey
//	45  1  RMBE index, from 1
//	46  4  RMBE alert token
//	50  1  4 RMBE size, 4 MTU
//	51  1  reserved
//	52  8  RMB virtual address
//	60  1  reserved
//	61  3  initial packet sequence number
type Endpoint struct {
	PeerID smc.PeerID
	GID    roce.GID
	MAC    roce.MAC
	QPN    roce.QPN
	RKey   smc.RKey
	Index  smc.RMBEIndex
	Token  smc.AlertToken
	Size   smc.BufSize
	MTU    roce.MTU
	VAddr  smc.VAddr
	PSN    roce.PSN
}

// RToken returns RKey and virtual address of the RMB.
func (e Endpoint) RToken() smc.RToken { return smc.RToken{RKey: e.RKey, VAddr: e.VAddr} }

func (e *Endpoint) decode(p []byte) {
	*e = Endpoint{
		PeerID: smc.PeerID(p[offPeerID:]),
		GID:    roce.GID(p[offGID:]),
		MAC:    roce.MAC(p[offMAC:]),
		QPN:    roce.QPNAt(p[offQPN:]),
		RKey:   smc.RKey(binary.BigEndian.Uint32(p[offRKey:])),
		Index:  smc.RMBEIndex(p[offIndex]),
		Token:  smc.AlertToken(binary.BigEndian.Uint32(p[offToken:])),
		Size:   smc.BufSize(p[offSizes] >> 4),
		MTU:    roce.MTU(p[offSizes] & 0xF),
		VAddr:  smc.VAddr(binary.BigEndian.Uint64(p[offVAddr:])),
		PSN:    roce.PSNAt(p[offPSN:]),
	}
}

func (e Endpoint) put(p []byte) {
	copy(p[offPeerID:], e.PeerID[:])
	copy(p[offGID:], e.GID[:])
	copy(p[offMAC:], e.MAC[:])
	e.QPN.Put(p[offQPN:])
	binary.BigEndian.PutUint32(p[offRKey:], uint32(e.RKey))
	p[offIndex] = byte(e.Index)
	binary.BigEndian.PutUint32(p[offToken:], uint32(e.Token))
	p[offSizes] = byte(e.Size)<<4 | byte(e.MTU)&0xF
	binary.BigEndian.PutUint64(p[offVAddr:], uint64(e.VAddr))
	e.PSN.Put(p[offPSN:])
}

// checkMTU is the only check of an enumerated value: RFC 7609 §A.2.3 wants it in the first contact exchange only.
func (e Endpoint) checkMTU(t Type) error {
	if e.MTU.Valid() {
		return nil
	}
	return &EnumError{t, "MTU", uint8(e.MTU)}
}

func (e Endpoint) String() string {
	return fmt.Sprintf("peer=%s gid=%s mac=%s qpn=%s rtoken=%s idx=%d token=%s size=%s mtu=%s psn=%s",
		e.PeerID, e.GID, e.MAC, e.QPN, e.RToken(), e.Index, e.Token, e.Size, e.MTU, e.PSN)
}

// OS is the operating system that the first-contact extension and a version 2 Decline name.
type OS uint8

const (
	OSzOS   OS = 1
	OSLinux OS = 2
	OSAIX   OS = 3
)

func (o OS) String() string {
	switch o {
	case OSzOS:
		return "z/OS"
	case OSLinux:
		return "Linux"
	case OSAIX:
		return "AIX"
	}
	return fmt.Sprintf("0x%x", uint8(o))
}

// FirstContactExt is the first-contact extension of SMC-R v2, behind the EID in an Accept or Confirm with the F bit.
//
//	104  1  0x80: direct, no gateway in between
//	105  1  4 OS, 4 release
//	106  2  reserved
//	108 32  host name, blank padded
//	140  1  max connections
//	141  1  max links
//	142  2  features
//	144  4  vendor options
//	148  8  reserved
type FirstContactExt struct {
	Direct   bool
	OS       OS
	Release  uint8 // 0 spares all of the negotiation below
	Hostname smc.Hostname
	MaxConns uint8
	MaxLinks uint8 // 1 with a release ≥ 1: no second link
	Features uint16
	Vendor   uint32
}

func (x *FirstContactExt) decode(p []byte) {
	*x = FirstContactExt{
		Direct:   p[offFCE]&flagDirect != 0,
		OS:       OS(p[offOS] >> 4),
		Release:  p[offOS] & 0xF,
		Hostname: smc.Hostname(p[offHostname:]),
		MaxConns: p[offMaxConns],
		MaxLinks: p[offMaxLinks],
		Features: binary.BigEndian.Uint16(p[offFeatures:]),
		Vendor:   binary.BigEndian.Uint32(p[offVendor:]),
	}
}

func (x FirstContactExt) put(p []byte) {
	if x.Direct {
		p[offFCE] = flagDirect
	}
	p[offOS] = byte(x.OS)<<4 | x.Release&0xF
	copy(p[offHostname:], x.Hostname[:])
	p[offMaxConns], p[offMaxLinks] = x.MaxConns, x.MaxLinks
	binary.BigEndian.PutUint16(p[offFeatures:], x.Features)
	binary.BigEndian.PutUint32(p[offVendor:], x.Vendor)
}

func (x FirstContactExt) String() string {
	return fmt.Sprintf("direct=%t os=%s release=%d host=%q maxconns=%d maxlinks=%d features=0x%x",
		x.Direct, x.OS, x.Release, x.Hostname, x.MaxConns, x.MaxLinks, x.Features)
}

package clc

import "fmt"

// DeclineCode is the peer diagnosis information of a Decline. RFC 7609 §A.2.5 leaves the values to each implementation; these
// are the ones that Linux sends and its tools show.
type DeclineCode uint32

const (
	DeclineMemory       DeclineCode = 0x01010000
	DeclineConfirmLink  DeclineCode = 0x02010000 // also: the link could not be confirmed
	DeclineAddLink      DeclineCode = 0x02020000
	DeclineConfig       DeclineCode = 0x03000000
	DeclinePeerNoSMC    DeclineCode = 0x03010000 // no TCP option; never on the wire
	DeclineIPsec        DeclineCode = 0x03020000
	DeclineNoDevice     DeclineCode = 0x03030000
	DeclineNoISM        DeclineCode = 0x03030001
	DeclineNoRDMA       DeclineCode = 0x03030002
	DeclineNoISMv2      DeclineCode = 0x03030003
	DeclineNoV2Ext      DeclineCode = 0x03030004
	DeclineNoV2DExt     DeclineCode = 0x03030005
	DeclineNoSEID       DeclineCode = 0x03030006
	DeclineNoV2DDevice  DeclineCode = 0x03030007
	DeclineNoUEID       DeclineCode = 0x03030008
	DeclineRelease      DeclineCode = 0x03030009
	DeclineMaxConns     DeclineCode = 0x0303000a
	DeclineMaxLinks     DeclineCode = 0x0303000b
	DeclineMode         DeclineCode = 0x03040000
	DeclineEyeCatcher   DeclineCode = 0x03050000
	DeclineSockopt      DeclineCode = 0x03060000
	DeclinePrefix       DeclineCode = 0x03070000
	DeclineVLAN         DeclineCode = 0x03080000
	DeclineVLANRegister DeclineCode = 0x03090000
	DeclineNoActiveLink DeclineCode = 0x030a0000
	DeclineNoServerLink DeclineCode = 0x030b0000
	DeclineVersion      DeclineCode = 0x030c0000
	DeclineMaxDMB       DeclineCode = 0x030d0000
	DeclineNoRoute      DeclineCode = 0x030e0000
	DeclineIndirect     DeclineCode = 0x030f0000
	DeclineSync         DeclineCode = 0x04000000 // sent with the S bit
	DeclinePeer         DeclineCode = 0x05000000 // the peer declined; never on the wire
	DeclineInternal     DeclineCode = 0x09990000
	DeclineRToken       DeclineCode = 0x09990001
	DeclineLinkFailed   DeclineCode = 0x09990002
	DeclineRMBRegister  DeclineCode = 0x09990003 // also: CONFIRM RKEY failed
)

// declineText is in the order of the constants.
var declineText = map[DeclineCode]string{
	DeclineMemory:       "out of memory",
	DeclineConfirmLink:  "timeout confirm link",
	DeclineAddLink:      "timeout add link",
	DeclineConfig:       "configuration error",
	DeclinePeerNoSMC:    "peer does not support SMC",
	DeclineIPsec:        "IPsec",
	DeclineNoDevice:     "no SMC devices",
	DeclineNoISM:        "no ISM device",
	DeclineNoRDMA:       "no RDMA device",
	DeclineNoISMv2:      "no ISMv2 support",
	DeclineNoV2Ext:      "no SMCv2 extension",
	DeclineNoV2DExt:     "no SMC-Dv2 extension",
	DeclineNoSEID:       "no SEID",
	DeclineNoV2DDevice:  "no SMC-Dv2 device",
	DeclineNoUEID:       "no UEID",
	DeclineRelease:      "release mismatch",
	DeclineMaxConns:     "max connections mismatch",
	DeclineMaxLinks:     "max links mismatch",
	DeclineMode:         "mode mismatch",
	DeclineEyeCatcher:   "eyecatcher in RMBE",
	DeclineSockopt:      "sockopt unsupported",
	DeclinePrefix:       "prefix/subnet mismatch",
	DeclineVLAN:         "VLAN id error",
	DeclineVLANRegister: "VLAN register error",
	DeclineNoActiveLink: "no active link",
	DeclineNoServerLink: "server link not found",
	DeclineVersion:      "version mismatch",
	DeclineMaxDMB:       "max DMBs",
	DeclineNoRoute:      "v2 no route",
	DeclineIndirect:     "v2 direct/indirect mismatch",
	DeclineSync:         "sync error",
	DeclinePeer:         "peer declined",
	DeclineInternal:     "internal error",
	DeclineRToken:       "rtoken error",
	DeclineLinkFailed:   "link failed",
	DeclineRMBRegister:  "RMB registration",
}

// Text returns the words for a code, "" if it has none.
func (c DeclineCode) Text() string { return declineText[c] }

// String is the number as the tools show it, with words if there are any.
func (c DeclineCode) String() string {
	if t := c.Text(); t != "" {
		return fmt.Sprintf("0x%08x (%s)", uint32(c), t)
	}
	return fmt.Sprintf("0x%08x", uint32(c))
}

// DeclineError is a Decline as an error: one that arrived (Remote), or the reason why we are going to send one.
type DeclineError struct {
	Code      DeclineCode
	OutOfSync bool
	Remote    bool
}

func (e *DeclineError) Error() string {
	who := "declined"
	if e.Remote {
		who = "peer declined"
	}
	if e.OutOfSync {
		return fmt.Sprintf("clc: %s, out of sync: %s", who, e.Code)
	}
	return fmt.Sprintf("clc: %s: %s", who, e.Code)
}

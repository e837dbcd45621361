package llc

import (
	"fmt"

	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

// Offsets of REQUEST ADD LINK.
const (
	raCount = 24
	raGIDs  = 28
)

// MaxGIDs is how many GIDs one REQUEST ADD LINK can name.
const MaxGIDs = 255

// ReqAddLink is REQUEST ADD LINK of SMC-R v2, not in RFC 7609: the client asks the server for an ADD LINK and lists the
// GIDs it can be reached at. 28+16·n bytes, at least 44.
//
//	 0    1  type 0x25
//	 1    2  length, in the sender's byte order
//	 3    1  R, 7 reserved
//	 4   20  reserved
//	24    1  number of GIDs
//	25    3  reserved
//	28 16·n  GIDs
type ReqAddLink struct {
	Reply bool
	GIDs  []roce.GID // at most MaxGIDs
}

func (m ReqAddLink) Head() Header {
	return Header{Type: TypeReqAddLink, Version: smc.V2, Reply: m.Reply}
}

func (m *ReqAddLink) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeReqAddLink)
	if err != nil {
		return err
	}
	n := int(p[raCount])
	if raGIDs+n*len(roce.GID{}) > len(p) {
		return &Error{TypeReqAddLink, fmt.Sprintf("%d GIDs in %d bytes", n, len(p))}
	}
	*m = ReqAddLink{Reply: h.Reply}
	if n > 0 {
		m.GIDs = make([]roce.GID, n)
		for i := range m.GIDs {
			m.GIDs[i] = roce.GID(p[raGIDs+i*len(roce.GID{}):])
		}
	}
	return nil
}

// Append writes the message; more than MaxGIDs GIDs cannot be told and are cut off.
func (m ReqAddLink) Append(_ smc.Dialect, b []byte) []byte {
	gids := m.GIDs[:min(len(m.GIDs), MaxGIDs)]
	b, p := start(b, TypeReqAddLink, smc.V2, m.Reply, max(Size, raGIDs+len(gids)*len(roce.GID{})))
	p[raCount] = byte(len(gids))
	for i, g := range gids {
		copy(p[raGIDs+i*len(g):], g[:])
	}
	return b
}

func (m ReqAddLink) String() string {
	return fmt.Sprintf("%s gids=%v", name(TypeReqAddLink, smc.V2, m.Reply), m.GIDs)
}

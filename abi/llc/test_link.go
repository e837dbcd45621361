package llc

import (
	"fmt"

	"libsmcr/abi/smc"
)

// tlData is the offset of TEST LINK's user data.
const tlData = 4

// TestLink is TEST LINK, RFC 7609 §A.3.8, Figure 40; 44 bytes. The reply echoes the user data.
//
//	 0  1  type 7
//	 1  1  length 44
//	 2  1  reserved
//	 3  1  R, 7 reserved
//	 4 16  user data
//	20 24  reserved
type TestLink struct {
	Version  smc.Version
	Reply    bool
	UserData [16]byte
}

func (m TestLink) Head() Header {
	return Header{Type: TypeTestLink, Version: versionOf(m.Version), Reply: m.Reply}
}

func (m *TestLink) Decode(d smc.Dialect, b []byte) error {
	h, p, err := open(d, b, TypeTestLink)
	if err != nil {
		return err
	}
	*m = TestLink{Version: h.Version, Reply: h.Reply, UserData: [16]byte(p[tlData:])}
	return nil
}

func (m TestLink) Append(_ smc.Dialect, b []byte) []byte {
	b, p := start(b, TypeTestLink, m.Version, m.Reply, Size)
	copy(p[tlData:], m.UserData[:])
	return b
}

func (m TestLink) String() string {
	return fmt.Sprintf("%s data=%x", name(TypeTestLink, m.Version, m.Reply), m.UserData)
}

package llc

import (
	"testing"

	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
)

func TestReqAddLinkGolden(t *testing.T) {
	checkGolden(t, "v2-req-add-link-req-from_B", ReqAddLink{GIDs: []roce.GID{mapped(t, "02"), mapped(t, "0c")}}, "3:7f 4-23 25-27")
}

func TestReqAddLinkSizes(t *testing.T) {
	for n, size := range map[int]int{0: 44, 1: 44, 2: 60, 255: 28 + 16*255, 300: 28 + 16*255} {
		m := ReqAddLink{Reply: true, GIDs: make([]roce.GID, n)}
		b := m.Append(smc.Linux, nil)
		if len(b) != size || int(b[24]) != min(n, 255) || b[3] != 0x80 {
			t.Errorf("%d GIDs: %d bytes, count %d", n, len(b), b[24])
		}
		if err := m.Decode(smc.Linux, b); err != nil || len(m.GIDs) != min(n, 255) || !m.Reply {
			t.Errorf("%d GIDs: %d, %v", n, len(m.GIDs), err)
		}
		if n > 1 {
			b[24]++ // one more than there is
			if n < 255 && m.Decode(smc.Linux, b) == nil {
				t.Errorf("%d GIDs pass as %d", n, n+1)
			}
		}
	}
	var m ReqAddLink
	if m.Decode(smc.RFC, ReqAddLink{}.Append(smc.Linux, nil)) == nil {
		t.Error("the RFC does not know this message")
	}
}

func TestReqAddLinkString(t *testing.T) {
	if s := (ReqAddLink{GIDs: []roce.GID{mapped(t, "02")}}).String(); s != "REQ ADD LINK v2 req gids=[::ffff:10.99.0.2]" {
		t.Error(s)
	}
}

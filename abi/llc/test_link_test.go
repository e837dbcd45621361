package llc

import (
	"testing"

	"libsmcr/abi/smc"
)

// figure40 is RFC 7609 §A.3.8, Figure 40.
const figure40 = `
	07 2c 00 80              # type, length, reserved, R
	11121314 15161718 191a1b1c 1d1e1f20 # user data
	00000000 00000000 00000000 00000000 00000000 00000000`

func TestTestLinkFigure40(t *testing.T) {
	checkFigure(t, figure40, TestLink{
		Version: smc.V1, Reply: true,
		UserData: [16]byte{0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20},
	}, "2 3:7f 20-43")
}

func TestTestLinkGoldens(t *testing.T) {
	for _, from := range []string{"A", "B"} {
		checkGolden(t, "v1-test-link-req-from_"+from, TestLink{Version: smc.V1}, "2 3:7f 20-43")
		checkGolden(t, "v1-test-link-rsp-from_"+from, TestLink{Version: smc.V1, Reply: true}, "2 3:7f 20-43")
		checkGolden(t, "v2-test-link-req-from_"+from, TestLink{Version: smc.V2}, "3:7f 20-43")
		checkGolden(t, "v2-test-link-rsp-from_"+from, TestLink{Version: smc.V2, Reply: true}, "3:7f 20-43")
	}
}

func TestTestLinkString(t *testing.T) {
	if s := (TestLink{Reply: true, UserData: [16]byte{0xab}}).String(); s != "TEST LINK rsp data=ab000000000000000000000000000000" {
		t.Error(s)
	}
}

package llc

import (
	"testing"

	"libsmcr/abi/smc"
)

// figure35 is RFC 7609 §A.3.4, Figure 35.
const figure35 = `
	04 2c 00 e0              # type, length, reserved, R A O
	11 21222324              # link number, reason code
	00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 000000`

func TestDeleteLinkFigure35(t *testing.T) {
	checkFigure(t, figure35, DeleteLink{Version: smc.V1, Reply: true, All: true, Orderly: true, Link: 0x11, Reason: 0x21222324}, "2 3:1f 9-43")
}

func TestDeleteLinkGoldens(t *testing.T) {
	for name, want := range map[string]DeleteLink{
		"delete-link-req-flags_20-reason_00010000-from_A": {Orderly: true, Link: 4, Reason: ReasonLostPath},
		"delete-link-req-flags_20-reason_00010000-from_B": {Orderly: true, Link: 6, Reason: ReasonLostPath},
		"delete-link-req-flags_20-reason_00050000-from_A": {Orderly: true, Link: 3, Reason: ReasonAsymmetricUnused},
		"delete-link-req-flags_40-reason_00020000-from_A": {All: true, Reason: ReasonOperator},
		"delete-link-req-flags_40-reason_00020000-from_B": {All: true, Reason: ReasonOperator},
		"delete-link-req-flags_60-reason_00020000-from_A": {All: true, Orderly: true, Reason: ReasonOperator},
		"delete-link-rsp-flags_a0-reason_00000000-from_B": {Reply: true, Orderly: true, Link: 3},
		"delete-link-rsp-flags_a0-reason_00100000-from_B": {Reply: true, Orderly: true, Link: 6, Reason: ReasonUnknownLink},
	} {
		want.Version = smc.V1
		checkGolden(t, "v1-"+name, want, "2 3:1f 9-43")
		want.Version = smc.V2
		checkGolden(t, "v2-"+name, want, "3:1f 9-43")
	}
	checkGolden(t, "v1-delete-link-req-flags_40-reason_00030000-from_A", DeleteLink{Version: smc.V1, All: true, Reason: ReasonProgram}, "2 3:1f 9-43")
}

func TestDeleteLinkString(t *testing.T) {
	for want, m := range map[string]DeleteLink{
		"DELETE LINK req link=3 orderly reason: asymmetric link not needed": {Link: 3, Orderly: true, Reason: ReasonAsymmetricUnused},
		"DELETE LINK v2 rsp all reason: none":                               {Version: smc.V2, Reply: true, All: true},
		"DELETE LINK req link=1 reason: 0x00000042":                         {Link: 1, Reason: 0x42},
		"DELETE LINK req link=1 reason: lost path":                          {Link: 1, Reason: 0x00010000},
		"DELETE LINK req link=1 reason: operator":                           {Link: 1, Reason: 0x00020000},
		"DELETE LINK req link=1 reason: inactivity":                         {Link: 1, Reason: 0x00030000},
		"DELETE LINK req link=1 reason: protocol violation":                 {Link: 1, Reason: 0x00040000},
		"DELETE LINK rsp link=1 reason: unknown link":                       {Reply: true, Link: 1, Reason: 0x00100000},
		"DELETE LINK rsp link=1 reason: unknown link group":                 {Reply: true, Link: 1, Reason: 0x00200000},
	} {
		if m.String() != want {
			t.Errorf("%s, want %s", m, want)
		}
	}
}

package rules

import (
	"encoding/binary"
	"net/netip"

	"libsmcr/abi/host"
)

func (r *Rule) rows() int {
	return max(len(r.Programs), 1) * max(len(r.Peers), 1) * max(len(r.Ports), 1)
}

func (s Set) rows() (n int) {
	for i := range s {
		n += s[i].rows()
	}
	return n
}

// orAny is the list, or one value that stands for everything.
func orAny[T any](list []T) []T {
	if len(list) == 0 {
		return make([]T, 1)
	}
	return list
}

// Compile makes the table that C reads: a row for each combination of program, peer and port, so that C only compares.
func (s Set) Compile() []byte {
	head := host.Rules{Magic: host.RulesMagic, ABI: host.ABI, N: uint32(s.rows())}
	b := encode(nil, &head)
	for i := range s {
		r := &s[i]
		row := host.Rule{Use: r.Use, Roles: r.Roles, Line: uint32(r.Line), Family: 0, First: 0, Last: 0xffff}
		if r.Eager {
			row.Eager = 1
		}
		if r.Known {
			row.Known = 1
		}
		if r.Usable() {
			row.SHM = 1
		}
		for _, program := range orAny(r.Programs) {
			row.Program = [host.ProgramMax + 1]byte{}
			copy(row.Program[:], program)
			for _, ports := range orAny(r.Ports) {
				if ports != (Ports{}) {
					row.First, row.Last = ports.First, ports.Last
				}
				for _, peer := range orAny(r.Peers) {
					b = encode(b, withPeer(row, peer))
				}
			}
		}
	}
	return b
}

// Bad is the table of a file that cannot be used.
func Bad() []byte { return encode(nil, &host.Rules{Magic: host.RulesMagic, ABI: host.ABI, Bad: 1}) }

func withPeer(row host.Rule, peer netip.Prefix) *host.Rule {
	if peer.IsValid() {
		row.Family = host.AFInet6
		if peer.Addr().Is4() {
			row.Family = host.AFInet
		}
		row.Bits = uint8(peer.Bits())
		copy(row.Addr[:], peer.Addr().AsSlice())
	}
	return &row
}

func encode(b []byte, v any) []byte {
	b, err := binary.Append(b, binary.NativeEndian, v)
	if err != nil {
		panic(err) // of a type without fixed size
	}
	return b
}

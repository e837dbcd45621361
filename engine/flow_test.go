package engine

import (
	"testing"

	"libsmcr/abi/smc"
)

// The data path over RNICs that map nothing, from end to end: bytes, windows, both dialects, and the end.
func TestStreamsOverOneLink(t *testing.T) {
	for _, want := range []smc.Dialect{smc.RFC, smc.Linux} {
		t.Run(want.String(), func(t *testing.T) {
			mustSimulate(t, want.String(), simOptions{rfc: want == smc.RFC}, func(s *sim) {
				for _, size := range [][2]int{{1 << 20, 0}, {0, 300_000}, {1, 1}, {500_000, 700_000}, {0, 0}} {
					s.dial(s.hosts[0], s.hosts[1], size)
				}
				s.run(longest, s.allOver)
				for _, x := range s.ends {
					if x.outcome() != "smc" || x.got != x.peer.size {
						s.failf("%s%d: %s, got %d of %d", x.h.name, x.id, x.outcome(), x.got, x.peer.size)
					}
					if x.c.group != nil && x.c.group.dialect != want {
						s.failf("%s%d: dialect %s", x.h.name, x.id, x.c.group.dialect)
					}
				}
				if n := s.since(); n > 3700e9 {
					s.failf("took until %v: somebody waited for a timer", n)
				}
			})
		})
	}
}

package engine

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Who may import whom: no descriptors, no errno, no cgo and no provider in the engine; no SMC words in a provider.
func TestImports(t *testing.T) {
	ours := []string{
		"libsmcr/abi/cdc", "libsmcr/abi/clc", "libsmcr/abi/llc", "libsmcr/abi/roce", "libsmcr/abi/smc", "libsmcr/engine/fsm", "libsmcr/verbs",
		"github.com/rs/zerolog",
	}
	std := []string{
		"cmp", "container/heap", "encoding/binary", "errors", "fmt", "maps", "math/rand/v2", "net/netip", "slices", "strings",
		"structs", "sync/atomic", "time", "unsafe",
	}
	for pkg, more := range map[string][]string{
		"libsmcr/engine":       ours,
		"libsmcr/engine/fsm":   nil,
		"libsmcr/verbs":        {"libsmcr/abi/roce"},
		"libsmcr/verbs/simfab": {"libsmcr/abi/roce", "libsmcr/verbs"},
		"libsmcr/verbs/shm":    {"libsmcr/abi/roce", "libsmcr/verbs", "golang.org/x/sys/unix"},
	} {
		out, err := exec.Command("go", "list", "-f", `{{join .Imports "\n"}}`, pkg).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range strings.Fields(string(out)) {
			if !slices.Contains(std, i) && !slices.Contains(more, i) {
				t.Errorf("%s imports %s", pkg, i)
			}
		}
	}
}

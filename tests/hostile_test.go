package tests

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

// A peer of the same user that lies in CLC messages and datagrams and scribbles over what it shares: the server loses those
// connections and nothing else.
func TestAHostilePeerHarmsOnlyItsOwnConnections(t *testing.T) {
	underLibrary(t, func(t *testing.T, sum harness.Counts) {}, func(w *harness.World) string {
		program := w.Path("hostile")
		build := exec.Command("go", "build", "-o", program, "./hostile")
		if out, err := build.CombinedOutput(); err != nil {
			w.Fail("%v: %s", err, out)
		}
		server, port := w.Echo(harness.Command{})
		w.Hold(port, 2, "before")
		for seed := range 3 {
			said := w.Run(harness.Command{Plain: true, Args: []string{program, fmt.Sprintf("127.0.0.1:%d", port), w.RunDir(), "100", strconv.Itoa(seed)}}).OK()
			if !strings.Contains(said, "established") {
				w.Fail("no attack got as far as the rings: %s", said)
			}
			if !server.Running() {
				w.Fail("the server ended: %s", server.Wait())
			}
			w.Ask(harness.Command{}, port, 5, 100000).OK()
		}
		return ""
	})
}

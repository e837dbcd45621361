//go:build interop

package interop

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libsmcr/tests/harness"
)

// native is an ordinary program, which checks the bytes that it gets.
type native struct{}

func (native) command(role, address string, port int) string {
	if role == "serve" {
		return fmt.Sprintf("rigt-dyn srv -f tcp -n 1 -t 30 %s %d", address, port)
	}
	return fmt.Sprintf("rigt-dyn cli -f tcp -t 30 %s %d %s", address, port, native{}.echoes())
}

func (native) echoes() string { return "echo:100:3 up:300000 down:300000 bidi:100000 half:70000" }

func (native) check(t *testing.T, role, out string) {
	t.Helper()
	if !strings.Contains(out, "half:70000") {
		t.Errorf("%s", out)
	}
}

// library is the same program under libsmcr.so.
type library struct {
	connect, serve string // why its connection is TCP, in either role
}

func (library) command(role, address string, port int) string {
	return fmt.Sprintf("smcr run --report=/tmp/report -- %s; cat /tmp/report", native{}.command(role, address, port))
}

func (library) echoes() string { return native{}.echoes() }

func (l library) check(t *testing.T, role, out string) {
	t.Helper()
	said, report, _ := strings.Cut(out, "{\n")
	native{}.check(t, role, said)
	var r harness.Report
	if err := json.Unmarshal([]byte("{"+report), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	why := l.serve
	if role == "connect" {
		why = l.connect
	}
	r.Totals.PID, r.Totals.Comm = 0, ""
	if d := cmp.Diff(harness.Counts{TCP: 1, Fallbacks: map[string]int{why: 1}}, r.Totals); d != "" {
		t.Errorf("the library's report (-want +got):\n%s", d)
	}
}

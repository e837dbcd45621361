package tests

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

// connection is a row of smcr ss --json.
type connection struct {
	PID                                             int
	Comm, Local, Peer, Role, Mode, Reason, Provider string
	FD                                              int
	RMBE                                            int64
	TxBytes                                         int64 `json:"tx_bytes"`
	RxBytes                                         int64 `json:"rx_bytes"`
}

func tool(w *harness.World, args ...string) string {
	return w.Run(harness.Command{Plain: true, Args: append([]string{filepath.Join(harness.Root(), "build", "smcr")}, args...), Env: []string{"SMCR_RUN_DIR=" + w.RunDir()}}).OK()
}

func connections(w *harness.World) []connection {
	var rows []connection
	if out := tool(w, "ss", "--json"); json.Unmarshal([]byte(out), &rows) != nil {
		w.Fail("not a list of connections: %s", out)
	}
	return rows
}

func TestLiveConnectionsAreListed(t *testing.T) {
	underLibrary(t, bySMC(3*2*9), func(w *harness.World) string {
		server, port := w.Echo(harness.Command{})
		client := w.Hold(port, 3, "some text")
		rows := connections(w)
		if len(rows) != 6 {
			t.Errorf("want three connections from both sides: %+v", rows)
		}
		address := "127.0.0.1:" + strconv.Itoa(port)
		for _, r := range rows {
			mine := r.PID == server.PID() && r.Role == "server" && r.Local == address || r.PID == client.PID() && r.Role == "client" && r.Peer == address
			if !mine || r.Comm != "echo" || r.Mode != "smc" || r.Provider != "shm" || r.RMBE == 0 || r.TxBytes != 9 || r.RxBytes != 9 || r.FD < 3 {
				t.Errorf("not what is there: %+v", r)
			}
		}
		if people := tool(w, "ss"); strings.Count(people, address) != 6 {
			t.Errorf("the table for people lacks rows:\n%s", people)
		}
		return ""
	})
}

func TestAPlainConnectionIsListedWithItsReason(t *testing.T) {
	underLibrary(t, plain("peer-not-offering"), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{Plain: true})
		w.Hold(port, 1, "text")
		if rows := connections(w); len(rows) > 1 || len(rows) == 1 && (rows[0].Mode != "tcp" || rows[0].Reason != "peer-not-offering") {
			t.Errorf("%+v", rows)
		}
		return ""
	})
}

func TestRequireRefusesAPlainPeer(t *testing.T) {
	require := harness.Command{Run: []string{"--require"}}
	t.Run("server does not offer", func(t *testing.T) {
		underLibrary(t, refused(0, "peer-not-offering"), func(w *harness.World) string {
			_, port := w.Echo(harness.Command{Plain: true})
			if r := w.Ask(require, port, 1, 1000); r.Code == 0 || !strings.Contains(r.Err, "refused") {
				t.Errorf("connected all the same: %s", r)
			}
			return ""
		})
	})
	t.Run("client does not offer", func(t *testing.T) {
		underLibrary(t, refused(0, "client-not-offering"), func(w *harness.World) string {
			_, port := w.Echo(require)
			if r := w.Ask(harness.Command{Plain: true}, port, 1, 1000); r.Code == 0 || !strings.Contains(r.Err, "reset") {
				t.Errorf("served all the same: %s", r)
			}
			return ""
		})
	})
	t.Run("both offer", func(t *testing.T) {
		sameAsNative(t, bySMC(2*10*50000), func(w *harness.World) string {
			_, port := w.Echo(require)
			return w.Ask(require, port, 10, 50000).String()
		})
	})
}

func TestRunPassesOnInputOutputAndExitCodes(t *testing.T) {
	sameAsNative(t, func(*testing.T, harness.Counts) {}, func(w *harness.World) string {
		var said strings.Builder
		for _, script := range []string{"exit 0", "exit 3", "kill -9 $$", "kill -TERM $$", "cat; echo on stderr >&2", "exec 2>&-; exit 7", "trap 'echo trapped; exit 4' INT; kill -INT $$"} {
			r := w.Run(harness.Command{Args: []string{"bash", "-c", script}, Stdin: strings.NewReader("through\n")})
			fmt.Fprintf(&said, "%s: %q %q %d\n", script, r.Out, r.Err, r.Code)
		}
		return said.String()
	})
	underLibrary(t, func(*testing.T, harness.Counts) {}, func(w *harness.World) string {
		smcr := filepath.Join(harness.Root(), "build", "smcr")
		if r := w.Run(harness.Command{Plain: true, Args: []string{smcr, "run", "--", "no-such-program"}}); r.Code != 127 || r.Err == "" {
			t.Errorf("a program that is not there: %s", r)
		}
		return ""
	})
}

package hook

import (
	"net/netip"
	"os"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

const nobody, somebody = 65534, 12345

// Where the server of these tests becomes nobody. What it does before, it does as root.
var drops = []struct{ when, at, do string }{
	{"a worker, which inherits the listener", "for i", "if os.fork(): os.wait(); sys.exit()\nos.setgid(65534); os.setuid(65534)\n"},
	{"after listen", "for i", "os.setgid(65534); os.setuid(65534)\n"},
	{"a child, after accept", "    d = b", "    if os.fork(): c.close(); os.wait(); continue\n    n = 0\n    os.setgid(65534); os.setuid(65534)\n"},
	{"after the first connection", "    c.close()", "    os.setuid(65534)\n"},
	{"after listen, and is killed", "for i", "import atexit; atexit.register(os.kill, os.getpid(), 9)\nos.setgid(65534); os.setuid(65534)\n"},
}

func dropping(i, client int) func(*harness.Command, string) {
	return func(c *harness.Command, side string) {
		if side == "client" {
			c.UID = client
			return
		}
		c.Drops = nobody
		c.Args[2] = strings.Replace(server, drops[i].at, drops[i].do+drops[i].at, 1) + "    if n == 0: break\n"
	}
}

// A page and a registry belong to a user. Who becomes another one gets that one's.
func TestAServerThatChangesItsUserServesAllUsers(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	for i, d := range drops {
		for _, client := range []int{nobody, somebody} {
			sums := talk(t, s, s, netip.MustParseAddr("127.0.0.1"), dropping(i, client))
			for _, side := range []string{"client", "server"} {
				if got := sums[side]; got.SMC != 2 || len(got.Fallbacks) != 0 {
					t.Errorf("%s; the client is user %d: %s: %+v", d.when, client, side, got)
				}
			}
		}
	}
}

func TestWithoutTheHookAServerThatChangesItsUserIsPlainTCP(t *testing.T) {
	s := newSpace(t)
	sums := talk(t, s, s, netip.MustParseAddr("127.0.0.1"), dropping(0, 0))
	sums.want(t, "client", 0, map[string]int{"not-claimed": 1, "peer-not-offering": 1}) // root's registry had the listener until the worker came
	sums.want(t, "server", 0, map[string]int{"client-not-offering": 2})
	sums = talk(t, s, s, netip.MustParseAddr("127.0.0.1"), dropping(0, nobody))
	sums.want(t, "client", 0, map[string]int{"peer-not-offering": 2})
	sums.want(t, "server", 0, map[string]int{"client-not-offering": 2})
}

// The run directory of the user that it becomes cannot be made: it says so in CLC, and no more with its listener.
func TestAServerThatChangesItsUserAndHasNoRunDirectoryDeclines(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	sums := talk(t, s, s, netip.MustParseAddr("127.0.0.1"), dropping(0, 0), func(c *harness.Command, _ string) { c.Drops = 0 })
	sums.want(t, "client", 0, map[string]int{"peer-declined": 1, "peer-not-offering": 1})
	sums.want(t, "server", 0, map[string]int{"no-registry": 2})
}

func TestNginxWorkersOfAnotherUser(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	said := map[harness.Mode]string{}
	for _, mode := range []harness.Mode{harness.Native, harness.SMC} {
		w := harness.New(mode, t.Fatalf)
		defer w.Destroy()
		nginx := w.Nginx("nobody nogroup", 2, "server { listen 127.0.0.1:"+port+"; return 200 answer; }")
		nginx.Drops = nobody
		srv := s.start(w, nginx)
		w.Until("nginx listens", func() bool {
			pid, err := os.ReadFile(w.Path("nginx.pid"))
			return err == nil && len(pid) > 0
		})
		for _, user := range []int{0, nobody, somebody} {
			r := s.start(w, harness.Command{UID: user, Args: []string{"curl", "-sS", "http://127.0.0.1:" + port + "/"}}).Wait()
			said[mode] += r.String()
			if n := r.Process.Report().Totals.SMC; n != 1 && mode == harness.SMC {
				t.Errorf("user %d: %+v", user, r.Process.Report().Totals)
			}
		}
		srv.Signal(15)
		said[mode] += srv.Wait().String() + string(w.Read(w.Path("error.log")))
		if got := srv.Report().Totals; mode == harness.SMC && (got.SMC != 3 || got.TCP != 0) {
			t.Errorf("nginx: %+v", got)
		}
	}
	if said[harness.Native] != said[harness.SMC] {
		t.Errorf("natively %s, under the library %s", said[harness.Native], said[harness.SMC])
	}
}

// Who found out that he cannot speak SMC-R does not offer it once more.
func TestAClientWithoutAnEngineOffersOnce(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	sums := talk(t, s, s, netip.MustParseAddr("127.0.0.1"), func(c *harness.Command, side string) {
		if side == "server" {
			c.Args[5] = "4"
			return
		}
		c.UID = nobody
		c.Args[2] = "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\ndef once():" + strings.ReplaceAll(client, "\n", "\n    ") + "\nonce()\nonce()\n"
	})
	sums.want(t, "client", 0, map[string]int{"rlimit-nproc": 4})
	sums.want(t, "server", 0, map[string]int{"peer-declined": 2, "client-not-offering": 2})
}

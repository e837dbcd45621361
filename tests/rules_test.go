package tests

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

// ruled is a command under inline rules, in one line.
func ruled(format string, args ...any) harness.Command {
	return harness.Command{Env: []string{"SMCR_RULES=rule = [" + fmt.Sprintf(format, args...) + "]"}}
}

// fallen: so many connections by SMC-R, and so many by TCP for each of these reasons; both ends count.
func fallen(smc int, reasons map[string]int) verdict {
	return func(t *testing.T, sum harness.Counts) {
		t.Helper()
		if sum.SMC != smc || fmt.Sprint(sum.Fallbacks) != fmt.Sprint(reasons) {
			t.Errorf("want %d by SMC-R and %v, got %d and %d by TCP %v", smc, reasons, sum.SMC, sum.TCP, sum.Fallbacks)
		}
	}
}

func TestRulesByPort(t *testing.T) {
	sameAsNative(t, fallen(2*4, map[string]int{"rule": 2 * 3}), func(w *harness.World) string {
		shut := harness.FreePort()
		c := ruled(`{port = %d, use = "tcp"}, {port = "1-65535", use = "smc"}, {use = "tcp"}`, shut)
		w.Echo(c, "port="+strconv.Itoa(shut))
		_, open := w.Echo(c)
		return w.Ask(c, shut, 3, 20000).String() + w.Ask(c, open, 4, 20000).String()
	})
}

func TestRulesByProgram(t *testing.T) {
	sameAsNative(t, func(t *testing.T, sum harness.Counts) {
		if sum.Fallbacks["rule"] != 1 || sum.Fallbacks["client-not-offering"] != 1 {
			t.Errorf("want redis-cli's connection on TCP: %v", sum.Fallbacks)
		}
		either("rule", "client-not-offering")(t, sum)
	}, func(w *harness.World) string {
		_, port := w.Redis()
		c := ruled(`{program = ["no-such", "*/redis-c?i"], use = "tcp"}, {program = "redis-*", use = "require"}`)
		c.Args = redisCLI(port, "SET", "key:000000000000", "text")
		said := w.Run(c).String()
		c.Args = []string{"redis-benchmark", "-p", strconv.Itoa(port), "-q", "-c", "5", "-n", "500", "-t", "get"}
		if r := w.Run(c); r.Code != 0 || !strings.Contains(r.Out, "GET") {
			w.Fail("%s", r)
		}
		return said
	})
}

// redis-server may be a link to a file of another name: what counts is the name that it was started by.
func TestRulesByTheNameThatAProgramWasStartedBy(t *testing.T) {
	sameAsNative(t, fallen(0, map[string]int{"rule": 1, "peer-not-offering": 1}), func(w *harness.World) string {
		port := harness.FreePort()
		c := ruled(`{program = "redis-server", use = "tcp"}`)
		c.Args = []string{"redis-server", "--port", strconv.Itoa(port), "--save", "", "--dir", w.Dir}
		w.Server(port, c)
		return askRedis(w, port, "PING")
	})
}

func TestRulesByPeer(t *testing.T) {
	for _, c := range []struct {
		says           string
		server, client string
		verdict        verdict
	}{
		{"a client's peer", ``, `{peer = "127.0.0.0/8", use = "tcp"}`, fallen(0, map[string]int{"rule": 3, "client-not-offering": 3})},
		{"a client's peer that is not in it", ``, `{peer = ["10.0.0.0/8", "::/0"], use = "tcp"}`, fallen(2*3, map[string]int{})},
		{"a server's peer", `{role = "server", peer = "127.0.0.1", use = "tcp"}`, `{role = "server", use = "tcp"}`, fallen(0, map[string]int{"rule": 3, "not-claimed": 3})},
		{"a server's peer that is not in it", `{peer = "127.0.0.2", use = "tcp"}`, ``, fallen(2*3, map[string]int{})},
		{"a server's only peer that is allowed", `{peer = "127.0.0.1", use = "smc"}, {use = "tcp"}`, ``, fallen(2*3, map[string]int{})},
		{"a server without peers that are allowed", `{peer = "127.0.0.0/8", use = "tcp"}, {use = "tcp"}`, ``, fallen(0, map[string]int{"rule": 3, "peer-not-offering": 3})},
		{"a provider that is not there", ``, `{providers = ["ibv"], use = "smc"}`, fallen(0, map[string]int{"rule": 3, "client-not-offering": 3})},
	} {
		t.Run(c.says, func(t *testing.T) {
			sameAsNative(t, c.verdict, func(w *harness.World) string {
				_, port := w.Echo(ruled("%s", c.server))
				return w.Ask(ruled("%s", c.client), port, 3, 20000).String()
			})
		})
	}
}

func TestARuleThatRequires(t *testing.T) {
	file := func(w *harness.World, rule string) harness.Command {
		return harness.Command{Env: []string{"SMCR_CONFIG=" + w.Write("smcr.toml", []byte("[[rule]]\n"+rule+"\n"))}}
	}
	fails := func(t *testing.T, r harness.Result) {
		if r.Code == 0 || !strings.Contains(r.Err, "refused") {
			t.Errorf("connected all the same: %s", r)
		}
	}
	t.Run("server does not offer", func(t *testing.T) {
		underLibrary(t, refused(0, "peer-not-offering"), func(w *harness.World) string {
			_, port := w.Echo(harness.Command{Plain: true})
			fails(t, w.Ask(file(w, `use = "require"`), port, 1, 1000))
			return ""
		})
	})
	t.Run("no provider", func(t *testing.T) {
		underLibrary(t, refused(0, "rule"), func(w *harness.World) string {
			_, port := w.Echo(harness.Command{Plain: true})
			fails(t, w.Ask(file(w, "use = \"require\"\nproviders = \"ibv\""), port, 1, 1000))
			return ""
		})
	})
	t.Run("server declines by its rule", func(t *testing.T) {
		underLibrary(t, refused(1, "rule", "not-claimed"), func(w *harness.World) string {
			_, port := w.Echo(ruled(`{peer = "127.0.0.0/8", use = "tcp"}`))
			fails(t, w.Ask(file(w, `use = "require"`), port, 1, 1000))
			return ""
		})
	})
	t.Run("client does not offer", func(t *testing.T) {
		underLibrary(t, refused(0, "client-not-offering"), func(w *harness.World) string {
			_, port := w.Echo(file(w, "role = \"server\"\nuse = \"require\""))
			if r := w.Ask(harness.Command{Plain: true}, port, 1, 1000); r.Code == 0 || !strings.Contains(r.Err, "reset") {
				t.Errorf("served all the same: %s", r)
			}
			return ""
		})
	})
	t.Run("both offer", func(t *testing.T) {
		sameAsNative(t, bySMC(2*10*50000), func(w *harness.World) string {
			c := file(w, `use = "require"`)
			_, port := w.Echo(c)
			return w.Ask(c, port, 10, 50000).String()
		})
	})
	t.Run("a port that nobody serves", func(t *testing.T) {
		sameAsNative(t, func(*testing.T, harness.Counts) {}, func(w *harness.World) string {
			return w.Ask(file(w, `use = "require"`), harness.FreePort(), 1, 1000).String()
		})
	})
}

func TestRulesThatCannotBeUsedMeanTCPAndOneWarning(t *testing.T) {
	const wrong = `:2:8: port: "0": want a port`
	underLibrary(t, plain("bad-rules-file"), func(w *harness.World) string {
		path, logs := w.Write("bad.toml", []byte("[[rule]]\nport = 0\nuse = \"smc\"\n")), w.Path("log")
		c := harness.Command{Env: []string{"SMCR_CONFIG=" + path, "SMCR_LOG=" + logs}}
		server, port := w.Echo(c)
		r := w.Ask(c, port, 3, 20000)
		for _, said := range []string{r.Err, server.Err.String()} {
			if strings.Count(said, path+wrong) != 1 || strings.Count(said, "\n") != 1 {
				t.Errorf("want one line that names %s%s: %q", path, wrong, said)
			}
		}
		if r.Code != 0 {
			t.Errorf("%s", r)
		}
		// Both processes, one of them with the table that the other has left.
		if log := string(w.Read(logs)); strings.Count(log, "bad.toml:2:8: port: ") != 2 {
			t.Errorf("the log:\n%s", log)
		}
		return ""
	})
	t.Run("no such file", func(t *testing.T) {
		underLibrary(t, plain("bad-rules-file"), func(w *harness.World) string {
			c := harness.Command{Env: []string{"SMCR_CONFIG=" + w.Path("none.toml")}}
			_, port := w.Echo(c)
			if r := w.Ask(c, port, 3, 20000); r.Code != 0 || !strings.Contains(r.Err, "none.toml: no such file") {
				t.Errorf("%s", r)
			}
			return ""
		})
	})
	t.Run("more than fits", func(t *testing.T) {
		underLibrary(t, fallen(0, nil), func(w *harness.World) string {
			c := harness.Command{Env: []string{"SMCR_RULES=" + strings.Repeat("#", 9000)}}
			_, port := w.Echo(c)
			if r := w.Ask(c, port, 3, 20000); r.Code != 0 || !strings.Contains(r.Err, "the library has room for") {
				t.Errorf("%s", r)
			}
			return ""
		})
	})
}

func TestModeOverridesRules(t *testing.T) {
	for mode, v := range map[string]verdict{"require": bySMC(2 * 3 * 20000), "auto": fallen(0, map[string]int{"rule": 6}), "off": fallen(0, nil)} {
		t.Run(mode, func(t *testing.T) {
			sameAsNative(t, v, func(w *harness.World) string {
				c := ruled(`{use = "tcp"}`)
				c.Env = append(c.Env, "SMCR_MODE="+mode)
				_, port := w.Echo(c)
				return w.Ask(c, port, 3, 20000).String()
			})
		})
	}
}

func TestAnEagerServerNegotiatesWhatItDoesNotUseYet(t *testing.T) {
	const server = "import socket, sys\ns = socket.create_server(('127.0.0.1', %d))\nc, _ = s.accept()\nprint('accepted', flush=True)\nsys.stdin.read()\n"
	for accept, want := range map[string]string{"eager": "smc", "lazy": "negotiating"} {
		t.Run(accept, func(t *testing.T) {
			underLibrary(t, func(*testing.T, harness.Counts) {}, func(w *harness.World) string {
				port := harness.FreePort()
				c := ruled(`{accept = "%s", use = "smc"}`, accept)
				c.Args = []string{"/usr/bin/python3", "-c", fmt.Sprintf(server, port)}
				hold, release := io.Pipe()
				defer release.Close()
				c.Stdin = hold
				p := w.Server(port, c)
				client := w.Start(harness.Command{Args: []string{harness.App("echo"), "hold", strconv.Itoa(port), "1", "text"}})
				p.Saw("accepted")
				mode := ""
				for range 2 { // lazy: still so when looked at again
					w.Until("the client's connection is "+want, func() bool {
						for _, r := range connections(w) {
							if r.PID == client.PID() {
								mode = r.Mode
							}
						}
						return mode == want
					})
				}
				return ""
			})
		})
	}
}

// Once somebody has compiled them, rules cost a process neither threads nor signals.
func TestAProgramThatARuleKeepsOnTCPStartsNothing(t *testing.T) {
	sameAsNative(t, fallen(0, map[string]int{"rule": 2*3 + 1}), func(w *harness.World) string {
		c := ruled(`{use = "tcp"}`)
		_, first := w.Echo(harness.Command{Plain: true})
		w.Ask(c, first, 1, 1000).OK()
		server, port := w.Echo(c)
		c.Args = []string{harness.App("echo"), "hold", strconv.Itoa(port), "3", "text"}
		client := w.Start(c)
		client.Saw("holding")
		return state(w, client) + state(w, server)
	})
}

func TestWithoutARulesFileAProcessLooksForItOnce(t *testing.T) {
	underLibrary(t, plain("peer-not-offering"), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{Plain: true})
		trace := w.Path("trace")
		c := harness.Command{Args: []string{"strace", "-f", "-o", trace, harness.App("echo"), "ask", strconv.Itoa(port), "50", "100"}}
		w.Run(c).OK()
		if n := strings.Count(string(w.Read(trace)), "smcr.toml"); n != 1 {
			t.Errorf("%d system calls name the rules file", n)
		}
		return ""
	})
}

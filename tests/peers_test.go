package tests

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"libsmcr/tests/harness"
)

// nobody is a user without privileges.
const nobody = 65534

func TestPlainPeersAreServedAtOnce(t *testing.T) {
	plainPeer := harness.Command{Plain: true}
	for _, c := range []struct {
		says           string
		server, client harness.Command
		options        []string
		verdict        verdict
	}{
		{"server preloaded, client not", harness.Command{}, plainPeer, nil, plain("client-not-offering")},
		{"client preloaded, server not", plainPeer, harness.Command{}, nil, plain("peer-not-offering")},
		{"server preloaded and speaks first, client not", harness.Command{}, plainPeer, []string{"first"}, plain("client-not-offering")},
		{"client preloaded, server not and speaks first", plainPeer, harness.Command{}, []string{"first"}, plain("peer-not-offering")},
		{"both preloaded", harness.Command{}, harness.Command{}, nil, bySMC(2 * 10 * 100000)},
		{"both preloaded, server speaks first", harness.Command{}, harness.Command{}, []string{"first"}, bySMC(2 * 10 * 100000)},
		{"server preloaded and switched off", harness.Command{Run: []string{"--off"}}, harness.Command{}, nil, either()},
	} {
		t.Run(c.says, func(t *testing.T) {
			v := c.verdict
			if len(c.server.Run) > 0 {
				v = func(t *testing.T, sum harness.Counts) {
					if sum.SMC != 0 || sum.TxBytes != 0 {
						t.Errorf("switched off, and yet %+v", sum)
					}
				}
			}
			sameAsNative(t, v, func(w *harness.World) string {
				_, port := w.Echo(c.server, c.options...)
				return w.Ask(c.client, port, 10, 100000, c.options...).String()
			})
		})
	}
}

// An upgrade while old processes run.
func TestLibrariesOfDifferentVersionsTalkTCP(t *testing.T) {
	lib := harness.App("libsmcr-version.so")
	build := exec.Command("make", "-s", "library", "OUT="+lib, "DEFS=-DSMCR_ABI=99")
	build.Dir = harness.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	other := func(w *harness.World) harness.Command {
		if w.Mode == harness.Native {
			return harness.Command{}
		}
		return harness.Command{Plain: true, Env: []string{"LD_PRELOAD=" + lib}}
	}
	t.Run("server", func(t *testing.T) {
		sameAsNative(t, plain("version"), func(w *harness.World) string {
			_, port := w.Echo(other(w))
			return w.Ask(harness.Command{}, port, 10, 100000).String()
		})
	})
	t.Run("client", func(t *testing.T) {
		sameAsNative(t, plain("client-not-offering"), func(w *harness.World) string {
			_, port := w.Echo(harness.Command{})
			return w.Ask(other(w), port, 10, 100000).String()
		})
	})
	// With its like it uses SMC-R: it is a library that works.
	t.Run("both", func(t *testing.T) {
		sameAsNative(t, func(*testing.T, harness.Counts) {}, func(w *harness.World) string {
			_, port := w.Echo(other(w))
			c := other(w)
			c.Env = append(c.Env, "SMCR_MODE=require") // fails where it cannot
			return w.Ask(c, port, 10, 100000).String()
		})
	})
}

func TestRedisTalksToPlainPeers(t *testing.T) {
	t.Run("clients without the library", func(t *testing.T) {
		sameAsNative(t, plain("client-not-offering"), func(w *harness.World) string {
			_, port := w.Redis()
			r := w.Run(harness.Command{Plain: true, Args: []string{"redis-benchmark", "-p", strconv.Itoa(port), "-q", "-c", "20", "-n", "5000", "-t", "set"}})
			return r.Err + w.Run(harness.Command{Plain: true, Args: redisCLI(port, "GET", "key:__rand_int__")}).String()
		})
	})
	t.Run("server without the library", func(t *testing.T) {
		sameAsNative(t, plain("peer-not-offering"), func(w *harness.World) string {
			port := harness.FreePort()
			w.Server(port, harness.Command{Plain: true, Args: []string{"redis-server", "--port", strconv.Itoa(port), "--save", "", "--dir", w.Dir}})
			r := w.Run(harness.Command{Args: []string{"redis-benchmark", "-p", strconv.Itoa(port), "-q", "-c", "20", "-n", "5000", "-t", "set"}})
			return r.Err + askRedis(w, port, "GET", "key:__rand_int__")
		})
	})
}

func TestOnePortSharedByAPreloadedAndAPlainServer(t *testing.T) {
	sameAsNative(t, either("not-claimed", "peer-sent-plain", "client-not-offering"), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{}, "reuseport")
		w.Echo(harness.Command{Plain: true}, "reuseport", "port="+strconv.Itoa(port))
		return w.Ask(harness.Command{}, port, 200, 5000).String()
	})
}

func TestAListenerInheritedByAPlainProgram(t *testing.T) {
	for _, heir := range []string{"exec", "fork"} {
		t.Run(heir, func(t *testing.T) {
			reasons := plain("not-claimed")
			if heir == "exec" { // its offer ended with the exec
				reasons = plain("peer-not-offering")
			}
			sameAsNative(t, reasons, func(w *harness.World) string {
				_, port := w.Echo(harness.Command{}, "heir="+heir)
				return w.Ask(harness.Command{}, port, 3, 20000).String()
			})
		})
	}
}

func TestWhereTheEngineCannotStartItIsPlainTCPWithoutAWord(t *testing.T) {
	for limit, reason := range map[string]string{"memory": "rlimit-as", "processes": "rlimit-nproc", "files": "no-free-fd", "size": "memory-limit", "filter": "seccomp"} {
		user := 0
		if limit == "processes" { // no limit for root
			user = nobody
		}
		limited := harness.Command{UID: user}
		t.Run(limit+" at the server", func(t *testing.T) {
			sameAsNative(t, func(t *testing.T, sum harness.Counts) {
				if sum.SMC != 0 || sum.Fallbacks[reason] == 0 {
					t.Errorf("want plain TCP for %s: %+v", reason, sum)
				}
			}, func(w *harness.World) string {
				server, port := w.Echo(limited, "limit="+limit)
				r := w.Ask(harness.Command{UID: user}, port, 3, 20000)
				server.Signal(syscall.SIGTERM)
				return r.String() + server.Wait().Err
			})
		})
		t.Run(limit+" at the client", func(t *testing.T) {
			sameAsNative(t, func(t *testing.T, sum harness.Counts) {
				if sum.SMC != 0 || sum.Fallbacks[reason] == 0 {
					t.Errorf("want plain TCP for %s: %+v", reason, sum)
				}
			}, func(w *harness.World) string {
				_, port := w.Echo(harness.Command{UID: user})
				return w.Ask(limited, port, 3, 20000, "limit="+limit).String()
			})
		})
	}
}

func TestRingsStayWithinTheirShareOfMemory(t *testing.T) {
	sameAsNative(t, func(t *testing.T, sum harness.Counts) {
		either("memory-limit", "peer-declined")(t, sum)
		if sum.TCP == 0 {
			t.Errorf("800 connections with the largest rings, and none fell back: %+v", sum)
		}
	}, func(w *harness.World) string {
		large := harness.Command{Env: []string{"SMCR_RMBE=16M"}}
		_, port := w.Echo(large)
		large.Args = []string{harness.App("echo"), "hold", strconv.Itoa(port), "800", "text"}
		client := w.Start(large)
		client.Saw("holding")
		return client.Err.String()
	})
}

func TestAnotherUsersServerIsPlainTCP(t *testing.T) {
	sameAsNative(t, func(t *testing.T, sum harness.Counts) {
		if sum.SMC != 0 || sum.TCP == 0 {
			t.Errorf("want plain TCP: %+v", sum)
		}
	}, func(w *harness.World) string {
		_, port := w.Echo(harness.Command{UID: nobody})
		return w.Ask(harness.Command{}, port, 3, 20000).String()
	})
}

func TestInterruptAndTerminateEndProgramsAsNatively(t *testing.T) {
	sameAsNative(t, bySMC(100), func(w *harness.World) string {
		server, port := w.Echo(harness.Command{})
		holder := w.Hold(port, 3, "some text that comes back")
		holder.Interrupt()
		r := holder.Wait()
		server.Signal(syscall.SIGTERM)
		return fmt.Sprintf("%s%d", r, server.Wait().Code)
	})
}

func TestNothingOfADeadProcessSurvivesTheNextStart(t *testing.T) {
	underLibrary(t, func(*testing.T, harness.Counts) {}, func(w *harness.World) string {
		dead := map[string]bool{}
		for range 3 {
			server, port := w.Echo(harness.Command{})
			holder := w.Hold(port, 10, "text")
			for _, p := range []*harness.Process{holder, server} {
				dead[strconv.Itoa(p.PID())] = true
				p.Signal(syscall.SIGKILL)
				p.Wait()
			}
		}
		_, port := w.Echo(harness.Command{})
		w.Ask(harness.Command{}, port, 1, 1000).OK()
		for _, name := range w.RunFiles() {
			for pid := range dead {
				if strings.Contains(name, "p."+pid+".") || strings.Contains(name, "run-"+pid+".") {
					t.Errorf("%s is of the dead process %s", name, pid)
				}
			}
		}
		return ""
	})
}

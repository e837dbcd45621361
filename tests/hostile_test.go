package tests

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"libsmcr/tests/harness"
)

var (
	hostileTime = flag.Duration("hostile.time", 30*time.Second, "how long recorded sessions are changed at random")
	hostileSeed = flag.Uint64("hostile.seed", rand.Uint64N(1<<32), "and how")
)

// hostile builds tests/hostile, a peer that lies, where every user may run it.
func hostile(w *harness.World) string {
	program := w.Path("hostile")
	build := exec.Command("go", "build", "-o", program, "./hostile")
	if out, err := build.CombinedOutput(); err != nil {
		w.Fail("%v: %s", err, out)
	}
	if err := os.Chmod(program, 0o755); err != nil {
		w.Fail("%v", err)
	}
	return program
}

// costs are what a victim may not be made to spend without bound.
type costs struct{ descriptors, threads, kilobytes, maps int }

func costsOf(w *harness.World, p *harness.Process) (c costs) {
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		w.Fail("%v", err)
	}
	maps := string(w.Read(fmt.Sprintf("/proc/%d/maps", p.PID())))
	return costs{len(files), p.Status("Threads", false), p.Status("VmRSS", false), strings.Count(maps, "\n")}
}

// within: nothing is left of an attack that had ended. Well before any timer of a handshake ends what the attack left.
func (c costs) within(before costs, bells int) bool {
	return c.descriptors <= before.descriptors+10+bells && c.maps <= before.maps+80 && c.threads <= before.threads+3
}

const soon = 20 * time.Second

// attacked lets somebody attack a server, whose port is told, while others use it. The attack is run twice: what memory it costs
// the server the second time is what it would go on to cost. bells: so many descriptors may peers have handed over, and left.
func attacked(t *testing.T, bells int, attack func(w *harness.World, program string, server *harness.Process, port int) string) {
	underLibrary(t, func(t *testing.T, sum harness.Counts) {
		if sum.SMC == 0 {
			t.Errorf("nobody got as far as SMC-R: %+v", sum)
		}
	}, func(w *harness.World) string {
		program := hostile(w)
		server, port := w.Echo(harness.Command{})
		held := w.Hold(port, 2, "before")
		witness := w.Start(harness.Command{Args: []string{harness.App("witness"), strconv.Itoa(port)}})
		witness.Saw("begun")
		before := costsOf(w, server)
		var rounds [2]costs
		for i := range rounds {
			t.Log(attack(w, program, server, port))
			if !server.Running() {
				w.Fail("the server ended: %s", server.Wait())
			}
			for end := time.Now().Add(soon); ; time.Sleep(50 * time.Millisecond) {
				if rounds[i] = costsOf(w, server); rounds[i].within(before, bells) {
					break
				} else if time.Now().After(end) {
					w.Fail("left behind in the server: before %+v, after %+v", before, rounds[i])
				}
			}
		}
		if rounds[1].kilobytes > rounds[0].kilobytes+4096 {
			w.Fail("the server grows: before %+v, then %+v", before, rounds)
		}
		t.Logf("before %+v, then %+v", before, rounds)
		witness.Signal(syscall.SIGTERM)
		if said := witness.Wait().OK(); !strings.Contains(said, "intact") {
			w.Fail("the witness says %q", said)
		}
		if !held.Running() {
			w.Fail("connections from before: %s", held.Wait())
		}
		w.Ask(harness.Command{}, port, 5, 100000).OK()
		return ""
	})
}

func tells(w *harness.World, args ...string) string {
	return w.Run(harness.Command{Plain: true, Args: args}).OK()
}

func reached(w *harness.World, said string, ends ...string) string {
	for _, end := range ends {
		if !strings.Contains(said, end+"\n") {
			w.Fail("no attack ended so: %s\n%s", end, said)
		}
	}
	return said
}

// Each field of each message, wrong in each way; RFC 7609 §A.2: reserved ones are not looked at.
func TestAHostileClientHarmsOnlyItsOwnConnections(t *testing.T) {
	attacked(t, 0, func(w *harness.World, program string, _ *harness.Process, port int) string {
		said := tells(w, program, "fields", w.RunDir(), fmt.Sprintf("127.0.0.1:%d", port))
		return reached(w, said, "established", "declined", "ended by the victim", "no answer")
	})
}

func TestAHostileClientAtRandom(t *testing.T) {
	attacked(t, 256, func(w *harness.World, program string, _ *harness.Process, port int) string {
		said := ""
		for seed := range 3 {
			said += tells(w, program, "random", w.RunDir(), fmt.Sprintf("127.0.0.1:%d", port), "100", strconv.Itoa(seed))
		}
		return reached(w, said, "established")
	})
}

// A session that a real pair has had, said again to one half of it, changed at random.
func TestRecordedSessionsChangedAtRandom(t *testing.T) {
	const each = 15 * time.Second
	seed := *hostileSeed
	attacked(t, 0, func(w *harness.World, program string, _ *harness.Process, port int) (said string) {
		for range max(1, *hostileTime/2/each) {
			t.Logf("seed %d", seed)
			said += tells(w, program, "replay", w.RunDir(), fmt.Sprintf("127.0.0.1:%d", port), strconv.Itoa(int(min(each, *hostileTime/2).Seconds())), strconv.FormatUint(seed, 10))
			seed++
		}
		return reached(w, said, "established", "not established")
	})
}

// The same by a server to whom a program connects again and again, while it talks to another.
func TestAHostileServerHarmsOnlyItsOwnConnections(t *testing.T) {
	underLibrary(t, func(t *testing.T, sum harness.Counts) {
		if sum.SMC < 100 {
			t.Errorf("the hostile server hardly got as far as SMC-R: %+v", sum)
		}
	}, func(w *harness.World) string {
		program := hostile(w)
		_, port := w.Echo(harness.Command{})
		w.Ask(harness.Command{}, port, 1, 1000).OK() // the registry is there
		server := w.Start(harness.Command{Plain: true, Args: []string{program, "serve", w.RunDir()}})
		server.Saw("port ")
		server.Saw("\n")
		victim := w.Start(harness.Command{Args: []string{harness.App("witness"), strconv.Itoa(port), strings.Fields(server.Out.String())[1]}})
		said := reached(w, server.Wait().OK(), "established", "declined", "ended by the victim", "no answer")
		if intact := victim.Wait().OK(); !strings.Contains(intact, "intact") {
			w.Fail("%s\n%s", intact, said)
		}
		t.Log(said)
		return ""
	})
}

// Names of sockets are no secret on a host: another user, who can have no connection to anybody of ours, sends to each engine what
// peers send.
func TestAStrangersDatagramsCostNothing(t *testing.T) {
	attacked(t, 0, func(w *harness.World, program string, server *harness.Process, port int) string {
		args := []string{program, "stranger", "100", "1"}
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", server.PID()))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
				args = append(args, strings.Trim(to, "socket:[]"))
			}
		}
		said := w.Run(harness.Command{Plain: true, UID: nobody, Args: args}).OK()
		if !strings.Contains(said, "engines 1\n") {
			w.Fail("%s", said)
		}
		return said
	})
}

// A client that begins 5,000 handshakes and goes on with none, and 5,000 plain connections on which nobody says anything. Clients
// that come later are served at once: by SMC-R, while the silent ones would have 60 s.
func TestSilentClientsDelayNobody(t *testing.T) {
	const silent, limit = 5000, 1024
	underLibrary(t, func(t *testing.T, sum harness.Counts) {
		if sum.Fallbacks["half-open"] != silent-limit || sum.SMC < 2*(4+20) {
			t.Errorf("want %d refused, and all others served: %+v", silent-limit, sum)
		}
	}, func(w *harness.World) string {
		program := hostile(w)
		server, port := w.Redis("--maxclients", "15000", "--tcp-backlog", "4096")
		address := fmt.Sprintf("127.0.0.1:%d", port)
		witness := func() {
			began := time.Now()
			if said := askRedis(w, port, "PING"); said != "PONG\n" {
				w.Fail("%s", said)
			}
			if took := time.Since(began); took > soon {
				w.Fail("a client was served after %v", took)
			}
		}
		witness()
		plain := make([]net.Conn, silent)
		for i := range plain {
			var err error
			if plain[i], err = net.Dial("tcp", address); err != nil {
				w.Fail("%v", err)
			}
			defer plain[i].Close()
		}
		witness()
		quiet := w.Start(harness.Command{Plain: true, Args: []string{program, "silent", w.RunDir(), address, strconv.Itoa(silent)}})
		quiet.Saw("silent ")
		quiet.Saw("\n")
		if want := fmt.Sprintf("silent %d claimed %d refused %d\n", silent, limit, silent-limit); quiet.Out.String() != want {
			w.Fail("%s, want %s", quiet.Out.String(), want)
		}
		witness()
		// Somebody who looks whether the port is open, and goes.
		for range 1000 {
			c, err := net.Dial("tcp", address)
			if err != nil {
				w.Fail("%v", err)
			}
			c.Close()
		}
		witness()
		quiet.Signal(syscall.SIGKILL)
		quiet.Wait()
		for end := time.Now().Add(soon); costsOf(w, server).descriptors > silent+100; time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				w.Fail("the server keeps %d descriptors for silent clients that are gone", costsOf(w, server).descriptors-silent)
			}
		}
		// And there is room again.
		w.Run(harness.Command{Args: []string{"redis-benchmark", "-p", strconv.Itoa(port), "-q", "-c", "20", "-n", "2000", "-t", "set"}})
		return ""
	})
}

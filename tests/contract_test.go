package tests

import (
	"os"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

// Each program of tests/apps holds one contract of the socket interface and prints a transcript.
func TestPrograms(t *testing.T) {
	// What a server says whose client gave SMC-R up: withdrawn in the registry, or declined where both had agreed.
	givenUp := "client-not-offering"
	if os.Getenv("HARNESS_DISCOVERY") != "" {
		givenUp = "peer-declined"
	}
	for _, c := range []struct {
		says    string
		program []string
		verdict verdict
	}{
		{"one thread talks to its own listener", []string{"self"}, bySMC(51)},
		{"what a client sent before it closed and exited arrives", []string{"early"}, plain("left-early", "early-data", givenUp)},
		{"half close and reset and broken pipe look as over TCP", []string{"shutdown"}, bySMC(40)},
		{"a peer that has closed is noticed as over TCP", []string{"gone"}, bySMC(20)},
		{"the flags of send and recv mean what they mean", []string{"flags"}, bySMC(100000)},
		{"urgent data is the kernel's where it is asked for in time", []string{"urgent"}, either("socket-option", "not-claimed", "left-early", givenUp)},
		{"addresses that are nobody's are found out as by the kernel", []string{"astray"}, bySMC(2 * 7)},
		{"vectors and messages and files and pipes move bytes", []string{"vectors"}, bySMC(9 << 20)},
		{"a call moves as much as it must and no more", []string{"amounts"}, bySMC(1 << 30)},
		{"time limits and signals end the calls that they must end", []string{"waiting"}, bySMC(8)},
		{"time limits go by the kernel's clock", []string{"clock"}, bySMC(1 << 16)},
		{"connect and accept behave in every mode", []string{"connecting"}, either("peer-not-offering", "epoll-before-connect", "client-not-offering")},
		{"what happened to a socket before its connect counts after it", []string{"before", "known"}, either("left-early", givenUp)},
		{"a socket whose registrations are not known for sure stays plain", []string{"before", "unsure"}, func(t *testing.T, sum harness.Counts) {
			if n := sum.Fallbacks["epoll-before-connect"]; n < 7 || n > 8 { // the server may have claimed the one whose set is another
				t.Errorf("%d connections stayed plain for their registration, want 8, or 7", n)
			}
			either("epoll-before-connect", "client-not-offering", "left-early", "peer-declined")(t, sum)
		}},
		{"registrations may change in the middle of the connect", []string{"before", "racing"}, either("epoll-before-connect", "client-not-offering")},
		{"another thread may use what one connects as soon as the kernel lets it", []string{"hasty", "300"}, either("left-early", "not-claimed", givenUp)},
		{"a connect under way survives threads, jumps and handlers", []string{"joining"}, either("left-early", "not-claimed", "not-local", "listen-queue-full", "client-not-offering", "peer-sent-plain", givenUp)},
		{"a connect under way can be closed and given away", []string{"joining", "-left"}, either("left-early", "not-claimed", "not-local", "listen-queue-full", "client-not-offering", "peer-not-offering", givenUp)},
		{"descriptors can be duplicated and closed and used again", []string{"dup"}, bySMC(40)},
		{"a client that was stopped while all its connections were accepted is answered at once", []string{"crowd"}, bySMC(2 * 64)},
		// A stale number may be another's connecting socket by the time something is sent there: a byte before the first message of CLC,
		// and a peer that is remembered for it.
		{"threads that fork and close under each other get to the end", []string{"tangle", "1000", "30"}, either("left-early", "client-not-offering", "epoll-before-connect", "not-claimed", "protocol-error", "peer-not-smc", givenUp)},
		{"connections are shared with forked children", []string{"forks"}, bySMC(100)},
		{"connections can be given away before their first use", []string{"handed"}, either("left-early", "no-registry", "not-claimed", "peer-not-offering", "peer-sent-plain", "client-not-offering")},
		{"epoll reports what it must and nothing else", []string{"epoll"}, either("left-early")},
		{"poll and select report what they must", []string{"multiplex"}, bySMC(100000)},
		{"options and addresses and status are the socket's", []string{"options"}, bySMC(14)},
		{"streams and syscall work on connections", []string{"stdio"}, bySMC(10000)},
		{"connections can become standard input and output", []string{"inetd"}, either("standard-stream", "not-claimed", "client-not-offering", givenUp)},
		{"threads that block can be cancelled", []string{"cancel", "5"}, bySMC(100)},
		{"what is not ours goes straight to the kernel where nobody can cancel", []string{"alone"}, bySMC(4)},
		{"the reader of a killed sender gets a prefix and the end", []string{"kill", "sender", "6"}, bySMC(1 << 20)},
		{"the writer to a killed receiver gets an error", []string{"kill", "receiver", "6"}, bySMC(1 << 20)},
		{"whoever sleeps wakes up when the peer is killed", []string{"kill", "idle", "6"}, bySMC(6)},
		{"unread bytes of a killed peer reset the connection", []string{"kill", "unread", "6"}, bySMC(6)},
	} {
		t.Run(c.says, func(t *testing.T) {
			sameAsNative(t, c.verdict, run(c.program...))
		})
	}
}

// What a rule knows of a peer needs no hook and no registry; who cannot negotiate then declines.
func TestProgramsMeetByARule(t *testing.T) {
	t.Setenv("HARNESS_DISCOVERY", "rules")
	t.Setenv("HARNESS_RULES", `rule = [{use = "smc", known = true}]`)
	for _, program := range [][]string{{"self"}, {"connecting"}, {"before", "known"}, {"before", "unsure"}, {"forks"}, {"shutdown"}, {"epoll"}} {
		t.Run(strings.Join(program, " "), func(t *testing.T) {
			sameAsNative(t, either("left-early", "epoll-before-connect", "peer-declined"), run(program...))
		})
	}
	t.Run("early", func(t *testing.T) { sameAsNative(t, plain("left-early", "early-data", "peer-declined"), run("early")) })
}

// run is the scenario of one program that has both ends in it.
func run(program ...string) scenario {
	return func(w *harness.World) string {
		return w.Run(harness.Command{Args: append([]string{harness.App(program[0])}, program[1:]...)}).String()
	}
}

// A report makes each process list itself when it starts; without one a forked child first meets the registry when it
// uses a connection that its parent accepted.
func TestForkedChildrenServeWithoutAReport(t *testing.T) {
	uncounted := func(*testing.T, harness.Counts) {}
	sameAsNative(t, uncounted, func(w *harness.World) string {
		return w.Run(harness.Command{Args: []string{"env", "-u", "SMCR_REPORT_DIR", harness.App("handed")}}).String()
	})
}

func TestEveryByteArrivesInEveryStyle(t *testing.T) {
	for _, sides := range []string{"threads", "processes"} {
		for _, how := range []string{"blocking", "level", "edge", "poll", "select"} {
			t.Run(sides+" "+how, func(t *testing.T) {
				sameAsNative(t, bySMC(20<<20), run("integrity", sides, how, "20", "42"))
			})
		}
	}
}

func TestTwoHundredTransfersUnderSignalsEndWell(t *testing.T) {
	sameAsNative(t, func(t *testing.T, sum harness.Counts) {
		either("peer-not-offering")(t, sum) // what the handlers try to connect to
		if sum.SMC != 200*2*2 {
			t.Errorf("%d connections by SMC-R, want both ends of two in each of 200 runs", sum.SMC)
		}
	}, func(w *harness.World) string {
		batches := 8
		if w.Mode == harness.Native {
			batches = 1
		}
		said := ""
		for range batches {
			r := w.Run(harness.Command{Args: []string{harness.App("signals"), "25"}})
			if r.Out != "25 of 25 runs\n" {
				w.Fail("%s", r)
			}
			said += r.Err
		}
		return said
	})
}

package tests

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"libsmcr/tests/harness"
)

// state is what the kernel says of a process and its program could notice: threads and signal masks.
func state(w *harness.World, p *harness.Process) string {
	status := string(w.Read(fmt.Sprintf("/proc/%d/status", p.PID())))
	return strings.Join(regexp.MustCompile(`(?m)^(Threads|SigBlk|SigIgn|SigCgt|NoNewPrivs):.*$`).FindAllString(status, -1), "\n")
}

func TestAProgramWithoutConnectionsIsUntouched(t *testing.T) {
	sameAsNative(t, func(t *testing.T, sum harness.Counts) {
		if sum.SMC+sum.TCP != 0 {
			t.Errorf("connections from nowhere: %+v", sum)
		}
	}, func(w *harness.World) string {
		return state(w, w.Start(harness.Command{Args: []string{"sleep", "1000"}})) + w.Run(harness.Command{Args: []string{"/bin/true"}}).String()
	})
}

func TestAProgramThatOnlyMeetsPlainPeersStartsNothing(t *testing.T) {
	sameAsNative(t, plain("peer-not-offering", "client-not-offering"), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{Plain: true})
		client := w.Hold(port, 3, "text")
		server, port := w.Echo(harness.Command{})
		w.Ask(harness.Command{Plain: true}, port, 3, 1000).OK()
		return state(w, client) + state(w, server)
	})
}

func TestSignalDispositionsStayTheProgramsOwn(t *testing.T) {
	sameAsNative(t, bySMC(10), func(w *harness.World) string {
		server, port := w.Redis()
		w.Hold(port, 3, "PING\r\n+")
		threads := regexp.MustCompile(`Threads:.*`) // the engine's are there now
		return threads.ReplaceAllString(state(w, server), "")
	})
}

// systemCalls counts those of one program, of some kind or all.
func systemCalls(w *harness.World, kind string, program ...string) int {
	counts := w.Path("counts")
	w.Run(harness.Command{Args: append([]string{"strace", "-f", "-c", "-e", "trace=" + kind, "-o", counts}, program...)}).OK()
	for line := range strings.Lines(string(w.Read(counts))) {
		if f := strings.Fields(line); len(f) > 3 && f[len(f)-1] == "total" {
			n, err := strconv.Atoi(f[3])
			if err != nil {
				n, _ = strconv.Atoi(f[2])
			}
			return n
		}
	}
	w.Fail("strace counted nothing")
	return 0
}

func TestPlainConnectionsCostNoSystemCall(t *testing.T) {
	sameAsNative(t, plain("peer-not-offering"), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{Plain: true})
		calls := func(bytes int) int {
			return systemCalls(w, "all", harness.App("echo"), "ask", strconv.Itoa(port), "1", strconv.Itoa(bytes), "piece=1")
		}
		return fmt.Sprint(calls(2000)-calls(1000), " system calls for 1000 pieces each way")
	})
}

// A server of many small files: a buffer that is mapped and unmapped for each made it three times slower than TCP.
func TestSmallFilesCostNoMapping(t *testing.T) {
	sameAsNative(t, bySMC(2*100*1000), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{})
		calls := systemCalls(w, "mmap,munmap", harness.App("cost"), "file", strconv.Itoa(port), "1000")
		return fmt.Sprint(calls < 1000, ": a file costs no mapping")
	})
}

func TestAServerKeepsNothingOfClientsThatAreGone(t *testing.T) {
	underLibrary(t, bySMC(40*2000), func(w *harness.World) string {
		server, port := w.Echo(harness.Command{})
		clients := func(n int) int {
			for range n {
				w.Ask(harness.Command{}, port, 1, 1000, "poll").OK()
			}
			fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", server.PID()))
			if err != nil {
				w.Fail("%v", err)
			}
			return len(fds)
		}
		if few, many := clients(12), clients(28); many > few+5 {
			w.Fail("%d descriptors after 12 clients, %d after 40", few, many)
		}
		return ""
	})
}

// The parent has closed before the child execs: nobody is left who could end the connection's block in the parent's file.
func TestAServerLikeInetdKeepsNothingOfItsConnections(t *testing.T) {
	sameAsNative(t, plain("left-early", "standard-stream", "not-claimed"), func(w *harness.World) string {
		port := harness.FreePort()
		w.Server(port, harness.Command{Args: []string{harness.App("exec"), "inetd", strconv.Itoa(port)}})
		for range 3 {
			w.Ask(harness.Command{}, port, 1, 1000).OK()
		}
		if rows := connections(w); len(rows) != 0 {
			w.Fail("still listed: %+v", rows)
		}
		return ""
	})
}

func TestAnIdleRedisWakesNoMoreOftenThanNatively(t *testing.T) {
	wakeups := map[harness.Mode]int{}
	sameAsNative(t, bySMC(50), func(w *harness.World) string {
		server, port := w.Redis()
		w.Hold(port, 50, "PING\r\n+")
		settled := time.Now().Add(6 * time.Second) // idle rings have given their pages back by then
		w.Until("it has settled", func() bool { return time.Now().After(settled) })
		before := server.Status("voluntary_ctxt_switches", true)
		enough := time.Now().Add(5 * time.Second)
		w.Until("five seconds are over", func() bool { return time.Now().After(enough) })
		wakeups[w.Mode] = server.Status("voluntary_ctxt_switches", true) - before
		return ""
	})
	if native, preloaded := wakeups[harness.Native], wakeups[harness.SMC]; preloaded > native+native/10+5 {
		t.Errorf("%d wake-ups in five seconds, natively %d", preloaded, native)
	}
}

// An established connection does not go to another program yet. Whoever uses it there, and the peer, see a reset at once.
func TestProgramThatGetsAnEstablishedConnectionIsReset(t *testing.T) {
	for _, how := range []string{"exec", "spawn", "pass"} {
		t.Run(how, func(t *testing.T) {
			const native = "image: exit 0\nanswer 0: 6\nanswer 1: 6\n"
			for mode, want := range map[harness.Mode]string{
				harness.Native: native,
				harness.SMC:    strings.NewReplacer("exit 0", "exit 7", "answer 1: 6", "answer 1: ECONNRESET").Replace(native),
			} {
				w := harness.New(mode, t.Fatalf)
				defer w.Destroy()
				if got := w.Run(harness.Command{Args: []string{harness.App("exec"), how}}).Out; got != want {
					t.Errorf("%s: %q, want %q", mode, got, want)
				}
			}
		})
	}
	t.Run("unused", func(t *testing.T) { sameAsNative(t, either("left-early", "client-not-offering"), run("exec", "leak")) })
}

// Whoever is killed in the handshake broke no protocol: his peer reads the end, over TCP.
func TestAClientKilledInTheHandshakeHasLeftEarly(t *testing.T) {
	const program = `
import os, signal, socket, threading
l = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    c = socket.create_connection(l.getsockname())
    os.kill(os.getpid(), signal.SIGSTOP)
s, _ = l.accept()
os.waitpid(child, os.WUNTRACED)
threading.Timer(0.2, os.kill, (child, signal.SIGKILL)).start()
print(s.recv(9))
`
	sameAsNative(t, plain("left-early"), func(w *harness.World) string {
		return w.Run(harness.Command{Args: []string{"/usr/bin/python3", "-c", program}}).String()
	})
}

// A shell writes to what it has connected by libc's standard output, and lets other programs read from it.
func TestWhatAShellConnectsIsPlain(t *testing.T) {
	const program = `
import socket, subprocess, threading
l = socket.create_server(("127.0.0.1", 0))
def serve():
    c, _ = l.accept()
    for line in c.makefile("rb"):
        c.sendall(b"echo " + line)
threading.Thread(target=serve).start()
script = """
exec 3<>/dev/tcp/127.0.0.1/$1
for i in 1 2 3; do echo "line $i" >&3; read x <&3; echo "$x"; done
echo bye >&3; head -n1 <&3
"""
r = subprocess.run(["bash", "-c", script, "bash", str(l.getsockname()[1])], capture_output=True, text=True)
print(r.returncode, r.stdout, r.stderr)
`
	sameAsNative(t, plain("standard-stream", "client-not-offering"), func(w *harness.World) string {
		return w.Run(harness.Command{Args: []string{"/usr/bin/python3", "-c", program}}).String()
	})
}

// A forked child that goes on with a connection and is killed tells nobody: what it held must not wait for the end of its parent.
func TestAKilledHeirLeavesNothing(t *testing.T) {
	const server = `
import os, signal, socket, sys
s = socket.create_server(("127.0.0.1", %d))
for line in sys.stdin:
    c, _ = s.accept()
    c.sendall(c.recv(9))
    child = os.fork()
    if child == 0:
        signal.pause()
    if line == "first\n":
        c.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    c.close()
`
	const client = `
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
c.sendall(b"text")
print(c.recv(9), c.recv(9))
`
	underLibrary(t, bySMC(4), func(w *harness.World) string {
		port := harness.FreePort()
		orders, give := io.Pipe()
		defer give.Close()
		w.Server(port, harness.Command{Args: []string{"/usr/bin/python3", "-c", fmt.Sprintf(server, port)}, Stdin: orders})
		for _, who := range []string{"first", "second"} { // the parent closes before its child is killed, or after
			if _, err := io.WriteString(give, who+"\n"); err != nil {
				t.Fatal(err)
			}
			if out := w.Run(harness.Command{Args: []string{"/usr/bin/python3", "-c", client, strconv.Itoa(port)}}).OK(); out != "b'text' b''\n" {
				t.Errorf("the client of the %s child saw %q", who, out)
			}
		}
		w.Until("nothing is left of the connections", func() bool { return len(connections(w)) == 0 })
		return ""
	})
}

// Whoever lives is no killed heir, though sock_diag knows no socket of his any more: he reads what had arrived, and nobody else's.
func TestALivingHeirReadsToTheEnd(t *testing.T) {
	const program = `
import os, signal, socket, struct, sys, time
signal.alarm(60)
how = sys.argv[1]
listener = socket.create_server(("127.0.0.1", 0))
text = lambda i: b"%06d|" % i * 6000
def full(c, n):
    b = b""
    while len(b) < n:
        d = c.recv(n - len(b))
        if not d:
            break
        b += d
    return b
client = os.fork()
if client == 0:
    port = listener.getsockname()[1]
    listener.close()
    first = []
    for i in range(3):
        c = socket.create_connection(("127.0.0.1", port))
        c.sendall(b"%06d" % i)
        assert c.recv(2) == b"ok"
        c.sendall(text(i))
        if how == "shut":
            assert c.recv(1) == b""
        first.append(c)
    for c in first:
        if how == "reset":
            c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        c.close()
    end = time.monotonic() + 8
    while time.monotonic() < end: # takes any element that is free
        c = socket.create_connection(("127.0.0.1", port))
        c.sendall(b"others")
        assert c.recv(2) == b"ok"
        c.sendall(b"Z" * 42000)
        time.sleep(.05)
        c.close()
    os._exit(0)
heirs, others = [], []
while True:
    listener.settimeout(3)
    try:
        c, _ = listener.accept()
    except TimeoutError:
        break
    hello = full(c, 6)
    c.sendall(b"ok")
    if hello == b"others":
        others.append(c)
        if len(others) > 4:
            others.pop(0).close()
        continue
    child = os.fork()
    if child == 0:
        listener.close()
        if how == "shut":
            c.shutdown(socket.SHUT_WR)
        time.sleep(7)
        try:
            got = full(c, 42000)
        except ConnectionResetError:
            got = b"reset"
        os._exit(0 if got == text(int(hello)) else 1 + (got == b"reset"))
    heirs.append(child)
    c.close()
print([os.waitpid(p, 0)[1] >> 8 for p in heirs], os.waitpid(client, 0)[1])
`
	for _, how := range []string{"reset", "shut"} {
		t.Run(how, func(t *testing.T) {
			sameAsNative(t, bySMC(3*42000), func(w *harness.World) string {
				return w.Run(harness.Command{Args: []string{"/usr/bin/python3", "-c", program, how}}).String()
			})
		})
	}
}

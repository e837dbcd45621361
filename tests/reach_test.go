package tests

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"libsmcr/tests/harness"
)

// Who can talk to whom over shared memory, and that all others get TCP. Namespaces need root.

// network runs a command in a network of its own, after that shell line.
func network(setup string) []string {
	return []string{"unshare", "-n", "sh", "-ec", "ip link set lo up; " + setup + ` exec "$@"`, "sh"}
}

// echoIn starts an echo server by way of another command.
func echoIn(w *harness.World, c harness.Command, by []string, options ...string) (*harness.Process, int) {
	c.Args = append(append(by, harness.App("echo"), "serve"), options...)
	p := w.Start(c)
	p.Saw("port ")
	p.Saw("\n")
	port, err := strconv.Atoi(strings.Fields(p.Out.String())[1])
	if err != nil {
		w.Fail("%v", err)
	}
	return p, port
}

func askBy(w *harness.World, by []string, port int) string {
	return w.Run(harness.Command{Args: append(by, harness.App("echo"), "ask", strconv.Itoa(port), "5", "20000")}).String()
}

// in runs a command in the network of a process.
func in(p *harness.Process) []string { return []string{"nsenter", "-t", strconv.Itoa(p.PID()), "-n"} }

// The two ends of a redirected connection do not see the same addresses.
func TestRedirectedConnectionsArePlainTCP(t *testing.T) {
	const from = 7777
	nat := func(to int) []string {
		return network(fmt.Sprintf(`nft add table ip t; nft 'add chain ip t o { type nat hook output priority -100; }';
			nft add rule ip t o tcp dport %d redirect to :%d;`, from, to))
	}
	t.Run("nobody listens there", func(t *testing.T) {
		sameAsNative(t, plain("peer-not-offering", "client-not-offering"), func(w *harness.World) string {
			port := harness.FreePort()
			server, _ := echoIn(w, harness.Command{}, nat(port), fmt.Sprintf("port=%d", port))
			return askBy(w, in(server), from)
		})
	})
	t.Run("one of ours listens there", func(t *testing.T) {
		sameAsNative(t, plain("not-local", "client-not-offering"), func(w *harness.World) string {
			port := harness.FreePort()
			server, _ := echoIn(w, harness.Command{}, nat(port), fmt.Sprintf("port=%d", port))
			echoIn(w, harness.Command{}, in(server), fmt.Sprintf("port=%d", from))
			return askBy(w, in(server), from)
		})
	})
}

// A listener of ours at that address and port, but of another network.
func TestAnotherNetworkNamespaceIsAnotherHost(t *testing.T) {
	sameAsNative(t, plain("peer-not-offering"), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{Plain: true})
		echoIn(w, harness.Command{}, network(""), fmt.Sprintf("port=%d", port))
		return askBy(w, nil, port)
	})
	t.Run("among themselves", func(t *testing.T) {
		sameAsNative(t, bySMC(5*2*20000), func(w *harness.World) string {
			server, port := echoIn(w, harness.Command{}, network(""))
			return askBy(w, in(server), port)
		})
	})
}

// end: the first process of a pid namespace gets no SIGTERM, and goes with who made it.
func end(p *harness.Process) {
	p.Signal(syscall.SIGKILL)
	p.Wait()
}

// Containers of one network: process ids mean nothing to each other.
func TestContainersTalkIfTheyShareTheRunDirectory(t *testing.T) {
	container := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
	t.Run("shared", func(t *testing.T) {
		sameAsNative(t, bySMC(5*2*20000), func(w *harness.World) string {
			server, port := echoIn(w, harness.Command{}, container)
			said := askBy(w, nil, port)
			if w.Mode == harness.SMC && !strings.Contains(tool(w, "ss", "-a"), "/echo") {
				t.Error("the server is not listed")
			}
			end(server)
			w.Until("who was killed with the container is no longer listed", func() bool {
				return w.Mode == harness.Native || !strings.Contains(tool(w, "ss", "-a"), "/echo")
			})
			return said
		})
	})
	t.Run("both inside", func(t *testing.T) {
		sameAsNative(t, bySMC(5*2*20000), func(w *harness.World) string {
			server, port := echoIn(w, harness.Command{}, container)
			defer end(server)
			return askBy(w, container, port)
		})
	})
	t.Run("none shared", func(t *testing.T) { // nor can the server's counters be had from outside
		sameAsNative(t, plain("peer-not-offering"), func(w *harness.World) string {
			own := append([]string{"unshare", "--mount", "sh", "-ec", `mount -t tmpfs -o mode=700 none "$SMCR_RUN_DIR" && exec "$@"`, "sh"}, container...)
			if w.Mode == harness.Native {
				own = container
			}
			server, port := echoIn(w, harness.Command{}, own)
			defer end(server)
			return askBy(w, nil, port)
		})
	})
}

func TestAReadOnlyRunDirectoryIsPlainTCP(t *testing.T) {
	sameAsNative(t, func(t *testing.T, sum harness.Counts) {
		if sum.SMC+sum.TCP != 0 { // nor is there a place to count in
			t.Errorf("%+v", sum)
		}
	}, func(w *harness.World) string {
		readOnly := []string{"unshare", "--mount", "sh", "-ec", `mount -t tmpfs -o ro,mode=700 none "$SMCR_RUN_DIR" && exec "$@"`, "sh"}
		if w.Mode == harness.Native {
			readOnly = nil
		}
		_, port := w.Echo(harness.Command{Plain: true})
		return askBy(w, readOnly, port)
	})
}

// A program that knows nothing of us passes bytes on.
func TestAProxyBetweenIsPlainTCP(t *testing.T) {
	sameAsNative(t, plain("peer-not-offering", "client-not-offering"), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{})
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			w.Fail("%v", err)
		}
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				s, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
				if err != nil {
					c.Close()
					continue
				}
				pass := func(to, from net.Conn) {
					io.Copy(to, from)
					to.(*net.TCPConn).CloseWrite()
				}
				go pass(s, c)
				go pass(c, s)
			}
		}()
		return askBy(w, nil, l.Addr().(*net.TCPAddr).Port)
	})
}

// Such a server accepts nobody who has not said anything; a client of ours says nothing before it is accepted.
func TestDeferredAcceptIsPlainTCP(t *testing.T) {
	sameAsNative(t, plain("peer-not-offering", "client-not-offering"), func(w *harness.World) string {
		_, port := w.Echo(harness.Command{}, "defer")
		return askBy(w, nil, port)
	})
}

package hook

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"libsmcr/tests/harness"
)

// Programs under the library that find each other by the option alone. Each of tests/apps holds the same contract as with the
// registry, and SMC-R carries its connections.
func TestProgramsMeetByTheOption(t *testing.T) {
	hooked(t)
	// Who is given a connection that both ends have agreed upon, and cannot negotiate, declines.
	programs(t, "^TestPrograms$", "given_away")
}

// The SYN-ACK comes late: non-blocking connects return long before it is known whether the peer offers.
func TestTheVerdictComesLate(t *testing.T) {
	hooked(t)
	late(t)
	programs(t, "^TestPrograms$/(connect_and|what_happened|another_thread|a_connect_under_way_survives|a_socket_whose|time_limits|streams)", "nothing")
}

// A child that was forked while its parent connects closes what it does not need, as before an exec.
func TestAForkedChildDoesNotTakeWhatItsParentConnects(t *testing.T) {
	hooked(t)
	late(t)
	const forks = `
import os, select, socket, sys
c = socket.socket()
c.setblocking(False)
c.connect_ex((sys.argv[1], int(sys.argv[2])))
if os.fork() == 0:
    e = select.epoll()
    for i in range(20): e.poll(0.1)
    os.closerange(3, 100)
    os._exit(0)
os.wait()
c.setblocking(True)
`
	s := newSpace(t)
	sums := talk(t, s, s, netip.MustParseAddr("127.0.0.1"), func(c *harness.Command, side string) {
		if side == "client" {
			lines := strings.SplitAfterN(client, "\n", 4)
			c.Args[2] = forks + lines[3]
		}
	})
	sums.want(t, "client", 2, nil)
	sums.want(t, "server", 2, nil)
}

// Who gives a socket away that is being connected, and may have been agreed upon by then, leaves the peer plain TCP.
func TestAConnectUnderWayIsGivenAwayAsTCP(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	const begin = `
import os, socket, sys
c = socket.socket()
def connect():
    c.setblocking(False)
    c.connect_ex((sys.argv[1], int(sys.argv[2])))
`
	rest := strings.SplitAfterN(client, "\n", 4)[3]
	late(t)
	for how, code := range map[string]string{
		"exec": begin + `
connect()
d = os.dup(c.fileno())
os.set_inheritable(d, True)
os.execv(sys.executable, [sys.executable, "-c", """
import socket, sys
c = socket.socket(fileno=int(sys.argv[1]))
c.setblocking(True)
` + rest + `""", str(d)])
`,
		"a message": begin + `
a, b = socket.socketpair()
if os.fork():
    connect()
    d = os.dup(c.fileno())
    socket.send_fds(a, [b"x"], [c.fileno()])
    c.close()
    os.wait()
    sys.exit()
c = socket.socket(fileno=socket.recv_fds(b, 1, 1)[1][0])
c.setblocking(True)
` + rest,
	} {
		sums := talk(t, s, s, netip.MustParseAddr("127.0.0.1"), func(c *harness.Command, side string) {
			if side == "client" {
				c.Args[2] = code
			}
		})
		t.Log(how)
		sums.want(t, "client", 0, map[string]int{"left-early": 2})
		sums.want(t, "server", 0, map[string]int{"peer-declined": 2})
	}
}

// Nobody answers at all: the SYN cannot be taken back, so the next image does not get what would be agreed upon behind its back.
func TestAConnectWithoutAnswerEndsWithTheImage(t *testing.T) {
	hooked(t)
	a, _ := hosts(t)
	w := harness.New(harness.SMC, t.Fatalf)
	defer w.Destroy()
	p := a.start(w, harness.Command{Args: []string{python, "-c", `
import os, socket, sys
c = socket.socket()
c.setblocking(False)
c.connect_ex(("10.0.0.9", 4000))
c.set_inheritable(True)
os.execv(sys.executable, [sys.executable, "-c", """
import errno, os, socket, sys
c = socket.socket(fileno=int(sys.argv[1]))
print(errno.errorcode[c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)])
""", str(c.fileno())])
`}})
	if r := p.Wait(); r.String() != "ECONNRESET\n[exit 0]\n" || p.Report().Totals.Fallbacks["left-early"] != 1 {
		t.Errorf("%s%v", r, p.Report().Totals)
	}
}

// programs runs tests of the package tests in a network namespace of their own, with the kernel hook as the only source.
func programs(t *testing.T, which, but string) {
	t.Helper()
	newSpace(t).do(func() error {
		c := exec.Command("go", "test", "libsmcr/tests", "-count=1", "-run", which, "-skip", "/"+but)
		c.Env = append(os.Environ(), "HARNESS_DISCOVERY=kernel")
		out, err := c.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		if strings.Contains(string(out), "no tests to run") {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
}

// late loses the first SYN of each connect over IPv4 in the cgroup.
func late(t *testing.T) {
	t.Helper()
	seen, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.LRUHash, KeySize: 4, ValueSize: 1, MaxEntries: 1024})
	if err != nil {
		t.Fatal(err)
	}
	// The header at frame-40, the ports as the key.
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetEgress, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.Mov.Imm(asm.R2, 0), asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -40), asm.Mov.Imm(asm.R4, 40),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "pass"),
		asm.LoadMem(asm.R1, asm.RFP, -40, asm.Byte), asm.JNE.Imm(asm.R1, 0x45, "pass"),
		asm.LoadMem(asm.R1, asm.RFP, -40+9, asm.Byte), asm.JNE.Imm(asm.R1, 6, "pass"),
		asm.LoadMem(asm.R1, asm.RFP, -40+33, asm.Byte), asm.And.Imm(asm.R1, 0x12), asm.JNE.Imm(asm.R1, 0x02, "pass"),
		asm.LoadMapPtr(asm.R1, seen.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -20),
		asm.FnMapLookupElem.Call(),
		asm.JNE.Imm(asm.R0, 0, "again"),
		asm.LoadMapPtr(asm.R1, seen.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -20), asm.Mov.Reg(asm.R3, asm.R2), asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
		asm.LoadMapPtr(asm.R1, seen.FD()).WithSymbol("again"), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -20),
		asm.FnMapDeleteElem.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	// Sent again after 25 ticks of the kernel's instead of a second.
	const op, reply, timeoutCallback = 0, 4, 1
	soon, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, op, asm.Word),
		asm.JNE.Imm(asm.R2, timeoutCallback, "out"),
		asm.Mov.Imm(asm.R2, 25),
		asm.StoreMem(asm.R1, reply, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for what, p := range map[ebpf.AttachType]*ebpf.Program{ebpf.AttachCGroupInetEgress: prog, ebpf.AttachCGroupSockOps: soon} {
		l, err := link.AttachCgroup(link.CgroupOptions{Path: inner, Attach: what, Program: p})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(l.Detach(), l.Close(), p.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { seen.Close() })
}

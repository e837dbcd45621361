package hook

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"libsmcr/kernel"
)

const unprivileged = "smcr: the kernel hook can be changed only by root, with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN\n"

const pins = "/sys/fs/bpf/smcr"

func status(t *testing.T) (s kernel.Status) {
	t.Helper()
	out, code := tool("status", "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil || (code == 0) != s.Serves {
		t.Fatalf("exit %d, %v: %s", code, err, out)
	}
	return s
}

func TestEnableAndDisable(t *testing.T) {
	if s := status(t); s.Serves || s.Cgroup != "" || len(s.Programs) != 0 {
		t.Errorf("before: %+v", s)
	}
	if out, code := tool("disable"); code != 0 || out != "there is no kernel hook\n" {
		t.Errorf("%d, %s", code, out)
	}
	before := links(t)
	for range 2 {
		if out := enable(t); out != "the kernel hook is on "+outer+"\n" {
			t.Error(out)
		}
		first := status(t)
		if !first.Serves || filepath.Base(first.Cgroup) != filepath.Base(outer) || len(first.Programs) != 3 || first.Problem != "" {
			t.Errorf("%+v", first)
		}
		if out := enable(t); out != "the kernel hook is on "+outer+" already\n" {
			t.Error(out)
		}
		if again := status(t); again.Programs[0] != first.Programs[0] || again.Programs[1] != first.Programs[1] || again.Programs[2] != first.Programs[2] {
			t.Errorf("programs changed: %+v, %+v", first, again)
		}
		if out, code := tool("enable", "--cgroup", inner); code != 1 || !strings.HasSuffix(out, filepath.Base(outer)+" already: smcr disable first\n") {
			t.Errorf("%d, %s", code, out)
		}
		disable(t)
		if s := status(t); s.Serves || s.Cgroup != "" || len(s.Programs) != 0 || s.Problem != "" {
			t.Errorf("after: %+v", s)
		}
		if _, err := os.Stat(pins); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", pins, err)
		}
		if after := links(t); after != before {
			t.Errorf("%d links before, %d after", before, after)
		}
	}
}

// links counts what is attached to the two cgroups.
func links(t *testing.T) (n int) {
	t.Helper()
	for _, dir := range []string{outer, inner} {
		for _, at := range []ebpf.AttachType{ebpf.AttachCGroupSockOps, ebpf.AttachCGroupGetsockopt, ebpf.AttachCGroupSetsockopt} {
			found, err := link.QueryPrograms(link.QueryOptions{Target: fdOf(t, dir), Attach: at})
			if err != nil {
				t.Fatal(err)
			}
			n += len(found.Programs)
		}
	}
	return n
}

func fdOf(t *testing.T, dir string) int {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestUpgradeKeepsMarks(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	l := b.listener(server4, true)
	k := a.socket(unix.AF_INET)
	k.offer(true)
	// Another version: a program of the same kind that does nothing.
	other, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	tcp, err := link.LoadPinnedLink(filepath.Join(pins, "tcp"), nil)
	if err == nil {
		err = errors.Join(tcp.Update(other), tcp.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	client := connect(a, l, server4, true)
	w.want("while the other version is there", client, l.accept(), handshake{})
	if out := enable(t); out != "the kernel hook on "+outer+" is up to date now\n" {
		t.Error(out)
	}
	k.connect(address(l))
	w.want("marks from before", k, l.accept(), want(true, true))

	// A pin that is lost is made again.
	if err := os.Remove(filepath.Join(pins, "getsockopt")); err != nil {
		t.Fatal(err)
	}
	if s := status(t); s.Problem == "" {
		t.Errorf("nothing is wrong: %+v", s)
	}
	enable(t)
	if s := status(t); s.Problem != "" || len(s.Programs) != 3 {
		t.Errorf("%+v", s)
	}
}

// A listener whose mark went away with the hook must not answer when the hook comes back without it.
func TestHookThatComesBackKnowsNoMarks(t *testing.T) {
	hooked(t)
	a, b := hosts(t)
	w := a.wire("eth0")
	l := b.listener(server4, true)
	client := connect(a, l, server4, true)
	server := l.accept()
	w.want("first", client, server, want(true, true))
	disable(t)
	w.talk(client, server)
	enable(t)
	client = connect(a, l, server4, true)
	w.want("the mark is gone", client, l.accept(), handshake{client: no, syn: true})
}

// Whoever saw the option on a SYN-ACK has a server that can still find out: else its Proposal is what that program reads.
func TestDisableLeavesNobodyHalfAgreed(t *testing.T) {
	hooked(t)
	s := newSpace(t)
	home := netip.MustParseAddr("127.0.0.1")
	verdict := func(fd int) uint32 {
		b, err := getsockopt(fd, kernel.SolSMCR, kernel.OptPeer, make([]byte, 16))
		if err != nil {
			return unknown // the hook is gone
		}
		return binary.NativeEndian.Uint32(b)
	}
	otherMarks := func() {
		marks, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err == nil {
			err = errors.Join(os.Remove(pins+"/marks"), marks.Pin(pins+"/marks"), marks.Close())
		}
		if err != nil {
			t.Error(err)
		}
		enable(t)
	}
	for what, away := range map[string]func(){"disable": func() { disable(t) }, "an upgrade to other marks": otherMarks} {
		l := s.listener(home, true)
		waiting := connect(s, l, home, true)
		if waiting.peer().verdict != yes {
			t.Fatalf("%+v", waiting.peer())
		}
		gone := make(chan bool)
		go func() {
			defer close(gone)
			away()
		}()
		time.Sleep(100 * time.Millisecond) // a server that is busy
		if k := l.accept(); verdict(k.fd) != yes {
			t.Errorf("in the queue at %s: the client says yes, the server does not", what)
		}
		s.do(func() error {
			_, at := sockaddr(netip.AddrPortFrom(home, l.port()))
			for n, over := 0, false; !over; n++ {
				select {
				case <-gone:
					over = true // and once more
				default:
				}
				fd, err := tcp(unix.AF_INET)
				if err != nil {
					return err
				}
				_ = unix.SetsockoptInt(fd, kernel.SolSMCR, kernel.OptOffer, 1) // while there is a hook
				if err := unix.Connect(fd, at); err != nil && err != unix.EINTR {
					return err
				}
				client := verdict(fd)
				k := l.accept()
				if server := verdict(k.fd); client == yes && server != yes {
					t.Errorf("%d after the begin of %s: the client says yes, the server %d", n, what, server)
				}
				k.close()
				unix.Close(fd)
			}
			return nil
		})
		l.close()
		enable(t)
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"no bpffs", "umount /sys/fs/bpf && exec $0 enable --cgroup $1", "smcr: no bpf filesystem on /sys/fs/bpf: mount -t bpf bpf /sys/fs/bpf\n"},
		{"no bpffs to disable from", "umount /sys/fs/bpf && exec $0 disable", "smcr: no bpf filesystem on /sys/fs/bpf: mount -t bpf bpf /sys/fs/bpf\n"},
		{"no cgroup2", "umount -a -t cgroup2 && exec $0 enable", "smcr: no cgroup2 filesystem is mounted: mount -t cgroup2 none /sys/fs/cgroup, or give --cgroup\n"},
		{"no BTF", "mount -t tmpfs none /sys/kernel/btf && exec $0 enable --cgroup $1", "smcr: this kernel has no type information (/sys/kernel/btf/vmlinux): CONFIG_DEBUG_INFO_BTF is needed\n"},
		{"no capabilities", "exec setpriv --bounding-set -all $0 enable --cgroup $1", unprivileged},
		{"no capabilities and nothing mounted", "umount /sys/fs/bpf && umount -a -t cgroup2 && exec setpriv --bounding-set -all $0 enable", unprivileged},
		{"not a cgroup", "exec $0 enable --cgroup /tmp", "smcr: /tmp is not in a cgroup2 filesystem\n"},
		{"no such cgroup", "exec $0 enable --cgroup $1/none", "smcr: " + filepath.Join("$1", "none") + ": no such file or directory\n"},
	} {
		cmd := exec.Command("sh", "-c", c.script, smcr, outer)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		if want := strings.ReplaceAll(c.want, "$1", outer); string(out) != want || cmd.ProcessState.ExitCode() != 1 {
			t.Errorf("%s: %v: %q, want %q", c.name, err, out, want)
		}
	}
	if _, err := os.Stat(pins); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left: %v", pins, err)
	}
}

func TestWithoutPrivilege(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(smcr)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "smcr"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	nobody := func(args ...string) (string, int) {
		c := exec.Command(filepath.Join(dir, "smcr"), args...)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, _ := c.CombinedOutput()
		return string(out), c.ProcessState.ExitCode()
	}
	hooked(t)
	for _, args := range [][]string{{"enable", "--cgroup", outer}, {"disable"}} {
		if out, code := nobody(args...); code != 1 || out != unprivileged {
			t.Errorf("%v: %d, %s", args, code, out)
		}
	}
	if out, code := nobody("status"); code != 0 || out != "the kernel hook serves programs that are started here\nonly root sees where it is attached\n" {
		t.Errorf("%d, %s", code, out)
	}
}

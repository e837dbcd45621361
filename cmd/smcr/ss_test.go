package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"libsmcr/abi/host"
)

// victim starts a process that a page can be about.
func victim(t *testing.T) identity {
	t.Helper()
	c := exec.Command("sleep", "600")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	id, ok := identify(c.Process.Pid)
	if !ok {
		t.Fatal("no identity")
	}
	return id
}

func pageOf(id identity) host.ProcPage {
	return host.ProcPage{Magic: host.ProcMagic, ABI: host.ABI, PID: uint32(id.pid), Start: id.start, NBlocks: host.SlabBlocks,
		Comm: [16]byte([]byte("page\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))}
}

// file lays a page and its blocks out as the library does.
func file(p host.ProcPage, blocks ...host.Block) string {
	b := p.Append(nil)
	b = append(b, make([]byte, host.BlocksOffset-len(b))...)
	for i := range blocks {
		b = blocks[i].Append(b)
	}
	return string(b)
}

func v4(a, b, c, d byte) [16]byte { return [16]byte{a, b, c, d} }

func sample(id identity) string {
	p := pageOf(id)
	p.Engine, p.SMCConns, p.TCPConns, p.RingBytes = host.Ready, 7, 4, 1<<20
	p.TxBytes, p.RxBytes = 1000, 2000
	p.Fallbacks[host.ReasonNoListener], p.Fallbacks[host.ReasonDeclined], p.Fallbacks[60] = 1, 2, 1
	v6 := [16]byte{0: 0x20, 1: 0x01, 2: 0x0d, 3: 0xb8, 4: 0xff, 5: 0xff, 15: 1}
	shm := [16]byte{'s', 'h', 'm'}
	return file(p,
		host.Block{}, // index 0 is unused
		host.Block{State: host.Active, Role: host.Server, FD: 9, PID: uint32(id.pid), Family: 2, LocalPort: 6379, PeerPort: 54321,
			LocalAddr: v4(127, 0, 0, 1), PeerAddr: v4(127, 0, 0, 1), Provider: shm, Source: 1, RxSize: 1 << 18, TxBytes: 123456789, RxBytes: 42},
		host.Block{State: host.Active, Flags: host.FIN, FD: 5, PID: uint32(id.pid), Family: 10, LocalPort: 65535, PeerPort: 443,
			LocalAddr: v6, PeerAddr: [16]byte{15: 1}, Provider: shm, Source: 2, RxSize: 1 << 16, TxBytes: 1, RxBytes: 2},
		host.Block{State: host.Offered, FD: 7, PID: uint32(id.pid), Family: 2, LocalPort: 1, PeerPort: 2,
			LocalAddr: v4(255, 255, 255, 255), PeerAddr: v4(10, 0, 0, 1)},
		host.Block{},
		host.Block{State: host.Flush, Role: host.Server, FD: 8, PID: 1 << 30, Reason: host.ReasonDeclined, Diagnosis: 0x03030000, Family: 2,
			LocalPort: 1, PeerPort: 2, LocalAddr: v4(10, 0, 0, 1), PeerAddr: v4(10, 0, 0, 2)},
		host.Block{State: host.Accepted, Role: host.Server, FD: -1},
		host.Block{State: 77, Flags: host.Broken, FD: 20, Reason: 99, Provider: [16]byte([]byte("\x1b[31mevil-name\x07!"))},
	)
}

// ss runs smcr ss over a run directory that holds the given files.
func ss(t *testing.T, files map[string]string, args ...string) (result, string) {
	t.Helper()
	c := smcr(t, append([]string{"ss"}, args...)...)
	dir := envOf(c, "SMCR_RUN_DIR")
	for name, content := range files {
		write(t, filepath.Join(dir, name), content, 0o600)
	}
	return outcome(t, c), dir
}

func TestSSShowsWhatIsInTheBlocks(t *testing.T) {
	id := victim(t)
	// The pid's width moves columns; a fixed one of the same kind does not.
	hide := func(s string) string {
		s = regexp.MustCompile(fmt.Sprintf(`\b%d/sleep {2,}`, id.pid)).ReplaceAllString(s, "PID/sleep  ")
		s = regexp.MustCompile(`PID/Command {2,}`).ReplaceAllString(s, "PID/Command  ")
		s = regexp.MustCompile(`Left to TCP by {2,}`).ReplaceAllString(s, "Left to TCP by  ")
		return strings.ReplaceAll(s, fmt.Sprintf(`"pid": %d`, id.pid), `"pid": 0`)
	}
	for name, args := range map[string][]string{
		"ss.txt": nil, "ss-all-wide.txt": {"-a", "-W"}, "ss.json": {"--json"}, "ss-all.json": {"--json", "--all"},
	} {
		got, _ := ss(t, map[string]string{"p." + id.String(): sample(id), "p.1.1": sample(identity{1, 1}), "registry": "x"}, args...)
		if got.code != 0 || got.stderr != "" {
			t.Errorf("%q: %+v", args, got)
		}
		golden(t, name, hide(got.stdout))
	}
}

func TestSSFindsPagesInReportDirectoriesOnce(t *testing.T) {
	id := victim(t)
	c := smcr(t, "ss", "--json")
	dir := envOf(c, "SMCR_RUN_DIR")
	page := write(t, filepath.Join(dir, "run-1.1-x", "run-1.1-y", "p."+id.String()), file(pageOf(id), host.Block{State: host.Active}), 0o600)
	if err := os.Link(page, filepath.Join(dir, "p."+id.String())); err != nil {
		t.Fatal(err)
	}
	var conns []connection
	if got := outcome(t, c); json.Unmarshal([]byte(got.stdout), &conns) != nil || len(conns) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestSSNamesTheChildThatHoldsAConnection(t *testing.T) {
	id, child := victim(t), os.Getpid()
	got, _ := ss(t, map[string]string{"p." + id.String(): file(pageOf(id), host.Block{State: host.Active, PID: uint32(child)})})
	if !strings.Contains(got.stdout, fmt.Sprintf("%d/%s", child, command(child, "?"))) {
		t.Errorf("%+v", got)
	}
}

func TestSSShowsProcessesOfOtherPIDNamespaces(t *testing.T) {
	page := pageOf(identity{1, 1})
	page.PIDNS = 7
	got, _ := ss(t, map[string]string{"p.1.1": file(page, host.Block{State: host.Active, PID: 1})})
	if !strings.Contains(got.stdout, "1/page") || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	page.Held = 1
	if got, _ = ss(t, map[string]string{"p.1.1": file(page, host.Block{State: host.Active, PID: 1})}); strings.Contains(got.stdout, "1/") {
		t.Errorf("nobody holds its file: %+v", got)
	}
	page.PIDNS = ownPIDNS()
	if got, _ = ss(t, map[string]string{"p.1.1": file(page, host.Block{State: host.Active, PID: 1})}); strings.Contains(got.stdout, "1/") {
		t.Errorf("%+v", got)
	}
}

func TestSSSurvivesBrokenFiles(t *testing.T) {
	id := victim(t)
	good := file(pageOf(id), host.Block{State: host.Active, FD: 3}, host.Block{State: host.Active, FD: 4})
	future, huge, other := pageOf(id), pageOf(id), pageOf(id)
	future.ABI = 2
	huge.NBlocks = 1 << 31
	other.PID++
	for _, c := range []struct {
		name, content string
		conns         int
		problem       string // what stderr says, %s = the file
	}{
		{"whole", good, 2, ""},
		{"empty", "", 0, ""},
		{"seven bytes", good[:7], 0, ""},
		{"being made", strings.Repeat("\x00", 5000), 0, ""},
		{"cut in the head", good[:host.PageSize-1], 0, "smcr: %s: damaged process page: remove it\n"},
		{"head only", good[:host.PageSize], 0, ""},
		{"cut in a block", good[:host.BlocksOffset+host.BlockSize+100], 1, ""},
		{"more blocks said than there", file(huge, host.Block{State: host.Active}), 1, ""},
		{"foreign", "hello, world", 0, "smcr: %s: not a process page: remove it\n"},
		{"of another process", file(other), 0, "smcr: %s: damaged process page: remove it\n"},
		{"newer", file(future, host.Block{State: host.Active}), 0, fmt.Sprintf("smcr: process %d (sleep) runs version 2 of the "+
			"library's structures, this smcr knows 1: use the smcr of that library\n", id.pid)},
	} {
		got, dir := ss(t, map[string]string{"p." + id.String(): c.content}, "--json")
		var conns []connection
		if err := json.Unmarshal([]byte(got.stdout), &conns); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		want := strings.ReplaceAll(c.problem, "%s", filepath.Join(dir, "p."+id.String()))
		if len(conns) != c.conns || got.stderr != want || got.code != 0 {
			t.Errorf("%s: %+v, want %d connections and %q", c.name, got, c.conns, want)
		}
	}
}

func TestSSIgnoresWhatIsNotAPageFile(t *testing.T) {
	id := victim(t)
	c := smcr(t, "ss", "--json")
	dir := envOf(c, "SMCR_RUN_DIR")
	content := file(pageOf(id), host.Block{State: host.Active})
	outside := write(t, filepath.Join(t.TempDir(), "page"), content, 0o600)
	for name, err := range map[string]error{
		"link":      os.Symlink(outside, filepath.Join(dir, "p."+id.String())),
		"fifo":      unix.Mkfifo(filepath.Join(dir, "p.2.2"), 0o600),
		"directory": os.Mkdir(filepath.Join(dir, "p.3.3"), 0o700),
	} {
		if err != nil {
			t.Fatal(name, err)
		}
	}
	for _, name := range []string{"p.", "p.x.1", "p.-1.1", fmt.Sprintf("p.0%s", id), fmt.Sprintf("p.%s.1", id), fmt.Sprintf("q.%s", id)} {
		write(t, filepath.Join(dir, name), content, 0o600)
	}
	if got := outcome(t, c); got.code != 0 || got.stdout != "[]\n" || got.stderr != "" {
		t.Errorf("%+v", got)
	}
}

func TestSSTrustsOnlyADirectoryOfItsUser(t *testing.T) {
	none := smcr(t, "ss")
	if err := os.Remove(envOf(none, "SMCR_RUN_DIR")); err != nil {
		t.Fatal(err)
	}
	if got := outcome(t, none); got.code != 0 || !strings.Contains(got.stderr, "does not exist: no process was started with this SMCR_RUN_DIR") || strings.Count(got.stdout, "\n") != 1 {
		t.Errorf("no directory: %+v", got)
	}
	open := smcr(t, "ss")
	if err := os.Chmod(envOf(open, "SMCR_RUN_DIR"), 0o770); err != nil {
		t.Fatal(err)
	}
	if got := outcome(t, open); got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, "is open to other users: chmod 700") {
		t.Errorf("open directory: %+v", got)
	}
	notDir := smcr(t, "ss")
	notDir.Env = setenv(notDir.Env, "SMCR_RUN_DIR", write(t, filepath.Join(t.TempDir(), "f"), "", 0o600))
	if got := outcome(t, notDir); got.code != exitFailed || !strings.Contains(got.stderr, "is not a directory") {
		t.Errorf("file: %+v", got)
	}
	if os.Getuid() == 0 {
		foreign := smcr(t, "ss")
		if err := os.Chown(envOf(foreign, "SMCR_RUN_DIR"), 1, 1); err != nil {
			t.Fatal(err)
		}
		if got := outcome(t, foreign); got.code != exitFailed || !strings.Contains(got.stderr, "belongs to user 1") {
			t.Errorf("foreign directory: %+v", got)
		}
	}
}

func TestStatesAreNamedAsSmcssDoes(t *testing.T) {
	for _, c := range []struct {
		state host.ConnState
		flags host.Flags
		want  string
	}{
		{host.Accepted, 0, "INIT"}, {host.Offered, 0, "INIT"}, {host.CLC, host.FIN, "INIT"}, {host.TCP, 0, "ACTIVE"},
		{host.Active, host.NonBlock | host.Timeo | host.ShutRD, "ACTIVE"}, {host.Active, host.ShutWR, "PEERCLW1"},
		{host.Active, host.FIN, "APPLCLW1"}, {host.Active, host.Gone, "APPLCLW1"}, {host.Active, host.FIN | host.ShutWR, "PEERCLW2"},
		{host.Active, host.Reset | host.FIN, "PROCESSABORT"}, {host.Active, host.Broken, "PROCESSABORT"},
	} {
		if got := smcState(&host.Block{State: c.state, Flags: c.flags}); got != c.want {
			t.Errorf("%v %v: %s, want %s", c.state, c.flags, got, c.want)
		}
	}
}

func TestColoursAreForTerminalsOnly(t *testing.T) {
	id := victim(t)
	for env, want := range map[string]bool{"TERM=xterm": true, "TERM=dumb": false, "NO_COLOR=1": false} {
		c := smcr(t, "ss")
		write(t, filepath.Join(envOf(c, "SMCR_RUN_DIR"), "p."+id.String()), sample(id), 0o600)
		c.Env = setenv(c.Env, "TERM", "xterm")
		key, value, _ := strings.Cut(env, "=")
		c.Env = setenv(c.Env, key, value)
		tty := terminal(t, c)
		out, _ := io.ReadAll(bufio.NewReader(tty)) // ends with EIO
		_ = c.Wait()
		if got := strings.Contains(string(out), "\x1b["); got != want || strings.Contains(string(out), "\x1b[31mevil") {
			t.Errorf("%s: colours %v, want %v: %q", env, got, want, out)
		}
	}
}

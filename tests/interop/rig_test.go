//go:build interop

package interop

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
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

// agent is what both machines run: the commands that we put beside it, each in a shell of its own.
const agent = `n=1
until [ -e $RIG_SYNC/finished ]; do
	f=$RIG_SYNC/$RIG_ROLE.$n
	[ -e $f ] || { sleep 0.05; continue; }
	{ sh $f >$f.out 2>&1; echo $? >$f.new; mv $f.new $f.rc; } &
	n=$((n + 1))
done
`

// machines are a kernel with SMC, and ours without.
type machines struct {
	kernel, ours *machine
	flavour      string

	dir  string // what the run leaves
	cmd  *exec.Cmd
	said bytes.Buffer
	done chan struct{}
	port int
}

type machine struct {
	all  *machines
	role string
	n    int
}

// boot starts the machines; they are switched off at the test's end, which fails if a kernel has complained.
func boot(t *testing.T, flavour string) *machines {
	t.Helper()
	m := &machines{flavour: flavour, dir: filepath.Join(harness.Root(), "build", "interop", t.Name()), done: make(chan struct{}), port: 5000}
	m.kernel, m.ours = &machine{all: m, role: "A"}, &machine{all: m, role: "B"}
	file := filepath.Join(m.dir, "agent.sh")
	if err := errors.Join(os.RemoveAll(m.dir), os.MkdirAll(m.dir, 0o755), os.WriteFile(file, []byte(agent), 0o644)); err != nil {
		t.Fatal(err)
	}
	m.cmd = exec.Command(filepath.Join(rig, "run.sh"), flavour, overlay, file, file, m.dir)
	m.cmd.Env = append(os.Environ(), "RIG_NOSMC_B=1", "RIG_STRICT=1", "RIG_TIMEOUT=400", "RIG_BOOT_TIMEOUT=120")
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM} // which switches the machines off
	m.cmd.Stdout, m.cmd.Stderr = &m.said, &m.said
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		m.cmd.Wait()
		close(m.done)
	}()
	t.Cleanup(func() { m.off(t) })
	for _, role := range "AB" {
		if err := m.wait(filepath.Join(m.dir, "rig-share", "sync", "start."+string(role)), 150*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *machines) off(t *testing.T) {
	err := os.WriteFile(m.sync("finished"), nil, 0o644)
	select {
	case <-m.done:
	case <-time.After(30 * time.Second):
		t.Error("the machines do not end")
		syscall.Kill(-m.cmd.Process.Pid, syscall.SIGTERM)
		<-m.done
	}
	if err != nil || !m.cmd.ProcessState.Success() {
		t.Errorf("%v, %v\n%s", err, m.cmd.ProcessState, m.said.Bytes())
	}
}

func (m *machines) sync(name string) string { return filepath.Join(m.dir, "rig-share", "sync", name) }

// wait waits for a file, as long as the machines run.
func (m *machines) wait(file string, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		_, err := os.Stat(file)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-m.done:
			return fmt.Errorf("the machines have ended\n%s", m.said.Bytes())
		default:
		}
		if time.Now().After(end) {
			return fmt.Errorf("no %s after %s", filepath.Base(file), limit)
		}
	}
}

// freePort is one that no connection had before, so that it finds its own on the wire.
func (m *machines) freePort() int {
	m.port++
	return m.port
}

// command is a shell's, on one of the machines.
type command struct {
	on   *machine
	t    *testing.T
	text string
	file string
}

func (v *machine) start(t *testing.T, format string, args ...any) *command {
	t.Helper()
	v.n++
	c := &command{v, t, fmt.Sprintf(format, args...), v.all.sync(v.role + "." + strconv.Itoa(v.n))}
	if err := errors.Join(os.WriteFile(c.file+".new", []byte(c.text+"\n"), 0o644), os.Rename(c.file+".new", c.file)); err != nil {
		t.Fatal(err)
	}
	return c
}

// end waits for the command and returns what it said.
func (c *command) end() (out string, code int) {
	c.t.Helper()
	err := c.on.all.wait(c.file+".rc", time.Minute)
	said, _ := os.ReadFile(c.file + ".out")
	if err == nil {
		var rc []byte
		rc, err = os.ReadFile(c.file + ".rc")
		code, _ = strconv.Atoi(strings.TrimSpace(string(rc)))
	}
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", c.text, err, said)
	}
	return string(said), code
}

// ok is end for a command that must succeed.
func (c *command) ok() string {
	c.t.Helper()
	out, code := c.end()
	if code != 0 {
		c.t.Errorf("%s: exit %d\n%s", c.text, code, out)
	}
	return out
}

func (v *machine) run(t *testing.T, format string, args ...any) string {
	t.Helper()
	return v.start(t, format, args...).ok()
}

// listening waits for a listener without connecting to it.
func (v *machine) listening(t *testing.T, port int) {
	t.Helper()
	v.run(t, ". /rig/lib.sh; rig_listening %d", port)
}

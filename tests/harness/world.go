// Package harness runs real programs on loopback, natively or under the library, for the black-box tests and the
// benchmarks. A World is one such run: its programs share a run directory of their own, and none outlives it.
package harness

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Mode says how a world runs its programs.
type Mode string

const (
	Native Mode = "native"
	SMC    Mode = "smc"
)

// Patience is how long anything may take before it counts as a hang.
const Patience = 60 * time.Second

// World is one run of a scenario.
type World struct {
	Mode Mode
	Dir  string // scratch files; Dir/run is the library's run directory
	// Fail reports a failure and does not return.
	Fail func(format string, args ...any)

	started []*Process
}

// New makes a world. fail must not return.
func New(mode Mode, fail func(format string, args ...any)) *World {
	w := &World{Mode: mode, Fail: fail}
	dir, err := os.MkdirTemp(base(), "smcr-test-")
	w.must(err)
	w.Dir = dir
	w.must(os.Chmod(dir, 0o755)) // programs under another user read from here
	w.must(os.Mkdir(w.RunDir(), 0o700))
	return w
}

func base() string {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}

// RunDir is the SMCR_RUN_DIR of the world's programs.
func (w *World) RunDir() string { return filepath.Join(w.Dir, "run") }

func (w *World) runDir(uid int) string {
	if uid == 0 {
		return w.RunDir()
	}
	return fmt.Sprintf("%s-%d", w.RunDir(), uid)
}

// Path names a scratch file.
func (w *World) Path(name string) string { return filepath.Join(w.Dir, name) }

// Write makes a scratch file that every user may read.
func (w *World) Write(name string, data []byte) string {
	w.must(os.WriteFile(w.Path(name), data, 0o644))
	return w.Path(name)
}

// copy puts a program where every user may run it.
func (w *World) copy(program string) string {
	path := w.Path(filepath.Base(program))
	if _, err := os.Stat(path); err != nil { // one that runs cannot be written
		w.must(os.WriteFile(path, w.Read(program), 0o755))
	}
	return path
}

// Read returns a file.
func (w *World) Read(path string) []byte {
	data, err := os.ReadFile(path)
	w.must(err)
	return data
}

func (w *World) must(err error) {
	if err != nil {
		w.Fail("%v", err)
	}
}

// End asks the programs to end, by SIGTERM, and says what did not go as it should: who did not obey, who was left behind.
func (w *World) End() error {
	for _, p := range slices.Backward(w.started) {
		if p.Running() {
			p.Signal(syscall.SIGTERM)
			if !p.ended(10 * time.Second) {
				return fmt.Errorf("%s did not end by SIGTERM\n%s", p, w.threads())
			}
		}
	}
	if !until(5*time.Second, func() bool { return len(w.processes()) == 0 }) {
		var said strings.Builder
		for _, p := range w.started {
			fmt.Fprintf(&said, "%s: exit %d, %s", p, p.Wait().Code, p.output())
		}
		return fmt.Errorf("left behind:\n%s%s", w.threads(), said.String())
	}
	return nil
}

// Destroy kills whatever is left and removes the scratch files.
func (w *World) Destroy() {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		left := w.processes()
		if len(left) == 0 {
			break
		}
		for _, pid := range left {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	for _, p := range w.started {
		p.ended(10 * time.Second)
	}
	os.RemoveAll(w.Dir)
}

// marker is in the environment of every program of the world and of what they start.
func (w *World) marker() string { return "HARNESS_WORLD=" + w.Dir }

// processes lists the live processes of this world: those in the groups that it started, since some programs write
// over their environment, and those with the marker, since some leave their group.
func (w *World) processes() []int {
	var pids []int
	for _, pid := range allProcesses() {
		s, ok := readStat(pid)
		if !ok || s.state == 'Z' {
			continue
		}
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if slices.ContainsFunc(w.started, func(p *Process) bool { return p.cmd.Process.Pid == s.group }) ||
			bytes.Contains(env, append([]byte(w.marker()), 0)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// threads tells in which system call every thread of the world's processes is.
func (w *World) threads() string {
	var b strings.Builder
	for _, pid := range w.processes() {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, task := range tasks {
			comm, _ := os.ReadFile(filepath.Join(task, "comm"))
			call, _ := os.ReadFile(filepath.Join(task, "syscall"))
			if string(comm) != "smcr\n" {
				fmt.Fprintf(&b, "%s %s %s\n", strings.TrimPrefix(task, "/proc/"), bytes.TrimSpace(comm), bytes.TrimSpace(call))
			}
		}
	}
	return b.String()
}

func allProcesses() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

type procStat struct {
	state       byte
	ppid, group int
}

func readStat(pid int) (procStat, bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, false
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	ppid, _ := strconv.Atoi(fields[1])
	group, _ := strconv.Atoi(fields[2])
	return procStat{fields[0][0], ppid, group}, true
}

// Until waits for a condition and fails when it does not come.
func (w *World) Until(what string, condition func() bool) {
	if !until(Patience, condition) {
		w.Fail("waited in vain: %s\n%s", what, w.threads())
	}
}

func until(limit time.Duration, condition func() bool) bool {
	for deadline := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		if condition() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
	}
}

// FreePort finds a port below the range that the kernel gives to clients.
func FreePort() int {
	for {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		l.Close()
		return port
	}
}

// listening says whether some socket listens on the port; it makes no connection.
func listening(port int) bool {
	hex := fmt.Sprintf(":%04X ", port)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, _ := os.ReadFile(file)
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.Contains(f[1]+" ", hex) {
				return true
			}
		}
	}
	return false
}

// Root is the top folder of the project.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	if dir := filepath.Dir(filepath.Dir(filepath.Dir(file))); filepath.IsAbs(dir) {
		return dir
	}
	dir, err := os.Getwd() // built with -trimpath: look upwards
	for err == nil && dir != "/" {
		if _, e := os.Stat(filepath.Join(dir, "go.mod")); e == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	panic("not inside the project")
}

// RunFiles lists what is in the library's run directory.
func (w *World) RunFiles() []string {
	var names []string
	err := filepath.WalkDir(w.RunDir(), func(path string, _ os.DirEntry, err error) error {
		if path != w.RunDir() {
			names = append(names, strings.TrimPrefix(path, w.RunDir()+"/"))
		}
		return err
	})
	w.must(err)
	return names
}

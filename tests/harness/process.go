package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Command says what to run in a world.
type Command struct {
	Args  []string
	Stdin io.Reader
	Env   []string
	Dir   string
	Plain bool     // without the library even in a world that has it: a peer that knows nothing of us
	Run   []string // more options for smcr run
	UID   int      // another user; 0 is ours
	Drops int      // the user that the program changes to, which has a run directory, too
}

// Process is one program of a world, with all that it starts.
type Process struct {
	Out, Err buffer

	world  *World
	args   []string
	cmd    *exec.Cmd
	report string // where smcr run writes; empty without the library
	done   chan struct{}
	pid    int
}

// Start starts a program.
func (w *World) Start(c Command) *Process {
	p := &Process{world: w, args: c.Args, done: make(chan struct{})}
	args := c.Args
	if c.Drops != 0 {
		w.smcr(c.Drops)
	}
	if w.Mode == SMC && !c.Plain {
		p.report = w.Path(fmt.Sprintf("report-%d.json", len(w.started)))
		args = append([]string{w.smcr(c.UID), "run", "--report=" + p.report}, c.Run...)
		args = append(append(args, "--"), c.Args...)
	}
	p.cmd = exec.Command(args[0], args[1:]...)
	p.cmd.Dir = c.Dir
	p.cmd.Stdin = c.Stdin
	p.cmd.Stdout, p.cmd.Stderr = &p.Out, &p.Err
	p.cmd.WaitDelay = 5 * time.Second // a grandchild may keep our pipe open
	p.cmd.Env = append(w.environment(c.UID), c.Env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if c.UID != 0 {
		p.cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.UID)}
	}
	if err := p.cmd.Start(); err != nil {
		w.Fail("%v", err)
	}
	w.started = append(w.started, p)
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p
}

// environment is ours without what would change how programs behave, and with the world's.
func (w *World) environment(uid int) []string {
	var env []string
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if name != "LD_PRELOAD" && name != "GODEBUG" && !strings.HasPrefix(name, "SMCR_") {
			env = append(env, v)
		}
	}
	env = append(env, "LC_ALL=C", "HOME="+w.Dir, "PYTHONDONTWRITEBYTECODE=1", w.marker())
	if w.Mode == SMC {
		env = append(env, "SMCR_RUN_DIR="+w.runDir(uid), "SMCR_ADAPT=0") // what a test connects goes over SMC-R, however short
		if sources := os.Getenv("HARNESS_DISCOVERY"); sources != "" {    // the tests of the kernel hook run the others once more
			env = append(env, "SMCR_DISCOVERY="+sources, "SMCR_RULES="+os.Getenv("HARNESS_RULES"))
		}
		if level := os.Getenv("SMCR_LOG_LEVEL"); level != "" { // for looking into a failure
			env = append(env, "SMCR_LOG_LEVEL="+level, "SMCR_LOG="+os.Getenv("SMCR_LOG"))
		}
	}
	return env
}

// smcr is the command-line tool. Another user gets a copy that it can reach, library included, and a run directory of its own.
func (w *World) smcr(uid int) string {
	built := filepath.Join(Root(), "build")
	if uid == 0 {
		return filepath.Join(built, "smcr")
	}
	for _, name := range []string{"smcr", "libsmcr.so"} {
		w.copy(filepath.Join(built, name))
	}
	if err := os.Mkdir(w.runDir(uid), 0o700); err == nil {
		w.must(os.Chown(w.runDir(uid), uid, uid))
	}
	w.must(os.Chmod(w.Dir, 0o777)) // it writes its report here
	return w.Path("smcr")
}

// Server starts a program and waits until it listens on the port.
func (w *World) Server(port int, c Command) *Process {
	p := w.Start(c)
	w.Until(fmt.Sprintf("%s listens on %d", p, port), func() bool {
		if !p.Running() {
			w.Fail("%s ended: %s", p, p.output())
		}
		return listening(port)
	})
	return p
}

// Run runs a program to its end.
func (w *World) Run(c Command) Result { return w.Start(c).Wait() }

// Result is what a program that ended leaves: its output, its exit code, 128 + signal for one that was killed.
type Result struct {
	Out, Err string
	Code     int
	Process  *Process
}

// String is for comparing: everything a person would see.
func (r Result) String() string { return fmt.Sprintf("%s%s[exit %d]\n", r.Out, r.Err, r.Code) }

// OK fails unless the program exited with 0 and said nothing on its standard error; it returns its output.
func (r Result) OK() string {
	if r.Code != 0 || r.Err != "" {
		r.Process.world.Fail("%s: exit %d, %s", r.Process, r.Code, shown(r.Out, r.Err))
	}
	return r.Out
}

// Wait waits for the program's end.
func (p *Process) Wait() Result {
	if !p.ended(Patience) {
		p.world.Fail("%s hangs\n%s%s", p, p.output(), p.world.threads())
	}
	status := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	code := status.ExitStatus()
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	return Result{p.Out.String(), p.Err.String(), code, p}
}

func (p *Process) ended(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		return false
	}
}

// Running says whether it has not ended yet.
func (p *Process) Running() bool { return !p.ended(0) }

// PID is the program's own, not that of the tool that runs it.
func (p *Process) PID() int {
	if p.report == "" {
		return p.cmd.Process.Pid
	}
	if p.pid == 0 {
		tool := filepath.Base(p.cmd.Path)
		p.world.Until(p.String()+" has started", func() bool {
			for _, pid := range allProcesses() {
				s, ok := readStat(pid)
				if !ok || s.ppid != p.cmd.Process.Pid {
					continue
				}
				if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(exe) != tool {
					p.pid = pid
				}
			}
			return p.pid != 0 || !p.Running()
		})
	}
	return p.pid
}

// Signal sends a signal to the program itself; to a program that ended it sends none.
func (p *Process) Signal(sig syscall.Signal) {
	if pid := p.PID(); pid != 0 && p.Running() {
		syscall.Kill(pid, sig)
	}
}

// Interrupt is what a terminal does at Ctrl-C: SIGINT to everything in the foreground.
func (p *Process) Interrupt() { syscall.Kill(-p.cmd.Process.Pid, syscall.SIGINT) }

// Saw waits until the program's output contains the text.
func (p *Process) Saw(text string) {
	p.world.Until(fmt.Sprintf("%s says %q", p, text), func() bool {
		if strings.Contains(p.Out.String(), text) {
			return true
		}
		if !p.Running() && !strings.Contains(p.Out.String(), text) {
			p.world.Fail("%s ended without %q: %s", p, text, p.output())
		}
		return false
	})
}

// Status reads a number of /proc/PID/status, summed over the program's threads when perThread.
func (p *Process) Status(field string, perThread bool) (sum int) {
	files := []string{fmt.Sprintf("/proc/%d/status", p.PID())}
	if perThread {
		files, _ = filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.PID()))
	}
	for _, file := range files {
		data, _ := os.ReadFile(file)
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(line, field+":"); ok {
				n, err := strconv.Atoi(strings.Fields(value)[0])
				p.world.must(err)
				sum += n
			}
		}
	}
	return sum
}

func (p *Process) String() string {
	return filepath.Base(p.args[0]) + " " + strings.Join(p.args[1:], " ")
}

func (p *Process) output() string { return shown(p.Out.String(), p.Err.String()) }

// shown is a program's output in a failure message: its end, printable.
func shown(out, err string) string {
	const most = 2000
	tail := func(s string) string { return s[max(0, len(s)-most):] }
	return fmt.Sprintf("output %d bytes …%q\nstderr %d bytes …%q\n", len(out), tail(out), len(err), tail(err))
}

// Counts are the figures of one process, or of several.
type Counts struct {
	PID       int            `json:"pid"`
	Comm      string         `json:"comm"`
	SMC       int            `json:"smc_connections"`
	TCP       int            `json:"tcp_connections"`
	Fallbacks map[string]int `json:"fallbacks"`
	TxBytes   int64          `json:"tx_bytes"`
	RxBytes   int64          `json:"rx_bytes"`
}

// Report is what smcr run tells of a program that ended.
type Report struct {
	Processes []Counts `json:"processes"`
	Totals    Counts   `json:"totals"`
}

// Report waits for the program's end and returns what was counted; natively, nothing.
func (p *Process) Report() Report {
	var r Report
	p.Wait()
	if p.report != "" {
		if err := json.Unmarshal(p.world.Read(p.report), &r); err != nil {
			p.world.Fail("report of %s: %v", p, err)
		}
	}
	return r
}

// Totals adds up the reports of all programs of the world that ran under the library.
func (w *World) Totals() Counts {
	sum := Counts{Fallbacks: map[string]int{}}
	for _, p := range w.started {
		if p.report == "" {
			continue
		}
		t := p.Report().Totals
		sum.SMC += t.SMC
		sum.TCP += t.TCP
		sum.TxBytes += t.TxBytes
		sum.RxBytes += t.RxBytes
		for reason, n := range t.Fallbacks {
			sum.Fallbacks[reason] += n
		}
	}
	return sum
}

// buffer collects output while others look at it.
type buffer struct {
	mu sync.Mutex
	// +checklocks:mu
	b strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// ways to run a program; each must look to the program and to the caller as if smcr were not there.
var ways = map[string][]string{
	"exec":   {"run", "--"},
	"report": {"run", "--report", "--"},
}

func TestTheProgramIsExecedWithoutReport(t *testing.T) {
	c := smcr(t, "run", "--", "sh", "-c", `echo $$ "$0" "$1"`, `a  "b`, `$c'`)
	got := outcome(t, c)
	if want := fmt.Sprintf("%d a  \"b $c'\n", c.Process.Pid); got.code != 0 || got.stdout != want || got.stderr != "" {
		t.Errorf("%+v, want %q", got, want)
	}
}

func TestTheEnvironmentSaysWhatWasAskedFor(t *testing.T) {
	lib := filepath.Join(built, libraryName)
	for _, c := range []struct {
		args, env []string
		want      string
	}{
		{[]string{"run"}, nil, lib + " unset"},
		{[]string{"run"}, []string{"SMCR_MODE=require"}, lib + " require"},
		{[]string{"run", "--off"}, []string{"SMCR_MODE=require"}, lib + " off"},
		{[]string{"run", "--require"}, nil, lib + " require"},
		{[]string{"run", "--require", "--report=/dev/null"}, nil, lib + " require"},
		{[]string{"run"}, []string{"LD_PRELOAD=libc.so.6"}, lib + ":libc.so.6 unset"},
		{[]string{"run", "--off", filepath.Join(built, "smcr"), "run"}, nil, lib + " off"},
	} {
		cmd := smcr(t, append(c.args, "sh", "-c", `echo $LD_PRELOAD ${SMCR_MODE-unset}`)...)
		cmd.Env = append(cmd.Env, c.env...)
		if got := outcome(t, cmd); got.code != 0 || got.stdout != c.want+"\n" {
			t.Errorf("%q: %+v, want %q", c.args, got, c.want)
		}
	}
}

func TestWhatTheEnvironmentPreventsIsSaid(t *testing.T) {
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	sticky := t.TempDir()
	if err := os.Chmod(sticky, 0o777|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]string{
		"SMCR_MODE=auto":              "",
		"SMCR_LOG=" + open + "/log":   "",
		"SMCR_LIBRARY=/lib/x.so":      "",
		"SMCR_LOG=/nowhere/log":       "SMCR_LOG=/nowhere/log: no such file or directory: nothing is logged",
		"SMCR_RUN_DIR=" + sticky:      "connections stay plain TCP: " + sticky + " is open to other users: set SMCR_RUN_DIR to a directory of its own, " + sticky + "/smcr",
		"SMCR_PROFIL=safe":            "SMCR_PROFIL is not a variable of this version: ignored",
		"SMCR_RMBE=1g":                "SMCR_RMBE=1g: want 64k to 16m; the default is used",
		"SMCR_RUN_DIR=" + open:        "connections stay plain TCP: " + open + " is open to other users: chmod 700 " + open,
		"SMCR_RUN_DIR=/nowhere/run":   "connections stay plain TCP: cannot make /nowhere/run: no such file or directory: set SMCR_RUN_DIR to a directory of yours",
		"SMCR_RUN_DIR=" + open + "/x": "",
	} {
		name, value, _ := strings.Cut(env, "=")
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if got := strings.Join(warnings([]string{env}, true), "; "); got != want {
				t.Errorf("%s: %q, want %q", env, got, want)
			}
		})
	}
	cmd := smcr(t, "run", "true")
	cmd.Env = append(cmd.Env, "SMCR_RMBE=1g")
	if got := outcome(t, cmd); got.code != 0 || got.stderr != "smcr: SMCR_RMBE=1g: want 64k to 16m; the default is used\n" {
		t.Errorf("%+v", got)
	}
}

func TestExitCodesAreTheProgramsOrEnvs(t *testing.T) {
	dir := t.TempDir()
	script := write(t, filepath.Join(dir, "script"), "exit $1\n", 0o700)
	orphan := write(t, filepath.Join(dir, "orphan"), "#!/no/such/interpreter\n", 0o700)
	plain := write(t, filepath.Join(dir, "plain"), "", 0o600)
	binary := write(t, filepath.Join(dir, "binary"), "\x7fELF nonsense", 0o700)
	for way, args := range ways {
		for _, c := range []struct {
			cmd  []string
			code int
			want string // our line
		}{
			{[]string{"/bin/true"}, 0, ""},
			{[]string{"false"}, 1, ""},
			{[]string{"sh", "-c", "exit 3"}, 3, ""},
			{[]string{script, "9"}, 9, ""},
			{[]string{"no-such-program"}, 127, `smcr: "no-such-program" not found: check the name and PATH`},
			{[]string{""}, 127, `smcr: "" not found: check the name and PATH`},
			{[]string{"/no/such/program"}, 127, "smcr: /no/such/program does not exist: check the path"},
			{[]string{orphan}, 127, "smcr: cannot execute " + orphan + ": the interpreter or loader that it names does not exist: install it"},
			{[]string{plain}, 126, "smcr: cannot execute " + plain + ": permission denied: check that it is a program and its mode"},
			{[]string{"plain"}, 126, "smcr: cannot execute plain: permission denied: check that it is a program and its mode"},
			{[]string{dir}, 126, "smcr: cannot execute " + dir + ": permission denied: check that it is a program and its mode"},
		} {
			cmd := smcr(t, append(args, c.cmd...)...)
			cmd.Env = setenv(cmd.Env, "PATH", envOf(cmd, "PATH")+":"+dir)
			got := outcome(t, cmd)
			if got.code != c.code || c.want != "" && got.stderr != c.want+"\n" {
				t.Errorf("%s %q: %+v, want %d %q", way, c.cmd, got, c.code, c.want)
			}
			if left := leftDirs(t, cmd); len(left) > 0 {
				t.Errorf("%q left %q", c.cmd, left)
			}
		}
		// A broken binary goes to sh, as with execvp(3), which env uses; what sh makes of it is not our business.
		if got, native := outcome(t, smcr(t, append(args, binary)...)), outcome(t, exec.Command("env", binary)); got.code != native.code {
			t.Errorf("%s: broken binary: %+v, natively %+v", way, got, native)
		}
	}
}

func TestARunDirectoryWithoutRoomIsNamed(t *testing.T) {
	for options, want := range map[string]string{
		"size=64k,mode=700": "the file system of %s is full: make room, or set SMCR_RUN_DIR to a directory elsewhere\n",
		"ro,mode=700":       "cannot write to %s: read-only file system: set SMCR_RUN_DIR to a directory of yours\n",
	} {
		for _, way := range ways {
			c := smcr(t, append(slices.Clone(way), "sh", "-c", "echo started")...)
			dir := envOf(c, "SMCR_RUN_DIR")
			mount := exec.Command("unshare", append([]string{"-rm", "sh", "-c", `mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"`,
				"sh", options, dir}, c.Args...)...)
			mount.Env = c.Env
			got, line := outcome(t, mount), fmt.Sprintf(want, dir)
			if slices.Equal(way, ways["report"]) {
				if d := cmp.Diff(result{"", "smcr: " + line, exitNotRun}, got, cmp.AllowUnexported(result{})); d != "" {
					t.Error(d)
				}
			} else if !strings.HasPrefix(got.stderr, "smcr: connections stay plain TCP: "+line) { // the tests' library says more
				t.Errorf("%+v", got)
			}
		}
	}
}

func TestOurOwnFailuresAre125(t *testing.T) {
	lib := smcr(t, "run", "true")
	lib.Env = append(lib.Env, "SMCR_LIBRARY=/no/such.so")
	other := smcr(t, "run", "--require", "--", "sh", "-c", "echo started")
	notOurs := write(t, filepath.Join(t.TempDir(), libraryName), "not a library", 0o600)
	other.Env = append(other.Env, "SMCR_LIBRARY="+notOurs)
	program := smcr(t, "run", "--require", "--", "sh", "-c", "echo started")
	program.Env = append(program.Env, "SMCR_LIBRARY="+filepath.Join(built, "smcr"))
	file := smcr(t, "run", "--report=/no/such/dir/file", "--", "sh", "-c", "echo started")
	open := smcr(t, "run", "--report", "--", "sh", "-c", "echo started")
	if err := os.Chmod(envOf(open, "SMCR_RUN_DIR"), 0o755); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]*exec.Cmd{
		"smcr: SMCR_LIBRARY=/no/such.so is not a file: set it to the path of libsmcr.so\n":                                  lib,
		"smcr: " + notOurs + " is not libsmcr.so: set SMCR_LIBRARY to its path\n":                                           other,
		"smcr: " + filepath.Join(built, "smcr") + " is not libsmcr.so: set SMCR_LIBRARY to its path\n":                      program,
		"smcr: cannot write the report: open /no/such/dir/file: no such file or directory: choose another file\n":           file,
		"smcr: " + envOf(open, "SMCR_RUN_DIR") + " is open to other users: chmod 700 " + envOf(open, "SMCR_RUN_DIR") + "\n": open,
	} {
		if d := cmp.Diff(result{"", want, exitNotRun}, outcome(t, c), cmp.AllowUnexported(result{})); d != "" {
			t.Error(d)
		}
	}
}

func TestAKilledProgramIsSeenAsKilled(t *testing.T) {
	for way, args := range ways {
		for _, s := range []syscall.Signal{unix.SIGKILL, unix.SIGTERM, unix.SIGSEGV, unix.SIGQUIT, unix.SIGABRT, unix.SIGINT, unix.SIGHUP,
			unix.SIGPIPE, unix.SIGUSR1, unix.SIGPROF, syscall.Signal(64)} {
			c := smcr(t, append(args, "sh", "-c", fmt.Sprintf("ulimit -c 0; kill -%d $$", s))...)
			got := outcome(t, c)
			status, _ := c.ProcessState.Sys().(syscall.WaitStatus)
			if !status.Signaled() || status.Signal() != s || strings.Contains(got.stderr, "goroutine") {
				t.Errorf("%s, signal %d: %v, %q", way, s, c.ProcessState, got.stderr)
			}
			if left := leftDirs(t, c); len(left) > 0 {
				t.Errorf("signal %d left %q", s, left)
			}
			if n := strings.Count(got.stderr, "2 connections over SMC-R"); way == "report" && n != 1 {
				t.Errorf("signal %d: no report: %q", s, got.stderr)
			}
		}
	}
}

func TestAProgramInheritsWhatItWouldWithoutUs(t *testing.T) {
	const look = `grep -E "^Sig(Ign|Blk|Cgt)|^NoNewPrivs" /proc/self/status; ulimit -Sn; ulimit -Hn; ls /proc/self/fd; umask; pwd`
	prepare := []string{
		"",
		`trap "" PIPE QUIT TERM USR1 TSTP;`,
		`trap "" HUP INT;`,
		"ulimit -Sn 77;",
		"exec 7</dev/null; umask 027; cd /;",
	}
	for way, args := range ways {
		for _, p := range prepare {
			native := outcome(t, exec.Command("bash", "-c", p+`exec bash -c "$0"`, look))
			c := smcr(t)
			c.Path, c.Args = "/bin/bash", append([]string{"bash", "-c", p + `exec "$@"`, "bash", filepath.Join(built, "smcr")}, append(args, "bash", "-c", look)...)
			got := outcome(t, c)
			if d := cmp.Diff(strings.Split(native.stdout, "\n"), strings.Split(got.stdout, "\n")); d != "" || got.code != 0 {
				t.Errorf("%s after %q: natively (-), under smcr (+):\n%s%s", way, p, d, got.stderr)
			}
		}
	}
}

func TestTheReportAsText(t *testing.T) {
	got := outcome(t, smcr(t, "run", "--report", "--", "sh", "-c", "/bin/true; exit 3"))
	if got.code != 3 || got.stdout != "" {
		t.Errorf("%+v", got)
	}
	// The width of a pid moves the columns behind it.
	golden(t, "report.txt", regexp.MustCompile(`(?m)^(?:\d+|PID)/(\S+) {2,}`).ReplaceAllString(got.stderr, "PID/$1  "))

	const nobody = "smcr: no process used the library: with --off or SMCR_MODE=off none does, and set-uid or static programs cannot\n"
	if got := outcome(t, smcr(t, "run", "--off", "--report", "--", "true")); got.stderr != nobody {
		t.Errorf("%q", got.stderr)
	}
	idle := smcr(t, "run", "--report", "--", "true")
	idle.Env = append(idle.Env, "FAKE_IDLE=true")
	if got := outcome(t, idle); got.stderr != "smcr: 0 connections over SMC-R (0 B sent, 0 B received), 0 over TCP, 1 process\n" {
		t.Errorf("%q", got.stderr)
	}
}

// reported runs a command line with --report=FILE in place of its first word and returns the report.
func reported(t *testing.T, c *exec.Cmd, file string) report {
	t.Helper()
	if got := outcome(t, c); got.code != 0 || got.stderr != "" {
		t.Fatalf("%+v", got)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatalf("%v: %s", err, b)
	}
	return r
}

func TestTheReportAsJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	got := outcome(t, smcr(t, "run", "--report="+file, "--", "sh", "-c", "/bin/true; exit 3"))
	if got.code != 3 || got.stdout != "" || got.stderr != "" {
		t.Errorf("%+v", got)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.json", regexp.MustCompile(`"pid": \d+`).ReplaceAllString(string(b), `"pid": 0`))

	none := smcr(t, "run", "--report="+file, "--", "true")
	none.Env = append(none.Env, "FAKE_SKIP=true")
	if got := outcome(t, none); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if b, err = os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	golden(t, "report-empty.json", string(b))
}

// leftDirs lists the report directories that a run left; the pages themselves are the library's to sweep away.
func leftDirs(t *testing.T, c *exec.Cmd) []string {
	t.Helper()
	return slices.DeleteFunc(names(t, envOf(c, "SMCR_RUN_DIR")), func(n string) bool { return !strings.HasPrefix(n, reportPrefix) })
}

func comms(r report) string {
	var list []string
	for _, p := range r.Processes {
		list = append(list, p.Comm)
	}
	return strings.Join(list, " ")
}

func TestARunWithinARunIsInBothReports(t *testing.T) {
	dir := t.TempDir()
	outer, inner := filepath.Join(dir, "outer"), filepath.Join(dir, "inner")
	c := smcr(t, "run", "--report="+outer, "--", "sh", "-c",
		fmt.Sprintf(`%[1]s/smcr run --report=%[2]s -- env true && %[1]s/smcr run -- nice true; ls $SMCR_REPORT_DIR >/dev/null`, built, inner))
	r := reported(t, c, outer)
	if got := comms(r); got != "sh true true ls" {
		t.Errorf("the outer report has %q", got)
	}
	if r.Totals.SMC != 8 || r.Totals.Fallbacks["peer-not-offering"] != 4 {
		t.Errorf("%+v", r.Totals)
	}
	b, err := os.ReadFile(inner)
	if err != nil {
		t.Fatal(err)
	}
	var in report
	if err := json.Unmarshal(b, &in); err != nil || comms(in) != "true" {
		t.Errorf("the inner report has %q, %v", comms(in), err)
	}
	if left := leftDirs(t, c); len(left) > 0 {
		t.Errorf("left %q", left)
	}
}

// untilPages is shell for: wait until that many processes are in the report; without one more process that would be in it.
func untilPages(n int) string {
	return fmt.Sprintf(` until set -- $SMCR_REPORT_DIR/p*; [ $# -ge %d ]; do :; done`, n)
}

func TestTheReportWaitsForDescendants(t *testing.T) {
	c := smcr(t, "run", "--report", "--", "sh", "-c", "head -c1 <&3 >/dev/null 2>&1 &"+untilPages(2)+"; echo $$")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	c.ExtraFiles = []*os.File{r}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	stdout, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	// head ends when we say so, which is after sh is gone: smcr waits for head alone.
	var sh int
	if _, err := fmt.Fscan(stdout, &sh); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); unix.Kill(sh, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("sh does not end")
		}
	}
	if _, err := w.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil || strings.Contains(stderr.String(), "running") || !strings.Contains(stderr.String(), "/head") {
		t.Errorf("%v: %s", err, stderr.String())
	}
}

func TestADaemonIsNotWaitedForAndStaysVisible(t *testing.T) {
	c := smcr(t, "run", "--report", "--", "sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & echo $!;"+untilPages(2))
	began := time.Now()
	got := outcome(t, c)
	took := time.Since(began)
	var pid int
	if _, err := fmt.Sscan(got.stdout, &pid); err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(pid, unix.SIGKILL)
	if took < stragglers || took > stragglers+5*time.Second || got.code != 0 || !strings.Contains(got.stderr, "/sleep (still running)") {
		t.Errorf("%v, %+v", took, got)
	}
	ss := smcr(t, "ss")
	ss.Env = setenv(ss.Env, "SMCR_RUN_DIR", envOf(c, "SMCR_RUN_DIR"))
	if got := outcome(t, ss); !strings.Contains(got.stdout, fmt.Sprintf("%d/sleep", pid)) {
		t.Errorf("%+v", got)
	}
}

func TestWhatAKilledRunLeftIsSweptAway(t *testing.T) {
	c := smcr(t, "run", "--report", "--", "true")
	c.Env = append(c.Env, "FAKE_SKIP=true")
	dir := envOf(c, "SMCR_RUN_DIR")
	self, _ := identify(os.Getpid())
	ns := fmt.Sprint(ownPIDNS())
	for _, name := range []string{
		"run-1.1." + ns + "-dead/p.1.1", "run-1.1." + ns + "-dead/p." + self.String(),
		"run-1.1." + ns + "-both/run-1.1." + ns + "-inner/p.1.1",
		// Not ours to judge, or somebody still lives.
		"run-1.1." + ns + "-outer/run-" + self.String() + "." + ns + "-inner/p.1.1",
		"run-" + self.String() + "." + ns + "-alive/p.1.1",
		"run-1.1.7-container/p.1.1", "run-odd/p.1.1", "run-1.1-odd/p.1.1",
	} {
		write(t, filepath.Join(dir, name), "", 0o600)
	}
	if got := outcome(t, c); got.code != 0 {
		t.Errorf("%+v", got)
	}
	want := []string{"p." + self.String(), "run-1.1-odd", "run-1.1." + ns + "-outer", "run-1.1.7-container",
		"run-" + self.String() + "." + ns + "-alive", "run-odd"}
	slices.Sort(want)
	if d := cmp.Diff(want, names(t, dir)); d != "" {
		t.Error(d)
	}
}

func TestARunDirectoryMayBeRelative(t *testing.T) {
	c := smcr(t, "run", "--report", "--", "sh", "-c", "cd / && exec true")
	c.Dir = filepath.Dir(envOf(c, "SMCR_RUN_DIR"))
	c.Env = setenv(c.Env, "SMCR_RUN_DIR", "rundir")
	if got := outcome(t, c); got.code != 0 || !strings.Contains(got.stderr, "/true ") {
		t.Errorf("%+v", got)
	}
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 220))
	if err := os.Mkdir(deep, 0o700); err != nil {
		t.Fatal(err)
	}
	c = smcr(t, "run", "--report", "--", "true")
	c.Env = setenv(c.Env, "SMCR_RUN_DIR", deep)
	if got := outcome(t, c); got.code != exitNotRun || !strings.Contains(got.stderr, "too long for the library: set SMCR_RUN_DIR") || len(names(t, deep)) > 0 {
		t.Errorf("%+v", got)
	}
}

func TestASignalToUsReachesTheProgram(t *testing.T) {
	for way, args := range ways {
		for _, s := range []string{"TERM", "HUP", "USR1", "USR2", "INT", "QUIT", "ignored INT"} {
			// python, since bash cannot take what it was started to ignore.
			c := smcr(t, append(args, "/usr/bin/python3", "-c", `import os, signal, sys
def end(*_): print("got", flush=True); os._exit(7)
signal.signal(getattr(signal, sys.argv[1]), end); print("ready", flush=True); signal.pause()`, "SIG"+strings.TrimPrefix(s, "ignored "))...)
			s, ignored := strings.CutPrefix(s, "ignored ")
			if ignored {
				c.Path, c.Args = "/bin/sh", append([]string{"sh", "-c", `trap "" INT; exec "$@"`, "sh", c.Path}, c.Args[1:]...)
			}
			c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // of no terminal's keys
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(out)
			if line, err := r.ReadString('\n'); line != "ready\n" {
				t.Fatalf("%q, %v", line, err)
			}
			if err := c.Process.Signal(unix.SignalNum("SIG" + s)); err != nil {
				t.Fatal(err)
			}
			line, _ := r.ReadString('\n')
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); line != "got\n" || code != 7 {
				t.Errorf("%s %s: %q, %d", way, s, line, code)
			}
		}
	}
}

// terminal starts a command as the foreground job of a terminal of its own.
func terminal(t *testing.T, c *exec.Cmd) *os.File {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	return master
}

func TestCtrlCGoesToTheProgramOnce(t *testing.T) {
	for _, key := range []struct {
		name, byte string
		code       int
	}{{"INT", "\x03", 5}, {"QUIT", "\x1c", 5}} {
		c := smcr(t, "run", "--report", "--", "bash", "-c",
			`n=0; trap 'n=$((n+1)); end=$((SECONDS+1))' `+key.name+`; end=$((SECONDS+20)); echo ready; while [ $SECONDS -lt $end ]; do sleep 0.05; done; echo "count=$n"; exit 5`)
		tty := terminal(t, c)
		r := bufio.NewReader(tty)
		if line, err := r.ReadString('\n'); strings.TrimSpace(line) != "ready" {
			t.Fatalf("%q, %v", line, err)
		}
		if _, err := tty.WriteString(key.byte); err != nil {
			t.Fatal(err)
		}
		var all strings.Builder
		for { // until the terminal's other end is closed, which reads as EIO
			line, err := r.ReadString('\n')
			all.WriteString(line)
			if err != nil {
				break
			}
		}
		_ = c.Wait()
		if got := all.String(); c.ProcessState.ExitCode() != key.code || !strings.Contains(got, "count=1\r") ||
			!strings.Contains(got, "connections over SMC-R") || strings.Contains(got, "goroutine") {
			t.Errorf("%s: %v, %q", key.name, c.ProcessState, got)
		}
	}
}

func TestCtrlCEndsAPlainProgramAndUsAlike(t *testing.T) {
	c := smcr(t, "run", "--report", "--", "bash", "-c", "echo ready; exec sleep 60")
	tty := terminal(t, c)
	r := bufio.NewReader(tty)
	if line, err := r.ReadString('\n'); strings.TrimSpace(line) != "ready" {
		t.Fatalf("%q, %v", line, err)
	}
	began := time.Now()
	if _, err := tty.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	status, _ := c.ProcessState.Sys().(syscall.WaitStatus)
	if !status.Signaled() || status.Signal() != unix.SIGINT || time.Since(began) > 30*time.Second {
		t.Errorf("%v after %v", c.ProcessState, time.Since(began))
	}
}

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"libsmcr/abi/host"
)

// A daemon that the program leaves behind is not waited for longer than this.
const stragglers = 2 * time.Second

type runOptions struct {
	require, off bool
	report       string // "" = none
}

// reportText is the value of --report without a file.
const reportText = "-"

func newRun() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:   "run [--require|--off] [--report[=FILE]] [--] CMD [ARG...]",
		Short: "Run a program, and all that it starts, under the library",
		Long: "Runs CMD with libsmcr.so preloaded. Its TCP connections use SMC-R where the other end can, and stay TCP elsewhere.\n\n" +
			"Exit code: that of CMD; 127 if it is not found, 126 if it cannot be executed, 125 if smcr itself fails,\n" +
			"2 if its own arguments are wrong.",
		Example:               "  smcr run redis-server\n  smcr run --require --report -- redis-benchmark -c 50",
		DisableFlagsInUseLine: true,
		RunE: func(c *cobra.Command, args []string) error {
			if o.require && o.off {
				return failure(exitUsage, "run: --require and --off exclude each other: choose one")
			}
			if len(args) == 0 {
				return failure(exitUsage, "run: no command: smcr run [options] -- CMD")
			}
			if c.Flags().Changed("report") && o.report == "" {
				return failure(exitUsage, "run: --report= without a file: name one, or leave out the = for a summary on stderr")
			}
			return o.run(args, c.ErrOrStderr())
		},
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.BoolVar(&o.require, "require", false, "connections that cannot use SMC-R fail; --report says why they cannot")
	f.BoolVar(&o.off, "off", false, "all connections stay TCP")
	f.StringVar(&o.report, "report", "", "at the end say what the connections used: on stderr, or with --report=FILE as JSON in `FILE`")
	f.Lookup("report").NoOptDefVal = reportText
	// pflag would show the value that stands for none.
	cobra.AddTemplateFunc("report", func(usage string) string {
		return strings.Replace(usage, `--report FILE[="-"]`, `--report[=FILE]    `, 1)
	})
	c.SetUsageTemplate(strings.Replace(c.UsageTemplate(), ".LocalFlags.FlagUsages", "report .LocalFlags.FlagUsages", 1))
	return c
}

func (o *runOptions) run(args []string, stderr io.Writer) error {
	exe, err := os.Executable()
	if err != nil {
		return failure(exitNotRun, "cannot tell where smcr is: %v: mount /proc", err)
	}
	library, err := findLibrary(exe, libraryDirs)
	if err == nil {
		err = checkLibrary(library)
	}
	if err != nil {
		return failure(exitNotRun, "%v", err)
	}
	path, err := find(args[0])
	if err != nil {
		return err
	}
	env := preload(os.Environ(), library)
	switch {
	case o.require:
		env = setenv(env, "SMCR_MODE", "require")
	case o.off:
		env = setenv(env, "SMCR_MODE", "off")
	}
	for _, name := range []string{"SMCR_RUN_DIR", "SMCR_CONFIG", "SMCR_LOG"} { // the program may change its directory
		if path := os.Getenv(name); path != "" {
			if path, err = filepath.Abs(path); err == nil {
				env = setenv(env, name, path)
			}
		}
	}
	for _, w := range warnings(env, o.report == "") {
		fmt.Fprintf(stderr, "smcr: %s\n", w)
	}
	keepIgnored()
	if o.report == "" {
		err := unix.Exec(path, args, env)
		if err == unix.ENOEXEC {
			err = unix.Exec(shell, script(path, args), env)
		}
		return notStarted(path, err)
	}
	return o.runAndReport(path, args, env, stderr)
}

// warnings says what in the environment keeps the library from doing what its user expects. It does not say so itself: the
// program's stderr is the program's.
func warnings(env []string, withDir bool) []string {
	found := host.CheckEnvironment(env)
	if w := rulesWarning(env); w != "" {
		found = append(found, w)
	}
	if path := os.Getenv("SMCR_LOG"); path != "" {
		if err := unix.Access(filepath.Dir(path), unix.W_OK|unix.X_OK); err != nil {
			found = append(found, fmt.Sprintf("SMCR_LOG=%s: %v: nothing is logged", path, err))
		}
	}
	if !withDir {
		return found // a report needs the directory itself
	}
	dir, err := runDir()
	if err == nil {
		switch err = checkDir(dir); {
		case err == nil:
			err = checkRoom(dir)
		case errors.Is(err, fs.ErrNotExist):
			err = checkParent(dir) // the library makes the directory
		}
	}
	if err != nil {
		found = append(found, fmt.Sprintf("connections stay plain TCP: %v", err))
	}
	return found
}

func (o *runOptions) runAndReport(path string, args, env []string, stderr io.Writer) error {
	var file *os.File
	if o.report != reportText {
		var err error
		if file, err = os.Create(o.report); err != nil { // now: nobody wants to hear it after an hour
			return failure(exitNotRun, "cannot write the report: %v: choose another file", err)
		}
		defer file.Close()
	}
	dir, err := newReportDir()
	if err != nil {
		return failure(exitNotRun, "%v", err)
	}
	defer retire(dir)

	status, err := runChild(path, args, setenv(env, "SMCR_REPORT_DIR", dir))
	if err != nil {
		return err
	}
	waitForPages(dir, stragglers)
	found, problems := readPages(dir)
	for _, p := range problems {
		fmt.Fprintf(stderr, "smcr: %v\n", p)
	}
	r := newReport(found)
	if file == nil {
		r.writeText(stderr)
	} else if err := writeJSON(file, r); err != nil {
		fmt.Fprintf(stderr, "smcr: cannot write the report: %v: choose another file\n", err)
	}
	if status.Signaled() {
		retire(dir) // a deferred call does not run when we die
		dieBy(status.Signal())
		return &exitError{code: 128 + int(status.Signal())}
	}
	if code := status.ExitStatus(); code != 0 {
		return &exitError{code: code}
	}
	return nil
}

// runChild runs the program in our process group and returns how it ended. Keys that the terminal turns into signals reach it
// directly, so we only have to outlive them; signals sent to us alone are passed on.
func runChild(path string, args, env []string) (syscall.WaitStatus, error) {
	passed := []os.Signal{unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2}
	caught := make(chan os.Signal, 16)
	for _, s := range passed {
		if !signal.Ignored(s) { // else the program would not inherit that it is ignored
			signal.Notify(caught, s)
		}
	}
	attr := &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	child, err := os.StartProcess(path, args, attr)
	if errors.Is(err, unix.ENOEXEC) {
		child, err = os.StartProcess(shell, script(path, args), attr)
	}
	if err != nil {
		return 0, notStarted(path, err)
	}
	signal.Notify(caught, passed...) // what it inherited as ignored it may want all the same, as databases do in the background
	go func() {
		for s := range caught {
			if s != unix.SIGINT && s != unix.SIGQUIT || !inForeground() {
				_ = child.Signal(s)
			}
		}
	}()
	state, err := child.Wait()
	if err != nil {
		return 0, failure(exitNotRun, "lost sight of %s: %v: start it without --report", path, err)
	}
	status, _ := state.Sys().(syscall.WaitStatus)
	return status, nil
}

// inForeground reports whether the keys of a terminal reach our process group.
func inForeground() bool {
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// A script without #! is one for sh, as execvp(3) has it.
const shell = "/bin/sh"

func script(path string, args []string) []string {
	return append([]string{shell, path}, args[1:]...)
}

// find looks for a program as execvp(3) does.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // PATH names the current directory: as in a shell, that is the user's wish
		return path, nil
	case name == "" || !strings.Contains(name, "/") && !inPath(name):
		return "", failure(exitNotFound, "%q not found: check the name and PATH", name)
	case errors.Is(err, fs.ErrNotExist):
		return "", failure(exitNotFound, "%s does not exist: check the path", name)
	}
	return "", notStarted(name, fs.ErrPermission)
}

// inPath reports whether PATH has a file of that name, if only one that cannot be executed.
func inPath(name string) bool {
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		if isFile(filepath.Join(dir, name)) {
			return true
		}
	}
	return false
}

func notStarted(path string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return failure(exitNotFound, "cannot execute %s: the interpreter or loader that it names does not exist: install it", path)
	case errors.Is(err, fs.ErrPermission):
		return failure(exitNoExec, "cannot execute %s: permission denied: check that it is a program and its mode", path)
	}
	return failure(exitNoExec, "cannot execute %s: %v: check that it is a program for this machine", path, err)
}

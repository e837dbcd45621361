package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libsmcr/abi/host"
)

// built is a directory with the program as a user has it and a stand-in for the library beside it.
var built string

// withDefaultSignals: whoever started the tests may ignore signals (nohup, a background job); what they start must not.
func withDefaultSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		fmt.Fprintln(os.Stderr, <-c)
		os.Exit(1)
	}()
}

func TestMain(m *testing.M) {
	withDefaultSignals()
	code := 1
	defer func() { os.Exit(code) }()
	dir, err := os.MkdirTemp("", "smcr-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		built, err = filepath.EvalSymlinks(dir)
	}
	for _, c := range []*exec.Cmd{
		exec.Command("go", "build", "-o", filepath.Join(built, "smcr"), "."),
		exec.Command("gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", "../../hooks",
			"-o", filepath.Join(built, libraryName), "testdata/fake.c"),
	} {
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if err == nil {
			var out []byte
			if out, err = c.CombinedOutput(); err != nil {
				err = fmt.Errorf("%v: %w\n%s", c, err, out)
			}
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	code = m.Run()
}

// result is how a program ended and what it said.
type result struct {
	stdout, stderr string
	code           int // -1: by a signal
}

// outcome runs a command to its end.
func outcome(t *testing.T, c *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), c.ProcessState.ExitCode()}
}

// smcr is a command line of ours in an environment with a run directory of its own.
func smcr(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	c := exec.Command(filepath.Join(built, "smcr"), args...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SMCR_") && !strings.HasPrefix(e, "LD_") {
			c.Env = append(c.Env, e)
		}
	}
	dir := filepath.Join(t.TempDir(), "rundir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.Env = append(c.Env, "SMCR_RUN_DIR="+dir)
	return c
}

func envOf(c *exec.Cmd, key string) string {
	v, _ := lookup(c.Env, key)
	return v
}

// names lists what is in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-) differs from the output (+):\n%s", name, d)
	}
}

func TestMistakesGetOneLineAndCode2(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"rum"}, `smcr: unknown command "rum": did you mean "run"?`},
		{[]string{"frobnicate", "--now"}, `smcr: unknown flag: --now: see smcr --help`},
		{[]string{"frobnicate"}, `smcr: unknown command "frobnicate": see smcr help`},
		{[]string{"help", "rum"}, `smcr: unknown command "rum": did you mean "run"?`},
		{[]string{"help", "run", "x"}, `smcr: unknown command "run x": see smcr help`},
		{[]string{"--foo"}, `smcr: unknown flag: --foo: see smcr --help`},
		{[]string{"ss", "--foo"}, `smcr: unknown flag: --foo: see smcr ss --help`},
		{[]string{"ss", "x"}, `smcr: ss: unexpected "x": see smcr ss --help`},
		{[]string{"version", "x"}, `smcr: version: unexpected "x": see smcr version --help`},
		{[]string{"run"}, `smcr: run: no command: smcr run [options] -- CMD`},
		{[]string{"run", "--"}, `smcr: run: no command: smcr run [options] -- CMD`},
		{[]string{"run", "--off", "--require", "true"}, `smcr: run: --require and --off exclude each other: choose one`},
		{[]string{"run", "--report=", "true"}, `smcr: run: --report= without a file: name one, or leave out the = for a summary on stderr`},
	} {
		got := outcome(t, smcr(t, c.args...))
		if d := cmp.Diff(result{"", c.want + "\n", exitUsage}, got, cmp.AllowUnexported(result{})); d != "" {
			t.Errorf("%q:\n%s", c.args, d)
		}
	}
}

func TestHelpIsThereForEachCommand(t *testing.T) {
	for args, want := range map[string]string{
		"": "Available Commands:", "help": "Available Commands:", "help run": "--report", "run --help": "--report",
		"run -h": "Exit code:", "help ss": "--wide", "ss -h": "--json", "help version": "--json", "help help": "Explain",
	} {
		got := outcome(t, smcr(t, strings.Fields(args)...))
		if got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, want) || strings.Contains(got.stdout, "completion") {
			t.Errorf("smcr %s: %+v", args, got)
		}
	}
}

func TestVersionNamesTheABI(t *testing.T) {
	if got := outcome(t, smcr(t, "version")); got.code != 0 || !strings.Contains(got.stdout, fmt.Sprintf(", ABI %d, go", host.ABI)) {
		t.Errorf("%+v", got)
	}
	got := outcome(t, smcr(t, "version", "--json"))
	if got.code != 0 || !strings.Contains(got.stdout, fmt.Sprintf("\"abi\": %d", host.ABI)) || !strings.Contains(got.stdout, `"version": "`) {
		t.Errorf("%+v", got)
	}
}

// Who reads a reason in smcr ss looks it up in the README.
func TestTheReadmeNamesEveryReasonAndVariable(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	words := []string{"SMCR_ADAPT", "SMCR_CONFIG", "SMCR_RULES", "SMCR_LIBRARY", "SMCR_LOG", "SMCR_LOG_LEVEL", "SMCR_MODE", "SMCR_NUDGE", "SMCR_PROFILE", "SMCR_RMBE", "SMCR_RUN_DIR"}
	for r := host.ReasonNone + 1; !strings.HasPrefix(r.String(), "0x"); r++ {
		words = append(words, r.String())
	}
	for _, w := range words {
		if !strings.Contains(string(readme), "`"+w+"`") {
			t.Errorf("%s is not explained", w)
		}
	}
}

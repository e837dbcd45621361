// Package hook is the black-box ring of the kernel hook: smcr enable as root would type it, in a mount namespace and on a
// cgroup of the test's own, then handshakes between two network namespaces, looked at on the wire.
package hook

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"libsmcr/tests/harness"
)

const inside = "SMCR_HOOK_TEST"

// Where the hook is, and below it, where the tests' sockets are made.
var outer, inner string

// TestMain runs the tests in a child with its own mounts: the pins end with it, whatever happens, and we remove the cgroups.
func TestMain(m *testing.M) {
	if dir := os.Getenv(inside); dir != "" {
		os.Exit(run(m, dir))
	}
	code, err := around()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func around() (int, error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("the kernel hook can be tried by root only")
	}
	if _, err := os.Stat(smcr); err != nil {
		return 1, fmt.Errorf("%w: run make build first", err)
	}
	dir, err := os.MkdirTemp("", "smcr-hook-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), inside+"="+dir)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = c.Run()
	if cleanErr := clean(dir); cleanErr != nil {
		return 1, cleanErr
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

// clean removes the cgroups of a child that may not have come to it.
func clean(dir string) error {
	if err := unix.Mount("none", dir, "cgroup2", 0, ""); err != nil {
		return err
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	group := filepath.Join(dir, filepath.Base(dir))
	for _, d := range []string{filepath.Join(group, "inner"), group} {
		if err := os.Remove(d); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

func run(m *testing.M, dir string) int {
	outer = filepath.Join(dir, filepath.Base(dir))
	inner = filepath.Join(outer, "inner")
	home := filepath.Join(dir, "cgroup.procs")
	err := errors.Join(
		unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, ""),
		unix.Mount("none", dir, "cgroup2", 0, ""),
		os.Mkdir(outer, 0o755), os.Mkdir(inner, 0o755))
	if err == nil {
		home, err = enter(dir)
	}
	code := 1
	if err == nil {
		code = m.Run()
		err = os.WriteFile(home, []byte("0"), 0)
	}
	err = errors.Join(err, os.Remove(inner), os.Remove(outer))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// enter moves this process to the inner cgroup and returns where it was.
func enter(root string) (home string, err error) {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(groups)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			home = filepath.Join(root, path, "cgroup.procs")
		}
	}
	return home, os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte("0"), 0)
}

var smcr = filepath.Join(harness.Root(), "build", "smcr")

// tool runs smcr and returns all that it says.
func tool(args ...string) (string, int) {
	c := exec.Command(smcr, args...)
	out, _ := c.CombinedOutput()
	return string(out), c.ProcessState.ExitCode()
}

func enable(t *testing.T) string {
	t.Helper()
	out, code := tool("enable", "--cgroup", outer)
	if code != 0 {
		t.Fatal(out)
	}
	return out
}

func disable(t *testing.T) {
	t.Helper()
	if out, code := tool("disable"); code != 0 {
		t.Fatal(out)
	}
}

// hooked has the hook for one test.
func hooked(t *testing.T) {
	t.Helper()
	enable(t)
	t.Cleanup(func() { disable(t) })
}

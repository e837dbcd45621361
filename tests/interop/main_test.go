//go:build interop

// Package interop is the ring of the Linux kernel's own SMC: two virtual machines of the rig, which lies outside the project.
// On one the kernel's AF_SMC talks, on the other our programs; we look at both and at the wire between them.
package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"libsmcr/tests/harness"
)

var rig, overlay string

func TestMain(m *testing.M) {
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// prepare finds the rig, lets it make its images, and collects what the machine of our side needs.
func prepare() error {
	rig = findRig()
	if rig == "" {
		return errors.New("make interop needs the test rig: RIG names its folder (default: shared/rig beside the project)")
	}
	if os.Geteuid() != 0 {
		return errors.New("make interop needs root")
	}
	if err := harness.Compile(); err != nil {
		return err
	}
	built := filepath.Join(harness.Root(), "build")
	overlay = filepath.Join(built, "interop", "overlay")
	if err := os.RemoveAll(overlay); err != nil {
		return err
	}
	if err := os.MkdirAll(overlay, 0o755); err != nil {
		return err
	}
	if err := script(10*time.Minute, "prepare.sh"); err != nil { // the first time it downloads a kernel
		return err
	}
	afsmc := filepath.Join(built, "interop", "afsmc.so")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", afsmc, filepath.Join("afsmc", "afsmc.c")).CombinedOutput(); err != nil {
		return fmt.Errorf("afsmc.c: %w\n%s", err, out)
	}
	ip, err := exec.LookPath("ip")
	if err != nil {
		return err
	}
	if err := script(time.Minute, "add-bin.sh", overlay, ip+":"+ipTool, filepath.Join(built, "libsmcr.so"), afsmc, harness.App("bare"),
		"redis-server", "redis-cli", "redis-benchmark", "iperf3", filepath.Join(cache(), "bin", "rigt-dyn")+":/usr/local/bin/rigt-dyn"); err != nil {
		return err
	}
	smcr, err := os.ReadFile(filepath.Join(built, "smcr")) // static, which add-bin.sh does not expect
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(overlay, "usr/local/bin/smcr"), smcr, 0o755), modules(), unitTest("./hooks/lan", "lan.test"))
}

// unitTest adds a package's tests, for which this machine's kernel may not do.
func unitTest(pkg, name string) error {
	c := exec.Command("go", "test", "-c", "-tags", "interop", "-o", filepath.Join(overlay, "usr/local/bin", name), pkg)
	c.Dir, c.Env = harness.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", pkg, err, out)
	}
	return nil
}

// modules adds those of the machines' kernel that the rig leaves out.
func modules() error {
	version, err := os.ReadFile(filepath.Join(cache(), "kver"))
	if err != nil {
		return err
	}
	name := strings.TrimSpace(string(version))
	from, to := filepath.Join(cache(), "k", name, "img/lib/modules", name, "kernel"), filepath.Join(overlay, "lib/more")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, m := range slices.Concat(ipsecModules, vlanModules) {
		ko, err := exec.Command("xz", "-dc", filepath.Join(from, m+".ko.xz")).Output()
		if err != nil {
			return fmt.Errorf("%s: %w", m, err)
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(m)+".ko"), ko, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func cache() string {
	if dir := os.Getenv("RIG_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/smcr-rig"
}

// findRig goes upwards from the project, since a checkout may lie deeper.
func findRig() string {
	if dir := os.Getenv("RIG"); dir != "" {
		if _, err := os.Stat(filepath.Join(dir, "run.sh")); err == nil {
			return dir
		}
		return ""
	}
	for dir := harness.Root(); dir != "/"; {
		dir = filepath.Dir(dir)
		found := filepath.Join(dir, "shared", "rig")
		if _, err := os.Stat(filepath.Join(found, "run.sh")); err == nil {
			return found
		}
	}
	return ""
}

// script runs one of the rig's scripts to its end, or ends it and all that it started.
func script(limit time.Duration, name string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(rig, name), args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), errors.Join(ctx.Err(), err), out)
	}
	return nil
}

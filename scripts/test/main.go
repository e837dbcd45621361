// Command test runs go test over the whole project, or with the virtual machines, shows what failed and ends with
// "N passed, N failed". Further arguments are go test's: test all -run Redis runs what matches.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// The race detector needs the packages without cgo, and sees a sample of the engine's simulations; all of them run without
// it. The black-box ring runs alone, so that nothing disturbs its clocks.
var stages = map[string][]struct {
	name string
	args []string
}{
	"all": {
		{"unit tests with the race detector", []string{"-race", "-shuffle=on", "./abi/...", "./engine/...", "./verbs/...", "./rules/...", "./kernel/...", "./cmd/..."}},
		{"simulations, and unit tests with C", []string{"-shuffle=on", "./engine/...", "./hooks/...", "./preload/..."}},
		{"black-box tests", []string{"-p=1", "-timeout=20m", "./tests/..."}},
	},
	"interop": {
		{"against the kernel's SMC", []string{"-tags=interop", "-timeout=20m", "./tests/interop"}},
	},
}

type event struct {
	Action, Package, ImportPath, Test, Output string
	Elapsed                                   float64
}

// tally counts tests that have no subtests of their own: a parent that only groups is no test.
type tally struct {
	passed, failed, skipped int
	output                  map[string]*strings.Builder
	parents                 map[string]bool
}

func main() {
	t := tally{output: map[string]*strings.Builder{}, parents: map[string]bool{}}
	broken := false
	for _, stage := range stages[os.Args[1]] {
		began := time.Now()
		ok, err := t.run(append(append([]string{"test", "-json", "-count=1"}, os.Args[2:]...), stage.args...))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			ok = false
		}
		broken = broken || !ok
		fmt.Printf("%s: %.0f s\n", stage.name, time.Since(began).Seconds())
	}
	if broken && t.failed == 0 {
		t.failed = 1 // what did not build or crashed outside a test
	}
	line := fmt.Sprintf("%d passed, %d failed", t.passed, t.failed)
	if t.skipped > 0 {
		line += fmt.Sprintf(", %d skipped", t.skipped)
	}
	fmt.Println(line)
	if broken || t.passed == 0 {
		os.Exit(1)
	}
}

func (t *tally) run(args []string) (ok bool, err error) {
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	if err := cmd.Start(); err != nil {
		return false, err
	}
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var e event
		if json.Unmarshal(line, &e) != nil {
			os.Stdout.Write(line)
			continue
		}
		t.count(e)
	}
	return cmd.Wait() == nil, nil
}

func (t *tally) count(e event) {
	name := e.Package + " " + e.Test
	if e.ImportPath != "" { // a package that does not build
		fmt.Print(e.Output)
		return
	}
	if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
		t.parents[e.Package+" "+e.Test[:i]] = true
	}
	switch e.Action {
	case "output":
		if t.output[name] == nil {
			t.output[name] = &strings.Builder{}
		}
		t.output[name].WriteString(e.Output)
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	said := t.output[name]
	delete(t.output, name)
	if e.Action == "fail" && said != nil {
		fmt.Print(said)
	}
	if e.Test == "" {
		fmt.Printf("%-4s %s %.1f s\n", e.Action, e.Package, e.Elapsed)
		return
	}
	if t.parents[name] {
		return
	}
	switch e.Action {
	case "pass":
		t.passed++
	case "fail":
		t.failed++
	case "skip":
		t.skipped++
		fmt.Printf("skip %s%s", name, "\n")
	}
}

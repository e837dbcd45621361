// Package units runs the unit tests of the library's C files, which stand in hooks/testc: each *_test.c there is a program that exits with 0 if all is well. Its
// first comment says "build:" and which C files of the library it is linked with.
package units

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const dir = "../../hooks/testc"

// limit is far beyond what a test takes on a busy machine: it ends one that hangs.
const limit = 4 * time.Minute

var builds = map[string][]string{
	"plain":     nil,
	"sanitized": {"-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"},
}

var buildLine = regexp.MustCompile(`(?s)^/\*.*?build: (.*?)(?:\*/|\.\s|\n)`)

func TestC(t *testing.T) {
	programs, err := filepath.Glob(filepath.Join(dir, "*_test.c"))
	if err != nil || len(programs) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	for _, path := range programs {
		source := filepath.Base(path)
		for build, flags := range builds {
			t.Run(strings.TrimSuffix(source, "_test.c")+" "+build, func(t *testing.T) {
				program := compile(t, source, flags)
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				run := exec.CommandContext(ctx, program)
				run.Dir = t.TempDir()
				// Processes that a test kills or that end by _exit leave their memory to the kernel.
				run.Env = append(os.Environ(), "ASAN_OPTIONS=detect_leaks=0")
				if out, err := run.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	}
}

func compile(t *testing.T, source string, flags []string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, source))
	if err != nil {
		t.Fatal(err)
	}
	m := buildLine.FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s does not say what it is built with", source)
	}
	program := filepath.Join(t.TempDir(), strings.TrimSuffix(source, ".c"))
	args := append([]string{"-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread", "-I..", "-o", program, source}, flags...)
	for _, f := range strings.Fields(string(m[1])) {
		if strings.HasSuffix(f, ".c") {
			args = append(args, filepath.Join("..", f))
		}
	}
	gcc := exec.Command("gcc", args...)
	gcc.Dir = dir
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, out)
	}
	return program
}

// Package check tests the library as the loader and a program see it: the built object's shape, and lives of processes under it.
package check

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// build makes the library of the module in dir as `make build` does.
func build(t *testing.T, dir, out string) {
	t.Helper()
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	flags := strings.TrimSpace(run(t, "../..", nil, "make", "-s", "ldflags", "CURDIR="+abs, "MAP="+out+".map"))
	run(t, dir, nil, "go", "build", "-buildmode=c-shared", "-trimpath", "-o", out, "-ldflags", flags, "./preload")
	run(t, "../..", nil, "go", "run", "./preload/postlink", out, out+".map")
}

// names are the symbols that symbols.h lists, as the preprocessor expands exports.in.
func names(t *testing.T) (hooked []string, script string) {
	t.Helper()
	script = run(t, "..", nil, "cc", "-E", "-P", "-x", "c", "exports.in")
	_, list, ok := strings.Cut(script, "global:")
	list, _, ok2 := strings.Cut(list, "local:")
	if !ok || !ok2 {
		t.Fatalf("exports.in expands to\n%s", script)
	}
	hooked = strings.FieldsFunc(list, func(r rune) bool { return r == ';' || r == '\n' || r == ' ' })
	slices.Sort(hooked)
	return hooked, script
}

func exported(t *testing.T, lib string) []string {
	t.Helper()
	f, err := elf.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range syms {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	slices.Sort(got)
	return got
}

func TestExportsMapIsWhatSymbolsSay(t *testing.T) {
	_, want := names(t)
	got, err := os.ReadFile("../exports.map")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("exports.map is stale: go generate ./preload")
	}
}

func TestEveryHookedNameIsOneOfLibcs(t *testing.T) {
	libc := strings.Fields(run(t, ".", nil, "cc", "-print-file-name=libc.so.6"))[0]
	have := exported(t, libc)
	hooked, _ := names(t)
	if len(hooked) < 80 {
		t.Fatalf("only %d names", len(hooked))
	}
	for _, n := range hooked {
		if _, ok := slices.BinarySearch(have, n); !ok && n != "smcr_spare" {
			t.Errorf("%s: libc exports no such name", n)
		}
	}
}

func TestFortifiedTwinsHaveLibcsTypes(t *testing.T) {
	run(t, ".", nil, "cc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_FORTIFY_SOURCE=2", "-fsyntax-only", "testdata/chk.c")
}

func TestLibraryExportsTheHookedNamesAndNothingElse(t *testing.T) {
	lib := filepath.Join(t.TempDir(), "libsmcr.so")
	build(t, "../..", lib)
	shape(t, lib)
}

// touched: each page that a load touches is a fault, and these are most of what a program that needs no SMC-R pays. What is written,
// the start of the state behind the data included, lies in one page; what is read in the first 64 KiB.
func touched(t *testing.T, f *elf.File) {
	t.Helper()
	const page, first, head = 4096, 64 << 10, 1536
	section := func(name string) *elf.Section {
		s := f.Section(name)
		if s == nil {
			t.Fatalf("no section %s", name)
		}
		return s
	}
	shim := section(".shim")
	written := func(what string, at, size uint64) {
		if at/page != shim.Addr/page || (at+size-1)/page != shim.Addr/page {
			t.Errorf("%s at %#x, %d bytes: not in the page at %#x", what, at, size, shim.Addr/page*page)
		}
	}
	written("state", shim.Addr, head)
	for _, name := range []string{".init_array", ".dynamic", ".got", ".got.plt", ".data"} {
		written(name, section(name).Addr, section(name).Size)
	}
	value := func(tag elf.DynTag) uint64 {
		v, err := f.DynValue(tag)
		if err != nil || len(v) != 1 {
			t.Fatalf("%v: %v %v", tag, v, err)
		}
		return v[0]
	}
	rela := section(".rela.dyn")
	table, err := rela.Data()
	if err != nil {
		t.Fatal(err)
	}
	kept := value(elf.DT_RELASZ) + value(elf.DT_PLTRELSZ) // the PLT's follow
	for i := uint64(0); i < kept; i += 24 {
		written("relocation", binary.LittleEndian.Uint64(table[i:]), 8)
	}
	ends := map[string]uint64{"relocations": rela.Addr + kept}
	for _, name := range []string{".gnu.hash", ".dynsym", ".dynstr", ".gnu.version_r", ".plt", ".boot"} {
		ends[name] = section(name).Addr + section(name).Size
	}
	for name, end := range ends {
		if end > first {
			t.Errorf("%s ends at %#x", name, end)
		}
	}
}

func shape(t *testing.T, lib string) {
	t.Helper()
	hooked, _ := names(t)
	if got := exported(t, lib); !slices.Equal(got, hooked) {
		for _, n := range got {
			if !slices.Contains(hooked, n) {
				t.Errorf("%s is exported and not in symbols.h", n)
			}
		}
		for _, n := range hooked {
			if !slices.Contains(got, n) {
				t.Errorf("%s is in symbols.h and not exported", n)
			}
		}
	}
	f, err := elf.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		// Each spare takes as much of what glibc keeps for late comers.
		if p.Type == elf.PT_TLS && p.Memsz > 16 {
			t.Errorf("%d bytes of thread-local storage, 16 at most", p.Memsz)
		}
	}
	for tag, bit := range map[elf.DynTag]uint64{elf.DT_FLAGS: uint64(elf.DF_SYMBOLIC), elf.DT_FLAGS_1: uint64(elf.DF_1_NODELETE)} {
		if v, err := f.DynValue(tag); err != nil || len(v) != 1 || v[0]&bit == 0 {
			t.Errorf("%v lacks %#x: %v %v", tag, bit, v, err)
		}
	}
	if needed, _ := f.DynString(elf.DT_NEEDED); len(needed) != 1 || needed[0] != "libc.so.6" {
		t.Errorf("needs %v", needed)
	}
	// A loader ends a program for a name that it cannot find: what only glibc has is weak. Those in the file musl has, too.
	everywhere, err := os.ReadFile("testdata/libc.names")
	if err != nil {
		t.Fatal(err)
	}
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Section == elf.SHN_UNDEF && elf.ST_BIND(s.Info) == elf.STB_GLOBAL && !slices.Contains(strings.Fields(string(everywhere)), s.Name) {
			t.Errorf("%s is needed: weak, or has every libc got it?", s.Name)
		}
	}
	// Every program pays for these when it is loaded; Go's own are some thousands.
	if n, err := f.DynValue(elf.DT_RELACOUNT); err != nil || len(n) != 1 || n[0] > 500 {
		t.Errorf("%v relocations at load: was postlink run?", n)
	}
	touched(t, f)
	if v, err := f.DynValue(elf.DT_TEXTREL); err == nil && len(v) > 0 {
		t.Error("relocations in the text: a copy's image could not be compared with it")
	}
}

// fake is the library with testdata/hooks in package hooks' place: only preload is real.
var fake = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "smcr-check-"); err != nil {
		return "", err
	}
	for _, cp := range [][2]string{
		{"..", "preload"}, {"testdata/hooks", "hooks"}, {"../../hooks/shim.h", "hooks/shim.h"}, {"../../hooks/sys.h", "hooks/sys.h"},
		{"../../go.mod", "go.mod"}, {"../../go.sum", "go.sum"},
	} {
		if out, err := exec.Command("cp", "-rT", cp[0], filepath.Join(dir, cp[1])).CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%s: %w", out, err)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := fake(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

func TestLives(t *testing.T) {
	dir, err := fake()
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(dir, "libsmcr.so")
	build(t, dir, lib)
	shape(t, lib)
	prog, early := filepath.Join(dir, "life"), filepath.Join(dir, "early.so")
	run(t, ".", nil, "cc", "-O1", "-g", "-w", "-pthread", "-o", prog, "testdata/life.c")
	run(t, ".", nil, "cc", "-O1", "-w", "-shared", "-fPIC", "-o", early, "testdata/early.c")

	for _, tc := range []struct {
		name    string
		preload string
		env     []string
	}{
		{name: "cold"}, {name: "start"}, {name: "many_threads"}, {name: "storm"}, {name: "cancel"}, {name: "crash"}, {name: "ignored"},
		{name: "chain"}, {name: "fork_storm"}, {name: "fork_while_starting"}, {name: "forks"}, {name: "vforks"},
		{name: "spawns"}, {name: "exits"}, {name: "limits"}, {name: "sealed"}, {name: "syscalls"},
		{name: "environment", env: []string{"SMCR_RMBE=64k", "SMCR_MODE=require", "SMCR_PROFILE=safe", "SMCR_NUDGE=0"}},
		{name: "early", preload: early + " " + lib}, {name: "early", preload: lib + " " + early},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.preload == "" {
				tc.preload = lib
			}
			cmd := exec.Command(prog, tc.name)
			cmd.Env = append(append(os.Environ(), "LD_PRELOAD="+tc.preload), tc.env...)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			hang := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
			defer hang.Stop()
			if err := cmd.Wait(); err != nil || out.Len() > 0 {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// What a shell and its children do all day, with the library in each of them.
func TestEverydayProgramsDoNotNotice(t *testing.T) {
	dir, err := fake()
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(dir, "libsmcr.so")
	build(t, dir, lib)
	for _, args := range [][]string{
		{"/bin/true"},
		{"/bin/bash", "-c", "echo $(echo a | tr a b); cat <(echo x); (sleep 0.01 & wait); ls / | head -1; yes | head -1; exec echo end"},
		{"/usr/bin/python3", "-c", "import subprocess, os, socket\nprint(subprocess.run(['echo', 'hi'], capture_output=True).stdout)\n" +
			"p = os.fork()\nos._exit(3) if p == 0 else print(os.waitpid(p, 0)[1])\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(1), os.dup(0))"},
	} {
		native, nerr := exec.Command(args[0], args[1:]...).CombinedOutput()
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "LD_PRELOAD="+lib)
		got, err := cmd.CombinedOutput()
		if string(got) != string(native) || fmt.Sprint(err) != fmt.Sprint(nerr) {
			t.Errorf("%v: native %q %v, preloaded %q %v", args, native, nerr, got, err)
		}
	}
}

// Who interposes behind the library sees what it would see alone: only libc's own functions may be passed by.
func TestInterposersBehindTheLibrarySeeEveryCall(t *testing.T) {
	dir, err := fake()
	if err != nil {
		t.Fatal(err)
	}
	lib := filepath.Join(dir, "libsmcr.so")
	build(t, dir, lib)
	made := func(name, source, style string) string {
		so := filepath.Join(dir, name)
		run(t, ".", nil, "cc", "-O1", "-w", "-shared", "-fPIC", "-Wl,--hash-style="+style, "-o", so, source)
		return so
	}
	old, new, other := made("old.so", "testdata/behind.c", "sysv"), made("new.so", "testdata/behind.c", "gnu"), made("other.so", "testdata/early.c", "sysv")
	calls := func(preload string) string {
		return run(t, ".", []string{"LD_PRELOAD=" + preload}, "/usr/bin/python3", "-c",
			"import os\nf, g = os.open('/dev/zero', 0), os.open('/dev/null', 1)\nfor i in range(1000): os.write(g, os.read(f, 1))")
	}
	fixed := filepath.Join(dir, "fixed.so") // as with -z rodynamic: the loader may not add addresses to its dynamic section
	data, err := os.ReadFile(new)
	if err != nil {
		t.Fatal(err)
	}
	for i := range binary.LittleEndian.Uint16(data[56:]) {
		if at := int(binary.LittleEndian.Uint64(data[32:])) + int(i)*56; elf.ProgType(binary.LittleEndian.Uint32(data[at:])) == elf.PT_DYNAMIC {
			data[at+4] &^= byte(elf.PF_W)
		}
	}
	if err := os.WriteFile(fixed, data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, behind := range []string{new, old, other + " " + new, new + " " + other, fixed} {
		alone, both := calls(behind), calls(lib+" "+behind)
		if alone != both || !regexp.MustCompile(`^1\d{3} reads, 1\d{3} writes`).MatchString(alone) {
			t.Errorf("%s: alone %q, behind the library %q", behind, alone, both)
		}
	}
}

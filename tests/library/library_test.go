// Package library checks the built libsmcr.so: what it exports, what it needs, and how it is linked.
package library

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libsmcr/tests/harness"
)

func open(t *testing.T) (*elf.File, string) {
	t.Helper()
	path := filepath.Join(harness.Root(), "build", "libsmcr.so")
	f, err := elf.Open(path)
	if err != nil {
		t.Fatalf("%v: run make build first", err)
	}
	t.Cleanup(func() { f.Close() })
	return f, path
}

// listed is what preload/symbols.h says, by way of the version script that is generated from it.
func listed(t *testing.T) []string {
	t.Helper()
	script, err := os.ReadFile(filepath.Join(harness.Root(), "preload", "exports.map"))
	if err != nil {
		t.Fatal(err)
	}
	global, _, found := strings.Cut(string(script), "local:")
	if !found {
		t.Fatal("the version script hides nothing")
	}
	names := regexp.MustCompile(`\w+;`).FindAllString(global, -1)
	for i := range names {
		names[i] = strings.TrimSuffix(names[i], ";")
	}
	slices.Sort(names)
	return names
}

func TestExactlyTheListedNamesAreExported(t *testing.T) {
	f, _ := open(t)
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var exported []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			exported = append(exported, s.Name)
		}
	}
	slices.Sort(exported)
	want := listed(t)
	if diff := cmp.Diff(want, exported); diff != "" {
		t.Errorf("exports (-listed +exported):\n%s", diff)
	}
	if !slices.Contains(want, "smcr_spare") || !slices.Contains(want, "recv") {
		t.Errorf("the list lacks what it must have: %v", want)
	}
}

func TestThreadLocalStorageStaysSmall(t *testing.T) {
	f, _ := open(t)
	for _, p := range f.Progs {
		if p.Type == elf.PT_TLS && p.Memsz > 16 {
			t.Errorf("%d bytes of thread-local storage, at most 16: spares would run out of it", p.Memsz)
		}
	}
}

func TestItBindsItsOwnSymbolsAndIsNeverUnloaded(t *testing.T) {
	f, _ := open(t)
	if flags, err := f.DynValue(elf.DT_FLAGS_1); err != nil || len(flags) == 0 || flags[0]&uint64(elf.DF_1_NODELETE) == 0 {
		t.Errorf("no NODELETE in %x (%v)", flags, err)
	}
	flags, err := f.DynValue(elf.DT_FLAGS)
	if err != nil {
		t.Fatal(err)
	}
	symbolic, err := f.DynValue(elf.DT_SYMBOLIC)
	if err != nil {
		t.Fatal(err)
	}
	if len(symbolic) == 0 && (len(flags) == 0 || flags[0]&uint64(elf.DF_SYMBOLIC) == 0) {
		t.Errorf("not linked with -Bsymbolic")
	}
}

func TestItNeedsNothingButLibc(t *testing.T) {
	f, _ := open(t)
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, library := range needed {
		if !slices.Contains([]string{"libc.so.6", "ld-linux-x86-64.so.2"}, library) {
			t.Errorf("it needs %s", library)
		}
	}
}

func TestItStaysSmall(t *testing.T) {
	_, path := open(t)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	const most = 6 << 20
	if st.Size() > most {
		t.Errorf("%d bytes, at most %d: relocations are start-up time, and every spare repeats them", st.Size(), most)
	}
}

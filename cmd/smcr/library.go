package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const libraryName = "libsmcr.so"

// Where ld.so looks by default on Debian, Fedora and their like.
var libraryDirs = []string{"/usr/local/lib", "/usr/local/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib"}

// findLibrary returns the path of libsmcr.so: what SMCR_LIBRARY says, else beside smcr or in ../lib, else where ld.so looks.
func findLibrary(exe string, dirs []string) (string, error) {
	if path := os.Getenv("SMCR_LIBRARY"); path != "" {
		if !isFile(path) {
			return "", fmt.Errorf("SMCR_LIBRARY=%s is not a file: set it to the path of %s", path, libraryName)
		}
		return preloadable(path)
	}
	bin := filepath.Dir(exe)
	candidates := []string{bin, filepath.Join(bin, "..", "lib")}
	candidates = append(candidates, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...)
	for _, dir := range append(candidates, dirs...) {
		if path := filepath.Join(dir, libraryName); dir != "" && isFile(path) {
			return preloadable(path)
		}
	}
	return "", fmt.Errorf("cannot find %s beside %s, in ../lib or where ld.so looks: set SMCR_LIBRARY to its path", libraryName, exe)
}

// checkLibrary refuses what ld.so leaves out with a message of its own, and any other library: the program would go on over
// plain TCP, also where SMC-R is required.
func checkLibrary(path string) error {
	f, err := elf.Open(path)
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("cannot read %s: %w: every user who runs programs under it must be able to", path, e.Err)
	}
	if err == nil {
		defer f.Close()
		symbols, _ := f.DynamicSymbols()
		if f.Machine == elf.EM_X86_64 && slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == "smcr_spare" }) {
			return nil
		}
	}
	return fmt.Errorf("%s is not %s: set SMCR_LIBRARY to its path", path, libraryName)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// preloadable makes the path absolute: the program may change its directory before it starts another. Blanks and colons end a
// name in LD_PRELOAD, and nothing quotes them.
func preloadable(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err == nil && strings.ContainsAny(path, " :") {
		err = fmt.Errorf("LD_PRELOAD cannot hold the path %q: set SMCR_LIBRARY to one without blanks and colons", path)
	}
	return path, err
}

// preload puts the library in front of what LD_PRELOAD holds, unless it is there: smcr run within smcr run.
func preload(env []string, library string) []string {
	old, _ := lookup(env, "LD_PRELOAD")
	info, err := os.Stat(library)
	for _, name := range strings.FieldsFunc(old, func(r rune) bool { return r == ' ' || r == ':' }) {
		if other, err2 := os.Stat(name); err == nil && err2 == nil && os.SameFile(info, other) {
			return env
		}
	}
	if old != "" {
		library += ":" + old
	}
	return setenv(env, "LD_PRELOAD", library)
}

func lookup(env []string, key string) (string, bool) {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, key+"="); ok {
			return v, true
		}
	}
	return "", false
}

// setenv replaces a variable in its place or adds it.
func setenv(env []string, key, value string) []string {
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, key+"=") })
	if i < 0 {
		return append(env, key+"="+value)
	}
	env[i] = key + "=" + value
	return env
}

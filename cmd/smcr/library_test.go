package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func write(t *testing.T, path, content string, mode os.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTheLibraryIsFoundNearTheProgramFirst(t *testing.T) {
	root := t.TempDir()
	t.Setenv("SMCR_LIBRARY", "")
	t.Setenv("LD_LIBRARY_PATH", filepath.Join(root, "ldpath"))
	exe := filepath.Join(root, "bin", "smcr")
	dirs := []string{filepath.Join(root, "none"), filepath.Join(root, "default")}
	want := func(path string) {
		t.Helper()
		if got, err := findLibrary(exe, dirs); err != nil || got != path {
			t.Errorf("%q, %v; want %q", got, err, path)
		}
	}
	if _, err := findLibrary(exe, dirs); err == nil || !strings.Contains(err.Error(), "set SMCR_LIBRARY") {
		t.Errorf("found nothing: %v", err)
	}
	// Each place is preferred to those before it.
	for _, place := range []string{"default", "ldpath", "lib", "bin"} {
		want(write(t, filepath.Join(root, place, libraryName), "", 0o600))
	}
	t.Setenv("SMCR_LIBRARY", write(t, filepath.Join(root, "mine.so"), "", 0o600))
	want(filepath.Join(root, "mine.so"))

	t.Setenv("SMCR_LIBRARY", filepath.Join(root, "missing.so"))
	if _, err := findLibrary(exe, dirs); err == nil || !strings.Contains(err.Error(), "SMCR_LIBRARY="+root+"/missing.so is not a file") {
		t.Errorf("%v", err)
	}
	t.Setenv("SMCR_LIBRARY", write(t, filepath.Join(root, "a b.so"), "", 0o600))
	if _, err := findLibrary(exe, dirs); err == nil || !strings.Contains(err.Error(), "without blanks") {
		t.Errorf("%v", err)
	}
}

func TestARelativeLibraryPathBecomesAbsolute(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "lib.so", "", 0o600)
	t.Setenv("SMCR_LIBRARY", "lib.so")
	if got, err := findLibrary("/bin/smcr", nil); err != nil || !filepath.IsAbs(got) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestPreloadKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	lib := write(t, filepath.Join(dir, libraryName), "", 0o600)
	link := filepath.Join(dir, "link.so")
	if err := os.Symlink(lib, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ old, want string }{
		{"", lib},
		{"/a.so /b.so", lib + ":/a.so /b.so"},
		{"libjemalloc.so.2", lib + ":libjemalloc.so.2"},
		{lib, lib},
		{"/a.so:" + lib, "/a.so:" + lib},
		{"/a.so " + link + ":/b", "/a.so " + link + ":/b"},
	} {
		if d := cmp.Diff([]string{"A=1", "LD_PRELOAD=" + c.want, "Z=a \"b'"}, preload([]string{"A=1", "LD_PRELOAD=" + c.old, "Z=a \"b'"}, lib)); d != "" {
			t.Errorf("%q:\n%s", c.old, d)
		}
	}
	if d := cmp.Diff([]string{"A=1", "LD_PRELOAD=" + lib}, preload([]string{"A=1"}, lib)); d != "" {
		t.Error(d)
	}
}

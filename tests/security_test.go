package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

// docs/security.md names a test for each promise: it must exist.
func TestSecurityNamesWhatExists(t *testing.T) {
	read := func(path string) string {
		b, err := os.ReadFile(filepath.Join(harness.Root(), path))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	var tests strings.Builder
	err := fs.WalkDir(os.DirFS(harness.Root()), ".", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "_test.go") {
			tests.WriteString(read(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	doc := read("docs/security.md")
	names := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(doc, -1)
	inC := regexp.MustCompile("`(hooks/testc/[a-z_]+\\.c)` `([a-z_]+)`").FindAllStringSubmatch(doc, -1)
	if len(names) < 30 || len(inC) < 5 {
		t.Fatalf("%d tests named, %d of C", len(names), len(inC))
	}
	for _, n := range names {
		if !strings.Contains(tests.String(), "func "+n[1]+"(t *testing.T)") {
			t.Errorf("%s does not exist", n[1])
		}
	}
	for _, n := range inC {
		if !strings.Contains(read(n[1]), "static void "+n[2]+"(void)") {
			t.Errorf("%s in %s does not exist", n[2], n[1])
		}
	}
	for _, promise := range regexp.MustCompile(`(?m)^\| [^|]+ \| [^|]+ \| [^|]*\|$`).FindAllString(doc, -1) {
		if !strings.Contains(promise, "Test") && !strings.Contains(promise, "testc") && !strings.Contains(promise, "| tests |") && !strings.Contains(promise, "another user | plain") {
			t.Errorf("no test for: %s", promise)
		}
	}
}

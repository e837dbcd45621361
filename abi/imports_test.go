package abi

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestImports: the wire packages are pure. Whatever is not listed could do I/O, look at the clock, lock or log.
func TestImports(t *testing.T) {
	allowed := map[string]bool{
		"bytes": true, "encoding/binary": true, "errors": true, "fmt": true, "hash/crc32": true, "net/netip": true, "slices": true, "strings": true,
		"libsmcr/abi/roce": true, "libsmcr/abi/smc": true,
	}
	for _, dir := range []string{"smc", "clc", "llc", "cdc", "roce"} {
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range file.Imports {
				path, err := strconv.Unquote(spec.Path.Value)
				if err != nil || !allowed[path] || dir == "roce" && strings.HasPrefix(path, "libsmcr/") {
					t.Errorf("%s imports %s", name, spec.Path.Value)
				}
			}
		}
	}
}

package engine

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/rfc-map.md names a test for each section: it must exist, and so must the files.
func TestRFCMapNamesWhatExists(t *testing.T) {
	doc, err := os.ReadFile("../docs/rfc-map.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests strings.Builder
	for _, dir := range []string{".", "fsm", "../tests/hook", "../tests/interop", "../hooks/lan", "../verbs/simfab"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			tests.Write(b)
		}
	}
	names := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(doc), -1)
	if len(names) < 20 {
		t.Fatalf("%d tests named", len(names))
	}
	for _, n := range names {
		if !strings.Contains(tests.String(), "func "+n[1]+"(") {
			t.Errorf("%s does not exist", n[1])
		}
	}
	// Cases of table tests stand in quotes.
	cases := regexp.MustCompile(`"([^"\n]+)"`).FindAllStringSubmatch(string(doc), -1)
	if len(cases) < 50 {
		t.Errorf("%d cases named", len(cases))
	}
	for _, c := range cases {
		if !strings.Contains(tests.String(), `"`+c[1]+`"`) {
			t.Errorf("%q is no case of a test", c[1])
		}
	}
	for _, p := range regexp.MustCompile("`((?:engine|abi|verbs|kernel)/[a-z/._]+)`").FindAllStringSubmatch(string(doc), -1) {
		if _, err := os.Stat("../" + p[1]); err != nil {
			t.Error(err)
		}
	}
}

package kernel

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestObjectIsThatOfItsSource needs no compiler: whoever changes the source has to generate.
func TestObjectIsThatOfItsSource(t *testing.T) {
	sums, err := os.ReadFile("smcr.sum")
	if err != nil {
		t.Fatal(err)
	}
	var now strings.Builder
	for _, name := range []string{"smcr.bpf.c", "smcr.h", "smcr_bpfel.o"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&now, "%x  %s\n", sha256.Sum256(data), name)
	}
	if now.String() != string(sums) {
		t.Errorf("go generate ./kernel is due: there is\n%sand generated was\n%s", now.String(), sums)
	}
}

// TestProgramsAndMaps: what is loaded is what is pinned, nothing besides.
func TestProgramsAndMaps(t *testing.T) {
	spec, err := loadSmcr()
	if err != nil {
		t.Fatal(err)
	}
	if len(spec.Programs) != len(programs) || len(spec.Maps) != len(maps) {
		t.Errorf("the object holds %d programs and %d maps, pinned are %d and %d", len(spec.Programs), len(spec.Maps), len(programs), len(maps))
	}
	for _, p := range programs {
		if s := spec.Programs[p.in]; s == nil || s.AttachType != p.attach {
			t.Errorf("%s: %+v is not for %v", p.in, s, p.attach)
		}
	}
	for _, name := range maps {
		if spec.Maps[name] == nil {
			t.Errorf("no map %s", name)
		}
	}
}

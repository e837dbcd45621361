package host

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The C compiler is the only reader of the header: what it prints is compared with, or becomes, our Go.

var update = flag.Bool("update", false, "write reasons.go from the header")

// compiled runs a C program that sees the header and returns its output.
func compiled(t *testing.T, body string) string {
	t.Helper()
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "t.c"), filepath.Join(dir, "t")
	prog := "#include \"shim.h\"\n#include <stdio.h>\nint main(void)\n{\n" + body + "\treturn 0;\n}\n"
	if err := os.WriteFile(src, []byte(prog), 0o600); err != nil {
		t.Fatal(err)
	}
	hooks, err := filepath.Abs("../../hooks")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-std=gnu11", "-I", hooks, "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// fact is something that C and Go must agree on: a C expression and our value of it.
type fact struct {
	c    string
	ours uint64
}

func check(t *testing.T, facts []fact) {
	t.Helper()
	var body, want strings.Builder
	for _, f := range facts {
		fmt.Fprintf(&body, "\tprintf(\"%%s %%llu\\n\", %q, (unsigned long long)(%s));\n", f.c, f.c)
		fmt.Fprintf(&want, "%s %d\n", f.c, f.ours)
	}
	lines := func(s string) []string { return slices.Collect(strings.Lines(s)) }
	if d := cmp.Diff(lines(compiled(t, body.String())), lines(want.String())); d != "" {
		t.Errorf("C (-) and Go (+) differ:\n%s", d)
	}
}

func TestStructuresAreThoseOfTheHeader(t *testing.T) {
	var facts []fact
	for c, typ := range map[string]reflect.Type{
		"proc_page": reflect.TypeFor[ProcPage](), "block": reflect.TypeFor[Block](),
		"rules": reflect.TypeFor[Rules](), "rule": reflect.TypeFor[Rule](),
	} {
		facts = append(facts, fact{"sizeof(struct " + c + ")", uint64(typ.Size())})
		for i := range typ.NumField() {
			f := typ.Field(i)
			member, ok := f.Tag.Lookup("c")
			if !ok && f.Name != "_" {
				t.Errorf("%v.%s has no name in C", typ, f.Name)
			}
			if ok {
				facts = append(facts,
					fact{fmt.Sprintf("offsetof(struct %s, %s)", c, member), uint64(f.Offset)},
					fact{fmt.Sprintf("sizeof(((struct %s *)0)->%s)", c, member), uint64(f.Type.Size())})
			}
		}
	}
	check(t, append(facts, fact{"sizeof(struct proc_page)", PageSize}, fact{"sizeof(struct block)", BlockSize}))
}

func TestValuesAreThoseOfTheHeader(t *testing.T) {
	check(t, []fact{
		{"SMCR_ABI", ABI}, {"SOCK_MAX", SockMax}, {"PROC_MAGIC", ProcMagic}, {"SLAB_BLOCKS", SlabBlocks},
		{"S_FREE", uint64(Free)}, {"S_ACCEPTED", uint64(Accepted)}, {"S_OFFERED", uint64(Offered)}, {"S_CLC", uint64(CLC)},
		{"S_ACTIVE", uint64(Active)}, {"S_FLUSH", uint64(Flush)}, {"S_TCP", uint64(TCP)},
		{"BF_SHUT_RD", uint64(ShutRD)}, {"BF_SHUT_WR", uint64(ShutWR)}, {"BF_FIN", uint64(FIN)}, {"BF_GONE", uint64(Gone)},
		{"BF_RESET", uint64(Reset)}, {"BF_NONBLOCK", uint64(NonBlock)}, {"BF_TIMEO", uint64(Timeo)},
		{"BF_PUNCHED", uint64(Punched)}, {"BF_STAGE_FULL", uint64(StageFull)}, {"BF_BROKEN", uint64(Broken)},
		{"BF_SHUT_LATER", uint64(ShutLater)}, {"BF_LOST", uint64(Lost)}, {"BF_REQUIRE", uint64(Require)},
		{"USE_SMC", uint64(UseSMC)}, {"USE_TCP", uint64(UseTCP)}, {"USE_REQUIRE", uint64(UseRequire)},
		{"RULE_CLIENT", uint64(RoleClient)}, {"RULE_SERVER", uint64(RoleServer)}, {"RULES_MAGIC", RulesMagic}, {"RULES_MAX", RulesMax},
		{"ENG_COLD", uint64(Cold)}, {"ENG_STARTING", uint64(Starting)}, {"ENG_READY", uint64(Ready)}, {"ENG_DEAD", uint64(Dead)},
		{"AF_INET", AFInet}, {"AF_INET6", AFInet6},
		{"R_COUNT", uint64(len(reasonWords))},
	})
}

func TestReasonsAreThoseOfTheHeader(t *testing.T) {
	list := compiled(t, "#define X(s, w) printf(\"%d %s %s\\n\", R_##s, #s, w);\nSMCR_REASONS(X)\n")
	var consts, words bytes.Buffer
	for line := range strings.Lines(list) {
		var n int
		var symbol, word string
		if _, err := fmt.Sscanf(line, "%d %s %s\n", &n, &symbol, &word); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		var camel string
		for part := range strings.SplitSeq(symbol, "_") {
			camel += part[:1] + strings.ToLower(part[1:])
		}
		fmt.Fprintf(&consts, "\tReason%s Reason = %d\n", camel, n)
		fmt.Fprintf(&words, "\t%d: %q,\n", n, word)
	}
	want, err := format.Source([]byte("// Code generated from hooks/shim.h by go generate. DO NOT EDIT.\n\npackage host\n\nconst (\n" + consts.String() +
		")\n\nvar reasonWords = [...]string{\n" + words.String() + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("reasons.go", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile("reasons.go")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(got), string(want)); d != "" {
		t.Errorf("reasons.go (-) and hooks/shim.h (+) differ, run go generate ./abi/host:\n%s", d)
	}
}

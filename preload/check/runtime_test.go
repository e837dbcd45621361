package check

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// What preload/start.c edits in the Go runtime before it starts is pinned here, in the sources of the runtime that is linked.

type source struct {
	fset  *token.FileSet
	files []*ast.File
}

func goroot(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func runtimeSource(t *testing.T, names ...string) source {
	t.Helper()
	s := source{fset: token.NewFileSet()}
	for _, n := range names {
		f, err := parser.ParseFile(s.fset, filepath.Join(goroot(t), "src/runtime", n), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		s.files = append(s.files, f)
	}
	return s
}

func (s source) print(n any) string {
	var b bytes.Buffer
	_ = printer.Fprint(&b, s.fset, n)
	return b.String()
}

// spec finds a top-level declaration of that name and prints it.
func (s source) decl(t *testing.T, name string) string {
	t.Helper()
	for _, f := range s.files {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.Name == name {
					return s.print(d)
				}
			case *ast.GenDecl:
				for _, sp := range d.Specs {
					switch sp := sp.(type) {
					case *ast.TypeSpec:
						if sp.Name.Name == name {
							return s.print(sp)
						}
					case *ast.ValueSpec:
						if sp.Names[0].Name == name {
							return s.print(sp)
						}
					}
				}
			}
		}
	}
	t.Fatalf("the runtime has no %s any more", name)
	return ""
}

func TestSigtableHasTheLayoutOfStructSigtab(t *testing.T) {
	s := runtimeSource(t, "signal_unix.go", "sigtab_linux_generic.go", "runtime2.go")
	want := "sigTabT struct {\n\tflags\tint32\n\tname\tstring\n}"
	if got := s.decl(t, "sigTabT"); strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(want), " ") {
		t.Errorf("sigTabT is now\n%s", got)
	}
	table := s.decl(t, "sigtable")
	if !strings.HasPrefix(table, "sigtable = [...]sigTabT{") || strings.Count(table, "{")-1 != 65 {
		t.Errorf("sigtable has %d rows, struct sigtab's user expects 65", strings.Count(table, "{")-1)
	}
	// GO_SIG_DEFAULT, GO_SIG_UNBLOCK, GO_SIG_FLAGS of start.c
	flags := map[string]int{}
	ast.Inspect(s.files[2], func(n ast.Node) bool {
		if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
			for i, sp := range d.Specs {
				v := sp.(*ast.ValueSpec)
				if i == 0 && (v.Names[0].Name != "_SigNotify" || s.print(v.Values[0]) != "1 << iota") {
					return true
				}
				flags[v.Names[0].Name] = i
			}
		}
		return true
	})
	if flags["_SigDefault"] != 4 || flags["_SigUnblock"] != 7 || len(flags) != 9 {
		t.Errorf("the flags of sigtable changed: %v", flags)
	}
}

func TestPollerIsMadeAsStartDoesIt(t *testing.T) {
	s := runtimeSource(t, "netpoll_epoll.go", "netpoll.go", "runtime.go")
	want, err := os.ReadFile("testdata/netpoll.txt")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.decl(t, "netpollinit") + "\n" + s.decl(t, "netpollGenericInit") + "\n"; got != string(want) {
		t.Errorf("the runtime makes its poller differently now; look at give_poller in start.c:\n%s", got)
	}
	for name, want := range map[string]string{
		"epfd": "epfd int32 = -1", "netpollEventFd": "netpollEventFd uintptr", "netpollInited": "netpollInited atomic.Uint32",
		"godebugDefault": "godebugDefault string",
	} {
		if got := strings.Join(strings.Fields(s.decl(t, name)), " "); got != want {
			t.Errorf("runtime.%s is now %q", name, got)
		}
	}
}

func TestRuntimeIsTheOneThatWasLookedAt(t *testing.T) {
	if v := runtime.Version(); !strings.HasPrefix(v, "go1.26") {
		t.Errorf("%s: compare what start.c edits with this version's runtime, then pin it here", v)
	}
}

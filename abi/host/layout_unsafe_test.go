package host

import (
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

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
	field := func(typ, member string, offset, size uintptr) {
		facts = append(facts,
			fact{fmt.Sprintf("offsetof(struct %s, %s)", typ, member), uint64(offset)},
			fact{fmt.Sprintf("sizeof(((struct %s *)0)->%s)", typ, member), uint64(size)})
	}
	var p ProcPage
	facts = append(facts, fact{"sizeof(struct proc_page)", uint64(unsafe.Sizeof(p))}, fact{"sizeof(struct proc_page)", PageSize})
	field("proc_page", "magic", unsafe.Offsetof(p.Magic), unsafe.Sizeof(p.Magic))
	field("proc_page", "abi", unsafe.Offsetof(p.ABI), unsafe.Sizeof(p.ABI))
	field("proc_page", "pid", unsafe.Offsetof(p.PID), unsafe.Sizeof(p.PID))
	field("proc_page", "nblocks", unsafe.Offsetof(p.NBlocks), unsafe.Sizeof(p.NBlocks))
	field("proc_page", "start", unsafe.Offsetof(p.Start), unsafe.Sizeof(p.Start))
	field("proc_page", "comm", unsafe.Offsetof(p.Comm), unsafe.Sizeof(p.Comm))
	field("proc_page", "engine", unsafe.Offsetof(p.Engine), unsafe.Sizeof(p.Engine))
	field("proc_page", "engine_reason", unsafe.Offsetof(p.EngineReason), unsafe.Sizeof(p.EngineReason))
	field("proc_page", "ring_bytes", unsafe.Offsetof(p.RingBytes), unsafe.Sizeof(p.RingBytes))
	field("proc_page", "smc_conns", unsafe.Offsetof(p.SMCConns), unsafe.Sizeof(p.SMCConns))
	field("proc_page", "tcp_conns", unsafe.Offsetof(p.TCPConns), unsafe.Sizeof(p.TCPConns))
	field("proc_page", "tx_bytes", unsafe.Offsetof(p.TxBytes), unsafe.Sizeof(p.TxBytes))
	field("proc_page", "rx_bytes", unsafe.Offsetof(p.RxBytes), unsafe.Sizeof(p.RxBytes))
	field("proc_page", "fallbacks", unsafe.Offsetof(p.Fallbacks), unsafe.Sizeof(p.Fallbacks))

	var b Block
	facts = append(facts, fact{"sizeof(struct block)", uint64(unsafe.Sizeof(b))}, fact{"sizeof(struct block)", BlockSize})
	field("block", "state", unsafe.Offsetof(b.State), unsafe.Sizeof(b.State))
	field("block", "flags", unsafe.Offsetof(b.Flags), unsafe.Sizeof(b.Flags))
	field("block", "gen", unsafe.Offsetof(b.Gen), unsafe.Sizeof(b.Gen))
	field("block", "role", unsafe.Offsetof(b.Role), unsafe.Sizeof(b.Role))
	field("block", "reason", unsafe.Offsetof(b.Reason), unsafe.Sizeof(b.Reason))
	field("block", "diagnosis", unsafe.Offsetof(b.Diagnosis), unsafe.Sizeof(b.Diagnosis))
	field("block", "so_error", unsafe.Offsetof(b.SoError), unsafe.Sizeof(b.SoError))
	field("block", "procs", unsafe.Offsetof(b.Procs), unsafe.Sizeof(b.Procs))
	field("block", "lock", unsafe.Offsetof(b.Lock), unsafe.Sizeof(b.Lock))
	field("block", "rx", unsafe.Offsetof(b.RxLock), unsafe.Sizeof(b.RxLock))
	field("block", "tx", unsafe.Offsetof(b.TxLock), unsafe.Sizeof(b.TxLock))
	field("block", "st", unsafe.Offsetof(b.Arm), unsafe.Sizeof(b.Arm))
	field("block", "cookie", unsafe.Offsetof(b.Cookie), unsafe.Sizeof(b.Cookie))
	field("block", "peer_cookie", unsafe.Offsetof(b.PeerCookie), unsafe.Sizeof(b.PeerCookie))
	field("block", "stage_len", unsafe.Offsetof(b.StageLen), unsafe.Sizeof(b.StageLen))
	field("block", "stage_done", unsafe.Offsetof(b.StageDone), unsafe.Sizeof(b.StageDone))
	field("block", "rcvtimeo_us", unsafe.Offsetof(b.RcvTimeoUS), unsafe.Sizeof(b.RcvTimeoUS))
	field("block", "sndtimeo_us", unsafe.Offsetof(b.SndTimeoUS), unsafe.Sizeof(b.SndTimeoUS))
	field("block", "rcvlowat", unsafe.Offsetof(b.RcvLowat), unsafe.Sizeof(b.RcvLowat))
	field("block", "rx_size", unsafe.Offsetof(b.RxSize), unsafe.Sizeof(b.RxSize))
	field("block", "tx_size", unsafe.Offsetof(b.TxSize), unsafe.Sizeof(b.TxSize))
	field("block", "rx_token", unsafe.Offsetof(b.RxToken), unsafe.Sizeof(b.RxToken))
	field("block", "tx_token", unsafe.Offsetof(b.TxToken), unsafe.Sizeof(b.TxToken))
	field("block", "rmb", unsafe.Offsetof(b.RMB), unsafe.Sizeof(b.RMB))
	field("block", "rmbe", unsafe.Offsetof(b.RMBE), unsafe.Sizeof(b.RMBE))
	field("block", "peer", unsafe.Offsetof(b.Peer), unsafe.Sizeof(b.Peer))
	field("block", "lgr", unsafe.Offsetof(b.LinkGroup), unsafe.Sizeof(b.LinkGroup))
	field("block", "tx_bytes", unsafe.Offsetof(b.TxBytes), unsafe.Sizeof(b.TxBytes))
	field("block", "rx_bytes", unsafe.Offsetof(b.RxBytes), unsafe.Sizeof(b.RxBytes))
	field("block", "fd", unsafe.Offsetof(b.FD), unsafe.Sizeof(b.FD))
	field("block", "pid", unsafe.Offsetof(b.PID), unsafe.Sizeof(b.PID))
	field("block", "family", unsafe.Offsetof(b.Family), unsafe.Sizeof(b.Family))
	field("block", "lport", unsafe.Offsetof(b.LocalPort), unsafe.Sizeof(b.LocalPort))
	field("block", "pport", unsafe.Offsetof(b.PeerPort), unsafe.Sizeof(b.PeerPort))
	field("block", "laddr", unsafe.Offsetof(b.LocalAddr), unsafe.Sizeof(b.LocalAddr))
	field("block", "paddr", unsafe.Offsetof(b.PeerAddr), unsafe.Sizeof(b.PeerAddr))
	field("block", "provider", unsafe.Offsetof(b.Provider), unsafe.Sizeof(b.Provider))
	field("block", "since_ns", unsafe.Offsetof(b.SinceNS), unsafe.Sizeof(b.SinceNS))
	check(t, facts)
}

func TestValuesAreThoseOfTheHeader(t *testing.T) {
	check(t, []fact{
		{"SMCR_ABI", ABI}, {"SOCK_MAX", SockMax}, {"PROC_MAGIC", ProcMagic}, {"SLAB_BLOCKS", SlabBlocks},
		{"S_FREE", uint64(Free)}, {"S_ACCEPTED", uint64(Accepted)}, {"S_OFFERED", uint64(Offered)}, {"S_CLC", uint64(CLC)},
		{"S_ACTIVE", uint64(Active)}, {"S_FLUSH", uint64(Flush)}, {"S_TCP", uint64(TCP)},
		{"BF_SHUT_RD", uint64(ShutRD)}, {"BF_SHUT_WR", uint64(ShutWR)}, {"BF_FIN", uint64(FIN)}, {"BF_GONE", uint64(Gone)},
		{"BF_RESET", uint64(Reset)}, {"BF_NONBLOCK", uint64(NonBlock)}, {"BF_TIMEO", uint64(Timeo)},
		{"BF_PUNCHED", uint64(Punched)}, {"BF_STAGE_FULL", uint64(StageFull)}, {"BF_BROKEN", uint64(Broken)},
		{"ENG_COLD", uint64(Cold)}, {"ENG_STARTING", uint64(Starting)}, {"ENG_READY", uint64(Ready)}, {"ENG_DEAD", uint64(Dead)},
		{"AF_INET", afInet}, {"AF_INET6", afInet6},
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

package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	signals = 65 // the kernel's 64, and 0
	sigIgn  = 1
)

// keepIgnored makes the signals that were ignored when smcr started ignored again, so that the program starts as it would have
// without us: nohup, sh's background jobs and systemd (SIGPIPE) rely on it. The Go runtime takes over all but SIGHUP and SIGINT
// before main; the dispositions from before are in runtime.fwdSig and nowhere else, hence the look into our own symbol table.
// A stripped smcr does without. A test runs this against the runtime at hand.
func keepIgnored() {
	self, err := elf.Open("/proc/self/exe")
	if err != nil {
		return
	}
	defer self.Close()
	before, args := symbol(self, "runtime.fwdSig"), symbol(self, "os.Args")
	if before.Size != uint64(unsafe.Sizeof([signals]uintptr{})) || args.Value == 0 {
		return
	}
	// Relative to a variable that we can name, so that it also holds for a position independent executable.
	table := (*[signals]uintptr)(unsafe.Add(unsafe.Pointer(&os.Args), int(before.Value)-int(args.Value)))
	for n := 1; n < signals; n++ {
		if s := syscall.Signal(n); table[n] == sigIgn && s != unix.SIGKILL && s != unix.SIGSTOP {
			signal.Ignore(s)
		}
	}
}

// symbol looks one symbol up. It is elf.File.Symbols without making a string of each of thousands, which takes longer than the
// rest of smcr run.
func symbol(f *elf.File, name string) (found elf.Sym64) {
	table, names := f.Section(".symtab"), f.Section(".strtab")
	if table == nil || names == nil {
		return found
	}
	text, err := names.Data()
	at := bytes.Index(text, []byte("\x00"+name+"\x00"))
	if err != nil || at < 0 {
		return found
	}
	entries, err := table.Data()
	if err != nil {
		return found
	}
	for e := entries; len(e) >= elf.Sym64Size; e = e[elf.Sym64Size:] {
		if f.ByteOrder.Uint32(e) == uint32(at+1) {
			_, _ = binary.Decode(e, f.ByteOrder, &found)
			break
		}
	}
	return found
}

// dieBy ends smcr by the signal that ended the program, so that a shell sees the same. It returns where that does not work.
func dieBy(s syscall.Signal) {
	// One core file, the program's, is enough.
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	runtime.LockOSThread()
	// Not signal.Reset: that would bring the runtime's own handlers back, which print a trace.
	var dfl struct{ handler, flags, restorer, mask uint64 }
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&dfl)), 0, 8, 0, 0)
	none := dfl.mask
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&none)), 0, 8, 0, 0)
	_ = unix.Kill(os.Getpid(), s)
	time.Sleep(100 * time.Millisecond)
}

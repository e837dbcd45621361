package hooks

// #include "shim.h"
import "C"

import (
	"bytes"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/engine"
)

// share is the part of the memory, and of the program's descriptors, that the library may take: 1/8.
const share = 8

// limits decides whether more memory may be promised to rings.
type limits struct {
	sh     *C.struct_shim
	memory uint64 // of the cgroup or the machine, bytes
	files  uint64 // RLIMIT_NOFILE
	used   uint64 // promised by this process
	fds    uint64 // descriptors of ours, see hide
	others uint64 // promised by the other processes when last looked at
	looked engine.Instant
}

// lookAgain is how old the sum of the other processes' promises may be.
const lookAgain = engine.Instant(500 * time.Millisecond)

func newLimits(sh *C.struct_shim) *limits {
	m := &limits{sh: sh, memory: memoryLimit()}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err == nil {
		m.files = r.Cur
	}
	return m
}

// reserve promises n more bytes, or takes -n back. false: the connection is to be plain TCP. All processes of the user count,
// since they share the memory.
func (m *limits) reserve(n int64) bool {
	if n > 0 {
		if t := now(); m.looked == 0 || t-m.looked > lookAgain {
			m.others, m.looked = othersRings(m.sh), t
		}
		if m.fds*share > m.files || (m.others+m.used+uint64(n))*share > m.memory {
			return false
		}
	}
	m.used += uint64(n)
	if p := m.sh.proc; p != nil {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&p.ring_bytes)), m.used)
	}
	return true
}

// othersRings adds up what the other live processes of this run directory promised.
func othersRings(sh *C.struct_shim) (sum uint64) {
	fd := int(C.reg_dir())
	if fd < 0 {
		return 0
	}
	defer unix.Close(fd)
	buf := make([]byte, 8192)
	var names []string
	for range 1024 {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n <= 0 {
			break
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
	var page C.struct_proc_page
	b := unsafe.Slice((*byte)(unsafe.Pointer(&page)), unsafe.Sizeof(page))
	for _, name := range names {
		pid, ok := pidOf(name)
		if !ok || pid == unix.Getpid() || unix.Kill(pid, 0) == unix.ESRCH {
			continue
		}
		f, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if n, err := unix.Read(f, b); err == nil && n == len(b) && page.magic == C.PROC_MAGIC && page.abi == C.SMCR_ABI {
			sum += uint64(page.ring_bytes)
		}
		_ = unix.Close(f)
	}
	return sum
}

// pidOf reads the process id from the name of a process page, p.PID.START.
func pidOf(name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, "p.")
	if !ok {
		return 0, false
	}
	s, _, _ := strings.Cut(rest, ".")
	pid, err := strconv.Atoi(s)
	return pid, err == nil && pid > 0
}

// memoryLimit is the smallest of the machine's memory and what the process's cgroups allow.
func memoryLimit() uint64 {
	var si unix.Sysinfo_t
	limit := uint64(1) << 62
	if err := unix.Sysinfo(&si); err == nil {
		limit = si.Totalram * uint64(si.Unit)
	}
	for line := range strings.Lines(readFile("/proc/self/cgroup")) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		root, file := "/sys/fs/cgroup", "memory.max"
		if f[0] != "0" {
			if !strings.Contains(","+f[1]+",", ",memory,") {
				continue
			}
			root, file = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// A limit of an ancestor binds too; in a container the path may not exist, and the root is its own.
		for path := f[2]; ; path = path[:max(strings.LastIndexByte(path, '/'), 0)] {
			s := strings.TrimSpace(readFile(root + path + "/" + file))
			if v, err := strconv.ParseUint(s, 10, 64); err == nil && v < limit {
				limit = v
			}
			if path == "" || path == "/" {
				break
			}
		}
	}
	return limit
}

// readFile reads a small file of /proc or /sys without the runtime's poller, which would open descriptors.
func readFile(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var all bytes.Buffer
	b := make([]byte, 4096)
	for range 16 {
		n, err := unix.Read(fd, b)
		if err != nil || n <= 0 {
			break
		}
		all.Write(b[:n])
	}
	return all.String()
}

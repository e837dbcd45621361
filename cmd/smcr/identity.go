package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// identity names a process for good: a pid alone is used again. Start is field 22 of /proc/PID/stat.
type identity struct {
	pid   int
	start uint64
}

func (id identity) String() string { return fmt.Sprintf("%d.%d", id.pid, id.start) }

// parseIdentity reads what String writes.
func parseIdentity(s string) (identity, bool) {
	pid, start, _ := strings.Cut(s, ".")
	p, err1 := strconv.ParseUint(pid, 10, 31)
	n, err2 := strconv.ParseUint(start, 10, 64)
	id := identity{int(p), n}
	return id, err1 == nil && err2 == nil && p > 0 && id.String() == s
}

// identify returns the identity of a running process; false when there is none or it is a zombie.
func identify(pid int) (identity, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return identity{}, false
	}
	// The command in field 2 may hold blanks and parentheses; what follows the last one does not.
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return identity{}, false
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	return identity{pid, start}, err == nil
}

func (id identity) alive() bool {
	now, ok := identify(id.pid)
	return ok && now == id
}

// ownPIDNS is the pid namespace that our pids belong to, as pages name it; 0 = unknown.
func ownPIDNS() uint32 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/pid", &st) != nil {
		return 0
	}
	return uint32(st.Ino)
}

// command returns the name of a running process, or the fallback: after an exec the kernel knows better than its page.
func command(pid int, fallback string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return printable(fallback)
	}
	return printable(strings.TrimSuffix(string(b), "\n"))
}

// printable keeps a name that another program chose from driving the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

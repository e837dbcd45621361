package hook

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// getsockopt with any buffer, which x/sys does not have.
func getsockopt(fd, level, name int, b []byte) ([]byte, error) {
	n := uint32(len(b))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return nil, e
	}
	return b[:n], nil
}

package shm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

const (
	pageSize = 4096
	// A file that cannot shrink cannot raise SIGBUS under a mapping, one that cannot grow is all there is, and the
	// third seal makes the other two final.
	seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
)

// memory is a sealed memfd, mapped. Pages appear when they are touched.
type memory struct {
	d    *Device
	fd   int
	b    []byte
	used int // MRs
}

// AllocMemory returns zeroed memory of at least size bytes, in whole pages.
func (d *Device) AllocMemory(size int) (verbs.Memory, error) {
	if d.closed {
		return nil, verbs.ErrClosed
	}
	if size <= 0 || size > maxRegion {
		return nil, fmt.Errorf("%w: %d bytes", verbs.ErrMemory, size)
	}
	size = (size + pageSize - 1) &^ (pageSize - 1)
	// Sizing a file beyond this limit would raise SIGXFSZ in the program.
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &lim); err != nil || uint64(size) > lim.Cur {
		return nil, fmt.Errorf("%w: RLIMIT_FSIZE %d (%v)", verbs.ErrMemory, lim.Cur, err)
	}
	// Kernels before 6.3 do not know the flag, some later ones insist on it.
	fd, err := unix.MemfdCreate("smcr-rmb", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate("smcr-rmb", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: memfd_create: %w", verbs.ErrMemory, err)
	}
	if fd, err = d.hide(fd); err != nil {
		return nil, err
	}
	b, err := sealAndMap(fd, size)
	if err != nil {
		d.cfg.CloseFD(fd)
		return nil, fmt.Errorf("%w: %w", verbs.ErrMemory, err)
	}
	d.open.memories++
	return &memory{d: d, fd: fd, b: b}, nil
}

func sealAndMap(fd, size int) ([]byte, error) {
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, failed("ftruncate", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, failed("F_ADD_SEALS", err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return b, failed("mmap", err)
}

// failed names the call that went wrong; nil stays nil.
func failed(call string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", call, err)
}

func (m *memory) Bytes() []byte { return m.b }

// Zero punches a hole: the pages are given back and read as zeros.
func (m *memory) Zero(off, n int) error {
	if m.b == nil {
		return verbs.ErrClosed
	}
	if off < 0 || n < 0 || off > len(m.b) || n > len(m.b)-off || off%pageSize != 0 || n%pageSize != 0 {
		return fmt.Errorf("shm: zeroing %d bytes at %d of %d", n, off, len(m.b))
	}
	if n == 0 {
		return nil
	}
	if unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n)) != nil {
		clear(m.b[off:][:n])
	}
	return nil
}

func (m *memory) Close() error {
	if m.b == nil {
		return verbs.ErrClosed
	}
	if m.used > 0 {
		return verbs.ErrBusy
	}
	err := unix.Munmap(m.b)
	m.b = nil
	m.d.cfg.CloseFD(m.fd)
	m.d.open.memories--
	return err
}

// mr is a registration: an RKey and an address that only those know who were told.
type mr struct {
	region
	pd     *pd
	mem    *memory
	access verbs.Access
}

func (r *mr) Bytes() []byte    { return r.mem.b }
func (r *mr) RKey() roce.RKey  { return r.key }
func (r *mr) Addr() roce.VAddr { return r.addr }

func (r *mr) Close() error {
	if r.pd.mrs[r.key] != r {
		return verbs.ErrClosed
	}
	delete(r.pd.mrs, r.key)
	r.mem.used--
	for _, q := range r.pd.qps {
		q.unexport(r)
	}
	return nil
}

// offered is a region that a peer exported, not mapped yet.
type offered struct {
	region
	from roce.GID
	src  roce.QPN
	fd   int
}

// remote is a mapped region of a peer.
type remote struct {
	region
	d    *Device
	q    *qp // whose MapRemote finds it again; nil once that is closed
	b    []byte
	refs int
}

func (r *remote) Bytes() []byte    { return r.b }
func (r *remote) RKey() roce.RKey  { return r.key }
func (r *remote) Addr() roce.VAddr { return r.addr }

func (r *remote) Close() error {
	if r.refs == 0 {
		return verbs.ErrClosed
	}
	if r.refs--; r.refs > 0 {
		return nil
	}
	if r.q != nil {
		delete(r.q.maps, r.key)
	}
	return r.unmap()
}

func (r *remote) unmap() error {
	err := unix.Munmap(r.b)
	r.b = nil
	r.d.open.maps--
	return err
}

// errSeals: a peer that does not follow the protocol, or wants to harm us.
var errSeals = errors.New("shm: exported memory is not a sealed memfd of the announced size")

// mapOffered checks the descriptor and maps it.
func mapOffered(fd int, size uint64) ([]byte, error) {
	got, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || got&seals != seals {
		return nil, errSeals
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || uint64(st.Size) != size {
		return nil, errSeals
	}
	// Memory of huge pages can be sealed too, but raises SIGBUS when the pool is empty.
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		return nil, errSeals
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("%w: mmap: %w", verbs.ErrMemory, err)
	}
	return b, nil
}

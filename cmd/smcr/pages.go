package main

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"libsmcr/abi/host"
)

const (
	pagePrefix   = "p."
	reportPrefix = "run-"
	maxFiles     = 1 << 16 // files looked at in all; more is not ours
	maxDepth     = 8       // report directories within one another
)

// process is what one page file said when it was read.
type process struct {
	identity
	comm   string
	alive  bool
	here   bool // its pid means something here; of another pid namespace's processes we cannot tell whether they live
	page   host.ProcPage
	blocks []host.Block // in use
}

var errNotWritten = errors.New("not written yet")

// pageFile is the name of a process page somewhere below a run directory.
type pageFile struct {
	identity
	path string
}

// pageFiles lists the page files in dir and in the report directories within it.
func pageFiles(dir string) ([]pageFile, error) {
	var found []pageFile
	left := maxFiles
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		for left > 0 {
			entries, err := d.ReadDir(min(left, 1024))
			left -= len(entries)
			for _, e := range entries {
				if id, ok := strings.CutPrefix(e.Name(), pagePrefix); ok && e.Type().IsRegular() {
					if id, ok := parseIdentity(id); ok {
						found = append(found, pageFile{id, filepath.Join(dir, e.Name())})
					}
				} else if strings.HasPrefix(e.Name(), reportPrefix) && e.IsDir() && depth < maxDepth {
					// Gone or not readable by now: nothing to show.
					_ = walk(filepath.Join(dir, e.Name()), depth+1)
				}
			}
			if err != nil || len(entries) == 0 {
				break
			}
		}
		return nil
	}
	err := walk(dir, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return found, err
}

// readPages reads every page below dir, oldest process first. What cannot be read becomes a problem, unless it just vanished or
// is being made.
func readPages(dir string) (found []process, problems []error) {
	files, err := pageFiles(dir)
	if err != nil {
		return nil, []error{err}
	}
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	for _, f := range files {
		p, st, err := readPage(f)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, errNotWritten):
		case err != nil:
			problems = append(problems, err)
		case !seen[inode{uint64(st.Dev), st.Ino}]:
			seen[inode{uint64(st.Dev), st.Ino}] = true
			found = append(found, p)
		}
	}
	slices.SortFunc(found, func(a, b process) int {
		if a.start != b.start {
			return cmp.Compare(a.start, b.start)
		}
		return cmp.Compare(a.pid, b.pid)
	})
	return found, problems
}

// readPage reads one page. Its process may write, cut or remove the file meanwhile, so it is read and never mapped.
func readPage(f pageFile) (process, *syscall.Stat_t, error) {
	p := process{identity: f.identity}
	file, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return p, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return p, nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return p, nil, fmt.Errorf("%s: not a file: remove it", f.path)
	}
	head := make([]byte, host.PageSize)
	if n, _ := file.ReadAt(head, 0); n < 8 {
		return p, st, errNotWritten
	} else if clear(head[n:]); p.page.Decode(head) != nil {
		return p, st, errNotWritten // never: head has the size
	} else if p.page.Magic == 0 {
		return p, st, errNotWritten
	} else if p.page.Magic != host.ProcMagic {
		return p, st, fmt.Errorf("%s: not a process page: remove it", f.path)
	} else if p.page.ABI != host.ABI {
		return p, st, fmt.Errorf("process %d (%s) runs version %d of the library's structures, this smcr knows %d: use the smcr of that library",
			f.pid, command(f.pid, "?"), p.page.ABI, host.ABI)
	} else if n < host.PageSize || p.page.PID != uint32(f.pid) || p.page.Start != f.start {
		return p, st, fmt.Errorf("%s: damaged process page: remove it", f.path)
	}
	p.here = p.page.PIDNS == ownPIDNS() || p.page.PIDNS == 0
	if p.here {
		p.alive = f.alive()
	} else { // its number means nothing here, but its mapping holds a lock as long as it lives
		p.alive = p.page.Held == 0 || unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
	}
	p.comm = printable(p.page.Command())
	if p.alive && p.here {
		p.comm = command(f.pid, p.page.Command())
	}
	slab := make([]byte, host.SlabBlocks*host.BlockSize)
	for i := uint32(0); i < min(p.page.NBlocks, host.SockMax); i += host.SlabBlocks {
		n, err := file.ReadAt(slab, host.BlocksOffset+int64(i)*host.BlockSize)
		for b := slab[:n]; len(b) >= host.BlockSize; b = b[host.BlockSize:] {
			if host.ConnState(binary.LittleEndian.Uint32(b)) == host.Free {
				continue
			}
			var block host.Block
			if block.Decode(b) == nil {
				p.blocks = append(p.blocks, block)
			}
		}
		if err != nil {
			break
		}
	}
	return p, st, nil
}

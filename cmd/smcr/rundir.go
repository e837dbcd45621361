package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runDir is where the processes of this user keep their pages.
func runDir() (string, error) {
	if dir := os.Getenv("SMCR_RUN_DIR"); dir != "" {
		return filepath.Abs(dir)
	}
	return fmt.Sprintf("/dev/shm/smcr-%d", os.Geteuid()), nil
}

// checkDir makes sure that nobody else can put files into dir. A directory that does not exist is fs.ErrNotExist.
func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.IsDir():
		return fmt.Errorf("%s is not a directory: remove it or set SMCR_RUN_DIR", dir)
	case st.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("%s belongs to user %d: set SMCR_RUN_DIR to a directory of yours", dir, st.Uid)
	case info.Mode()&fs.ModeSticky != 0: // /tmp or /dev/shm, which must stay as they are
		return fmt.Errorf("%s is open to other users: set SMCR_RUN_DIR to a directory of its own, %s", dir, filepath.Join(dir, "smcr"))
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s is open to other users: chmod 700 %s", dir, dir)
	}
	return nil
}

// checkParent makes sure that dir could be made.
func checkParent(dir string) error {
	if err := unix.Access(filepath.Dir(dir), unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("cannot make %s: %w: set SMCR_RUN_DIR to a directory of yours", dir, err)
	}
	return checkRoom(filepath.Dir(dir))
}

// A registry and a page with some connections need no more.
const roomNeeded = 512 << 10

// checkRoom makes sure that the library can make its files in dir.
func checkRoom(dir string) error {
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("cannot write to %s: %w: set SMCR_RUN_DIR to a directory of yours", dir, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err == nil && st.Blocks > 0 && st.Bavail*uint64(st.Bsize) < roomNeeded {
		return fmt.Errorf("the file system of %s is full: make room, or set SMCR_RUN_DIR to a directory elsewhere", dir)
	}
	return nil
}

// maxReportDir is the longest path that the library takes.
const maxReportDir = 255

// newReportDir makes the directory that the pages of one run go to. A run within a run reports to its own directory, which lies
// in the outer one's, so that the outer report has these processes too.
func newReportDir() (string, error) {
	parent := os.Getenv("SMCR_REPORT_DIR")
	if parent == "" || !filepath.IsAbs(parent) || checkDir(parent) != nil {
		dir, err := runDir()
		if err != nil {
			return "", err
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("cannot make the run directory: %w: set SMCR_RUN_DIR", err)
		}
		if err := cmp.Or(checkDir(dir), checkRoom(dir)); err != nil {
			return "", err
		}
		sweep(dir)
		parent = dir
	}
	self, ok := identify(os.Getpid())
	if !ok {
		return "", errors.New("cannot read /proc: mount it")
	}
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("%s%v.%d-", reportPrefix, self, ownPIDNS()))
	if err != nil {
		return "", fmt.Errorf("cannot make the report's directory: %w: set SMCR_RUN_DIR", err)
	}
	if len(dir) > maxReportDir {
		_ = os.Remove(dir)
		return "", fmt.Errorf("%s: too long for the library: set SMCR_RUN_DIR to a shorter path", dir)
	}
	return dir, nil
}

// sweep removes the report directories of runs that were killed.
func sweep(dir string) {
	for _, d := range reportDirs(dir) {
		if deserted(d, 0) {
			retire(d)
		}
	}
}

// reportDirs lists the report directories in dir; what cannot be read has none.
func reportDirs(dir string) (found []string) {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	entries, _ := d.ReadDir(maxFiles)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), reportPrefix) && e.IsDir() {
			found = append(found, filepath.Join(dir, e.Name()))
		}
	}
	return found
}

// deserted reports whether the smcr that made a report directory, and those of the runs within, are gone.
func deserted(dir string, depth int) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), reportPrefix), "-")
	at := strings.LastIndexByte(name, '.')
	if at < 0 || name[at+1:] != fmt.Sprint(ownPIDNS()) {
		return false // of another pid namespace
	}
	id, ok := parseIdentity(name[:at])
	if !ok || id.alive() || depth > maxDepth {
		return false
	}
	for _, d := range reportDirs(dir) {
		if !deserted(d, depth+1) {
			return false
		}
	}
	return true
}

// retire removes a report directory. The pages in it are links to those in the run directory, which stay while their processes
// run; should one be missing there, smcr ss gets it back. In a run within a run all stays where it is, for the outer one.
func retire(dir string) {
	parent := filepath.Dir(dir)
	if strings.HasPrefix(filepath.Base(parent), reportPrefix) {
		return
	}
	files, _ := pageFiles(dir)
	for _, f := range files {
		if f.alive() {
			_ = os.Rename(f.path, filepath.Join(parent, filepath.Base(f.path)))
		}
	}
	_ = os.RemoveAll(dir)
}

// waitForPages waits until no process runs whose page lies below dir, at most for the given time.
func waitForPages(dir string, limit time.Duration) {
	const slice = 100 * time.Millisecond // new pages may appear while old ones are waited for
	for end := time.Now().Add(limit); ; {
		files, _ := pageFiles(dir)
		var live []unix.PollFd
		running := false
		for _, f := range files {
			if len(live) == 64 || !f.alive() {
				continue
			}
			running = true
			if fd, err := unix.PidfdOpen(f.pid, 0); err == nil {
				live = append(live, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			}
		}
		wait := min(time.Until(end), slice)
		if running && wait > 0 {
			// One is gone, or time is up, or a signal came: look again in each case.
			_, _ = unix.Poll(live, int(wait.Milliseconds())+1)
		}
		for _, p := range live {
			_ = unix.Close(int(p.Fd))
		}
		if !running || wait <= 0 {
			return
		}
	}
}

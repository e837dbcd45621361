// Package kernel is the hook in the kernel that puts the TCP option of RFC 7609 §3.1 on the handshakes of sockets that offer
// SMC-R: three BPF programs on a cgroup (smcr.bpf.c), reached by the socket options of smcr.h, pinned so that they outlive
// whoever loaded them.
package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

//go:generate ./generate

// Of smcr.h.
const (
	SolSMCR = 0x534d43

	OptOffer = 1
	OptPeer  = 2
	OptWord  = 3
)

const (
	bpffs = "/sys/fs/bpf"
	pins  = bpffs + "/smcr"
	btf   = "/sys/kernel/btf/vmlinux"
)

// program says where one of the BPF programs goes. Marks can be set only while the last one is there, and only then must the
// others be.
type program struct {
	name   string // of its pin
	in     string // of the object
	attach ebpf.AttachType
}

var programs = []program{
	{"tcp", smcrProgSmcrTcp, ebpf.AttachCGroupSockOps},
	{"getsockopt", smcrProgSmcrGetsockopt, ebpf.AttachCGroupGetsockopt},
	{"setsockopt", smcrProgSmcrSetsockopt, ebpf.AttachCGroupSetsockopt},
}

var maps = []string{smcrMapMarks, smcrMapListeners, smcrMapRefused}

func (p program) pin() string { return filepath.Join(pins, p.name) }

// Change is what Enable did.
type Change int

const (
	Unchanged Change = iota
	Attached
	Updated
)

// Enable attaches the hook to a cgroup of version 2, or to all of them if the path is empty. What is there already stays if it is
// the same and is replaced in its place if it is not: sockets keep their marks, unless those are of another kind.
func Enable(cgroup string) (at string, did Change, err error) {
	unlock, err := lock()
	if err != nil {
		return "", 0, err
	}
	defer unlock()
	at, err = cgroupAt(cgroup)
	if err != nil {
		return "", 0, err
	}
	if _, err := os.Stat(btf); err != nil {
		return "", 0, fmt.Errorf("this kernel has no type information (%s): CONFIG_DEBUG_INFO_BTF is needed", btf)
	}
	if err := os.Mkdir(pins, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", 0, err
	}
	var id unix.Stat_t
	if err := unix.Stat(at, &id); err != nil {
		return "", 0, fmt.Errorf("%s: %w", at, err)
	}
	present := map[string]attached{}
	for _, p := range programs {
		a, err := p.look()
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", 0, fmt.Errorf("%s: %w: smcr disable removes it", p.pin(), err)
		case a.cgroup == 0: // its cgroup is gone
			a.link.Close()
			if err := os.Remove(p.pin()); err != nil {
				return "", 0, err
			}
		default:
			defer a.link.Close()
			if a.cgroup != id.Ino {
				return "", 0, fmt.Errorf("the kernel hook is on %s already: smcr disable first", cgroupByID(a.cgroup))
			}
			present[p.name] = a
		}
	}
	loaded, err := load()
	if errors.Is(err, ebpf.ErrMapIncompatible) { // a version with other marks: those sockets are plain
		clear(present)
		if err = errors.Join(remove(), os.Mkdir(pins, 0o755)); err == nil {
			loaded, err = load()
		}
	}
	if err != nil {
		tidy(present)
		return "", 0, err
	}
	defer loaded.Close()
	for _, p := range programs {
		old, there := present[p.name]
		switch same, err := p.put(at, loaded.Programs[p.in], old); {
		case err != nil:
			tidy(present)
			return "", 0, err
		case !there:
			did = Attached
		case !same && did == Unchanged:
			did = Updated
		}
	}
	return at, did, nil
}

// put attaches a program, or replaces another version of it.
func (p program) put(at string, prog *ebpf.Program, old attached) (same bool, err error) {
	if old.link != nil {
		info, err := prog.Info()
		if err != nil || info.Tag == old.Tag && !old.stale(info) {
			return err == nil, err
		}
		return false, old.link.Update(prog)
	}
	l, err := link.AttachCgroup(link.CgroupOptions{Path: at, Attach: p.attach, Program: prog})
	if err != nil {
		return false, fmt.Errorf("%s: attaching %s: %w", at, p.name, err)
	}
	defer l.Close()
	return false, l.Pin(p.pin())
}

// stale: the same program, but on maps that have been replaced.
func (a attached) stale(now *ebpf.ProgramInfo) bool {
	used, ok := now.MapIDs()
	return !ok || fmt.Sprint(used) != fmt.Sprint(a.maps)
}

// load loads the programs with the maps that are pinned.
func load() (*ebpf.Collection, error) {
	spec, err := loadSmcr()
	if err != nil {
		return nil, err
	}
	for _, name := range maps {
		spec.Maps[name].Pinning = ebpf.PinByName
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: pins}})
	if err != nil {
		return nil, fmt.Errorf("this kernel (%s) does not take the programs: %w", release(), err)
	}
	return loaded, nil
}

// tidy takes away what a failed Enable has made, unless there was a hook before.
func tidy(present map[string]attached) {
	if len(present) == 0 {
		remove()
	}
}

// Disable detaches and removes the hook; false = there was none. Established connections do not notice, and who has the option on
// his SYN-ACK gets his second to learn that they are SMC-R.
func Disable() (bool, error) {
	unlock, err := lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	if _, err := os.Stat(pins); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return true, remove()
}

// How long programs have to learn what their handshakes have shown: they can ask as long as the hook is there.
const (
	alone   = 100 * time.Millisecond // a connect that is over
	serving = time.Second            // an ACK that is on its way, an accept
)

// quiet makes the hook answer no more. Who was answered, and is not accepted yet, would else be plain here and SMC-R to its peer.
func quiet() (wait time.Duration, err error) {
	listeners, err := ebpf.LoadPinnedMap(filepath.Join(pins, smcrMapListeners), nil)
	if err != nil {
		return 0, nil // half a hook: it answers nobody
	}
	defer listeners.Close()
	wait = alone
	var cookie uint64
	for err = listeners.NextKey(nil, &cookie); err == nil; err = listeners.NextKey(nil, &cookie) {
		wait = serving
		if err := listeners.Delete(cookie); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return 0, err
		}
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		return 0, err
	}
	return wait, nil
}

func remove() error {
	var errs []error
	for i := len(programs) - 1; i >= 0; i-- {
		p := programs[i]
		if i == len(programs)-2 { // nobody can be marked any more
			wait, err := quiet()
			errs = append(errs, err)
			time.Sleep(wait)
		}
		if a, err := p.look(); err == nil {
			// Removing the pin would do, but later.
			if err := a.link.Detach(); err != nil && a.cgroup != 0 {
				errs = append(errs, fmt.Errorf("detaching %s: %w", p.name, err))
			}
			a.link.Close()
		}
		errs = append(errs, unpin(p.pin()))
	}
	for _, name := range maps {
		errs = append(errs, unpin(filepath.Join(pins, name)))
	}
	return errors.Join(append(errs, os.Remove(pins))...)
}

func unpin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Program is one attached program.
type Program struct {
	Name string `json:"name"`
	ID   uint32 `json:"id"`
	Tag  string `json:"tag"`
}

// attached is a program as its pin shows it.
type attached struct {
	Program
	link   link.Link
	cgroup uint64 // 0 = its cgroup is gone
	maps   []ebpf.MapID
}

func (p program) look() (a attached, err error) {
	if a.link, err = link.LoadPinnedLink(p.pin(), nil); err != nil {
		return a, err
	}
	defer func() {
		if err != nil {
			a.link.Close()
		}
	}()
	about, err := a.link.Info()
	if err != nil {
		return a, err
	}
	if about.Cgroup() == nil {
		return a, errors.New("is no program on a cgroup")
	}
	a.cgroup = about.Cgroup().CgroupId
	prog, err := ebpf.NewProgramFromID(about.Program)
	if err != nil {
		return a, err
	}
	defer prog.Close()
	info, err := prog.Info()
	if err != nil {
		return a, err
	}
	a.Program = Program{p.name, uint32(about.Program), info.Tag}
	a.maps, _ = info.MapIDs()
	return a, nil
}

// Status is what can be said of the hook.
type Status struct {
	Serves   bool      `json:"serves"` // sockets that the asking process makes
	Cgroup   string    `json:"cgroup"` // "" = attached nowhere, or nobody may know
	Programs []Program `json:"programs"`
	Problem  string    `json:"problem,omitempty"`
}

// Look asks the kernel as a program would, and then, which needs privilege, the pins.
func Look() Status {
	s := Status{Serves: serves(), Programs: []Program{}}
	for _, p := range programs {
		a, err := p.look()
		switch {
		case errors.Is(err, fs.ErrNotExist) && len(s.Programs) == 0:
			continue
		case errors.Is(err, fs.ErrPermission):
			s.Problem = "only root sees where it is attached"
			return s
		case err != nil:
			s.Problem = fmt.Sprintf("%s: %v: smcr enable repairs it", p.pin(), err)
			continue
		}
		a.link.Close()
		if a.cgroup == 0 {
			s.Problem = "its cgroup has been removed: smcr enable attaches it again"
			continue
		}
		s.Cgroup = cgroupByID(a.cgroup)
		s.Programs = append(s.Programs, a.Program)
	}
	if n := len(s.Programs); n > 0 && n < len(programs) && s.Problem == "" {
		s.Problem = "programs are missing: smcr enable repairs it"
	}
	return s
}

// serves withdraws an offer that was not made: only the hook knows that this succeeds.
func serves() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, SolSMCR, OptOffer, 0) == nil
}

// lock keeps two of us from working on the pins at once, and finds out whether we may.
func lock() (unlock func(), err error) {
	var st unix.Statfs_t
	if !privileged() { // first: who may not could not mount anything either
		return nil, errors.New("the kernel hook can be changed only by root, with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN")
	}
	if err := unix.Statfs(bpffs, &st); err != nil || st.Type != unix.BPF_FS_MAGIC {
		return nil, fmt.Errorf("no bpf filesystem on %s: mount -t bpf bpf %s", bpffs, bpffs)
	}
	dir, err := os.Open(bpffs)
	if err == nil {
		err = unix.Flock(int(dir.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, err
	}
	return func() { dir.Close() }, nil
}

func privileged() bool {
	var sets [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]) != nil {
		return false
	}
	may := func(c int) bool { return sets[c/32].Effective&(1<<(c%32)) != 0 }
	return may(unix.CAP_SYS_ADMIN) || may(unix.CAP_BPF) && may(unix.CAP_PERFMON) && may(unix.CAP_NET_ADMIN)
}

// cgroupAt checks a path, or finds the root of the hierarchy.
func cgroupAt(path string) (string, error) {
	if path == "" {
		path = cgroupMount()
		if path == "" {
			return "", errors.New("no cgroup2 filesystem is mounted: mount -t cgroup2 none /sys/fs/cgroup, or give --cgroup")
		}
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if st.Type != unix.CGROUP2_SUPER_MAGIC {
		return "", fmt.Errorf("%s is not in a cgroup2 filesystem", path)
	}
	return path, nil
}

// cgroupMount is the first mount of cgroup2; field 5 of mountinfo, with blanks and their like in octal.
func cgroupMount() string {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(info)) {
		mount, kind, _ := strings.Cut(line, " - ")
		if f := strings.Fields(mount); strings.HasPrefix(kind, "cgroup2 ") && len(f) > 4 {
			return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		}
	}
	return ""
}

// cgroupByID names a cgroup; its id is the inode number of its directory, and that is a file handle.
func cgroupByID(id uint64) string {
	const kernfs = 0xfe // FILEID_KERNFS
	unknown := fmt.Sprintf("cgroup %d", id)
	mount, err := os.Open(cgroupMount())
	if err != nil {
		return unknown
	}
	defer mount.Close()
	handle := unix.NewFileHandle(kernfs, binary.NativeEndian.AppendUint64(nil, id))
	fd, err := unix.OpenByHandleAt(int(mount.Fd()), handle, unix.O_PATH|unix.O_CLOEXEC)
	if err != nil {
		return unknown
	}
	defer unix.Close(fd)
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return unknown
	}
	return path
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "?"
	}
	return unix.ByteSliceToString(u.Release[:])
}

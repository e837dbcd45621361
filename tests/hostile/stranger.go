package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
)

// stranger has no access to the registry, so no connection to anybody. But names of sockets are no secret: it sends to engines what a peer
// would, under ever new names, with descriptors to keep.
func stranger(count int, rnd *rand.Rand, inodes []string) {
	list := must(os.ReadFile("/proc/net/unix"))
	engines := map[roce.GID]bool{}
	probe := must(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))
	for _, inode := range inodes {
		_, name, found := bytes.Cut(list, []byte(" "+inode+" @"))
		if !found || len(name) < len(roce.GID{}) {
			continue
		}
		// A zero byte is shown as @, too.
		var at []int
		for i, c := range name[:len(roce.GID{})] {
			if c == '@' {
				at = append(at, i)
			}
		}
		for zeros := range 1 << len(at) {
			gid := roce.GID(name)
			for i, k := range at {
				if zeros>>i&1 != 0 {
					gid[k] = 0
				}
			}
			if unix.Connect(probe, &unix.SockaddrUnix{Name: "\x00" + string(gid[:])}) == nil {
				engines[gid] = true
			}
		}
	}
	for range count {
		a := &attacker{rnd: rnd}
		a.dgram = must(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))
		for i := range a.gid {
			a.gid[i] = byte(1 + rnd.IntN(255))
		}
		must(0, unix.Bind(a.dgram, &unix.SockaddrUnix{Name: "\x00" + string(a.gid[:])}))
		for to := range engines {
			page := must(unix.MemfdCreate("stranger", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
			must(0, unix.Ftruncate(page, bellPage))
			must(unix.FcntlInt(uintptr(page), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL))
			for id := range uint32(20) {
				fd := must(unix.Eventfd(0, unix.EFD_CLOEXEC))
				a.bell(to, 5<<10|id+1, fd, page)
				unix.Close(fd)
			}
			for typ := uint32(1); typ < 7; typ++ { // with numbers that are nobody's
				b := make([]byte, []int{0, 8, 12, 20, 32, 60}[rnd.IntN(6)])
				for i := range b {
					b[i] = byte(rnd.Uint32())
				}
				if len(b) >= 8 {
					binary.LittleEndian.PutUint64(b, rnd.Uint64()&0x00ffffff00ffffff)
				}
				a.send(to, typ, b, page)
			}
			unix.Close(page)
		}
		unix.Close(a.dgram)
	}
	fmt.Println("engines", len(engines))
}

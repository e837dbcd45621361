package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
)

// The two calls are made here and not through x/sys, which takes the name of a received datagram for a C string: ours are
// 16 arbitrary bytes behind the leading NUL.

const (
	nameLen   = 2 + 1 + len(roce.GID{}) // family, NUL, name
	maxFDs    = 4                       // a BELL has two
	credSize  = unix.SizeofCmsghdr + (unix.SizeofUcred+7)&^7
	oobSize   = credSize + unix.SizeofCmsghdr + 4*maxFDs
	sendFlags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	recvFlags = unix.MSG_DONTWAIT | unix.MSG_CMSG_CLOEXEC
)

func address(gid roce.GID) (a unix.RawSockaddrUnix) {
	a.Family = unix.AF_UNIX
	for i, c := range gid {
		a.Path[1+i] = int8(c)
	}
	return a
}

// sendTo sends one datagram, with a descriptor if attached is not negative. It never blocks.
func sendTo(fd int, to roce.GID, b []byte, attached int) error {
	a := address(to)
	iov := unix.Iovec{Base: unsafe.SliceData(b)}
	iov.SetLen(len(b))
	h := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&a)), Namelen: uint32(nameLen), Iov: &iov, Iovlen: 1}
	var oob [unix.SizeofCmsghdr + 8]byte
	if attached >= 0 {
		c := (*unix.Cmsghdr)(unsafe.Pointer(&oob))
		c.Level, c.Type = unix.SOL_SOCKET, unix.SCM_RIGHTS
		c.SetLen(unix.SizeofCmsghdr + 4)
		*(*int32)(unsafe.Pointer(&oob[unix.SizeofCmsghdr])) = int32(attached)
		h.Control = &oob[0]
		h.SetControllen(len(oob))
	}
	for {
		_, _, e := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&h)), sendFlags)
		switch e {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return e
	}
}

// connectTo points a datagram socket at a name: it fails with ECONNREFUSED if nobody has it.
func connectTo(fd int, to roce.GID) error {
	a := address(to)
	for {
		_, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&a)), uintptr(nameLen))
		switch e {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return e
	}
}

// received is one datagram. Its descriptors belong to whoever got it.
type received struct {
	b    []byte
	from roce.GID
	ok   bool // sent by a socket with a name like ours, and nothing was cut off
	fds  []int
	uid  int // of the sender, as the kernel says; -1 = it does not
}

// recvFrom takes one datagram off the socket; EAGAIN if there is none.
func recvFrom(fd int, buf []byte) (received, error) {
	var a unix.RawSockaddrUnix
	var oob [oobSize]byte
	iov := unix.Iovec{Base: unsafe.SliceData(buf)}
	iov.SetLen(len(buf))
	h := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&a)), Namelen: unix.SizeofSockaddrUnix, Iov: &iov, Iovlen: 1, Control: &oob[0]}
	h.SetControllen(len(oob))
	var n uintptr
	for {
		r, _, e := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&h)), recvFlags)
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return received{}, e
		}
		n = r
		break
	}
	r := received{b: buf[:n]}
	r.fds, r.uid = control(oob[:h.Controllen])
	r.ok = h.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) == 0 &&
		h.Namelen == uint32(nameLen) && a.Family == unix.AF_UNIX && a.Path[0] == 0
	if r.ok {
		for i := range r.from {
			r.from[i] = byte(a.Path[1+i])
		}
	}
	return r, nil
}

// control returns what control data that the kernel wrote say: descriptors, and whose process sent them.
func control(oob []byte) (fds []int, uid int) {
	uid = -1
	if len(oob) == 0 {
		return nil, uid
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, uid
	}
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		} else if c, err := unix.ParseUnixCredentials(&msgs[i]); err == nil {
			uid = int(c.Uid)
		}
	}
	return fds, uid
}

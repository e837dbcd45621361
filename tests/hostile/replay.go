package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/engine"
	"libsmcr/verbs"
)

// A record is one thing that this side said in a session with the victim.
type record struct {
	what string // clc, llc, export
	b    []byte
	wait time.Duration
}

// session is all that it takes to say the same again: to the letter, but for the victim's QPN.
type session struct {
	records []record
	qpn     roce.QPN // ours
	psn     roce.PSN
	memory  []byte // the heads of our RMB, with the alert token
	size    int
	element int
}

const headSize, wtagAt = 256, 24

func (a *attacker) record() (s session) {
	c := a.connect(lie{
		name: "to be recorded", wants: established,
		clc: func(_ int, b []byte) [][]byte {
			s.records = append(s.records, record{what: "clc", b: b})
			return [][]byte{b}
		},
		llc: func(_ int, b []byte) []byte {
			s.records = append(s.records, record{what: "llc", b: bytes.Clone(b)})
			return b
		},
		export: func(q *liar, m verbs.MR) error {
			b := binary.LittleEndian.AppendUint64(nil, uint64(m.RKey()))
			b = binary.LittleEndian.AppendUint64(b, uint64(m.Addr()))
			b = binary.LittleEndian.AppendUint64(b, uint64(len(m.Bytes())))
			s.records = append(s.records, record{what: "export", b: b})
			s.memory, s.size = bytes.Clone(m.Bytes()[:4096]), len(m.Bytes())
			return q.QP.Export(m)
		},
		slow: true,
	})
	var confirm clc.Confirm
	if len(s.records) != 4 || confirm.Decode(smc.Linux, s.records[1].b) != nil {
		fail("recorded %d things of a first contact", len(s.records))
	}
	s.qpn, s.psn, s.element = confirm.QPN, confirm.PSN, int(confirm.Index-1)*headSize
	a.goneFrom(s.qpn, c.victim)
	// From here on nobody answers for the engine.
	unix.Close(a.dgram)
	a.dgram = must(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))
	must(0, unix.Bind(a.dgram, &unix.SockaddrUnix{Name: "\x00" + string(a.gid[:])}))
	return s
}

// goneFrom ends the link, so that the next contact is a first one again.
func (a *attacker) goneFrom(q roce.QPN, victim roce.GID) {
	b := binary.LittleEndian.AppendUint32(nil, uint32(a.qp.peer.QPN))
	a.send(victim, 5, binary.LittleEndian.AppendUint32(b, uint32(q)))
}

// mutate changes a session in one to four places.
func (a *attacker) mutate(records []record) []record {
	out := slices.Clone(records)
	for i := range out {
		out[i].b = bytes.Clone(out[i].b)
	}
	for range 1 + a.rnd.IntN(4) {
		if len(out) == 0 {
			break
		}
		i, j := a.rnd.IntN(len(out)), a.rnd.IntN(len(out))
		b := out[i].b
		switch a.rnd.IntN(10) {
		case 0:
			out = slices.Delete(out, i, i+1)
		case 1:
			out = slices.Insert(out, j, record{out[i].what, bytes.Clone(b), 0})
		case 2:
			out[i], out[j] = out[j], out[i]
		case 3:
			out[i].wait = time.Duration(a.rnd.IntN(30)) * time.Millisecond
		case 4:
			out[i].b = append(b, make([]byte, a.rnd.IntN(5000))...)
		case 5:
			out[i].b = b[:a.rnd.IntN(len(b)+1)]
		case 6: // what belongs elsewhere
			at := a.rnd.IntN(len(b) + 1)
			copy(b[at:], out[j].b[min(at, len(out[j].b)):])
		case 7:
			if len(b) > 0 {
				copy(b[a.rnd.IntN(len(b)):], word(a.rnd.Uint64())[:1+a.rnd.IntN(8)])
			}
		default:
			if len(b) > 0 {
				b[a.rnd.IntN(len(b))] ^= 1 << a.rnd.IntN(8)
			}
		}
	}
	return out
}

// replay goes on until the time is over. One session in ten is not changed: it must be accepted, else this shows nothing.
func (a *attacker) replay(limit time.Duration) {
	s := a.record()
	var page []byte
	for n, end := 0, time.Now().Add(limit); time.Now().Before(end); n++ {
		records := s.records
		if n%10 > 0 {
			records = a.mutate(records)
		}
		var known bool
		page, known = a.again(s, records, n%10 == 0)
		if known { // its queue was full when the link of the session before was to end
			n--
			continue
		}
		took := page != nil && (*(*[4]byte)(page[s.element+wtagAt:])) != [4]byte{}
		switch {
		case took:
			a.tally["established"]++
		case n%10 == 0:
			fail("session %d, to the letter: not established", n)
		default:
			a.tally["not established"]++
		}
		if page != nil {
			unix.Munmap(page)
		}
	}
}

// again says the records to the victim; it returns the heads of the memory that it told of. exact: each when it is its turn, however
// long the victim takes. known: the victim remembers the session before, to which these records do not belong.
func (a *attacker) again(s session, records []record, exact bool) (page []byte, known bool) {
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	defer unix.Close(fd)
	o, ok := a.reg.offer(fd, a.gid)
	if !ok {
		fail("no place in the registry")
	}
	defer o.free()
	must(0, unix.Connect(fd, a.to))
	for end := time.Now().Add(patience); !o.is(claimed); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			fail("not claimed")
		}
	}
	o.free()
	c := &conn{a: a, fd: fd, victim: a.qp.peer.GID}
	psn := s.psn
	var heard []byte
	asked := false
	listen := func(limit time.Duration, enough func() bool) {
		if exact {
			limit = patience
		}
		for end := time.Now().Add(limit); !enough() && !known && time.Now().Before(end); time.Sleep(50 * time.Microsecond) {
			var b [4096]byte
			if n, _, _ := unix.Recvfrom(fd, b[:], unix.MSG_DONTWAIT); n > 0 {
				heard = append(heard, b[:n]...)
			}
			var acc clc.Accept
			if n, err := engine.Need(heard); err == nil && n <= len(heard) && acc.Decode(heard[:n]) == nil {
				a.qp.peer.QPN, known = acc.QPN, known || exact && !acc.FirstContact
			}
			asked = drain(a.dgram) || asked
		}
	}
	for _, r := range records {
		time.Sleep(r.wait)
		h := binary.LittleEndian.AppendUint32(nil, uint32(a.qp.peer.QPN))
		h = binary.LittleEndian.AppendUint32(h, uint32(s.qpn))
		switch r.what {
		case "clc":
			c.say(r.b)
			if len(heard) == 0 { // a Proposal is answered
				listen(10*time.Millisecond, func() bool { return len(heard) >= clc.Size })
			}
		case "llc":
			listen(2*time.Millisecond, func() bool { return asked && exact }) // the request that this answers
			h = binary.LittleEndian.AppendUint64(h, uint64(psn&roce.PSNMask))
			a.send(c.victim, 3, append(h, r.b...))
			psn = psn.Next()
		case "export":
			mem := must(unix.MemfdCreate("again", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
			must(0, unix.Ftruncate(mem, int64(s.size)))
			must(unix.FcntlInt(uintptr(mem), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL))
			must(unix.Pwrite(mem, s.memory, 0))
			if page != nil {
				unix.Munmap(page)
			}
			page = must(unix.Mmap(mem, 0, len(s.memory), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
			a.send(c.victim, 4, append(h, r.b...), mem)
			unix.Close(mem)
		}
	}
	listen(20*time.Millisecond, func() bool { return page == nil || page[s.element+wtagAt] != 0 })
	if page != nil && a.rnd.IntN(2) == 0 {
		for range a.rnd.IntN(50) {
			page[s.element+a.rnd.IntN(headSize)] ^= 1 << a.rnd.IntN(8)
			page[s.element+wtagAt] |= 1 // still what says that it was established
		}
	}
	a.goneFrom(s.qpn, c.victim)
	exact = false
	listen(5*time.Millisecond, func() bool { return false }) // TCP might overtake it
	return page, known
}

// drain throws away what the victim's engine says. true: there was an LLC message.
func drain(fd int) (llc bool) {
	var b [16]byte
	oob := make([]byte, 64)
	for {
		_, n, _, _, err := unix.Recvmsg(fd, b[:], oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err != nil {
			return llc
		}
		llc = llc || b[0] == 3
		msgs, _ := unix.ParseSocketControlMessage(oob[:n])
		for i := range msgs {
			fds, _ := unix.ParseUnixRights(&msgs[i])
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
}

// silent makes connections that are known and claimed, and says nothing on any until it is killed.
func (a *attacker) silent(count int) {
	taken, refused := 0, 0
	for range count {
		fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
		o, ok := a.reg.offer(fd, a.gid)
		if !ok {
			fail("no place in the registry")
		}
		must(0, unix.Connect(fd, a.to))
		for end := time.Now().Add(5 * time.Second); o.is(offered); time.Sleep(20 * time.Microsecond) {
			if time.Now().After(end) {
				fail("neither claimed nor refused")
			}
		}
		if o.is(claimed) {
			taken++
		} else {
			refused++
		}
		o.free()
	}
	fmt.Println("silent", count, "claimed", taken, "refused", refused)
	select {}
}

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"libsmcr/abi/clc"
	"libsmcr/abi/roce"
	"libsmcr/abi/smc"
	"libsmcr/verbs"
)

var verbose = os.Getenv("VERBOSE") != ""

// part is a field of a message or a word of shared memory. kind says what a wrong value has to lead to.
type part struct {
	name     string
	at, size int
	kind     kind
}

type kind uint8

const (
	any_     kind = iota // the victim may take it or not
	fatal                // never an established connection
	reserved             // RFC 7609 §A.2: not looked at
)

var proposal = []part{
	{"eye catcher", 0, 4, fatal}, {"type", 4, 1, fatal}, {"length", 5, 2, fatal}, {"version and flags", 7, 1, any_},
	{"peer ID", 8, 8, any_}, {"GID", 16, 16, any_}, {"MAC", 32, 6, any_}, {"offset", 38, 2, any_},
	{"subnet", 40, 4, any_}, {"mask", 44, 1, any_}, {"reserved", 45, 2, reserved}, {"prefixes", 47, 1, any_}, {"trailer", 48, 4, fatal},
}

// What Accept and Confirm have in common, which is all.
var endpoint = []part{
	{"eye catcher", 0, 4, fatal}, {"type", 4, 1, fatal}, {"length", 5, 2, fatal}, {"version and flags", 7, 1, any_},
	{"peer ID", 8, 8, any_}, {"GID", 16, 16, any_}, {"MAC", 32, 6, any_}, {"QPN", 38, 3, any_}, {"RKey", 41, 4, fatal},
	{"index", 45, 1, fatal}, {"alert token", 46, 4, fatal}, {"sizes", 50, 1, any_}, {"reserved", 51, 1, reserved}, {"address", 52, 8, any_},
	{"reserved again", 60, 1, reserved}, {"PSN", 61, 3, any_}, {"trailer", 64, 4, fatal},
}

var confirmLink = []part{
	{"type", 0, 1, fatal}, {"length", 1, 1, any_}, {"reserved", 2, 1, reserved}, {"flags", 3, 1, any_}, {"MAC", 4, 6, any_},
	{"GID", 10, 16, any_}, {"QPN", 26, 3, any_}, {"link", 29, 1, any_}, {"user ID", 30, 4, any_}, {"max links", 34, 1, any_},
	{"reserved again", 35, 9, reserved},
}

// struct rmbe_head of hooks/shim.h.
var head = []part{
	{"prod", 0, 8, 0}, {"wflags", 8, 4, 0}, {"wcpu", 12, 4, 0}, {"urg", 16, 8, 0}, {"wtag", 24, 4, 0}, {"padding", 28, 36, 0},
	{"cons", 64, 8, 0}, {"rcpu", 72, 4, 0}, {"rarm", 128, 8, 0}, {"rflags", 136, 4, 0}, {"token", 140, 4, 0}, {"rtag", 144, 4, 0}, {"rwakes", 148, 4, 0},
	{"warm", 192, 8, 0}, {"wwakes", 200, 4, 0},
}

// values are wrong ones for a field that holds v.
func values(v []byte) map[string][]byte {
	out := map[string][]byte{"zero": make([]byte, len(v)), "ones": bytes.Repeat([]byte{0xff}, len(v))}
	for name, bit := range map[string]int{"low bit": len(v)*8 - 1, "high bit": 0} {
		b := bytes.Clone(v)
		b[bit/8] ^= 0x80 >> (bit % 8)
		out[name] = b
	}
	for name, b := range out {
		if bytes.Equal(b, v) {
			delete(out, name)
		}
	}
	return out
}

func (k kind) wants() func(c *conn, how string) bool {
	switch k {
	case fatal:
		return func(_ *conn, how string) bool { return how != "established" }
	case reserved:
		return func(_ *conn, how string) bool { return how == "established" }
	}
	return nil
}

func established(_ *conn, how string) bool { return how == "established" }

// changed gives one lie for each wrong value of each part of the n-th message; say makes it that session's.
func changed(what string, parts []part, n int, say func(f func(n int, b []byte) []byte) lie) (all []lie) {
	for _, p := range parts {
		for _, value := range []string{"zero", "ones", "low bit", "high bit"} {
			lied := false
			l := say(func(i int, b []byte) []byte {
				if i == n && len(b) >= p.at+p.size {
					lied = copy(b[p.at:], values(b[p.at:][:p.size])[value]) > 0
				}
				return b
			})
			l.name, l.slow = fmt.Sprintf("%s, %s %s", what, p.name, value), p.kind == reserved
			if wants := p.kind.wants(); wants != nil {
				l.wants = func(c *conn, how string) bool { return !lied || wants(c, how) }
			}
			all = append(all, l)
		}
	}
	return all
}

// order are lies about how much of the n-th CLC message comes, how often, and beside what.
func order(what string, n int, parts []part) (all []lie) {
	add := func(name string, wants func(*conn, string) bool, f func(b []byte) [][]byte) {
		all = append(all, lie{name: what + " " + name, wants: wants, clc: func(i int, b []byte) [][]byte {
			if i != n {
				return [][]byte{b}
			}
			return f(b)
		}})
	}
	never := fatal.wants()
	for _, p := range parts {
		add("cut before "+p.name, never, func(b []byte) [][]byte { return [][]byte{b[:p.at]} })
	}
	add("without its last byte", never, func(b []byte) [][]byte { return [][]byte{b[:len(b)-1]} })
	for _, more := range []int{1, 100, 8 << 10, 1 << 20} {
		add(fmt.Sprintf("followed by %d bytes", more), nil, func(b []byte) [][]byte { return [][]byte{append(b, make([]byte, more)...)} })
	}
	for _, length := range []int{0, 1, 7, 8, 27, 51, 53, 67, 69, 4095, 4096, 4097, 65535} {
		add(fmt.Sprintf("of %d bytes, all there", length), nil, func(b []byte) [][]byte {
			trailer := b[len(b)-4:]
			b = append(bytes.Clone(b), make([]byte, max(0, length-len(b)))...)[:max(length, 7)]
			binary.BigEndian.PutUint16(b[5:], uint16(length))
			if length > 12 {
				copy(b[length-4:], trailer)
			}
			return [][]byte{b}
		})
	}
	decline := clc.Decline{Version: smc.V1, Diagnosis: clc.DeclineInternal}.Append(nil)
	sync := clc.Decline{Version: smc.V1, OutOfSync: true, Diagnosis: clc.DeclineSync}.Append(nil)
	add("twice", nil, func(b []byte) [][]byte { return [][]byte{b, b} })
	add("a thousand times", nil, func(b []byte) [][]byte { return [][]byte{bytes.Repeat(b, 1000)} })
	add("never", never, func([]byte) [][]byte { return nil })
	add("after a Decline", never, func(b []byte) [][]byte { return [][]byte{decline, b} })
	add("before a Decline", nil, func(b []byte) [][]byte { return [][]byte{b, decline} })
	add("replaced by Declines", never, func([]byte) [][]byte { return [][]byte{decline, sync, decline} })
	add("replaced by an out-of-sync Decline", never, func([]byte) [][]byte { return [][]byte{sync} })
	add("replaced by HTTP", never, func([]byte) [][]byte { return [][]byte{[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")} })
	add("replaced by zeros", never, func([]byte) [][]byte { return [][]byte{make([]byte, 64<<10)} })
	for typ := byte(0); typ < 8; typ++ {
		add(fmt.Sprintf("as a message of type %d", typ), nil, func(b []byte) [][]byte { b[4] = typ; return [][]byte{b} })
	}
	add("byte by byte", established, func(b []byte) (all [][]byte) {
		for i := range b {
			all = append(all, b[i:i+1])
		}
		return all
	})
	add("late", established, func(b []byte) [][]byte { time.Sleep(wait); return [][]byte{b} })
	all[len(all)-1].slow, all[len(all)-2].slow = true, true
	return all
}

// lies are all of the tables; as a server or as a client.
func (a *attacker) lies(server bool) (all []lie) {
	inCLC := func(f func(int, []byte) []byte) lie {
		return lie{clc: func(n int, b []byte) [][]byte { return [][]byte{f(n, b)} }}
	}
	if server {
		all = append(changed("Accept", endpoint, 0, inCLC), order("Accept", 0, endpoint)...)
	} else {
		all = append(changed("Proposal", proposal, 0, inCLC), order("Proposal", 0, proposal)...)
		all = append(all, changed("Confirm", endpoint, 1, inCLC)...)
		all = append(all, order("Confirm", 1, endpoint)...)
	}
	all = append(all, changed("CONFIRM LINK", confirmLink, 0, func(f func(int, []byte) []byte) lie { return lie{llc: f} })...)
	for _, n := range []int{0, 1, 43, 45, 1024, 8192} {
		wants := fatal.wants()
		if n > 44 { // as Linux does, what follows the message is not looked at
			wants = nil
		}
		all = append(all, lie{name: fmt.Sprintf("CONFIRM LINK of %d bytes", n), wants: wants, llc: func(_ int, b []byte) []byte {
			return append(b, make([]byte, 8192)...)[:n]
		}})
	}
	all = slices.Concat(all, a.exports(), a.later(), a.scribbles())
	if !server { // those who come to us sleep in recv, without a bell
		all = append(all, a.hush())
	}
	return all
}

// exports are lies about the memory behind our RMB.
func (a *attacker) exports() (all []lie) {
	type region struct{ key, addr, size uint64 }
	add := func(name string, change func(r *region), fds func(size int) []int) {
		all = append(all, lie{name: "EXPORT " + name, wants: fatal.wants(), export: func(q *liar, m verbs.MR) error {
			r := region{uint64(m.RKey()), uint64(m.Addr()), uint64(len(m.Bytes()))}
			given := fds(int(r.size))
			change(&r)
			b := binary.LittleEndian.AppendUint32(nil, uint32(q.peer.QPN))
			b = binary.LittleEndian.AppendUint32(b, uint32(q.QPN()))
			b = binary.LittleEndian.AppendUint64(b, r.key)
			b = binary.LittleEndian.AppendUint64(b, r.addr)
			q.a.send(q.peer.GID, 4, binary.LittleEndian.AppendUint64(b, r.size), given...)
			for _, fd := range given {
				unix.Close(fd)
			}
			return nil
		}})
	}
	as := func(*region) {}
	memfd := func(off, seals int) func(int) []int {
		return func(size int) []int {
			fd := must(unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))
			must(0, unix.Ftruncate(fd, int64(size+off)))
			must(unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals))
			return []int{fd}
		}
	}
	const all3 = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	good := memfd(0, all3)
	add("of other memory", as, good)
	add("not sealed", as, memfd(0, 0))
	add("that may shrink", as, memfd(0, unix.F_SEAL_GROW|unix.F_SEAL_SEAL))
	add("that nobody may write", as, memfd(0, all3|unix.F_SEAL_WRITE))
	add("shorter", as, memfd(-4096, all3))
	add("longer", as, memfd(4096, all3))
	add("without memory", as, func(int) []int { return nil })
	add("with two descriptors", as, func(n int) []int { return append(good(n), good(n)...) })
	for _, path := range []string{"/dev/zero", "/dev/null", "/proc/self/mem", "/"} {
		add("of "+path, as, func(int) []int { return []int{must(unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0))} })
	}
	add("of an eventfd", as, func(int) []int { return []int{must(unix.Eventfd(0, unix.EFD_CLOEXEC))} })
	for name, size := range map[string]uint64{"of 0 bytes": 0, "of 1 byte": 1, "of a page": 4096, "of 2^63 bytes": 1 << 63, "of all bytes": ^uint64(0) &^ 4095} {
		add(name, func(r *region) { r.size = size }, good)
	}
	add("with another RKey", func(r *region) { r.key ^= 1 }, good)
	add("at another address", func(r *region) { r.addr += 1 << 40 }, good)
	add("up to the end of memory", func(r *region) { r.addr = ^uint64(0) &^ 4095 }, good)
	return append(all, lie{name: "EXPORT never", wants: fatal.wants(), export: func(*liar, verbs.MR) error { return nil }})
}

// later are datagrams behind a handshake that was honest.
func (a *attacker) later() (all []lie) {
	add := func(name string, f func(c *conn)) {
		all = append(all, lie{name: "later " + name, wants: established, after: f})
	}
	say := func(c *conn, b []byte) { a.message(c, a.qp.psn, b); a.qp.psn = a.qp.psn.Next() }
	// LLC messages by type, and CDC, which is not for mapped memory.
	for _, typ := range []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0x21, 0x22, 0x2b, 0xfe, 0xff} {
		for _, flags := range []byte{0, 0x80, 0x7f, 0xff} {
			for _, n := range []int{44, 43, 8} {
				add(fmt.Sprintf("message %#x, flags %#x, %d bytes", typ, flags, n), func(c *conn) {
					b := bytes.Repeat([]byte{byte(a.rnd.Uint32())}, n)
					b[0], b[1], b[3] = typ, byte(n), flags
					say(c, b)
				})
			}
		}
	}
	add("messages without end", func(c *conn) {
		for range 2000 {
			say(c, append([]byte{7, 44, 0, 0}, make([]byte, 40)...)) // TEST LINK asks for an answer, and we take none
		}
	})
	add("a message twice", func(c *conn) {
		a.message(c, a.qp.psn, append([]byte{7, 44, 0, 0}, make([]byte, 40)...))
		a.message(c, a.qp.psn, append([]byte{7, 44, 0, 0}, make([]byte, 40)...))
	})
	add("a message out of order", func(c *conn) { a.message(c, a.qp.psn+7, make([]byte, 44)) })
	add("GONE", func(c *conn) {
		b := binary.LittleEndian.AppendUint32(nil, uint32(a.qp.peer.QPN))
		a.send(c.victim, 5, binary.LittleEndian.AppendUint32(b, uint32(a.qp.QPN())))
	})
	add("plain bytes", func(c *conn) { c.say([]byte("this is not SMC-R")) })
	add("a CLC message", func(c *conn) { c.say(clc.Decline{Version: smc.V1, Diagnosis: clc.DeclineSync}.Append(nil)) })
	add("an end of the TCP connection", func(c *conn) { unix.Shutdown(c.fd, unix.SHUT_WR); a.until(wait, func() bool { return false }) })
	return all
}

// message is a SEND, RFC 7609's LLC or CDC messages.
func (a *attacker) message(c *conn, psn roce.PSN, b []byte) {
	h := binary.LittleEndian.AppendUint32(nil, uint32(a.qp.peer.QPN))
	h = binary.LittleEndian.AppendUint32(h, uint32(a.qp.QPN()))
	h = binary.LittleEndian.AppendUint64(h, uint64(psn&roce.PSNMask))
	a.send(c.victim, 3, append(h, b...))
}

// scribbles are wrong values in what the two share; the victim is woken to look at each.
func (a *attacker) scribbles() (all []lie) {
	for _, whose := range []string{"our", "the victim's"} {
		for _, p := range head {
			all = append(all, lie{name: fmt.Sprintf("%s %s", whose, p.name), wants: established, after: func(c *conn) {
				h, ring := c.rings.PeerHead, uint64(len(c.rings.PeerRing))
				if whose == "our" {
					h = c.rings.LocalHead
				}
				at := h[p.at:][:p.size]
				if p.size > 8 {
					for i := range at {
						at[i] = 0xff
					}
					return
				}
				old := uint64(0)
				for i, b := range at {
					old |= uint64(b) << (8 * i)
				}
				for _, v := range []uint64{0, 1, old + 1, old - 1, old + ring, old + ring + 1, old + 2*ring, 1 << 31, 1 << 32, 1 << 63, ^uint64(0), old} {
					copy(at, word(v))
					a.ring(c)
				}
			}})
		}
	}
	return all
}

// hush is about what all peers of the victim share, its bells: see docs/security.md. It hears again when we are gone.
func (a *attacker) hush() lie {
	return lie{name: "bells hushed", wants: established, after: func(c *conn) { a.silence(c, 300*time.Millisecond) }}
}

func word(v uint64) []byte { return (*[8]byte)(unsafe.Pointer(&v))[:] }

// fields is all of it as a client, each as the first contact of somebody new and, what comes behind a handshake aside, again as
// a connection of one link group.
func (a *attacker) fields() {
	all := a.lies(false)
	for _, l := range all {
		a.renew()
		a.connect(l)
	}
	for _, l := range all {
		if l.clc == nil {
			continue
		}
		if a.qp == nil || a.qp.State() != verbs.RTS {
			a.renew()
			a.connect(lie{name: "first contact", wants: established})
		}
		l.name += ", subsequent contact"
		if l.wants != nil {
			l.wants = nil // what is reserved for a link group that exists differs
		}
		a.connect(l)
	}
}

// serve is the same for clients that come to us.
func (a *attacker) serve() {
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	must(0, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(0, unix.Listen(fd, 16))
	at := must(unix.Getsockname(fd)).(*unix.SockaddrInet4)
	a.reg.listen(fd, at)
	fmt.Println("port", at.Port)
	for _, l := range a.lies(true) {
		a.renew()
		a.accept(fd, l)
	}
}

// Command hostile is a peer that lies. It is known to the registry as the library would be, negotiates with the library's own
// engine, and says one thing otherwise: each field of each message, each word of the memory that the two share, in order or not,
// too early, too late, twice, or something recorded in another session and changed at random. Its victim may lose those
// connections and nothing else.
//
//	hostile fields RUNDIR ADDRESS              as a client, every lie of the tables in fields.go
//	hostile serve RUNDIR                       the same as a server; prints "port N"
//	hostile random RUNDIR ADDRESS COUNT SEED   as a client, lies at random
//	hostile replay RUNDIR ADDRESS SECONDS SEED a recorded session, changed at random
//	hostile silent RUNDIR ADDRESS COUNT        claimed connections on which nothing is ever said; prints "silent N"
//	hostile stranger COUNT SEED INODE…         another user: datagrams to the engines that have these sockets
package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"libsmcr/abi/roce"
	"libsmcr/engine"
	"libsmcr/verbs"
	"libsmcr/verbs/shm"
)

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "hostile: "+format+"\n", args...)
	os.Exit(1)
}

func must[T any](v T, err error) T {
	if err != nil {
		fail("%v", err)
	}
	return v
}

func now() engine.Instant {
	var t unix.Timespec
	must(0, unix.ClockGettime(unix.CLOCK_MONOTONIC, &t))
	return engine.Instant(t.Nano())
}

func field(path string, n int) uint64 {
	s := string(must(os.ReadFile(path)))
	return must(strconv.ParseUint(strings.Fields(s[strings.LastIndexByte(s, ')')+1:])[n-3], 10, 64))
}

// attacker is one identity: an engine of the library, its device and its socket.
type attacker struct {
	rnd   *rand.Rand
	reg   *registry
	to    *unix.SockaddrInet4
	dgram int
	gid   roce.GID
	eng   *engine.Engine
	dev   *shm.Device
	qp    *liar // the newest queue pair
	lie   *lie  // of the session under way
	bells map[roce.GID]*bells
	tally map[string]int
	wrong []string // lies that did not end as they have to
}

// renew begins as somebody whom nobody knows: the next session is a first contact.
func (a *attacker) renew() {
	if a.eng != nil {
		a.eng.Shutdown(now())
		unix.Close(a.dgram) // the kernel tells all whom we knew that we are gone
	}
	a.dgram = must(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0))
	must(unix.Getrandom(a.gid[:], 0)) // not of the seed: whoever comes again under a name is one whom the victim knows
	must(0, unix.Bind(a.dgram, &unix.SockaddrUnix{Name: "\x00" + string(a.gid[:])}))
	a.dev = must(shm.New(shm.Config{FD: a.dgram, GID: a.gid, Foreign: a.foreign}))
	a.bells = map[roce.GID]*bells{}
	cfg := engine.Config{Devices: []verbs.Device{device{a.dev, a}}}
	copy(cfg.PeerID[:], a.gid[:])
	a.eng = must(engine.New(cfg))
}

// until drives the engine until the condition holds or the time is over.
func (a *attacker) until(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Microsecond) {
		a.eng.Poll(now())
		a.eng.Tick(now())
		if done() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// send puts a datagram of our making, with descriptors, into an engine's queue.
func (a *attacker) send(to roce.GID, typ uint32, body []byte, fds ...int) {
	b := binary.LittleEndian.AppendUint32(nil, typ)
	a.sendRaw(to, append(binary.LittleEndian.AppendUint32(b, uint32(len(body))), body...), fds...)
}

func (a *attacker) sendRaw(to roce.GID, b []byte, fds ...int) {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for range 100 {
		err := unix.Sendmsg(a.dgram, b, oob, &unix.SockaddrUnix{Name: "\x00" + string(to[:])}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err != unix.EAGAIN {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func (a *attacker) print() {
	for what, n := range a.tally {
		fmt.Printf("%6d %s\n", n, what)
	}
	if len(a.wrong) > 0 {
		fail("%s", strings.Join(a.wrong, "\n"))
	}
}

func main() {
	args := slices.Clone(os.Args[1:])
	if len(args) < 2 {
		fail("what?")
	}
	number := func(n int) int { return must(strconv.Atoi(args[n])) }
	seed := func(n int) *rand.Rand { return rand.New(rand.NewPCG(uint64(number(n)), 0)) }
	if args[0] == "stranger" {
		stranger(number(1), seed(2), args[3:])
		return
	}
	a := &attacker{rnd: rand.New(rand.NewPCG(1, 0)), reg: openRegistry(args[1]), tally: map[string]int{}}
	if len(args) > 2 {
		to := netip.MustParseAddrPort(args[2])
		a.to = &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	if len(args) > 4 {
		a.rnd = seed(4)
	}
	a.renew()
	switch args[0] {
	case "fields":
		a.fields()
	case "serve":
		a.serve()
	case "random":
		a.random(number(3))
	case "replay":
		a.replay(time.Duration(number(3)) * time.Second)
	case "silent":
		a.silent(number(3))
	default:
		fail("%s?", args[0])
	}
	a.print()
}

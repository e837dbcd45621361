//go:build interop

package interop

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libsmcr/tests/harness"
)

// application is a pair of programs that know nothing of all this, and check what they get. Ours runs under libsmcr.so, or
// natively; in the other one every TCP socket becomes the kernel's AF_SMC.
type application struct {
	server, client string
	native         bool
	both           bool   // the other one runs under libsmcr.so, too
	why            string // the library's connections are TCP
}

// leaves: our end may be gone before the negotiation has ended, and then that is why it declines.
func (a application) leaves() bool { return strings.HasSuffix(a.client, "PORT") }

const rigtServer = "rigt-dyn srv -f tcp -n 1 -t 30 ADDRESS PORT"

var applications = map[string]application{
	"rigt": {server: rigtServer, client: "rigt-dyn cli -f tcp -t 30 ADDRESS PORT echo:100:3 up:300000 down:300000 bidi:100000 half:70000"},
	"redis": {server: "redis-server --bind ADDRESS --port PORT --save '' --protected-mode no", client: `set -e
redis-benchmark -h ADDRESS -p PORT -c 8 -n 200 -t set,get -d 1000 -q
head -c 100000 /dev/urandom | base64 >/tmp/value
redis-cli -h ADDRESS -p PORT -x set key </tmp/value
redis-cli -h ADDRESS -p PORT --raw get key | head -c -1 | cmp - /tmp/value
redis-cli -h ADDRESS -p PORT shutdown nosave`},
	"iperf3":                  {server: "iperf3 -s -1 -B ADDRESS -p PORT", client: "iperf3 -c ADDRESS -p PORT -n 2M -P 2 --bidir"},
	"the server speaks first": {server: "bare plain serve ADDRESS PORT send:616263 got:646566", client: "bare plain connect ADDRESS PORT got:616263 send:646566 end"},
	"half close at once":      {server: rigtServer, client: "rigt-dyn cli -f tcp -t 30 ADDRESS PORT half:70000"},
	"no byte at all":          {server: "bare plain serve ADDRESS PORT end", client: "bare plain connect ADDRESS PORT"},
	// A kernel waits 6 s for CLC.
	"a client in no hurry": {server: rigtServer, client: "rigt-dyn cli -f tcp -t 30 ADDRESS PORT sleep:7000 echo:100"},
	"a server in no hurry": {server: "bare plain serve ADDRESS PORT sleep:7000 got:616263", client: "bare plain connect ADDRESS PORT send:616263 end"},
}

func (a application) command(role, address string, port int) string {
	command := a.server
	if role == "connect" {
		command = a.client
	}
	return strings.NewReplacer("ADDRESS", address, "PORT", fmt.Sprint(port)).Replace(command)
}

func (a application) ours(role, address string, port int) string {
	if a.native {
		return a.command(role, address, port)
	}
	return fmt.Sprintf("cat >/tmp/do <<'end'\n%s\nend\nSMCR_ADAPT=0 smcr run --report=/tmp/report -- sh /tmp/do && echo && cat /tmp/report", a.command(role, address, port))
}

func (a application) kernels(role, address string, port int) string {
	if a.both {
		return a.ours(role, address, port)
	}
	return "export LD_PRELOAD=/usr/local/lib/afsmc.so\n" + a.command(role, address, port)
}

func (a application) check(t *testing.T, out string, connections int) {
	t.Helper()
	if a.native {
		return
	}
	_, report, _ := strings.Cut(out, "\n{\n")
	var r harness.Report
	if err := json.Unmarshal([]byte("{"+report), &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r.Totals.PID, r.Totals.Comm = 0, ""
	if a.leaves() && r.Totals.Fallbacks["left-early"] == connections {
		a.why = "left-early"
	}
	if d := cmp.Diff(harness.Counts{TCP: connections, Fallbacks: map[string]int{a.why: connections}}, r.Totals); d != "" {
		t.Errorf("the library's report (-want +got):\n%s", d)
	}
}

// libraryMeetings: both ends offer, and CLC shows that they have no device in common. Ours speaks version 1 only.
var libraryMeetings = map[string][]struct {
	name, why string
	meeting
}{
	"v1": {
		{"serves", "declined", meeting{net: net4, role: "serve", fell: "client 05000000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 28 92", "< DECLINE 10 28 03030000"}}},
		{"connects", "declined", meeting{net: net4, role: "connect", fell: "server 05000000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 52", "< ACCEPT 18 68", "> DECLINE 10 28 03030000"}}},
		{"serves IPv6", "declined", meeting{net: net6, role: "serve", fell: "client 05000000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 28 109", "< DECLINE 10 28 03030000"}}},
		{"connects IPv6", "declined", meeting{net: net6, role: "connect", fell: "server 05000000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 69", "< ACCEPT 18 68", "> DECLINE 10 28 03030000"}}},
		{"serves another subnet", "declined", meeting{net: odd4, role: "serve", fell: "client 05000000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 28 92", "< DECLINE 10 28 03030000"}}},
		{"connects to another subnet", "peer-declined", meeting{net: odd4, role: "connect", fell: "server 03070000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 52", "< DECLINE 10 28 03070000"}}},
		{"serves v1 and v2", "declined", meeting{net: net4, role: "serve", ueid: "SMCRRIG", fell: "client 05000000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 20 164", "< DECLINE 10 28 03030000"}}},
	},
	"stock": {
		{"serves", "declined", meeting{net: net4, role: "serve", fell: "client 05000000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 22 156", "< DECLINE 10 28 03040000"}}},
		{"connects", "peer-declined", meeting{net: net4, role: "connect", fell: "server 03030000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 52", "< DECLINE 10 28 03030000"}}},
		{"serves IPv6", "peer-declined", meeting{net: net6, role: "serve", fell: "client 03030000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> DECLINE 10 28 03030000"}}},
		{"connects IPv6", "peer-declined", meeting{net: net6, role: "connect", fell: "server 03030000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 69", "< DECLINE 10 28 03030000"}}},
		{"serves a kernel without UEID", "peer-declined", meeting{net: net4, role: "serve", ueid: "none", fell: "client 03030000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> DECLINE 10 28 03030000"}}},
		{"serves one with another UEID", "declined", meeting{net: net4, role: "serve", ueid: "OTHER", fell: "client 05000000",
			wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 22 156", "< DECLINE 10 28 03040000"}}},
	},
}

func (m *machines) library(t *testing.T) {
	app := applications["redis"]
	app.both = true
	both := meeting{net: net4, wire: []string{"> SYN SMC", "< SYN-ACK SMC", "> PROPOSAL 10 52", "< DECLINE 10 28 03030000"}}
	m.kernel.run(t, "smcr enable")
	for role, why := range map[string]string{"serve": "declined", "connect": "peer-declined"} {
		app.why = why
		both.role, both.ours = role, app
		t.Run("two hosts with the library, ours to "+role, func(t *testing.T) { m.meet(t, both) })
	}
	m.kernel.run(t, "smcr disable")
	for i, x := range libraryMeetings[m.flavour] {
		for _, name := range slices.Sorted(maps.Keys(applications)) {
			if name != "rigt" && (i > 1 || m.flavour != "v1" && name != "redis") {
				continue // it is all the same to them
			}
			app := applications[name]
			app.why = x.why
			x.ours = app
			t.Run(name+" "+x.name, func(t *testing.T) { m.meet(t, x.meeting) })
		}
	}
}

// withoutHook: nobody offers on our side, whatever the other one does, and everything is TCP.
func (m *machines) withoutHook(t *testing.T) {
	serve := meeting{role: "serve", wire: []string{"> SYN SMC", "< SYN-ACK"}, fell: "client 03010000"}
	connect := meeting{role: "connect", wire: []string{"> SYN", "< SYN-ACK"}, fell: "server 03010000"}
	both := func(name string, n network, server, client program) {
		serve.net, serve.ours, connect.net, connect.ours = n, server, n, client
		t.Run(name+" serves", func(t *testing.T) { m.meet(t, serve) })
		t.Run(name+" connects", func(t *testing.T) { m.meet(t, connect) })
	}
	if m.flavour == "v1" { // plain TCP has no flavours
		for _, name := range slices.Sorted(maps.Keys(applications)) {
			app := applications[name]
			app.native = true
			both("native "+name, net4, app, app)
		}
	}
	for name, n := range map[string]network{"IPv4": net4, "IPv6": net6} {
		app := applications["rigt"]
		server, client := app, app
		server.why, client.why = "client-not-offering", "peer-not-offering"
		both("rigt without the hook, "+name+",", n, server, client)
		both("bare without the hook, "+name+",", n, bare{mark: "offer", peer: "none"}, bare{mark: "offer", peer: "none"})
	}
}

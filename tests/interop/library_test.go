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
	why            string // the library's connections are TCP
}

const rigtServer = "rigt-dyn srv -f tcp -n 1 -t 30 ADDRESS PORT"

var applications = map[string]application{
	"rigt": {server: rigtServer, client: "rigt-dyn cli -f tcp -t 30 ADDRESS PORT echo:100:3 up:300000 down:300000 bidi:100000 half:70000"},
	"redis": {server: "redis-server --bind ADDRESS --port PORT --save '' --protected-mode no", client: `set -e
redis-benchmark -h ADDRESS -p PORT -c 8 -n 200 -t set,get -d 1000 -q
head -c 100000 /dev/urandom | base64 >/tmp/value
redis-cli -h ADDRESS -p PORT -x set key </tmp/value
redis-cli -h ADDRESS -p PORT --raw get key | head -c -1 | cmp - /tmp/value
redis-cli -h ADDRESS -p PORT shutdown nosave`},
	"iperf3":                   {server: "iperf3 -s -1 -B ADDRESS -p PORT", client: "iperf3 -c ADDRESS -p PORT -n 2M -P 2 --bidir"},
	"the server speaks first":  {server: "bare plain serve ADDRESS PORT send:616263 got:646566", client: "bare plain connect ADDRESS PORT got:616263 send:646566 end"},
	"half close at once":       {server: rigtServer, client: "rigt-dyn cli -f tcp -t 30 ADDRESS PORT half:70000"},
	"no byte at all":           {server: "bare plain serve ADDRESS PORT end", client: "bare plain connect ADDRESS PORT"},
	"a client silent for long": {server: rigtServer, client: "rigt-dyn cli -f tcp -t 30 ADDRESS PORT sleep:8000 echo:100"}, // a kernel waits 6 s for CLC
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
	return fmt.Sprintf("cat >/tmp/do <<'end'\n%s\nend\nSMCR_ADAPT=0 smcr run --report=/tmp/report -- sh /tmp/do && cat /tmp/report", a.command(role, address, port))
}

func (a application) kernels(role, address string, port int) string {
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
	if d := cmp.Diff(harness.Counts{TCP: connections, Fallbacks: map[string]int{a.why: connections}}, r.Totals); d != "" {
		t.Errorf("the library's report (-want +got):\n%s", d)
	}
}

// withoutHook: nobody offers on our side, whatever the other one does, and everything is TCP.
func (m *machines) withoutHook(t *testing.T) {
	serve := meeting{role: "serve", wire: []string{"> SYN SMC", "< SYN-ACK"}, fell: "client 03010000"}
	connect := meeting{role: "connect", wire: []string{"> SYN", "< SYN-ACK"}, fell: "server 03010000"}
	for name, n := range map[string]network{"IPv4": net4, "IPv6": net6} {
		serve.net, connect.net = n, n
		serve.ours, connect.ours = bare{mark: "offer", peer: "none"}, bare{mark: "offer", peer: "none"}
		t.Run("bare serves "+name, func(t *testing.T) { m.meet(t, serve) })
		t.Run("bare connects "+name, func(t *testing.T) { m.meet(t, connect) })
	}
	serve.net, connect.net = net4, net4
	for _, name := range slices.Sorted(maps.Keys(applications)) {
		app := applications[name]
		app.native = true
		serve.ours, connect.ours = app, app
		t.Run(name+" serves natively", func(t *testing.T) { m.meet(t, serve) })
		t.Run(name+" connects natively", func(t *testing.T) { m.meet(t, connect) })
	}
	for name, n := range map[string]network{"IPv4": net4, "IPv6": net6} {
		serve.net, connect.net = n, n
		app := applications["rigt"]
		app.why = "client-not-offering"
		serve.ours = app
		app.why = "peer-not-offering"
		connect.ours = app
		t.Run("library serves "+name, func(t *testing.T) { m.meet(t, serve) })
		t.Run("library connects "+name, func(t *testing.T) { m.meet(t, connect) })
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"libsmcr/tests/harness"
)

// row is one figure, measured in a native and in an SMC-R world.
type row struct {
	name, title, unit string
	lower             bool // less is better
	demo              bool
	target            *target
	measure           func(w *harness.World) float64
}

// target is what the figure has to reach: a ratio to TCP, or a difference from it.
type target struct {
	says string
	met  func(native, smc, ratio float64) bool
}

func (t *target) String() string {
	if t == nil {
		return "-"
	}
	return t.says
}

func times(least float64) *target {
	return &target{fmt.Sprintf("≥ %g ×", least), func(_, _, ratio float64) bool { return ratio >= least }}
}

func atMostMore(most float64, unit string) *target {
	return &target{fmt.Sprintf("≤ +%g %s", most, unit), func(native, smc, _ float64) bool { return smc-native <= most }}
}

// ratio says how many times better SMC-R is.
func (r row) ratio(native, smc float64) float64 {
	if r.lower {
		native, smc = smc, native
	}
	return smc / native
}

func (r row) show(v float64) string {
	for _, big := range []struct {
		size   float64
		prefix string
	}{{1e9, "G"}, {1e6, "M"}, {1e4, "k"}} {
		if v >= big.size {
			scale := big.size
			if big.prefix == "k" {
				scale = 1e3
			}
			return fmt.Sprintf("%.1f %s%s", v/scale, big.prefix, r.unit)
		}
	}
	return fmt.Sprintf("%.3g %s", v, r.unit)
}

var rows = []row{
	{name: "redis-c1", title: "redis GET, 1 client", unit: "req/s", demo: true, target: times(5), measure: redis("-c", "1", "-n", "20000")},
	{name: "redis-c50", title: "redis GET, 50 clients", unit: "req/s", demo: true, target: times(2), measure: redis("-c", "50", "-n", "100000")},
	{name: "redis-P16", title: "redis GET, 50 clients, -P 16", unit: "req/s", demo: true, target: times(1.3), measure: redis("-c", "50", "-n", "600000", "-P", "16")},
	{name: "iperf-1", title: "iperf3, 1 stream", unit: "bit/s", demo: true, target: times(3), measure: iperf()},
	{name: "iperf-4", title: "iperf3, 4 streams", unit: "bit/s", demo: true, measure: iperf("-P", "4")},
	{name: "iperf-1R", title: "iperf3 -R, 1 stream", unit: "bit/s", demo: true, measure: iperf("-R")},
	{name: "iperf-4R", title: "iperf3 -R, 4 streams", unit: "bit/s", demo: true, measure: iperf("-R", "-P", "4")},
	{name: "memcached", title: "memcached, 16 clients", unit: "req/s", demo: true, measure: memcached},
	{name: "ping-64", title: "sockperf ping-pong, 64 B, half round trip", unit: "µs", lower: true, demo: true, target: times(15), measure: pingPong},
	{name: "stream-64", title: "sockperf throughput, 64 B", unit: "msg/s", target: times(10), measure: stream},
	{name: "short", title: "redis GET, a connection per request", unit: "req/s", measure: redis("-c", "10", "-n", "10000", "-k", "0")},
	{name: "idle", title: "idle redis, 50 connections", unit: "wake-ups/s", lower: true, target: atMostMore(.5, "wake-ups/s"), measure: idleWakeups},
	{name: "start", title: "/bin/true", unit: "ms", lower: true, target: atMostMore(.2, "ms"), measure: start},
	{name: "foreign", title: "a call on a foreign descriptor, beyond libc's", unit: "ns", lower: true, target: atMostMore(10, "ns"), measure: call("pipe")},
	{name: "threads", title: "the same, in a program with threads", unit: "ns", lower: true, measure: call("threads")},
	{name: "fallback", title: "a call on a connection that fell back, beyond libc's", unit: "ns", lower: true, target: atMostMore(10, "ns"), measure: call("plain")},
	{name: "memory", title: "an idle connection of 1,000, both ends", unit: "KiB PSS", lower: true, target: atMostMore(64, "KiB"), measure: memory},
}

// number finds the figure that the pattern's group matches in a program's output.
func number(w *harness.World, pattern, output string) float64 {
	m := regexp.MustCompile(pattern).FindStringSubmatch(output)
	if m == nil {
		w.Fail("no figure %s in: %s", pattern, output)
	}
	v, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		w.Fail("%v", err)
	}
	return v
}

func redis(load ...string) func(*harness.World) float64 {
	return func(w *harness.World) float64 {
		_, port := w.Redis()
		args := append([]string{"redis-benchmark", "-p", strconv.Itoa(port), "--csv", "-t", "get"}, load...)
		return number(w, `"GET","([0-9.]+)"`, w.Run(harness.Command{Args: args, Env: []string{"SMCR_ADAPT=1"}}).Out) // the harness turns it off
	}
}

func iperf(load ...string) func(*harness.World) float64 {
	return func(w *harness.World) float64 {
		_, port := w.Iperf()
		args := append([]string{"iperf3", "-c", "127.0.0.1", "-p", strconv.Itoa(port), "-J", "-t", "2"}, load...)
		r := w.Run(harness.Command{Args: args})
		var report struct {
			End struct {
				Received struct {
					Rate float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			}
		}
		if err := json.Unmarshal([]byte(r.Out), &report); err != nil || report.End.Received.Rate == 0 {
			w.Fail("iperf3 gave no figure: %v %s", err, r)
		}
		return report.End.Received.Rate
	}
}

func memcached(w *harness.World) float64 {
	_, port := w.Memcached()
	args := []string{"memcaslap", "-s", "127.0.0.1:" + strconv.Itoa(port), "-T", "2", "-c", "16", "-x", "100000", "-X", "100"}
	return number(w, `TPS: ([0-9]+)`, w.Run(harness.Command{Args: args}).Out)
}

func sockperf(w *harness.World, args ...string) string {
	_, port := w.Sockperf()
	args = append([]string{"sockperf"}, args...)
	return w.Run(harness.Command{Args: append(args, "--tcp", "-t", "2", "-m", "64", "-i", "127.0.0.1", "-p", strconv.Itoa(port))}).Out
}

func pingPong(w *harness.World) float64 {
	// sockperf has room for about a million answers a second, unless it is told of more.
	return number(w, `percentile 50.000 =\s+([0-9.]+)`, sockperf(w, "ping-pong", "--mps=5000000"))
}

func stream(w *harness.World) float64 {
	return number(w, `Message Rate is ([0-9]+)`, sockperf(w, "throughput"))
}

func idleWakeups(w *harness.World) float64 {
	const seconds = 5
	server, port := w.Redis()
	w.Hold(port, 50, "PING\r\n+")
	time.Sleep(6 * time.Second) // idle: the rings have given their pages back, the runtimes their garbage
	before := server.Status("voluntary_ctxt_switches", true)
	time.Sleep(seconds * time.Second)
	return float64(server.Status("voluntary_ctxt_switches", true)-before) / seconds
}

func start(w *harness.World) float64 {
	var took []float64
	for range 300 {
		cmd := exec.Command("/bin/true")
		cmd.Env = []string{"SMCR_RUN_DIR=" + w.RunDir()}
		if w.Mode == harness.SMC {
			cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(harness.Root(), "build", "libsmcr.so"))
		}
		t := time.Now()
		if err := cmd.Run(); err != nil {
			w.Fail("%v", err)
		}
		took = append(took, time.Since(t).Seconds()*1e3)
	}
	slices.Sort(took)
	return took[len(took)/4] // what others do at the same time only adds
}

func call(what string) func(*harness.World) float64 {
	return func(w *harness.World) float64 {
		_, port := w.Echo(harness.Command{Plain: true})
		return number(w, `(-?[0-9.]+) ns`, w.Run(harness.Command{Args: []string{harness.App("cost"), what, strconv.Itoa(port)}}).Out)
	}
}

// memory is what one idle connection costs both processes together, beyond what the processes cost without any.
func memory(w *harness.World) float64 {
	const connections = 1000
	pss := func(ps ...*harness.Process) (sum float64) {
		for _, p := range ps {
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.PID()))
			if err != nil {
				w.Fail("%v", err)
			}
			sum += number(w, `(?m)^Pss:\s+([0-9]+) kB`, string(data))
		}
		return sum
	}
	server, port := w.Echo(harness.Command{})
	text := strings.Repeat("x", 1000)
	one := w.Hold(port, 1, text)
	before := pss(server)
	many := w.Hold(port, connections, text)
	time.Sleep(6 * time.Second)
	return (pss(server, many) - before - pss(one)) / connections
}

package tests

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"libsmcr/tests/harness"
)

func TestIperfMovesWhatItShould(t *testing.T) {
	for _, way := range []string{"", "-P 4", "-R", "-R -P 4", "--bidir", "-Z", "-l 128"} {
		t.Run("iperf3 "+way, func(t *testing.T) {
			amount := 100 << 20
			if way == "-l 128" {
				amount = 1 << 20
			}
			sameAsNative(t, bySMC(int64(amount/2)), func(w *harness.World) string {
				_, port := w.Iperf()
				args := append([]string{"iperf3", "-c", "127.0.0.1", "-J", "-p", strconv.Itoa(port), "-n", strconv.Itoa(amount)}, strings.Fields(way)...)
				r := w.Run(harness.Command{Args: args})
				var report struct {
					Error string
					Start struct{ Connected []any }
					End   struct {
						Streams []struct{ Sender, Receiver struct{ Bytes int } }
					}
				}
				if err := json.Unmarshal([]byte(r.Out), &report); err != nil {
					w.Fail("%v: %s", err, r)
				}
				sent, received := 0, 0
				for _, s := range report.End.Streams {
					sent += s.Sender.Bytes
					received += s.Receiver.Bytes
				}
				// With -n iperf3 stops when enough is sent: what was under way then is not counted as received.
				return fmt.Sprintf("exit %d, error %q, connections %d, streams %d, enough sent %v, received %v, stderr %q",
					r.Code, report.Error, len(report.Start.Connected), len(report.End.Streams), sent >= amount, received > 0, r.Err)
			})
		})
	}
}

func TestMemcachedPassesItsProtocolTests(t *testing.T) {
	for _, protocol := range []string{"-a", "-b"} {
		t.Run("memccapable "+protocol, func(t *testing.T) {
			sameAsNative(t, either("left-early", "client-not-offering"), func(w *harness.World) string {
				_, port := w.Memcached()
				return w.Run(harness.Command{Args: []string{"memccapable", "-h", "127.0.0.1", "-p", strconv.Itoa(port), protocol}}).String()
			})
		})
	}
}

func TestMemcachedServesItsLoadGenerator(t *testing.T) {
	sameAsNative(t, bySMC(1<<20), func(w *harness.World) string {
		_, port := w.Memcached()
		r := w.Run(harness.Command{Args: []string{"memcaslap", "-s", "127.0.0.1:" + strconv.Itoa(port), "-T", "2", "-c", "16", "-x", "40000", "-v", "0.5"}})
		var said strings.Builder
		for _, line := range regexp.MustCompile(`(?m)^(cmd_get|cmd_set|get_misses|verify_misses|verify_failed|written_bytes|read_bytes|object_bytes).*`).FindAllString(r.Out, -1) {
			if !strings.Contains(line, "bytes") {
				said.WriteString(line + "\n")
			}
		}
		return fmt.Sprintf("%sexit %d %q", said.String(), r.Code, r.Err)
	})
}

func TestSockperfLosesNoMessage(t *testing.T) {
	for _, way := range []string{"ping-pong -m 14 --data-integrity --mps 5000000", "under-load -m 16000 --mps 5000", "throughput -m 64"} {
		t.Run("sockperf "+way, func(t *testing.T) {
			sameAsNative(t, bySMC(10000), func(w *harness.World) string {
				_, port := w.Sockperf()
				args := append([]string{"sockperf"}, strings.Fields(way)...)
				r := w.Run(harness.Command{Args: append(args, "--tcp", "-t", "1", "-i", "127.0.0.1", "-p", strconv.Itoa(port))})
				said := strings.Join(regexp.MustCompile(`# dropped messages = \d+; # duplicated messages = \d+; # out-of-order messages = \d+|Summary: [A-Za-z]+ \w+`).FindAllString(r.Out, -1), "\n")
				return fmt.Sprintf("%s\nexit %d %q", said, r.Code, r.Err)
			})
		})
	}
}

// Package tests is the black-box ring: unmodified programs, natively first and then under the library. A scenario
// passes when both worlds say the same and the report shows that SMC-R carried the bytes, or exactly why it did not.
package tests

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libsmcr/tests/harness"
)

var nativeOnly = flag.Bool("native", false, "run every scenario natively twice: tests the tests, not the library")

// withDefaultSignals: whoever started the tests may ignore signals (nohup, a background job); what they start must not.
func withDefaultSignals() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		fmt.Fprintln(os.Stderr, <-c)
		os.Exit(1)
	}()
}

func TestMain(m *testing.M) {
	withDefaultSignals()
	flag.Parse()
	if err := ready(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func ready() error {
	if err := harness.Compile(); err != nil {
		return err
	}
	if *nativeOnly {
		return nil
	}
	for _, name := range []string{"libsmcr.so", "smcr"} {
		if _, err := os.Stat(filepath.Join(harness.Root(), "build", name)); err != nil {
			return fmt.Errorf("%w: run make build first", err)
		}
	}
	return nil
}

// A scenario returns what must be the same natively and under the library.
type scenario func(w *harness.World) string

// A verdict says how the library must have carried the scenario's connections.
type verdict func(t *testing.T, sum harness.Counts)

// sameAsNative runs a scenario natively and under the library, compares, and gives the counts to the verdict.
func sameAsNative(t *testing.T, v verdict, s scenario) {
	t.Helper()
	native, _ := world(t, harness.Native, s)
	mode := harness.SMC
	if *nativeOnly {
		mode = harness.Native
	}
	preloaded, sum := world(t, mode, s)
	if diff := cmp.Diff(native, preloaded); diff != "" {
		t.Errorf("not as natively (-native +library):\n%s", diff)
	}
	if mode == harness.SMC {
		v(t, sum)
	}
}

// underLibrary runs a scenario that has no native counterpart.
func underLibrary(t *testing.T, v verdict, s scenario) {
	t.Helper()
	if *nativeOnly {
		return
	}
	_, sum := world(t, harness.SMC, s)
	v(t, sum)
}

func world(t *testing.T, mode harness.Mode, s scenario) (string, harness.Counts) {
	t.Helper()
	w := harness.New(mode, func(format string, args ...any) {
		t.Helper()
		t.Fatalf(string(mode)+": "+format, args...)
	})
	defer w.Destroy()
	said := s(w)
	if err := w.End(); err != nil {
		t.Errorf("%s: %v", mode, err)
	}
	return said, w.Totals()
}

// bySMC: every connection of the scenario went over SMC-R, and at least so many bytes.
func bySMC(least int64) verdict {
	return func(t *testing.T, sum harness.Counts) {
		t.Helper()
		if sum.SMC == 0 || sum.TCP != 0 || len(sum.Fallbacks) != 0 {
			t.Errorf("want SMC-R only, got %d by SMC-R, %d by TCP %v", sum.SMC, sum.TCP, sum.Fallbacks)
		}
		if sum.RxBytes < least || sum.TxBytes < sum.RxBytes {
			t.Errorf("SMC-R carried %d bytes of which %d were read, want at least %d", sum.TxBytes, sum.RxBytes, least)
		}
	}
}

// plain: no connection went over SMC-R, each for one of these reasons, and each reason occurred.
func plain(reasons ...string) verdict {
	return func(t *testing.T, sum harness.Counts) {
		t.Helper()
		counted := 0
		for _, reason := range reasons {
			if sum.Fallbacks[reason] == 0 {
				t.Errorf("nothing fell back for %q: %v", reason, sum.Fallbacks)
			}
			counted += sum.Fallbacks[reason]
		}
		if sum.SMC != 0 || sum.TCP == 0 || counted != sum.TCP {
			t.Errorf("want plain TCP for %v, got %d by SMC-R, %d by TCP %v", reasons, sum.SMC, sum.TCP, sum.Fallbacks)
		}
	}
}

// refused: SMC-R was required, and what could not have it ended for these reasons. Only so many ends went on by TCP.
func refused(tcp int, reasons ...string) verdict {
	return func(t *testing.T, sum harness.Counts) {
		t.Helper()
		for _, reason := range reasons {
			if sum.Fallbacks[reason] == 0 {
				t.Errorf("nothing was refused for %q: %v", reason, sum.Fallbacks)
			}
		}
		if sum.SMC != 0 || sum.TCP != tcp || len(sum.Fallbacks) != len(reasons) {
			t.Errorf("want %d by TCP and refusals for %v, got %d by SMC-R, %d by TCP %v", tcp, reasons, sum.SMC, sum.TCP, sum.Fallbacks)
		}
	}
}

// either: SMC-R and plain TCP side by side, the latter for these reasons only.
func either(reasons ...string) verdict {
	return func(t *testing.T, sum harness.Counts) {
		t.Helper()
		for _, reason := range reasons {
			delete(sum.Fallbacks, reason)
		}
		if sum.SMC == 0 || len(sum.Fallbacks) != 0 {
			t.Errorf("want SMC-R, or TCP for %v; got %d by SMC-R, %d by TCP, also %v", reasons, sum.SMC, sum.TCP, sum.Fallbacks)
		}
	}
}

package host

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnvironmentComplaints(t *testing.T) {
	good := []string{
		"SMCR_MODE=auto", "SMCR_MODE=require", "SMCR_PROFILE=latency", "SMCR_NUDGE=0", "SMCR_RMBE=64k", "SMCR_RMBE=16M", "SMCR_RMBE=65536",
		"SMCR_RUN_DIR=/tmp/x", "SMCR_CONFIG=/etc/x", "SMCR_RULES=rule = []", "SMCR_LOG=x", "SMCR_LOG_LEVEL=trace", "SMCR_REPORT_DIR=/x", "SMCR_MODE=", "PATH=/bin", "XSMCR_MODE=1", "SMCR", "",
	}
	if got := CheckEnvironment(good); got != nil {
		t.Errorf("good values: %q", got)
	}
	bad := []string{
		"SMCR_MODE=on", "SMCR_PROFIL=safe", "SMCR_PROFILE=Safe", "SMCR_RMBE=1g", "SMCR_RMBE=63k", "SMCR_RMBE=17m", "SMCR_RMBE=k", "SMCR_RMBE=64kk",
		"SMCR_RMBE=99999999999999999999", "SMCR_RMBE=-1", "SMCR_RUN_DIR=run", "SMCR_CONFIG=x.toml", "SMCR_RULES=" + strings.Repeat("#", 8000), "SMCR_NUDGE=no", "SMCR_LOG_LEVEL=loud",
	}
	want := []string{
		"SMCR_MODE=on: want auto, off, require; the default is used",
		"SMCR_PROFIL is not a variable of this version: ignored",
		"SMCR_PROFILE=Safe: want balanced, safe, latency; the default is used",
		"SMCR_RMBE=1g: want 64k to 16m; the default is used",
		"SMCR_RMBE=63k: want 64k to 16m; the default is used",
		"SMCR_RMBE=17m: want 64k to 16m; the default is used",
		"SMCR_RMBE=k: want 64k to 16m; the default is used",
		"SMCR_RMBE=64kk: want 64k to 16m; the default is used",
		"SMCR_RMBE=99999999999999999999: want 64k to 16m; the default is used",
		"SMCR_RMBE=-1: want 64k to 16m; the default is used",
		"SMCR_RUN_DIR=run: want an absolute path; the default is used",
		"SMCR_CONFIG=x.toml: want an absolute path; the default is used",
		"SMCR_NUDGE=no: want 0, 1; the default is used",
		"SMCR_LOG_LEVEL=loud: want error, warn, info, debug, trace; the default is used",
		"the SMCR_ variables have 8242 bytes, the library has room for 7168: connections stay plain TCP",
	}
	if diff := cmp.Diff(want, CheckEnvironment(bad)); diff != "" {
		t.Error(diff)
	}
}

package host

import (
	"fmt"
	"slices"
	"strings"
)

// environment lists the variables and says what is wrong with a value. The library itself reads them in C, at a program's start,
// and takes the default where it does not understand.
var environment = map[string]func(v string) string{
	"SMCR_MODE":       oneOf("auto", "off", "require"),
	"SMCR_PROFILE":    oneOf("balanced", "safe", "latency"),
	"SMCR_DISCOVERY":  sources,
	"SMCR_NUDGE":      oneOf("0", "1"),
	"SMCR_ADAPT":      oneOf("0", "1"),
	"SMCR_RMBE":       ringSize,
	"SMCR_RUN_DIR":    absolute,
	"SMCR_CONFIG":     absolute,
	"SMCR_RULES":      func(string) string { return "" }, // package rules judges it
	"SMCR_LOG":        func(string) string { return "" },
	"SMCR_LOG_LEVEL":  oneOf("error", "warn", "info", "debug", "trace"),
	"SMCR_LIBRARY":    func(string) string { return "" }, // smcr run says itself if it is no file
	"SMCR_REPORT_DIR": func(string) string { return "" }, // from smcr run --report
	"SMCR_HELD":       func(string) string { return "" }, // from exec
}

func absolute(v string) string {
	if !strings.HasPrefix(v, "/") {
		return "want an absolute path"
	}
	return ""
}

// sources is a list of who may tell that a peer speaks SMC-R.
func sources(v string) string {
	for word := range strings.SplitSeq(v, ",") {
		if !slices.Contains(sourceWords[1:], word) {
			return "want some of kernel,registry,rules"
		}
	}
	return ""
}

func oneOf(words ...string) func(string) string {
	return func(v string) string {
		if slices.Contains(words, v) {
			return ""
		}
		return "want " + strings.Join(words, ", ")
	}
}

func ringSize(v string) string {
	const want = "want 64k to 16m"
	digits := strings.TrimRight(v, "kKmM")
	n := 0
	for _, c := range []byte(digits) {
		if n = n*10 + int(c-'0'); c < '0' || c > '9' || n > 1<<30 {
			return want
		}
	}
	switch v[len(digits):] {
	case "k", "K":
		n <<= 10
	case "m", "M":
		n <<= 20
	case "":
	default:
		return want
	}
	if n < 64<<10 || n > 16<<20 {
		return want
	}
	return ""
}

// environmentMax is how much of variables the library has room for, beside the program's name.
const environmentMax = 7 << 10

// CheckEnvironment returns a sentence for each SMCR_ variable of env that the library does not know or does not understand.
// An empty value is as good as none.
func CheckEnvironment(env []string) (complaints []string) {
	total := 0
	for _, e := range env {
		name, v, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "SMCR_") || v == "" {
			continue
		}
		total += len(e) + 1
		check := environment[name]
		if check == nil {
			complaints = append(complaints, fmt.Sprintf("%s is not a variable of this version: ignored", name))
		} else if wrong := check(v); wrong != "" {
			complaints = append(complaints, fmt.Sprintf("%s=%s: %s; the default is used", name, v, wrong))
		}
	}
	if total > environmentMax {
		complaints = append(complaints, fmt.Sprintf("the SMCR_ variables have %d bytes, the library has room for %d: connections stay plain TCP", total, environmentMax))
	}
	return complaints
}

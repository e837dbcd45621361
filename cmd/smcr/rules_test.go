package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libsmcr/rules"
)

// withRules is a command line in an environment with these rules and nobody else's.
func withRules(t *testing.T, variable string, args ...string) *exec.Cmd {
	t.Helper()
	c := smcr(t, args...)
	c.Env = append(c.Env, variable)
	return c
}

func TestToHaveNoRulesIsNoError(t *testing.T) {
	if _, err := os.Stat(rules.File); err == nil {
		t.Fatalf("%s is there: move it away for the tests", rules.File)
	}
	if got := outcome(t, smcr(t, "rules", "check")); got != (result{rules.File + ": no such file, and that is all right: there are no rules\n", "", 0}) {
		t.Errorf("%+v", got)
	}
	if got := outcome(t, smcr(t, "rules", "check", "--json")); got.code != 0 || !strings.Contains(got.stdout, `"rules": 0`) {
		t.Errorf("%+v", got)
	}
}

func TestRulesAreChecked(t *testing.T) {
	none := "SMCR_CONFIG=" + filepath.Join(t.TempDir(), "none.toml")
	bad := write(t, filepath.Join(t.TempDir(), "bad.toml"), "[[rule]]\nuse = 'tpc'\n", 0o600)
	for _, c := range []struct {
		variable, args string
		want           result
	}{
		{none, "check testdata/rules.toml", result{
			"testdata/rules.toml:1: profile has no effect in this version\n" +
				"testdata/rules.toml:11: this version has none of the providers ibv: no SMC-R\n" +
				"testdata/rules.toml:14: never reached: the rule of line 11 is for every connection\n" +
				"testdata/rules.toml: 4 rules, no errors\n", "", 0}},
		{none, "check", result{"", "smcr: " + strings.TrimPrefix(none, "SMCR_CONFIG=") + ": no such file\n", 1}},
		{none, "check " + bad, result{"", "smcr: " + bad + ":2:7: use: \"tpc\": want require, smc, tcp\n", 1}},
		{none, "check /dev/null", result{"", "smcr: /dev/null: not a regular file\n", 1}},
		{"SMCR_CONFIG=" + bad, "check", result{"", "smcr: " + bad + ":2:7: use: \"tpc\": want require, smc, tcp\n", 1}},
		{`SMCR_RULES=rule = [{use = "tcp"}]`, "check", result{"SMCR_RULES: 1 rule, no errors\n", "", 0}},
		{`SMCR_RULES=[[rule]`, "check --json", result{`{
  "source": "SMCR_RULES",
  "rules": 0,
  "error": {
    "line": 1,
    "column": 8,
    "problem": "expected character ] but the document ended here"
  },
  "notes": []
}
`, "", 1}},
		{none, "check a b", result{"", "smcr: check: unexpected \"b\": see smcr rules check --help\n", 2}},
		{none, "chek", result{"", "smcr: rules: unknown command \"chek\": want check or explain\n", 2}},
	} {
		got := outcome(t, withRules(t, c.variable, append([]string{"rules"}, strings.Fields(c.args)...)...))
		if d := cmp.Diff(c.want, got, cmp.AllowUnexported(result{})); d != "" {
			t.Errorf("%s: %s", c.args, d)
		}
	}
}

func TestRulesAreExplained(t *testing.T) {
	file := "SMCR_CONFIG=" + write(t, filepath.Join(t.TempDir(), "r.toml"), `
[[rule]]
program = "redis-*"
port = 6379
use = "require"

[[rule]]
role = "server"
peer = "10.0.0.0/8"
use = "smc"
accept = "eager"

[[rule]]
port = "1-99"
use = "smc"
providers = ["ibv"]
`, 0o600)
	path := strings.TrimPrefix(file, "SMCR_CONFIG=")
	for _, c := range []struct{ variable, args, want string }{
		{file, "--program redis-server --peer 10.1.2.3:6379", "redis-server as client, to 10.1.2.3, port 6379: uses SMC-R, or fails\n  " + path + ":2 is for program redis-*; port 6379\n"},
		{file, "--program /usr/bin/nginx --peer 10.1.2.3:80 --role server", "/usr/bin/nginx as server, from 10.1.2.3, port 80: uses SMC-R where the other end can\n  " +
			path + ":7 is for role server; peer 10.0.0.0/8\n  it is negotiated at accept\n  not line 2: program /usr/bin/nginx is not redis-*\n"},
		{file, "--program nginx --peer [::1]:80", "nginx as client, to ::1, port 80: stays TCP\n  " + path +
			":13 is for port 1-99, but this version has none of the providers ibv: no SMC-R\n  not line 2: program nginx is not redis-*\n  not line 7: it is for the server\n"},
		{file, "--program nginx --peer [::1]:8080", "nginx as client, to ::1, port 8080: uses SMC-R where the other end can\n  no rule matches\n" +
			"  not line 2: program nginx is not redis-*\n  not line 7: it is for the server\n  not line 13: port 8080 is not 1-99\n"},
		{"SMCR_RULES=x = 1", "--program nginx --peer [::1]:80", "nginx as client, to ::1, port 80: stays TCP\n" +
			"  SMCR_RULES:1:1: x stands in no rule: begin one with [[rule]]; connections stay plain TCP unless SMCR_MODE=require\n"},
	} {
		got := outcome(t, withRules(t, c.variable, append([]string{"rules", "explain"}, strings.Fields(c.args)...)...))
		if d := cmp.Diff(result{c.want, "", 0}, got, cmp.AllowUnexported(result{})); d != "" {
			t.Errorf("%s: %s", c.args, d)
		}
	}

	for mode, want := range map[string]string{"off": "tcp tcp SMCR_MODE=off overrides the rules", "require": "require smc SMCR_MODE=require overrides what rules use",
		"auto": "require smc " + path + ":2 is for program redis-*; port 6379"} {
		c := withRules(t, file, "rules", "explain", "--json", "--program", "redis-cli", "--peer", "[::ffff:10.0.0.1]:6379")
		c.Env = append(c.Env, "SMCR_MODE="+mode)
		var e explanation
		if err := json.Unmarshal([]byte(outcome(t, c).stdout), &e); err != nil || e.Use+" "+e.Carrier+" "+e.Why != want || e.Peer != "10.0.0.1" {
			t.Errorf("SMCR_MODE=%s: %v %+v", mode, err, e)
		}
	}

	for args, want := range map[string]string{
		"--peer 10.0.0.1:1":                           "smcr: rules explain: no program: --program NAME\n",
		"--program x --peer 10.0.0.1":                 "smcr: rules explain: --peer \"10.0.0.1\": want ADDRESS:PORT\n",
		"--program x --peer 10.0.0.1:0":               "smcr: rules explain: --peer \"10.0.0.1:0\": want ADDRESS:PORT\n",
		"--program x --peer 10.0.0.1:1 --role either": "smcr: rules explain: --role \"either\": want client or server\n",
	} {
		if got := outcome(t, withRules(t, file, append([]string{"rules", "explain"}, strings.Fields(args)...)...)); got != (result{"", want, exitUsage}) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

func TestRunWarnsOfRulesThatCannotBeUsed(t *testing.T) {
	const want = "smcr: SMCR_RULES:1:1: x stands in no rule: begin one with [[rule]]; connections stay plain TCP unless SMCR_MODE=require\n"
	for args, stderr := range map[string]string{"run -- true": want, "run --off -- true": "", "run --require -- true": ""} {
		if got := outcome(t, withRules(t, "SMCR_RULES=x = 1", strings.Fields(args)...)); got.stderr != stderr || got.code != 0 {
			t.Errorf("%s: %+v", args, got)
		}
	}
	c := withRules(t, "SMCR_CONFIG=none.toml", "run", "--", "true")
	c.Dir = t.TempDir()
	if got := outcome(t, c); got.stderr != "smcr: "+c.Dir+"/none.toml: no such file; connections stay plain TCP unless SMCR_MODE=require\n" {
		t.Errorf("%+v", got)
	}
}

package rules

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"libsmcr/abi/host"
)

const everything = `# all keys
[[rule]]
program = ["redis-*", "/opt/*/bin/memcached"]
role = "server"
peer = ["10.0.0.0/8", "fd00::/8", "127.0.0.1"]
port = [6379, "7000-7010"]
use = "require"
providers = ["shm", "ibv"]
profile = "latency"
accept = "eager"

[[rule]]
role = "client"
port = "5432"
use = "tcp"
accept = "lazy"
`

func parsed(t *testing.T, text string) Set {
	t.Helper()
	s, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return s
}

func TestEveryKeyIsRead(t *testing.T) {
	want := Set{
		{
			Line: 2, Programs: []string{"redis-*", "/opt/*/bin/memcached"}, Roles: host.RoleServer,
			Peers: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"), netip.MustParsePrefix("127.0.0.1/32")},
			Ports: []Ports{{6379, 6379}, {7000, 7010}}, Use: host.UseRequire, Providers: []string{"shm", "ibv"}, Profile: "latency", Eager: true,
		},
		{Line: 12, Roles: host.RoleClient, Ports: []Ports{{5432, 5432}}, Use: host.UseTCP},
	}
	same := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if d := cmp.Diff(want, parsed(t, everything), same); d != "" {
		t.Error(d)
	}
	inline := parsed(t, `rule = [{port=6379, use="tcp"}, {use="smc", role="client"}]`)
	if d := cmp.Diff(Set{
		{Line: 1, Roles: host.RoleClient | host.RoleServer, Ports: []Ports{{6379, 6379}}, Use: host.UseTCP},
		{Line: 1, Roles: host.RoleClient, Use: host.UseSMC},
	}, inline, same); d != "" {
		t.Error(d)
	}
	for _, nothing := range []string{"", "\n# only a comment\n", "rule = []"} {
		if s := parsed(t, nothing); len(s) != 0 {
			t.Errorf("%q: %v", nothing, s)
		}
	}
}

func TestWhatIsWrongIsSaidWithLineAndColumn(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"[[rule]\nuse='tcp'", "1:8: "},
		{"[[rule]]\nuse = tcp", `2:7: a string wants quotes: "tcp"`},
		{"[[rule]]\nprogram = rsync", `2:11: a string wants quotes: "rsync"`},
		{"[[rule]]\nprogram = [ \"curl\",\n nginx]", `3:2: a string wants quotes: "nginx"`},
		{"[[rule]]\nprogram = iperf3 # all of it", `2:11: a string wants quotes: "iperf3"`},
		{"[[rule]]\nprogram = /usr/bin/rsync", `2:11: a string wants quotes: "/usr/bin/rsync"`},
		{"rule = [{use = smc}]", `1:16: a string wants quotes: "smc"`},
		{"[[rule]]\nport = ", "2:8: "},
		{"[[rule]]\nuse = \"tcp", "2:11: basic string not terminated"},
		{"[[rule]]\nuse = 'tcp'\n\n[[rule]]\nport = 1", `4:1: rule without use: want use = "smc", "tcp" or "require"`},
		{"use = 'tcp'", "1:1: use stands in no rule: begin one with [[rule]]"},
		{"[rule]\nuse = 'tcp'", `1:2: unknown table "rule": want [[rule]]`},
		{"[[rules]]", `1:3: unknown table "rules": want [[rule]]`},
		{"[[rule]]\nuse = 'tpc'", `2:7: use: "tpc": want require, smc, tcp`},
		{"[[rule]]\nuse = true", "2:1: use: a value of type bool: want a string"},
		{"[[rule]]\nuse = 'tcp'\nuse = 'smc'", "3:1: use is given twice in this rule"},
		{"[[rule]]\nprot = 1", `2:1: unknown key "prot": want program, role, peer, port, use, providers, profile, accept`},
		{"[[rule]]\na.use = 'tcp'", `2:1: unknown key "a.use": want program`},
		{"[[rule]]\n  port = [1,\n  0]", `3:3: port: "0": want a port from 1 to 65535, or a range as "7000-7010"`},
		{"[[rule]]\nport = 65536", `2:8: port: "65536"`},
		{"[[rule]]\nport = -1", `2:8: port: "-1"`},
		{"[[rule]]\nport = '10-9'", `2:8: port: "10-9"`},
		{"[[rule]]\nport = 1.5", "2:8: port: a value of type float"},
		{"[[rule]]\nport = []", "2:1: port: an empty list matches nothing: leave port out"},
		{"[[rule]]\npeer = '10.0.0.1/8'", `2:8: peer: "10.0.0.1/8" has bits beyond the prefix: want 10.0.0.0/8`},
		{"[[rule]]\npeer = 'localhost'", `2:8: peer: "localhost": want an address or a prefix`},
		{"[[rule]]\npeer = 'fe80::1%eth0'", `2:8: peer: "fe80::1%eth0": zones`},
		{"[[rule]]\npeer = '::ffff:10.0.0.1'", `2:8: peer: "::ffff:10.0.0.1": write the IPv4 address itself`},
		{"[[rule]]\nprogram = ''", `2:11: program: "": want a word`},
		{"[[rule]]\nprogram = \"a\\u0000\"", `2:11: program: "a\x00": want a word`},
		{"[[rule]]\nprogram = '" + strings.Repeat("x", 160) + "'", "2:11: program: longer than 159 bytes"},
		{"[[rule]]\nrole = 'both'", `2:8: role: "both": want client, server`},
		{"[[rule]]\nproviders = ['tcp']", `2:14: providers: "tcp": want ibv, shm, softroce`},
		{"[[rule]]\naccept = 'soon'", `2:10: accept: "soon": want eager, lazy`},
		{"[[rule]]\nprogram = 'é', 1", "2:14: "},
		{"rule = 1", "1:1: want one rule = [{...}, ...]"},
		{"rule = [1]", "1:1: rule holds a value of type integer: want {...}"},
		{"rule = [{port=1}]", "1:1: rule without use"},
		{"rule = [{use='smc'}]\n[[rule]]\nuse = 'tcp'", "2:3: rules are written as rule = [...] above"},
		{"[[rule]]\nuse='smc'\nrule = []", `3:1: unknown key "rule"`},
		{"#" + strings.Repeat("x", MaxText), "1:1: longer than 1048576 bytes"},
		{"[[rule]]\nuse='tcp'\nport=[" + strings.Repeat("1,", 65) + "]\npeer=[" + strings.Repeat("'::1',", 65) + "]",
			"1:1: too many rules: 4225 combinations of program, peer and port, at most 4096"},
	} {
		_, err := Parse([]byte(c.text))
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%.60q:\n got %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestTheFirstRuleThatMatchesDecides(t *testing.T) {
	s := parsed(t, everything+`
[[rule]]
program = "redis-server"
use = "smc"
`)
	for _, c := range []struct {
		program string
		role    host.Roles
		peer    string
		port    uint16
		line    int
		misses  string // of the first rule
	}{
		{"/usr/bin/redis-server", host.RoleServer, "10.1.2.3", 6379, 2, ""},
		{"redis-server", host.RoleServer, "::ffff:10.1.2.3", 7005, 2, ""},
		{"redis-server", host.RoleServer, "fd00::1", 7010, 2, ""},
		{"/opt/a/b/bin/memcached", host.RoleServer, "127.0.0.1", 7000, 2, ""},
		{"memcached", host.RoleServer, "127.0.0.1", 7000, 0, "program memcached is not redis-*, /opt/*/bin/memcached"},
		{"redis-server", host.RoleServer, "11.1.2.3", 6379, 18, "peer 11.1.2.3 is not in 10.0.0.0/8, fd00::/8, 127.0.0.1/32"},
		{"redis-server", host.RoleServer, "10.1.2.3", 7011, 18, "port 7011 is not 6379, 7000-7010"},
		{"redis-cli", host.RoleClient, "10.1.2.3", 6379, 0, "it is for the server"},
		{"psql", host.RoleClient, "10.1.2.3", 5432, 12, "program psql is not redis-*, /opt/*/bin/memcached"},
	} {
		q := Query{c.program, c.role, netip.MustParseAddr(c.peer), c.port}
		line := 0
		if r := s.Decide(q); r != nil {
			line = r.Line
		}
		if line != c.line || s[0].Misses(q) != c.misses {
			t.Errorf("%+v: the rule of line %d, want %d; the first: %q, want %q", q, line, c.line, s[0].Misses(q), c.misses)
		}
	}
}

func TestSourceOfTheRules(t *testing.T) {
	for _, c := range []struct{ rules, config, inline, path string }{
		{"", "", "", File},
		{"", "/x", "", "/x"},
		{"", "relative", "", File},
		{"rule=[]", "/x", "rule=[]", ""},
	} {
		inline, path := Source(func(name string) string {
			return map[string]string{"SMCR_RULES": c.rules, "SMCR_CONFIG": c.config}[name]
		})
		if inline != c.inline || path != c.path {
			t.Errorf("%+v: %q %q", c, inline, path)
		}
	}
}

// random makes a rules file of what is easily confused.
func random(r *rand.Rand) string {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	var b strings.Builder
	for range r.IntN(5) {
		fmt.Fprintf(&b, "[[rule]]\nuse = '%s'\n", pick("smc", "tcp", "require"))
		if r.IntN(2) == 0 {
			fmt.Fprintf(&b, "program = ['%s', '%s']\n", pick("a*", "*b", "?", "/x/*", "*/a?", "**a*b"), pick("ab", "/x/ab", "a?b*"))
		}
		if r.IntN(3) == 0 {
			fmt.Fprintf(&b, "role = '%s'\n", pick("client", "server"))
		}
		if r.IntN(2) == 0 {
			fmt.Fprintf(&b, "peer = ['%s', '%s']\n", pick("0.0.0.0/0", "10.0.0.0/7", "10.128.0.0/9", "10.1.2.3"), pick("::/0", "::1", "::a00:0/104", "fc00::/7", "2001:db8::/33"))
		}
		if r.IntN(2) == 0 {
			fmt.Fprintf(&b, "port = [%d, '%d-%d']\n", 1+r.IntN(4), 2+r.IntN(3), 5+r.IntN(3))
		}
		if r.IntN(4) == 0 {
			fmt.Fprintf(&b, "providers = ['%s']\n", pick("shm", "ibv"))
		}
		if r.IntN(4) == 0 {
			fmt.Fprintf(&b, "accept = 'eager'\n")
		}
	}
	return b.String()
}

var (
	programs = []string{"a", "ab", "aab", "/x/ab", "/x/y/ab", "/x/a", "b", "/usr/bin/axb", ""}
	peers    = []string{"10.0.0.1", "10.1.2.3", "10.200.0.1", "11.0.0.1", "12.0.0.1", "::1", "::a00:1", "fd00::1", "2001:db8::1", "2001:db8:8000::1"}
)

// What hooks/rules.c decides from a compiled table is what Decide says.
func TestCDecidesAlike(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "decide")
	if out, err := exec.Command("gcc", "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined",
		"-o", bin, "testdata/decide.c", "../hooks/rules.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	var in, texts, want []string
	for n := range 100 {
		text := random(r)
		s := parsed(t, text)
		table := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(table, s.Compile(), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 300 {
			q := Query{programs[r.IntN(len(programs))], host.RoleClient << r.IntN(2), netip.MustParseAddr(peers[r.IntN(len(peers))]), uint16(1 + r.IntN(9))}
			rule := s.Decide(q)
			if rule == nil {
				rule = &Default
			}
			reason, eager := host.ReasonNone, 0
			if rule.Use == host.UseTCP || !rule.Usable() {
				reason = host.ReasonRule
			}
			if rule.Eager {
				eager = 1
			}
			texts = append(texts, text)
			in = append(in, fmt.Sprintf("%s %d %d %s %s", table, q.Role, q.Port, q.Peer, q.Program))
			want = append(want, fmt.Sprintf("%d %d %d", rule.Use, reason, eager))
		}
	}
	c := exec.Command(bin)
	c.Stdin = strings.NewReader(strings.Join(in, "\n") + "\n")
	out, err := c.CombinedOutput()
	got := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if err != nil || len(got) != len(want) {
		t.Fatalf("seed %d: %v, %d answers to %d questions\n%.2000s", seed, err, len(got), len(want), out)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("seed %d: %s: C says %q, Go %q\n%s", seed, in[i], got[i], want[i], texts[i])
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{everything, "[[rule]]\nuse = 'tcp'", `rule = [{port=[1,"2-3"], use="smc", peer="::/0"}]`, "[[rule]", "rule = [{", "[[rule]]\nport = [1,\n", "\"\\u", "[[rule]]\nprogram='''\na", "a", "é = 1", "#\x00"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if err != nil {
			e, ok := err.(*Error)
			if !ok || e.Line < 1 || e.Column < 1 || e.Line > bytes.Count(text, []byte("\n"))+1 || e.Problem == "" {
				t.Fatalf("%#v", err)
			}
			return
		}
		if table := s.Compile(); (len(table)-headSize)%rowSize != 0 || (len(table)-headSize)/rowSize != s.rows() {
			t.Fatalf("%d bytes for %d rows", len(table), s.rows())
		}
		s.Decide(Query{"/usr/bin/x", host.RoleClient, netip.MustParseAddr("10.0.0.1"), 80})
	})
}

var headSize, rowSize = len(encode(nil, &host.Rules{})), len(encode(nil, &host.Rule{}))

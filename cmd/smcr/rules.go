package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"libsmcr/abi/host"
	"libsmcr/rules"
)

func newRules() *cobra.Command {
	c := &cobra.Command{
		Use:   "rules",
		Short: "Check the rules file, and explain what it decides",
		Long: "Rules say which connections use SMC-R, which stay TCP and which must use SMC-R. They are in " + rules.File + ", or in the\n" +
			"file that SMCR_CONFIG names, or in SMCR_RULES itself.",
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				return failure(exitUsage, "rules: unknown command %q: want check or explain", args[0])
			}
			return c.Help()
		},
	}
	c.AddCommand(newRulesCheck(), newRulesExplain())
	return c
}

// readRules reads the rules in force, or those of a file. There may be none: then err is fs.ErrNotExist, unless a file was asked for.
func readRules(file string, getenv func(string) string) (name string, set rules.Set, err error) {
	inline, path := rules.Source(getenv)
	if file != "" {
		inline, path = "", file
	}
	text, name := []byte(inline), rules.Inline
	if path != "" {
		name = path
		if text, err = readFile(path); err != nil {
			if e, ok := errors.AsType[*fs.PathError](err); ok {
				err = e.Err
			}
			if chosen := file != "" || path != rules.File || getenv("SMCR_CONFIG") == path; chosen && errors.Is(err, fs.ErrNotExist) {
				err = errors.New("no such file")
			}
			return name, nil, err
		}
	}
	set, err = rules.Parse(text)
	return name, set, err
}

// readFile reads a regular file; more than a rules file may have is cut off, and refused later.
func readFile(path string) ([]byte, error) {
	if st, err := os.Stat(path); err != nil {
		return nil, err
	} else if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, rules.MaxText+1))
}

// rulesWarning says what keeps the rules from being used; "" = nothing. Only SMCR_MODE=auto follows rules.
func rulesWarning(env []string) string {
	getenv := func(key string) string { v, _ := lookup(env, key); return v }
	if mode := getenv("SMCR_MODE"); mode == "off" || mode == "require" {
		return ""
	}
	if name, _, err := readRules("", getenv); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return rules.Complaint(name, err)
	}
	return ""
}

// note is about a rule that is right and yet may surprise.
type note struct {
	Line int    `json:"line"`
	Note string `json:"note"`
}

func notes(set rules.Set) []note {
	found := []note{}
	for i := range set {
		r := &set[i]
		for _, key := range r.Idle() {
			found = append(found, note{r.Line, key + " has no effect in this version"})
		}
		if !r.Usable() && r.Use != host.UseTCP {
			found = append(found, note{r.Line, unusable(r)})
		}
		if i+1 < len(set) && r.Conditions() == "" {
			found = append(found, note{set[i+1].Line, fmt.Sprintf("never reached: the rule of line %d is for every connection", r.Line)})
			break
		}
	}
	return found
}

func unusable(r *rules.Rule) string {
	return fmt.Sprintf("this version has none of the providers %s: no SMC-R", strings.Join(r.Providers, ", "))
}

type checkReport struct {
	Source string       `json:"source"`
	Rules  int          `json:"rules"`
	Error  *rules.Error `json:"error,omitempty"`
	Notes  []note       `json:"notes"`
}

func newRulesCheck() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Say whether a rules file can be used",
		Long:  "Reads FILE, or the rules in force, and says with line and column what is wrong. Exit code 1: it cannot be used.",
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) > 1 {
				return noArgs(c, args[1:])
			}
			name, set, err := readRules(strings.Join(args, ""), os.Getenv)
			bad, isRules := errors.AsType[*rules.Error](err)
			missing := errors.Is(err, fs.ErrNotExist)
			if missing {
				err = nil
			}
			if asJSON && (err == nil || isRules) {
				if e := writeJSON(c.OutOrStdout(), checkReport{name, len(set), bad, notes(set)}); e != nil || err == nil {
					return e
				}
				return &exitError{code: exitFailed}
			}
			switch {
			case isRules:
				return failure(exitFailed, "%s:%v", name, err)
			case missing:
				fmt.Fprintf(c.OutOrStdout(), "%s: no such file, and that is all right: there are no rules\n", name)
				return nil
			case err != nil:
				return failure(exitFailed, "%s: %v", name, err)
			}
			for _, n := range notes(set) {
				fmt.Fprintf(c.OutOrStdout(), "%s:%d: %s\n", name, n.Line, n.Note)
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: %s, no errors\n", name, counted(len(set), "rule"))
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// explanation is what smcr rules explain says.
type explanation struct {
	Program string   `json:"program"`
	Role    string   `json:"role"`
	Peer    string   `json:"peer"`
	Port    uint16   `json:"port"`
	Source  string   `json:"source"` // "" = no rules
	Line    int      `json:"line"`   // of the rule that decides; 0 = none
	Use     string   `json:"use"`
	Carrier string   `json:"carrier"` // smc, where the other end can; or tcp
	Why     string   `json:"why"`
	Accept  string   `json:"accept"`
	Known   bool     `json:"known"`
	Passed  []passed `json:"passed"` // the rules before it
}

type passed struct {
	Line int    `json:"line"`
	Why  string `json:"why"`
}

func newRulesExplain() *cobra.Command {
	var asJSON bool
	var program, role, peer string
	c := &cobra.Command{
		Use:   "explain --program NAME --peer ADDRESS:PORT [--role client|server]",
		Short: "Say which rule decides a connection, and why",
		Long: "Says what the rules in force, with the environment as it is, decide for a connection of the program NAME, or of the one\n" +
			"with that path. ADDRESS is the other end's; PORT is the service's, for a client and for a server alike.",
		Example:               "  smcr rules explain --program redis-cli --peer 10.1.2.3:6379\n  smcr rules explain --program /usr/bin/redis-server --role server --peer [fd00::7]:6379",
		DisableFlagsInUseLine: true,
		Args:                  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			to, err := netip.ParseAddrPort(peer)
			r := map[string]host.Roles{"client": host.RoleClient, "server": host.RoleServer}[role]
			switch {
			case program == "":
				return failure(exitUsage, "rules explain: no program: --program NAME")
			case err != nil || to.Port() == 0:
				return failure(exitUsage, "rules explain: --peer %q: want ADDRESS:PORT", peer)
			case r == 0:
				return failure(exitUsage, "rules explain: --role %q: want client or server", role)
			}
			name, set, err := readRules("", os.Getenv)
			if errors.Is(err, fs.ErrNotExist) {
				name, err = "", nil
			}
			e := explain(name, set, err, rules.Query{Program: program, Role: r, Peer: to.Addr(), Port: to.Port()}, os.Getenv("SMCR_MODE"))
			if asJSON {
				return writeJSON(c.OutOrStdout(), e)
			}
			e.writeText(c.OutOrStdout())
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&program, "program", "", "`NAME` or path of the program")
	f.StringVar(&peer, "peer", "", "the other end's `ADDRESS:PORT`, with the port of the service")
	f.StringVar(&role, "role", "client", "client or server: which end the program is")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// explain decides as the library would.
func explain(name string, set rules.Set, bad error, q rules.Query, mode string) explanation {
	e := explanation{Program: q.Program, Role: q.Role.String(), Peer: q.Peer.Unmap().String(), Port: q.Port, Source: name, Passed: []passed{}}
	r := set.Decide(q)
	for i := range set {
		if r == &set[i] {
			break
		}
		e.Passed = append(e.Passed, passed{set[i].Line, set[i].Misses(q)})
	}
	switch {
	case name == "":
		e.Why = "there are no rules"
	case bad != nil:
		e.Why = rules.Complaint(name, bad)
	case r == nil:
		e.Why = "no rule matches"
	default:
		e.Line = r.Line
		e.Why = fmt.Sprintf("%s:%d is for %s", name, r.Line, cmp.Or(r.Conditions(), "every connection"))
	}
	if r == nil {
		r = &rules.Default
	}
	use := r.Use
	switch mode {
	case "off":
		use, e.Why = host.UseTCP, "SMCR_MODE=off overrides the rules"
	case "require":
		use, e.Why = host.UseRequire, "SMCR_MODE=require overrides what rules use"
	default:
		if bad != nil {
			use = host.UseTCP
		}
	}
	e.Use, e.Carrier, e.Accept = use.String(), "smc", "lazy"
	if r.Eager {
		e.Accept = "eager"
	}
	e.Known = r.Known
	if use == host.UseTCP {
		e.Carrier = "tcp"
	} else if !r.Usable() {
		e.Carrier = "tcp"
		e.Why += ", but " + unusable(r)
	}
	return e
}

func (e explanation) writeText(w io.Writer) {
	says := map[string]string{
		"smc smc":     "uses SMC-R where the other end can",
		"smc tcp":     "stays TCP",
		"tcp tcp":     "stays TCP",
		"require smc": "uses SMC-R, or fails",
		"require tcp": "fails",
	}[e.Use+" "+e.Carrier]
	preposition := "to"
	if e.Role == "server" {
		preposition = "from"
	}
	address, _ := netip.ParseAddr(e.Peer)
	where := fmt.Sprintf("%s as %s, %s %s, port %d", e.Program, e.Role, preposition, address, e.Port)
	fmt.Fprintf(w, "%s: %s\n  %s\n", where, says, e.Why)
	if e.Role == "server" && e.Accept == "eager" {
		fmt.Fprintln(w, "  it is negotiated at accept")
	}
	if e.Known && e.Carrier == "smc" {
		fmt.Fprintln(w, "  the other end is known to speak SMC-R, whatever the kernel hook and the registry say")
	}
	for _, p := range e.Passed {
		fmt.Fprintf(w, "  not line %d: %s\n", p.Line, p.Why)
	}
}

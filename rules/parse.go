package rules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2/unstable"

	"libsmcr/abi/host"
)

// MaxText is the longest rules file.
const MaxText = 1 << 20

// Error says what is wrong with a rules file, and where. Columns count characters.
type Error struct {
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Problem string `json:"problem"`
}

func (e *Error) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Problem) }

// parser reads TOML's syntax tree, which knows where each key and value stands; a decoder into structures does not.
type parser struct {
	toml unstable.Parser
	set  Set
	form string // how the rules are written: [[rule]] or rule = [...]; TOML allows one of them
	seen map[string]bool
}

// Parse reads a rules file. The error is an *Error.
func Parse(text []byte) (Set, error) {
	var p parser
	if len(text) > MaxText {
		return nil, &Error{1, 1, fmt.Sprintf("longer than %d bytes", MaxText)}
	}
	p.toml.Reset(text)
	for p.toml.NextExpression() {
		if err := p.expression(p.toml.Expression()); err != nil {
			return nil, err
		}
	}
	if err := p.toml.Error(); err != nil {
		if e, ok := errors.AsType[*unstable.ParserError](err); ok {
			where := p.toml.Range(e.Highlight)
			return nil, p.at(where, "%s", cmp.Or(bareWord(text, int(where.Offset)), e.Message))
		}
		return nil, &Error{1, 1, err.Error()}
	}
	if err := p.complete(); err != nil {
		return nil, err
	}
	if n := p.set.rows(); n > host.RulesMax {
		return nil, &Error{p.set[len(p.set)-1].Line, 1, fmt.Sprintf("too many rules: %d combinations of program, peer and port, at most %d", n, host.RulesMax)}
	}
	return p.set, nil
}

// bareWord is what is wrong if a value begins there with a letter or a slash, which the TOML parser takes for a number or a bool.
func bareWord(text []byte, at int) string {
	before, rest := bytes.TrimRight(text[:at], " \t\r\n"), text[at:]
	if len(before) == 0 || !bytes.ContainsRune([]byte("=[,"), rune(before[len(before)-1])) || len(rest) == 0 {
		return ""
	}
	if first, _ := utf8.DecodeRune(rest); !unicode.IsLetter(first) && !bytes.ContainsRune([]byte("/*._"), first) {
		return ""
	}
	if end := bytes.IndexAny(rest, " \t\r\n,]}#\"'"); end >= 0 {
		rest = rest[:end]
	}
	return fmt.Sprintf("a string wants quotes: %q", rest)
}

func (p *parser) at(r unstable.Range, format string, args ...any) error {
	lead := p.toml.Data()[:r.Offset]
	line := strings.Count(string(lead), "\n") + 1
	column := utf8.RuneCount(lead[strings.LastIndexByte(string(lead), '\n')+1:]) + 1
	return &Error{line, column, fmt.Sprintf(format, args...)}
}

// key joins the parts of a key, and says where it stands.
func (p *parser) key(n *unstable.Node) (string, unstable.Range) {
	var parts []string
	var where unstable.Range
	for it := n.Key(); it.Next(); {
		if parts == nil {
			where = it.Node().Raw
		}
		parts = append(parts, string(it.Node().Data))
	}
	return strings.Join(parts, "."), where
}

func (p *parser) expression(n *unstable.Node) error {
	key, where := p.key(n)
	switch {
	case n.Kind == unstable.ArrayTable && key == "rule":
		return p.begin("[[rule]]", where)
	case n.Kind == unstable.KeyValue && p.form == "[[rule]]":
		return p.setting(n)
	case n.Kind == unstable.KeyValue && key == "rule":
		return p.inline(n.Value(), where)
	case n.Kind == unstable.KeyValue:
		return p.at(where, "%s stands in no rule: begin one with [[rule]]", key)
	default:
		return p.at(where, "unknown table %q: want [[rule]]", key)
	}
}

func (p *parser) begin(form string, where unstable.Range) error {
	if p.form != "" && p.form != form {
		return p.at(where, "rules are written as %s above", p.form)
	}
	if err := p.complete(); err != nil {
		return err
	}
	e := p.at(where, "").(*Error)
	p.form, p.seen = form, map[string]bool{}
	p.set = append(p.set, Rule{Line: e.Line, Roles: host.RoleClient | host.RoleServer})
	return nil
}

// complete checks the rule that ends.
func (p *parser) complete() error {
	if len(p.set) > 0 && !p.seen["use"] {
		return &Error{p.set[len(p.set)-1].Line, 1, `rule without use: want use = "smc", "tcp" or "require"`}
	}
	return nil
}

// inline reads rule = [{...}, ...], which fits an environment variable.
func (p *parser) inline(list *unstable.Node, where unstable.Range) error {
	const form = "rule = [...]"
	if list.Kind != unstable.Array || p.form != "" {
		return p.at(where, "want one rule = [{...}, ...]")
	}
	for it := list.Children(); it.Next(); {
		n := it.Node()
		if n.Kind != unstable.InlineTable {
			return p.at(where, "rule holds %s: want {...}", kind(n))
		}
		if err := p.begin(form, n.Raw); err != nil {
			return err
		}
		for it := n.Children(); it.Next(); {
			if err := p.setting(it.Node()); err != nil {
				return err
			}
		}
	}
	p.form = form
	return nil
}

var (
	uses     = map[string]host.Use{"smc": host.UseSMC, "tcp": host.UseTCP, "require": host.UseRequire}
	roles    = map[string]host.Roles{"client": host.RoleClient, "server": host.RoleServer}
	accepts  = map[string]bool{"lazy": false, "eager": true}
	profiles = map[string]string{"safe": "safe", "balanced": "balanced", "latency": "latency"}
	carriers = map[string]string{shm: shm, "ibv": "ibv", "softroce": "softroce"}
)

func (p *parser) setting(n *unstable.Node) (err error) {
	key, where := p.key(n)
	r, v := &p.set[len(p.set)-1], value{p, key, where, n.Value()}
	if p.seen[key] {
		return p.at(where, "%s is given twice in this rule", key)
	}
	p.seen[key] = true
	switch key {
	case "program":
		r.Programs, err = list(v, value.program)
	case "role":
		r.Roles, err = word(v, roles)
	case "peer":
		r.Peers, err = list(v, value.peer)
	case "port":
		r.Ports, err = list(v, value.ports)
	case "use":
		r.Use, err = word(v, uses)
	case "providers":
		r.Providers, err = list(v, func(v value) (string, error) { return word(v, carriers) })
	case "profile":
		r.Profile, err = word(v, profiles)
	case "accept":
		r.Eager, err = word(v, accepts)
	case "known":
		r.Known, err = v.truth()
	default:
		err = p.at(where, "unknown key %q: want program, role, peer, port, use, providers, profile, accept, known", key)
	}
	return err
}

// value is what stands behind a key, or one element of it.
type value struct {
	p     *parser
	key   string
	where unstable.Range // of the key, for values that do not know their place
	n     *unstable.Node
}

func (v value) wrong(format string, args ...any) error {
	where := v.n.Raw
	if where.Length == 0 {
		where = v.where
	}
	return v.p.at(where, v.key+": "+format, args...)
}

func kind(n *unstable.Node) string { return "a value of type " + strings.ToLower(n.Kind.String()) }

// text is a string without zero bytes, which C could not hold.
func (v value) text() (string, error) {
	s := string(v.n.Data)
	switch {
	case v.n.Kind != unstable.String:
		return "", v.wrong("%s: want a string", kind(v.n))
	case s == "" || strings.Contains(s, "\x00"):
		return "", v.wrong("%q: want a word", s)
	}
	return s, nil
}

func (v value) truth() (bool, error) {
	if v.n.Kind != unstable.Bool {
		return false, v.wrong("%s: want true or false", kind(v.n))
	}
	return string(v.n.Data) == "true", nil
}

// list reads one value, or an array of them that is not empty.
func list[T any](v value, read func(value) (T, error)) (all []T, err error) {
	elements := []*unstable.Node{v.n}
	if v.n.Kind == unstable.Array {
		elements = nil
		for it := v.n.Children(); it.Next(); {
			elements = append(elements, it.Node())
		}
	}
	if len(elements) == 0 {
		return nil, v.wrong("an empty list matches nothing: leave %s out", v.key)
	}
	for _, n := range elements {
		one, err := read(value{v.p, v.key, v.where, n})
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

func word[T any](v value, words map[string]T) (t T, err error) {
	s, err := v.text()
	if err != nil {
		return t, err
	}
	t, ok := words[s]
	if !ok {
		names := make([]string, 0, len(words))
		for w := range words {
			names = append(names, w)
		}
		slices.Sort(names)
		return t, v.wrong("%q: want %s", s, strings.Join(names, ", "))
	}
	return t, nil
}

func (v value) program() (string, error) {
	s, err := v.text()
	if err == nil && len(s) > host.ProgramMax {
		return "", v.wrong("longer than %d bytes", host.ProgramMax)
	}
	return s, err
}

func (v value) peer() (netip.Prefix, error) {
	s, err := v.text()
	if err != nil {
		return netip.Prefix{}, err
	}
	pre, err := netip.ParsePrefix(s)
	if err != nil {
		a, e := netip.ParseAddr(s)
		if e != nil {
			return pre, v.wrong("%q: want an address or a prefix", s)
		}
		if a.Zone() != "" {
			return pre, v.wrong("%q: zones are not compared: leave it out", s)
		}
		pre = netip.PrefixFrom(a, a.BitLen())
	}
	switch {
	case pre.Addr().Is4In6():
		return pre, v.wrong("%q: write the IPv4 address itself", s)
	case pre != pre.Masked():
		return pre, v.wrong("%q has bits beyond the prefix: want %s", s, pre.Masked())
	}
	return pre, nil
}

func (v value) ports() (Ports, error) {
	if v.n.Kind != unstable.Integer && v.n.Kind != unstable.String {
		return Ports{}, v.wrong(`%s: want a port, or a range as "7000-7010"`, kind(v.n))
	}
	first, last, isRange := strings.Cut(string(v.n.Data), "-")
	if !isRange || v.n.Kind == unstable.Integer {
		first, last = string(v.n.Data), string(v.n.Data)
	}
	a, err := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || a == 0 || a > b {
		return Ports{}, v.wrong(`%q: want a port from 1 to 65535, or a range as "7000-7010"`, v.n.Data)
	}
	return Ports{uint16(a), uint16(b)}, nil
}

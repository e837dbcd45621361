// Package rules is the rules file: which connections use SMC-R, which stay TCP, which must not. It reads TOML, says with line and
// column what is wrong in it, decides, explains, and compiles the rules into the table that hooks/rules.c reads. It opens no file.
package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"libsmcr/abi/host"
)

// File is where the rules are unless SMCR_CONFIG names another file or SMCR_RULES has them inline.
const File = "/etc/smcr/smcr.toml"

// Ports is a range, both ends included.
type Ports struct{ First, Last uint16 }

func (p Ports) String() string {
	if p.First == p.Last {
		return fmt.Sprint(p.First)
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

// Rule is one [[rule]]. A condition that is not given holds for everything.
type Rule struct {
	Line      int
	Programs  []string // * is any text, ? any character; the name that a program was started by or, with a slash, its executable's path
	Roles     host.Roles
	Peers     []netip.Prefix
	Ports     []Ports // of the service: where a client connects to, where a server listens
	Use       host.Use
	Providers []string // empty: all
	Profile   string
	Eager     bool // negotiate at accept, not at the connection's first use
	Known     bool // the other end speaks SMC-R even if neither the kernel hook nor the registry says so
}

// Set is a rules file: the first rule that matches decides.
type Set []Rule

// Query is a connection to be. Program is a path, or a name alone.
type Query struct {
	Program string
	Role    host.Roles // one of them
	Peer    netip.Addr
	Port    uint16
}

// Default is what holds where no rule matches.
var Default = Rule{Use: host.UseSMC}

// shm is the provider that this version has.
const shm = "shm"

// Usable reports whether the rule leaves a provider that this version has.
func (r *Rule) Usable() bool { return len(r.Providers) == 0 || slices.Contains(r.Providers, shm) }

// Idle names the settings of the rule that have no effect in this version.
func (r *Rule) Idle() (keys []string) {
	if r.Profile != "" {
		keys = append(keys, "profile")
	}
	return keys
}

// Misses says why the rule is not for a connection; "" = it is.
func (r *Rule) Misses(q Query) string {
	switch {
	case len(r.Programs) > 0 && !slices.ContainsFunc(r.Programs, func(p string) bool { return runs(p, q.Program) }):
		return fmt.Sprintf("program %s is not %s", q.Program, alternatives(r.Programs))
	case r.Roles&q.Role == 0:
		return fmt.Sprintf("it is for the %s", r.Roles)
	case len(r.Ports) > 0 && !slices.ContainsFunc(r.Ports, func(p Ports) bool { return p.First <= q.Port && q.Port <= p.Last }):
		return fmt.Sprintf("port %d is not %s", q.Port, alternatives(r.Ports))
	case len(r.Peers) > 0 && !slices.ContainsFunc(r.Peers, func(p netip.Prefix) bool { return p.Contains(q.Peer.Unmap().WithZone("")) }):
		return fmt.Sprintf("peer %s is not in %s", q.Peer.Unmap(), alternatives(r.Peers))
	}
	return ""
}

func alternatives[T any](list []T) string {
	words := make([]string, len(list))
	for i, v := range list {
		words[i] = fmt.Sprint(v)
	}
	return strings.Join(words, ", ")
}

// Decide finds the rule for a connection; nil = none matches.
func (s Set) Decide(q Query) *Rule {
	for i := range s {
		if s[i].Misses(q) == "" {
			return &s[i]
		}
	}
	return nil
}

// runs compares a pattern with a program's path or, without a slash in the pattern, with its name, which is here the path's end.
func runs(pattern, program string) bool {
	if !strings.Contains(pattern, "/") {
		program = program[strings.LastIndexByte(program, '/')+1:]
	}
	return glob(pattern, program)
}

// glob: * is any bytes, ? one byte.
func glob(pattern, s string) bool {
	star, from := -1, 0
	p, i := 0, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, from = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			from++
			p, i = star+1, from
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// Inline is what rules in SMCR_RULES are called in messages.
const Inline = "SMCR_RULES"

// Source says where the rules come from: the text of SMCR_RULES, or the path of a file.
func Source(getenv func(string) string) (inline, path string) {
	if inline = getenv("SMCR_RULES"); inline != "" {
		return inline, ""
	}
	if path = getenv("SMCR_CONFIG"); strings.HasPrefix(path, "/") {
		return "", path
	}
	return "", File
}

// Complaint is the one sentence about rules that cannot be used.
func Complaint(name string, err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return fmt.Sprintf("%s:%v; connections stay plain TCP unless SMCR_MODE=require", name, e)
	}
	return fmt.Sprintf("%s: %v; connections stay plain TCP unless SMCR_MODE=require", name, err)
}

// Conditions says which connections the rule is for; "" = all.
func (r *Rule) Conditions() string {
	var all []string
	if len(r.Programs) > 0 {
		all = append(all, "program "+alternatives(r.Programs))
	}
	if r.Roles != host.RoleClient|host.RoleServer {
		all = append(all, "role "+r.Roles.String())
	}
	if len(r.Peers) > 0 {
		all = append(all, "peer "+alternatives(r.Peers))
	}
	if len(r.Ports) > 0 {
		all = append(all, "port "+alternatives(r.Ports))
	}
	return strings.Join(all, "; ")
}

package host

import (
	"strings"
	"structs"
)

// Use is what a rule wants for a connection.
type Use uint8

const (
	UseSMC     Use = iota // SMC-R where the other end can
	UseTCP                // plain TCP
	UseRequire            // SMC-R, or the connection fails
)

var useWords = []string{"smc", "tcp", "require"}

func (u Use) String() string { return name(useWords, uint32(u)) }

// Roles are the ends of a connection that a rule is for.
type Roles uint8

const (
	RoleClient Roles = 1 << iota
	RoleServer
)

func (r Roles) String() string {
	var set []string
	for i, word := range []string{"client", "server"} {
		if r&(1<<i) != 0 {
			set = append(set, word)
		}
	}
	return strings.Join(set, " and ")
}

const (
	// RulesMagic starts a table of compiled rules: "RULE".
	RulesMagic = 0x454c5552
	// RulesMax is the most rows that a table has.
	RulesMax = 4096
	// ProgramMax is the longest pattern for a program.
	ProgramMax = 159
)

// Rules is the head of the rules file as package rules compiles it and hooks/rules.c reads it (struct rules). N rows follow.
type Rules struct {
	_      structs.HostLayout
	Magic  uint32    `c:"magic"`
	ABI    uint32    `c:"abi"`
	N      uint32    `c:"n"`
	Bad    uint32    `c:"bad"`    // the file cannot be used: everything stays TCP
	Source [6]uint64 `c:"source"` // what it was compiled from; C fills it in
	Path   [512]byte `c:"path"`   // of the program in whose process it is read; C fills it in
	Name   [256]byte `c:"name"`   // the same
}

// Rule is a row (struct rule). Addr and Bits count where Family is not 0.
type Rule struct {
	_       structs.HostLayout
	Use     Use                  `c:"use"`
	Roles   Roles                `c:"roles"`
	Eager   uint8                `c:"eager"`
	SHM     uint8                `c:"shm"` // the rule allows provider shm
	Family  uint16               `c:"family"`
	Bits    uint8                `c:"bits"`
	Known   uint8                `c:"known"` // SourceRules: the other end is known to speak SMC-R
	First   uint16               `c:"first"`
	Last    uint16               `c:"last"`
	Line    uint32               `c:"line"`
	Addr    [16]byte             `c:"addr"`
	Program [ProgramMax + 1]byte `c:"program"` // ends with 0; empty: all
}

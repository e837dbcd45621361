// Package host holds the structures of hooks/shim.h that one process writes and another reads: the process page and its
// connection blocks, with their states, flags and reasons. A test compares every size, offset and value with the C compiler's.
//
// The fields are plain: whoever maps a page uses sync/atomic on those that C declares _Atomic. Whoever only looks reads the
// file and decodes a copy.
package host

//go:generate go test -run TestReasonsAreThoseOfTheHeader -update

import "fmt"

// ABI is the version of every structure that two processes share.
const ABI = 1

// SockMax is the number of connections that one process can have; no page holds more blocks.
const SockMax = 65536

// name is the word for a value of an enumeration, or its number where it has none.
func name(words []string, v uint32) string {
	if uint64(v) < uint64(len(words)) {
		return words[v]
	}
	return fmt.Sprintf("0x%02x", v)
}

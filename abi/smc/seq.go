package smc

import "fmt"

// Seq is the sequence number of CDC messages (RFC 7609 §A.4): the first message of a connection has 1, it wraps to 0, and
// failover validation messages do not advance it. Two of them are compared by distance, never by <.
type Seq uint16

// FirstSeq is the number of the first CDC message of a connection.
const FirstSeq Seq = 1

// Next returns the number of the following message; 0xFFFF is followed by 0.
func (s Seq) Next() Seq { return s + 1 }

// Sub returns s-t as a signed distance: negative means that s is older than t.
func (s Seq) Sub(t Seq) int16 { return int16(s - t) }

// Before reports whether s is older than t.
func (s Seq) Before(t Seq) bool { return s.Sub(t) < 0 }

func (s Seq) String() string { return fmt.Sprint(uint16(s)) }

package verbs

import "fmt"

// QPState is the state of a queue pair; SQD and SQE of InfiniBand do not occur.
//
//	RESET ─ Init ─► INIT ─ ReadyToReceive ─► RTR ─ ReadyToSend ─► RTS
//	   any of them ─ Fail ─► ERR
type QPState uint8

const (
	Reset QPState = iota
	Init
	RTR
	RTS
	Err
)

var qpStateNames = [...]string{Reset: "RESET", Init: "INIT", RTR: "RTR", RTS: "RTS", Err: "ERR"}

func (s QPState) String() string {
	if int(s) < len(qpStateNames) {
		return qpStateNames[s]
	}
	return fmt.Sprintf("0x%02x", uint8(s))
}

// StateError is a transition that a queue pair does not have; it is an ErrState.
type StateError struct{ From, To QPState }

func (e *StateError) Error() string {
	return fmt.Sprintf("verbs: queue pair from %s to %s", e.From, e.To)
}
func (e *StateError) Is(t error) bool { return t == ErrState }

// To returns next if the transition exists. Every provider goes through it.
func (s QPState) To(next QPState) (QPState, error) {
	if next == Err || s < RTS && next == s+1 {
		return next, nil
	}
	return s, &StateError{s, next}
}

// CanReceive: receives may be posted.
func (s QPState) CanReceive() bool { return s == Init || s == RTR || s == RTS }

// Connected: the peer is known and what it sends is taken.
func (s QPState) Connected() bool { return s == RTR || s == RTS }

// CanSend: sends and writes may be posted.
func (s QPState) CanSend() bool { return s == RTS }

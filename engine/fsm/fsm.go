// Package fsm holds the state machines of RFC 7609 as total tables: for each state and each event either the next
// state, or stay (legal, nothing changes), or nothing, which is a protocol error. No time, no I/O, no effects: those
// are the engine's.
package fsm

import (
	"fmt"
	"strings"
)

// BadTransition is an event that a state does not allow.
type BadTransition struct {
	Machine     string
	From, Event fmt.Stringer
}

func (e *BadTransition) Error() string {
	return fmt.Sprintf("%s: %s is not allowed in %s", e.Machine, e.Event, e.From)
}

// stay marks a cell: the event is legal and changes nothing. A cell that is zero is a protocol error.
const stay = 0xFF

type enum interface {
	~uint8
	fmt.Stringer
}

// on looks a cell up.
func on[S, E enum](machine string, cell S, from S, ev E) (S, error) {
	switch cell {
	case 0:
		return from, &BadTransition{machine, from, ev}
	case stay:
		return from, nil
	}
	return cell, nil
}

func name(names []string, v uint8) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("0x%02x", v)
}

// matrix writes a table as text: one line for each state and event.
func matrix[S, E enum](states S, events E, cell func(S, E) S) string {
	var b strings.Builder
	for s := S(1); s < states; s++ {
		for e := E(1); e < events; e++ {
			to := "-"
			switch c := cell(s, e); c {
			case 0:
			case stay:
				to = "stay"
			default:
				to = c.String()
			}
			fmt.Fprintf(&b, "%-18s %-18s %s\n", s, e, to)
		}
	}
	return b.String()
}

// diagram writes the changes of state of a table in the language of Mermaid, events with the same two ends on one line.
func diagram[S, E enum](states S, events E, cell func(S, E) S) string {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n")
	for s := S(1); s < states; s++ {
		var order []S
		by := map[S][]string{}
		for e := E(1); e < events; e++ {
			c := cell(s, e)
			if c == 0 || c == stay {
				continue
			}
			if by[c] == nil {
				order = append(order, c)
			}
			by[c] = append(by[c], e.String())
		}
		for _, to := range order {
			fmt.Fprintf(&b, "    %s --> %s: %s\n", s, to, strings.Join(by[to], ", "))
		}
	}
	return b.String()
}

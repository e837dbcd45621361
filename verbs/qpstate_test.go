package verbs

import (
	"errors"
	"testing"
)

func TestQueuePairTransitions(t *testing.T) {
	all := []QPState{Reset, Init, RTR, RTS, Err}
	legal := map[[2]QPState]bool{
		{Reset, Init}: true, {Init, RTR}: true, {RTR, RTS}: true,
		{Reset, Err}: true, {Init, Err}: true, {RTR, Err}: true, {RTS, Err}: true, {Err, Err}: true,
	}
	for _, from := range all {
		for _, to := range all {
			got, err := from.To(to)
			if legal[[2]QPState{from, to}] {
				if err != nil || got != to {
					t.Errorf("%s to %s: %s, %v", from, to, got, err)
				}
			} else if !errors.Is(err, ErrState) || got != from {
				t.Errorf("%s to %s: %s, %v", from, to, got, err)
			}
		}
	}
	if s := QPState(9).String(); s != "0x09" {
		t.Error(s)
	}
}

func TestCompletionsKeepTheirOrder(t *testing.T) {
	var c Completions
	next, want := WRID(0), WRID(0)
	for round := range 50 {
		for range round % 5 {
			c.Add(Completion{ID: next})
			next++
		}
		var dst [3]Completion
		n := c.Poll(dst[:])
		for _, e := range dst[:n] {
			if e.ID != want {
				t.Fatalf("%d, want %d", e.ID, want)
			}
			want++
		}
		if c.Len() != int(next-want) {
			t.Fatalf("%d wait, want %d", c.Len(), next-want)
		}
	}
}

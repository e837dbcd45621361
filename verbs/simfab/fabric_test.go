package simfab

import (
	"testing"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
	"libsmcr/verbs/verbstest"
)

func pair(caps verbs.Caps) func(*testing.T) verbstest.Pair {
	return func(t *testing.T) verbstest.Pair {
		f := New(7)
		a, b := f.Device(roce.GID{1}, caps), f.Device(roce.GID{2}, caps)
		step := func() {
			for range 8 {
				a.Poll()
				b.Poll()
			}
		}
		return verbstest.Pair{A: a, B: b, Step: step, Gone: func() { f.Kill(b) }}
	}
}

func TestFabricIsAProvider(t *testing.T) {
	t.Run("mapped", func(t *testing.T) { verbstest.Run(t, pair(verbs.CapMapped|verbs.CapLocal)) })
	t.Run("plain", func(t *testing.T) { verbstest.Run(t, pair(0)) })
}

var kinds = map[string]verbs.Caps{"mapped": verbs.CapMapped, "plain": 0}

func TestVerdicts(t *testing.T) {
	for kind, caps := range kinds {
		for _, c := range []struct {
			v        Verdict
			arrives  bool
			complete verbs.Status
			a, b     verbs.QPState
		}{
			{Deliver, true, verbs.StatusOK, verbs.RTS, verbs.RTS},
			{Drop, false, verbs.StatusOK, verbs.RTS, verbs.RTS},
			{Refuse, false, verbs.StatusUnreachable, verbs.Err, verbs.RTS},
			{Unacked, true, verbs.StatusUnreachable, verbs.Err, verbs.RTS},
			{Break, false, verbs.StatusOK, verbs.Err, verbs.Err},
		} {
			t.Run(kind+" "+c.v.String(), func(t *testing.T) {
				p := pair(caps)(t)
				a, b := verbstest.Connect(t, p)
				a.Dev.(*Device).f.Filter = func(e Event) Verdict {
					if string(e.Msg) != "x" || e.Op != verbs.OpSend || e.Src != a.QP.QPN() || e.Dst != b.QP.QPN() {
						t.Errorf("event %+v", e)
					}
					return c.v
				}
				if err := b.QP.PostRecv(1, make([]byte, 8)); err != nil {
					t.Fatal(err)
				}
				if err := a.QP.PostSend(2, []byte("x")); err != nil {
					t.Fatal(err)
				}
				p.Step()
				a.Poll(t, verbs.Completion{ID: 2, Op: verbs.OpSend, Status: c.complete})
				switch {
				case c.arrives:
					b.Poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Len: 1})
				case c.b == verbs.Err:
					b.Poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Status: verbs.StatusFlushed})
				default:
					b.Poll(t)
				}
				if a.QP.State() != c.a || b.QP.State() != c.b {
					t.Errorf("states %s and %s, want %s and %s", a.QP.State(), b.QP.State(), c.a, c.b)
				}
			})
		}
	}
}

// A port in another VLAN may have the same GID, as with RoCE v1, and hears nothing.
func TestVLANsAreApart(t *testing.T) {
	for vlan, complete := range map[roce.VLAN]verbs.Status{20: verbs.StatusUnreachable, 10: verbs.StatusOK, 0: verbs.StatusUnreachable} {
		t.Run(vlan.String(), func(t *testing.T) {
			p := pair(0)(t)
			p.A.(*Device).Tag(10)
			p.B.(*Device).Tag(vlan)
			p.A.(*Device).f.Device(roce.GID{2}, 0).Tag(30)
			a, b := verbstest.Connect(t, p)
			if err := b.QP.PostRecv(1, make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			if err := a.QP.PostSend(2, []byte("x")); err != nil {
				t.Fatal(err)
			}
			p.Step()
			a.Poll(t, verbs.Completion{ID: 2, Op: verbs.OpSend, Status: complete})
			if complete == verbs.StatusOK {
				b.Poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Len: 1})
			} else {
				b.Poll(t)
			}
			if !p.A.Reachable(roce.GID{2}) {
				t.Error("known without having talked to it")
			}
			verbstest.Finish(t, p, a, b)
		})
	}
}

func TestHeldSendGoesOutLater(t *testing.T) {
	for kind, caps := range kinds {
		t.Run(kind, func(t *testing.T) {
			p := pair(caps)(t)
			a, b := verbstest.Connect(t, p)
			f := a.Dev.(*Device).f
			f.Filter = func(Event) Verdict { return Hold }
			if err := a.QP.PostSend(2, []byte("x")); err != nil {
				t.Fatal(err)
			}
			p.Step()
			a.Poll(t)
			if !p.A.Pending() {
				t.Error("nothing pending")
			}
			f.Filter = nil
			if err := b.QP.PostRecv(1, make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			p.Step()
			a.Poll(t, verbs.Completion{ID: 2, Op: verbs.OpSend})
			b.Poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Len: 1})
			if p.A.Pending() {
				t.Error("still pending")
			}
			verbstest.Finish(t, p, a, b)
		})
	}
}

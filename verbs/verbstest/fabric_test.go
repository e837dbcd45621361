package verbstest

import (
	"testing"

	"libsmcr/abi/roce"
	"libsmcr/verbs"
)

func fakePair(caps verbs.Caps) func(*testing.T) Pair {
	return func(t *testing.T) Pair {
		f := NewFabric(7)
		a, b := f.Device(roce.GID{1}, caps), f.Device(roce.GID{2}, caps)
		step := func() {
			for range 8 {
				a.Poll()
				b.Poll()
			}
		}
		return Pair{A: a, B: b, Step: step, Gone: func() { f.Kill(b) }}
	}
}

func TestFabricIsAProvider(t *testing.T) {
	t.Run("mapped", func(t *testing.T) { Run(t, fakePair(verbs.CapMapped|verbs.CapLocal)) })
	t.Run("plain", func(t *testing.T) { Run(t, fakePair(0)) })
}

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		v        Verdict
		arrives  bool
		complete verbs.Status
	}{{Deliver, true, verbs.StatusOK}, {Drop, false, verbs.StatusOK}, {Refuse, false, verbs.StatusUnreachable}} {
		p := fakePair(0)(t)
		a, b := connect(t, p)
		a.Dev.(*Fake).f.Filter = func(e Event) Verdict {
			if string(e.Msg) != "x" || e.Op != verbs.OpSend {
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
		a.poll(t, verbs.Completion{ID: 2, Op: verbs.OpSend, Status: c.complete})
		if c.arrives {
			b.poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Len: 1})
		} else {
			b.poll(t)
		}
	}
}

func TestHeldSendGoesOutLater(t *testing.T) {
	p := fakePair(0)(t)
	a, b := connect(t, p)
	f := a.Dev.(*Fake).f
	f.Filter = func(Event) Verdict { return Hold }
	if err := a.QP.PostSend(2, []byte("x")); err != nil {
		t.Fatal(err)
	}
	p.Step()
	a.poll(t)
	if !p.A.Pending() {
		t.Error("nothing pending")
	}
	f.Filter = nil
	if err := b.QP.PostRecv(1, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	p.Step()
	a.poll(t, verbs.Completion{ID: 2, Op: verbs.OpSend})
	b.poll(t, verbs.Completion{ID: 1, Op: verbs.OpRecv, Len: 1})
	if p.A.Pending() {
		t.Error("still pending")
	}
	finish(t, p, a, b)
}

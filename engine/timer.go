package engine

import "container/heap"

// Instant is a point of CLOCK_MONOTONIC in nanoseconds. Only differences matter.
type Instant int64

// timer is one event to come. The zero value with fire set is a stopped timer.
type timer struct {
	at   Instant
	pos  int // in the heap, from 1; 0 = stopped
	fire func()
}

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i+1, j+1
}

func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	*h = append(*h, t)
	t.pos = len(*h)
}

func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.pos = 0
	return t
}

// start sets the timer anew.
func (h *timerHeap) start(t *timer, at Instant) {
	t.at = at
	if t.pos != 0 {
		heap.Fix(h, t.pos-1)
		return
	}
	heap.Push(h, t)
}

func (h *timerHeap) stop(t *timer) {
	if t.pos != 0 {
		heap.Remove(h, t.pos-1)
	}
}

// due removes and returns a timer that is to fire, or nil.
func (h *timerHeap) due(now Instant) *timer {
	if len(*h) == 0 || (*h)[0].at > now {
		return nil
	}
	return heap.Pop(h).(*timer)
}

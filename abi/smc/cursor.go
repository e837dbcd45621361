package smc

import "fmt"

// Cursor is a position in an RMBE with the number of times the writer has passed the end (RFC 7609 §4.3, §A.4). Count is an
// offset from the start of the RMBE, so where the element has an eye catcher the first position is 4, not 0.
type Cursor struct {
	Wrap  uint16
	Count uint32
}

func (c Cursor) String() string { return fmt.Sprintf("%04x:%08x", c.Wrap, c.Count) }

// Ring is the geometry that gives cursors their meaning: data lives at offsets Origin to Size-1 of the RMBE.
type Ring struct {
	Origin uint32
	Size   uint32
}

// Span is a piece of a ring without a wrap inside: Len bytes from offset Off of the RMBE.
type Span struct {
	Off, Len uint32
}

// Capacity returns how many bytes the ring can hold. All of it can be used: full and empty differ by the wrap number.
func (r Ring) Capacity() uint32 { return r.Size - r.Origin }

// Start returns the cursor of a new connection.
func (r Ring) Start() Cursor { return Cursor{Count: r.Origin} }

// At returns the cursor of a position: the bytes since the connection began.
func (r Ring) At(pos uint64) Cursor {
	n := uint64(r.Capacity())
	return Cursor{Wrap: uint16(pos / n), Count: r.Origin + uint32(pos%n)}
}

// Valid reports whether c points into the data area. A peer's cursor is checked with it before anything else.
func (r Ring) Valid(c Cursor) bool { return r.Origin <= c.Count && c.Count < r.Size }

// Advance returns the cursor n bytes later; n is at most Capacity. Reaching the end is a wrap: the next position is Origin.
func (r Ring) Advance(c Cursor, n uint32) Cursor {
	if left := r.Size - c.Count; n >= left {
		return Cursor{Wrap: c.Wrap + 1, Count: r.Origin + n - left}
	}
	c.Count += n
	return c
}

// Used returns the bytes between the consumer and the producer. It is false if either cursor is outside the ring or the
// producer is not 0 to Capacity bytes ahead of the consumer: then the two cannot belong together.
func (r Ring) Used(cons, prod Cursor) (uint32, bool) {
	if !r.Valid(cons) || !r.Valid(prod) {
		return 0, false
	}
	switch prod.Wrap - cons.Wrap {
	case 0:
		if prod.Count >= cons.Count {
			return prod.Count - cons.Count, true
		}
	case 1:
		if prod.Count <= cons.Count {
			return r.Capacity() - (cons.Count - prod.Count), true
		}
	}
	return 0, false
}

// Free returns the bytes that the producer may still write, under the same condition as Used.
func (r Ring) Free(cons, prod Cursor) (uint32, bool) {
	used, ok := r.Used(cons, prod)
	if !ok {
		return 0, false
	}
	return r.Capacity() - used, true
}

// Between reports whether x lies in lo ≤ x ≤ hi, hi being at most Capacity ahead of lo. It tells a newer cursor from an
// older or a forged one: a consumer update must lie between the last one and our producer, a producer update between the
// last one and Limit of our consumer.
func (r Ring) Between(lo, x, hi Cursor) bool {
	total, ok1 := r.Used(lo, hi)
	part, ok2 := r.Used(lo, x)
	return ok1 && ok2 && part <= total
}

// Limit returns the furthest position the producer may reach while the consumer stands at cons.
func (r Ring) Limit(cons Cursor) Cursor { return Cursor{Wrap: cons.Wrap + 1, Count: cons.Count} }

// Spans cuts n bytes from c into at most two pieces: up to the end of the RMBE, and from Origin on. The second has Len 0
// if there is no wrap.
func (r Ring) Spans(c Cursor, n uint32) (first, second Span) {
	if left := r.Size - c.Count; n > left {
		return Span{c.Count, left}, Span{r.Origin, n - left}
	}
	return Span{c.Count, n}, Span{r.Origin, 0}
}

// UpdateDue is the rule of RFC 7609 §4.5.1 for a consumer update of its own: the window as the sender knows it is less than
// half of the receive buffer, and the update widens it by at least a tenth. told is the consumer cursor that the sender
// has, cons the true one. Both are measured against Capacity: the eye catcher is no receive buffer.
func (r Ring) UpdateDue(told, cons, prod Cursor) bool {
	free, ok := r.Free(told, prod)
	gain, ok2 := r.Used(told, cons)
	if !ok || !ok2 {
		return false
	}
	// Halves and tenths without rounding, in 64 bits.
	return uint64(free)*2 < uint64(r.Capacity()) && uint64(gain)*10 >= uint64(r.Capacity())
}

package verbs

// Completions is the completion queue of providers that complete in software: a FIFO. It is bounded by what was
// posted, since each work request completes once.
type Completions struct {
	q    []Completion
	head int
}

// Add appends a completion.
func (c *Completions) Add(e Completion) { c.q = append(c.q, e) }

// Len returns how many wait.
func (c *Completions) Len() int { return len(c.q) - c.head }

// Poll fills dst with the oldest completions and returns how many.
func (c *Completions) Poll(dst []Completion) int {
	n := copy(dst, c.q[c.head:])
	c.head += n
	if c.head == len(c.q) {
		c.q, c.head = c.q[:0], 0
	}
	return n
}

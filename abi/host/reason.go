package host

// Reason says why a connection is plain TCP. The list is in reasons.go, generated from the header.
type Reason uint32

func (r Reason) String() string { return name(reasonWords[:], uint32(r)) }

// Package engine is RFC 7609 from the moment when two TCP sockets know of each other that they speak SMC-R: the CLC
// exchange, link groups, links and the LLC messages over them, RMBs and their elements, the end of connections. It
// says what happens next; how bytes reach the peer is behind verbs.Device. With mapped memory what runs per message on
// an established connection is not here at all; over RNICs it is in type stream: writes, CDC messages, failover.
//
// # How it is driven
//
// An Engine belongs to one goroutine. It starts none, has no timers and no locks, and does no I/O but through the
// device: every method takes the time, effects go out through the Handler of the connection and through the device.
// The owner calls Poll when the device has something to do, Tick when NextDeadline has passed, Conn.CLC with each CLC
// message that arrived on a TCP connection (Need says how many bytes belong to it), and Conn.EOF when it ended.
//
// Established, Fallback and Broken are called last thing before a method returns, never in the middle of a step:
// there a Handler may call the engine, and so may a Waker. SendCLC is called in the middle and must not.
//
// Without mapped memory the owner calls Conn.Kick whenever the program has moved a position of the rings or set a flag
// of their heads, and Conn.Abort when the program or TCP resets the connection.
//
// # Links
//
// A link group does one LLC exchange at a time; what else is to be done waits on its agenda (exchange.go). Who may have
// which link, and how it comes, is in addlink.go; how it goes, in deletelink.go; RMBs on all links, in rkey.go. A link
// that fails is left by its connections at once (failover.go) and stays until the peer knows.
//
// # Memory
//
// An RMB is one registered region: the heads of its elements (type Head), padded to a page, then the elements. The
// RMB address of the CLC messages is that of the first element, so that index i lies where RFC 7609 and Linux look
// for it; the peer, who maps the region, finds the head of element i at 256·(i-1) from its start.
//
// Over RNICs the region has the elements only, and each has a send buffer in a second one. The heads of both lie in
// memory that no peer can write.
package engine

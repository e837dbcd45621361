package fsm

// Before editing read RFC 7609 §4.8 with Figures 22 and 23.
//
//	                     Closed ─ established ─► Active
//	 active close (3)                              │                    passive close (4)
//	 ┌─ AppShutWrite, AppClose ────────────────────┴──── PeerDoneWriting, PeerConnClosed ─┐
//	PeerCloseWait1 ─ PeerDoneWriting ─► PeerCloseWait2     AppCloseWait1 ─ AppShutWrite ─► AppCloseWait2
//	   └────── PeerConnClosed ─┬──────────┘                   └───────── AppClose ─┬─────────┘
//	                    AppFinCloseWait                                    PeerFinCloseWait
//	                           └ AppClose ─► Closed                                └ PeerConnClosed ─► Closed
//
//	 any state: AppAbort ─► PeerAbortWait ─ PeerConnAbort ─► Closed;  PeerConnAbort ─► ProcessAbort ─ AbortSent ─► Closed
//
// Whether the program has closed for both directions, and whether the peer has, are fields beside the state. Where
// the RFC says "if the application has already closed" (3C, 4C), the event that happened earlier is raised again.

// Conn is the state of an established connection. In Closed the RMBE can be used again.
type Conn uint8

const (
	Closed Conn = iota + 1
	Active
	PeerCloseWait1
	PeerCloseWait2
	AppFinCloseWait
	AppCloseWait1
	AppCloseWait2
	PeerFinCloseWait
	PeerAbortWait
	ProcessAbort
	conns
)

var connNames = []string{
	Closed: "Closed", Active: "Active", PeerCloseWait1: "PeerCloseWait1", PeerCloseWait2: "PeerCloseWait2",
	AppFinCloseWait: "AppFinCloseWait", AppCloseWait1: "AppCloseWait1", AppCloseWait2: "AppCloseWait2",
	PeerFinCloseWait: "PeerFinCloseWait", PeerAbortWait: "PeerAbortWait", ProcessAbort: "ProcessAbort",
}

func (s Conn) String() string { return name(connNames, uint8(s)) }

// ConnEvent is what happens to an established connection.
type ConnEvent uint8

const (
	Open         ConnEvent = iota + 1 // rendezvous has ended well
	AppShutWrite                      // shutdown(SHUT_WR): the peer is told PeerDoneWriting
	AppClose                          // close or shutdown of both directions: the peer is told PeerConnectionClosed
	AppAbort                          // reset from this side: the peer is told PeerConnAbort
	PeerDoneWriting
	PeerConnClosed
	PeerConnAbort
	AbortSent    // our own PeerConnAbort, the answer, went out
	CloseTimeout // nobody is stranded in a wait for the peer (§4.8.1, §4.8.2 1B)
	PeerGone     // the peer's process has ended
	connEvents
)

var connEventNames = []string{
	Open: "Open", AppShutWrite: "AppShutWrite", AppClose: "AppClose", AppAbort: "AppAbort", PeerDoneWriting: "PeerDoneWriting",
	PeerConnClosed: "PeerConnClosed", PeerConnAbort: "PeerConnAbort", AbortSent: "AbortSent", CloseTimeout: "CloseTimeout",
	PeerGone: "PeerGone",
}

func (e ConnEvent) String() string { return name(connEventNames, uint8(e)) }

var connTable = [conns][connEvents]Conn{
	Closed: {
		Open: Active, AppShutWrite: stay, AppClose: stay, AppAbort: stay, PeerDoneWriting: stay, PeerConnClosed: stay,
		PeerConnAbort: stay, AbortSent: stay, CloseTimeout: stay, PeerGone: stay,
	},
	Active: {
		AppShutWrite: PeerCloseWait1, AppClose: PeerCloseWait1, PeerDoneWriting: AppCloseWait1, PeerConnClosed: AppCloseWait1,
		AppAbort: PeerAbortWait, PeerConnAbort: ProcessAbort, PeerGone: AppCloseWait1, CloseTimeout: stay,
	},
	PeerCloseWait1: {
		PeerDoneWriting: PeerCloseWait2, PeerConnClosed: AppFinCloseWait, AppShutWrite: stay, AppClose: stay,
		AppAbort: PeerAbortWait, PeerConnAbort: ProcessAbort, PeerGone: AppFinCloseWait, CloseTimeout: Closed,
	},
	PeerCloseWait2: {
		PeerConnClosed: AppFinCloseWait, PeerDoneWriting: stay, AppShutWrite: stay, AppClose: stay,
		AppAbort: PeerAbortWait, PeerConnAbort: ProcessAbort, PeerGone: AppFinCloseWait, CloseTimeout: Closed,
	},
	AppFinCloseWait: {
		AppClose: Closed, AppShutWrite: stay, PeerDoneWriting: stay, PeerConnClosed: stay,
		AppAbort: Closed, PeerConnAbort: ProcessAbort, PeerGone: stay, CloseTimeout: stay,
	},
	AppCloseWait1: {
		AppShutWrite: AppCloseWait2, AppClose: PeerFinCloseWait, PeerDoneWriting: stay, PeerConnClosed: stay,
		AppAbort: PeerAbortWait, PeerConnAbort: ProcessAbort, PeerGone: stay, CloseTimeout: stay,
	},
	AppCloseWait2: {
		AppClose: PeerFinCloseWait, AppShutWrite: stay, PeerDoneWriting: stay, PeerConnClosed: stay,
		AppAbort: PeerAbortWait, PeerConnAbort: ProcessAbort, PeerGone: stay, CloseTimeout: stay,
	},
	// We have told PeerConnectionClosed: nothing is written any more, not even an abort.
	PeerFinCloseWait: {
		PeerConnClosed: Closed, PeerDoneWriting: stay, AppClose: stay, AppShutWrite: stay, AppAbort: stay,
		PeerConnAbort: Closed, PeerGone: Closed, CloseTimeout: Closed,
	},
	// Everything but the peer's answer is ignored.
	PeerAbortWait: {
		PeerConnAbort: Closed, AppClose: stay, AppShutWrite: stay, AppAbort: stay, PeerDoneWriting: stay, PeerConnClosed: stay,
		PeerGone: Closed, CloseTimeout: Closed,
	},
	ProcessAbort: {
		AbortSent: Closed, AppClose: stay, AppShutWrite: stay, AppAbort: stay, PeerDoneWriting: stay, PeerConnClosed: stay,
		PeerConnAbort: stay, PeerGone: Closed, CloseTimeout: Closed,
	},
}

// On returns the state after an event; *BadTransition if it makes no sense.
func (s Conn) On(e ConnEvent) (Conn, error) { return on("connection", connCell(s, e), s, e) }

func connCell(s Conn, e ConnEvent) Conn {
	if s >= conns || e >= connEvents {
		return 0
	}
	return connTable[s][e]
}

// ConnMatrix is the table as text, ConnDiagram as a picture in Mermaid.
func ConnMatrix() string  { return matrix(conns, connEvents, connCell) }
func ConnDiagram() string { return diagram(conns, connEvents, connCell) }

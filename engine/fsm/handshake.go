package fsm

// Before editing read RFC 7609 §3.5.1 (first contact, Figure 8), §3.5.2 (subsequent contact), §3.5.5.2.1 (a new RMB),
// and §C.1 to §C.7.1 (who may send Decline until when, and what each timeout means).
//
//	client                                   server
//	AwaitAccept                              AwaitProposal
//	  │ Accept(F)        │ Accept              │ Proposal
//	Joining            AwaitClientRMB        Choosing ──────────┬─────────────► Queued (another first contact with this peer runs)
//	  │ Confirm sent     │ RMB known to peer   │ first contact   │ subsequent
//	AwaitConfirmLink     │ Confirm sent      AwaitFirstConfirm AwaitServerRMB
//	  │ CONFIRM LINK     │                     │ Confirm         │ RMB known to peer, Accept sent
//	LinkReceived         │                   AwaitPeerRMB      AwaitConfirm
//	  │ mapped           │                     │ mapped          │ Confirm
//	ReplyPosted          │                   RequestPosted       │
//	  │ sent             │                     │ sent            │
//	AddingLink           │                   AwaitReply          │
//	  │ second link tried│                     │ reply           │
//	Established ◄────────┘                   AddingLink          │
//	                                           │ second link tried
//	Declining ─► (Declined ─►) Fallback      Established ◄───────┘
//	Broken (the TCP connection ends)
//
// Two Declines that cross would end up in the data of both programs. During CLC the rule is in §C.1: a Decline takes
// the place of the expected message and never chases one. For the time after Confirm, §C.2 lets both sides decline
// until their own CONFIRM LINK was sent; we go by turns there as well: the server may until its request was sent, the
// client from then on until its response was sent. So where it is the peer's turn Failed and LinkLost are stay, and
// the engine raises Failed again when it is ours. A client whom the server leaves waiting breaks the connection, as
// §C.7 says. While the second link is being tried (§3.5.1.6) nobody declines any more; a Decline may still come from a
// client whose CONFIRM LINK response arrived although it looked lost. After Accept or Confirm of a subsequent contact there is no way back.
//
// Where the turn is a matter of time, because the server cannot know whether its request arrived, two Declines may cross
// all the same, and a peer that goes by §C.2 alone does not know of turns. So who has declined there looks at what comes
// next on the TCP connection before the program gets it: the peer's Decline is taken off.

// Handshake is the state of the negotiation for one TCP connection.
type Handshake uint8

const (
	Idle Handshake = iota + 1

	AwaitAccept      // client: Proposal sent
	Joining          // client: Accept of a first contact came; own link is being made
	AwaitConfirmLink // client: Confirm sent, QP in RTR
	LinkReceived     // client: CONFIRM LINK request came; the server's RMB is not there yet
	ReplyPosted      // client: CONFIRM LINK response posted, not known to be sent
	AwaitClientRMB   // client: Accept of a subsequent contact came; own RMB may have to be announced

	AwaitProposal     // server: nothing came yet
	Choosing          // server: Proposal came
	Queued            // server: waits until the first contact of another connection with this peer has ended
	AwaitServerRMB    // server: subsequent contact, own RMB may have to be announced
	AwaitFirstConfirm // server: Accept with F sent
	AwaitConfirm      // server: Accept without F sent
	AwaitPeerRMB      // server: first contact, Confirm came, QP in RTS; the client's RMB is not there yet
	RequestPosted     // server: CONFIRM LINK request posted, not known to be sent
	AwaitReply        // server: CONFIRM LINK request sent

	AddingLink // both, first contact: the link is confirmed, a second one is being tried

	Declining   // a Decline is being sent
	Declined    // it was sent; the peer may have sent one as well
	Established // SMC-R carries the data
	Fallback    // TCP carries the data
	Broken      // the TCP connection has to end
	handshakes
)

var handshakeNames = []string{
	Idle: "Idle", AwaitAccept: "AwaitAccept", Joining: "Joining", AwaitConfirmLink: "AwaitConfirmLink",
	LinkReceived: "LinkReceived", ReplyPosted: "ReplyPosted", AwaitClientRMB: "AwaitClientRMB",
	AwaitProposal: "AwaitProposal", Choosing: "Choosing", Queued: "Queued",
	AwaitServerRMB: "AwaitServerRMB", AwaitFirstConfirm: "AwaitFirstConfirm", AwaitConfirm: "AwaitConfirm",
	AwaitPeerRMB: "AwaitPeerRMB", RequestPosted: "RequestPosted", AwaitReply: "AwaitReply", AddingLink: "AddingLink", Declining: "Declining", Declined: "Declined",
	Established: "Established", Fallback: "Fallback", Broken: "Broken",
}

func (s Handshake) String() string { return name(handshakeNames, uint8(s)) }

// HandshakeEvent is what can happen during a negotiation.
type HandshakeEvent uint8

const (
	Connect HandshakeEvent = iota + 1 // client starts, Proposal goes out
	Listen                            // server starts

	RecvProposal
	RecvFirstAccept // F bit set
	RecvAccept
	RecvConfirm
	RecvDecline
	RecvGarbage // not a CLC message, or not a legal one
	RecvData    // not a CLC message, where the program's bytes may come
	RecvEOF

	FirstContact  // server: Accept with F goes out
	FirstPending  // server: somebody else's first contact runs
	Subsequent    // server: the link group exists
	ConfirmSent   // client: first contact, own link and RMB made
	RMBReady      // the peer knows our RMB
	PeerRMBReady  // we can reach the peer's RMB
	RecvLink      // client: CONFIRM LINK request came
	RecvLinkReply // server: CONFIRM LINK response came
	LinkSent      // our CONFIRM LINK message was delivered
	LinksReady    // the second link works, or there is none
	LinkLost      // the link is gone, by the peer's doing or for reasons unknown

	Failed      // something on this side did not work, or the program wants TCP
	Timeout     // the timer of this state
	TurnOver    // client: after a failure the server would have declined by now, if it wanted to
	DeclineSent // the Decline went out, and the peer cannot have sent one
	MayCross    // the Decline went out; perhaps one of the peer's is on its way
	SendFailed  // TCP did not take a CLC message
	handshakeEvents
)

var handshakeEventNames = []string{
	Connect: "Connect", Listen: "Listen", RecvProposal: "RecvProposal", RecvFirstAccept: "RecvFirstAccept",
	RecvAccept: "RecvAccept", RecvConfirm: "RecvConfirm", RecvDecline: "RecvDecline", RecvGarbage: "RecvGarbage", RecvData: "RecvData", RecvEOF: "RecvEOF",
	FirstContact: "FirstContact", FirstPending: "FirstPending", Subsequent: "Subsequent", ConfirmSent: "ConfirmSent",
	RMBReady: "RMBReady", PeerRMBReady: "PeerRMBReady", RecvLink: "RecvLink", RecvLinkReply: "RecvLinkReply", LinkSent: "LinkSent", LinksReady: "LinksReady",
	LinkLost: "LinkLost", Failed: "Failed", Timeout: "Timeout", TurnOver: "TurnOver", DeclineSent: "DeclineSent", MayCross: "MayCross", SendFailed: "SendFailed",
}

func (e HandshakeEvent) String() string { return name(handshakeEventNames, uint8(e)) }

var handshakeTable = [handshakes][handshakeEvents]Handshake{
	// A client that cannot do SMC-R says so in place of its Proposal, as Linux does.
	Idle: {Connect: AwaitAccept, Listen: AwaitProposal, Failed: Declining, RecvGarbage: Broken, RecvEOF: Broken},

	AwaitAccept: {
		RecvFirstAccept: Joining, RecvAccept: AwaitClientRMB, RecvDecline: Fallback,
		RecvGarbage: Broken, RecvEOF: Broken, Timeout: Broken, SendFailed: Broken, Failed: stay,
	},
	Joining: {
		ConfirmSent: AwaitConfirmLink, Failed: Declining, LinkLost: Declining,
		RecvGarbage: Broken, RecvEOF: Broken, SendFailed: Broken,
	},
	AwaitConfirmLink: {
		RecvLink: LinkReceived, RecvDecline: Fallback, Failed: stay, LinkLost: stay, Timeout: Broken,
		RecvGarbage: Broken, RecvEOF: Broken, SendFailed: Broken,
	},
	LinkReceived: {
		PeerRMBReady: ReplyPosted, RecvDecline: Fallback, Failed: Declining, LinkLost: Declining, Timeout: Declining,
		RecvGarbage: Broken, RecvEOF: Broken,
	},
	// Figure 42: the response could not be sent. What broke the link may keep the server from learning that its request
	// arrived: then it declines at once, so that we do not before our time is up. If nobody knows what became of the
	// response there is no way back.
	ReplyPosted: {
		LinkSent: AddingLink, RecvDecline: Fallback, Failed: stay, LinkLost: stay, TurnOver: Declining, Timeout: Broken,
		RecvGarbage: Broken, RecvEOF: Broken,
	},
	AwaitClientRMB: {
		RMBReady: Established, Failed: Declining, LinkLost: Declining, Timeout: Declining,
		RecvGarbage: Broken, RecvEOF: Broken, SendFailed: Broken,
	},

	AwaitProposal: {
		RecvProposal: Choosing, RecvDecline: Fallback, RecvGarbage: Broken, RecvEOF: Broken, Timeout: Broken, Failed: stay,
	},
	Choosing: {
		FirstContact: AwaitFirstConfirm, FirstPending: Queued, Subsequent: AwaitServerRMB, Failed: Declining,
		RecvGarbage: Broken, RecvEOF: Broken,
	},
	Queued: {
		FirstContact: AwaitFirstConfirm, Subsequent: AwaitServerRMB, FirstPending: stay, Failed: Declining, Timeout: Declining,
		RecvGarbage: Broken, RecvEOF: Broken,
	},
	AwaitServerRMB: {
		RMBReady: AwaitConfirm, Failed: Declining, LinkLost: Declining, Timeout: Declining, RecvGarbage: Broken, RecvEOF: Broken,
	},
	AwaitFirstConfirm: {
		RecvConfirm: AwaitPeerRMB, RecvDecline: Fallback, RecvGarbage: Broken, RecvEOF: Broken, Timeout: Broken, SendFailed: Broken,
		Failed: stay, LinkLost: stay,
	},
	AwaitConfirm: {
		RecvConfirm: Established, RecvDecline: Fallback, RecvGarbage: Broken, RecvEOF: Broken, Timeout: Broken, SendFailed: Broken,
		Failed: stay, LinkLost: stay,
	},
	AwaitPeerRMB: {
		PeerRMBReady: RequestPosted, RecvDecline: Fallback, Failed: Declining, LinkLost: Declining, Timeout: Declining,
		RecvGarbage: Broken, RecvEOF: Broken,
	},
	RequestPosted: {
		LinkSent: AwaitReply, RecvLinkReply: AddingLink, RecvDecline: Fallback, Failed: Declining, LinkLost: Declining,
		Timeout: Declining, RecvGarbage: Broken, RecvEOF: Broken,
	},
	// §C.7.1, first row. If the response got lost the client believes that the link is confirmed, and falling back
	// would mix up two streams.
	AwaitReply: {
		RecvLinkReply: AddingLink, RecvDecline: Fallback, Failed: stay, LinkLost: stay, Timeout: Broken,
		RecvGarbage: Broken, RecvEOF: Broken,
	},

	AddingLink: {
		LinksReady: Established, RecvDecline: Fallback, LinkSent: stay, Failed: stay, LinkLost: Broken, Timeout: Broken,
		RecvGarbage: Broken, RecvEOF: Broken,
	},

	Declining: {DeclineSent: Fallback, MayCross: Declined, SendFailed: Broken, RecvGarbage: Broken, RecvEOF: Broken, Failed: stay, LinkLost: stay},
	// A program that cannot wait takes the risk.
	Declined: {
		RecvDecline: Fallback, RecvData: Fallback, RecvEOF: Fallback, Timeout: Fallback, Failed: Fallback, RecvGarbage: Broken,
		LinkSent: stay, LinkLost: stay,
	},
	// What comes after the end belongs to others: late completions, timers that had fired, the program that gives up.
	Established: {Failed: stay, Timeout: stay, LinkSent: stay, LinkLost: stay, RecvGarbage: Broken, RecvEOF: stay},
	Fallback:    {Failed: stay, Timeout: stay, LinkSent: stay, LinkLost: stay, RecvEOF: stay},
	Broken:      {Failed: stay, Timeout: stay, LinkSent: stay, LinkLost: stay, RecvGarbage: stay, RecvEOF: stay, SendFailed: stay},
}

// On returns the state after an event; *BadTransition if the event is a protocol error.
func (s Handshake) On(e HandshakeEvent) (Handshake, error) {
	return on("handshake", handshakeCell(s, e), s, e)
}

func handshakeCell(s Handshake, e HandshakeEvent) Handshake {
	if s >= handshakes || e >= handshakeEvents {
		return 0
	}
	return handshakeTable[s][e]
}

// Done: the negotiation is over.
func (s Handshake) Done() bool { return s == Established || s == Fallback || s == Broken }

// CanDecline: a failure now leads to a Decline at once; elsewhere it waits, or is too late.
func (s Handshake) CanDecline() bool { return handshakeCell(s, Failed) == Declining }

// PeerMayDecline: while this side declines here, the peer may do so too (RFC 7609 §C.2).
func (s Handshake) PeerMayDecline() bool {
	switch s {
	case LinkReceived, ReplyPosted, RequestPosted:
		return true
	}
	return false
}

// HandshakeMatrix is the table as text, HandshakeDiagram as a picture in Mermaid.
func HandshakeMatrix() string  { return matrix(handshakes, handshakeEvents, handshakeCell) }
func HandshakeDiagram() string { return diagram(handshakes, handshakeEvents, handshakeCell) }

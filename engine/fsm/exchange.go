package fsm

// Before editing read RFC 7609 §3.5.1.6, §3.5.5 (all of it, Figures 9 to 15) and §C.7.1.
//
//	server                                      client
//	Quiet ─ ADD LINK ─► AddLinkSent             (first contact) AwaitAddLink, else Quiet
//	                      │ response              │ ADD LINK, answered
//	                    ContSent ◄─┐            AwaitCont ◄─┐
//	                      │        └ more         │         └ more
//	                      │ last response         │ last RTokens, answered
//	                    NewLinkSent             AwaitNewLink
//	                      │ CONFIRM LINK response │ CONFIRM LINK, answered
//	Quiet ◄───────────────┘                     Quiet
//
//	server: Quiet ─ DELETE LINK ─► DeleteLinkSent ─ response ─► Quiet
//	both:   Quiet ─ CONFIRM RKEY ─► ConfirmRKeySent, Quiet ─ DELETE RKEY ─► DeleteRKeySent ─ response ─► Quiet
//
// A peer has one exchange at a time that changes the link group (§3.5.5.3). What the other one asks for meanwhile waits
// or is refused; only an ADD LINK of the server takes precedence over an exchange of the client's, which is done again
// afterwards (§3.5.5.3.3). The peer's CONFIRM RKEY, DELETE RKEY and TEST LINK are answered on the spot, and so are
// DELETE LINKs: they are no state of this machine.

// Exchange is the state of the LLC exchange that a peer has begun or, with ADD LINK, joined.
type Exchange uint8

const (
	Quiet           Exchange = iota + 1
	AwaitAddLink             // client, first contact: the first link is confirmed, ADD LINK has to come
	AddLinkSent              // server
	ContSent                 // server: ADD LINK CONTINUATION sent
	NewLinkSent              // server: CONFIRM LINK sent over the new link
	AwaitCont                // client: ADD LINK answered, ADD LINK CONTINUATION has to come
	AwaitNewLink             // client: RTokens exchanged, CONFIRM LINK has to come over the new link
	DeleteLinkSent           // server
	ConfirmRKeySent          // both
	DeleteRKeySent           // both
	exchanges
)

var exchangeNames = []string{
	Quiet: "Quiet", AwaitAddLink: "AwaitAddLink", AddLinkSent: "AddLinkSent", ContSent: "ContSent", NewLinkSent: "NewLinkSent",
	AwaitCont: "AwaitCont", AwaitNewLink: "AwaitNewLink", DeleteLinkSent: "DeleteLinkSent",
	ConfirmRKeySent: "ConfirmRKeySent", DeleteRKeySent: "DeleteRKeySent",
}

func (s Exchange) String() string { return name(exchangeNames, uint8(s)) }

// ExchangeEvent is what happens to it.
type ExchangeEvent uint8

const (
	FirstLinkUp      ExchangeEvent = iota + 1 // client
	BeginAddLink                              // server
	BeginDeleteLink                           // server
	BeginConfirmRKey                          // the first message; continuations are part of it
	BeginDeleteRKey

	RecvAddLink // client
	RecvAddLinkReply
	RecvAddLinkReject
	RecvCont     // client; one side has more to tell
	RecvLastCont // client
	RecvContReply
	RecvLastContReply
	RecvNewLink // client: CONFIRM LINK over the new link
	RecvNewLinkReply
	RecvDeleteLinkReply
	RecvConfirmRKeyReply
	RecvConfirmRKeyMore // the response to a part
	RecvDeleteRKeyReply

	Refused         // client: ADD LINK was answered in the negative
	NewLinkDeleted  // client: the server has given the new link up
	NewLinkFailed   // the new link does not work, or is not what was agreed
	CarrierFailed   // the link that carries the exchange does not work any more
	ExchangeTimeout // the peer has not answered
	exchangeEvents
)

var exchangeEventNames = []string{
	FirstLinkUp: "FirstLinkUp", BeginAddLink: "BeginAddLink", BeginDeleteLink: "BeginDeleteLink",
	BeginConfirmRKey: "BeginConfirmRKey", BeginDeleteRKey: "BeginDeleteRKey",
	RecvAddLink: "RecvAddLink", RecvAddLinkReply: "RecvAddLinkReply", RecvAddLinkReject: "RecvAddLinkReject",
	RecvCont: "RecvCont", RecvLastCont: "RecvLastCont", RecvContReply: "RecvContReply", RecvLastContReply: "RecvLastContReply",
	RecvNewLink: "RecvNewLink", RecvNewLinkReply: "RecvNewLinkReply", RecvDeleteLinkReply: "RecvDeleteLinkReply",
	RecvConfirmRKeyReply: "RecvConfirmRKeyReply", RecvConfirmRKeyMore: "RecvConfirmRKeyMore", RecvDeleteRKeyReply: "RecvDeleteRKeyReply",
	Refused: "Refused", NewLinkDeleted: "NewLinkDeleted", NewLinkFailed: "NewLinkFailed", CarrierFailed: "CarrierFailed",
	ExchangeTimeout: "ExchangeTimeout",
}

func (e ExchangeEvent) String() string { return name(exchangeEventNames, uint8(e)) }

var exchangeTable = [exchanges][exchangeEvents]Exchange{
	Quiet: {
		FirstLinkUp: AwaitAddLink, BeginAddLink: AddLinkSent, BeginDeleteLink: DeleteLinkSent, BeginConfirmRKey: ConfirmRKeySent,
		BeginDeleteRKey: DeleteRKeySent, RecvAddLink: AwaitCont, CarrierFailed: stay,
	},
	AwaitAddLink: {RecvAddLink: AwaitCont, CarrierFailed: Quiet, ExchangeTimeout: Quiet},
	// A new link that breaks early shows when CONFIRM LINK is sent over it.
	AddLinkSent: {
		RecvAddLinkReply: ContSent, RecvAddLinkReject: Quiet, NewLinkFailed: stay, CarrierFailed: Quiet, ExchangeTimeout: Quiet,
	},
	ContSent: {
		RecvContReply: stay, RecvLastContReply: NewLinkSent, NewLinkFailed: stay, CarrierFailed: Quiet, ExchangeTimeout: Quiet,
	},
	NewLinkSent: {RecvNewLinkReply: Quiet, NewLinkFailed: Quiet, CarrierFailed: stay, ExchangeTimeout: Quiet},
	// A server that has given up begins again over another link.
	AwaitCont: {
		RecvAddLink: stay, Refused: Quiet, RecvCont: stay, RecvLastCont: AwaitNewLink, NewLinkDeleted: Quiet, NewLinkFailed: stay,
		CarrierFailed: Quiet, ExchangeTimeout: Quiet,
	},
	AwaitNewLink: {
		RecvAddLink: AwaitCont, RecvNewLink: Quiet, NewLinkDeleted: Quiet, NewLinkFailed: Quiet, CarrierFailed: stay,
		ExchangeTimeout: Quiet,
	},
	DeleteLinkSent: {RecvDeleteLinkReply: Quiet, CarrierFailed: Quiet, ExchangeTimeout: Quiet},
	ConfirmRKeySent: {
		RecvConfirmRKeyMore: stay, RecvConfirmRKeyReply: Quiet, RecvAddLink: AwaitCont, CarrierFailed: Quiet, ExchangeTimeout: Quiet,
	},
	DeleteRKeySent: {RecvDeleteRKeyReply: Quiet, RecvAddLink: AwaitCont, CarrierFailed: Quiet, ExchangeTimeout: Quiet},
}

// On returns the state after an event; *BadTransition if the message is out of turn.
func (s Exchange) On(e ExchangeEvent) (Exchange, error) {
	return on("exchange", exchangeCell(s, e), s, e)
}

func exchangeCell(s Exchange, e ExchangeEvent) Exchange {
	if s >= exchanges || e >= exchangeEvents {
		return 0
	}
	return exchangeTable[s][e]
}

// ChangesLinks: RMBs of the peer cannot be taken in meanwhile (RFC 7609 §3.5.5.3.1 and §3.5.5.3.2).
func (s Exchange) ChangesLinks() bool {
	switch s {
	case AddLinkSent, ContSent, NewLinkSent, DeleteLinkSent:
		return true
	}
	return false
}

// AddsLink: a server's ADD LINK is under way.
func (s Exchange) AddsLink() bool { return s == AddLinkSent || s == ContSent || s == NewLinkSent }

// ExchangeMatrix is the table as text, ExchangeDiagram as a picture in Mermaid.
func ExchangeMatrix() string  { return matrix(exchanges, exchangeEvents, exchangeCell) }
func ExchangeDiagram() string { return diagram(exchanges, exchangeEvents, exchangeCell) }

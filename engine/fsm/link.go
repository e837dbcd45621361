package fsm

// Before editing read RFC 7609 §3.5.1.4 (Client Confirmation), §3.5.4, §3.5.5.1.3 and §3.5.5.1.4 (DELETE LINK).
//
//	LinkInit ─ connect ─► LinkConnected ─ confirmed ─► LinkActive ─ leave ─► LinkDeleting ─ delete, failure ─► LinkDown
//
// A link group is usable while one of its links is active. A link that fails while another one is active is left by its
// connections, and stays until the peer knows that it is gone. The end of the last one is the end of all.

// Link is the state of a link.
type Link uint8

const (
	LinkInit      Link = iota + 1 // QP in INIT: the peer is not known
	LinkConnected                 // QP in RTR or RTS; CONFIRM LINK has not been exchanged
	LinkActive                    // confirmed by both sides
	LinkDeleting                  // no connection uses it any more; DELETE LINK is under way
	LinkDown                      // QP gone
	links
)

var linkNames = []string{LinkInit: "INIT", LinkConnected: "CONNECTED", LinkActive: "ACTIVE", LinkDeleting: "DELETING", LinkDown: "DOWN"}

func (s Link) String() string { return name(linkNames, uint8(s)) }

// LinkEvent is what happens to a link.
type LinkEvent uint8

const (
	LinkConnect   LinkEvent = iota + 1 // the peer's QP is known
	LinkConfirmed                      // CONFIRM LINK exchanged
	LinkLeave                          // it is to be deleted, by whatever side and reason
	LinkDelete                         // deleted: both sides know, or the link group ends
	LinkFailed                         // send failure, timeout, protocol error, QP error
	linkEvents
)

var linkEventNames = []string{
	LinkConnect: "LinkConnect", LinkConfirmed: "LinkConfirmed", LinkLeave: "LinkLeave", LinkDelete: "LinkDelete", LinkFailed: "LinkFailed",
}

func (e LinkEvent) String() string { return name(linkEventNames, uint8(e)) }

var linkTable = [links][linkEvents]Link{
	LinkInit:      {LinkConnect: LinkConnected, LinkLeave: LinkDeleting, LinkDelete: LinkDown, LinkFailed: LinkDown},
	LinkConnected: {LinkConfirmed: LinkActive, LinkLeave: LinkDeleting, LinkDelete: LinkDown, LinkFailed: LinkDown},
	LinkActive:    {LinkLeave: LinkDeleting, LinkDelete: LinkDown, LinkFailed: LinkDown},
	LinkDeleting:  {LinkLeave: stay, LinkDelete: LinkDown, LinkFailed: LinkDown},
	// The two ends find out in any order.
	LinkDown: {LinkDelete: stay, LinkFailed: stay},
}

// On returns the state after an event; *BadTransition if it is out of order.
func (s Link) On(e LinkEvent) (Link, error) { return on("link", linkCell(s, e), s, e) }

func linkCell(s Link, e LinkEvent) Link {
	if s >= links || e >= linkEvents {
		return 0
	}
	return linkTable[s][e]
}

// LinkMatrix is the table as text, LinkDiagram as a picture in Mermaid.
func LinkMatrix() string  { return matrix(links, linkEvents, linkCell) }
func LinkDiagram() string { return diagram(links, linkEvents, linkCell) }

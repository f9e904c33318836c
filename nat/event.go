package nat

import "time"

// FlowEvent is something that happened to a flow.
type FlowEvent struct {
	Time     time.Time
	Kind     EventKind
	Flow     Flow          // as it was then
	DialTime time.Duration // from the guest's first packet until the flow carried payload; opened and closed flows
	Duration time.Duration // from the guest's first packet until the end; all but opened flows
	Reason   Reason        // why a flow ended, or did not begin
	Err      error         // the error behind Reason, if there was one; a *LimitError for ReasonLimit
	Limit    LimitUse      // LimitWarning only
}

// EventKind is what happened. Its text is for people and for logs.
type EventKind uint8

// The kinds. Each flow has one of denied and failed, or opened and later closed.
const (
	FlowOpened   EventKind = iota + 1 // it carries payload from now on
	FlowDenied                        // the policy refused it
	FlowFailed                        // it could not be opened
	FlowClosed                        // it has ended
	LimitWarning                      // no flow: four fifths of a limit are taken
)

// String names the kind.
func (k EventKind) String() string {
	return nameOf(int(k), "", "opened", "denied", "failed", "closed", "limit warning")
}

// MarshalText is String.
func (k EventKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Reason is why a flow ended or did not begin.
type Reason uint8

// The reasons.
const (
	ReasonNone        Reason = iota // it has not ended
	ReasonDone                      // both sides have finished in order
	ReasonGuestReset                // RST from the guest, or it is gone
	ReasonHostReset                 // RST from the peer, or it is gone
	ReasonRefused                   // the peer refused: RST to the SYN
	ReasonUnreachable               // no way to the network or host
	ReasonTimeout                   // the peer did not answer
	ReasonPolicy                    // the policy refused it, at the start or after a change
	ReasonLimit                     // a limit of the VM is reached
	ReasonIdle                      // no payload for TCPIdle or UDPIdle
	ReasonCut                       // CutFlow
	ReasonShutdown                  // Run has ended
	ReasonError                     // another error of the host
)

// String says the reason in a few words.
func (r Reason) String() string {
	return nameOf(int(r), "none", "done", "reset by the guest", "reset by the peer", "refused by the peer", "unreachable",
		"no answer in time", "policy", "limit reached", "idle", "cut", "network stopped", "error")
}

// MarshalText is String.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

func nameOf(i int, names ...string) string {
	if i >= len(names) {
		return "unknown"
	}
	return names[i]
}

package egress

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"time"
)

// Kinds of events: what was decided about.
const (
	KindTCP    = "tcp"
	KindUDP    = "udp"
	KindICMP   = "icmp"
	KindDNS    = "dns"
	KindUnix   = "unix"   // a Unix socket of the host's; Names has its path in the guest, Message that on the host
	KindPolicy = "policy" // the policy was replaced; Message has the new one
)

// Verdicts of events.
const (
	VerdictAllow = "allow" // let through; for tcp and udp also: the socket is connected
	VerdictDeny  = "deny"  // refused, or cut because the policy changed
	VerdictError = "error" // let through, but it failed on the way; Message says how
	VerdictClose = "close" // a connection that was allowed has ended
)

// Event is one line of the audit: a connection, a DNS query, a refusal, a change of policy. In JSON, what is zero is left out.
type Event struct {
	Time        time.Time      `json:"time"`
	Kind        string         `json:"kind"`
	Verdict     string         `json:"verdict"`
	Flow        uint64         `json:"flow,omitempty"`       // the same in all events of one connection, never used again by this gate
	Source      netip.AddrPort `json:"source,omitzero"`      // in the guest
	Destination netip.AddrPort `json:"destination,omitzero"` // as the guest sees it; port 0 with icmp
	Names       []string       `json:"names,omitempty"`      // that led there, at most 8; with dns: what was asked for
	Query       string         `json:"query,omitempty"`      // dns: the type, as in A
	Answer      string         `json:"answer,omitempty"`     // dns: as the resolver puts it
	Rule        string         `json:"rule,omitempty"`
	Reason      string         `json:"reason,omitempty"` // one of the Reason constants
	Message     string         `json:"message,omitempty"`
	Sent        int64          `json:"sent,omitempty"`     // at the end: bytes from the guest
	Received    int64          `json:"received,omitempty"` // at the end: bytes to the guest
	Duration    float64        `json:"seconds,omitempty"`  // at the end: seconds that it was open
	Process     string         `json:"process,omitempty"`  // in the guest; for whoever knows, the gate has it of a Query alone
	Lost        uint64         `json:"lost,omitempty"`     // events that were lost just before this one
}

// maxEventNames and maxEventText bound one event, whatever a guest asks for.
const (
	maxEventNames = 8
	maxEventText  = 1024
)

func (e *Event) bound() {
	e.Names = e.Names[:min(len(e.Names), maxEventNames)]
	for i, name := range e.Names {
		e.Names[i] = cut(name, maxName)
	}
	e.Answer, e.Message = cut(e.Answer, maxEventText), cut(e.Message, maxEventText)
}

func cut(text string, length int) string {
	if len(text) > length {
		return text[:length] + "..."
	}
	return text
}

func (e *Event) decided(d Decision) {
	e.Rule, e.Reason, e.Message = d.Rule, d.Reason, d.Message
}

// Line is the event as a line of JSON, with its end.
func (e Event) Line() ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(e)
	return line.Bytes(), err
}

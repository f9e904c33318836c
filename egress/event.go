package egress

import (
	"net/netip"
	"time"
)

// Kinds of events: what was decided about.
const (
	KindTCP    = "tcp"
	KindUDP    = "udp"
	KindICMP   = "icmp"
	KindDNS    = "dns"
	KindPolicy = "policy" // the policy was replaced
)

// Verdicts of events.
const (
	VerdictAllow = "allow" // let through; for tcp and udp: and connected
	VerdictDeny  = "deny"  // refused, or cut because the policy changed
	VerdictError = "error" // let through, but it failed on the way
	VerdictClose = "close" // a connection that was allowed has ended
)

// Event is one line of the audit: a connection, a DNS query, a refusal, a change of policy.
type Event struct {
	Time        time.Time      `json:"time"`
	Kind        string         `json:"kind"`
	Verdict     string         `json:"verdict"`
	Flow        uint64         `json:"flow,omitempty"`       // the same in all events of one connection
	Source      netip.AddrPort `json:"source,omitzero"`      // in the guest
	Destination netip.AddrPort `json:"destination,omitzero"` // as the guest sees it; port 0 with icmp
	Names       []string       `json:"names,omitempty"`      // the destination's, as the guest was told; with dns: what it asked for
	Query       string         `json:"query,omitempty"`      // dns: the type, as in A
	Answer      string         `json:"answer,omitempty"`     // dns
	Rule        string         `json:"rule,omitempty"`
	Reason      string         `json:"reason,omitempty"`
	Message     string         `json:"message,omitempty"`
	Sent        int64          `json:"sent,omitempty"`     // close: bytes from the guest
	Received    int64          `json:"received,omitempty"` // close: bytes to the guest
	Duration    float64        `json:"seconds,omitempty"`  // close: seconds
	Process     string         `json:"process,omitempty"`  // in the guest; left to whoever knows
	Lost        uint64         `json:"lost,omitempty"`     // events that were lost just before this one
}

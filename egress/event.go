package egress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"
)

// Kinds of events: what was decided about.
const (
	KindTCP    = "tcp"
	KindUDP    = "udp"
	KindICMP   = "icmp"
	KindDNS    = "dns"
	KindUnix   = "unix"   // a Unix socket of the host; Names has its path in the guest, Message that on the host
	KindPolicy = "policy" // the policy was replaced; Message has the new one
)

// Verdicts of events.
const (
	VerdictAllow = "allow" // let through; for tcp and udp also: the socket is connected
	VerdictDeny  = "deny"  // refused, or cut because the policy changed
	VerdictError = "error" // let through, but it failed on the way; Message says how
	VerdictClose = "close" // a connection that was allowed has ended
)

// Event is one line of the audit: a connection, a DNS query, a refusal, a change of policy. JSON omits zero fields.
type Event struct {
	Time        time.Time      `json:"time"`
	Kind        string         `json:"kind"`
	Verdict     string         `json:"verdict"`
	Flow        uint64         `json:"flow,omitempty"`       // the same in all events of one connection, never used again by this gate
	Source      netip.AddrPort `json:"source,omitzero"`      // in the guest
	Destination netip.AddrPort `json:"destination,omitzero"` // as the guest sees it; port 0 with icmp
	Names       []string       `json:"names,omitempty"`      // that led there, the one asked for last first; with dns: what was asked for
	Query       string         `json:"query,omitempty"`      // dns: the type, as in A
	Answer      string         `json:"answer,omitempty"`     // dns: as the resolver puts it
	Rule        string         `json:"rule,omitempty"`
	Reason      string         `json:"reason,omitempty"` // one of the Reason constants
	Message     string         `json:"message,omitempty"`
	Sent        int64          `json:"sent,omitempty"`     // at the end: bytes from the guest
	Received    int64          `json:"received,omitempty"` // at the end: bytes to the guest
	Duration    float64        `json:"seconds,omitempty"`  // at the end: seconds that it was open
	Process     string         `json:"process,omitempty"`  // in the guest; the gate knows it only of a Query, callers may fill it in
	Count       uint64         `json:"count,omitempty"`    // denials that the event stands for, when they are more than one
	Lost        uint64         `json:"lost,omitempty"`     // events that were lost just before this one
}

// maxEventText bounds one event's texts, whatever a guest asks for: the answer, the message, and all names together. Names that do
// not fit are those that were asked for longest ago.
const maxEventText = 1024

func (e *Event) bound() {
	room := maxEventText
	for i, name := range e.Names {
		e.Names[i] = cut(name, maxName)
		if room -= len(e.Names[i]) + 1; room < 0 {
			e.Names = e.Names[:i]
			break
		}
	}
	e.Answer, e.Message = cut(e.Answer, maxEventText), cut(e.Message, maxEventText)
}

func cut(text string, length int) string {
	if len(text) > length {
		return text[:length] + "..."
	}
	return text
}

// InwardFlows is added to the number of a flow that comes through a port forward, to distinguish it from the guest's own.
const InwardFlows = 1_000_000_000

// StartEvent is the first event of a VM in a log. It has the policy with which the VM begins.
func StartEvent(at time.Time, p Policy) Event {
	return Event{Time: at, Kind: KindPolicy, Verdict: VerdictAllow, Reason: ReasonStart, Message: p.String()}
}

// Target returns what the event is about, in the form of a rule: name:port as the guest knows it, else address:port, with /udp for UDP; for
// a DNS query the name. The guest chose the name: it may hold anything.
func (e Event) Target() string {
	var host string
	switch at := e.Destination.Addr(); {
	case len(e.Names) > 0:
		host = e.Names[0]
	case at.Is6():
		host = "[" + at.String() + "]"
	case at.IsValid():
		host = at.String()
	}
	if port := e.Destination.Port(); port != 0 {
		host = fmt.Sprintf("%s:%d", host, port)
	}
	if e.Kind == KindUDP {
		host += "/udp"
	}
	return host
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

// Reasons of decisions: stable words for programs.
const (
	ReasonPublic    = "public-address"  // allowed: mode public, public address
	ReasonOpen      = "mode-open"       // allowed: mode open
	ReasonAllowRule = "allowed-by-rule" // allowed: an allow rule names it
	ReasonHostPort  = "host-port"       // allowed: an opened port of the host
	ReasonPeer      = "vm-network"      // allowed: another VM in one of the VM's networks
	ReasonLocalName = "local-name"      // allowed: one of the VM's own names
	ReasonForward   = "port-forward"    // a connection from the host into the guest: its Source is on the host, its Flow above InwardFlows
	ReasonLimit     = "limit"           // refused by a limit of the VM's network
	ReasonStart     = "start"           // not a decision: the first event of a VM in a log, with its policy
	ReasonResolver  = "resolver"        // allowed: a configured DNS server, for the VM's own resolver

	ReasonConnect        = "network-connect"      // denied: Config.Connect does not permit the port
	ReasonNone           = "mode-none"            // denied: the network is off
	ReasonDenyRule       = "denied-by-rule"       // denied: a deny rule names it
	ReasonRestricted     = "restricted-range"     // denied: private, link-local, multicast, ...
	ReasonHostAddress    = "host-address"         // denied: a public address of the host's own interfaces
	ReasonHostNetwork    = "host-network"         // denied: a neighbour of the host, in the network of one of its interfaces
	ReasonLoopback       = "loopback"             // denied: the host's loopback
	ReasonOwnNetwork     = "own-network"          // denied: the VM's own subnet
	ReasonHostPortClosed = "host-port-not-open"   // denied: a port of the host that is not opened
	ReasonNotAllowed     = "not-in-allowlist"     // denied: no allow rule names the address or its names
	ReasonNameNotAllowed = "name-not-allowed"     // denied: no allow rule names it, so it is not looked up
	ReasonServerName     = "server-name"          // denied: what the connection itself says is not what an allow-sni rule names
	ReasonBadName        = "invalid-name"         // denied: not a name that DNS can have
	ReasonLongChain      = "alias-chain-too-long" // denied: too many CNAMEs
	ReasonQueryType      = "query-type"           // denied: a DNS type that is not passed on
	ReasonResolverRule   = "resolver-limit"       // denied: a limit of the VM's resolver, such as queries a second
	ReasonNotResolver    = "not-a-resolver"       // denied: DNS to a server that is not configured
	ReasonNotSocket      = "not-a-socket"         // denied: a Unix socket that the VM was not given
	ReasonBadAddress     = "invalid-address"      // denied: no address at all
	ReasonBadProtocol    = "invalid-protocol"     // denied: neither tcp, udp nor icmp
	ReasonClosed         = "closed"               // denied: the gate was closed
)

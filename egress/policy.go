package egress

import "net/netip"

// Mode is what a policy does with a destination that no rule names.
type Mode string

// Modes. The zero Mode is Public, or Allowlist when the policy has an allow rule.
const (
	Public    Mode = "public"    // every public address
	Allowlist Mode = "allowlist" // only what an allow rule names
	None      Mode = "none"      // nothing at all
	Open      Mode = "open"      // everything but the host's loopback and the VM's own subnets
)

// Protocols of requests and rules.
const (
	TCP  = "tcp"
	UDP  = "udp"
	ICMP = "icmp"
)

// Reasons of decisions: stable words for programs.
const (
	ReasonPublic         = "public-address"     // allowed: mode public, public address
	ReasonOpen           = "mode-open"          // allowed: mode open
	ReasonAllowRule      = "allowed-by-rule"    // allowed: an allow rule names it
	ReasonHostPort       = "host-port"          // allowed: a port of the host's that was opened
	ReasonLocalName      = "local-name"         // allowed: a name of the VM's own
	ReasonNone           = "mode-none"          // denied: the network is off
	ReasonDenyRule       = "denied-by-rule"     // denied: a deny rule names it
	ReasonRestricted     = "restricted-range"   // denied: private, link-local, multicast, ...
	ReasonLoopback       = "loopback"           // denied: the host itself
	ReasonOwnNetwork     = "own-network"        // denied: the VM's own subnet
	ReasonHostPortClosed = "host-port-not-open" // denied: a port of the host's that was not opened
	ReasonNotAllowed     = "not-in-allowlist"   // denied: no allow rule names the address or its names
	ReasonNameNotAllowed = "name-not-allowed"   // denied: no allow rule names it, so it is not looked up
	ReasonBadName        = "invalid-name"       // denied: not a name that DNS can have
	ReasonQueryType      = "query-type"         // denied: a DNS type that is not passed on
	ReasonNotResolver    = "not-a-resolver"     // denied: DNS to a server that is not configured
	ReasonBadAddress     = "invalid-address"    // denied: no address at all
	ReasonBadProtocol    = "invalid-protocol"   // denied: neither tcp, udp nor icmp
	ReasonClosed         = "closed"             // denied: the gate was closed
)

// Policy says what may be reached. The zero Policy is mode public without rules. Policies are values: Decide changes nothing.
type Policy struct {
	Mode  Mode   // empty: Public, or Allowlist with an allow rule
	Allow []Rule // what mode allowlist lets through; of no effect in other modes
	Deny  []Rule // wins over everything else, in every mode
}

// Request is a destination to decide about.
type Request struct {
	Protocol string         // TCP, UDP or ICMP (whose port is 0)
	To       netip.AddrPort // the address that would be dialled
	Names    []string       // names that were asked for and answered with that address
	Aliases  []string       // names that those led to (CNAME): deny rules look at them, allow rules do not
}

// Decision is what a policy says about a request.
type Decision struct {
	Allowed bool     `json:"allowed"`
	Rule    string   `json:"rule,omitempty"`    // the rule that decided, as text; empty when none did
	Reason  string   `json:"reason"`            // one of the Reason constants
	Message string   `json:"message"`           // for people: what and why, and what would allow it
	Applies []string `json:"applies,omitempty"` // only by Explain: everything that was looked at, in order
}

// DeniedError is a refusal by policy. errors.Is(err, syscall.EACCES) holds.
type DeniedError struct {
	Decision Decision
}

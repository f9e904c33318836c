package egress

// Reasons of decisions: stable words for programs.
const (
	ReasonPublic    = "public-address"  // allowed: mode public, public address
	ReasonOpen      = "mode-open"       // allowed: mode open
	ReasonAllowRule = "allowed-by-rule" // allowed: an allow rule names it
	ReasonHostPort  = "host-port"       // allowed: a port of the host's that was opened
	ReasonLocalName = "local-name"      // allowed: a name of the VM's own
	ReasonStart     = "start"           // not a decision: the first event of a VM in a log, with its policy
	ReasonResolver  = "resolver"        // allowed: a configured DNS server, for the VM's own resolver

	ReasonConnect        = "network-connect"      // denied: Config.Connect does not permit the port
	ReasonNone           = "mode-none"            // denied: the network is off
	ReasonDenyRule       = "denied-by-rule"       // denied: a deny rule names it
	ReasonRestricted     = "restricted-range"     // denied: private, link-local, multicast, ...
	ReasonHostAddress    = "host-address"         // denied: a public address of the host's own interfaces
	ReasonLoopback       = "loopback"             // denied: the host's loopback
	ReasonOwnNetwork     = "own-network"          // denied: the VM's own subnet
	ReasonHostPortClosed = "host-port-not-open"   // denied: a port of the host's that was not opened
	ReasonNotAllowed     = "not-in-allowlist"     // denied: no allow rule names the address or its names
	ReasonNameNotAllowed = "name-not-allowed"     // denied: no allow rule names it, so it is not looked up
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

// Package egress decides what a VM may reach, and it is the only place that opens sockets on a guest's behalf.
//
// A Policy (a mode, allow rules, deny rules) is plain data with a pure Decide. All outbound traffic of
// a VM passes its Gate, which knows the names that the guest learned from DNS (pins), asks the policy, dials, and records every
// decision as an Event.
// Each socket on the host's network that serves a guest is opened by the one dial function of its Gate, so that the
// counters there count everything.
//
// Promises: a connection goes to the very address that was asked for and checked at that moment, never to the result
// of a second look-up. Restricted ranges (Restricted) are refused in every mode but open, also when they hide inside IPv6 addresses, unless
// a rule names the private address or its network;
// the host's loopback is reached in no mode, except for the ports in Config.HostPorts. Deny rules win.
// A new policy holds at once: connections and pending dials that it denies are cut.
//
// A Gate is safe for concurrent use. No lock is held while dialling, closing or calling Audit. Audit receives events one
// at a time, in the order of the decisions, on a goroutine of its own. A slow Audit never delays the guest's traffic. It loses
// events, and the next event that it receives says how many (Event.Lost).
//
// The package does not move bytes by itself and does not parse DNS. An allow rule for a name opens the addresses of that name, and with them
// every other service behind the same addresses; one of AllowSNI only for connections that name it themselves (egress/internal/servername).
package egress

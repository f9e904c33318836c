// Package egress decides what a VM may reach, and is the only place that opens sockets on a guest's behalf.
//
// A Policy (a mode, allow rules, deny rules) is plain data with a pure Decide. A Gate is one VM's door to the
// world: it knows the names that the guest was told (pins), asks the policy, dials, and records every decision as an Event.
// Whatever reaches the host's network for a guest goes through the one dial function of its Gate, so that counting there
// counts everything.
//
// Promises: a connection goes to the very address that was asked for and checked at that moment, never to one that is
// resolved again. Restricted ranges (Restricted) are refused in every mode but open, also when they hide inside IPv6 addresses;
// the host's loopback is reached in no mode, except for the ports that were opened by Config.HostPorts. Deny rules win.
// A policy that is replaced holds at once: connections and pending dials that it denies are cut.
//
// A Gate is safe for concurrent use. No lock is held while dialling, closing or calling Audit. Events reach Audit one
// at a time, in the order of the decisions, on a goroutine of their own: a slow Audit never delays the guest's traffic, it loses
// events, and the next event that it gets says how many (Event.Lost).
//
// The package does not move bytes by itself, parse DNS or TLS, nor look into what a connection carries: a name rule opens the
// addresses of that name, so that others behind the same address can be reached by it too.
package egress

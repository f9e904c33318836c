// Package dhcp is the DHCP server (RFC 2131) of a virtual machine's network: it has one lease, for one guest.
//
//	guest                                server
//	  │ DISCOVER ───────────────────────► │
//	  │ ◄───────────────────────── OFFER  │  always the same address
//	  │ REQUEST (of an offer) ──────────► │
//	  │ ◄─────────────────── ACK or NAK   │  NAK when the address is another one
//	  │ REQUEST (after a start, at half   │
//	  │ of the lease, near its end) ────► │
//	  │ ◄─────────────────── ACK or NAK   │
//	  │ INFORM ─────────────────────────► │
//	  │ ◄─────────────────────────── ACK  │  configuration without an address
//	  │ DECLINE, RELEASE ───────────────► │  counted; there is nothing to give back
//
// The guest is known by its hardware address; no other client gets an answer, so there is no pool that could be emptied. Nothing
// is remembered between messages: each reply follows from the configuration and the request alone. Relays (RFC 2131 giaddr)
// and BOOTP clients are not served.
//
// A [Server] is immutable except for its counters. All methods may be called by several goroutines; New starts none, and Serve
// runs in the caller's.
package dhcp

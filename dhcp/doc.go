// Package dhcp is the DHCP server (RFC 2131) of a virtual machine's network: it has one lease, for one guest.
//
// The guest is known by its hardware address; nobody else gets an answer, so there is no pool that could be emptied. Nothing
// is remembered between messages: each reply follows from the configuration and the request alone.
//
// A [Server] is immutable but for its counters. All methods may be called by several goroutines; New starts none, and Serve
// runs in the caller's.
package dhcp

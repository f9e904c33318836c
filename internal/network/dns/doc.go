// Package dns is the resolver of a VM: the only one that its guest can reach.
//
//	guest ── UDP, TCP port 53 ──► Server ──► local names, then Policy.Question, cache, upstream servers
//	                                 │
//	guest ◄── what is left ◄── Policy.Answer for each address, each time it is passed on
//
// It forwards to recursive servers (Config.Upstreams); it does not resolve from the root and does not validate DNSSEC. The
// guest is the adversary and so is every server that answers: a query is parsed and written anew before it goes out, and of
// an answer only records that belong to the question come back. An address reaches the guest only after [Policy].Answer has
// allowed (and thereby pinned) it, also when it comes from the cache. SVCB and HTTPS records, which carry addresses too, are
// answered as if there were none, and additional sections are not passed on.
//
// # How a refusal looks in the guest
//
// A name that the policy refuses is NXDOMAIN, not REFUSED: musl's resolver ignores REFUSED and waits for its time-out, glibc
// calls it a temporary failure. Of an answer whose addresses are all filtered the records are left out (NODATA): NXDOMAIN for
// one address family would, by RFC 8020, also hide the other. Both say why as an extended error (RFC 8914), which clients with
// EDNS can show (dig does).
//
// # Concurrency
//
// All methods of a [Server] may be called by several goroutines. New starts none; ServeConn and ServeDatagrams wait for those
// that they start. Everything that a guest can make grow has a bound: queries a second, queries at a time of one connection and
// towards the upstreams, entries and bytes of the cache, records of a message.
package dns

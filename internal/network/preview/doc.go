// Package preview shares one port of a VM with those who have its link, and with no one else.
//
// A Store makes links: tokens that are signed, bound to a VM and a port, good for an hour unless said otherwise, and kept
// in SQLite, so that they outlive the processes that use them. A Server is the HTTP proxy behind the links. It is given a
// listener and a Dialer into the VMs; it opens no socket itself.
//
//	browser ── http://TOKEN.localhost:PORT/x ──┐
//	           http://127.0.0.1:PORT/p/TOKEN/x ┤
//	                                           ▼
//	                             Host, Origin, limits      refused before the token is looked at
//	                                           ▼
//	                             Store.Check(TOKEN)        signature, end, revocation: before the VM is touched
//	                                           ▼
//	                             Dialer.DialPreview        the caller's guards, then the port in the VM
//	                                           ▼
//	                             a program in the VM, which believes that it is http://localhost:PORT
//
// # Tokens
//
// A token has 63 characters of base32hex, which fit into a label of a name: port, end, identity of the VM, a nonce and an HMAC
// (token.go).
//
// Each token has one spelling. It counts only if it is genuine, has not ended, and the store has a row with the same VM, port and end that
// is not revoked, checked in this order. The key is preview.key beside the store, 32 random bytes, mode 0600. Store.Rotate makes a new one;
// the old one verifies until the last preview that it may have signed has ended.
//
// The store is a SQLite file that any number of processes use. Check has the active rows in memory and asks SQLite only for data_version,
// so a revocation counts everywhere when Revoke returns; when that fails, no request is let in (503).
//
// # A request
//
//  1. Limits on connections and headers; HTTP/1.1 only.
//  2. Host is 127.0.0.1, [::1], localhost or TOKEN.localhost with the listener's port, or one of ServerConfig.Ports. Others, absolute URLs
//     and CONNECT are refused before a token is read, which ends DNS rebinding.
//  3. Origin is absent, an origin, or null. A request from a page of another origin is marked as foreign.
//  4. The token: 404 or 410.
//  5. The number of requests at once: 503. A CORS preflight is answered here.
//  6. Permit (the same VM, it runs, its policy permits the port), also before a kept connection is used again; then the Dialer for a new
//     connection.
//
// A revocation, the end of the link or Server.Close ends the request in any state: at once in the same process, within 100 ms from another.
//
// rewrite.go lists the headers that are changed in both directions.
//
// # Concurrency and ordering
//
// All methods may be called by several goroutines, and several processes may have one store open. When Revoke has
// returned, no Check in any process succeeds, and what is streaming through servers of this Store ends; servers of other processes
// notice within a tenth of a second that a stream of theirs has been revoked or has expired.
//
// # What it does not do
//
// It does not decide which ports of a VM may be reached: that is the Dialer's. It speaks HTTP/1.1 without TLS, for
// loopback. It does not protect a preview from those who have its link.
package preview

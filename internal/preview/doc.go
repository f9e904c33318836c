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

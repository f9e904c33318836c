// Package guestrpc is the protocol between host and guest: a hello with a protocol number, then Cap'n Proto RPC over one byte
// stream. It gives both ends in plain Go: Client and FilesClient for the host, Serve and ServeBulk for the supervisor in the guest.
//
// The schema is guest.capnp; its generated code is in guestwire. The functions that read and write its structs are exported for
// daemonrpc, whose schema uses some of them.
//
// All methods may be called from several goroutines. Calls on one object are started in the order in which they are made. Bytes given to
// this package are read before the call returns; bytes it returns belong to the caller.
//
// It starts no machine, opens no connection and interprets no command line.
package guestrpc

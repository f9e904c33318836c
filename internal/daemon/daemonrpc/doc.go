// Package daemonrpc is the conversation between a client and the daemon that owns a VM, after the handshake (package daemon): Cap'n Proto
// RPC over one byte stream. It gives both ends in plain Go: Client and JobClient, and Serve with the Handler of the daemon.
//
// The schema is daemon.capnp; its generated code is in daemonwire. Programs to run, counters, files and sockets of the guest have the
// types of guestrpc.
//
// All methods may be called from several goroutines. Bytes given to this package are read before the call returns; bytes it returns
// belong to the caller.
package daemonrpc

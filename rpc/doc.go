// Package rpc is the conversation between host and guest: a hello with a protocol number, then Cap'n Proto RPC over one
// byte stream. It gives both ends in plain Go: Client for the host, Serve for the supervisor in the guest.
//
// The schema is agentvm.capnp; its generated code is in wire and shows in no exported name of this package.
//
// All methods may be called from several goroutines. Calls on one object are started in the order in which they are
// made. Bytes given to this package are read before the call returns; bytes it returns belong to the caller.
//
// It starts no machine, opens no connection and interprets no command line.
package rpc

//go:generate ./generate.sh

// Package capnprpc is Cap'n Proto RPC over one byte stream, for peers that do not trust each other: a connection (Conn) with calls and
// capabilities in both directions, connections within it (StreamConn, SinkWriter, SinkReader) with a bounded number of bytes under way,
// and errors that keep their errno on every system (Error).
//
// The protocols are in guestrpc (host and guest) and daemonrpc (client and daemon); their schemas share stream.capnp, whose generated
// code is in streamwire.
//
// All methods of a Conn may be called from several goroutines. Calls on one object are started in the order in which they are made.
// Bytes given to this package are read before the call returns; bytes it returns belong to the caller. Whatever a peer sends, it ends at
// most the connection, and what it can make this end remember is bounded.
package capnprpc

//go:generate ./generate.sh

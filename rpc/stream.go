package rpc

import (
	"context"
	"io"
)

// Stream is a byte stream in two directions, each of which ends by itself, like a TCP connection.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite ends the direction of Write: the other end reads io.EOF.
	CloseWrite() error
}

// UnixSocket is a path in the guest where connections are passed to the host.
type UnixSocket struct {
	Path string // absolute; a socket that is there is replaced
	ID   string // names it in StartParams.Connect
	Mode uint32 // permissions; 0: 0666
}

// Connector makes a connection for the guest to what id names. It is called from several goroutines; ctx ends with the
// connection to the guest.
type Connector func(ctx context.Context, id string) (Stream, error)

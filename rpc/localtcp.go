package rpc

import (
	"context"
	"errors"
)

// OpenLocalTCP connects to a server that listens on the guest's loopback interface. host is "127.0.0.1", "::1", or
// "localhost" or empty for whichever of both answers. An error has the guest's errno, such as syscall.ECONNREFUSED.
func (c *Client) OpenLocalTCP(ctx context.Context, host string, port uint16) (*Conn, error) {
	return nil, errors.ErrUnsupported
}

// Conn is one end of a byte stream through the guest. It implements Stream and net.Conn.
type Conn struct{ Stream }

package dns

import (
	"context"
	"net"
)

// Server answers the queries of one guest.
type Server struct {
	config Config
}

// New makes a Server. It does no I/O.
func New(config Config) (*Server, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Server{config: config}, nil
}

// Reply answers one message as it came from the guest. datagram says that the reply has to fit into what the client takes
// in one datagram. nil means that there is nothing to send. It returns after Config.Timeout at the latest, and when ctx ends.
func (s *Server) Reply(ctx context.Context, query []byte, datagram bool) []byte { return nil }

// ServeConn answers the messages of a TCP connection (RFC 1035 section 4.2.2) until it ends, is idle for too long, or ctx
// ends. It closes conn.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn) { conn.Close() }

// ServeDatagrams answers the messages of a UDP flow, one a Read and Write, until nothing has come for some seconds or ctx
// ends. It closes conn.
func (s *Server) ServeDatagrams(ctx context.Context, conn net.Conn) { conn.Close() }

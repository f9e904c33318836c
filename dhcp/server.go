package dhcp

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Config describes a Server.
type Config struct {
	// Server is the server's own address, option 54. Guest is the address that is leased. Both are IPv4 in Subnet.
	Server, Guest netip.Addr
	// GuestMAC is the only client.
	GuestMAC net.HardwareAddr
	// Subnet gives the mask and the broadcast address.
	Subnet netip.Prefix
	// Routers and DNS are options 3 and 6. Empty: Server.
	Routers, DNS []netip.Addr
	// MTU is option 26 when it is not 1500. 0: 1500.
	MTU int
	// Search are the domains to complete names with, options 119 and 15.
	Search []string
	// Lease is how long an address may be used, option 51, in whole seconds. 0: 24 h.
	Lease time.Duration
	// Logger gets what is remarkable about requests, at a bounded rate. nil discards.
	Logger *slog.Logger
}

// Server answers the requests of one client.
type Server struct {
	config Config
}

// New makes a Server. It does no I/O.
func New(config Config) (*Server, error) {
	if !config.Server.Is4() || !config.Guest.Is4() {
		return nil, errors.New("dhcp: Server and Guest have to be IPv4 addresses")
	}
	return &Server{config: config}, nil
}

// Reply answers one request; to is where the reply has to be sent (RFC 2131 section 4.1). When ok is false, there is
// nothing to send.
func (s *Server) Reply(request []byte) (reply []byte, to netip.AddrPort, ok bool) {
	return nil, netip.AddrPort{}, false
}

// Serve answers requests that conn receives until ctx ends, which it reports as nil, or conn fails. It closes conn.
func (s *Server) Serve(ctx context.Context, conn net.PacketConn) error { return conn.Close() }

// Stats counts requests.
type Stats struct {
	Offered, Acknowledged, Refused, Informed uint64 // replies, by kind
	Released, Declined                       uint64 // messages that have no reply
	Foreign                                  uint64 // from or for others: ignored
	Malformed                                uint64 // not DHCP, or not understood: ignored
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats { return Stats{} }

package dhcp

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// largestRequest is what is looked at. A client may send more only after the server has said that it takes more (option 57),
// which this one never does.
const largestRequest = 1500

// Server answers the requests of one client.
type Server struct {
	config Config
	counts counts
	log    rate.Sometimes // a guest must not be able to fill the host's log
}

type counts struct {
	offered, acknowledged, refused, informed, released, declined, foreign, malformed atomic.Uint64
}

// Stats counts requests.
type Stats struct {
	Offered, Acknowledged, Refused, Informed uint64 // replies, by kind
	Released, Declined                       uint64 // messages that have no reply
	Foreign                                  uint64 // from or for others: ignored
	Malformed                                uint64 // not DHCP, or not understood: ignored
}

// New makes a Server. It does no I/O.
func New(config Config) (*Server, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Server{config: config, log: rate.Sometimes{First: 1, Interval: time.Minute}}, nil
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	c := &s.counts
	return Stats{
		Offered: c.offered.Load(), Acknowledged: c.acknowledged.Load(), Refused: c.refused.Load(), Informed: c.informed.Load(),
		Released: c.released.Load(), Declined: c.declined.Load(), Foreign: c.foreign.Load(), Malformed: c.malformed.Load(),
	}
}

// Reply answers one request; to is where the reply has to be sent (RFC 2131 section 4.1). When ok is false, there is
// nothing to send.
func (s *Server) Reply(request []byte) (reply []byte, to netip.AddrPort, ok bool) {
	r := s.parse(request)
	if r == nil {
		return nil, netip.AddrPort{}, false
	}
	var kind messageType
	switch r.kind {
	case typeDiscover:
		s.counts.offered.Add(1)
		kind = typeOffer
	case typeRequest:
		kind = s.answerRequest(r)
	case typeInform:
		kind = s.answerInform(r)
	case typeDecline:
		s.decline(r)
	case typeRelease:
		s.counts.released.Add(1)
	default:
		s.counts.malformed.Add(1)
	}
	if kind == 0 {
		return nil, netip.AddrPort{}, false
	}
	return s.build(r, kind), destination(r, kind), true
}

// answerRequest tells the states of a client apart by RFC 2131 section 4.3.2.
func (s *Server) answerRequest(r *request) messageType {
	wanted := r.requested // selecting, init-reboot
	if r.server.IsValid() && r.server != s.config.Server {
		s.counts.foreign.Add(1) // it has chosen another server's offer
		return 0
	}
	if !wanted.IsValid() {
		wanted = r.client // renewing, rebinding
	}
	if !wanted.IsValid() {
		s.counts.malformed.Add(1)
		return 0
	}
	if wanted != s.config.Guest || (r.client.IsValid() && r.client != s.config.Guest) {
		s.counts.refused.Add(1)
		return typeNak
	}
	s.counts.acknowledged.Add(1)
	return typeAck
}

// answerInform tells a client that has an address all but that (RFC 2131 section 4.3.5). The address is where the reply
// goes, so it has to be the guest's: no other address exists on this network.
func (s *Server) answerInform(r *request) messageType {
	if r.client != s.config.Guest {
		s.counts.foreign.Add(1)
		return 0
	}
	s.counts.informed.Add(1)
	return typeAck
}

func (s *Server) decline(r *request) {
	s.counts.declined.Add(1)
	s.log.Do(func() {
		s.config.Logger.Warn("the guest says that another host has its address", "address", s.config.Guest, "declined", r.requested)
	})
}

// destination follows RFC 2131 section 4.1. A client without an address that has not set the broadcast bit ought to get a
// frame of its own; the section lets a server broadcast instead, and one that sits behind a UDP socket has to. An ACK is only
// given to a client that has the guest's address or none, so nothing goes to an address that a request has made up.
func destination(r *request, kind messageType) netip.AddrPort {
	if kind == typeAck && r.client.IsValid() {
		return netip.AddrPortFrom(r.client, clientPort)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{255, 255, 255, 255}), clientPort)
}

// Serve answers requests that conn receives until ctx ends, which it reports as nil, or conn fails. It closes conn.
func (s *Server) Serve(ctx context.Context, conn net.PacketConn) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer conn.Close()
	defer stop()
	buffer := make([]byte, largestRequest+1)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if reply, to, ok := s.Reply(buffer[:n]); ok {
			s.send(conn, reply, to)
		}
	}
}

// send reports a failure only: the client will ask again, and one reply that cannot be delivered is no reason to end.
func (s *Server) send(conn net.PacketConn, reply []byte, to netip.AddrPort) {
	if _, err := conn.WriteTo(reply, net.UDPAddrFromAddrPort(to)); err != nil {
		s.log.Do(func() { s.config.Logger.Warn("a DHCP reply was not sent", "to", to, "error", err) })
	}
}

package capnprpc

import (
	"net"
	"net/netip"
	"strconv"

	"agentvm/internal/guest/capnprpc/streamwire"
)

// TCPAddr returns the address of a connection before it is known exactly: localhost may be 127.0.0.1 or ::1.
func TCPAddr(host string, port uint16) net.Addr {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return localhostAddr(port)
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, port))
}

type localhostAddr uint16

func (localhostAddr) Network() string { return "tcp" }

func (a localhostAddr) String() string { return net.JoinHostPort("localhost", strconv.Itoa(int(a))) }

// Learn sets the connection's local address as the guest reports it, and with it to which of localhost's addresses it leads.
func (s *StreamConn) Learn(local streamwire.Endpoint, err error) {
	at, err := ReadEndpoint(local, err)
	if err != nil || !at.IsValid() || !at.Addr().IsLoopback() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.local = net.TCPAddrFromAddrPort(at)
	if a, ok := s.remote.(localhostAddr); ok {
		host := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if at.Addr().Is6() {
			host = netip.IPv6Loopback()
		}
		s.remote = net.TCPAddrFromAddrPort(netip.AddrPortFrom(host, uint16(a)))
	}
}

// connectParams and connectResults are the fields that all methods have which connect.
type (
	connectParams interface {
		Host() (string, error)
		Port() uint16
		ToClient() streamwire.Sink
	}
	connectResults interface {
		Results
		SetToGuest(streamwire.Sink) error
	}
)

// ConnectLocal connects by open, and answers with the stream and, unless newLocal is nil, its local address. letNext lets the
// connection's next call begin.
func (c *Conn) ConnectLocal(args connectParams, letNext func(), r connectResults, newLocal func() (streamwire.Endpoint, error),
	open func(host string, port uint16) (Stream, error),
) error {
	host, err := args.Host()
	if err != nil {
		return err
	}
	port, toClient := args.Port(), args.ToClient().AddRef()
	letNext()
	s, err := open(host, port)
	if err == nil && newLocal != nil {
		if err = WriteEndpoint(newLocal, localEnd(s)); err != nil {
			reset(s)
		}
	}
	if err != nil {
		toClient.Release()
		return Reply(r, err)
	}
	sink, err := c.ServeStream(s, toClient)
	if err != nil {
		return err
	}
	return r.SetToGuest(sink)
}

// localEnd returns the local address of a stream that has one.
func localEnd(s Stream) netip.AddrPort {
	if c, ok := s.(net.Conn); ok {
		return AddrPort(c.LocalAddr())
	}
	return netip.AddrPort{}
}

// AddrPort returns the zero value for an address that is not TCP's.
func AddrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

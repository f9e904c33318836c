package rpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"

	"agentvm/rpc/wire"
)

// Loopback is the guest's own loopback interface, for the host. It belongs to the FilesClient that it comes from, and ends
// with it. Errors of the guest's are *Error with its errno, such as syscall.ECONNREFUSED, in a *net.OpError.
type Loopback struct {
	conn   *conn
	remote wire.Loopback
}

// Loopback gives access to the guest's loopback interface over the same connection.
func (f *FilesClient) Loopback() *Loopback {
	return &Loopback{conn: f.conn, remote: wire.Loopback(f.remote)}
}

// Dial connects to a server in the guest. host is an address of 127.0.0.0/8, "::1", or "localhost" or empty for 127.0.0.1 and
// then ::1. ended, when not nil, is called once when the connection is closed and nothing of it is left, unless Dial fails.
// The connection ends with the FilesClient at the latest.
func (l *Loopback) Dial(ctx context.Context, host string, port uint16, ended func()) (*Conn, error) {
	return l.conn.dial(tcpAddr(host, port), ended, func(s *Conn, toClient wire.Sink) (wire.Sink, func(), error) {
		future, release := l.remote.Connect(ctx, func(w wire.Loopback_connect_Params) error {
			w.SetPort(port)
			return errors.Join(w.SetHost(host), w.SetToClient(toClient.AddRef()))
		})
		r, err := future.Struct()
		if err != nil {
			return wire.Sink{}, release, l.conn.fault("connect to "+s.remote.String()+" in the VM", err)
		}
		s.learn(r.Local())
		return r.ToGuest(), release, failureOf(r.Failure())
	})
}

// OpenLocalTCP is Loopback.Dial over the control connection, for a few bytes: what it carries delays control.
func (c *Client) OpenLocalTCP(ctx context.Context, host string, port uint16) (*Conn, error) {
	return c.conn.dial(tcpAddr(host, port), nil, func(s *Conn, toClient wire.Sink) (wire.Sink, func(), error) {
		future, release := c.supervisor.OpenLocalTcp(ctx, func(w wire.Supervisor_openLocalTcp_Params) error {
			w.SetPort(port)
			return errors.Join(w.SetHost(host), w.SetToClient(toClient.AddRef()))
		})
		r, err := future.Struct()
		if err != nil {
			return wire.Sink{}, release, c.fault("connect to "+s.remote.String()+" in the VM", err)
		}
		return r.ToGuest(), release, failureOf(r.Failure())
	})
}

// tcpAddr is the address of a connection before it is known exactly: localhost is one of two.
func tcpAddr(host string, port uint16) net.Addr {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return localhostAddr(port)
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, port))
}

type localhostAddr uint16

func (localhostAddr) Network() string  { return "tcp" }
func (a localhostAddr) String() string { return net.JoinHostPort("localhost", strconv.Itoa(int(a))) }

// learn takes the guest's word for the own end of a connection, and thereby for which of localhost's addresses it goes to.
func (s *Conn) learn(local wire.Endpoint, err error) {
	at, err := readEndpoint(local, err)
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

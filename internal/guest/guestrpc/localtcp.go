package guestrpc

import (
	"context"
	"errors"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// Loopback is the guest's own loopback interface, for the host. It ends with the FilesClient that it comes from. Errors in the
// guest are *Error with its errno, such as syscall.ECONNREFUSED, in a *net.OpError.
type Loopback struct {
	conn   *capnprpc.Conn
	remote guestwire.Loopback
}

// Loopback gives access to the guest's loopback interface over the same connection.
func (f *FilesClient) Loopback() *Loopback {
	return &Loopback{conn: f.conn, remote: guestwire.Loopback(f.remote)}
}

// Dial connects to a server in the guest. host is an address of 127.0.0.0/8, "::1", or "localhost" or empty for 127.0.0.1 and
// then ::1. ended, when not nil, is called once when the connection is closed and both directions are over, unless Dial fails.
// The connection ends with the FilesClient at the latest.
func (l *Loopback) Dial(ctx context.Context, host string, port uint16, ended func()) (*capnprpc.StreamConn, error) {
	return l.conn.Dial(capnprpc.TCPAddr(host, port), ended, func(s *capnprpc.StreamConn, toClient streamwire.Sink) (streamwire.Sink, func(), error) {
		future, release := l.remote.Connect(ctx, func(w guestwire.Loopback_connect_Params) error {
			w.SetPort(port)
			return errors.Join(w.SetHost(host), w.SetToClient(toClient.AddRef()))
		})
		r, err := future.Struct()
		if err != nil {
			return streamwire.Sink{}, release, l.conn.Fault("connect to "+s.RemoteAddr().String()+" in the VM", err)
		}
		s.Learn(r.Local())
		return r.ToGuest(), release, capnprpc.FailureOf(r.Failure())
	})
}

// OpenLocalTCP is Loopback.Dial over the control connection, for a few bytes: they delay control.
func (c *Client) OpenLocalTCP(ctx context.Context, host string, port uint16) (*capnprpc.StreamConn, error) {
	return c.conn.Dial(capnprpc.TCPAddr(host, port), nil, func(s *capnprpc.StreamConn, toClient streamwire.Sink) (streamwire.Sink, func(), error) {
		future, release := c.supervisor.OpenLocalTcp(ctx, func(w guestwire.Supervisor_openLocalTcp_Params) error {
			w.SetPort(port)
			return errors.Join(w.SetHost(host), w.SetToClient(toClient.AddRef()))
		})
		r, err := future.Struct()
		if err != nil {
			return streamwire.Sink{}, release, c.fault("connect to "+s.RemoteAddr().String()+" in the VM", err)
		}
		return r.ToGuest(), release, capnprpc.FailureOf(r.Failure())
	})
}

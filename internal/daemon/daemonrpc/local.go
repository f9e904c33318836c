package daemonrpc

import (
	"context"
	"errors"

	"agentvm/internal/daemon/daemonrpc/daemonwire"
	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
)

// LocalPurpose says which rules apply to a connection into the VM.
type LocalPurpose uint16

// Purposes; the schema has the same numbers.
const (
	ForDial  LocalPurpose = iota // those for a program in the VM
	ForFetch                     // those for a request to a server in the VM
)

// DialLocal connects to a server in the VM. host is an address of 127.0.0.0/8, "::1", or "localhost" or empty for 127.0.0.1 and
// then ::1. Errors are *net.OpError around an *Error with the errno. The connection ends with the client at the latest. Use
// a client for bulk data: they delay other calls of the same client.
func (c *Client) DialLocal(ctx context.Context, host string, port uint16, purpose LocalPurpose) (*capnprpc.StreamConn, error) {
	return c.conn.Dial(capnprpc.TCPAddr(host, port), nil, func(s *capnprpc.StreamConn, toClient streamwire.Sink) (streamwire.Sink, func(), error) {
		future, release := c.daemon.OpenLocalTcp(ctx, func(w daemonwire.Daemon_openLocalTcp_Params) error {
			w.SetPort(port)
			w.SetPurpose(daemonwire.LocalPurpose(purpose))
			return errors.Join(w.SetHost(host), w.SetToClient(toClient.AddRef()))
		})
		r, err := capnprpc.Await(c.fault, "connect to "+s.RemoteAddr().String()+" in the VM", future.Struct)
		if err != nil {
			return streamwire.Sink{}, release, err
		}
		s.Learn(r.Local())
		return r.ToGuest(), release, nil
	})
}

func (d *daemon) OpenLocalTcp(ctx context.Context, call daemonwire.Daemon_openLocalTcp) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	purpose := LocalPurpose(call.Args().Purpose())
	return d.c.ConnectLocal(call.Args(), call.Go, r, r.NewLocal, func(host string, port uint16) (capnprpc.Stream, error) {
		s, err := d.h.DialLocal(ctx, host, port, purpose)
		return s, capnprpc.LinuxFailure(err)
	})
}

package rpc

import (
	"context"
	"errors"

	"agentvm/rpc/wire"
)

// LocalPurpose says which rules a connection into the VM is under.
type LocalPurpose uint16

// Purposes; the schema has the same numbers.
const (
	ForDial  LocalPurpose = iota // those of a program of the VM
	ForFetch                     // those of a request to a server of the VM
)

// DialLocal connects to a server in the VM. host is an address of 127.0.0.0/8, "::1", or "localhost" or empty for 127.0.0.1 and
// then ::1. Errors are *net.OpError around an *Error with the errno. The connection ends with the client at the latest. Use
// a client for bulk: what the connection carries delays others on the same one.
func (c *DaemonClient) DialLocal(ctx context.Context, host string, port uint16, purpose LocalPurpose) (*Conn, error) {
	return c.conn.dial(tcpAddr(host, port), nil, func(s *Conn, toClient wire.Sink) (wire.Sink, func(), error) {
		future, release := c.daemon.OpenLocalTcp(ctx, func(w wire.Daemon_openLocalTcp_Params) error {
			w.SetPort(port)
			w.SetPurpose(wire.LocalPurpose(purpose))
			return errors.Join(w.SetHost(host), w.SetToClient(toClient.AddRef()))
		})
		r, err := daemonResult(c, "connect to "+s.remote.String()+" in the VM", future)
		if err != nil {
			return wire.Sink{}, release, err
		}
		s.learn(r.Local())
		return r.ToGuest(), release, nil
	})
}

// Sockets lists the guest's sockets, as Client.Sockets does.
func (c *DaemonClient) Sockets(ctx context.Context) ([]Socket, error) {
	future, release := c.daemon.Sockets(ctx, nil)
	defer release()
	r, err := daemonResult(c, "list sockets", future)
	if err != nil {
		return nil, err
	}
	return readSockets(r.Sockets())
}

func (d *daemon) OpenLocalTcp(ctx context.Context, call wire.Daemon_openLocalTcp) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	purpose := LocalPurpose(call.Args().Purpose())
	return d.c.connectLocal(call.Args(), call.Go, r, r.NewLocal, func(host string, port uint16) (Stream, error) {
		s, err := d.h.DialLocal(ctx, host, port, purpose)
		return s, linuxFailure(err)
	})
}

func (d *daemon) Sockets(ctx context.Context, call wire.Daemon_sockets) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	call.Go()
	list, err := d.h.Sockets(ctx)
	if err != nil {
		return reply(r, linuxFailure(err))
	}
	return writeSockets(r.NewSockets, list)
}

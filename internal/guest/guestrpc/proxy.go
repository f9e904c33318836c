package guestrpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/host/errno"
)

// UnixSocket is a path in the guest where connections are passed to the host.
type UnixSocket struct {
	Path string // absolute; an existing socket is replaced
	ID   string // names it in StartParams.Connect
	Mode uint32 // permissions; 0: 0666
}

// Connector makes a connection for the guest to the server that id names. It is called from several goroutines; ctx ends with the
// connection to the guest. A guest has at most 256 connections through it, including those that are being made.
type Connector func(ctx context.Context, id string) (capnprpc.Stream, error)

// networkProxy serves a Connector to the guest.
type networkProxy struct {
	c       *capnprpc.Conn
	connect Connector
	open    atomic.Int32
}

// maxProxied bounds the connections that a guest may have open through the host's proxy.
const maxProxied = 256

// proxied is a Stream that is counted until it is closed.
type proxied struct {
	capnprpc.Stream
	close func() error
}

func (p *proxied) Close() error { return p.close() }

// SetLinger makes Close reset the connection where that is possible.
func (p *proxied) SetLinger(seconds int) error {
	if s, ok := p.Stream.(interface{ SetLinger(int) error }); ok {
		return s.SetLinger(seconds)
	}
	return nil
}

// dial counts the connection before it is made.
func (p *networkProxy) dial(id string) (capnprpc.Stream, error) {
	if p.open.Add(1) > maxProxied {
		p.open.Add(-1)
		return nil, &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.EAGAIN, Message: fmt.Sprintf("too many connections are open (limit %d)", maxProxied)}
	}
	s, err := p.connect(p.c.Context(), id)
	if err != nil {
		p.open.Add(-1)
		return nil, err
	}
	return &proxied{s, sync.OnceValue(func() error { p.open.Add(-1); return s.Close() })}, nil
}

func (p *networkProxy) Connect(ctx context.Context, call guestwire.NetworkProxy_connect) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	target, err := call.Args().Target()
	if err != nil {
		return err
	}
	if target.Which() != guestwire.ProxyTarget_Which_socket {
		return deny(r, &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EOPNOTSUPP, Message: "only sockets by name can be reached"})
	}
	id, err := target.Socket()
	if err != nil {
		return err
	}
	toClient := call.Args().ToClient().AddRef()
	call.Go()
	s, err := p.dial(id)
	if err == nil && ctx.Err() != nil {
		err = errors.Join(ctx.Err(), s.Close())
	}
	if err != nil {
		toClient.Release()
		return deny(r, fmt.Errorf("connect to %q: %w", id, err))
	}
	sink, err := p.c.ServeStream(s, toClient)
	if err != nil {
		return err
	}
	return r.SetToServer(sink)
}

func deny(r guestwire.NetworkProxy_connect_Results, err error) error {
	f, err2 := r.NewDenied()
	if err2 != nil {
		return err2
	}
	return capnprpc.SetFailure(f, err)
}

// connector reaches the host through its proxy; nil without one.
func connector(c *capnprpc.Conn, proxy guestwire.NetworkProxy) Connector {
	if !proxy.IsValid() {
		return nil
	}
	return func(ctx context.Context, id string) (capnprpc.Stream, error) {
		return c.Dial(capnprpc.Addr("socket "+id+" of the host"), nil, func(_ *capnprpc.StreamConn, toClient streamwire.Sink) (streamwire.Sink, func(), error) {
			future, release := proxy.Connect(ctx, func(w guestwire.NetworkProxy_connect_Params) error {
				target, err := w.NewTarget()
				if err != nil {
					return err
				}
				return errors.Join(target.SetSocket(id), w.SetToClient(toClient.AddRef()))
			})
			r, err := future.Struct()
			if err != nil {
				return streamwire.Sink{}, release, c.Fault("connect", err)
			}
			return r.ToServer(), release, capnprpc.FailureOf(r.Denied())
		})
	}
}

func (s UnixSocket) write(w guestwire.UnixSocket) error {
	w.SetMode(s.Mode)
	return errors.Join(w.SetPath(s.Path), w.SetId(s.ID))
}

func readUnixSocket(w guestwire.UnixSocket) (UnixSocket, error) {
	var read capnprpc.FieldReader
	return UnixSocket{Mode: w.Mode(), Path: read.Text(w.Path()), ID: read.Text(w.Id())}, read.Err
}

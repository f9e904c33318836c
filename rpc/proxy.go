package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"agentvm/rpc/wire"
)

// UnixSocket is a path in the guest where connections are passed to the host.
type UnixSocket struct {
	Path string // absolute; a socket that is there is replaced
	ID   string // names it in StartParams.Connect
	Mode uint32 // permissions; 0: 0666
}

// Connector makes a connection for the guest to what id names. It is called from several goroutines; ctx ends with the
// connection to the guest. A guest has at most 256 connections through it, also those that are being made.
type Connector func(ctx context.Context, id string) (Stream, error)

// networkProxy serves what a Connector reaches.
type networkProxy struct {
	c       *conn
	connect Connector
	open    atomic.Int32
}

// maxProxied bounds the connections that a guest may have open through the host's proxy.
const maxProxied = 256

// proxied is a Stream that is counted until it is closed.
type proxied struct {
	Stream
	close func() error
}

func (p *proxied) Close() error { return p.close() }

// SetLinger has Close reset the connection where that is possible.
func (p *proxied) SetLinger(seconds int) error {
	if s, ok := p.Stream.(interface{ SetLinger(int) error }); ok {
		return s.SetLinger(seconds)
	}
	return nil
}

// dial counts the connection from before it is made.
func (p *networkProxy) dial(id string) (Stream, error) {
	if p.open.Add(1) > maxProxied {
		p.open.Add(-1)
		return nil, &Error{Kind: KindLimit, Errno: 11, Message: fmt.Sprintf("too many connections are open (limit %d)", maxProxied)} // EAGAIN
	}
	s, err := p.connect(p.c.ctx, id)
	if err != nil {
		p.open.Add(-1)
		return nil, err
	}
	return &proxied{s, sync.OnceValue(func() error { p.open.Add(-1); return s.Close() })}, nil
}

func (p *networkProxy) Connect(ctx context.Context, call wire.NetworkProxy_connect) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	target, err := call.Args().Target()
	if err != nil {
		return err
	}
	if target.Which() != wire.ProxyTarget_Which_socket {
		return deny(r, &Error{Kind: KindInvalid, Errno: 95, Message: "only sockets by name can be reached"})
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
	sink, err := p.c.serveStream(s, toClient)
	if err != nil {
		return err
	}
	return r.SetToServer(sink)
}

func deny(r wire.NetworkProxy_connect_Results, err error) error {
	f, err2 := r.NewDenied()
	if err2 != nil {
		return err2
	}
	return setFailure(f, err)
}

// connector reaches the host through its proxy; nil without one.
func (c *conn) connector(proxy wire.NetworkProxy) Connector {
	if !proxy.IsValid() {
		return nil
	}
	return func(ctx context.Context, id string) (Stream, error) {
		return c.dial(streamAddr("socket "+id+" of the host"), nil, func(_ *Conn, toClient wire.Sink) (wire.Sink, func(), error) {
			future, release := proxy.Connect(ctx, func(w wire.NetworkProxy_connect_Params) error {
				target, err := w.NewTarget()
				if err != nil {
					return err
				}
				return errors.Join(target.SetSocket(id), w.SetToClient(toClient.AddRef()))
			})
			r, err := future.Struct()
			if err != nil {
				return wire.Sink{}, release, c.fault("connect", err)
			}
			return r.ToServer(), release, failureOf(r.Denied())
		})
	}
}

func writeUnixSockets(create func(int32) (wire.UnixSocket_List, error), sockets []UnixSocket) error {
	list, err := create(int32(len(sockets)))
	if err != nil {
		return err
	}
	for i, s := range sockets {
		list.At(i).SetMode(s.Mode)
		if err := errors.Join(list.At(i).SetPath(s.Path), list.At(i).SetId(s.ID)); err != nil {
			return err
		}
	}
	return nil
}

func readUnixSockets(list wire.UnixSocket_List, err error) ([]UnixSocket, error) {
	if err != nil {
		return nil, err
	}
	var sockets []UnixSocket
	for i := range list.Len() {
		s := UnixSocket{Mode: list.At(i).Mode()}
		if s.Path, err = list.At(i).Path(); err != nil {
			return nil, err
		}
		if s.ID, err = list.At(i).Id(); err != nil {
			return nil, err
		}
		sockets = append(sockets, s)
	}
	return sockets, nil
}

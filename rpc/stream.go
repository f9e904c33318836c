package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"agentvm/rpc/wire"
)

// Stream is a byte stream in two directions, each of which ends by itself, like a TCP connection. Close ends a Read and a
// Write under way. A Stream with a method SetLinger(int) error is reset by SetLinger(0) and Close.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite ends the direction of Write: the other end reads io.EOF.
	CloseWrite() error
}

// UnixSocket is a path in the guest where connections are passed to the host.
type UnixSocket struct {
	Path string // absolute; a socket that is there is replaced
	ID   string // names it in StartParams.Connect
	Mode uint32 // permissions; 0: 0666
}

// Connector makes a connection for the guest to what id names. It is called from several goroutines; ctx ends with the
// connection to the guest.
type Connector func(ctx context.Context, id string) (Stream, error)

// streamChunk bounds a send of streams that share a connection with control messages: eight of them delay those by the
// time of 256 KiB.
const streamChunk = 32 << 10

// relay joins a Stream to the peer, who asked for it:
//
//	peer ── Sink that relay serves ──► Stream.Write, CloseWrite at the end      either direction may end first;
//	     ◄── peer's Sink ──────────── Stream.Read, a task of the connection     the Stream is closed after both
//
// What breaks off on one side is reset on the other.
type relay struct {
	s    Stream
	stop func() bool // resetting at the end of the connection
	mu   sync.Mutex
	open int // directions
}

// serveStream takes over s and the reference to toPeer.
func (c *conn) serveStream(s Stream, toPeer wire.Sink) (wire.Sink, error) {
	r := &relay{s: s, open: 2}
	in := &inlet{take: r.write, finish: r.ended}
	out := newOutlet(c.ctx, toPeer, streamChunk)
	r.stop = context.AfterFunc(c.ctx, func() { reset(s) }) // nothing else ends a Write that blocks
	if !c.spawn(func() { r.pump(out) }) {
		out.release()
		r.reset()
		return wire.Sink{}, ErrClosed
	}
	return wire.Sink_ServerToClient(in), nil
}

func (r *relay) write(b []byte) error {
	_, err := r.s.Write(b)
	return err
}

// ended ends the direction from the peer.
func (r *relay) ended(why error) error {
	if why != nil {
		r.reset()
		return nil
	}
	err := r.s.CloseWrite()
	r.finished()
	return err
}

// pump is the direction to the peer.
func (r *relay) pump(out *outlet) {
	defer out.release()
	b := make([]byte, streamChunk)
	for {
		n, err := r.s.Read(b)
		if n > 0 {
			if _, err := out.Write(b[:n]); err != nil {
				r.reset()
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if out.end() != nil {
				r.reset()
			}
			r.finished()
			return
		case err != nil:
			out.abort(err)
			r.reset()
			return
		}
	}
}

func (r *relay) finished() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open--; r.open == 0 {
		r.stop()
		_ = r.s.Close()
	}
}

func (r *relay) reset() {
	r.stop()
	reset(r.s)
}

func reset(s Stream) {
	if s, ok := s.(interface{ SetLinger(seconds int) error }); ok {
		_ = s.SetLinger(0)
	}
	_ = s.Close()
}

// networkProxy serves what a Connector reaches.
type networkProxy struct {
	c       *conn
	connect Connector
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
	s, err := p.connect(p.c.ctx, id)
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

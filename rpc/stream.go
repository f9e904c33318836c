package rpc

import (
	"context"
	"errors"
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

const (
	// streamChunk bounds a send of streams, and streamSends how many of a stream are unanswered: 256 KiB of each may wait before what
	// else is said on the connection. With the frame of a message, a send is a whole number of the console driver's writes.
	streamChunk = 128<<10 - 2*blockSlack
	streamSends = 2
	// firstChunk is the buffer of a stream until that was full once: most streams never need more.
	firstChunk = 4 << 10
)

// pour is io.Copy by the writes of an outlet, with a buffer that grows with what is read at once.
func pour(o *outlet, from io.Reader) error {
	b := make([]byte, firstChunk)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if _, err := o.Write(b[:n]); err != nil {
				return &sendError{err}
			}
		}
		if err != nil {
			return err
		}
		if n == len(b) && n < streamChunk {
			if pipe := o.pipeOf(from); pipe != nil {
				return pourPiped(o, pipe)
			}
			b = make([]byte, min(8*n, streamChunk))
		}
	}
}

// sendError is of the outlet that pour writes to.
type sendError struct{ error }

// relay joins a Stream to the peer, who asked for it:
//
//	peer ── Sink that relay serves ──► Stream.Write, CloseWrite at the end      either direction may end first;
//	     ◄── peer's Sink ──────────── Stream.Read, a task of the connection     the Stream is closed after both
//
// What breaks off on one side is reset on the other. A peer that has ended its direction and then breaks it off has closed its end:
// so is the Stream, and whoever is behind it learns that nobody reads any more when he writes, as of any socket.
type relay struct {
	s    Stream
	ctx  context.Context    // of sending
	quit context.CancelFunc // of sending, once the Stream is closed
	stop func() bool        // resetting at the end of the connection
	mu   sync.Mutex
	open int // directions
}

// serveStream takes over s and the reference to toPeer.
func (c *conn) serveStream(s Stream, toPeer wire.Sink) (wire.Sink, error) {
	r, fromPeer := c.newRelay(s)
	if err := c.join(r, toPeer); err != nil {
		fromPeer.Release()
		return wire.Sink{}, err
	}
	return fromPeer, nil
}

// newRelay takes over s, and makes the Sink for what comes from the peer.
func (c *conn) newRelay(s Stream) (*relay, wire.Sink) {
	r := &relay{s: s, open: 2}
	r.ctx, r.quit = context.WithCancel(c.ctx)
	r.stop = context.AfterFunc(c.ctx, func() { reset(s) }) // nothing else ends a Write that blocks
	return r, wire.Sink_ServerToClient(&inlet{take: r.write, finish: r.ended, cancel: r.reset, leave: r.left})
}

// join takes over the reference to toPeer, and begins to send there.
func (c *conn) join(r *relay, toPeer wire.Sink) error {
	out := newOutlet(r.ctx, toPeer, streamChunk, streamSends)
	out.pipes = c.pipeOf
	if !c.spawn(func() { r.pump(out) }) {
		out.release()
		r.reset()
		return ErrClosed
	}
	return nil
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
	deepen(false)
	defer out.release()
	err := pour(out, r.s)
	switch failed := (*sendError)(nil); {
	case errors.As(err, &failed):
		r.reset()
	case errors.Is(err, io.EOF):
		if out.end() != nil {
			r.reset()
		}
		r.finished()
	default:
		out.abort(err)
		r.reset()
	}
}

func (r *relay) finished() {
	r.mu.Lock()
	r.open--
	last := r.open == 0
	r.mu.Unlock()
	if last {
		r.left()
	}
}

// left closes the Stream, whose peer has closed its end. Then sending ends: an answer to it may never come.
func (r *relay) left() {
	r.stop()
	_ = r.s.Close()
	r.quit()
}

func (r *relay) reset() {
	r.stop()
	reset(r.s)
	r.quit()
}

func reset(s Stream) {
	if s, ok := s.(interface{ SetLinger(seconds int) error }); ok {
		_ = s.SetLinger(0)
	}
	_ = s.Close()
}

package capnprpc

import (
	"context"
	"errors"
	"io"
	"sync"

	"agentvm/internal/guest/capnprpc/streamwire"
)

// Stream is a byte stream in two directions, each of which ends by itself, like a TCP connection. Close ends a Read and a
// Write under way. A Stream with a method SetLinger(int) error is reset by SetLinger(0) and Close.
type Stream interface {
	io.ReadWriteCloser
	// CloseWrite ends the direction of Write: the other end reads io.EOF.
	CloseWrite() error
}

const (
	// streamChunk bounds the bytes of a stream's send, and streamSends its unanswered sends: other messages on the connection may
	// have to wait for 256 KiB of each stream. With its message's frame, a send is a whole number of the console driver's writes.
	streamChunk = 128<<10 - 2*blockSlack
	streamSends = 2
	// firstChunk is the size of a stream's buffer until that is full for the first time: most streams never need more.
	firstChunk = 4 << 10
)

// splice is io.Copy to a SinkWriter, with a buffer that grows when a read fills it.
func splice(o *SinkWriter, from io.Reader) error {
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
				return splicePiped(o, pipe)
			}
			b = make([]byte, min(8*n, streamChunk))
		}
	}
}

// sendError marks an error of the SinkWriter to which splice writes; other errors are the reader's.
type sendError struct{ error }

// relay joins a Stream to the peer, which asked for it:
//
//	peer ── Sink that relay serves ──► Stream.Write, CloseWrite at the end      either direction may end first;
//	     ◄── peer's Sink ──────────── Stream.Read, a task of the connection     the Stream is closed after both
//
// A direction that breaks off on one side is reset on the other. A peer that has ended its direction and then breaks it off has
// closed its end. Then the Stream is closed, too, and a program that writes at its other end gets EPIPE, as with any socket.
type relay struct {
	s    Stream
	ctx  context.Context    // of sending
	quit context.CancelFunc // ends sending, once the Stream is closed
	stop func() bool        // prevents the reset at the end of the connection
	mu   sync.Mutex
	open int // directions that have not ended
}

// ServeStream takes over s and the reference to toPeer.
func (c *Conn) ServeStream(s Stream, toPeer streamwire.Sink) (streamwire.Sink, error) {
	r, fromPeer := c.newRelay(s)
	if err := c.join(r, toPeer); err != nil {
		fromPeer.Release()
		return streamwire.Sink{}, err
	}
	return fromPeer, nil
}

// OfferStream offers s to the peer and takes it over. give sends the peer a Sink for the direction from the peer, and returns the
// peer's Sink, which is valid until release is called. A stream that the peer does not take is reset.
func (c *Conn) OfferStream(s Stream, give func(fromPeer streamwire.Sink) (toPeer streamwire.Sink, release func(), err error)) {
	r, fromPeer := c.newRelay(s)
	defer fromPeer.Release()
	toPeer, release, err := give(fromPeer)
	defer release()
	if err != nil || !toPeer.IsValid() {
		r.reset()
		return
	}
	_ = c.join(r, toPeer.AddRef())
}

// newRelay takes over s and makes the Sink for the direction from the peer.
func (c *Conn) newRelay(s Stream) (*relay, streamwire.Sink) {
	r := &relay{s: s, open: 2}
	r.ctx, r.quit = context.WithCancel(c.ctx)
	r.stop = context.AfterFunc(c.ctx, func() { reset(s) }) // it also ends a Write that blocks
	return r, streamwire.Sink_ServerToClient(&SinkReader{Take: r.write, Finish: r.ended, Cancel: r.reset, Leave: r.left})
}

// join takes over the reference to toPeer and begins to send there.
func (c *Conn) join(r *relay, toPeer streamwire.Sink) error {
	out := NewSinkWriter(r.ctx, toPeer, streamChunk, streamSends)
	out.pipes = c.pipeOf
	if !c.Spawn(func() { r.pump(out) }) {
		out.Release()
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
func (r *relay) pump(out *SinkWriter) {
	Deepen(false)
	defer out.Release()
	err := splice(out, r.s)
	switch failed := (*sendError)(nil); {
	case errors.As(err, &failed):
		r.reset()
	case errors.Is(err, io.EOF):
		if out.End() != nil {
			r.reset()
		}
		r.finished()
	default:
		out.Abort(err)
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

// left closes the Stream after the peer has closed its end. Then it cancels sending, whose answer may never come.
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

package capnprpc

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"capnproto.org/go/capnp/v3"
)

// Piped is a Stream whose bytes can reach a PipePort without passing through this process's memory.
type Piped interface {
	Stream
	// Pipe makes a pipe of the operating system for the bytes that Read would return; nil when it cannot.
	Pipe() Pipe
}

// Pipe is a pipe of the operating system behind a Stream. One goroutine at a time uses it.
type Pipe interface {
	// Fill moves bytes of the Stream into the empty pipe: at most limit and at least one, for which it waits. Its errors are those
	// of the Stream's Read.
	Fill(limit int) (int, error)
	Close() error
}

// PipePort is a port of guestrpc.Serve that takes bytes from a pipe.
type PipePort interface {
	// TakesPipes reports whether WritePipe works here.
	TakesPipes() bool
	// WritePipe moves n bytes from the pipe to the port, unless there is an error.
	WritePipe(from Pipe, n int) (int, error)
}

// piped is the arena of a message whose last size bytes, its data, are in a pipe.
//
//	frame: head │ structs, the last word points to the data ║ data │ up to 7 bytes of zeros
//	               what is in memory                         ║ from the pipe
type piped struct {
	*capnp.SingleSegmentArena
	pipe Pipe
	size int
	sent chan struct{} // capacity 1: the pipe is empty, or its content is no longer wanted
	once sync.Once
}

// placeholder is the data of such a message while it is built: one word.
var placeholder [8]byte

// Release is called when the message has been sent, or never will be.
func (p *piped) Release() {
	p.once.Do(func() {
		p.SingleSegmentArena.Release()
		p.sent <- struct{}{}
	})
}

// newPiped returns the arena of a message that ends with the pipe's content.
func newPiped(pipe Pipe, size int, sent chan struct{}) *piped {
	return &piped{SingleSegmentArena: capnp.SingleSegment(nil).(*capnp.SingleSegmentArena), pipe: pipe, size: size, sent: sent}
}

// errUnpiped reports a message that is not built as sendPiped needs it. The tests show that it does not happen.
var errUnpiped = errors.New("a message does not end with the data that it is to carry")

// listOfBytes encodes a pointer to a list of n bytes that begins right behind it (Cap'n Proto, "Encoding", lists).
func listOfBytes(n int) uint64 { return 1 | 2<<32 | uint64(n)<<35 }

// sendPiped sends a message whose data are in a pipe; body ends with the placeholder.
func (t *transport) sendPiped(p *piped, body []byte) error {
	at := len(body) - 2*len(placeholder)
	if at < 0 || binary.LittleEndian.Uint64(body[at:]) != listOfBytes(len(placeholder)) {
		return errUnpiped
	}
	binary.LittleEndian.PutUint64(body[at:], listOfBytes(p.size))
	body = body[:at+len(placeholder)]
	padding := -p.size & 7
	t.joined = append(t.joined[:0], make([]byte, frameHead)...)
	putHead(t.joined, len(body)+p.size+padding)
	t.joined = append(t.joined, body...)
	if _, err := t.w.Write(t.joined); err != nil {
		return err
	}
	if _, err := t.w.(PipePort).WritePipe(p.pipe, p.size); err != nil || padding == 0 {
		return err
	}
	_, err := t.w.Write(placeholder[:padding])
	return err
}

// pipeOf returns a pipe for the bytes of s; nil unless s has pipes and the connection takes them.
func (c *Conn) pipeOf(s io.Reader) Pipe {
	port, ok := c.t.w.(PipePort)
	if !ok || !port.TakesPipes() {
		return nil
	}
	if s, ok := s.(Piped); ok {
		return s.Pipe()
	}
	return nil
}

// pipeOf is Conn.pipeOf where the SinkWriter may use pipes.
func (o *SinkWriter) pipeOf(s io.Reader) Pipe {
	if o.pipes == nil {
		return nil
	}
	return o.pipes(s)
}

// splicePiped is splice from a pipe. It takes over pipe.
func splicePiped(o *SinkWriter, pipe Pipe) error {
	sent := make(chan struct{}, 1)
	defer func() { _ = pipe.Close() }()
	for {
		n, err := pipe.Fill(streamChunk)
		if n > 0 {
			if err := o.writePiped(newPiped(pipe, n, sent)); err != nil {
				return &sendError{err}
			}
			<-sent
		}
		if err != nil {
			return err
		}
	}
}

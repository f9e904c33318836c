package rpc

import (
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"capnproto.org/go/capnp/v3"
)

// Piped is a Stream whose bytes need not come into this program's memory on their way to a PipePort.
type Piped interface {
	Stream
	// Pipe makes a pipe of the system's for what Read would return. Nil: none can be had.
	Pipe() Pipe
}

// Pipe is a pipe of the system's behind a Stream. It is used by one goroutine at a time.
type Pipe interface {
	// Fill moves bytes of the Stream into the pipe, which is empty: at least one, for which it waits, and at most limit. Errors are
	// those of the Stream's Read.
	Fill(limit int) (int, error)
	Close() error
}

// PipePort is a port of Serve's that takes bytes from a pipe.
type PipePort interface {
	// TakesPipes says whether WritePipe works here.
	TakesPipes() bool
	// WritePipe moves n bytes from the pipe to the port, unless there is an error.
	WritePipe(from Pipe, n int) (int, error)
}

// piped is the end of a message that is in a pipe: data of so many bytes, which end the message.
//
//	frame: head │ structs, the last word points to the data ║ data │ up to 7 bytes of zeros
//	               what is in memory                         ║ from the pipe
type piped struct {
	*capnp.SingleSegmentArena
	pipe Pipe
	size int
	sent chan struct{} // capacity 1: the pipe is empty, or its content is not wanted
	once sync.Once
}

// placeholder is the data of such a message as long as it is built: a word.
var placeholder [8]byte

// Release says that the message has been sent, or never will be.
func (p *piped) Release() {
	p.once.Do(func() {
		p.SingleSegmentArena.Release()
		p.sent <- struct{}{}
	})
}

// newPiped is a message that ends with what is in pipe.
func newPiped(pipe Pipe, size int, sent chan struct{}) *piped {
	return &piped{SingleSegmentArena: capnp.SingleSegment(nil).(*capnp.SingleSegmentArena), pipe: pipe, size: size, sent: sent}
}

// errUnpiped says that a message is not built as send needs it, which the tests exclude.
var errUnpiped = errors.New("a message does not end with the data that it is to carry")

// listOfBytes is a pointer to a list of n bytes that begins right behind it (Cap'n Proto, "Encoding", lists).
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

// pipeOf is a pipe for what s gives, when it can go from there to the peer.
func (c *conn) pipeOf(s io.Reader) Pipe {
	port, ok := c.t.w.(PipePort)
	if !ok || !port.TakesPipes() {
		return nil
	}
	if s, ok := s.(Piped); ok {
		return s.Pipe()
	}
	return nil
}

// pipeOf is conn.pipeOf where the outlet may use pipes.
func (o *outlet) pipeOf(s io.Reader) Pipe {
	if o.pipes == nil {
		return nil
	}
	return o.pipes(s)
}

// pourPiped is pour from a pipe. It takes over pipe.
func pourPiped(o *outlet, pipe Pipe) error {
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

package capnprpc

import (
	"context"
	"fmt"
	"io"
	"sync"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/host/errno"
)

// MaxSends is how many sends of a stream may be unanswered.
const MaxSends = 8

// SinkWriter sends one direction of a stream to the peer's Sink. One goroutine uses it.
type SinkWriter struct {
	ctx   context.Context // of all waiting
	sink  streamwire.Sink
	sends Window
	chunk int // maximum bytes of a send
	// pipes, when not nil, returns a pipe that carries a reader's bytes, or nil when there is none.
	pipes func(io.Reader) Pipe
}

// NewSinkWriter takes over the reference to sink. chunk is the maximum bytes of a send, and sends, at most MaxSends, the number of
// unanswered ones. Both are small where other messages wait for the same connection.
func NewSinkWriter(ctx context.Context, sink streamwire.Sink, chunk, sends int) *SinkWriter {
	return &SinkWriter{ctx: ctx, sink: sink, sends: Window{limit: sends}, chunk: chunk}
}

// Write copies b into messages. It waits while too many earlier ones are unanswered. An error may be that of an earlier send.
func (o *SinkWriter) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		part := b[n:min(len(b), n+o.chunk)]
		o.sends.data = len(part)
		if err := o.send(part); err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// writePiped sends the content of a pipe, at most a chunk. It returns when the message is queued, before it is sent.
func (o *SinkWriter) writePiped(p *piped) error {
	o.sends.from = p
	defer func() { o.sends.from = nil }()
	return o.send(placeholder[:])
}

func (o *SinkWriter) send(data []byte) error {
	return o.sends.Add(o.ctx, func(ctx context.Context) {
		_, _ = o.sink.Send(ctx, func(w streamwire.Sink_send_Params) error { return w.SetData(data) })
	}, func(s capnp.Struct) error { return FailureOf(streamwire.Sink_send_Results(s).Failure()) })
}

// End tells the peer that nothing follows and waits for its answer.
func (o *SinkWriter) End() error {
	err := o.sends.Drain(o.ctx)
	if err != nil {
		return err
	}
	future, release := o.sink.End(o.ctx, nil)
	defer release()
	r, err := future.Struct()
	if err != nil {
		return err
	}
	return FailureOf(r.Failure())
}

// Abort tells the peer that the stream breaks off, and does not wait.
func (o *SinkWriter) Abort(why error) {
	last := Window{limit: 1}
	_ = last.Add(o.ctx, func(ctx context.Context) {
		_, _ = o.sink.Abort(ctx, func(w streamwire.Sink_abort_Params) error {
			f, err := w.NewFailure()
			if err != nil {
				return err
			}
			return SetFailure(f, why)
		})
	}, func(capnp.Struct) error { return nil })
	_ = o.sends.Fail(why)
	_ = last.Fail(why)
}

func (o *SinkWriter) Release() { o.sink.Release() }

// errBrokenOff ends a stream whose sender vanishes.
var errBrokenOff = fmt.Errorf("the stream broke off: %w", io.ErrUnexpectedEOF)

// SinkReader serves a Sink: it passes what arrives to Take, in order, and then calls Finish once, from one goroutine at a time.
type SinkReader struct {
	Take func([]byte) error
	// Finish receives nil at the end of the stream, or the reason why it broke off. Its error is the answer to `end`.
	Finish func(error) error
	// Cancel, when not nil, ends a Take whose sender has given up.
	Cancel func()
	// Leave, when not nil, is called when the sender breaks off after the end, which means that it reads the other direction no more.
	Leave func()
	// Dropped, when not nil, is called when the peer has released the Sink, after Finish.
	Dropped func()
	mu      sync.Mutex
	closed  bool
}

// Send is answered when Take has returned.
func (in *SinkReader) Send(ctx context.Context, call streamwire.Sink_send) error {
	data, err := call.Args().Data()
	if err != nil {
		return err
	}
	if in.Cancel != nil {
		defer context.AfterFunc(ctx, in.Cancel)()
	}
	return Perform(call.AllocResults, func() error {
		if len(data) > MaxChunk {
			return &Error{Kind: KindLimit, Message: fmt.Sprintf("%d bytes in one send (limit %d)", len(data), MaxChunk)}
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.closed {
			return errClosedStream
		}
		return in.Take(data)
	})
}

// errClosedStream answers what arrives after the end.
var errClosedStream = &Error{Kind: KindState, Errno: errno.EPIPE, Message: "the stream is closed"}

// End is answered when Finish has returned.
func (in *SinkReader) End(_ context.Context, call streamwire.Sink_end) error {
	Deepen(false)
	return Perform(call.AllocResults, func() error { return in.close(nil) })
}

// Abort passes the peer's reason to Finish.
func (in *SinkReader) Abort(_ context.Context, call streamwire.Sink_abort) error {
	why := FailureOf(call.Args().Failure())
	if why == nil {
		why = errBrokenOff
	}
	if in.close(why) == errClosedStream && in.Leave != nil {
		in.Leave()
	}
	return nil
}

// Shutdown is called when the peer has dropped the capability.
func (in *SinkReader) Shutdown() {
	_ = in.close(errBrokenOff)
	if in.Dropped != nil {
		in.Dropped()
	}
}

// close waits for a Take under way. Afterwards nothing is taken any more.
func (in *SinkReader) close(why error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return errClosedStream
	}
	in.closed = true
	return in.Finish(why)
}

// Collector is a SinkReader that writes to w and remembers the first error.
type Collector struct {
	SinkReader
	err   error // of w
	ended bool
}

func NewCollector(w io.Writer) *Collector {
	c := &Collector{}
	c.Take = func(b []byte) error {
		if c.err == nil {
			_, c.err = w.Write(b)
		}
		return c.err
	}
	c.Finish = func(why error) error { c.ended = why == nil; return nil }
	return c
}

// Result closes the collector and returns nil when everything arrived. err is the error of the call that filled it.
func (c *Collector) Result(err error) error {
	_ = c.close(errBrokenOff)
	switch {
	case c.err != nil:
		return c.err
	case err == nil && !c.ended:
		return errBrokenOff
	}
	return err
}

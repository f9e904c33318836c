package rpc

import (
	"context"
	"fmt"
	"io"
	"sync"

	"capnproto.org/go/capnp/v3"

	"agentvm/rpc/wire"
)

// maxSends is how many sends of a stream may be unanswered.
const maxSends = 8

// outlet sends one direction of a stream to a Sink of the peer's. One goroutine uses it.
type outlet struct {
	ctx   context.Context // of all waiting
	sink  wire.Sink
	sends window
	chunk int // bytes of a send at most
	// pipes, when not nil, makes a pipe for what a reader gives, or none.
	pipes func(io.Reader) Pipe
}

// newOutlet takes over the reference to sink. chunk times sends, at most maxSends, is little where others wait for the same connection.
func newOutlet(ctx context.Context, sink wire.Sink, chunk, sends int) *outlet {
	return &outlet{ctx: ctx, sink: sink, sends: window{limit: sends}, chunk: chunk}
}

// Write copies b into messages. It waits while the peer has not answered enough of those before. An error may be an
// earlier send's.
func (o *outlet) Write(b []byte) (int, error) {
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

// writePiped is Write of what is in a pipe, at most a chunk. It returns when the message is on its way, not when it has left.
func (o *outlet) writePiped(p *piped) error {
	o.sends.from = p
	defer func() { o.sends.from = nil }()
	return o.send(placeholder[:])
}

func (o *outlet) send(data []byte) error {
	return o.sends.add(o.ctx, func(ctx context.Context) {
		_, _ = o.sink.Send(ctx, func(w wire.Sink_send_Params) error { return w.SetData(data) })
	}, func(s capnp.Struct) error { return failureOf(wire.Sink_send_Results(s).Failure()) })
}

// end says that nothing follows and waits until the peer is done.
func (o *outlet) end() error {
	err := o.sends.drain(o.ctx)
	if err != nil {
		return err
	}
	future, release := o.sink.End(o.ctx, nil)
	defer release()
	r, err := future.Struct()
	if err != nil {
		return err
	}
	return failureOf(r.Failure())
}

// abort says that the stream breaks off here, and does not wait.
func (o *outlet) abort(why error) {
	last := window{limit: 1}
	_ = last.add(o.ctx, func(ctx context.Context) {
		_, _ = o.sink.Abort(ctx, func(w wire.Sink_abort_Params) error {
			f, err := w.NewFailure()
			if err != nil {
				return err
			}
			return setFailure(f, why)
		})
	}, func(capnp.Struct) error { return nil })
	_ = o.sends.fail(why)
	_ = last.fail(why)
}

func (o *outlet) release() { o.sink.Release() }

// errBrokenOff is how a stream ends whose sender vanishes.
var errBrokenOff = fmt.Errorf("the stream broke off: %w", io.ErrUnexpectedEOF)

// inlet serves a Sink: it gives what arrives to take, in order, and then calls finish once, from one goroutine at a time.
type inlet struct {
	take func([]byte) error
	// finish gets nil at the end, else why there is none. Its error is the answer to `end`.
	finish func(error) error
	// cancel, when not nil, ends a take under way whose sender does not wait for it any more.
	cancel func()
	// leave, when not nil, is called when the sender breaks off after the end: it is done with the other direction, too.
	leave func()
	// dropped, when not nil, is called when the peer has let go of the Sink, after finish.
	dropped func()
	mu      sync.Mutex
	closed  bool
}

// Send is answered when take has returned.
func (in *inlet) Send(ctx context.Context, call wire.Sink_send) error {
	data, err := call.Args().Data()
	if err != nil {
		return err
	}
	if in.cancel != nil {
		defer context.AfterFunc(ctx, in.cancel)()
	}
	return perform(call.AllocResults, func() error {
		if len(data) > maxChunk {
			return &Error{Kind: KindLimit, Message: fmt.Sprintf("%d bytes in one send (limit %d)", len(data), maxChunk)}
		}
		in.mu.Lock()
		defer in.mu.Unlock()
		if in.closed {
			return errClosedStream
		}
		return in.take(data)
	})
}

// errClosedStream answers what arrives after the end.
var errClosedStream = &Error{Kind: KindState, Errno: 32, Message: "the stream is closed"} // EPIPE

// End is answered when finish has returned.
func (in *inlet) End(_ context.Context, call wire.Sink_end) error {
	deepen(false)
	return perform(call.AllocResults, func() error { return in.close(nil) })
}

// Abort tells finish what the peer says.
func (in *inlet) Abort(_ context.Context, call wire.Sink_abort) error {
	why := failureOf(call.Args().Failure())
	if why == nil {
		why = errBrokenOff
	}
	if in.close(why) == errClosedStream && in.leave != nil {
		in.leave()
	}
	return nil
}

// Shutdown is called when the peer has dropped the capability.
func (in *inlet) Shutdown() {
	_ = in.close(errBrokenOff)
	if in.dropped != nil {
		in.dropped()
	}
}

// close waits for a take under way. After it nothing is taken any more.
func (in *inlet) close(why error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return errClosedStream
	}
	in.closed = true
	return in.finish(why)
}

// collector is an inlet that writes to w and remembers how it went.
type collector struct {
	inlet
	err   error // of w
	ended bool
}

func newCollector(w io.Writer) *collector {
	c := &collector{}
	c.take = func(b []byte) error {
		if c.err == nil {
			_, c.err = w.Write(b)
		}
		return c.err
	}
	c.finish = func(why error) error { c.ended = why == nil; return nil }
	return c
}

// result closes the collector and says whether all arrived; err is how the call ended that filled it.
func (c *collector) result(err error) error {
	_ = c.close(errBrokenOff)
	switch {
	case c.err != nil:
		return c.err
	case err == nil && !c.ended:
		return errBrokenOff
	}
	return err
}

package capnprpc

import (
	"context"

	"capnproto.org/go/capnp/v3"
)

// Window keeps several calls under way, so that a stream does not wait for each block's answer. One goroutine uses it.
//
//	Add ─► [oldest ... newest]   at most `limit` unanswered; when full, Add waits for the oldest answer first
//
// Answers are taken in the order of the calls. The first error ends it: the other calls are cancelled.
type Window struct {
	limit int
	data  int    // approximate bytes of data of the next call; 0: few
	from  *piped // the pipe that has them; nil: in memory
	calls []awaited
	err   error
}

type awaited struct {
	pending
	take func(capnp.Struct) error
}

// NewWindow makes a window of at most limit calls.
func NewWindow(limit int) *Window { return &Window{limit: limit} }

// Add runs begin, which makes a call by the generated code with the context that it receives. take gets the results later.
func (w *Window) Add(ctx context.Context, begin func(context.Context), take func(capnp.Struct) error) error {
	for w.err == nil && len(w.calls) >= w.limit {
		_ = w.awaitOldest(ctx)
	}
	if w.err != nil {
		return w.err
	}
	slot := pending{data: w.data, from: w.from}
	begin(beginning(&slot))
	if slot.c == nil {
		return w.Fail(ErrClosed)
	}
	w.calls = append(w.calls, awaited{slot, take})
	return nil
}

// awaitOldest waits for the oldest call.
func (w *Window) awaitOldest(ctx context.Context) error {
	oldest := w.calls[0]
	w.calls = append(w.calls[:0], w.calls[1:]...)
	content, release, err := oldest.wait(ctx)
	if err == nil {
		err = oldest.take(content.Struct())
		release()
	}
	if err != nil {
		return w.Fail(err)
	}
	return nil
}

// Drain waits for all calls.
func (w *Window) Drain(ctx context.Context) error {
	for w.err == nil && len(w.calls) > 0 {
		_ = w.awaitOldest(ctx)
	}
	return w.err
}

// Fail cancels what is under way.
func (w *Window) Fail(err error) error {
	if w.err == nil {
		w.err = err
	}
	for _, c := range w.calls {
		c.c.giveUp(c.id, c.q)
	}
	w.calls = nil
	return w.err
}

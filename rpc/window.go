package rpc

import (
	"context"

	"capnproto.org/go/capnp/v3"
)

// window keeps calls under way, so that a stream is not one message each way per block. One goroutine uses it.
//
//	add ─► [oldest ... newest]   at most `limit` unanswered; when full, add waits for the oldest answer first
//
// Answers are taken in the order of the calls. The first error ends it: the other calls are cancelled.
type window struct {
	limit int
	data  int    // bytes that the next call will have, about; 0: few
	from  *piped // where they are; nil: in memory
	calls []awaited
	err   error
}

type awaited struct {
	pending
	take func(capnp.Struct) error
}

// add begins a call by the generated code, with the context it is given, and has its results taken later.
func (w *window) add(ctx context.Context, begin func(context.Context), take func(capnp.Struct) error) error {
	for w.err == nil && len(w.calls) >= w.limit {
		_ = w.settle(ctx)
	}
	if w.err != nil {
		return w.err
	}
	slot := pending{data: w.data, from: w.from}
	begin(beginning(&slot))
	if slot.c == nil {
		return w.fail(ErrClosed)
	}
	w.calls = append(w.calls, awaited{slot, take})
	return nil
}

// settle waits for the oldest call.
func (w *window) settle(ctx context.Context) error {
	oldest := w.calls[0]
	w.calls = append(w.calls[:0], w.calls[1:]...)
	content, release, err := oldest.wait(ctx)
	if err == nil {
		err = oldest.take(content.Struct())
		release()
	}
	if err != nil {
		return w.fail(err)
	}
	return nil
}

// drain waits for all calls.
func (w *window) drain(ctx context.Context) error {
	for w.err == nil && len(w.calls) > 0 {
		_ = w.settle(ctx)
	}
	return w.err
}

// fail cancels what is under way.
func (w *window) fail(err error) error {
	if w.err == nil {
		w.err = err
	}
	for _, c := range w.calls {
		c.c.giveUp(c.id, c.q)
	}
	w.calls = nil
	return w.err
}

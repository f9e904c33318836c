package capnprpc

import (
	"context"
	"errors"
	"fmt"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
)

// answer is a call by the peer, from its arrival until it is both returned and finished.
type answer struct {
	cancel   context.CancelFunc
	finished bool     // by the peer, before the return: the result is not wanted
	exports  []uint32 // capabilities among the results
	size     int      // of the call's message
}

// newAnswer records a call by the peer.
func (c *Conn) newAnswer(id uint32, size int) (context.Context, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers[id] != nil || len(c.answers) >= maxAnswers {
		cancel()
		return nil, fmt.Errorf("%w: question %d asked twice, or too many questions", ErrProtocol, id)
	}
	if c.held+size > maxHeld {
		cancel()
		return nil, fmt.Errorf("%w: too much in unanswered calls", ErrProtocol)
	}
	c.held += size
	c.memory.Charge(int64(size))
	c.answers[id] = &answer{cancel: cancel, size: size}
	return ctx, nil
}

// handleCall starts a call by the peer on one of this end's capabilities.
func (c *Conn) handleCall(call rpccp.Call) error {
	message := call.Message()
	id := call.QuestionId()
	ctx, err := c.newAnswer(id, messageSize(message))
	if err != nil {
		message.Release()
		return err
	}
	args, client, err := c.openCall(call)
	if err != nil {
		message.Release()
		return err
	}
	defer client.Release()
	returner := &returner{c: c, id: id}
	client.RecvCall(ctx, capnp.Recv{
		Method:      capnp.Method{InterfaceID: call.InterfaceId(), MethodID: call.MethodId()},
		Args:        args,
		ReleaseArgs: returner.releasing(message),
		Returner:    returner,
	})
	return nil
}

// openCall finds the arguments and the target of a call. For a promised answer the target is a client that refuses every call.
func (c *Conn) openCall(call rpccp.Call) (capnp.Struct, capnp.Client, error) {
	params, err := call.Params()
	if err != nil {
		return capnp.Struct{}, capnp.Client{}, err
	}
	if err := c.takeCaps(call.Message(), params); err != nil {
		return capnp.Struct{}, capnp.Client{}, err
	}
	content, err := params.Content()
	if err != nil {
		return capnp.Struct{}, capnp.Client{}, err
	}
	target, err := call.Target()
	if err != nil {
		return capnp.Struct{}, capnp.Client{}, err
	}
	if target.Which() != rpccp.MessageTarget_Which_importedCap {
		return content.Struct(), capnp.ErrorClient(capnp.Unimplemented("calls on promised answers")), nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.exports[target.ImportedCap()]
	if e == nil {
		return capnp.Struct{}, capnp.Client{}, fmt.Errorf("%w: call on a capability that is not held", ErrProtocol)
	}
	return content.Struct(), e.client.AddRef(), nil
}

// handleBootstrap answers with the offer.
func (c *Conn) handleBootstrap(id uint32) error {
	if _, err := c.newAnswer(id, 0); err != nil {
		return err
	}
	r := &returner{c: c, id: id}
	if err := r.alloc(); err != nil {
		return err
	}
	index := r.results.Message().CapTable().Add(c.offer.AddRef())
	if err := r.results.SetContent(capnp.NewInterface(r.results.Segment(), index).ToPtr()); err != nil {
		return err
	}
	r.Return()
	return nil
}

// handleFinish ends an answer, or cancels its call.
func (c *Conn) handleFinish(f rpccp.Finish) error {
	c.mu.Lock()
	a := c.answers[f.QuestionId()]
	if a == nil { // the answer said meanwhile that it needs no finish
		c.mu.Unlock()
		return nil
	}
	a.finished = true
	a.cancel()
	returned := a.exports != nil
	if returned {
		delete(c.answers, f.QuestionId())
	}
	c.mu.Unlock()
	if !returned || !f.ReleaseResultCaps() {
		return nil
	}
	for _, id := range a.exports {
		if err := c.drop(id, 1); err != nil {
			return err
		}
	}
	return nil
}

// returner sends the result of one call. It implements capnp.Returner.
type returner struct {
	c       *Conn
	id      uint32
	message rpccp.Message
	ret     rpccp.Return
	results rpccp.Payload
	err     error
}

// releasing returns a function that releases m once.
func (r *returner) releasing(m *capnp.Message) capnp.ReleaseFunc {
	done := false
	return func() {
		if !done {
			done = true
			m.Release()
		}
	}
}

func (r *returner) begin() (err error) {
	if r.message, err = newMessage(); err != nil {
		return err
	}
	if r.ret, err = r.message.NewReturn(); err != nil {
		return err
	}
	r.ret.SetAnswerId(r.id)
	r.ret.SetReleaseParamCaps(false) // each is released by a message of its own
	return nil
}

func (r *returner) alloc() (err error) {
	if err = r.begin(); err != nil {
		return err
	}
	r.results, err = r.ret.NewResults()
	return err
}

// AllocResults allocates the results' struct in the message that will be sent.
func (r *returner) AllocResults(size capnp.ObjectSize) (capnp.Struct, error) {
	if err := r.alloc(); err != nil {
		return capnp.Struct{}, err
	}
	s, err := capnp.NewStruct(r.results.Segment(), size)
	if err != nil {
		return capnp.Struct{}, err
	}
	return s, r.results.SetContent(s.ToPtr())
}

// PrepareReturn notes how the call ended.
func (r *returner) PrepareReturn(err error) { r.err = err }

// ReleaseResults does nothing: sending the message releases it.
func (r *returner) ReleaseResults() {}

// Return sends the result. Results that the peer no longer wants are not sent, and their capabilities not exported.
//
// Results without capabilities end the answer here: the message says that the peer need not finish it.
func (r *returner) Return() {
	c := r.c
	c.mu.Lock()
	a := c.answers[r.id]
	if c.err != nil || a == nil {
		c.mu.Unlock()
		r.discard()
		return
	}
	defer a.cancel()
	c.held -= a.size
	c.memory.Give(int64(a.size))
	if a.finished {
		r.err = errors.New("cancelled")
	}
	if r.err == nil && !r.results.IsValid() {
		r.err = r.alloc() // the method has no results
	}
	if r.err == nil {
		a.exports, r.err = c.giveCaps(r.results)
	}
	last := a.finished || len(a.exports) == 0
	if last {
		delete(c.answers, r.id)
	}
	finished := a.finished
	c.mu.Unlock()
	if r.err != nil {
		r.discard()
		if err := r.setException(); err != nil {
			c.fail(err)
			return
		}
	}
	r.ret.SetNoFinishNeeded(last && !finished)
	c.enqueue(r.message.Message())
}

// setException makes the message an exception.
func (r *returner) setException() error {
	if err := r.begin(); err != nil {
		return err
	}
	exception, err := r.ret.NewException()
	if err != nil {
		return err
	}
	return exception.SetReason(bounded(r.err.Error()))
}

func (r *returner) discard() {
	if r.message.IsValid() {
		r.message.Message().Release()
	}
}

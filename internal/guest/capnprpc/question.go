package capnprpc

import (
	"context"
	"errors"
	"fmt"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
)

// question is a call by this end that the peer has not answered.
type question struct {
	answer    chan rpccp.Return // capacity 1
	exports   []uint32          // capabilities among the parameters
	abandoned bool              // the caller does not wait any more
	limit     int               // bytes of the answer; 0: as many as a message may have
}

// maxSendAnswer bounds, in bytes, the answer to a stream's send. An answer is read only when later ones are sent, so that an idle
// stream holds some of them.
const maxSendAnswer = 2 * maxReason

func (q *question) deliver(r rpccp.Return) { q.answer <- r }

// pending is a question whose caller waits for the answer once.
type pending struct {
	c    *Conn
	id   uint32
	q    *question
	data int // for beginning: bytes of data in its parameters
	// from, for beginning, is the pipe that has the data; nil: they are in memory.
	from *piped
}

// call begins a call whose parameters have the data that like describes. Calls on one capability arrive in the order in which they begin.
func (c *Conn) call(target uint32, s capnp.Send, like pending) (pending, error) {
	m, err := c.t.newMessage(like.data, like.from)
	if err != nil {
		return pending{}, err
	}
	call, err := m.NewCall()
	if err != nil {
		return pending{}, err
	}
	t, err := call.NewTarget()
	if err != nil {
		return pending{}, err
	}
	t.SetImportedCap(target)
	call.SetInterfaceId(s.Method.InterfaceID)
	call.SetMethodId(s.Method.MethodID)
	call.SetNoPromisePipelining(true)
	payload, err := placeParams(call, s)
	if err != nil {
		m.Message().Release()
		return pending{}, err
	}
	limit := 0
	if like.data > 0 {
		limit = maxSendAnswer
	}
	return c.ask(m, payload, call.SetQuestionId, limit)
}

func placeParams(call rpccp.Call, s capnp.Send) (rpccp.Payload, error) {
	payload, err := call.NewParams()
	if err != nil {
		return payload, err
	}
	params, err := capnp.NewStruct(payload.Segment(), s.ArgsSize)
	if err != nil {
		return payload, err
	}
	if err := payload.SetContent(params.ToPtr()); err != nil {
		return payload, err
	}
	if s.PlaceArgs == nil {
		return payload, nil
	}
	return payload, s.PlaceArgs(params)
}

// Bootstrap requests the capability that the peer offers to everyone.
func (c *Conn) Bootstrap(ctx context.Context) (capnp.Client, error) {
	m, err := newMessage()
	if err != nil {
		return capnp.Client{}, err
	}
	boot, err := m.NewBootstrap()
	if err != nil {
		return capnp.Client{}, err
	}
	p, err := c.ask(m, rpccp.Payload{}, boot.SetQuestionId, 0)
	if err != nil {
		return capnp.Client{}, err
	}
	content, release, err := p.wait(ctx)
	if err != nil {
		return capnp.Client{}, err
	}
	defer release()
	return content.Interface().Client().AddRef(), nil
}

// ask queues a question whose answer may have limit bytes (0: any number). It does not wait, not even for the message to be sent.
func (c *Conn) ask(m rpccp.Message, params rpccp.Payload, setID func(uint32), limit int) (pending, error) {
	q := &question{answer: make(chan rpccp.Return, 1), limit: limit}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		m.Message().Release()
		return pending{}, ErrClosed
	}
	if len(c.questions) >= maxQuestions || c.crowded(m.Message().CapTable().Len()) {
		c.mu.Unlock()
		m.Message().Release()
		return pending{}, errUnanswered
	}
	var err error
	if params.IsValid() {
		q.exports, err = c.giveCaps(params)
	}
	c.nextQ = free(c.nextQ, c.questions)
	id := c.nextQ
	setID(id)
	c.questions[id] = q
	c.mu.Unlock()
	if err != nil {
		c.fail(err) // the message cannot hold its own table of capabilities
	}
	c.enqueue(m.Message())
	return pending{c: c, id: id, q: q}, nil
}

// wait returns the results, which are valid until release is called. When ctx ends first, the question is cancelled.
func (p pending) wait(ctx context.Context) (content capnp.Ptr, release capnp.ReleaseFunc, err error) {
	select {
	case r := <-p.q.answer:
		return p.c.results(p.id, r)
	case <-ctx.Done():
		p.c.giveUp(p.id, p.q)
		return capnp.Ptr{}, nil, ctx.Err()
	}
}

// giveUp cancels a question. Its number stays taken until the peer has answered.
func (c *Conn) giveUp(id uint32, q *question) {
	c.mu.Lock()
	q.abandoned = true
	c.mu.Unlock()
	select {
	case r := <-q.answer: // it arrived meanwhile
		if _, release, err := c.results(id, r); err == nil {
			release()
		}
	default:
		c.finish(id, true)
	}
}

// finish tells the peer that this end no longer needs an answer.
func (c *Conn) finish(id uint32, releaseCaps bool) {
	m, err := newMessage()
	if err != nil {
		return
	}
	finish, err := m.NewFinish()
	if err != nil {
		return
	}
	finish.SetQuestionId(id)
	finish.SetReleaseResultCaps(releaseCaps)
	c.enqueue(m.Message())
}

// handleReturn passes an answer to the caller that waits for it.
func (c *Conn) handleReturn(r rpccp.Return) error {
	releases := r.ReleaseParamCaps() // the caller owns r once it is delivered
	c.mu.Lock()
	q := c.questions[r.AnswerId()]
	if q != nil && q.limit > 0 && messageSize(r.Message()) > q.limit {
		c.mu.Unlock()
		r.Message().Release()
		return fmt.Errorf("%w: long answer to a send", ErrProtocol)
	}
	delete(c.questions, r.AnswerId())
	abandoned := q != nil && q.abandoned
	if q != nil && !abandoned {
		q.deliver(r)
	}
	c.mu.Unlock()
	if q == nil {
		r.Message().Release()
		return fmt.Errorf("%w: answer to a question that was not asked", ErrProtocol)
	}
	if abandoned { // giveUp has finished it, with its capabilities
		r.Message().Release()
		return nil
	}
	if releases {
		for _, id := range q.exports {
			if err := c.drop(id, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

// results unpacks an answer. An invalid one means that the connection has ended.
func (c *Conn) results(id uint32, r rpccp.Return) (capnp.Ptr, capnp.ReleaseFunc, error) {
	if !r.IsValid() {
		return capnp.Ptr{}, nil, ErrClosed
	}
	message := r.Message()
	if !r.NoFinishNeeded() {
		c.finish(id, false)
	}
	content, err := c.unpack(r)
	if err != nil {
		message.Release()
		return capnp.Ptr{}, nil, err
	}
	return content, message.Release, nil
}

func (c *Conn) unpack(r rpccp.Return) (capnp.Ptr, error) {
	switch r.Which() {
	case rpccp.Return_Which_results:
		payload, err := r.Results()
		if err != nil {
			return capnp.Ptr{}, err
		}
		if err := c.takeCaps(r.Message(), payload); err != nil {
			return capnp.Ptr{}, err
		}
		return payload.Content()
	case rpccp.Return_Which_exception:
		exception, err := r.Exception()
		if err != nil {
			return capnp.Ptr{}, err
		}
		reason, err := exception.Reason()
		if err != nil {
			return capnp.Ptr{}, err
		}
		return capnp.Ptr{}, errors.New(bounded(reason))
	default:
		return capnp.Ptr{}, errors.New("the call was not answered")
	}
}

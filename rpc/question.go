package rpc

import (
	"context"
	"errors"
	"fmt"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
)

// question is a call of this end's that has not been answered.
type question struct {
	answer  chan rpccp.Return // capacity 1
	exports []uint32          // capabilities among the parameters
	given   bool              // up: nobody waits any more
	most    int               // bytes of the answer; 0: as many as a message has
}

// mostOfSend bounds the answer to a send of a stream. It is taken with a later one, so that an idle stream has some of them.
const mostOfSend = 2 * maxReason

func (q *question) deliver(r rpccp.Return) { q.answer <- r }

// pending is a question that somebody is going to wait for, once.
type pending struct {
	c    *conn
	id   uint32
	q    *question
	data int // in its parameters, for beginning
	// from, for beginning, is where they are; nil: in memory.
	from *piped
}

// call begins a call whose parameters have the data that like says. Calls on one capability arrive in the order in which they have begun.
func (c *conn) call(target uint32, s capnp.Send, like pending) (pending, error) {
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
	most := 0
	if like.data > 0 {
		most = mostOfSend
	}
	return c.ask(m, payload, call.SetQuestionId, most)
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

// bootstrap gets the capability that the peer offers to everyone.
func (c *conn) bootstrap(ctx context.Context) (capnp.Client, error) {
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

// ask sends a question whose answer has at most so many bytes (0: any). It does not wait, not even for the message to be sent.
func (c *conn) ask(m rpccp.Message, params rpccp.Payload, number func(uint32), most int) (pending, error) {
	q := &question{answer: make(chan rpccp.Return, 1), most: most}
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
	number(id)
	c.questions[id] = q
	c.mu.Unlock()
	if err != nil {
		c.fail(err) // the message could not hold its own table: nothing sensible is left to do
	}
	c.enqueue(m.Message())
	return pending{c: c, id: id, q: q}, nil
}

// wait returns the results, which are valid until release is called. When ctx ends first the question is cancelled.
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
func (c *conn) giveUp(id uint32, q *question) {
	c.mu.Lock()
	q.given = true
	c.mu.Unlock()
	select {
	case r := <-q.answer: // it came meanwhile
		if _, release, err := c.results(id, r); err == nil {
			release()
		}
	default:
		c.finish(id, true)
	}
}

// finish tells the peer that this end has done with an answer.
func (c *conn) finish(id uint32, releaseCaps bool) {
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

// handleReturn passes an answer to whoever waits for it.
func (c *conn) handleReturn(r rpccp.Return) error {
	releases := r.ReleaseParamCaps() // r is the asker's once it is delivered
	c.mu.Lock()
	q := c.questions[r.AnswerId()]
	if q != nil && q.most > 0 && messageSize(r.Message()) > q.most {
		c.mu.Unlock()
		r.Message().Release()
		return fmt.Errorf("%w: long answer to a send", errProtocol)
	}
	delete(c.questions, r.AnswerId())
	abandoned := q != nil && q.given
	if q != nil && !abandoned {
		q.deliver(r)
	}
	c.mu.Unlock()
	if q == nil {
		r.Message().Release()
		return fmt.Errorf("%w: answer to a question that was not asked", errProtocol)
	}
	if abandoned { // finished with its capabilities already
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

// results unpacks an answer. An invalid one says that the connection has ended.
func (c *conn) results(id uint32, r rpccp.Return) (capnp.Ptr, capnp.ReleaseFunc, error) {
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

func (c *conn) unpack(r rpccp.Return) (capnp.Ptr, error) {
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

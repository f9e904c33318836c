package rpc

import (
	"context"
	"errors"
	"fmt"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
)

// remote is a capability that the peer hosts. Each time one arrives it is a remote of its own, with one reference.
type remote struct {
	c  *conn
	id uint32
}

var _ capnp.ClientHook = (*remote)(nil)

// Send makes a call and waits for its answer, unless the context comes from beginning: then it only begins.
func (r *remote) Send(ctx context.Context, s capnp.Send) (*capnp.Answer, capnp.ReleaseFunc) {
	slot, begins := ctx.Value(slotKey{}).(*pending)
	like := pending{}
	if begins {
		like = *slot
	}
	p, err := r.c.call(r.id, s, like)
	if err != nil {
		return capnp.ErrorAnswer(s.Method, err), func() {}
	}
	if begins {
		*slot = p
		return capnp.ErrorAnswer(s.Method, errBegun), func() {}
	}
	content, release, err := p.wait(ctx)
	if err != nil {
		return capnp.ErrorAnswer(s.Method, err), func() {}
	}
	return capnp.ImmediateAnswer(s.Method, content), release
}

type slotKey struct{}

// errBegun is the answer of a call that nobody waits for yet.
var errBegun = errors.New("the call has begun")

// beginning is a context for a call by the generated code that only begins; what it is waited by is put in slot.
func beginning(slot *pending) context.Context {
	return context.WithValue(context.Background(), slotKey{}, slot)
}

// Recv forwards a call that came over another connection, or this one, to whoever hosts the capability.
func (r *remote) Recv(ctx context.Context, recv capnp.Recv) capnp.PipelineCaller {
	p, err := r.c.call(r.id, capnp.Send{Method: recv.Method, ArgsSize: recv.Args.Size(), PlaceArgs: func(s capnp.Struct) error {
		return s.CopyFrom(recv.Args)
	}}, pending{})
	recv.ReleaseArgs()
	if err == nil && !r.c.spawn(func() { p.forward(ctx, recv.Returner) }) {
		err = ErrClosed
	}
	if err != nil {
		answerBy(recv.Returner, err)
	}
	return nil
}

// forward passes the answer on.
func (p pending) forward(ctx context.Context, to capnp.Returner) {
	content, release, err := p.wait(ctx)
	if err == nil {
		err = copyResults(to, content.Struct())
		release()
	}
	answerBy(to, err)
}

func copyResults(to capnp.Returner, from capnp.Struct) error {
	s, err := to.AllocResults(from.Size())
	if err != nil {
		return err
	}
	return s.CopyFrom(from)
}

func answerBy(to capnp.Returner, err error) {
	to.PrepareReturn(err)
	to.Return()
	to.ReleaseResults()
}

func (r *remote) Brand() capnp.Brand { return capnp.Brand{Value: r} }
func (r *remote) String() string     { return fmt.Sprintf("capability %d of the peer", r.id) }

// Shutdown tells the peer that the capability is no longer held here.
func (r *remote) Shutdown() {
	m, err := newMessage()
	if err != nil {
		return
	}
	release, err := m.NewRelease()
	if err != nil {
		return
	}
	release.SetId(r.id)
	release.SetReferenceCount(1)
	r.c.enqueue(m.Message())
}

// takeCaps makes clients of the capabilities that came with a payload of m, so that its pointers to them work.
func (c *conn) takeCaps(m *capnp.Message, p rpccp.Payload) error {
	list, err := p.CapTable()
	if err != nil {
		return err
	}
	if list.Len() > maxCaps {
		return fmt.Errorf("%w: %d capabilities in a message", errProtocol, list.Len())
	}
	table := m.CapTable()
	for i := range list.Len() {
		table.Add(c.takeCap(list.At(i)))
	}
	return nil
}

func (c *conn) takeCap(d rpccp.CapDescriptor) capnp.Client {
	switch d.Which() {
	case rpccp.CapDescriptor_Which_none:
		return capnp.Client{}
	case rpccp.CapDescriptor_Which_senderHosted:
		return capnp.NewClient(&remote{c, d.SenderHosted()})
	default:
		return capnp.ErrorClient(errors.New("kind of capability not supported"))
	}
}

// giveCaps exports the capabilities that a message about to be sent refers to, and describes them in its payload. It
// returns the exports. The caller holds mu.
func (c *conn) giveCaps(p rpccp.Payload) ([]uint32, error) {
	table := p.Message().CapTable()
	if table.Len() == 0 {
		return nil, nil
	}
	if c.crowded(table.Len()) {
		return nil, errUnanswered
	}
	list, err := p.NewCapTable(int32(table.Len()))
	if err != nil {
		return nil, err
	}
	var ids []uint32
	for i := range table.Len() {
		client := table.At(i)
		if !client.IsValid() {
			list.At(i).SetNone()
			continue
		}
		c.nextE = free(c.nextE, c.exports)
		c.exports[c.nextE] = &export{client: client.AddRef(), refs: 1}
		list.At(i).SetSenderHosted(c.nextE)
		ids = append(ids, c.nextE)
	}
	return ids, nil
}

// crowded says that the peer keeps too many capabilities for more of them. The caller holds mu.
func (c *conn) crowded(more int) bool { return more > 0 && len(c.exports)+more > maxExports }

// errUnanswered is of a peer that may have been paused, and else means no good. Its number is EAGAIN.
var errUnanswered = &Error{Kind: KindLimit, Errno: 11, Message: "the other end leaves too much unanswered: try again once it does not"}

// free is the next number after last that is not taken. There are more numbers than can be taken.
func free[V any](last uint32, taken map[uint32]V) uint32 {
	for {
		last++
		if _, is := taken[last]; !is {
			return last
		}
	}
}

// drop takes references to an export from the peer.
func (c *conn) drop(id, refs uint32) error {
	c.mu.Lock()
	e := c.exports[id]
	if e == nil || refs > e.refs {
		c.mu.Unlock()
		return fmt.Errorf("%w: release of a capability that is not held", errProtocol)
	}
	if e.refs -= refs; e.refs > 0 {
		c.mu.Unlock()
		return nil
	}
	delete(c.exports, id)
	c.mu.Unlock()
	e.client.Release()
	return nil
}

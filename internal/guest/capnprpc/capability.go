package capnprpc

import (
	"context"
	"errors"
	"fmt"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"

	"agentvm/internal/host/errno"
)

// remote is a capability that the peer hosts. Each arrival makes another remote, with one reference.
type remote struct {
	c  *Conn
	id uint32
}

// Import returns the capability that the peer hosts under a number known in advance, such as Offered.
func (c *Conn) Import(id uint32) capnp.Client { return capnp.NewClient(&remote{c, id}) }

var _ capnp.ClientHook = (*remote)(nil)

// Send makes a call and waits for its answer. With a context from beginning it does not wait.
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

// errBegun is the placeholder for the answer of a call that has only begun.
var errBegun = errors.New("the call has begun")

// beginning is a context with which a call by the generated code begins without waiting. Send stores in slot what to wait for.
func beginning(slot *pending) context.Context {
	return context.WithValue(context.Background(), slotKey{}, slot)
}

// Recv forwards a call that came over another connection, or this one, to the peer that hosts the capability.
func (r *remote) Recv(ctx context.Context, recv capnp.Recv) capnp.PipelineCaller {
	p, err := r.c.call(r.id, capnp.Send{Method: recv.Method, ArgsSize: recv.Args.Size(), PlaceArgs: func(s capnp.Struct) error {
		return s.CopyFrom(recv.Args)
	}}, pending{})
	recv.ReleaseArgs()
	if err == nil && !r.c.Spawn(func() { p.forward(ctx, recv.Returner) }) {
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

func (r *remote) String() string { return fmt.Sprintf("capability %d of the peer", r.id) }

// Shutdown tells the peer that this end has released the capability.
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

// takeCaps makes clients of the capabilities that came with a payload of m, so that the payload's pointers to them work.
func (c *Conn) takeCaps(m *capnp.Message, p rpccp.Payload) error {
	list, err := p.CapTable()
	if err != nil {
		return err
	}
	if list.Len() > maxCaps {
		return fmt.Errorf("%w: %d capabilities in a message", ErrProtocol, list.Len())
	}
	table := m.CapTable()
	for i := range list.Len() {
		table.Add(c.takeCap(list.At(i)))
	}
	return nil
}

func (c *Conn) takeCap(d rpccp.CapDescriptor) capnp.Client {
	switch d.Which() {
	case rpccp.CapDescriptor_Which_none:
		return capnp.Client{}
	case rpccp.CapDescriptor_Which_senderHosted:
		return capnp.NewClient(&remote{c, d.SenderHosted()})
	default:
		return capnp.ErrorClient(errors.New("kind of capability not supported"))
	}
}

// giveCaps exports the capabilities to which an outgoing message refers, and describes them in its payload. It returns the
// exports. The caller holds mu.
func (c *Conn) giveCaps(p rpccp.Payload) ([]uint32, error) {
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

// crowded reports whether the peer holds too many capabilities to get more of them. The caller holds mu.
func (c *Conn) crowded(more int) bool { return more > 0 && len(c.exports)+more > maxExports }

// errUnanswered reports a peer that is paused, or hostile. Its number is EAGAIN.
var errUnanswered = &Error{Kind: KindLimit, Errno: errno.EAGAIN, Message: "the other end leaves too much unanswered: try again once it does not"}

// free returns the next number after last that is not taken. There always is one: the maps are bounded far below 2^32 entries.
func free[V any](last uint32, taken map[uint32]V) uint32 {
	for {
		last++
		if _, is := taken[last]; !is {
			return last
		}
	}
}

// drop removes references that the peer holds to an export.
func (c *Conn) drop(id, refs uint32) error {
	c.mu.Lock()
	e := c.exports[id]
	if e == nil || refs > e.refs {
		c.mu.Unlock()
		return fmt.Errorf("%w: release of a capability that is not held", ErrProtocol)
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

package capnprpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"

	"agentvm/internal/host/budget"
)

func (c *Conn) Fault(what string, err error) error {
	if c.ctx.Err() != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		err = ErrClosed
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Conn is one end of a Cap'n Proto RPC connection. It speaks level 1 of the protocol (rpc.capnp) as far as the schemas of
// this program need it: calls, cancellation and capabilities in both directions, no calls on promised answers. The library's
// own connection cannot be used here: it panics when its peer hangs up at the wrong moment or lies, and the peer is a
// guest.
//
//	caller ── Call ──► peer's export ── Return ──► caller     one question, one answer, same number
//	       ── Finish ─────────────────►                       after the Return, or before it to cancel
//	holder ── Release ► exporter                              a capability that was received is no longer needed
//
// The goroutine that receives never writes, and never waits for anything but the stream; the one that sends never waits
// for anything else either. So two peers cannot wait for each other.
type Conn struct {
	t      *transport
	closer io.Closer
	offer  capnp.Client // what a Bootstrap gets; may be null
	ctx    context.Context
	cancel context.CancelCauseFunc // with err
	done   chan struct{}           // closed when both goroutines have ended and everything is released
	wake   chan struct{}           // capacity 1: the queue is not empty

	mu        sync.Mutex
	err       error // why the connection has ended; nil while it stands
	queue     []*capnp.Message
	questions map[uint32]*question
	answers   map[uint32]*answer
	exports   map[uint32]*export
	nextQ     uint32
	nextE     uint32
	held      int            // bytes of the peer's calls that are not answered
	queued    int            // bytes of queue
	memory    *budget.Budget // held and queued count there
	// tasks are goroutines that serve the peer. They end soon after ctx does; done does not wait for them.
	tasks sync.WaitGroup
}

// Limits of what a peer may make this end remember.
const (
	maxAnswers = 4096 // unfinished calls by the peer
	maxCaps    = 64   // capabilities in one message
	// maxQuestions bounds this end's calls that the peer leaves unanswered, abandoned ones included. It is below the peer's own limit,
	// maxAnswers.
	maxQuestions = maxAnswers / 4 * 3
	// maxExports bounds the capabilities that the peer has not released. Each has a goroutine.
	maxExports = 8 << 10
	// maxHeld bounds the bytes of the peer's unanswered calls, and maxQueued the bytes of messages that it does not read. A
	// stream of bulk data has 2 MiB of either at most.
	maxHeld   = 128 << 20
	maxQueued = 128 << 20
	// ownQueued is how many bytes may wait for the peer even when the budget is used up: a peer that does read has as many
	// for a moment.
	ownQueued = 16 << 20
)

// Offered is the number of the export that a peer has from the beginning. The others begin at 1.
const Offered = 0

type export struct {
	client capnp.Client
	refs   uint32 // references that the peer holds
}

// Start starts the connection's goroutines. It takes over closer and the capability that offer returns; offer may be nil. r and w
// need not be closers themselves.
func Start(r io.Reader, w io.Writer, closer io.Closer, offer func(*Conn) capnp.Client) *Conn {
	return StartWithin(nil, r, w, closer, offer)
}

// StartWithin is Start with a budget for what the peer leaves unread and unanswered.
func StartWithin(memory *budget.Budget, r io.Reader, w io.Writer, closer io.Closer, offer func(*Conn) capnp.Client) *Conn {
	c := &Conn{
		t: newTransport(r, w), closer: closer, memory: memory,
		done: make(chan struct{}), wake: make(chan struct{}, 1),
		questions: make(map[uint32]*question), answers: make(map[uint32]*answer), exports: make(map[uint32]*export),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	if offer != nil {
		c.offer = offer(c)
		c.exports[Offered] = &export{client: c.offer.AddRef(), refs: 1}
	}
	sent := make(chan struct{})
	go func() { defer close(sent); Deepen(false); c.sendQueue() }()
	go func() {
		Deepen(false)
		c.fail(c.receiveAll())
		<-sent
		c.releaseAll()
		close(c.done)
	}()
	return c
}

// Deepen grows the goroutine's stack at once to the size that it will need. Otherwise the runtime grows it three times and copies it
// each time, which in the guest takes as long as the goroutine's work. The argument is always false: only the size of the frame
// matters.
//
//go:noinline
func Deepen(really bool) byte {
	if !really {
		return 0
	}
	var b [12 << 10]byte
	return keep(&b)
}

//go:noinline
func keep(b *[12 << 10]byte) byte { return b[len(b)/2] }

// goodbyeTime is how long Close waits for the peer to take the goodbye message.
const goodbyeTime = 100 * time.Millisecond

// Context ends with the connection. Its cause is the reason.
func (c *Conn) Context() context.Context { return c.ctx }

// Done is closed when the connection has ended and everything is released. Tasks may still run: see WaitTasks.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is why the connection has ended; nil while it stands.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// WaitTasks returns when no task runs. Call it after the connection has ended.
func (c *Conn) WaitTasks() { c.tasks.Wait() }

// Exported is how many capabilities of this end the peer has.
func (c *Conn) Exported() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.exports)
}

// Close sends the goodbye message, ends the connection and waits for its goroutines and tasks.
func (c *Conn) Close() {
	if c.setError(ErrClosed) {
		stop := time.AfterFunc(goodbyeTime, func() { _ = c.closer.Close() })
		defer stop.Stop()
	}
	<-c.done
	c.tasks.Wait()
}

// fail ends the connection at once; the first error stays.
func (c *Conn) fail(err error) {
	if c.setError(err) {
		_ = c.closer.Close()
	}
}

// setError sets err and cancels the context under one lock, so that a caller that sees one of them sees the other, too.
func (c *Conn) setError(err error) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.err == nil
	if first {
		c.err = err
		c.cancel(err)
	}
	return first
}

// goodbye sends the last message, which ends the connection for the peer. Only Close sends it.
func (c *Conn) goodbye() {
	c.mu.Lock()
	closing := c.err == ErrClosed
	c.mu.Unlock()
	if !closing {
		return
	}
	if m, err := newMessage(); err == nil {
		if _, err := m.NewAbort(); err == nil {
			_ = c.t.send(m.Message())
		}
	}
	_ = c.closer.Close()
}

// Spawn runs a task unless the connection has ended.
func (c *Conn) Spawn(task func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.tasks.Go(task)
	return true
}

// releaseAll releases everything that the peer held or asked for.
func (c *Conn) releaseAll() {
	c.mu.Lock()
	questions, exports := c.questions, c.exports
	queue := c.queue
	c.questions, c.exports, c.queue = nil, nil, nil
	// No call returns any more and nothing is sent, so that their charges are given back here.
	c.memory.Give(int64(c.held + c.queued))
	c.held, c.queued = 0, 0
	c.mu.Unlock()
	for _, m := range queue {
		m.Release()
	}
	for _, q := range questions {
		q.deliver(rpccp.Return{})
	}
	for _, e := range exports {
		e.client.Release()
	}
	c.offer.Release()
}

// enqueue hands m to the sending goroutine, which releases it.
func (c *Conn) enqueue(m *capnp.Message) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		m.Release()
		return
	}
	c.queue = append(c.queue, m)
	size := messageSize(m) + messageCost
	c.queued += size
	within := c.memory.Charge(int64(size))
	unread := c.queued > maxQueued || c.queued > ownQueued && !within
	c.mu.Unlock()
	if unread {
		c.fail(fmt.Errorf("%w: the peer does not read", ErrProtocol))
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Conn) sendQueue() {
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			c.goodbye()
			return
		}
		c.mu.Lock()
		queue := c.queue
		c.queue = nil
		c.mu.Unlock()
		for _, m := range queue {
			size := messageSize(m) + messageCost
			err := c.t.send(m)
			m.Release()
			c.mu.Lock()
			c.queued -= size
			c.memory.Give(int64(size))
			c.mu.Unlock()
			if err != nil {
				c.fail(fmt.Errorf("send: %w", err))
			}
		}
	}
}

// receiveAll handles messages until the stream ends or the peer violates the protocol.
func (c *Conn) receiveAll() error {
	for {
		m, err := c.t.receive()
		if err != nil {
			return err
		}
		if err := c.handle(m); err != nil {
			return err
		}
	}
}

// ErrProtocol is wrapped by errors about what a peer must not send.
var ErrProtocol = errors.New("protocol violation")

// errEmpty reports a null pointer in place of a message's content. Pointers within the content may be null and read as zero.
var errEmpty = fmt.Errorf("%w: empty message", ErrProtocol)

// handle dispatches one message. The handler of its kind releases it.
func (c *Conn) handle(m rpccp.Message) error {
	if !m.IsValid() {
		return errEmpty
	}
	switch m.Which() {
	case rpccp.Message_Which_call:
		call, err := m.Call()
		if err != nil || !call.IsValid() {
			return errors.Join(errEmpty, err)
		}
		return c.handleCall(call)
	case rpccp.Message_Which_return:
		ret, err := m.Return()
		if err != nil || !ret.IsValid() {
			return errors.Join(errEmpty, err)
		}
		return c.handleReturn(ret)
	}
	defer m.Message().Release()
	switch m.Which() {
	case rpccp.Message_Which_bootstrap:
		boot, err := m.Bootstrap()
		if err != nil {
			return err
		}
		return c.handleBootstrap(boot.QuestionId())
	case rpccp.Message_Which_finish:
		finish, err := m.Finish()
		if err != nil {
			return err
		}
		return c.handleFinish(finish)
	case rpccp.Message_Which_release:
		release, err := m.Release()
		if err != nil {
			return err
		}
		return c.drop(release.Id(), release.ReferenceCount())
	case rpccp.Message_Which_abort:
		return errors.New("the peer has ended the connection")
	default:
		return fmt.Errorf("%w: message of kind %d", ErrProtocol, m.Which())
	}
}

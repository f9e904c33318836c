package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"
)

// conn is one end of a Cap'n Proto RPC connection. It speaks level 1 of the protocol (rpc.capnp) as far as this package's
// schema needs it: calls, cancellation and capabilities in both directions, no calls on promised answers. The library's
// own connection cannot be used here: it panics when its peer hangs up at the wrong moment or lies, and the peer is a
// guest.
//
//	caller ── Call ──► peer's export ── Return ──► caller     one question, one answer, same number
//	       ── Finish ─────────────────►                       after the Return, or before it to cancel
//	holder ── Release ► exporter                              a capability that was received is no longer needed
//
// The goroutine that receives never writes, and never waits for anything but the stream; the one that sends never waits
// for anything else either. So two peers cannot wait for each other.
type conn struct {
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
	held      int // bytes of the peer's calls that are not answered
	queued    int // bytes of queue
	// tasks are goroutines that serve the peer. They are to end when ctx does, and may be late: done does not wait.
	tasks sync.WaitGroup
}

// Limits of what a peer may make this end remember.
const (
	maxAnswers = 4096 // calls of the peer's that are not finished
	maxCaps    = 64   // capabilities in one message
	// maxQuestions bounds this end's calls that the peer leaves unanswered, also those that nobody waits for any more: fewer than it would take.
	maxQuestions = maxAnswers / 4 * 3
	// maxExports bounds the capabilities that the peer does not let go of. Each has a goroutine.
	maxExports = 8 << 10
	// maxHeld bounds the bytes of the peer's unanswered calls, and maxQueued those of messages that it does not read. A
	// stream of bulk data has 2 MiB of either at most.
	maxHeld   = 128 << 20
	maxQueued = 128 << 20
)

// offered is the number of the export that a peer has from the beginning (helloOffer). The others begin at 1.
const offered = 0

type export struct {
	client capnp.Client
	refs   uint32 // how often the peer has it
}

// startConn starts the connection's goroutines. It takes over closer and what offer, which may be nil, returns; r and w
// need not be closers themselves.
func startConn(r io.Reader, w io.Writer, closer io.Closer, offer func(*conn) capnp.Client) *conn {
	c := &conn{
		t: newTransport(r, w), closer: closer,
		done: make(chan struct{}), wake: make(chan struct{}, 1),
		questions: make(map[uint32]*question), answers: make(map[uint32]*answer), exports: make(map[uint32]*export),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	if offer != nil {
		c.offer = offer(c)
		c.exports[offered] = &export{client: c.offer.AddRef(), refs: 1}
	}
	sent := make(chan struct{})
	go func() { defer close(sent); deepen(false); c.sendQueue() }()
	go func() {
		deepen(false)
		c.fail(c.receiveAll())
		<-sent
		c.releaseAll()
		close(c.done)
	}()
	return c
}

// deepen grows the goroutine's stack at once to what it will need. Else it grows three times, and each time all that is on it by
// then is looked through: in the guest, that took as long as what the goroutine is for. Its argument is false: it is the frame that
// counts, not what is in it.
//
//go:noinline
func deepen(really bool) byte {
	if !really {
		return 0
	}
	var b [12 << 10]byte
	return keep(&b)
}

//go:noinline
func keep(b *[12 << 10]byte) byte { return b[len(b)/2] }

// farewellTime is how long close waits for the peer to take the message that ends the connection.
const farewellTime = 100 * time.Millisecond

// close says farewell, ends the connection and waits for its goroutines and tasks.
func (c *conn) close() {
	if c.setError(ErrClosed) {
		stop := time.AfterFunc(farewellTime, func() { _ = c.closer.Close() })
		defer stop.Stop()
	}
	<-c.done
	c.tasks.Wait()
}

// fail ends the connection at once; the first error stays.
func (c *conn) fail(err error) {
	if c.setError(err) {
		_ = c.closer.Close()
	}
}

// setError cancels what is under way in the same breath, so that whoever sees the one knows the other (letGo).
func (c *conn) setError(err error) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.err == nil
	if first {
		c.err = err
		c.cancel(err)
	}
	return first
}

// farewell is the last message, which tells the peer that nothing more will come. It is sent only when this end closes.
func (c *conn) farewell() {
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

// spawn runs a task unless the connection has ended.
func (c *conn) spawn(task func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	c.tasks.Go(task)
	return true
}

// releaseAll lets go of everything the peer held or asked for.
func (c *conn) releaseAll() {
	c.mu.Lock()
	questions, exports := c.questions, c.exports
	queue := c.queue
	c.questions, c.exports, c.queue = nil, nil, nil
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
func (c *conn) enqueue(m *capnp.Message) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		m.Release()
		return
	}
	c.queue = append(c.queue, m)
	c.queued += messageSize(m) + messageCost
	unread := c.queued > maxQueued
	c.mu.Unlock()
	if unread {
		c.fail(fmt.Errorf("%w: the peer does not read", errProtocol))
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *conn) sendQueue() {
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			c.farewell()
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
			c.mu.Unlock()
			if err != nil {
				c.fail(fmt.Errorf("send: %w", err))
			}
		}
	}
}

// receiveAll handles messages until the stream or the peer's good behaviour ends.
func (c *conn) receiveAll() error {
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

// errProtocol is wrapped by errors about what a peer must not send.
var errProtocol = errors.New("protocol violation")

// errEmpty is about a null pointer where a message's content belongs. What is below may be null: then it reads as zero.
var errEmpty = fmt.Errorf("%w: empty message", errProtocol)

// handle dispatches one message. Whoever it is passed to releases it.
func (c *conn) handle(m rpccp.Message) error {
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
		return fmt.Errorf("%w: message of kind %d", errProtocol, m.Which())
	}
}

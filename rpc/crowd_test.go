package rpc

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"

	"agentvm/rpc/wire"
)

// TestUnansweredIsBounded: a guest that answers nothing, or has been paused, costs no more however often it is asked, and what is
// asked after it has answered is answered.
func TestUnansweredIsBounded(t *testing.T) {
	answers := make(chan struct{})
	l := dialHand(t, handGuest{connect: func(to wire.Sink) wire.Sink {
		<-answers
		to.Release()
		return wire.Sink{}
	}})
	l.conn.mu.Lock()
	for i := range uint32(maxQuestions - 3) { // asked long ago
		l.conn.questions[1000+i] = &question{answer: make(chan rpccp.Return, 1), given: true}
	}
	l.conn.mu.Unlock()
	given, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if _, err := l.Dial(given, "", 1, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := l.Dial(given, "", 1, nil); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("one more: %v, want EAGAIN", err)
	}
	close(answers)
	eventually(t, "all is answered", func() bool {
		l.conn.mu.Lock()
		defer l.conn.mu.Unlock()
		return len(l.conn.questions) == maxQuestions-3 && len(l.conn.exports) == 0
	})
	if _, err := l.Dial(t.Context(), "", 1, nil); err == nil || !strings.Contains(err.Error(), "has not answered with a stream") {
		t.Errorf("then: %v", err)
	}
}

// TestNothingIsGivenBack: what a guest keeps of the host is bounded.
func TestNothingIsGivenBack(t *testing.T) {
	l := dialHand(t, handGuest{connect: func(wire.Sink) wire.Sink { return wire.Sink{} }}) // keeps toClient
	l.conn.mu.Lock()
	for i := range uint32(maxExports - 2) {
		l.conn.exports[1000+i] = &export{refs: 1}
	}
	l.conn.mu.Unlock()
	for range 2 {
		if _, err := l.Dial(t.Context(), "", 1, nil); err == nil || errors.Is(err, syscall.EAGAIN) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := l.Dial(t.Context(), "", 1, nil); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("one more: %v", err)
	}
	if n := l.conn.exported(); n != maxExports {
		t.Errorf("the guest has %d", n)
	}
}

// TestUnreadIsCounted: messages that a peer does not read are counted by what they take, about.
func TestUnreadIsCounted(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	c := startConn(near, near, near, nil)
	defer c.close()
	for range 100 {
		(&remote{c, 1}).Shutdown()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queued < 100*1000 {
		t.Errorf("100 messages of a kilobyte and more count as %d bytes", c.queued)
	}
}

// TestLongReason: an error keeps little of what a peer says.
func TestLongReason(t *testing.T) {
	l := dialHand(t, handGuest{connect: func(to wire.Sink) wire.Sink {
		out := newOutlet(context.Background(), to, 100, 1)
		out.abort(errors.New(strings.Repeat("\u00e9", 1<<20)))
		out.release()
		return swallow()
	}})
	c, err := l.Dial(t.Context(), "", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Read(make([]byte, 1)); err == nil || len(err.Error()) < 1000 || len(err.Error()) > maxReason+1000 {
		t.Errorf("%d bytes of an error", len(err.Error()))
	}
}

// TestLongAnswer: what a stream has not looked at yet is little, whatever the peer answers.
func TestLongAnswer(t *testing.T) {
	near, far := net.Pipe()
	c := startConn(near, near, near, nil)
	defer c.close()
	to := wire.Sink(capnp.NewClient(&remote{c, 1}))
	defer to.Release()
	out := newOutlet(c.ctx, to.AddRef(), 100, 2)
	defer out.release()
	answered := make(chan error, 1)
	go func() {
		peer := newTransport(far, far)
		m, err := peer.receive()
		if err != nil {
			answered <- err
			return
		}
		call, _ := m.Call()
		answer, _ := newMessage()
		ret, _ := answer.NewReturn()
		ret.SetAnswerId(call.QuestionId())
		exception, _ := ret.NewException()
		_ = exception.SetReason(strings.Repeat("x", mostOfSend))
		answered <- peer.send(answer.Message())
	}()
	if _, err := out.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := out.sends.drain(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	<-c.done
	if !errors.Is(c.err, errProtocol) {
		t.Errorf("the connection has ended by %v", c.err)
	}
}

// TestNumbersComeAgain: a number is not given twice, also after all have been given.
func TestNumbersComeAgain(t *testing.T) {
	taken := map[uint32]int{0: 1, 1: 1, 3: 1, math.MaxUint32: 1}
	for _, want := range [][2]uint32{{0, 2}, {1, 2}, {2, 4}, {math.MaxUint32 - 1, 2}} {
		if got := free(want[0], taken); got != want[1] {
			t.Errorf("after %d: %d, want %d", want[0], got, want[1])
		}
	}
}

// TestRelayIsLeft: a relay whose peer has broken off waits for no answer of that peer's: it would be one that nothing counts any more.
func TestRelayIsLeft(t *testing.T) {
	for name, leave := range map[string]func(*outlet) error{
		"broken off":          func(o *outlet) error { o.abort(errBrokenOff); return nil },
		"ended, then left":    func(o *outlet) error { err := o.end(); o.abort(errClosedStream); return err },
		"dropped without end": func(*outlet) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			var open atomic.Int32
			proxy := dialProxy(t, func(context.Context, string) (Stream, error) {
				near, far := net.Pipe()
				open.Add(1)
				go func() {
					defer open.Add(-1)
					b := make([]byte, 64<<10)
					for {
						if _, err := far.Write(b); err != nil {
							return
						}
					}
				}()
				return pipeStream{near}, nil
			})
			// The guest's end by hand: what comes is never answered, until the host does not wait for it.
			given, took := make(chan struct{}), make(chan struct{}, 100)
			own := &inlet{
				take: func([]byte) error {
					took <- struct{}{}
					select {
					case <-given:
						return nil
					case <-time.After(time.Minute):
						return errors.New("nobody has given up")
					}
				},
				finish: func(error) error { return nil }, cancel: sync.OnceFunc(func() { close(given) }),
			}
			future, release := proxy.Connect(t.Context(), func(w wire.NetworkProxy_connect_Params) error {
				target, err := w.NewTarget()
				if err != nil {
					return err
				}
				return errors.Join(target.SetSocket("a"), w.SetToClient(wire.Sink_ServerToClient(own)))
			})
			r, err := future.Struct()
			if err != nil {
				t.Fatal(err)
			}
			out := newOutlet(t.Context(), r.ToServer().AddRef(), 100, 1)
			release()
			<-took
			if err := leave(out); err != nil {
				t.Error(err)
			}
			out.release()
			<-given
			eventually(t, "the host's stream is closed", func() bool { return open.Load() == 0 })
		})
	}
}

// dialProxy is the guest's end of a connection whose host connects it by connect.
func dialProxy(t *testing.T, connect Connector) wire.NetworkProxy {
	t.Helper()
	host, guest := net.Pipe()
	serves := startConn(host, host, host, func(c *conn) capnp.Client {
		return capnp.Client(wire.NetworkProxy_ServerToClient(&networkProxy{c: c, connect: connect}))
	})
	t.Cleanup(serves.close)
	asks := startConn(guest, guest, guest, nil)
	t.Cleanup(asks.close)
	return wire.NetworkProxy(capnp.NewClient(&remote{asks, offered}))
}

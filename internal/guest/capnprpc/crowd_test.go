package capnprpc

import (
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"syscall"
	"testing"

	"capnproto.org/go/capnp/v3"
	rpccp "capnproto.org/go/capnp/v3/std/capnp/rpc"

	"agentvm/internal/guest/capnprpc/rpctest"
	"agentvm/internal/guest/capnprpc/streamwire"
)

// TestUnansweredIsBounded: calls to a guest that answers nothing, or is paused, cost a bounded amount of memory, and calls work again
// once it answers.
func TestUnansweredIsBounded(t *testing.T) {
	answers := make(chan struct{})
	l := dialHand(t, handGuest{connect: func(to streamwire.Sink) streamwire.Sink {
		<-answers
		to.Release()
		return streamwire.Sink{}
	}}.serve)
	l.conn.mu.Lock()
	for i := range uint32(maxQuestions - 3) { // asked long ago
		l.conn.questions[1000+i] = &question{answer: make(chan rpccp.Return, 1), abandoned: true}
	}
	l.conn.mu.Unlock()
	given, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		if _, err := l.Dial(given, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := l.Dial(given, nil); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("one more: %v, want EAGAIN", err)
	}
	close(answers)
	rpctest.Eventually(t, "all is answered", func() bool {
		l.conn.mu.Lock()
		defer l.conn.mu.Unlock()
		return len(l.conn.questions) == maxQuestions-3 && len(l.conn.exports) == 0
	})
	if _, err := l.Dial(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "has not answered with a stream") {
		t.Errorf("then: %v", err)
	}
}

// TestNothingIsGivenBack: the host's capabilities that a guest does not release are bounded.
func TestNothingIsGivenBack(t *testing.T) {
	l := dialHand(t, handGuest{connect: func(streamwire.Sink) streamwire.Sink { return streamwire.Sink{} }}.serve) // keeps toClient
	l.conn.mu.Lock()
	for i := range uint32(maxExports - 2) {
		l.conn.exports[1000+i] = &export{refs: 1}
	}
	l.conn.mu.Unlock()
	for range 2 {
		if _, err := l.Dial(t.Context(), nil); err == nil || errors.Is(err, syscall.EAGAIN) {
			t.Errorf("got %v", err)
		}
	}
	if _, err := l.Dial(t.Context(), nil); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("one more: %v", err)
	}
	if n := l.conn.Exported(); n != maxExports {
		t.Errorf("the guest has %d", n)
	}
}

// TestUnreadIsCounted: messages that a peer does not read are charged with about the memory that they take.
func TestUnreadIsCounted(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	c := Start(near, near, near, nil)
	defer c.Close()
	for range 100 {
		(&remote{c, 1}).Shutdown()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.queued < 100*1000 {
		t.Errorf("100 messages of a kilobyte and more count as %d bytes", c.queued)
	}
}

// TestLongAnswer: answers that a stream has not read yet are bounded, whatever the peer sends.
func TestLongAnswer(t *testing.T) {
	near, far := net.Pipe()
	c := Start(near, near, near, nil)
	defer c.Close()
	to := streamwire.Sink(capnp.NewClient(&remote{c, 1}))
	defer to.Release()
	out := NewSinkWriter(c.ctx, to.AddRef(), 100, 2)
	defer out.Release()
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
		_ = exception.SetReason(strings.Repeat("x", maxSendAnswer))
		answered <- peer.send(answer.Message())
	}()
	if _, err := out.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := out.sends.Drain(context.Background()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	<-c.done
	if !errors.Is(c.err, ErrProtocol) {
		t.Errorf("the connection has ended by %v", c.err)
	}
}

// TestNumbersComeAgain: no number is used twice at once, also after all have been used.
func TestNumbersComeAgain(t *testing.T) {
	taken := map[uint32]int{0: 1, 1: 1, 3: 1, math.MaxUint32: 1}
	for _, want := range [][2]uint32{{0, 2}, {1, 2}, {2, 4}, {math.MaxUint32 - 1, 2}} {
		if got := free(want[0], taken); got != want[1] {
			t.Errorf("after %d: %d, want %d", want[0], got, want[1])
		}
	}
}

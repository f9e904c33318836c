package guestrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/rpctest"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// TestCloseOfAccepted: a connection that was accepted and closed has delivered what was written before, and leaves nothing.
func TestCloseOfAccepted(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcde\n"), 4<<10)
	for _, first := range []string{"written", "CloseWrite", "CloseRead"} {
		t.Run(first, func(t *testing.T) {
			ended := make(chan struct{})
			l, _ := dialLoopback(t)
			s := listenLoopback(t, l, ListenConfig{Admit: func() (func(), error) { return func() { close(ended) }, nil }})
			program, err := net.Dial("tcp", s.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = program.Close() }()
			c, err := s.Accept()
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Write(data)
			switch first {
			case "CloseWrite":
				err = errors.Join(err, c.(*capnprpc.StreamConn).CloseWrite())
			case "CloseRead":
				err = errors.Join(err, c.(*capnprpc.StreamConn).CloseRead())
			}
			if err = errors.Join(err, c.Close()); err != nil {
				t.Error(err)
			}
			<-ended
			if got, err := io.ReadAll(program); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

func portOfText(t *testing.T, address string) uint16 {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(a.Port)
}

// TestOldHost: a host of an earlier version, which releases its Sink after CloseWrite, can still read.
func TestOldHost(t *testing.T) {
	at := rpctest.Server(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		time.Sleep(10 * time.Millisecond)
		_, _ = c.Write(b)
	})
	l, _ := dialLoopback(t)
	var got bytes.Buffer
	done := make(chan error, 1)
	own := &capnprpc.SinkReader{Take: func(b []byte) error { _, err := got.Write(b); return err }, Finish: func(why error) error { done <- why; return nil }}
	future, release := l.remote.Connect(t.Context(), func(w guestwire.Loopback_connect_Params) error {
		w.SetPort(portOfText(t, at))
		return errors.Join(w.SetHost("127.0.0.1"), w.SetToClient(streamwire.Sink_ServerToClient(own)))
	})
	r, err := future.Struct()
	if err != nil {
		t.Fatal(err)
	}
	out := capnprpc.NewSinkWriter(t.Context(), r.ToGuest().AddRef(), 100, 1)
	release()
	_, err = out.Write([]byte("question"))
	if err = errors.Join(err, out.End()); err != nil {
		t.Error(err)
	}
	out.Release()
	if err := <-done; err != nil || got.String() != "question" {
		t.Errorf("%q, %v", got.String(), err)
	}
}

// scriptedListener returns the errors that it receives, and a connection for nil.
type scriptedListener struct {
	net.Listener
	answers chan error
	once    sync.Once
	closed  chan struct{}
}

func newScriptedListener() *scriptedListener {
	return &scriptedListener{answers: make(chan error, 100), closed: make(chan struct{})}
}

func (l *scriptedListener) Accept() (net.Conn, error) {
	select {
	case err := <-l.answers:
		if err != nil {
			return nil, &net.OpError{Op: "accept", Err: err}
		}
		near, far := net.Pipe()
		go func() { _, _ = far.Write([]byte("hello")); _, _ = io.Copy(io.Discard, far) }()
		return rpctest.PipeStream{Conn: near}, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *scriptedListener) Close() error { l.once.Do(func() { close(l.closed) }); return nil }

func (*scriptedListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4000} }

func (l *scriptedListener) OpenLocalTCP(context.Context, string, uint16) (capnprpc.Stream, error) {
	return nil, syscall.ECONNREFUSED
}

func (l *scriptedListener) ListenLocalTCP(string, uint16) (net.Listener, error) { return l, nil }

// TestAcceptContinues: temporary errors end no listener. Others do, and the host's Accept returns an error.
func TestAcceptContinues(t *testing.T) {
	guest := newScriptedListener()
	host, port := net.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ServeBulk(ctx, port, &shelf{}, guest, nil) }()
	t.Cleanup(func() { stop(); <-done })
	client, err := DialFiles(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	s, err := client.Loopback().Listen(t.Context(), "127.0.0.1", 4000, ListenConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ECONNABORTED} {
		guest.answers <- err
		guest.answers <- nil
		c, err2 := s.Accept()
		if err2 != nil {
			t.Fatalf("after %v: %v", err, err2)
		}
		if _, err2 := io.ReadFull(c, make([]byte, 5)); err2 != nil {
			t.Errorf("after %v: %v", err, err2)
		}
		_ = c.Close()
	}
	guest.answers <- syscall.EINVAL
	for range 2 {
		if _, err := s.Accept(); !errors.Is(err, syscall.EINVAL) || errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept of a listener that the guest has ended: %v", err)
		}
	}
	<-guest.closed
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestListenFails: nothing listens when the host does not learn of it.
func TestListenFails(t *testing.T) {
	guest := newScriptedListener()
	full := errors.New("no space")
	_, err := loopback{h: guest}.listen("127.0.0.1", 0, func() (streamwire.Endpoint, error) { return streamwire.Endpoint{}, full })
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
	select {
	case <-guest.closed:
	default:
		t.Error("it listens")
	}
}

// TestArrivalsLeave: a connection that the guest takes back leaves its place to another.
func TestArrivalsLeave(t *testing.T) {
	host, guest := net.Pipe()
	ended := make(chan struct{}, 10)
	s := &Listener{
		queue: make(chan struct{}, 1), done: make(chan struct{}),
		config: ListenConfig{Backlog: 2, Admit: func() (func(), error) { return func() { ended <- struct{}{} }, nil }},
	}
	c, asks := capnprpc.Start(host, host, host, func(*capnprpc.Conn) capnp.Client {
		return capnp.Client(guestwire.Acceptor_ServerToClient(&acceptor{s}))
	}), capnprpc.Start(guest, guest, guest, nil)
	defer c.Close()
	defer asks.Close()
	s.c = c
	to := guestwire.Acceptor(asks.Import(capnprpc.Offered))
	defer to.Release()
	connect := func(ctx context.Context) (future guestwire.Acceptor_accept_Results_Future, release capnp.ReleaseFunc) {
		return to.Accept(ctx, func(w guestwire.Acceptor_accept_Params) error {
			return w.SetToProgram(streamwire.Sink_ServerToClient(&capnprpc.SinkReader{Take: func([]byte) error { return nil }, Finish: func(error) error { return nil }}))
		})
	}
	waiting := func() int { s.mu.Lock(); defer s.mu.Unlock(); return len(s.waiting) }
	var calls sync.WaitGroup
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 2 {
			calls.Go(func() {
				future, release := connect(ctx)
				defer release()
				if _, err := future.Struct(); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v", err)
				}
			})
			rpctest.Eventually(t, "it waits", func() bool { return waiting() == i+1 })
		}
		cancel()
		for range 2 {
			<-ended
		}
		calls.Wait()
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
	answered := make(chan error, 1)
	go func() {
		future, release := connect(t.Context())
		defer release()
		r, err := future.Struct()
		answered <- errors.Join(err, capnprpc.FailureOf(r.Failure()))
	}()
	got, err := s.Accept()
	if err = errors.Join(err, <-answered); err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
}

package rpc

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

	"agentvm/rpc/wire"
)

// handGuest is a guest whose connections are made by hand, without a Stream behind them.
type handGuest struct {
	wire.Loopback_Server
	// connect gives what the host sends to, and is given what it receives by, which is connect's to release.
	connect func(toClient wire.Sink) wire.Sink
}

func (g handGuest) Connect(_ context.Context, call wire.Loopback_connect) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return r.SetToGuest(g.connect(call.Args().ToClient().AddRef()))
}

// swallow is a Sink that takes everything.
func swallow() wire.Sink {
	return wire.Sink_ServerToClient(&inlet{take: func([]byte) error { return nil }, finish: func(error) error { return nil }})
}

// dialHand is the host's end of a connection to such a guest.
func dialHand(t *testing.T, g handGuest) *Loopback {
	t.Helper()
	host, guest := net.Pipe()
	serves := startConn(guest, guest, guest, func(*conn) capnp.Client { return capnp.Client(wire.Loopback_ServerToClient(g)) })
	t.Cleanup(serves.close)
	asks := startConn(host, host, host, nil)
	t.Cleanup(asks.close)
	return &Loopback{conn: asks, remote: wire.Loopback(capnp.NewClient(&remote{asks, offered}))}
}

// exported is how many capabilities of this end the peer has.
func (c *conn) exported() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.exports)
}

func eventually(t *testing.T, what string, come func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !come(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain: " + what)
		}
	}
}

// TestCloseLetsGo: a connection that is closed is nobody's any more, also when the other end goes on as if nothing had happened. What was
// written before arrives all the same, and who writes back learns that nobody reads.
func TestCloseLetsGo(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcde\n"), 4<<10)
	for _, first := range []string{"written", "CloseWrite", "CloseRead"} {
		t.Run("dialled, "+first, func(t *testing.T) {
			ended, served := make(chan struct{}), make(chan error, 1)
			at := server(t, func(c *net.TCPConn) {
				<-ended
				got, err := io.ReadAll(c)
				if err == nil && !bytes.Equal(got, data) {
					err = errors.New("other bytes than were written")
				}
				for err == nil {
					_, err = c.Write(data)
				}
				served <- err
			})
			l, client := dialLoopback(t)
			c, err := l.Dial(t.Context(), "127.0.0.1", portOfText(t, at), func() { close(ended) })
			if err != nil {
				t.Fatal(err)
			}
			useAndClose(t, c, data, first)
			<-ended
			if err := <-served; !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server sees %v", err)
			}
			eventually(t, "the guest has nothing of the host's", func() bool { return client.conn.exported() == 0 })
		})
		t.Run("accepted, "+first, func(t *testing.T) {
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
			useAndClose(t, c.(*Conn), data, first)
			<-ended
			if got, err := io.ReadAll(program); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
}

func useAndClose(t *testing.T, c *Conn, data []byte, first string) {
	t.Helper()
	_, err := c.Write(data)
	switch first {
	case "CloseWrite":
		err = errors.Join(err, c.CloseWrite())
	case "CloseRead":
		err = errors.Join(err, c.CloseRead())
	}
	if err = errors.Join(err, c.Close()); err != nil {
		t.Error(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if first == "CloseWrite" {
		return // sending may have been over before Close
	}
	if c.lingering == nil {
		t.Error("Close would wait for ever")
		return
	}
	t.Cleanup(func() {
		if c.lingering.Stop() {
			t.Error("the timer of Close goes on when nothing is left to wait for")
		}
	})
}

func portOfText(t *testing.T, address string) uint16 {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return uint16(a.Port)
}

// TestOldGuest: one that lets go of nothing when the host has closed, as they did, keeps the connection, and its place, until its own
// end. All else works.
func TestOldGuest(t *testing.T) {
	toClient, told := make(chan wire.Sink, 1), make(chan error, 1)
	l := dialHand(t, handGuest{connect: func(to wire.Sink) wire.Sink {
		toClient <- to
		return wire.Sink_ServerToClient(&inlet{take: func([]byte) error { return nil }, finish: func(why error) error { told <- why; return nil }})
	}})
	ended := make(chan struct{})
	c, err := l.Dial(t.Context(), "", 1, func() { close(ended) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
	if err := <-told; err != nil {
		t.Errorf("the guest was told of %v, want the end", err)
	}
	to := <-toClient
	out := newOutlet(context.Background(), to, 100, 1)
	sent := make(chan error, 1)
	go func() { _, err := out.Write([]byte("answer")); sent <- err }()
	if _, err := io.ReadFull(c, make([]byte, 6)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(<-sent, c.Close()); err != nil {
		t.Error(err)
	}
	if _, err := out.Write([]byte("more")); err == nil {
		err = out.sends.drain(t.Context())
		if !errors.Is(err, syscall.EPIPE) {
			t.Errorf("what is said to who has closed: %v", err)
		}
	}
	eventually(t, "nothing more is sent", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return !c.sending })
	select {
	case <-ended:
		t.Error("the guest has the host's Sink, which is not counted")
	default:
	}
	out.release()
	<-ended
}

// TestOldHost: one that lets go of its Sink after CloseWrite, as they did, may still read.
func TestOldHost(t *testing.T) {
	at := server(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		time.Sleep(10 * time.Millisecond)
		_, _ = c.Write(b)
	})
	l, _ := dialLoopback(t)
	var got bytes.Buffer
	done := make(chan error, 1)
	own := &inlet{take: func(b []byte) error { _, err := got.Write(b); return err }, finish: func(why error) error { done <- why; return nil }}
	future, release := l.remote.Connect(t.Context(), func(w wire.Loopback_connect_Params) error {
		w.SetPort(portOfText(t, at))
		return errors.Join(w.SetHost("127.0.0.1"), w.SetToClient(wire.Sink_ServerToClient(own)))
	})
	r, err := future.Struct()
	if err != nil {
		t.Fatal(err)
	}
	out := newOutlet(t.Context(), r.ToGuest().AddRef(), 100, 1)
	release()
	_, err = out.Write([]byte("question"))
	if err = errors.Join(err, out.end()); err != nil {
		t.Error(err)
	}
	out.release()
	if err := <-done; err != nil || got.String() != "question" {
		t.Errorf("%q, %v", got.String(), err)
	}
}

// TestNothingArrives: a send without bytes is no reason for a Read to return.
func TestNothingArrives(t *testing.T) {
	sent := make(chan error, 1)
	l := dialHand(t, handGuest{connect: func(to wire.Sink) wire.Sink {
		go func() {
			out := newOutlet(context.Background(), to, 100, 1)
			send := func(b []byte) error {
				future, release := to.Send(context.Background(), func(w wire.Sink_send_Params) error { return w.SetData(b) })
				defer release()
				_, err := future.Struct()
				return err
			}
			sent <- errors.Join(send(nil), send([]byte("x")), send(nil), out.end())
			out.release()
		}()
		return swallow()
	}})
	c, err := l.Dial(t.Context(), "", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	b := make([]byte, 10)
	if n, err := c.Read(b); n != 1 || err != nil {
		t.Errorf("Read: %d, %v", n, err)
	}
	if n, err := c.Read(b); n != 0 || err != io.EOF {
		t.Errorf("then: %d, %v", n, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// scriptedListener accepts what it is told, and a connection for nil.
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
		return pipeStream{near}, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *scriptedListener) Close() error { l.once.Do(func() { close(l.closed) }); return nil }
func (*scriptedListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4000} }

func (l *scriptedListener) OpenLocalTCP(context.Context, string, uint16) (Stream, error) {
	return nil, syscall.ECONNREFUSED
}
func (l *scriptedListener) ListenLocalTCP(string, uint16) (net.Listener, error) { return l, nil }

// TestAcceptGoesOn: errors that pass end no listener. Others do, and the host's Accept says so.
func TestAcceptGoesOn(t *testing.T) {
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

// TestListenFails: nothing listens for a host that was not told of it.
func TestListenFails(t *testing.T) {
	guest := newScriptedListener()
	full := errors.New("no space")
	_, err := loopback{h: guest}.listen("127.0.0.1", 0, func() (wire.Endpoint, error) { return wire.Endpoint{}, full })
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
	c, asks := startConn(host, host, host, nil), startConn(guest, guest, guest, nil)
	defer c.close()
	defer asks.close()
	ended := make(chan struct{}, 10)
	s := &Listener{
		c: c, queue: make(chan struct{}, 1), done: make(chan struct{}),
		config: ListenConfig{Backlog: 2, Admit: func() (func(), error) { return func() { ended <- struct{}{} }, nil }},
	}
	c.mu.Lock()
	c.exports[77] = &export{client: capnp.Client(wire.Acceptor_ServerToClient(&acceptor{s})), refs: 1}
	c.mu.Unlock()
	to := wire.Acceptor(capnp.NewClient(&remote{asks, 77}))
	defer to.Release()
	connect := func(ctx context.Context) (future wire.Acceptor_accept_Results_Future, release capnp.ReleaseFunc) {
		return to.Accept(ctx, func(w wire.Acceptor_accept_Params) error {
			return w.SetToProgram(swallow())
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
			eventually(t, "it waits", func() bool { return waiting() == i+1 })
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
		answered <- errors.Join(err, failureOf(r.Failure()))
	}()
	got, err := s.Accept()
	if err = errors.Join(err, <-answered); err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
}

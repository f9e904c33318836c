package guestrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"capnproto.org/go/capnp/v3"
	"golang.org/x/net/nettest"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// hostLoopback is a guest whose loopback interface is the host's.
type hostLoopback struct{}

func (hostLoopback) OpenLocalTCP(ctx context.Context, host string, port uint16) (capnprpc.Stream, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func (hostLoopback) ListenLocalTCP(host string, port uint16) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
}

// dialLoopback is the host's end of a bulk port with a loopback interface.
func dialLoopback(t testing.TB) (*Loopback, *FilesClient) {
	t.Helper()
	host, port := net.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ServeBulk(ctx, port, &shelf{}, hostLoopback{}, nil) }()
	t.Cleanup(func() { stop(); <-done })
	c, err := DialFiles(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c.Loopback(), c
}

func listenLoopback(t testing.TB, l *Loopback, config ListenConfig) *Listener {
	t.Helper()
	s, err := l.Listen(t.Context(), "127.0.0.1", 0, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func portOf(a net.Addr) uint16 { return uint16(a.(*net.TCPAddr).Port) }

// joined are the two ends of a connection through the guest.
func joined(l *Loopback, s *Listener) (c1, c2 *capnprpc.StreamConn, err error) {
	if c1, err = l.Dial(context.Background(), "127.0.0.1", portOf(s.Addr()), nil); err != nil {
		return nil, nil, err
	}
	far, err := s.Accept()
	if err != nil {
		return nil, nil, errors.Join(err, c1.Close())
	}
	return c1, far.(*capnprpc.StreamConn), nil
}

func join(t testing.TB, l *Loopback, s *Listener) (c1, c2 *capnprpc.StreamConn) {
	t.Helper()
	c1, c2, err := joined(l, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c1.Close(), c2.Close() })
	return c1, c2
}

func TestConnConforms(t *testing.T) {
	l, _ := dialLoopback(t)
	s := listenLoopback(t, l, ListenConfig{})
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		a, b, err := joined(l, s)
		if err != nil {
			return nil, nil, nil, err
		}
		return a, b, func() { _, _ = a.Close(), b.Close() }, nil
	})
}

func TestConnHalves(t *testing.T) {
	l, _ := dialLoopback(t)
	s := listenLoopback(t, l, ListenConfig{})
	data := bytes.Repeat([]byte("0123456789abcde\n"), 64<<10)
	t.Run("ReadFrom, CloseWrite and WriteTo", func(t *testing.T) {
		c, far := join(t, l, s)
		go func() {
			_, err := far.ReadFrom(far) // echo
			if err = errors.Join(err, far.CloseWrite()); err != nil {
				t.Error(err)
			}
		}()
		var sent sync.WaitGroup
		sent.Go(func() {
			n, err := c.ReadFrom(bytes.NewReader(data))
			if err = errors.Join(err, c.CloseWrite(), c.CloseWrite()); err != nil || n != int64(len(data)) {
				t.Errorf("%d bytes, %v", n, err)
			}
		})
		var got bytes.Buffer
		if n, err := c.WriteTo(&got); err != nil || n != int64(len(data)) || !bytes.Equal(got.Bytes(), data) {
			t.Errorf("%d bytes, %v, or other ones", n, err)
		}
		sent.Wait()
		if _, err := c.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("Write after CloseWrite: %v", err)
		}
	})
	t.Run("CloseRead", func(t *testing.T) {
		c, far := join(t, l, s)
		if err := c.CloseRead(); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read: %v", err)
		}
		if _, err := far.Write(data); err != nil { // discarded
			t.Errorf("the other end's Write: %v", err)
		}
		_, err := c.Write(data[:100])
		if err = errors.Join(err, c.CloseWrite()); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(far); err != nil || !bytes.Equal(got, data[:100]) {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("broken", func(t *testing.T) {
		c, far := join(t, l, s)
		if _, err := c.Write(data); err != nil {
			t.Error(err)
		}
		_ = far.Close() // bytes that are under way reset the connection
		_, err := io.Copy(io.Discard, c)
		for err == nil { // the end may come before the reset
			if _, err = c.Write(data); errors.Is(err, syscall.EPIPE) {
				return
			}
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("Read: %v", err)
		}
		for what, end := range map[string]func() error{"CloseWrite": c.CloseWrite, "CloseRead": c.CloseRead} {
			if err := end(); !errors.Is(err, syscall.ENOTCONN) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	t.Run("closed", func(t *testing.T) {
		c, _ := join(t, l, s)
		_ = c.Close()
		_, readErr := c.Read(make([]byte, 1))
		_, writeErr := c.Write(make([]byte, 1))
		for what, err := range map[string]error{
			"Read": readErr, "Write": writeErr, "Close": c.Close(), "CloseWrite": c.CloseWrite(), "CloseRead": c.CloseRead(),
			"SetDeadline": c.SetDeadline(time.Time{}),
		} {
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
	t.Run("deadline", func(t *testing.T) {
		c, _ := join(t, l, s)
		_ = c.SetDeadline(time.Unix(1, 0))
		_, readErr := c.Read(make([]byte, 1))
		_, writeErr := c.Write(make([]byte, 1))
		for what, err := range map[string]error{"Read": readErr, "Write": writeErr} {
			var op *net.OpError
			if !errors.As(err, &op) || !op.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// TestConnEnds: the function for the end of a connection is called once, after both directions are over.
func TestConnEnds(t *testing.T) {
	l, _ := dialLoopback(t)
	ended := make(chan string, 10)
	s := listenLoopback(t, l, ListenConfig{Admit: func() (func(), error) { return func() { ended <- "accepted" }, nil }})
	c, err := l.Dial(t.Context(), "127.0.0.1", portOf(s.Addr()), func() { ended <- "dialled" })
	if err != nil {
		t.Fatal(err)
	}
	far, err := s.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if len(ended) != 0 {
		t.Errorf("%q before its end", <-ended)
	}
	_, _ = c.Close(), far.Close()
	first, second := <-ended, <-ended
	if first == second || len(ended) > 0 {
		t.Errorf("%q and %q, and %d more", first, second, len(ended))
	}
	closed := portOf(s.Addr())
	_ = s.Close()
	if _, err := l.Dial(t.Context(), "127.0.0.1", closed, func() { ended <- "never" }); !errors.Is(err, syscall.ECONNREFUSED) || len(ended) > 0 {
		t.Errorf("%v, %d", err, len(ended))
	}
}

func TestListenerBacklog(t *testing.T) {
	l, _ := dialLoopback(t)
	s := listenLoopback(t, l, ListenConfig{Backlog: 2})
	dial := func() net.Conn {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var waiting []net.Conn
	for range 5 { // three of them in the kernel's
		waiting = append(waiting, dial())
	}
	for range waiting {
		c, err := s.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		defer func() { _ = c.Close() }()
	}
	for _, c := range waiting {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Error(err)
		}
	}
	left := dial()
	_ = s.Close()
	if _, err := left.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that was not accepted read %v", err)
	}
	if again, err := l.Listen(t.Context(), "127.0.0.1", portOf(s.Addr()), ListenConfig{}); err != nil { // the port is free
		t.Error(err)
	} else {
		_ = again.Close()
	}
}

// TestListenerAdmits: a connection that is not admitted is reset before it costs anything.
func TestListenerAdmits(t *testing.T) {
	l, _ := dialLoopback(t)
	s := listenLoopback(t, l, ListenConfig{Admit: func() (func(), error) { return nil, syscall.EAGAIN }})
	c, err := net.Dial("tcp", s.Addr().String())
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the program sees %v", err)
	}
}

// TestListenerEnds: Accept is unblocked by Close, and by the end of the connection to the guest.
func TestListenerEnds(t *testing.T) {
	for name, end := range map[string]func(*Listener, *FilesClient) error{
		"Close":          func(s *Listener, _ *FilesClient) error { return s.Close() },
		"the connection": func(_ *Listener, c *FilesClient) error { return c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			l, c := dialLoopback(t)
			s := listenLoopback(t, l, ListenConfig{})
			accepted := make(chan error, 1)
			go func() { _, err := s.Accept(); accepted <- err }()
			if err := end(s, c); err != nil {
				t.Error(err)
			}
			if err := <-accepted; !errors.Is(err, net.ErrClosed) {
				t.Errorf("got %v", err)
			}
			if _, err := s.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("then: %v", err)
			}
			if _, err := net.Dial("tcp", s.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) && name == "Close" {
				t.Errorf("a program connects: %v", err)
			}
		})
	}
}

// TestLostConnection: streams end with the connection between host and guest, as a reset.
func TestLostConnection(t *testing.T) {
	l, client := dialLoopback(t)
	c, far := join(t, l, listenLoopback(t, l, ListenConfig{}))
	ends := make(chan error, 4)
	for _, c := range []*capnprpc.StreamConn{c, far} {
		go func() { _, err := c.Read(make([]byte, 1)); ends <- err }()
		go func() {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					ends <- err
					return
				}
			}
		}()
	}
	_ = client.Close()
	for range cap(ends) {
		if err := <-ends; !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) && err != nil {
			t.Errorf("got %v", err)
		}
	}
}

// TestHostileAccept: a hostile guest's calls to a listener cost the host no more than the backlog.
func TestHostileAccept(t *testing.T) {
	admitted := make(chan struct{}, 1000)
	s := &Listener{
		config: ListenConfig{Backlog: 3, Admit: func() (func(), error) { admitted <- struct{}{}; return func() { <-admitted }, nil }},
		queue:  make(chan struct{}, 1), done: make(chan struct{}),
	}
	host, guest := net.Pipe()
	c := capnprpc.Start(host, host, host, func(*capnprpc.Conn) capnp.Client {
		return capnp.Client(guestwire.Acceptor_ServerToClient(&acceptor{s}))
	})
	defer c.Close()
	s.c = c
	asks := capnprpc.Start(guest, guest, guest, nil)
	defer asks.Close()
	to := guestwire.Acceptor(asks.Import(capnprpc.Offered))
	defer to.Release()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	failures := make(chan error, 100)
	var calls sync.WaitGroup
	for i := range 100 {
		calls.Go(func() {
			future, release := to.Accept(ctx, func(w guestwire.Acceptor_accept_Params) error {
				if i%10 == 0 {
					return nil // without a stream
				}
				return w.SetToProgram(streamwire.Sink_ServerToClient(&capnprpc.SinkReader{Take: func([]byte) error { return nil }, Finish: func(error) error { return nil }}))
			})
			defer release()
			r, err := future.Struct()
			if err == nil {
				err = capnprpc.FailureOf(r.Failure())
			}
			failures <- err
		})
	}
	for range 97 {
		if err := <-failures; !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("got %v", err)
		}
	}
	if len(admitted) != 3 {
		t.Errorf("%d are counted, want 3", len(admitted))
	}
	cancel()
	calls.Wait()
	for len(admitted) > 0 {
		time.Sleep(time.Millisecond)
	}
}

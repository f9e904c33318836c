package guestrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/rpctest"
)

// linked is a guest whose loopback interface is the host's, for ports that are in its table.
type linked struct {
	echo
	addresses map[uint16]string
	connect   Connector // of Start
}

func (l *linked) Start(p StartParams, _ func(slog.Level, string)) (GuestInfo, error) {
	l.connect = p.Connect
	return GuestInfo{}, nil
}

func (l *linked) OpenLocalTCP(ctx context.Context, _ string, port uint16) (capnprpc.Stream, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.addresses[port])
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func dialLinked(t testing.TB, h Handler, p StartParams) *Client {
	t.Helper()
	host, port := net.Pipe()
	serveOn(t, port, h)
	c, err := Dial(t.Context(), host, ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Start(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLocalTCP(t *testing.T) {
	l := &linked{addresses: map[uint16]string{
		1: rpctest.Server(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() }), // echo
		3: rpctest.Server(t, func(c *net.TCPConn) { // writes only after the client's end
			b, _ := io.ReadAll(c)
			_, _ = c.Write(b)
		}),
		4: rpctest.Server(t, func(c *net.TCPConn) { _, _ = io.ReadFull(c, make([]byte, 1)); _ = c.SetLinger(0) }),
		5: "127.0.0.1:1", // no server
	}}
	c := dialLinked(t, l, StartParams{})
	open := func(t *testing.T, port uint16) *capnprpc.StreamConn {
		t.Helper()
		conn, err := c.OpenLocalTCP(t.Context(), "", port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	data := bytes.Repeat([]byte("0123456789abcde\n"), 64<<10)
	t.Run("both ways at once", func(t *testing.T) {
		conn := open(t, 1)
		var sent sync.WaitGroup
		sent.Go(func() {
			_, err := conn.Write(data)
			if err = errors.Join(err, conn.CloseWrite()); err != nil {
				t.Error(err)
			}
		})
		if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v, or other ones", len(got), err)
		}
		sent.Wait()
	})
	t.Run("half-close", func(t *testing.T) {
		conn := open(t, 3)
		_, err := conn.Write(data)
		if err = errors.Join(err, conn.CloseWrite()); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes, %v, or other ones", len(got), err)
		}
	})
	t.Run("reset", func(t *testing.T) {
		conn := open(t, 4)
		if _, err := conn.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		if _, err := c.OpenLocalTCP(t.Context(), "", 5); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		conn := open(t, 1)
		if err := conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Error(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		conn := open(t, 1)
		_ = conn.Close()
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Read: %v", err)
		}
		if _, err := conn.Write(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write: %v", err)
		}
	})
}

// TestBackPressure: bytes that the server does not read are not taken.
func TestBackPressure(t *testing.T) {
	release := make(chan struct{})
	l := &linked{addresses: map[uint16]string{1: rpctest.Server(t, func(c *net.TCPConn) {
		<-release
		n, _ := io.Copy(io.Discard, c)
		_, _ = c.Write([]byte{byte(n >> 16)})
	})}}
	c := dialLinked(t, l, StartParams{})
	conn, err := c.OpenLocalTCP(t.Context(), "", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	n, err := conn.Write(make([]byte, 64<<20))
	if !errors.Is(err, os.ErrDeadlineExceeded) || n > 32<<20 {
		t.Errorf("%d bytes were taken, %v", n, err)
	}
	if _, err := c.Stats(t.Context()); err != nil { // others do not wait
		t.Error(err)
	}
	close(release)
	_ = conn.CloseWrite()
	b := make([]byte, 1)
	if _, err := io.ReadFull(conn, b); err != nil || b[0] != byte(n>>16) {
		t.Errorf("got %v, %v, want %d", b, err, byte(n>>16))
	}
}

// TestConnectionsEnd: a client that leaves ends its connections, on both sides.
func TestConnectionsEnd(t *testing.T) {
	ended := make(chan error, 1)
	l := &linked{addresses: map[uint16]string{1: rpctest.Server(t, func(c *net.TCPConn) {
		_, err := io.ReadFull(c, make([]byte, 10))
		ended <- err
	})}}
	c := dialLinked(t, l, StartParams{})
	conn, err := c.OpenLocalTCP(t.Context(), "", 1)
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan error, 1)
	go func() { _, err := conn.Read(make([]byte, 1)); read <- err }()
	_ = c.Close()
	if err := <-read; !errors.Is(err, capnprpc.ErrClosed) {
		t.Errorf("the client's read: %v", err)
	}
	if err := <-ended; err == nil {
		t.Error("the server's read went well")
	}
}

// TestProxy is the other direction: the guest connects to the servers that the host permits.
func TestProxy(t *testing.T) {
	address := rpctest.Server(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() })
	l := &linked{}
	c := dialLinked(t, l, StartParams{
		UnixSockets: []UnixSocket{{Path: "/s", ID: "a", Mode: 0o600}},
		Connect: func(ctx context.Context, id string) (capnprpc.Stream, error) {
			if id != "a" {
				return nil, syscall.EACCES
			}
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return nil, err
			}
			return c.(*net.TCPConn), nil
		},
	})
	if _, err := l.connect(t.Context(), "b"); !errors.Is(err, syscall.EACCES) {
		t.Errorf("got %v", err)
	}
	s, err := l.connect(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	data := bytes.Repeat([]byte("x"), 1<<20)
	var sent sync.WaitGroup
	sent.Go(func() { _, _ = s.Write(data); _ = s.CloseWrite() })
	if got, err := io.ReadAll(s); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	sent.Wait()
	_ = s.Close()
	again, err := l.connect(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	if _, err := io.ReadAll(again); err == nil {
		t.Error("the stream outlives its session")
	}
}

func TestProxyLimit(t *testing.T) {
	var mu sync.Mutex
	var far []net.Conn
	l := &linked{}
	dialLinked(t, l, StartParams{Connect: func(context.Context, string) (capnprpc.Stream, error) {
		near, other := net.Pipe()
		mu.Lock()
		defer mu.Unlock()
		far = append(far, other)
		return rpctest.PipeStream{Conn: near}, nil
	}})
	var open []capnprpc.Stream
	for range maxProxied {
		s, err := l.connect(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, s)
	}
	if _, err := l.connect(t.Context(), "a"); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("got %v", err)
	}
	_ = open[0].Close()
	_ = far[0].Close()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		s, err := l.connect(t.Context(), "a")
		if err == nil {
			_ = s.Close()
			break
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal(err)
		}
	}
}

func BenchmarkLocalTCP(b *testing.B) {
	l := &linked{addresses: map[uint16]string{1: rpctest.Server(b, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c); _ = c.CloseWrite() })}}
	c := dialLinked(b, l, StartParams{})
	block := make([]byte, 1<<20)
	conn, err := c.OpenLocalTCP(b.Context(), "", 1)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		if _, err := conn.Write(block); err != nil {
			b.Fatal(err)
		}
	}
	_ = conn.CloseWrite()
	_, _ = io.ReadAll(conn)
	_ = conn.Close()
}

package guestrpc

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/rpctest"
)

// pipeLoopback is a guest's loopback interface without sockets: servers echo, and one program connects to each listener.
type pipeLoopback struct{}

func (pipeLoopback) OpenLocalTCP(context.Context, string, uint16) (capnprpc.Stream, error) {
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(far, far); _ = far.Close() }()
	return rpctest.PipeStream{Conn: near}, nil
}

func (pipeLoopback) ListenLocalTCP(string, uint16) (net.Listener, error) {
	l := &pipeListener{waiting: make(chan net.Conn, 1), closed: make(chan struct{})}
	near, far := net.Pipe()
	go func() { _, _ = far.Write([]byte("hello")); _, _ = io.Copy(io.Discard, far); _ = far.Close() }()
	l.waiting <- rpctest.PipeStream{Conn: near}
	return l, nil
}

type pipeListener struct {
	waiting chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.waiting:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		select {
		case c := <-l.waiting: // it was not accepted
			_ = c.Close()
		default:
		}
	})
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4000} }

// useLoopback dials and listens until limit has passed.
func useLoopback(ctx context.Context, l *Loopback, limit time.Duration) {
	deadline := time.Now().Add(limit)
	talk := func(c net.Conn) {
		_ = c.SetDeadline(deadline)
		_, _ = c.Write([]byte("x"))
		_, _ = io.ReadFull(c, make([]byte, 1))
		_ = c.Close()
	}
	if c, err := l.Dial(ctx, "", 4000, nil); err == nil {
		talk(c)
	}
	s, err := l.Listen(ctx, "127.0.0.1", 4000, ListenConfig{Backlog: 2})
	if err != nil {
		return
	}
	stop := time.AfterFunc(limit, func() { _ = s.Close() })
	if c, err := s.Accept(); err == nil {
		talk(c)
	}
	stop.Stop()
	_ = s.Close()
}

func serveLoopbackOn(t testing.TB, port io.ReadWriteCloser) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ServeBulk(ctx, port, &shelf{}, pipeLoopback{}, nil) }()
	t.Cleanup(func() { stop(); <-done })
}

// loopbackExchange returns the bytes that both ends send.
func loopbackExchange(f *testing.F) (guest, host []byte) {
	return exchanged(f, func(port io.ReadWriteCloser) { serveLoopbackOn(f, port) }, func(_ context.Context, c *FilesClient) {
		useLoopback(context.Background(), c.Loopback(), 10*time.Second)
	})
}

// FuzzHostileLoopbackGuest answers the hello of a host that dials and listens, and then sends arbitrary bytes.
func FuzzHostileLoopbackGuest(f *testing.F) {
	real, _ := loopbackExchange(f)
	rpctest.Seed(f, real)
	f.Fuzz(func(t *testing.T, sent []byte) {
		withHostileGuest(t, sent, func(ctx context.Context, host net.Conn) {
			if c, err := DialFiles(ctx, host); err == nil {
				useLoopback(ctx, c.Loopback(), 10*time.Millisecond)
				_ = c.Close()
			}
		})
	})
}

// FuzzHostileLoopbackHost sends arbitrary bytes to a guest, which must then still answer a hello.
func FuzzHostileLoopbackHost(f *testing.F) {
	_, real := loopbackExchange(f)
	rpctest.Seed(f, real)
	f.Fuzz(func(t *testing.T, sent []byte) {
		host, port := net.Pipe()
		serveLoopbackOn(t, port)
		afterHostileHost(t, host, sent, func(ctx context.Context, c *FilesClient) error {
			c2, err := c.Loopback().Dial(ctx, "", 1, nil)
			if err != nil {
				return err
			}
			_ = c2.Close()
			return nil
		})
	})
}

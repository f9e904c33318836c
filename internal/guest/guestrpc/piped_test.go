package guestrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/rpctest"
)

// testPipe is a pipe in memory, which fills with whatever is there and is emptied in odd parts.
type testPipe struct {
	from    io.Reader
	content []byte
	of      *pipedLoopback
}

func (p *testPipe) Fill(limit int) (int, error) {
	if len(p.content) != 0 {
		return 0, errors.New("filled before it was empty")
	}
	b := make([]byte, min(limit, 1+rand.IntN(limit)))
	n, err := p.from.Read(b)
	p.content = b[:n]
	p.of.filled.Add(int64(n))
	return n, err
}

func (p *testPipe) Close() error { p.of.open.Add(-1); return nil }

// pipedStream is a Stream that has a pipe.
type pipedStream struct {
	*net.TCPConn
	of *pipedLoopback
}

func (s pipedStream) Pipe() capnprpc.Pipe {
	s.of.open.Add(1)
	return &testPipe{from: s.TCPConn, of: s.of}
}

// pipedLoopback is a guest whose loopback interface is the host's, and whose connections have pipes.
type pipedLoopback struct {
	hostLoopback
	open, filled atomic.Int64 // pipes, bytes
}

func (l *pipedLoopback) OpenLocalTCP(ctx context.Context, host string, port uint16) (capnprpc.Stream, error) {
	s, err := l.hostLoopback.OpenLocalTCP(ctx, host, port)
	if err != nil {
		return nil, err
	}
	return pipedStream{s.(*net.TCPConn), l}, nil
}

// pipePort is a port that takes pipes, a part at a time, or says that it does not.
type pipePort struct {
	net.Conn
	not bool
}

func (p pipePort) TakesPipes() bool { return !p.not }

func (p pipePort) WritePipe(from capnprpc.Pipe, n int) (int, error) {
	pipe := from.(*testPipe)
	part := pipe.content[:1+rand.IntN(min(n, len(pipe.content)))]
	n, err := p.Write(part)
	pipe.content = pipe.content[n:]
	return n, err
}

// dialPiped is dialLoopback with a port that takes pipes, or does not.
func dialPiped(t *testing.T, takes bool) (*Loopback, *pipedLoopback) {
	t.Helper()
	host, port := net.Pipe()
	guest := &pipedLoopback{}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ServeBulk(ctx, pipePort{port, !takes}, &shelf{}, guest, nil) }()
	c, err := DialFiles(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		stop()
		<-done
		rpctest.Eventually(t, "every pipe is closed", func() bool { return guest.open.Load() == 0 })
	})
	return c.Loopback(), guest
}

// TestPiped: bytes that go through a pipe arrive unchanged, in messages whose data end anywhere in a word.
func TestPiped(t *testing.T) {
	data := make([]byte, 3<<20+5)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	at := rpctest.Server(t, func(c *net.TCPConn) {
		_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		_ = c.CloseWrite()
	})
	for _, takes := range []bool{true, false} {
		l, guest := dialPiped(t, takes)
		for range 3 {
			c, err := l.Dial(t.Context(), "127.0.0.1", portOfText(t, at), nil)
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan error, 1)
			go func() {
				_, err := c.Write(data)
				sent <- errors.Join(err, c.CloseWrite())
			}()
			got, err := io.ReadAll(c)
			if err = errors.Join(err, <-sent, c.Close()); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d of %d bytes, %v, or other ones", len(got), len(data), err)
			}
		}
		if used := guest.filled.Load() > 0; used != takes {
			t.Errorf("a port that takes pipes (%v) was given %d bytes of them", takes, guest.filled.Load())
		}
	}
}

// TestPipedIsLeft: closing a connection while its pipe is full disturbs no other.
func TestPipedIsLeft(t *testing.T) {
	flood := bytes.Repeat([]byte("0123456789abcde\n"), 16<<10)
	at := rpctest.Server(t, func(c *net.TCPConn) {
		for err := error(nil); err == nil; {
			_, err = c.Write(flood)
		}
	})
	l, guest := dialPiped(t, true)
	for range 20 {
		c, err := l.Dial(t.Context(), "127.0.0.1", portOfText(t, at), nil)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 1<<20+rand.IntN(1<<20))
		if _, err := io.ReadFull(c, got); err != nil || !bytes.Equal(got[:len(flood)], flood) {
			t.Errorf("%v, or other bytes", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	rpctest.Eventually(t, "pipes are closed with their connections", func() bool { return guest.open.Load() == 0 })
	// One is left open: the end of everything closes it.
	c, err := l.Dial(t.Context(), "127.0.0.1", portOfText(t, at), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1<<20)); err != nil {
		t.Error(err)
	}
}

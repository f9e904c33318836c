package capnprpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"capnproto.org/go/capnp/v3"

	"agentvm/internal/guest/capnprpc/rpctest"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/test/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// handGuest is a guest whose connections are made by hand, without a Stream behind them.
type handGuest struct {
	guestwire.Loopback_Server
	// connect returns the Sink to which the host sends, and receives the Sink of the other direction, which connect releases.
	connect func(toClient streamwire.Sink) streamwire.Sink
}

func (g handGuest) Connect(_ context.Context, call guestwire.Loopback_connect) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return r.SetToGuest(g.connect(call.Args().ToClient().AddRef()))
}

// swallow is a Sink that discards everything.
func swallow() streamwire.Sink {
	return streamwire.Sink_ServerToClient(&SinkReader{Take: func([]byte) error { return nil }, Finish: func(error) error { return nil }})
}

// handStreams is a guest whose connections lead to what open makes.
type handStreams struct {
	guestwire.Loopback_Server
	c    *Conn
	open func() (Stream, error)
}

func (g *handStreams) Connect(_ context.Context, call guestwire.Loopback_connect) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return g.c.ConnectLocal(call.Args(), call.Go, r, r.NewLocal, func(string, uint16) (Stream, error) { return g.open() })
}

// handClient is the host's end of a connection to such a guest.
type handClient struct {
	conn   *Conn
	remote guestwire.Loopback
}

func (l handClient) Dial(ctx context.Context, ended func()) (*StreamConn, error) {
	return l.conn.Dial(TCPAddr("", 1), ended, func(_ *StreamConn, toClient streamwire.Sink) (streamwire.Sink, func(), error) {
		future, release := l.remote.Connect(ctx, func(w guestwire.Loopback_connect_Params) error { return w.SetToClient(toClient.AddRef()) })
		r, err := future.Struct()
		if err != nil {
			return streamwire.Sink{}, release, l.conn.Fault("connect", err)
		}
		return r.ToGuest(), release, FailureOf(r.Failure())
	})
}

// dialHand connects to a guest that serves what serve returns.
func dialHand(t *testing.T, serve func(*Conn) guestwire.Loopback_Server) handClient {
	t.Helper()
	host, guest := net.Pipe()
	serves := Start(guest, guest, guest, func(c *Conn) capnp.Client { return capnp.Client(guestwire.Loopback_ServerToClient(serve(c))) })
	t.Cleanup(serves.Close)
	asks := Start(host, host, host, nil)
	t.Cleanup(asks.Close)
	return handClient{asks, guestwire.Loopback(asks.Import(Offered))}
}

func (g handGuest) serve(*Conn) guestwire.Loopback_Server { return g }

// dialStreams connects to a guest whose connections lead to what open makes.
func dialStreams(t *testing.T, open func() (Stream, error)) handClient {
	t.Helper()
	return dialHand(t, func(c *Conn) guestwire.Loopback_Server { return &handStreams{c: c, open: open} })
}

// TestCloseReleases: a connection that is closed is freed on both sides, also when the other end continues to use it. What was
// written before still arrives, and a program that writes back gets an error.
func TestCloseReleases(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789abcde\n"), 4<<10)
	for _, first := range []string{"written", "CloseWrite", "CloseRead"} {
		t.Run("dialled, "+first, func(t *testing.T) {
			ended, served := make(chan struct{}), make(chan error, 1)
			at := rpctest.Server(t, func(c *net.TCPConn) {
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
			l := dialStreams(t, func() (Stream, error) { return dialTCP(at) })
			c, err := l.Dial(t.Context(), func() { close(ended) })
			if err != nil {
				t.Fatal(err)
			}
			useAndClose(t, c, data, first)
			<-ended
			if err := <-served; !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server sees %v", err)
			}
			rpctest.Eventually(t, "the guest holds no capability of the host", func() bool { return l.conn.Exported() == 0 })
		})
		t.Run("accepted, "+first, func(t *testing.T) {
			ended, accepted := make(chan struct{}), make(chan *StreamConn, 1)
			l := dialHand(t, func(c *Conn) guestwire.Loopback_Server {
				return handGuest{connect: func(to streamwire.Sink) streamwire.Sink {
					defer to.Release()
					s, sink, err := c.Accept(Addr("here"), Addr("there"), to, func() { close(ended) })
					if err != nil {
						t.Error(err)
					}
					accepted <- s
					return sink
				}}
			})
			program, err := l.Dial(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = program.Close() }()
			useAndClose(t, <-accepted, data, first)
			if got, err := io.ReadAll(program); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			_ = program.Close()
			<-ended
		})
	}
}

func dialTCP(address string) (Stream, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

func useAndClose(t *testing.T, c *StreamConn, data []byte, first string) {
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
			t.Error("the timer of Close runs on when nothing is left to wait for")
		}
	})
}

// TestOldGuest: a guest of an earlier version, which releases nothing when the host has closed, keeps the connection, and its place,
// until its own end. Everything else works.
func TestOldGuest(t *testing.T) {
	toClient, finished := make(chan streamwire.Sink, 1), make(chan error, 1)
	l := dialHand(t, handGuest{connect: func(to streamwire.Sink) streamwire.Sink {
		toClient <- to
		return streamwire.Sink_ServerToClient(&SinkReader{Take: func([]byte) error { return nil }, Finish: func(why error) error { finished <- why; return nil }})
	}}.serve)
	ended := make(chan struct{})
	c, err := l.Dial(t.Context(), func() { close(ended) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); err != nil {
		t.Error(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Error(err)
	}
	if err := <-finished; err != nil {
		t.Errorf("the guest received %v, want the end", err)
	}
	to := <-toClient
	out := NewSinkWriter(context.Background(), to, 100, 1)
	sent := make(chan error, 1)
	go func() { _, err := out.Write([]byte("answer")); sent <- err }()
	if _, err := io.ReadFull(c, make([]byte, 6)); err != nil {
		t.Error(err)
	}
	if err := errors.Join(<-sent, c.Close()); err != nil {
		t.Error(err)
	}
	if _, err := out.Write([]byte("more")); err == nil {
		err = out.sends.Drain(t.Context())
		if !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a send to a host that has closed: %v", err)
		}
	}
	rpctest.Eventually(t, "nothing more is sent", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return !c.sending })
	select {
	case <-ended:
		t.Error("the guest has the host's Sink, which is not counted")
	default:
	}
	out.Release()
	<-ended
}

// TestNothingArrives: a send without bytes does not make a Read return.
func TestNothingArrives(t *testing.T) {
	sent := make(chan error, 1)
	l := dialHand(t, handGuest{connect: func(to streamwire.Sink) streamwire.Sink {
		go func() {
			out := NewSinkWriter(context.Background(), to, 100, 1)
			send := func(b []byte) error {
				future, release := to.Send(context.Background(), func(w streamwire.Sink_send_Params) error { return w.SetData(b) })
				defer release()
				_, err := future.Struct()
				return err
			}
			sent <- errors.Join(send(nil), send([]byte("x")), send(nil), out.End())
			out.Release()
		}()
		return swallow()
	}}.serve)
	c, err := l.Dial(t.Context(), nil)
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

// stuckStream is a connection to a server that neither reads nor writes.
type stuckStream struct {
	Stream
	writing, closed chan struct{}
	write, close    sync.Once
	linger          chan int // what SetLinger was given
}

func newStuckStream() *stuckStream {
	return &stuckStream{writing: make(chan struct{}), closed: make(chan struct{}), linger: make(chan int, 100)}
}

func (s *stuckStream) Read([]byte) (int, error) { <-s.closed; return 0, net.ErrClosed }

func (s *stuckStream) Write([]byte) (int, error) {
	s.write.Do(func() { close(s.writing) })
	<-s.closed
	return 0, net.ErrClosed
}

func (s *stuckStream) Close() error { s.close.Do(func() { close(s.closed) }); return nil }

func (s *stuckStream) SetLinger(seconds int) error { s.linger <- seconds; return nil }

// stuck is a guest in which every server is.
// TestCloseDoesNotWaitForEver: a server that does not read holds up neither end, and sees a reset.
func TestCloseDoesNotWaitForEver(t *testing.T) {
	s := newStuckStream()
	conn, err := dialStreams(t, func() (Stream, error) { return s, nil }).Dial(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("the server does not read this")); err != nil {
		t.Fatal(err)
	}
	<-s.writing
	conn.linger = time.Millisecond
	_ = conn.Close()
	<-s.closed
	if seconds := <-s.linger; seconds != 0 {
		t.Errorf("closed after SetLinger(%d)", seconds)
	}
	rpctest.Eventually(t, "nothing is left", func() bool { conn.mu.Lock(); defer conn.mu.Unlock(); return conn.open == 0 })
}

// TestRelayIsLeft: a relay whose peer has broken off does not wait for that peer's answers, and is freed.
func TestRelayIsLeft(t *testing.T) {
	for name, leave := range map[string]func(*SinkWriter) error{
		"broken off":          func(o *SinkWriter) error { o.Abort(errBrokenOff); return nil },
		"ended, then left":    func(o *SinkWriter) error { err := o.End(); o.Abort(errClosedStream); return err },
		"dropped without end": func(*SinkWriter) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			var open atomic.Int32
			l := dialStreams(t, func() (Stream, error) {
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
				return rpctest.PipeStream{Conn: near}, nil
			})
			// The guest's end by hand: it answers a send only when the host has given up waiting for it.
			given, took := make(chan struct{}), make(chan struct{}, 100)
			own := &SinkReader{
				Take: func([]byte) error {
					took <- struct{}{}
					select {
					case <-given:
						return nil
					case <-time.After(time.Minute):
						return errors.New("the host has not given up")
					}
				},
				Finish: func(error) error { return nil }, Cancel: sync.OnceFunc(func() { close(given) }),
			}
			future, release := l.remote.Connect(t.Context(), func(w guestwire.Loopback_connect_Params) error {
				return w.SetToClient(streamwire.Sink_ServerToClient(own))
			})
			r, err := future.Struct()
			if err != nil {
				t.Fatal(err)
			}
			out := NewSinkWriter(t.Context(), r.ToGuest().AddRef(), 100, 1)
			release()
			<-took
			if err := leave(out); err != nil {
				t.Error(err)
			}
			out.Release()
			<-given
			rpctest.Eventually(t, "the host's stream is closed", func() bool { return open.Load() == 0 })
		})
	}
}

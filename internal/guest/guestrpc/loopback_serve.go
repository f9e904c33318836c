package guestrpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// loopback serves the guest's loopback interface from a LoopbackHandler.
type loopback struct {
	h LoopbackHandler
	c *capnprpc.Conn
}

// OpenLocalTcp has the spelling of the schema's generator.
func (s *supervisor) OpenLocalTcp(ctx context.Context, call guestwire.Supervisor_openLocalTcp) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return s.c.ConnectLocal(call.Args(), call.Go, r, nil, func(host string, port uint16) (capnprpc.Stream, error) {
		return s.loopback.h.OpenLocalTCP(ctx, host, port)
	})
}

// Connect is OpenLocalTcp that also returns the connection's local address.
func (l loopback) Connect(ctx context.Context, call guestwire.Loopback_connect) error {
	capnprpc.Deepen(false)
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return l.c.ConnectLocal(call.Args(), call.Go, r, r.NewLocal, func(host string, port uint16) (capnprpc.Stream, error) {
		return l.h.OpenLocalTCP(ctx, host, port)
	})
}

// maxBacklog bounds the accepts of one listener that a host leaves unanswered.
const maxBacklog = 128

func (l loopback) ListenLocalTcp(_ context.Context, call guestwire.Loopback_listenLocalTcp) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	host, err := call.Args().Host()
	if err != nil {
		return err
	}
	args := call.Args()
	port, backlog, acceptor := args.Port(), args.Backlog(), args.Acceptor().AddRef()
	call.Go()
	listener, err := l.listen(host, port, r.NewLocal)
	if err != nil {
		acceptor.Release()
		return capnprpc.Reply(r, err)
	}
	s := &listening{c: l.c, l: listener, acceptor: acceptor, free: make(chan struct{}, min(max(int(backlog), 1), maxBacklog))}
	s.ctx, s.cancel = context.WithCancel(l.c.Context())
	s.stop = context.AfterFunc(s.ctx, func() { _ = listener.Close() })
	if !l.c.Spawn(s.acceptAll) {
		acceptor.Release()
		s.cancel()
		return capnprpc.ErrClosed
	}
	return r.SetListener(guestwire.Listener_ServerToClient(s))
}

// listen listens and writes the address into newLocal.
func (l loopback) listen(host string, port uint16, newLocal func() (streamwire.Endpoint, error)) (net.Listener, error) {
	listener, err := l.h.ListenLocalTCP(host, port)
	if err != nil {
		return nil, err
	}
	if err := capnprpc.WriteEndpoint(newLocal, capnprpc.AddrPort(listener.Addr())); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// listening hands the connections of a listener in the guest to the host's Acceptor:
//
//	program ── connect ──► kernel's backlog ── Accept ──► Acceptor.accept, one call each ──► relay
//
// At most cap(free) calls are unanswered; further connections wait in the kernel. The host learns of the listener's end by the release
// of its Acceptor.
type listening struct {
	c        *capnprpc.Conn
	l        net.Listener
	acceptor guestwire.Acceptor
	free     chan struct{}
	ctx      context.Context // until it is closed
	cancel   context.CancelFunc
	stop     func() bool
	calls    sync.WaitGroup
}

func (s *listening) acceptAll() {
	defer s.acceptor.Release()
	defer s.calls.Wait()
	defer s.cancel()
	for {
		select {
		case s.free <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := s.accept()
		if err != nil {
			return
		}
		stream, ok := c.(capnprpc.Stream)
		if !ok {
			_ = c.Close()
			<-s.free
			continue
		}
		s.calls.Go(func() {
			defer func() { <-s.free }()
			s.offer(stream, capnprpc.AddrPort(c.RemoteAddr()))
		})
	}
}

// maxPause bounds the pause after a temporary error of accept.
const maxPause = time.Second

// accept waits for a program, and retries after temporary errors. Connections wait in the kernel meanwhile.
func (s *listening) accept() (net.Conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, maxPause) {
		c, err := s.l.Accept()
		if err == nil || !temporary(err) {
			return c, err
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return nil, err
		}
	}
}

// temporary reports whether an error of accept is about one connection or a shortage, not about the listener: see Linux's accept(2).
func temporary(err error) bool {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return false
	}
	switch errno {
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, // too much is open, or too little free
		syscall.ECONNABORTED, syscall.EPROTO, syscall.EPERM, syscall.EINTR, syscall.EAGAIN,
		syscall.ENETDOWN, syscall.ENOPROTOOPT, syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.EOPNOTSUPP, syscall.ENETUNREACH:
		return true
	}
	return false
}

// offer offers a connection to the host, and resets it when the host does not take it.
func (s *listening) offer(stream capnprpc.Stream, remote netip.AddrPort) {
	s.c.OfferStream(stream, func(toProgram streamwire.Sink) (streamwire.Sink, func(), error) {
		future, release := s.acceptor.Accept(s.ctx, func(w guestwire.Acceptor_accept_Params) error {
			return errors.Join(capnprpc.WriteEndpoint(w.NewRemote, remote), w.SetToProgram(toProgram.AddRef()))
		})
		answer, err := future.Struct()
		if err != nil {
			return streamwire.Sink{}, release, err
		}
		return answer.ToHost(), release, capnprpc.FailureOf(answer.Failure())
	})
}

// Close is answered when the port is free.
func (s *listening) Close(_ context.Context, call guestwire.Listener_close) error {
	return capnprpc.Perform(call.AllocResults, func() error {
		err := s.l.Close()
		s.cancel()
		if errors.Is(err, net.ErrClosed) {
			err = nil
		}
		return err
	})
}

// Shutdown is called when the host has dropped the capability.
func (s *listening) Shutdown() {
	_ = s.l.Close()
	s.cancel()
	s.stop()
}

package rpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"

	"agentvm/rpc/wire"
)

// loopback serves the guest's loopback interface from a LoopbackHandler.
type loopback struct {
	h LoopbackHandler
	c *conn
}

// OpenLocalTcp is spelled as the schema's generator does.
func (s *supervisor) OpenLocalTcp(ctx context.Context, call wire.Supervisor_openLocalTcp) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	host, err := call.Args().Host()
	if err != nil {
		return err
	}
	port, toClient := call.Args().Port(), call.Args().ToClient().AddRef()
	call.Go()
	stream, err := s.loopback.h.OpenLocalTCP(ctx, host, port)
	return s.c.connected(r, stream, toClient, err)
}

// Connect is OpenLocalTcp that also tells the connection's own end.
func (l loopback) Connect(ctx context.Context, call wire.Loopback_connect) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	host, err := call.Args().Host()
	if err != nil {
		return err
	}
	port, toClient := call.Args().Port(), call.Args().ToClient().AddRef()
	call.Go()
	stream, err := l.h.OpenLocalTCP(ctx, host, port)
	if err == nil {
		err = writeEndpoint(r.NewLocal, localEnd(stream))
	}
	return l.c.connected(r, stream, toClient, err)
}

// connecting is what the results of methods share that connect.
type connecting interface {
	results
	SetToGuest(wire.Sink) error
}

// connected answers with the stream, or with err. It takes over the reference to toClient.
func (c *conn) connected(r connecting, s Stream, toClient wire.Sink, err error) error {
	if err != nil {
		toClient.Release()
		if s != nil {
			reset(s)
		}
		return reply(r, err)
	}
	sink, err := c.serveStream(s, toClient)
	if err != nil {
		return err
	}
	return r.SetToGuest(sink)
}

// localEnd is the address of a stream that has one.
func localEnd(s Stream) netip.AddrPort {
	if c, ok := s.(net.Conn); ok {
		return addrPort(c.LocalAddr())
	}
	return netip.AddrPort{}
}

// addrPort is the zero value for what is no TCP address.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// maxBacklog bounds the accepts of one listener that a host leaves unanswered.
const maxBacklog = 128

func (l loopback) ListenLocalTcp(_ context.Context, call wire.Loopback_listenLocalTcp) error {
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
	listener, err := l.h.ListenLocalTCP(host, port)
	if err == nil {
		err = writeEndpoint(r.NewLocal, addrPort(listener.Addr()))
	}
	if err != nil {
		acceptor.Release()
		return reply(r, err)
	}
	s := &listening{c: l.c, l: listener, acceptor: acceptor, free: make(chan struct{}, min(max(int(backlog), 1), maxBacklog))}
	s.ctx, s.cancel = context.WithCancel(l.c.ctx)
	s.stop = context.AfterFunc(s.ctx, func() { _ = listener.Close() })
	if !l.c.spawn(s.acceptAll) {
		acceptor.Release()
		s.cancel()
		return ErrClosed
	}
	return r.SetListener(wire.Listener_ServerToClient(s))
}

// listening hands the connections of a listener in the guest to the host's Acceptor:
//
//	program ── connect ──► kernel's backlog ── Accept ──► Acceptor.accept, one call each ──► relay
//
// At most cap(free) calls are unanswered; what else connects waits in the kernel.
type listening struct {
	c        *conn
	l        net.Listener
	acceptor wire.Acceptor
	free     chan struct{}
	ctx      context.Context // until it is closed
	cancel   context.CancelFunc
	stop     func() bool
	calls    sync.WaitGroup
}

func (s *listening) acceptAll() {
	defer s.acceptor.Release()
	defer s.calls.Wait()
	for {
		select {
		case s.free <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := s.l.Accept()
		if err != nil {
			s.cancel()
			return
		}
		stream, ok := c.(Stream)
		if !ok {
			_ = c.Close()
			<-s.free
			continue
		}
		s.calls.Go(func() {
			defer func() { <-s.free }()
			s.offer(stream, addrPort(c.RemoteAddr()))
		})
	}
}

// offer gives a connection to the host. One that it does not take is reset.
func (s *listening) offer(stream Stream, remote netip.AddrPort) {
	r, toProgram := s.c.newRelay(stream)
	defer toProgram.Release()
	future, release := s.acceptor.Accept(s.ctx, func(w wire.Acceptor_accept_Params) error {
		return errors.Join(writeEndpoint(w.NewRemote, remote), w.SetToProgram(toProgram.AddRef()))
	})
	defer release()
	answer, err := future.Struct()
	if err == nil {
		err = failureOf(answer.Failure())
	}
	if err == nil && !answer.ToHost().IsValid() {
		err = errors.New("the host has not answered with a stream")
	}
	if err != nil {
		r.reset()
		return
	}
	_ = s.c.join(r, answer.ToHost().AddRef())
}

// Close is answered when the port is free.
func (s *listening) Close(_ context.Context, call wire.Listener_close) error {
	return perform(call.AllocResults, func() error {
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

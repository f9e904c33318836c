package rpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

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
	return s.c.connectLocal(call.Args(), call.Go, r, nil, func(host string, port uint16) (Stream, error) {
		return s.loopback.h.OpenLocalTCP(ctx, host, port)
	})
}

// Connect is OpenLocalTcp that also tells the connection's own end.
func (l loopback) Connect(ctx context.Context, call wire.Loopback_connect) error {
	deepen(false)
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	return l.c.connectLocal(call.Args(), call.Go, r, r.NewLocal, func(host string, port uint16) (Stream, error) {
		return l.h.OpenLocalTCP(ctx, host, port)
	})
}

// connectParams and connectResults are what methods share that connect.
type (
	connectParams interface {
		Host() (string, error)
		Port() uint16
		ToClient() wire.Sink
	}
	connectResults interface {
		results
		SetToGuest(wire.Sink) error
	}
)

// connectLocal connects by open, and answers with the stream and, unless newLocal is nil, its own end. goOn lets other calls begin.
func (c *conn) connectLocal(args connectParams, goOn func(), r connectResults, newLocal func() (wire.Endpoint, error),
	open func(host string, port uint16) (Stream, error),
) error {
	host, err := args.Host()
	if err != nil {
		return err
	}
	port, toClient := args.Port(), args.ToClient().AddRef()
	goOn()
	s, err := open(host, port)
	if err == nil && newLocal != nil {
		if err = writeEndpoint(newLocal, localEnd(s)); err != nil {
			reset(s)
		}
	}
	if err != nil {
		toClient.Release()
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
	listener, err := l.listen(host, port, r.NewLocal)
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

// listen listens, and says where.
func (l loopback) listen(host string, port uint16, newLocal func() (wire.Endpoint, error)) (net.Listener, error) {
	listener, err := l.h.ListenLocalTCP(host, port)
	if err != nil {
		return nil, err
	}
	if err := writeEndpoint(newLocal, addrPort(listener.Addr())); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// listening hands the connections of a listener in the guest to the host's Acceptor:
//
//	program ── connect ──► kernel's backlog ── Accept ──► Acceptor.accept, one call each ──► relay
//
// At most cap(free) calls are unanswered; what else connects waits in the kernel. The host learns of the end of the listener by that
// of its Acceptor.
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

// longestPause is for how long at most nothing is accepted after an error that passes.
const longestPause = time.Second

// accept waits for a program, and as long as there are errors that pass, for their end. What has connected waits in the kernel.
func (s *listening) accept() (net.Conn, error) {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, longestPause) {
		c, err := s.l.Accept()
		if err == nil || !passes(err) {
			return c, err
		}
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return nil, err
		}
	}
}

// passes says that an error of accept is of one connection, or of the machine now, not of the listener: see accept(2) of Linux.
func passes(err error) bool {
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

package guestrpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/guest/guestrpc/guestwire"
	"agentvm/internal/host/errno"
)

// ListenConfig is for Loopback.Listen.
type ListenConfig struct {
	// Backlog is how many connections may wait for Accept, at most 128. Default: 128. More wait in the guest's kernel.
	Backlog int
	// Admit is called for each connection before it waits for Accept; with an error the program that connects sees a reset. The
	// function that it returns is called when both directions of the connection are over. Nil admits all.
	Admit func() (ended func(), err error)
}

// Listener is a listener in the guest whose connections are passed to the host. It implements net.Listener.
//
//	guest ── Acceptor.accept ──► waiting ── Accept ──► Conn, and the answer
//
// It ends with the connection between host and guest, or when the guest releases the Acceptor.
type Listener struct {
	c      *capnprpc.Conn
	config ListenConfig
	local  *net.TCPAddr
	remote guestwire.Listener
	queue  chan struct{} // capacity 1: one waits
	done   chan struct{} // closed by Close, when the connection has ended, or the listener in the guest
	stop   func() bool

	mu      sync.Mutex
	closed  bool
	waiting []*arrival // the oldest first
}

var _ net.Listener = (*Listener)(nil)

// closeTime is how long Close waits for the guest to free the port.
const closeTime = time.Second

// Listen listens in the guest: host as for Dial, except that localhost is 127.0.0.1; port 0 is any free one.
func (l *Loopback) Listen(ctx context.Context, host string, port uint16, config ListenConfig) (*Listener, error) {
	if config.Backlog <= 0 || config.Backlog > maxBacklog {
		config.Backlog = maxBacklog
	}
	s := &Listener{c: l.conn, config: config, queue: make(chan struct{}, 1), done: make(chan struct{})}
	if err := s.open(ctx, l.remote, host, port); err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: capnprpc.TCPAddr(host, port), Err: err}
	}
	s.stop = context.AfterFunc(l.conn.Context(), s.end)
	return s, nil
}

func (s *Listener) open(ctx context.Context, remote guestwire.Loopback, host string, port uint16) error {
	future, release := remote.ListenLocalTcp(ctx, func(w guestwire.Loopback_listenLocalTcp_Params) error {
		w.SetPort(port)
		w.SetBacklog(uint16(s.config.Backlog))
		return errors.Join(w.SetHost(host), w.SetAcceptor(guestwire.Acceptor_ServerToClient(&acceptor{s})))
	})
	defer release()
	r, err := capnprpc.Await(s.c.Fault, "listen in the VM", future.Struct)
	if err != nil {
		return err
	}
	at, err := capnprpc.ReadEndpoint(r.Local())
	if err != nil {
		return err
	}
	if !at.IsValid() || !at.Addr().IsLoopback() || port != 0 && at.Port() != port || !r.Listener().IsValid() {
		return errors.New("the guest has not answered with a listener")
	}
	s.local, s.remote = net.TCPAddrFromAddrPort(at), r.Listener().AddRef()
	return nil
}

// arrival is a connection that waits for Accept.
//
//	waiting ──next──► taken, by Accept      one of both: the goroutine that removes it from Listener.waiting
//	   └────drop────► dropped, by the guest, by Close, or at the end of the connection
type arrival struct {
	remote    netip.AddrPort
	toProgram streamwire.Sink
	ended     func()
	taken     chan struct{} // closed when toHost or err is set
	toHost    streamwire.Sink
	err       error
}

// acceptor serves the guest's side of a Listener.
type acceptor struct{ s *Listener }

func (a *acceptor) Accept(ctx context.Context, call guestwire.Acceptor_accept) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	remote, err := capnprpc.ReadEndpoint(call.Args().Remote())
	if err != nil {
		return err
	}
	toProgram := call.Args().ToProgram().AddRef()
	call.Go()
	defer toProgram.Release()
	arrived, err := a.s.enqueue(remote, toProgram)
	if err != nil {
		return capnprpc.Reply(r, err)
	}
	select {
	case <-arrived.taken:
	case <-a.s.done:
	case <-ctx.Done():
	}
	if a.s.drop(arrived) {
		arrived.ended()
		return capnprpc.Reply(r, errRefused)
	}
	<-arrived.taken
	if arrived.err != nil {
		return capnprpc.Reply(r, arrived.err)
	}
	return r.SetToHost(arrived.toHost)
}

// Shutdown is called when the guest has released the Acceptor.
func (a *acceptor) Shutdown() { a.s.end() }

var (
	errRefused = &capnprpc.Error{Kind: capnprpc.KindSystem, Errno: errno.ECONNREFUSED, Message: "connection refused"}
	errBacklog = &capnprpc.Error{Kind: capnprpc.KindLimit, Errno: errno.EAGAIN, Message: "too many connections wait to be accepted"}
	errNoSink  = &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: "accept without a stream"}
	// errUnlistened is the error of Linux's accept on a listener that has been shut down.
	errUnlistened = &capnprpc.Error{Kind: capnprpc.KindState, Errno: errno.EINVAL, Message: "the listener has ended in the VM: listen again"}
)

// enqueue lets a connection wait for Accept.
func (s *Listener) enqueue(remote netip.AddrPort, toProgram streamwire.Sink) (*arrival, error) {
	if !toProgram.IsValid() {
		return nil, errNoSink
	}
	ended := func() {}
	if s.config.Admit != nil {
		var err error
		if ended, err = s.config.Admit(); err != nil {
			return nil, capnprpc.LinuxFailure(err)
		}
	}
	a := &arrival{remote: remote, toProgram: toProgram, ended: ended, taken: make(chan struct{})}
	s.mu.Lock()
	full := len(s.waiting) >= s.config.Backlog
	if !full {
		s.waiting = append(s.waiting, a)
		s.wake()
	}
	s.mu.Unlock()
	if full {
		ended()
		return nil, errBacklog
	}
	return a, nil
}

// wake lets an Accept look at waiting. The caller holds s.mu.
func (s *Listener) wake() {
	select {
	case s.queue <- struct{}{}:
	default:
	}
}

// next removes the connection that has waited longest; nil when none waits.
func (s *Listener) next() *arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return nil
	}
	a := s.waiting[0]
	s.waiting = slices.Delete(s.waiting, 0, 1)
	if len(s.waiting) > 0 {
		s.wake()
	}
	return a
}

// drop is false when a waits no more.
func (s *Listener) drop(a *arrival) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting, a)
	if i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
	}
	return i >= 0
}

// Accept waits for a program of the guest to connect.
func (s *Listener) Accept() (net.Conn, error) {
	for {
		select {
		case <-s.done:
			return nil, s.fault("accept")
		default:
		}
		select {
		case <-s.queue:
			if c := s.take(s.next()); c != nil {
				return c, nil
			}
		case <-s.done:
			return nil, s.fault("accept")
		}
	}
}

// take makes the connection of a, which may be nil; it returns nil when the connection is gone.
func (s *Listener) take(a *arrival) *capnprpc.StreamConn {
	if a == nil {
		return nil
	}
	defer close(a.taken)
	c, toHost, err := s.c.Accept(s.local, remoteAddr(a.remote), a.toProgram, a.ended)
	if err != nil {
		a.ended()
		a.err = err
		return nil
	}
	a.toHost = toHost
	return c
}

func remoteAddr(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return capnprpc.Addr("a program of the VM")
	}
	return net.TCPAddrFromAddrPort(a)
}

// fault returns the error of a listener that has ended: closed here, the connection to the guest lost, or ended in the guest.
func (s *Listener) fault(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := net.ErrClosed
	switch {
	case s.closed:
	case s.c.Context().Err() != nil:
		err = errors.Join(net.ErrClosed, capnprpc.ErrClosed)
	default:
		err = errUnlistened
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: s.local, Err: err}
}

// end unblocks Accept and drops the connections that wait for it.
func (s *Listener) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

// Close frees the port in the guest. It waits for the guest's answer for at most 1 s. Connections that wait for Accept are reset, those
// that were accepted stay.
func (s *Listener) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return s.fault("close")
	}
	s.stop()
	s.end()
	ctx, cancel := context.WithTimeout(s.c.Context(), closeTime)
	defer cancel()
	future, release := s.remote.Close(ctx, nil)
	defer release()
	_, _ = future.Struct()
	s.remote.Release()
	return nil
}

// Addr is the address in the guest.
func (s *Listener) Addr() net.Addr { return s.local }

package rpc

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"agentvm/rpc/wire"
)

// ListenConfig is for Loopback.Listen.
type ListenConfig struct {
	// Backlog is how many connections may wait for Accept, at most 128. Default: 128. More wait in the guest's kernel.
	Backlog int
	// Admit is asked for each connection before it waits for Accept; with an error the program that connects sees a reset. The
	// function it returns is called when nothing of the connection is left. Nil admits all.
	Admit func() (ended func(), err error)
}

// Listener is a listener in the guest whose connections come to the host. It implements net.Listener.
//
//	guest ── Acceptor.accept ──► waiting ── Accept ──► Conn, and the answer
//
// It ends with the connection between host and guest, or when the guest lets go of the Acceptor.
type Listener struct {
	c      *conn
	config ListenConfig
	local  *net.TCPAddr
	remote wire.Listener
	queue  chan struct{} // capacity 1: one waits
	done   chan struct{} // closed by Close, when the connection has ended, or the listener in the guest
	stop   func() bool

	mu      sync.Mutex
	closed  bool
	waiting []*arrival // the oldest first
}

var _ net.Listener = (*Listener)(nil)

// closeTime is how long Close waits for the guest to have freed the port.
const closeTime = time.Second

// Listen listens in the guest: host as for Dial, but that localhost is 127.0.0.1; port 0 is any free one.
func (l *Loopback) Listen(ctx context.Context, host string, port uint16, config ListenConfig) (*Listener, error) {
	if config.Backlog <= 0 || config.Backlog > maxBacklog {
		config.Backlog = maxBacklog
	}
	s := &Listener{c: l.conn, config: config, queue: make(chan struct{}, 1), done: make(chan struct{})}
	if err := s.open(ctx, l.remote, host, port); err != nil {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Addr: tcpAddr(host, port), Err: err}
	}
	s.stop = context.AfterFunc(l.conn.ctx, s.end)
	return s, nil
}

func (s *Listener) open(ctx context.Context, remote wire.Loopback, host string, port uint16) error {
	future, release := remote.ListenLocalTcp(ctx, func(w wire.Loopback_listenLocalTcp_Params) error {
		w.SetPort(port)
		w.SetBacklog(uint16(s.config.Backlog))
		return errors.Join(w.SetHost(host), w.SetAcceptor(wire.Acceptor_ServerToClient(&acceptor{s})))
	})
	defer release()
	r, err := future.Struct()
	if err != nil {
		return s.c.fault("listen in the VM", err)
	}
	if err := failureOf(r.Failure()); err != nil {
		return err
	}
	at, err := readEndpoint(r.Local())
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
//	waiting ──next──► taken, by Accept      one of both: whoever removes it
//	   └────drop────► dropped, by whoever asked for it
type arrival struct {
	remote    netip.AddrPort
	toProgram wire.Sink
	ended     func()
	taken     chan struct{} // closed when toHost or err is set
	toHost    wire.Sink
	err       error
}

// acceptor serves the guest's side of a Listener.
type acceptor struct{ s *Listener }

func (a *acceptor) Accept(ctx context.Context, call wire.Acceptor_accept) error {
	r, err := call.AllocResults()
	if err != nil {
		return err
	}
	remote, err := readEndpoint(call.Args().Remote())
	if err != nil {
		return err
	}
	toProgram := call.Args().ToProgram().AddRef()
	call.Go()
	defer toProgram.Release()
	arrived, err := a.s.enqueue(remote, toProgram)
	if err != nil {
		return reply(r, err)
	}
	select {
	case <-arrived.taken:
	case <-a.s.done:
	case <-ctx.Done():
	}
	if a.s.drop(arrived) {
		arrived.ended()
		return reply(r, errRefused)
	}
	<-arrived.taken
	if arrived.err != nil {
		return reply(r, arrived.err)
	}
	return r.SetToHost(arrived.toHost)
}

// Shutdown is called when the guest accepts nothing more.
func (a *acceptor) Shutdown() { a.s.end() }

var (
	errRefused = &Error{Kind: KindSystem, Errno: 111, Message: "connection refused"}
	errBacklog = &Error{Kind: KindLimit, Errno: 11, Message: "too many connections wait to be accepted"} // EAGAIN
	errNoSink  = &Error{Kind: KindInvalid, Errno: 22, Message: "accept without a stream"}                // EINVAL
	// errUnlistened is what Linux's accept says of a listener that was ended by somebody else.
	errUnlistened = &Error{Kind: KindState, Errno: 22, Message: "the listener has ended in the VM: listen again"} // EINVAL
)

// enqueue has a connection wait for Accept.
func (s *Listener) enqueue(remote netip.AddrPort, toProgram wire.Sink) (*arrival, error) {
	if !toProgram.IsValid() {
		return nil, errNoSink
	}
	ended := func() {}
	if s.config.Admit != nil {
		var err error
		if ended, err = s.config.Admit(); err != nil {
			return nil, linuxFailure(err)
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

// wake has an Accept look who waits. It needs s.mu.
func (s *Listener) wake() {
	select {
	case s.queue <- struct{}{}:
	default:
	}
}

// next is who has waited longest; nil when nobody waits.
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

// take makes the connection of a, which may be nil; nil when it is not to be had any more.
func (s *Listener) take(a *arrival) *Conn {
	if a == nil {
		return nil
	}
	defer close(a.taken)
	c, toHost, leaving := s.c.newConn(remoteAddr(a.remote), a.ended)
	c.local = s.local
	if err := c.begin(s.c, a.toProgram, leaving); err != nil {
		c.abandon()
		toHost.Release()
		a.ended()
		a.err = err
		return nil
	}
	a.toHost = toHost
	return c
}

func remoteAddr(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return streamAddr("a program of the VM")
	}
	return net.TCPAddrFromAddrPort(a)
}

// fault says that the listener is closed, and when it was not closed here, that the connection to the guest is, or who has ended it.
func (s *Listener) fault(op string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := net.ErrClosed
	switch {
	case s.closed:
	case s.c.ctx.Err() != nil:
		err = errors.Join(net.ErrClosed, ErrClosed)
	default:
		err = errUnlistened
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: s.local, Err: err}
}

// end unblocks everything.
func (s *Listener) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.done:
	default:
		close(s.done)
	}
}

// Close frees the port in the guest; when that does not answer for 1 s, it is on the way. Connections that wait for Accept are
// reset, those that were accepted stay.
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
	ctx, cancel := context.WithTimeout(s.c.ctx, closeTime)
	defer cancel()
	future, release := s.remote.Close(ctx, nil)
	defer release()
	_, _ = future.Struct()
	s.remote.Release()
	return nil
}

// Addr is where it listens, in the guest.
func (s *Listener) Addr() net.Addr { return s.local }

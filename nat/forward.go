package nat

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"agentvm/internal/host/errno"
	"agentvm/netstack"
)

// A port forward listens on the host and leads what comes to the guest, which sees it come from the gateway:
//
//	program ── TCP ─► listener ─► connection: guest dialled, then spliceTCP; the guest refuses: RST
//	program ── UDP ─► socket ─► session of the program's address: connected socket in the guest's network
//
// The guest is reached at its IPv4 address, whatever the program uses, or with Forward.Localhost by Config.DialLocalhost.

// Forward listens on the host and leads what comes there to the guest's port, until ctx or Run ends: then it stops
// listening and its flows end. It returns the address it listens at. An address that names none is 127.0.0.1, which the
// host's neighbours cannot reach.
func (n *NAT) Forward(ctx context.Context, f Forward) (net.Addr, error) {
	f, err := f.withDefaults()
	if err != nil {
		return nil, err
	}
	if f.Localhost && n.config.DialLocalhost == nil {
		return nil, fmt.Errorf("port forward %s: localhost of this guest cannot be reached; leave out localhost", f)
	}
	if err := n.config.Inward(f.Protocol, f.GuestPort); err != nil {
		return nil, fmt.Errorf("port forward %s: %w", f, err)
	}
	if err := n.limits.forwards.take(); err != nil {
		return nil, fmt.Errorf("port forward %s: %w", f, err)
	}
	at, err := n.openForward(ctx, f)
	if err != nil {
		n.limits.forwards.give()
		return nil, fmt.Errorf("port forward %s: %w", f, explainListen(f.Listen, err))
	}
	return at, nil
}

// openForward listens and starts the goroutine that gives the forward's place back in the end.
func (n *NAT) openForward(ctx context.Context, f Forward) (net.Addr, error) {
	forward := &forward{nat: n, guest: netip.AddrPortFrom(n.network.Addresses().Guest, f.GuestPort)}
	if forward.local = f.Localhost; f.Localhost {
		forward.guest = netip.AddrPortFrom(loopback, f.GuestPort)
	}
	closer, serve, at, err := forward.listen(ctx, f)
	if err != nil {
		return nil, err
	}
	forward.ctx, forward.cancel = context.WithCancel(n.ctx)
	stop := context.AfterFunc(ctx, forward.cancel)
	context.AfterFunc(forward.ctx, func() { closer() })
	done := n.openForwards.add(at, forward.cancel)
	started := n.tasks.start(func() {
		defer done()
		defer n.limits.forwards.give()
		defer stop()
		serve()
		forward.cancel()
		forward.endFlows()
	})
	if !started {
		done()
		forward.cancel()
		return nil, errEnded
	}
	return at, nil
}

// CloseForward ends the port forward that listens at an address, with its flows, and returns when the host's port is free. It reports whether
// there was one.
func (n *NAT) CloseForward(at net.Addr) bool {
	f := n.openForwards.find(at)
	if f == nil {
		return false
	}
	f.cancel()
	<-f.done
	return true
}

// openForwards are the port forwards that listen, by their address.
type openForwards struct {
	mu   sync.Mutex
	list map[string]*openForward
}

type openForward struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when it no longer listens
}

func (o *openForwards) add(at net.Addr, cancel context.CancelFunc) (done func()) {
	f, key := &openForward{cancel, make(chan struct{})}, at.Network()+" "+at.String()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.list == nil {
		o.list = make(map[string]*openForward)
	}
	o.list[key] = f
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.list[key] == f { // another may have the port by now
			delete(o.list, key)
		}
		close(f.done)
	}
}

func (o *openForwards) find(at net.Addr) *openForward {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.list[at.Network()+" "+at.String()]
}

// forward is one port forward. Its goroutine is the one that listens.
type forward struct {
	nat    *NAT
	guest  netip.AddrPort
	local  bool            // guest is reached by Config.DialLocalhost
	ctx    context.Context // ends with the forward
	cancel context.CancelFunc

	mu    sync.Mutex
	flows map[*flow]struct{} // nil when it has ended
}

// listen opens the host's socket. serve runs until closer is called.
func (w *forward) listen(ctx context.Context, f Forward) (closer func() error, serve func(), at net.Addr, err error) {
	w.flows = make(map[*flow]struct{})
	family := "6" // without it, package net takes both families for 0.0.0.0
	if f.Listen.Addr().Is4() {
		family = "4"
	}
	if f.Protocol == "udp" {
		var config net.ListenConfig
		socket, err := config.ListenPacket(ctx, "udp"+family, f.Listen.String())
		if err != nil {
			return nil, nil, nil, err
		}
		u := &forwardUDP{forward: w, socket: socket.(*net.UDPConn), sessions: make(map[netip.AddrPort]*forwardSession)}
		return socket.Close, u.serve, socket.LocalAddr(), nil
	}
	listener, err := w.nat.config.Listen(ctx, "tcp"+family, f.Listen.String())
	if err != nil {
		return nil, nil, nil, err
	}
	return listener.Close, func() { w.serveTCP(listener) }, listener.Addr(), nil
}

// explainListen says what to do about a socket that could not be had.
func explainListen(at netip.AddrPort, err error) error {
	switch number := errno.In(err); {
	case number == errno.EADDRINUSE, number == errno.EACCES && runtime.GOOS == "windows": // which says so of a port that a program has for itself
		return fmt.Errorf("port %d of the host is taken: choose another, let 0 choose one, or stop the program that has it: %w", at.Port(), err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("the host does not let this user listen at port %d: choose one above 1023, or let 0 choose one: %w", at.Port(), err)
	case number == errno.EADDRNOTAVAIL:
		return fmt.Errorf("the host has no address %s: use one of its own, or leave it out for 127.0.0.1: %w", at.Addr(), err)
	}
	return err
}

// add notes a flow that ends with the forward. It returns false when that has ended.
func (w *forward) add(f *flow) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.flows == nil {
		return false
	}
	w.flows[f] = struct{}{}
	return true
}

func (w *forward) remove(f *flow) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.flows, f)
}

// endFlows tells all flows to end, and lets none be added.
func (w *forward) endFlows() {
	w.mu.Lock()
	flows := w.flows
	w.flows = nil
	w.mu.Unlock()
	for f := range flows {
		f.end(ReasonShutdown)
	}
}

// acceptPause is how long a forward waits when the host cannot give it a connection, for lack of descriptors most of the time.
const acceptPause = 50 * time.Millisecond

// pause waits a moment before something that has failed is tried again. It returns false when the forward has ended.
func (w *forward) pause() bool {
	timer := time.NewTimer(acceptPause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// serveTCP takes connections until the listener is closed.
func (w *forward) serveTCP(listener net.Listener) {
	defer listener.Close()
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			host := conn.(*net.TCPConn)
			if !w.nat.tasks.start(func() { w.connect(host) }) {
				resetHost(host)
			}
		case errors.Is(err, net.ErrClosed) || !w.pause():
			return
		}
	}
}

// connect leads one connection to the guest. A guest that does not take it resets it.
func (w *forward) connect(host *net.TCPConn) {
	f, err := w.nat.openFlow(flowSpec{
		protocol: "tcp", direction: In, source: addressOf(host.RemoteAddr()), destination: w.guest, limit: &w.nat.limits.forwardFlows,
		evicts: true,
	})
	if err != nil {
		resetHost(host)
		return
	}
	if err := w.nat.config.Inward("tcp", w.guest.Port()); err != nil {
		resetHost(host)
		f.close(ReasonPolicy, err)
		return
	}
	if !w.add(f) {
		resetHost(host)
		f.close(ReasonShutdown, nil)
		return
	}
	defer w.remove(f)
	guest, err := w.dialTCP(f)
	if err != nil {
		resetHost(host)
		reason, _ := dialFailure(err)
		f.close(reason, err)
		return
	}
	f.establish()
	w.nat.spliceTCP(f, guest, host)
}

// dialTCP connects to the guest. It gives up after DialTimeout and when the flow is asked to end; the error then is the cause.
func (w *forward) dialTCP(f *flow) (guestConn, error) {
	ctx, cancel := context.WithCancelCause(w.ctx)
	defer cancel(nil)
	f.whenEnded(func(Reason) { cancel(errEnded) })
	if timeout := w.nat.config.DialTimeout; timeout >= 0 {
		timer := w.nat.config.Clock.AfterFunc(timeout, func() { cancel(errDialTimeout) })
		defer timer.Stop()
	}
	var guest net.Conn
	var err error
	if w.local {
		guest, err = w.nat.config.DialLocalhost(ctx, w.guest.Port())
	} else {
		guest, err = w.nat.network.DialContext(ctx, "tcp", w.guest)
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, err
	}
	if stack, ok := guest.(*netstack.Conn); ok {
		return stack, nil
	}
	return newLocalConn(guest), nil
}

// addressOf is the address of a TCP or UDP socket.
func addressOf(a net.Addr) netip.AddrPort {
	var at netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		at = a.AddrPort()
	case *net.UDPAddr:
		at = a.AddrPort()
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

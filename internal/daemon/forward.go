package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"agentvm/internal/daemon/daemonrpc"
	"agentvm/internal/guest/capnprpc"
	"agentvm/nat"
)

// Forwards forward ports of the host to servers in a VM until Close or the end of Serve, TCP as programs in the VM reach them:
//
//	client ── TCP ──► listener ── connection for bulk ──► daemon ──► 127.0.0.1 or ::1 of the guest
//	client ── UDP ──► socket of the daemon, which it lends ──► address of the guest
//
// Each connection has its own two goroutines and 288 KiB a direction, so that one that does not move delays no other. Unlike the port
// forwards of the VM's configuration those of TCP exempt no port from loopback confinement, because the VM's owner connects.
type Forwards struct {
	client  *Client
	ports   []*forwardedPort
	onError func(error)

	mu       sync.Mutex
	reported map[string]bool // errors that are not reported again until a connection works
}

// forwardedPort is one port of the host.
type forwardedPort struct {
	nat.Forward
	listener net.Listener // of TCP

	mu     sync.Mutex
	lent   *daemonrpc.LentForwardClient // of UDP
	closed bool
}

// dialFunc connects to a server in a VM.
type dialFunc func(ctx context.Context) (*capnprpc.StreamConn, error)

// ListenForwards listens for all of the list, or for none; Serve forwards the connections. onError is called, from
// several goroutines, with the reason why a connection could not be made, each reason once until a connection works; nil discards.
func (c *Client) ListenForwards(ctx context.Context, list []nat.Forward, onError func(error)) (*Forwards, error) {
	f := &Forwards{client: c, onError: onError, reported: make(map[string]bool)}
	for _, one := range list {
		p, err := c.listenForward(ctx, one)
		if err != nil {
			f.Close()
			return nil, err
		}
		f.ports = append(f.ports, p)
	}
	return f, nil
}

func (c *Client) listenForward(ctx context.Context, f nat.Forward) (*forwardedPort, error) {
	p := &forwardedPort{Forward: f}
	if f.Protocol == "udp" {
		return p, p.lend(ctx, c)
	}
	at := f.Listen
	if !at.Addr().IsValid() {
		at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
	}
	var config net.ListenConfig
	var err error
	p.listener, err = config.Listen(ctx, "tcp", at.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %s is used by another program; take another, or port 0 for any that is free: %w", at, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen for connections to port %d of the VM: %w", f.GuestPort, err)
	}
	return p, nil
}

// lend has the daemon open a UDP port. From then on the port is the one that was opened.
func (p *forwardedPort) lend(ctx context.Context, c *Client) error {
	lent, err := c.LendForward(ctx, p.Forward.String())
	if err != nil {
		return err
	}
	at, err := netip.ParseAddrPort(lent.Address())
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil || p.closed {
		lent.Release()
		return err
	}
	p.Listen, p.lent = at, lent
	return nil
}

func (p *forwardedPort) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed = true; p.listener != nil {
		_ = p.listener.Close()
	}
	if p.lent != nil {
		p.lent.Release()
		p.lent = nil
	}
}

// keep keeps a UDP port open, also while the VM's guest restarts, and returns why that ended.
func (p *forwardedPort) keep(ctx context.Context, c *Client) error {
	for {
		p.mu.Lock()
		lent := p.lent
		p.lent = nil // keep releases it now
		p.mu.Unlock()
		if lent == nil {
			return net.ErrClosed
		}
		err := lent.Ended(ctx)
		lent.Release()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return fmt.Errorf("port %s/udp was closed by agentvm port rm", p.Listen)
		}
		if err := p.lend(ctx, c); err != nil {
			return err
		}
	}
}

// Addrs are the addresses of the ports, in the list's order.
func (f *Forwards) Addrs() (list []net.Addr) {
	for _, p := range f.ports {
		if p.listener == nil {
			list = append(list, net.UDPAddrFromAddrPort(p.Listen))
			continue
		}
		list = append(list, p.listener.Addr())
	}
	return list
}

// Close closes the ports. Serve does so, too.
func (f *Forwards) Close() {
	for _, p := range f.ports {
		p.close()
	}
}

// Serve forwards connections until ctx ends, which is not an error, or the daemon has gone: daemonrpc.ErrClosed. All connections have
// ended when it returns.
func (f *Forwards) Serve(ctx context.Context) error {
	defer f.Close()
	bulk, err := f.client.Bulk(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	for _, p := range f.ports {
		if p.listener == nil {
			work.Go(func() { cancel(p.keep(ctx, f.client)) })
			continue
		}
		dial := func(ctx context.Context) (*capnprpc.StreamConn, error) {
			return bulk.DialLocal(ctx, "localhost", p.GuestPort, daemonrpc.ForDial)
		}
		work.Go(func() { cancel(f.accept(ctx, p.listener, dial, &work)) })
	}
	select {
	case <-ctx.Done():
	case <-bulk.Done():
		cancel(daemonrpc.ErrClosed)
	}
	f.Close()
	work.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// accept serves a listener and returns why that ended.
func (f *Forwards) accept(ctx context.Context, l net.Listener, dial dialFunc, work *sync.WaitGroup) error {
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				reset(conn)
			}
			return ctx.Err()
		case err != nil && errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			f.report(fmt.Errorf("accept a connection: %w", err))
			time.Sleep(acceptPause) // perhaps the process has no descriptor left
			continue
		}
		work.Go(func() { f.join(ctx, conn, dial) })
	}
}

// dialTime bounds the making of a connection in the VM.
const dialTime = 30 * time.Second

// join joins one connection to one in the VM.
func (f *Forwards) join(ctx context.Context, conn net.Conn, dial dialFunc) {
	limited, cancel := context.WithTimeout(ctx, dialTime)
	inside, err := dial(limited)
	cancel()
	if err != nil {
		reset(conn)
		if ctx.Err() == nil {
			f.report(err)
		}
		return
	}
	f.worked()
	stop := context.AfterFunc(ctx, func() { reset(conn); _ = inside.Close() })
	defer stop()
	splice(conn.(*net.TCPConn), inside)
}

// splice copies between two connections until both directions have ended, or one breaks off. It closes both.
func splice(conn *net.TCPConn, inside capnprpc.Stream) {
	nat.InlineUrgent(conn)
	broken := func() { reset(conn); _ = inside.Close() }
	var up sync.WaitGroup
	up.Go(func() {
		_, err := io.Copy(inside, conn)
		if err == nil {
			err = inside.CloseWrite()
		}
		if err != nil {
			broken()
		}
	})
	_, err := io.Copy(conn, inside)
	if err == nil {
		err = conn.CloseWrite()
	}
	if err != nil {
		broken()
	}
	up.Wait()
	_, _ = conn.Close(), inside.Close()
}

// reset ends a connection with an error at its other end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// maxReported bounds the errors that are remembered, because the guest can make up their texts.
const maxReported = 64

func (f *Forwards) report(err error) {
	f.mu.Lock()
	known := f.reported[err.Error()]
	if len(f.reported) >= maxReported {
		clear(f.reported)
	}
	f.reported[err.Error()] = true
	f.mu.Unlock()
	if f.onError != nil && !known {
		f.onError(err)
	}
}

// worked notes that a connection was made: errors are reported again.
func (f *Forwards) worked() {
	f.mu.Lock()
	clear(f.reported)
	f.mu.Unlock()
}

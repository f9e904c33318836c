package vm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	"agentvm/internal/guestrpc"
	"agentvm/nat"
)

// DialContext connects to a server in the VM, as a program of the VM on its own loopback interface: network is "tcp", "tcp4" or
// "tcp6", address an address of 127.0.0.0/8, "[::1]" or "localhost" with a port. "tcp" and "localhost" is 127.0.0.1, and when
// nothing listens there, ::1. Nothing else is ever reached: no name is looked up, no connection leaves the VM, and none goes to
// this host's own loopback interface. ctx bounds the connecting only. While the VM is paused, it waits.
//
// What it returns is a *capnprpc.StreamConn: a net.Conn with CloseWrite, CloseRead, io.ReaderFrom and io.WriterTo. Errors are *net.OpError
// around an errno, for errors.Is: ECONNREFUSED nothing listens; EACCES network.connect or network.listen denies the port;
// EADDRNOTAVAIL the address is not the VM's own; EAGAIN MaxLocalConnections are open; EINVAL the address makes no sense;
// ECONNRESET the other end, or the VM, has gone; EPIPE it reads no more; ENOTCONN a half of a broken connection is to be closed.
func (v *VM) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return v.dialAs(ctx, CallerProgram, network, address)
}

// dialAs is DialContext for another caller.
func (v *VM) dialAs(ctx context.Context, who Caller, network, address string) (net.Conn, error) {
	host, port, err := parseLocal(network, address)
	if err == nil {
		err = v.decide(who, OpLoopback, port)
	}
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Addr: localAddr(address), Err: err}
	}
	return v.dialLoopback(ctx, host, port)
}

// dialLoopback connects; its callers have checked Access. host is a loopback address, or "localhost".
func (v *VM) dialLoopback(ctx context.Context, host string, port uint16) (net.Conn, error) {
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	give, err := v.locals.connections.take()
	if err != nil {
		return nil, localFault("dial", address, err)
	}
	loopback, err := v.loopback(ctx)
	if err != nil {
		give()
		return nil, localFault("dial", address, err)
	}
	c, err := loopback.Dial(ctx, host, port, give)
	if err != nil {
		give()
		return nil, localFault("dial", address, v.explainFiles(err))
	}
	return c, nil
}

// localFault makes err a *net.OpError unless it is one. The guest's answers are; the reason why a VM has ended is not.
func localFault(op, address string, err error) error {
	if has := (*net.OpError)(nil); errors.As(err, &has) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: localAddr(address), Err: err}
}

// loopback returns the client of the guest's loopback interface. It uses the bulk stream, so that it delays no command.
func (v *VM) loopback(ctx context.Context) (*guestrpc.Loopback, error) {
	client, err := v.FilesClient(ctx)
	if err != nil {
		return nil, err
	}
	return client.Loopback(), nil
}

// errAddress is an address that is refused.
type errAddress struct {
	message string
	errno   syscall.Errno
}

func (e *errAddress) Error() string { return e.message }
func (e *errAddress) Unwrap() error { return e.errno }

// parseLocal splits an address of the VM's loopback interface. host is an address, or "localhost" for both of them.
func parseLocal(network, address string) (host string, port uint16, err error) {
	if network != "tcp" && network != "tcp4" && network != "tcp6" {
		return "", 0, &errAddress{"network " + strconv.Quote(network) + ": want tcp, tcp4 or tcp6", syscall.EINVAL}
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, &errAddress{err.Error(), syscall.EINVAL}
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, &errAddress{"port " + strconv.Quote(text) + ": want a number up to 65535", syscall.EINVAL}
	}
	host, err = localHost(network, host)
	return host, uint16(n), err
}

// localHost returns the loopback address that a network and a host mean, or "localhost" for both of them.
func localHost(network, host string) (string, error) {
	if host == "localhost" {
		return map[string]string{"tcp": "localhost", "tcp4": "127.0.0.1", "tcp6": "::1"}[network], nil
	}
	a, err := netip.ParseAddr(host)
	foreign := err != nil || !a.IsLoopback() || a.Is4In6() || a.Zone() != ""
	if foreign || network == "tcp4" && !a.Is4() || network == "tcp6" && !a.Is6() {
		return "", &errAddress{strconv.Quote(host) + " is not the VM's own loopback address for " + network + ": want 127.0.0.1, ::1 or localhost", syscall.EADDRNOTAVAIL}
	}
	return a.String(), nil
}

// localAddr is an address as the caller spelled it.
type localAddr string

func (localAddr) Network() string  { return "tcp" }
func (a localAddr) String() string { return string(a) }

// warnLocal logs that a limit is nearly reached.
func (v *VM) warnLocal(use nat.LimitUse) {
	v.config.Logger.Warn("a limit of the VM is nearly reached", "limit", use.Limit, "used", use.Used, "maximum", use.Maximum)
}

// Listen listens in the guest, as a program of the VM would: programs of the guest that connect to 127.0.0.1:PORT, or [::1]:PORT, reach
// what Accept returns. network and address are as for DialContext, except that "localhost" is 127.0.0.1 unless network is "tcp6",
// and port 0 is any free one, see Addr. ctx bounds the call only. The listener ends with Close or with the VM; it works again after
// a pause, and forks and restored VMs do not have it.
//
// Up to 128 connections wait for Accept, and count as open; more wait in the guest. Errors are *net.OpError around an errno:
// EADDRINUSE a program of the guest, or another listener, has the port; EACCES network.listen denies it; EADDRNOTAVAIL and EINVAL as for
// DialContext. Accept's wrap net.ErrClosed after Close and after the VM's end, and are EINVAL when the listener was ended in the guest.
func (v *VM) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	host, port, err := parseLocal(network, address)
	if err == nil {
		err = v.decide(CallerProgram, OpListen, port)
	}
	var loopback *guestrpc.Loopback
	if err == nil {
		loopback, err = v.loopback(ctx)
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: localAddr(address), Err: err}
	}
	l, err := loopback.Listen(ctx, host, port, guestrpc.ListenConfig{Admit: v.locals.connections.take})
	if err != nil {
		return nil, localFault("listen", address, v.explainFiles(err))
	}
	if err := v.decide(CallerProgram, OpListen, uint16(l.Addr().(*net.TCPAddr).Port)); err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: l.Addr(), Err: errors.Join(err, l.Close())}
	}
	return l, nil
}

// MaxLocalConnections is how many connections DialContext and Listen of one VM can have open, also those that wait for Accept.
const MaxLocalConnections = 256

// locals counts the connections that the host has with the guest's loopback interface.
type locals struct {
	connections gauge
}

func newLocals(warn func(nat.LimitUse)) *locals {
	return &locals{connections: gauge{use: nat.LimitUse{Limit: "local connections", Maximum: MaxLocalConnections}, warn: warn}}
}

// gauge counts the use of a limit. It warns when four fifths are in use, and again only after less than half was.
type gauge struct {
	mu     sync.Mutex
	use    nat.LimitUse
	warned bool
	warn   func(nat.LimitUse) // called without mu
}

// take counts one more use, until give is called. At the limit the error wraps EAGAIN and a *nat.LimitError.
func (g *gauge) take() (give func(), err error) {
	g.mu.Lock()
	if g.use.Used >= g.use.Maximum {
		g.use.Refused++
		g.mu.Unlock()
		return nil, &fullError{nat.LimitError{Limit: g.use.Limit, Maximum: g.use.Maximum}}
	}
	g.use.Used++
	due := !g.warned && g.use.Used*5 >= g.use.Maximum*4
	g.warned = g.warned || due
	use := g.use
	g.mu.Unlock()
	if due {
		g.warn(use)
	}
	return sync.OnceFunc(g.give), nil
}

func (g *gauge) give() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.use.Used--
	if g.use.Used*2 < g.use.Maximum {
		g.warned = false
	}
}

func (g *gauge) read() nat.LimitUse {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.use
}

// fullError is the error of a limit that is reached.
type fullError struct{ limit nat.LimitError }

func (e *fullError) Error() string   { return e.limit.Error() }
func (e *fullError) Unwrap() []error { return []error{&e.limit, syscall.EAGAIN} }

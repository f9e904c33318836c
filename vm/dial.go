package vm

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"agentvm/nat"
	"agentvm/rpc"
)

// DialContext connects to a server in the VM, as a program of the VM on its own loopback interface: network is "tcp", "tcp4" or
// "tcp6", address an address of 127.0.0.0/8, "[::1]" or "localhost" with a port. "tcp" and "localhost" is 127.0.0.1, and where
// nobody listens there, ::1. Nothing else is ever reached: no name is looked up, no connection leaves the VM, and none goes to
// this host's own loopback interface. ctx bounds the connecting only. While the VM is paused, it waits.
//
// What it returns is a *rpc.Conn: a net.Conn with CloseWrite, CloseRead, io.ReaderFrom and io.WriterTo. Errors are *net.OpError
// around an errno, for errors.Is: ECONNREFUSED nobody listens; EACCES network.connect or network.listen denies the port;
// EADDRNOTAVAIL the address is not the VM's own; EAGAIN MaxLocalConnections are open; EINVAL the address makes no sense;
// ECONNRESET the other end, or the VM, has gone; EPIPE it reads no more; ENOTCONN a half of a broken connection is to be closed.
func (v *VM) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return v.dialAs(ctx, CallerProgram, network, address)
}

// dialAs is DialContext for who asks.
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

// dialLoopback connects without asking any policy. host is a loopback address, or "localhost".
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

// localFault is err as a *net.OpError, which the guest's own answers are already, but not why a VM has ended.
func localFault(op, address string, err error) error {
	if has := (*net.OpError)(nil); errors.As(err, &has) {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Addr: localAddr(address), Err: err}
}

// loopback is the guest's loopback interface. It shares the connection of the files, so that it delays no command.
func (v *VM) loopback(ctx context.Context) (*rpc.Loopback, error) {
	client, err := v.FilesClient(ctx)
	if err != nil {
		return nil, err
	}
	return client.Loopback(), nil
}

// errAddress is why an address is refused.
type errAddress struct {
	message string
	errno   syscall.Errno
}

func (e *errAddress) Error() string { return e.message }
func (e *errAddress) Unwrap() error { return e.errno }

// parseLocal takes an address of the VM's loopback interface apart. host is an address, or "localhost" for both.
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

// localHost is the loopback address that a network and a host mean, or "localhost" for both.
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

// localAddr is an address as it was given.
type localAddr string

func (localAddr) Network() string  { return "tcp" }
func (a localAddr) String() string { return string(a) }

// warnLocal tells of a limit that is nearly reached.
func (v *VM) warnLocal(use nat.LimitUse) {
	v.config.Logger.Warn("a limit of the VM is nearly reached", "limit", use.Limit, "used", use.Used, "maximum", use.Maximum)
}

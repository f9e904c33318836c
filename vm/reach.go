package vm

import (
	"context"
	"net"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/network/reach"
)

// Access is what may be reached inside of a VM, and from inside. The zero value lets the VM's owner and its own programs use every
// port, and outsiders none.
type Access = reach.Access

// PortPolicy says which ports are permitted. The zero value permits all; as soon as there is an Allow, only what it names; Deny wins.
type PortPolicy = reach.PortPolicy

// PortRange is the ports from First to Last, both included. As text it is one port, "8080", or several, "3000-3999".
type PortRange = reach.PortRange

// AccessError is a refusal by Access. It wraps a syscall.Errno: errors.Is(err, syscall.EACCES) holds unless what was asked for
// cannot be (EINVAL).
type AccessError = reach.AccessError

// UnixSocket is a Unix socket of the host that the guest's programs can connect to. Each program that may open it
// can do what the socket's server permits the user who runs the VM.
type UnixSocket = reach.UnixSocket

// ParseUnixSocket reads host[:guest][:mode], the mode in octal. Backslashes belong to paths of Windows.
func ParseUnixSocket(spec string) (UnixSocket, error) { return reach.ParseUnixSocket(spec) }

// newDialer returns the dialer into the VM. It uses the bulk stream, so that it delays no command.
func (v *VM) newDialer() *reach.Dialer {
	return reach.NewDialer(reach.Config{
		Ports: v.resources.ports, Connections: v.resources.connections, Explain: v.explainFiles,
		Loopback: func(ctx context.Context) (*guestrpc.Loopback, error) {
			client, err := v.filesClient(ctx)
			if err != nil {
				return nil, err
			}
			return client.Loopback(), nil
		},
		FindSocket: func(ctx context.Context, q guestrpc.SocketQuery) (s guestrpc.Socket, found bool, err error) {
			client, err := v.guest(ctx)
			if err != nil {
				return s, false, err
			}
			s, found, err = client.FindSocket(ctx, q)
			return s, found, v.explain(err)
		},
	})
}

// Access returns what the VM was configured with.
func (v *VM) Access() Access { return v.config.Access.Clone() }

// DialContext connects to a server in the VM, as a program of the VM on its own loopback interface: network is "tcp", "tcp4" or
// "tcp6", address an address of 127.0.0.0/8, "[::1]" or "localhost" with a port. "tcp" and "localhost" is 127.0.0.1, and when
// nothing listens there, ::1. Nothing else is ever reached: no name is looked up, no connection leaves the VM, and none goes to
// this host's own loopback interface. ctx bounds the connecting only. While the VM is paused, it waits.
//
// What it returns is a *capnprpc.StreamConn: a net.Conn with CloseWrite, CloseRead, io.ReaderFrom and io.WriterTo. Errors are *net.OpError
// around an errno, for errors.Is: ECONNREFUSED nothing listens; EACCES network.connect or network.listen denies the port;
// EADDRNOTAVAIL the address is not the VM's own; EAGAIN the VM has 256 connections with DialContext and Listen already, also those that wait for Accept; EINVAL the address makes no sense;
// ECONNRESET the other end, or the VM, has gone; EPIPE it reads no more; ENOTCONN a half of a broken connection is to be closed.
func (v *VM) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return v.dialer.DialContext(ctx, network, address)
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
	return v.dialer.Listen(ctx, network, address)
}

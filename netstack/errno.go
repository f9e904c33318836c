package netstack

import (
	"net"
	"net/netip"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// opError is err in the form of package net, so that errors.Is finds errnos and [net.ErrClosed] in it.
func opError(op, network string, local, remote netip.AddrPort, err error) error {
	e := &net.OpError{Op: op, Net: network, Err: err}
	if local.IsValid() {
		e.Source = netAddr(network, local)
	}
	if remote.IsValid() {
		e.Addr = netAddr(network, remote)
	}
	return e
}

func netAddr(network string, a netip.AddrPort) net.Addr {
	if network == "udp" {
		return net.UDPAddrFromAddrPort(a)
	}
	return net.TCPAddrFromAddrPort(a)
}

// toErrno is what Linux calls gVisor's error.
func toErrno(err tcpip.Error) error {
	switch err.(type) {
	case *tcpip.ErrConnectionRefused:
		return syscall.ECONNREFUSED
	case *tcpip.ErrConnectionReset:
		return syscall.ECONNRESET
	case *tcpip.ErrConnectionAborted, *tcpip.ErrAborted:
		return syscall.ECONNABORTED
	case *tcpip.ErrTimeout:
		return syscall.ETIMEDOUT
	case *tcpip.ErrHostUnreachable, *tcpip.ErrHostDown:
		return syscall.EHOSTUNREACH
	case *tcpip.ErrNetworkUnreachable, *tcpip.ErrNoNet:
		return syscall.ENETUNREACH
	case *tcpip.ErrClosedForSend:
		return syscall.EPIPE
	case *tcpip.ErrPortInUse, *tcpip.ErrDuplicateAddress:
		return syscall.EADDRINUSE
	case *tcpip.ErrBadLocalAddress, *tcpip.ErrNoPortAvailable:
		return syscall.EADDRNOTAVAIL
	case *tcpip.ErrMessageTooLong:
		return syscall.EMSGSIZE
	case *tcpip.ErrNotConnected, *tcpip.ErrInvalidEndpointState:
		return syscall.ENOTCONN
	case *tcpip.ErrNoBufferSpace:
		return syscall.ENOBUFS
	case *tcpip.ErrNotPermitted:
		return syscall.EPERM
	default:
		return &stackError{err.String()}
	}
}

// stackError is an error of gVisor's that has no errno here.
type stackError struct{ text string }

func (e *stackError) Error() string { return e.text }

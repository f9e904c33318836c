//go:build linux

package guest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialLocal connects to a server in the guest. Package net would need twice the system calls and a goroutine that waits. On the
// loopback interface the first connect(2) already has an outcome, which the second one returns.
//
//	socket ─► connect: EINPROGRESS ─► connect ─► 0, or why not
//	                                     └─► EALREADY, the server's queue is full: wait until the socket is writable, and again
func dialLocal(ctx context.Context, to netip.AddrPort) (tcpConn, error) {
	for range 10 {
		c, err := dialOnce(ctx, to)
		if err != nil {
			return nil, err
		}
		if c.local.(*net.TCPAddr).AddrPort() != to {
			return c, nil
		}
		_ = errors.Join(c.SetLinger(0), c.Close()) // not left in TIME_WAIT, where it would keep the server from its port
	}
	return nil, syscall.ECONNREFUSED
}

// dialOnce may connect to itself: when no process listens at a port in the range that the kernel gives to outgoing connections, the
// kernel at times gives that port to this connection.
func dialOnce(ctx context.Context, to netip.AddrPort) (*dialledConn, error) {
	family, address := sockaddr(to)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err = unix.Connect(fd, address); err == syscall.EINPROGRESS {
		err = unix.Connect(fd, address)
	}
	if err != nil && err != syscall.EALREADY {
		_ = unix.Close(fd)
		return nil, err
	}
	c := &dialledConn{File: os.NewFile(uintptr(fd), "tcp"), remote: net.TCPAddrFromAddrPort(to)}
	if err == syscall.EALREADY {
		err = c.await(ctx, address)
	}
	if err == nil {
		err = c.setOptions(fd)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func sockaddr(a netip.AddrPort) (family int, address unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// tcpConn are the methods that a local connection needs.
type tcpConn interface {
	net.Conn
	CloseWrite() error
	SetLinger(seconds int) error
	SyscallConn() (syscall.RawConn, error)
}

var (
	_ tcpConn = (*net.TCPConn)(nil)
	_ tcpConn = (*dialledConn)(nil)
)

// dialledConn is a connection that dialLocal has made.
type dialledConn struct {
	*os.File
	local, remote net.Addr
}

// await waits for the outcome of a connect that has diskAttached.
func (c *dialledConn) await(ctx context.Context, address unix.Sockaddr) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	down := raw.Write(func(fd uintptr) bool {
		err = unix.Connect(int(fd), address)
		return err != syscall.EALREADY
	})
	if !stop() && down != nil {
		return ctx.Err()
	}
	return errors.Join(down, err)
}

// setOptions sets what package net would set: small writes leave at once. fd is the file's descriptor.
func (c *dialledConn) setOptions(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return err
	}
	own, err := unix.Getsockname(fd)
	switch own := own.(type) {
	case *unix.SockaddrInet4:
		c.local = &net.TCPAddr{IP: own.Addr[:], Port: own.Port}
	case *unix.SockaddrInet6:
		c.local = &net.TCPAddr{IP: own.Addr[:], Port: own.Port}
	}
	return err
}

// Read reports Close as package net does.
func (c *dialledConn) Read(b []byte) (int, error) {
	n, err := c.File.Read(b)
	return n, closedError(err)
}

// Write reports Close as package net does.
func (c *dialledConn) Write(b []byte) (int, error) {
	n, err := c.File.Write(b)
	return n, closedError(err)
}

func closedError(err error) error {
	if errors.Is(err, os.ErrClosed) {
		return net.ErrClosed
	}
	return err
}

func (c *dialledConn) LocalAddr() net.Addr  { return c.local }
func (c *dialledConn) RemoteAddr() net.Addr { return c.remote }

// control calls do with the descriptor, which stays open meanwhile.
func (c *dialledConn) control(do func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	down := raw.Control(func(fd uintptr) { err = do(int(fd)) })
	return errors.Join(down, err)
}

func (c *dialledConn) CloseWrite() error {
	return c.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}

func (c *dialledConn) SetLinger(seconds int) error {
	l := unix.Linger{Onoff: 1, Linger: int32(seconds)}
	return c.control(func(fd int) error { return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &l) })
}

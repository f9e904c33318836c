//go:build linux

package guest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDialLocalWaits: a server whose queue is full neither refuses nor accepts; the dialler waits for it until its context ends.
func TestDialLocalWaits(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	own, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(own.(*unix.SockaddrInet4).Port))
	for full := false; !full; { // the queue takes one or two
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		c, err := dialLocal(ctx, to)
		cancel()
		if full = errors.Is(err, context.DeadlineExceeded); !full && err != nil {
			t.Fatal(err)
		}
		if c != nil {
			defer func() { _ = c.Close() }()
		}
	}
	dialled := make(chan error, 1)
	go func() {
		c, err := dialLocal(t.Context(), to)
		if err == nil {
			err = c.Close()
		}
		dialled <- err
	}()
	for { // as often as needed: the kernel asks again only after a second
		a, _, err := unix.Accept(fd)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(a)
		select {
		case err := <-dialled:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestDialLocal: a connection made by system calls behaves like one of package net.
func TestDialLocal(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				t.Skip(err)
			}
			to := l.Addr().(*net.TCPAddr).AddrPort()
			c, err := dialLocal(t.Context(), to)
			if err != nil {
				t.Fatal(err)
			}
			far, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = far.Close() }()
			if c.LocalAddr().String() != far.RemoteAddr().String() || c.RemoteAddr().String() != far.LocalAddr().String() {
				t.Errorf("%v -> %v, and there %v <- %v", c.LocalAddr(), c.RemoteAddr(), far.LocalAddr(), far.RemoteAddr())
			}
			if _, err := c.Write([]byte("half")); err != nil {
				t.Error(err)
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
			b := make([]byte, 5)
			if n, err := far.Read(b); string(b[:n]) != "half" {
				t.Errorf("%q, %v", b[:n], err)
			}
			if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
				t.Error(err)
			}
			if _, err := far.Write(b); err == nil {
				_, err = far.Read(b)
				if !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("after a reset: %v", err)
				}
			}
			_ = l.Close()
			if _, err := dialLocal(t.Context(), to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("no listener: %v", err)
			}
		})
	}
}

// TestDialLocalNotItself: without a listener a connection is refused, and does not reach itself.
func TestDialLocalNotItself(t *testing.T) {
	free := netip.MustParseAddrPort("127.0.0.1:40000") // an even one of those that the kernel gives to who connects
	for ; ; free = netip.AddrPortFrom(free.Addr(), free.Port()+2) {
		if l, err := net.Listen("tcp", free.String()); err == nil {
			_ = l.Close()
			break
		}
	}
	for range 100_000 { // one in 14,000 would
		if c, err := dialLocal(t.Context(), free); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%v, %v", c, err)
		}
	}
}

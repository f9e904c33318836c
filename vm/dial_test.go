package vm_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/net/nettest"

	"agentvm/vm"
)

// listener listens in a VM until the test ends.
func listener(t testing.TB, v *vm.VM, address string) net.Listener {
	t.Helper()
	l, err := v.Listen(limited(t), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestDialAndListen is the thinnest path: a program of the guest and the host talk to each other, both ways round.
func TestDialAndListen(t *testing.T) {
	v := sharedVM(t)
	t.Run("a program connects to the host's listener", func(t *testing.T) {
		l := listener(t, v, "127.0.0.1:0")
		_, port, _ := net.SplitHostPort(l.Addr().String())
		go func() {
			c, err := l.Accept()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			b, err := io.ReadAll(c)
			if err != nil {
				t.Error(err)
			}
			_, _ = c.Write([]byte(strings.ToUpper(string(b))))
		}()
		wantOutput(t, v, "printf hello | nc 127.0.0.1 "+port, "HELLO")
	})
	t.Run("the host connects to itself through the guest", func(t *testing.T) {
		l := listener(t, v, "127.0.0.1:0")
		c, err := v.DialContext(limited(t), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = far.Close() }()
		if c.LocalAddr().String() != far.RemoteAddr().String() || c.RemoteAddr().String() != far.LocalAddr().String() {
			t.Errorf("%v -> %v, and there %v <- %v", c.LocalAddr(), c.RemoteAddr(), far.LocalAddr(), far.RemoteAddr())
		}
	})
	t.Run("nothing listens", func(t *testing.T) {
		if _, err := v.DialContext(limited(t), "tcp", "localhost:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v", err)
		}
	})
}

// pair connects the host to itself through the guest.
func pair(t testing.TB, v *vm.VM, l net.Listener) (c, far net.Conn) {
	t.Helper()
	c, err := v.DialContext(limited(t), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = far.Close() })
	return c, far
}

// TestConnConforms has both kinds of connection, dialled and accepted, pass what package net's own have to.
func TestConnConforms(t *testing.T) {
	v := sharedVM(t)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			l := listener(t, v, address)
			nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
				if c1, err = v.DialContext(limited(t), "tcp", l.Addr().String()); err != nil {
					return nil, nil, nil, err
				}
				if c2, err = l.Accept(); err != nil {
					return nil, nil, nil, err
				}
				return c1, c2, func() { _, _ = c1.Close(), c2.Close() }, nil
			})
		})
	}
}

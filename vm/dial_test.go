package vm_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"

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
	t.Run("nobody listens", func(t *testing.T) {
		if _, err := v.DialContext(limited(t), "tcp", "localhost:1"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v", err)
		}
	})
}

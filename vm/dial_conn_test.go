package vm_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"agentvm/vm"
)

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

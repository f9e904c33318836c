package vm_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"

	"agentvm/vm"
)

// unused is an address of the guest where nothing listens.
const unused = "127.0.0.1:9"

// TestErrnos has a row for each way to fail. All are *net.OpError around the errno of that name, on every system.
func TestErrnos(t *testing.T) {
	denied := vm.PortPolicy{Deny: []vm.PortRange{{First: 7000, Last: 7999}}}
	v := ownVM(t, func(c *vm.Config) {
		c.Access.Connect = denied
		c.Access.Listen = vm.PortPolicy{Deny: []vm.PortRange{{First: 8000, Last: 8999}}}
	})
	l := listener(t, v, "127.0.0.1:0")
	taken := l.Addr().String()
	dial := func(network, address string) func(*testing.T) error {
		return func(t *testing.T) error {
			c, err := v.DialContext(limited(t), network, address)
			if err == nil {
				_ = c.Close()
			}
			return err
		}
	}
	listen := func(network, address string) func(*testing.T) error {
		return func(t *testing.T) error {
			l, err := v.Listen(limited(t), network, address)
			if err == nil {
				_ = l.Close()
			}
			return err
		}
	}
	for _, tt := range []struct {
		name string
		do   func(*testing.T) error
		want syscall.Errno
		text string
	}{
		{"nothing listens", dial("tcp", unused), syscall.ECONNREFUSED, "connection refused"},
		{"nothing listens at either of localhost's", dial("tcp", "localhost:9"), syscall.ECONNREFUSED, ""},
		{"nothing listens, IPv6", dial("tcp6", "[::1]:9"), syscall.ECONNREFUSED, ""},
		{"nothing listens at this one", dial("tcp", "127.0.0.2:9"), syscall.ECONNREFUSED, ""},
		{"connect policy", dial("tcp", "127.0.0.1:7000"), syscall.EACCES, "blocked by network.connect policy"},
		{"listen policy of a server", dial("tcp", "127.0.0.1:8000"), syscall.EACCES, "blocked by network.listen policy"},
		{"listen policy", listen("tcp", "127.0.0.1:8999"), syscall.EACCES, "blocked by network.listen policy"},
		{"taken by the host", listen("tcp", taken), syscall.EADDRINUSE, "address already in use"},
		{"another host", dial("tcp", "192.0.2.1:80"), syscall.EADDRNOTAVAIL, ""},
		{"a name", dial("tcp", "example.org:80"), syscall.EADDRNOTAVAIL, ""},
		{"any address", listen("tcp", "0.0.0.0:80"), syscall.EADDRNOTAVAIL, ""},
		{"no address", listen("tcp", ":80"), syscall.EADDRNOTAVAIL, ""},
		{"IPv4 written as IPv6", dial("tcp", "[::ffff:127.0.0.1]:80"), syscall.EADDRNOTAVAIL, ""},
		{"a zone", dial("tcp", "[::1%lo]:80"), syscall.EADDRNOTAVAIL, ""},
		{"the other family", dial("tcp6", "127.0.0.1:80"), syscall.EADDRNOTAVAIL, ""},
		{"port 0", dial("tcp", "127.0.0.1:0"), syscall.EINVAL, ""},
		{"no port", dial("tcp", "127.0.0.1"), syscall.EINVAL, ""},
		{"too high a port", listen("tcp", "127.0.0.1:65536"), syscall.EINVAL, ""},
		{"a service", dial("tcp", "127.0.0.1:http"), syscall.EINVAL, ""},
		{"another network", dial("udp", "127.0.0.1:53"), syscall.EINVAL, ""},
		{"write after CloseWrite", func(t *testing.T) error {
			c, _ := pair(t, v, l)
			_ = c.(interface{ CloseWrite() error }).CloseWrite()
			_, err := c.Write([]byte("x"))
			return err
		}, syscall.EPIPE, "broken pipe"},
		{"write to who has gone", func(t *testing.T) error {
			c, far := pair(t, v, l)
			_ = far.Close()
			for {
				if _, err := c.Write(make([]byte, 64<<10)); err != nil && !errors.Is(err, syscall.ECONNRESET) {
					return err
				} else if err != nil {
					return syscall.EPIPE // a reset that came with bytes under way
				}
			}
		}, syscall.EPIPE, ""},
		{"half of what is broken", func(t *testing.T) error {
			c, far := pair(t, v, l)
			if _, err := c.Write([]byte("unread")); err != nil {
				return err
			}
			_ = far.Close()
			for _, err := io.Copy(io.Discard, c); err == nil; {
				_, err = c.Write(make([]byte, 64<<10))
			}
			return c.(interface{ CloseWrite() error }).CloseWrite()
		}, syscall.ENOTCONN, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.do(t)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			var op *net.OpError
			if !errors.As(err, &op) && err != error(tt.want) || op != nil && tt.text != "" && op.Err.Error() != tt.text {
				t.Errorf("got %#v", err)
			}
		})
	}
	t.Run("taken by a program", func(t *testing.T) {
		port := serveInGuest(t, v, 4711)
		if err := listen("tcp", "127.0.0.1:"+port)(t); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("got %v", err)
		}
	})
}

// serveInGuest has a program of the guest listen until the test ends.
func serveInGuest(t testing.TB, v *vm.VM, port int) string {
	t.Helper()
	text := strconv.Itoa(port)
	ctx, cancel := context.WithCancel(context.Background())
	// Alpine's busybox has no httpd, that of the built-in root no nc that listens.
	p, err := v.Start(ctx, vm.Command{Line: "busybox httpd -f -p 127.0.0.1:" + text + " 2>/dev/null || nc -ll -p " + text + " -s 127.0.0.1 -e echo served"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill(limited(t))
		_, _ = p.Wait(limited(t))
		cancel()
	})
	await(t, "the program listens", func() bool {
		c, err := v.DialContext(limited(t), "tcp", "127.0.0.1:"+text)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return text
}

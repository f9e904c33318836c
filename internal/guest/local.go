//go:build linux

package guest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/host/errno"
)

// OpenLocalTCP connects to a server in this VM; see guestrpc.LoopbackHandler. No name is looked up.
func (s *Supervisor) OpenLocalTCP(ctx context.Context, host string, port uint16) (capnprpc.Stream, error) {
	hosts, err := loopbackHosts(host)
	if err != nil {
		return nil, err
	}
	var first error
	for _, h := range hosts {
		c, err := dialLocal(ctx, netip.AddrPortFrom(h, port))
		if err == nil {
			return s.locals.keep(c), nil
		}
		if first == nil {
			first = bareErrno(err)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break
		}
	}
	return nil, first
}

// loopbackHosts returns the addresses of host: those of localhost in the order in which they are tried, or one.
func loopbackHosts(host string) ([]netip.Addr, error) {
	if host == "" || host == "localhost" {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}, nil
	}
	a, err := netip.ParseAddr(host)
	if err != nil || !a.IsLoopback() || a.Is4In6() || a.Zone() != "" {
		return nil, &capnprpc.Error{
			Kind: capnprpc.KindInvalid, Errno: errno.EADDRNOTAVAIL,
			Message: fmt.Sprintf("%.80q: only 127.0.0.0/8, ::1 and localhost are this VM's own", host),
		}
	}
	return []netip.Addr{a}, nil
}

// bareErrno returns only the errno of an error that has one.
func bareErrno(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

// locals are the connections and listeners that the host has on the guest's loopback interface. They end with the session that
// made them, and when the machine continues as a copy: the session then exists only in the copied memory.
type locals struct {
	mu   sync.Mutex
	open map[interface{ Close() error }]struct{}
}

// keep remembers a connection until it is closed.
func (l *locals) keep(c tcpConn) *localConn {
	k := &localConn{tcpConn: c, of: l}
	l.add(k)
	return k
}

func (l *locals) add(c interface{ Close() error }) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == nil {
		l.open = make(map[interface{ Close() error }]struct{})
	}
	l.open[c] = struct{}{}
}

func (l *locals) remove(c interface{ Close() error }) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

// reset closes all of them. Programs see a reset.
func (l *locals) reset() {
	l.mu.Lock()
	open := l.open
	l.open = nil
	l.mu.Unlock()
	for c := range open {
		if c, ok := c.(*localConn); ok {
			_ = c.SetLinger(0)
		}
		_ = c.Close()
	}
}

// localConn is a connection that locals knows.
type localConn struct {
	tcpConn
	of *locals
}

func (c *localConn) Close() error {
	c.of.remove(c)
	return c.tcpConn.Close()
}

func (c *localConn) Read(b []byte) (int, error) {
	n, err := c.tcpConn.Read(b)
	return n, bareErrno(err)
}

func (c *localConn) Write(b []byte) (int, error) {
	n, err := c.tcpConn.Write(b)
	return n, bareErrno(err)
}

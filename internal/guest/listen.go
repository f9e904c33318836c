//go:build linux

package guest

import (
	"context"
	"net"
	"net/netip"

	"agentvm/internal/guest/guestrpc"
)

// ListenLocalTCP listens in this VM, for the host; see guestrpc.LoopbackHandler.
func (s *Supervisor) ListenLocalTCP(host string, port uint16) (net.Listener, error) {
	hosts, err := loopbackHosts(host)
	if err != nil {
		return nil, err
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", netip.AddrPortFrom(hosts[0], port).String())
	if err != nil {
		return nil, bareErrno(err)
	}
	k := &localListener{TCPListener: l.(*net.TCPListener), of: &s.locals}
	s.locals.add(k)
	return k, nil
}

var _ guestrpc.LoopbackHandler = (*Supervisor)(nil)

// localListener is a listener that locals knows.
type localListener struct {
	*net.TCPListener
	of *locals
}

// Accept returns a *localConn.
func (l *localListener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	return l.of.keep(c), nil
}

func (l *localListener) Close() error {
	l.of.remove(l)
	return l.TCPListener.Close()
}

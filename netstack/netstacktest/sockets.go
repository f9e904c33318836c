package netstacktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Conn is one of the guest's TCP connections. Errors are Linux's errnos.
type Conn struct {
	*gonet.TCPConn

	// Endpoint is gVisor's, for options and states.
	Endpoint tcpip.Endpoint
}

// Dial connects the guest to an address, as connect(2) would: errors are ECONNREFUSED, EHOSTUNREACH, ENETUNREACH ...
func (g *Guest) Dial(ctx context.Context, to netip.AddrPort) (*Conn, error) {
	return g.DialFrom(ctx, netip.AddrPort{}, to)
}

// DialFrom is Dial with a local address or port; either may be missing.
func (g *Guest) DialFrom(ctx context.Context, from, to netip.AddrPort) (*Conn, error) {
	queue := new(waiter.Queue)
	endpoint, err := g.Stack.NewEndpoint(tcp.ProtocolNumber, protocolOf(to.Addr()), queue)
	if err != nil {
		return nil, errnoOf(err)
	}
	if err := connect(ctx, endpoint, queue, from, to); err != nil {
		endpoint.Close()
		return nil, fmt.Errorf("guest: dial %s: %w", to, err)
	}
	return &Conn{TCPConn: gonet.NewTCPConn(queue, endpoint), Endpoint: endpoint}, nil
}

func connect(ctx context.Context, endpoint tcpip.Endpoint, queue *waiter.Queue, from, to netip.AddrPort) error {
	if from != (netip.AddrPort{}) {
		local := tcpip.FullAddress{Port: from.Port()}
		if from.Addr().IsValid() {
			local = full(from)
		}
		if err := endpoint.Bind(local); err != nil {
			return errnoOf(err)
		}
	}
	entry, changed := waiter.NewChannelEntry(waiter.WritableEvents | waiter.EventHUp | waiter.EventErr)
	queue.EventRegister(&entry)
	defer queue.EventUnregister(&entry)
	err := endpoint.Connect(full(to))
	if _, started := err.(*tcpip.ErrConnectStarted); started {
		select {
		case <-changed:
			err = endpoint.LastError()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errnoOf(err)
}

// Read is a read(2): io.EOF after the peer's FIN.
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	return n, c.explain(err)
}

// Write is a write(2) that continues until all of p is queued.
func (c *Conn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	return n, c.explain(err)
}

// Abort sends RST.
func (c *Conn) Abort() { c.Endpoint.Abort() }

// explain finds the errno that gonet has turned into text.
func (c *Conn) explain(err error) error {
	var op *net.OpError
	if err == nil || err == io.EOF || !errors.As(err, &op) {
		return err
	}
	for text, errno := range errnos() {
		if op.Err.Error() == text {
			return &net.OpError{Op: op.Op, Net: op.Net, Source: op.Source, Addr: op.Addr, Err: errno}
		}
	}
	return err
}

// errnos are the errors that connections end with, by gVisor's text.
func errnos() map[string]syscall.Errno {
	return map[string]syscall.Errno{
		(&tcpip.ErrConnectionReset{}).String():    syscall.ECONNRESET,
		(&tcpip.ErrConnectionRefused{}).String():  syscall.ECONNREFUSED,
		(&tcpip.ErrConnectionAborted{}).String():  syscall.ECONNABORTED,
		(&tcpip.ErrAborted{}).String():            syscall.ECONNABORTED,
		(&tcpip.ErrTimeout{}).String():            syscall.ETIMEDOUT,
		(&tcpip.ErrHostUnreachable{}).String():    syscall.EHOSTUNREACH,
		(&tcpip.ErrNetworkUnreachable{}).String(): syscall.ENETUNREACH,
		(&tcpip.ErrClosedForSend{}).String():      syscall.EPIPE,
		(&tcpip.ErrPortInUse{}).String():          syscall.EADDRINUSE,
	}
}

func errnoOf(err tcpip.Error) error {
	if err == nil {
		return nil
	}
	if errno, known := errnos()[err.String()]; known {
		return errno
	}
	return errors.New(err.String())
}

// Listen accepts TCP connections in the guest, at an address of its own or at an unspecified one.
func (g *Guest) Listen(at netip.AddrPort) (net.Listener, error) {
	return gonet.ListenTCP(g.Stack, full(at), protocolOf(at.Addr()))
}

// DialUDP makes a connected socket.
func (g *Guest) DialUDP(to netip.AddrPort) (*gonet.UDPConn, error) {
	remote := full(to)
	return gonet.DialUDP(g.Stack, nil, &remote, protocolOf(to.Addr()))
}

// ListenUDP makes a bound socket that may send broadcasts.
func (g *Guest) ListenUDP(at netip.AddrPort) (*gonet.UDPConn, error) {
	queue := new(waiter.Queue)
	endpoint, err := g.Stack.NewEndpoint(udp.ProtocolNumber, protocolOf(at.Addr()), queue)
	if err != nil {
		return nil, errnoOf(err)
	}
	endpoint.SocketOptions().SetBroadcast(true)
	if err := endpoint.Bind(full(at)); err != nil {
		endpoint.Close()
		return nil, errnoOf(err)
	}
	return gonet.NewUDPConn(queue, endpoint), nil
}

package nat_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"

	"agentvm/nat"
	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// loopback leads every flow of the guest to the same port of the host's loopback. A program uses package egress.
type loopback struct{ net.Dialer }

func (l *loopback) DialTCP(ctx context.Context, _, to netip.AddrPort) (net.Conn, error) {
	return l.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", to.Port()))
}

func (l *loopback) DialUDP(ctx context.Context, _, to netip.AddrPort) (net.Conn, error) {
	return l.DialContext(ctx, "udp", fmt.Sprintf("127.0.0.1:%d", to.Port()))
}

func (*loopback) Ping(context.Context, netip.Addr, netip.Addr, []byte) error { return nil }

// A guest reads a greeting from a server on the host.
func Example() {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer server.Close()
	go func() {
		if conn, err := server.Accept(); err == nil {
			io.WriteString(conn, "hello, guest\n")
			conn.Close()
		}
	}()

	network, err := netstack.New(netstack.Config{})
	if err != nil {
		panic(err)
	}
	closed := make(chan struct{})
	n, err := nat.New(nat.Config{Network: network, Egress: &loopback{}, Observe: func(e nat.FlowEvent) {
		if e.Kind == nat.FlowClosed {
			fmt.Printf("%s: %d bytes from the guest, %d to it: %s\n", e.Kind, e.Flow.Sent, e.Flow.Received, e.Reason)
			close(closed)
		}
	}})
	if err != nil {
		panic(err)
	}
	guest := netstacktest.New(netstacktest.Config{}) // a machine's virtio-net device, in earnest
	ctx, stop := context.WithCancel(context.Background())
	go network.Run(ctx, guest.Link())
	ended := make(chan struct{})
	go func() {
		n.Run(ctx)
		close(ended)
	}()

	port := server.Addr().(*net.TCPAddr).AddrPort().Port()
	conn, err := guest.Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr("198.51.100.1"), port))
	if err != nil {
		panic(err)
	}
	greeting, _ := io.ReadAll(conn)
	fmt.Printf("%s", greeting)
	conn.Close()
	<-closed

	stop()
	<-ended
	network.Close()
	guest.Close()
	// Output:
	// hello, guest
	// closed: 0 bytes from the guest, 13 to it: done
}

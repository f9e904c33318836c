package netstack_test

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"testing"
	"time"

	"agentvm/internal/test/leaktest"
	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Addresses of the defaults.
var (
	gateway  = netip.MustParseAddr("192.168.127.1")
	guestIP  = netip.MustParseAddr("192.168.127.3")
	hostIP   = netip.MustParseAddr("192.168.127.254")
	gateway6 = netip.MustParseAddr("fd5a:94ef:e40c::1")
	server   = netip.MustParseAddrPort("203.0.113.7:80")
	server6  = netip.MustParseAddrPort("[2001:db8::7]:80")
)

// patience is how long a test waits for what must happen. It is never waited for in full but by a failing test.
const patience = time.Minute

// newNetwork makes a network that ends with the test.
func newNetwork(t testing.TB, c netstack.Config) *netstack.Network {
	t.Helper()
	n, err := netstack.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// connect runs the network on the guest's link until the test ends.
func connect(t testing.TB, n *netstack.Network, g *netstacktest.Guest) {
	t.Helper()
	runOn(t, n, g.Link())
}

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// runOn runs the network on a link until the test ends.
func runOn(t testing.TB, n *netstack.Network, link io.ReadWriter) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx, link) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
}

// pair is a network and a guest on it.
func pair(t testing.TB, c netstack.Config, g netstacktest.Config) (*netstack.Network, *netstacktest.Guest) {
	t.Helper()
	n := newNetwork(t, c)
	guest := netstacktest.Start(t, g)
	return n, guest
}

// accepting makes the network take every connection and give it to the channel.
func accepting(n *netstack.Network) <-chan *netstack.Conn {
	conns := make(chan *netstack.Conn, 1024)
	n.HandleTCP(256, func(r *netstack.TCPRequest) {
		if c, err := r.Accept(); err == nil {
			conns <- c
		}
	})
	return conns
}

// connected is one connection that the guest has begun, from both ends.
func connected(t testing.TB, c netstack.Config, gc netstacktest.Config, to netip.AddrPort) (*netstack.Conn, *netstacktest.Conn, *netstack.Network) {
	t.Helper()
	n, g := pair(t, c, gc)
	conns := accepting(n)
	connect(t, n, g)
	if to.Addr().Is6() {
		if _, err := g.Address6(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	guest := dial(t, g, to)
	select {
	case here := <-conns:
		t.Cleanup(here.Abort)
		return here, guest, n
	case <-within(t).Done():
		t.Fatal("no connection came")
		return nil, nil, nil
	}
}

func dial(t testing.TB, g *netstacktest.Guest, to netip.AddrPort) *netstacktest.Conn {
	t.Helper()
	c, err := g.Dial(within(t), to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// eventually waits until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

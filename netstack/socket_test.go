package netstack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// both is a connected pair with IPv6, and the guest's addresses.
func both(t *testing.T, setup func(*netstack.Network)) (*netstack.Network, *netstacktest.Guest, []netip.Addr) {
	t.Helper()
	n, g := pair(t, netstack.Config{}, netstacktest.Config{})
	if setup != nil {
		setup(n)
	}
	connect(t, n, g)
	guest6, err := g.Address6(within(t))
	mustDo(t, err)
	return n, g, []netip.Addr{guestIP, guest6}
}

func TestDialGuest(t *testing.T) {
	n, g, addresses := both(t, nil)
	for _, a := range addresses {
		at := netip.AddrPortFrom(a, 8080)
		l, err := g.Listen(at)
		mustDo(t, err)
		c, err := n.DialContext(within(t), "tcp", at)
		mustDo(t, err)
		guest, err := l.Accept()
		mustDo(t, err)
		wantGateway := gateway
		if a.Is6() {
			wantGateway = gateway6
		}
		if got := guest.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(); got != wantGateway {
			t.Errorf("the guest sees %v, want the gateway", got)
		}
		if got, want := c.LocalAddr().String(), guest.RemoteAddr().String(); got != want {
			t.Errorf("LocalAddr %s, the guest sees %s", got, want)
		}
		mustWrite(t, c, "ping")
		mustDo(t, readFull(guest, 4))
		mustWrite(t, guest, "pong")
		mustDo(t, guest.Close())
		wantBytes(t, c, "pong")
		mustDo(t, c.Close())
		l.Close()
	}
}

func TestDialGuestFails(t *testing.T) {
	n, _, addresses := both(t, nil)
	silent, _ := pair(t, netstack.Config{}, netstacktest.Config{})
	guest := netip.AddrPortFrom(guestIP, 80)
	for _, a := range addresses {
		if _, err := n.DialContext(within(t), "tcp", netip.AddrPortFrom(a, 9)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%v, a closed port: %v, want ECONNREFUSED", a, err)
		}
	}
	for _, absent := range []string{"192.168.127.77:80", "192.168.127.1:80", "203.0.113.7:80", "[fd5a:94ef:e40c::1]:80", "[2001:db8::1]:80"} {
		if _, err := n.DialContext(within(t), "tcp", netip.MustParseAddrPort(absent)); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("%s, not the guest's: %v, want EHOSTUNREACH", absent, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := silent.DialContext(ctx, "tcp", guest); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled before: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := silent.DialContext(ctx, "tcp", guest); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled while waiting: %v", err)
	}
	if _, err := n.DialContext(t.Context(), "sctp", guest); err == nil {
		t.Error("sctp: no error")
	}
	if _, err := n.DialContext(t.Context(), "tcp", netip.AddrPort{}); err == nil {
		t.Error("no address: no error")
	}
}

func TestDialEndsWithNetwork(t *testing.T) {
	n := newNetwork(t, netstack.Config{})
	ended := make(chan error, 1)
	go func() {
		_, err := n.DialContext(context.Background(), "tcp", netip.MustParseAddrPort("192.168.127.3:80"))
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	n.Close()
	if err := <-ended; err == nil {
		t.Error("connected without a listener")
	}
	for name, f := range map[string]func() error{
		"DialContext": func() error {
			_, err := n.DialContext(context.Background(), "tcp", netip.MustParseAddrPort("192.168.127.3:80"))
			return err
		},
		"Listen":       func() error { _, err := n.Listen(netip.AddrPortFrom(gateway, 1)); return err },
		"ListenPacket": func() error { _, err := n.ListenPacket(netip.AddrPortFrom(gateway, 1)); return err },
		"Run":          func() error { return n.Run(context.Background(), netstacktest.NewWire().Host()) },
	} {
		if err := f(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: %v, want net.ErrClosed", name, err)
		}
	}
}

func TestListen(t *testing.T) {
	n, g, _ := both(t, func(n *netstack.Network) {
		n.HandleTCP(4, func(r *netstack.TCPRequest) { t.Errorf("a request for %s, which is listened at", r.Destination) })
	})
	for _, a := range []netip.Addr{gateway, gateway6} {
		at := netip.AddrPortFrom(a, 80)
		l, err := n.Listen(at)
		mustDo(t, err)
		if _, err := n.Listen(at); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second Listen: %v, want EADDRINUSE", err)
		}
		for range 3 {
			guest := dial(t, g, at)
			c, err := l.Accept()
			mustDo(t, err)
			if got := c.LocalAddr().String(); got != at.String() {
				t.Errorf("LocalAddr %s, want %s", got, at)
			}
			mustWrite(t, guest, "x")
			mustDo(t, readFull(c, 1))
			mustDo(t, c.Close())
		}
		ended := make(chan error, 1)
		go func() {
			_, err := l.Accept()
			ended <- err
		}()
		mustDo(t, l.Close())
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close: %v", err)
		}
		l, err = n.Listen(at) // the port is free again
		mustDo(t, err)
		l.Close()
	}
}

func TestUDP(t *testing.T) {
	requests := make(chan *netstack.PacketConn, 16)
	_, g, _ := both(t, func(n *netstack.Network) {
		n.HandleUDP(func(r *netstack.UDPRequest) bool {
			if r.Destination.Port() == 9 {
				return false
			}
			c, err := r.Accept()
			if err != nil {
				t.Error(err)
				return true
			}
			if _, err := r.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a second Accept: %v", err)
			}
			requests <- c
			return true
		})
	})
	for _, to := range []netip.AddrPort{server, server6} {
		refused, err := g.DialUDP(netip.AddrPortFrom(to.Addr(), 9))
		mustDo(t, err)
		defer refused.Close()
		eventually(t, "the guest is refused", func() bool {
			_, err := refused.Write([]byte("x"))
			return err != nil && strings.Contains(err.Error(), "refused")
		})
		// The refusal came, so the guest knows the gateway's Ethernet address: datagrams that wait for it may be
		// overtaken by those behind them.
		guest, err := g.DialUDP(to)
		mustDo(t, err)
		defer guest.Close()
		for i := range 3 {
			mustWrite(t, guest, fmt.Sprint("datagram ", i))
		}
		c := <-requests
		defer c.Close()
		if got := c.LocalAddr().String(); got != to.String() {
			t.Errorf("LocalAddr %s, want %s", got, to)
		}
		for i := range 3 {
			b := make([]byte, 100)
			if n, err := c.Read(b); string(b[:n]) != fmt.Sprint("datagram ", i) || err != nil {
				t.Errorf("Read: %q, %v", b[:n], err)
			}
		}
		mustWrite(t, guest, "one for a writer")
		var taken bytes.Buffer
		if n, err := c.ReadTo(&taken); n != taken.Len() || taken.String() != "one for a writer" || err != nil {
			t.Errorf("ReadTo: %d, %q, %v", n, taken.String(), err)
		}
		mustWrite(t, c, "answer")
		mustDo(t, readFull(guest, 6))
		c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read: %v, want a time-out", err)
		}
	}
	if len(requests) > 0 {
		t.Error("more requests than flows")
	}
}

func TestPacketConnEnds(t *testing.T) {
	n, _ := pair(t, netstack.Config{}, netstacktest.Config{})
	for name, end := range map[string]func(net.PacketConn){
		"Close":         func(c net.PacketConn) { c.Close() },
		"Network.Close": func(net.PacketConn) { n.Close() },
	} {
		c, err := n.ListenPacket(netip.AddrPortFrom(gateway, 53))
		if errors.Is(err, net.ErrClosed) {
			continue // the other one was first
		}
		mustDo(t, err)
		ended := make(chan error, 1)
		go func() {
			_, _, err := c.ReadFrom(make([]byte, 1))
			ended <- err
		}()
		time.Sleep(10 * time.Millisecond)
		end(c)
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: ReadFrom: %v", name, err)
		}
	}
}

// TestBroadcast is what DHCP does.
func TestBroadcast(t *testing.T) {
	n, g := pair(t, netstack.Config{}, netstacktest.Config{})
	service, err := n.ListenPacket(netip.MustParseAddrPort("0.0.0.0:67"))
	mustDo(t, err)
	connect(t, n, g)
	client, err := g.ListenUDP(netip.MustParseAddrPort("0.0.0.0:68"))
	mustDo(t, err)
	defer client.Close()
	everybody := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("255.255.255.255:67"))
	_, err = client.WriteTo([]byte("discover"), everybody)
	mustDo(t, err)
	b := make([]byte, 100)
	got, from, err := service.ReadFrom(b)
	if string(b[:got]) != "discover" || err != nil {
		t.Fatalf("ReadFrom: %q from %v, %v", b[:got], from, err)
	}
	everybody.Port = 68
	if _, err := service.WriteTo([]byte("offer"), everybody); err != nil {
		t.Fatal(err)
	}
	client.SetReadDeadline(time.Now().Add(patience))
	got, from, err = client.ReadFrom(b)
	if string(b[:got]) != "offer" || err != nil || from.(*net.UDPAddr).AddrPort() != netip.AddrPortFrom(gateway, 67) {
		t.Errorf("the guest read %q from %v, %v", b[:got], from, err)
	}
}

func TestEcho(t *testing.T) {
	dead := netip.MustParseAddr("203.0.113.99")
	_, g, _ := both(t, func(n *netstack.Network) {
		n.HandleEcho(func(e netstack.Echo) {
			if e.Destination != dead {
				e.Reply()
			}
		})
	})
	for _, to := range []netip.Addr{gateway, gateway6, server.Addr(), server6.Addr(), hostIP} {
		for sequence, payload := range [][]byte{nil, []byte("ping"), pattern(1000, 9)} {
			if err := g.Ping(within(t), to, uint16(sequence), payload); err != nil {
				t.Error(err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := g.Ping(ctx, dead, 1, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a destination that does not answer: %v", err)
	}
}

// TestNoFakeEcho: without a handler only the gateway answers.
func TestNoFakeEcho(t *testing.T) {
	_, g, _ := both(t, nil)
	for _, to := range []netip.Addr{server.Addr(), server6.Addr(), hostIP} {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if err := g.Ping(ctx, to, 1, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v: %v, want no answer", to, err)
		}
		cancel()
	}
	for _, to := range []netip.Addr{gateway, gateway6} {
		if err := g.Ping(within(t), to, 1, nil); err != nil {
			t.Error(err)
		}
	}
}

// TestHostAlias: the guest finds the host's alias on its link and its connections come to the handler.
func TestHostAlias(t *testing.T) {
	var n *netstack.Network
	_, g, _ := both(t, func(network *netstack.Network) {
		n = network
		n.HandleTCP(4, func(r *netstack.TCPRequest) {
			if c, err := r.Accept(); err == nil {
				io.WriteString(c, r.Destination.String())
				c.Close()
			}
		})
	})
	for _, a := range []netip.Addr{n.Addresses().Host, n.Addresses().Host6} {
		to := netip.AddrPortFrom(a, 5432)
		wantBytes(t, dial(t, g, to), to.String())
	}
}

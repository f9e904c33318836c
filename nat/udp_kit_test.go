package nat

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// packets is an Egress whose sockets lead to the same port of loopback, unless a test wants something else.
type packets struct {
	*testEgress
	refuse func(to netip.AddrPort) error // asked before a socket is made; nil: none is refused
	plain  bool                          // sockets cannot tell when there is something to read
	answer func(ctx context.Context, to netip.Addr, payload []byte) error

	mu    sync.Mutex
	conns []*packetConn // that are open
	dials int
}

type packetConn struct {
	*net.UDPConn
	egress *packets
	denied bool // egress.mu guards it
}

// plainConn has nothing but what net.Conn has.
type plainConn struct{ net.Conn }

func (e *packets) DialUDP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	if e.refuse != nil {
		if err := e.refuse(to); err != nil {
			return nil, err
		}
	}
	loopback := net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(to.Port())}
	if to.Addr().Is6() {
		loopback.IP = net.IPv6loopback
	}
	conn, err := net.DialUDP("udp", nil, &loopback)
	if err != nil {
		return nil, err
	}
	c := &packetConn{UDPConn: conn, egress: e}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns = append(e.conns, c)
	e.dials++
	if e.plain {
		return plainConn{c}, nil
	}
	return c, nil
}

func (e *packets) Ping(ctx context.Context, _, to netip.Addr, payload []byte) error {
	return e.answer(ctx, to, payload)
}

func (c *packetConn) Close() error {
	c.egress.mu.Lock()
	c.egress.conns = slices.DeleteFunc(c.egress.conns, func(x *packetConn) bool { return x == c })
	c.egress.mu.Unlock()
	return c.UDPConn.Close()
}

func (c *packetConn) Read(p []byte) (int, error) {
	n, err := c.UDPConn.Read(p)
	c.egress.mu.Lock()
	defer c.egress.mu.Unlock()
	if c.denied {
		return 0, denial{}
	}
	return n, err
}

func (e *packets) open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.conns)
}

func (e *packets) dialled() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dials
}

// cut does what a policy does that is replaced.
func (e *packets) cut() {
	e.mu.Lock()
	conns := slices.Clone(e.conns)
	for _, c := range conns {
		c.denied = true
	}
	e.mu.Unlock()
	for _, c := range conns {
		c.UDPConn.Close()
	}
}

// packetWorld is a world whose sockets are watched.
type packetWorld struct {
	*world
	packets *packets
}

func newPacketWorld(t testing.TB, change func(*settings)) *packetWorld {
	t.Helper()
	w := &packetWorld{packets: &packets{testEgress: &testEgress{}}}
	t.Cleanup(func() { // after the world's
		if n := w.packets.open(); n > 0 {
			t.Errorf("%d sockets of the host were not closed", n)
		}
	})
	w.world = newWorld(t, func(s *settings) {
		s.Egress = w.packets
		if change != nil {
			change(s)
		}
	})
	return w
}

// serveUDP runs a server on loopback that answers each datagram with what f makes of it (nil: nothing), and returns the
// address that the guest uses.
func (w *packetWorld) serveUDP(f func([]byte) []byte) netip.AddrPort {
	return w.serveUDPAt("127.0.0.1:0", f)
}

func (w *packetWorld) serveUDPAt(at string, f func([]byte) []byte) netip.AddrPort {
	w.Helper()
	socket, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
	if err != nil {
		w.Fatal(err)
	}
	_ = socket.SetReadBuffer(4 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p := make([]byte, 1<<16)
		for {
			n, from, err := socket.ReadFromUDPAddrPort(p)
			if err != nil {
				return
			}
			if answer := f(bytes.Clone(p[:n])); answer != nil {
				_, _ = socket.WriteToUDPAddrPort(answer, from)
			}
		}
	}()
	w.Cleanup(func() {
		socket.Close()
		<-done
	})
	return netip.AddrPortFrom(remote, uint16(socket.LocalAddr().(*net.UDPAddr).Port))
}

func echoing(p []byte) []byte { return p }

// dialUDP gives the guest a connected socket.
func (w *packetWorld) dialUDP(to netip.AddrPort) net.Conn {
	w.Helper()
	conn, err := w.guest.DialUDP(to)
	if err != nil {
		w.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	w.Cleanup(func() { conn.Close() })
	return conn
}

// ask sends a datagram and reads one.
func (w *packetWorld) ask(conn net.Conn, p []byte) []byte {
	w.Helper()
	answer, err := w.tryAsk(conn, p)
	if err != nil {
		w.Fatalf("datagram of %d bytes: %v", len(p), err)
	}
	return answer
}

func (w *packetWorld) tryAsk(conn net.Conn, p []byte) ([]byte, error) {
	if _, err := conn.Write(p); err != nil {
		return nil, err
	}
	return w.readUDP(conn)
}

// readUDP reads a datagram, or the ICMP error that the guest's socket has had. gVisor does not wake readers for those,
// as Linux does, so it looks again and again.
func (w *packetWorld) readUDP(conn net.Conn) ([]byte, error) {
	buffer := make([]byte, 1<<16)
	defer func() { _ = conn.SetReadDeadline(time.Now().Add(patience)) }()
	for end := time.Now().Add(patience); ; {
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		n, err := conn.Read(buffer)
		if !timedOut(err) || time.Now().After(end) {
			return buffer[:n], err
		}
	}
}

// wantRefused checks that the guest's socket has had ICMP port unreachable.
func (w *packetWorld) wantRefused(err error) {
	w.Helper()
	if err == nil || !strings.Contains(err.Error(), "refused") {
		w.Fatalf("error %v, want that it was refused", err)
	}
}

// peer is a server whose datagrams a test sends and receives itself. from is the session's address, after the first one.
func (w *packetWorld) peer() (socket *net.UDPConn, to netip.AddrPort, from func() netip.AddrPort) {
	w.Helper()
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { socket.Close() })
	_ = socket.SetDeadline(time.Now().Add(patience))
	from = func() netip.AddrPort {
		_, from, err := socket.ReadFromUDPAddrPort(make([]byte, 100))
		if err != nil {
			w.Fatal(err)
		}
		return from
	}
	return socket, netip.AddrPortFrom(remote, uint16(socket.LocalAddr().(*net.UDPAddr).Port)), from
}

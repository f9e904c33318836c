package nat

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"agentvm/internal/test/leaktest"
	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// patience is how long a test waits for what has to happen. It is reached by tests that fail, and by no others.
const patience = time.Minute

// remote is an address that the guest dials; the test's Egress leads each of its ports to the same port of loopback.
var remote = netip.MustParseAddr("203.0.113.7")

// world is a guest, its network and NAT, and a host with servers on loopback.
//
//	guest (gVisor) ─ wire ─ netstack ─ NAT ─ testEgress ─ 127.0.0.1: server
type world struct {
	testing.TB
	guest   *netstacktest.Guest
	network *netstack.Network
	nat     *NAT
	egress  *testEgress
	events  *eventLog
	clock   *stepClock         // only moves when the test says so
	stop    context.CancelFunc // ends NAT.Run
	stopped chan struct{}      // NAT.Run has returned
}

// settings are what a test may change before its world begins.
type settings struct {
	Config
	guest netstacktest.Config
}

func newWorld(t testing.TB, change func(*settings)) *world {
	t.Helper()
	w := &world{TB: t, egress: &testEgress{}, events: newEventLog(), clock: newStepClock(), stopped: make(chan struct{})}
	set := settings{Config: Config{Egress: w.egress, Observe: w.events.add, Clock: w.clock}}
	set.guest.DisableIPv6 = true
	if change != nil {
		change(&set)
	}
	network, err := netstack.New(netstack.Config{
		DisableIPv6: set.guest.DisableIPv6, MTU: set.guest.MTU, Header: set.guest.Header, Memory: set.Memory,
	})
	if err != nil {
		t.Fatal(err)
	}
	set.Network, w.network = network, network
	if w.nat, err = New(set.Config); err != nil {
		t.Fatal(err)
	}
	w.guest = netstacktest.New(set.guest)
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		_ = network.Run(ctx, w.guest.Link())
	}()
	go func() {
		defer close(w.stopped)
		if err := w.nat.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	}()
	t.Cleanup(func() {
		stop()
		w.within("NAT.Run to return", w.stopped)
		w.within("Network.Run to return", ran)
		network.Close()
		w.guest.Close()
		w.egress.check(t)
	})
	return w
}

// within waits for something that has to happen.
func (w *world) within(what string, done <-chan struct{}) {
	w.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		w.Fatalf("waited %v for %s", patience, what)
	}
}

// eventually waits until a condition holds.
func (w *world) eventually(what string, holds func() bool) {
	w.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("waited %v until %s", patience, what)
		}
	}
}

// serve runs a server on loopback that does f with each connection, and returns the address that the guest dials.
func (w *world) serve(f func(*net.TCPConn)) netip.AddrPort {
	w.Helper()
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		w.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.AcceptTCP()
			if err != nil {
				return
			}
			running.Go(func() {
				defer conn.Close()
				f(conn)
			})
		}
	})
	w.Cleanup(func() {
		listener.Close()
		running.Wait()
	})
	return netip.AddrPortFrom(remote, listener.Addr().(*net.TCPAddr).AddrPort().Port())
}

// dial connects the guest.
func (w *world) dial(to netip.AddrPort) *netstacktest.Conn {
	w.Helper()
	conn, err := w.tryDial(to)
	if err != nil {
		w.Fatal(err)
	}
	return conn
}

func (w *world) tryDial(to netip.AddrPort) (*netstacktest.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return w.guest.Dial(ctx, to)
}

// pair connects the guest with a server's end of the connection.
func (w *world) pair() (guest *netstacktest.Conn, host *net.TCPConn) {
	w.Helper()
	accepted, over := make(chan *net.TCPConn), make(chan struct{})
	to := w.serve(func(c *net.TCPConn) {
		accepted <- c
		<-over
	})
	guest = w.dial(to)
	host = <-accepted
	soon := time.Now().Add(patience)
	guest.SetDeadline(soon)
	host.SetDeadline(soon)
	w.Cleanup(func() {
		close(over)
		guest.Close()
	})
	return guest, host
}

// testEgress dials loopback, or does what a test wants instead.
type testEgress struct {
	// instead is asked first. With neither connection nor error the default continues.
	instead func(ctx context.Context, from, to netip.AddrPort) (net.Conn, error)

	mu    sync.Mutex
	conns []*testConn // that are open
	dials int
}

// testConn is a connection as egress makes it.
type testConn struct {
	*net.TCPConn
	egress *testEgress

	mu     sync.Mutex
	denied bool
}

func (e *testEgress) DialTCP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	if e.instead != nil {
		if conn, err := e.instead(ctx, from, to); conn != nil || err != nil {
			return conn, err
		}
	}
	return e.loopback(ctx, to.Port())
}

func (e *testEgress) loopback(ctx context.Context, port uint16) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp4", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port).String())
	if err != nil {
		return nil, err
	}
	c := &testConn{TCPConn: conn.(*net.TCPConn), egress: e}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns = append(e.conns, c)
	e.dials++
	return c, nil
}

func (e *testEgress) DialUDP(ctx context.Context, from, to netip.AddrPort) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "udp4", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port()).String())
}

func (e *testEgress) Ping(context.Context, netip.Addr, netip.Addr, []byte) error { return nil }

// open is how many connections were not closed.
func (e *testEgress) open() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.conns)
}

// check finds connections that were not closed.
func (e *testEgress) check(t testing.TB) {
	if n := e.open(); n > 0 {
		t.Errorf("%d connections of the host were not closed", n)
	}
}

// deny does what a policy does that is replaced: open connections fail.
func (e *testEgress) deny() {
	e.mu.Lock()
	conns := slices.Clone(e.conns)
	e.mu.Unlock()
	for _, c := range conns {
		c.mu.Lock()
		c.denied = true
		c.mu.Unlock()
		c.TCPConn.Close()
	}
}

func (c *testConn) Close() error {
	c.egress.mu.Lock()
	c.egress.conns = slices.DeleteFunc(c.egress.conns, func(x *testConn) bool { return x == c })
	c.egress.mu.Unlock()
	return c.TCPConn.Close()
}

// Reset sends RST.
func (c *testConn) Reset() error {
	c.SetLinger(0)
	return c.Close()
}

func (c *testConn) WriteBuffers(b *net.Buffers) (int64, error) {
	n, err := b.WriteTo(c.TCPConn)
	return n, c.explain(err)
}

func (c *testConn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	return n, c.explain(err)
}

func (c *testConn) Write(p []byte) (int, error) {
	n, err := c.TCPConn.Write(p)
	return n, c.explain(err)
}

func (c *testConn) explain(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && c.denied {
		return denial{}
	}
	return err
}

// eventLog keeps events.
type eventLog struct {
	mu      sync.Mutex
	all     []FlowEvent
	changed chan struct{} // closed by the next event
}

func newEventLog() *eventLog { return &eventLog{changed: make(chan struct{})} }

func (l *eventLog) add(e FlowEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
	close(l.changed)
	l.changed = make(chan struct{})
}

// list returns the events of a kind.
func (l *eventLog) list(kind EventKind) (list []FlowEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.all {
		if e.Kind == kind {
			list = append(list, e)
		}
	}
	return list
}

// forget drops what happened until now.
func (l *eventLog) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = nil
}

// await waits for the n-th event of a kind, from 1.
func (w *world) await(kind EventKind, n int) FlowEvent {
	w.Helper()
	timeout := time.After(patience)
	for {
		w.events.mu.Lock()
		changed := w.events.changed
		w.events.mu.Unlock()
		if list := w.events.list(kind); len(list) >= n {
			return list[n-1]
		}
		select {
		case <-changed:
		case <-timeout:
			list := w.events.list(kind)
			w.Fatalf("waited %v for event %d of kind %q; there were %d, of the last %+v", patience, n, kind, len(list), list[max(0, len(list)-3):])
		}
	}
}

func TestMain(m *testing.M) { leaktest.Main(m) }

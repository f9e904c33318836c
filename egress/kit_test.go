package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/test/leaktest"
	"agentvm/internal/test/testclock"
)

var guest = netip.MustParseAddrPort("192.168.127.3:40000")

// world is what is around a gate in a test: a clock, servers at made-up addresses, and what the audit got.
type world struct {
	t    testing.TB
	gate *Gate

	clock *testclock.Clock

	mu      sync.Mutex
	servers map[string]string // address as dialled ("tcp 203.0.112.1:443") to where it really is
	dialled []string
	events  []Event
}

// newWorld makes a gate whose dials go to the servers, and fail with "connection refused" elsewhere.
func newWorld(t testing.TB, c Config) *world {
	t.Helper()
	w := &world{t: t, clock: testclock.At(noon), servers: map[string]string{}}
	c.Audit, c.Now = w.audit, w.clock.Now
	if c.Dial == nil {
		c.Dial = w.dial
	}
	if c.HostAddrs == nil {
		s := home()
		c.HostAddrs, c.Local = s.hostAddrs, s.local
	}
	gate, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	w.gate = gate
	t.Cleanup(func() { gate.Close() })
	return w
}

// listen has a TCP server at a made-up address, which accepts when the test does.
func (w *world) listen(at string) net.Listener {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	w.servers["tcp "+at] = l.Addr().String()
	return l
}

func (w *world) audit(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *world) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	w.dialled = append(w.dialled, network+" "+address)
	real, found := w.servers[network+" "+address]
	w.mu.Unlock()
	if !found {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	return new(net.Dialer).DialContext(ctx, network, real)
}

func (w *world) dials() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.dialled...)
}

// seen waits for the audit and returns what it got since the last call.
func (w *world) seen() []Event {
	w.gate.audit.flush()
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.events
	w.events = nil
	return list
}

// tell is a DNS answer that the guest gets; it fails the test when it may not.
func (w *world) tell(name, addr string) {
	w.t.Helper()
	if err := w.gate.Answer(name, nil, netip.MustParseAddr(addr), time.Minute); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) dialTCP(address string) (net.Conn, error) {
	return w.gate.DialTCP(context.Background(), guest, netip.MustParseAddrPort(address))
}

// serve puts an echo server on the host's loopback at a made-up address.
func (w *world) serve(address string) {
	w.t.Helper()
	w.servers["tcp "+address] = echoServer(w.t, "127.0.0.1:0").String()
}

// echoServer sends back what it gets, until the test ends.
func echoServer(t testing.TB, at string) net.Addr {
	t.Helper()
	listener, err := net.Listen("tcp", at)
	if err != nil {
		t.Skipf("no listener on %s: %v", at, err)
	}
	var conns sync.WaitGroup
	var open sync.Map
	conns.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			open.Store(c, true)
			conns.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		open.Range(func(c, _ any) bool { return c.(net.Conn).Close() != nil || true })
		conns.Wait()
	})
	return listener.Addr()
}

// echoes says whether a connection is alive.
func echoes(t testing.TB, c net.Conn) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	defer func() { _ = c.SetDeadline(time.Time{}) }()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
}

// denied fails the test unless err is a denial with that reason.
func denied(t testing.TB, err error, reason string) {
	t.Helper()
	got := (*DeniedError)(nil)
	if !errors.As(err, &got) || got.Decision.Reason != reason || got.Decision.Allowed {
		t.Errorf("%v (%+v); want a denial with %s", err, got, reason)
	}
}

// countingDial counts calls and refuses.
type countingDial struct{ calls atomic.Int64 }

func (d *countingDial) dial(context.Context, string, string) (net.Conn, error) {
	d.calls.Add(1)
	return nil, syscall.ECONNREFUSED
}

func TestMain(m *testing.M) { leaktest.Main(m) }

// rules parses or fails the test.
func rules(t testing.TB, texts ...string) []Rule {
	t.Helper()
	var list []Rule
	for _, text := range texts {
		r, err := ParseRule(text)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, r)
	}
	return list
}

func mustAddrPort(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

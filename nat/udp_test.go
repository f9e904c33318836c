package nat

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agentvm/netstack"
)

// packets is an Egress whose sockets lead to the same port of loopback, unless a test wants something else.
type packets struct {
	*testEgress
	refuse func(to netip.AddrPort) error // asked before a socket is made; nil: nobody is refused
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

func TestUDP(t *testing.T) {
	for name, plain := range map[string]bool{"readiness": false, "plain connections": true} {
		t.Run(name, func(t *testing.T) {
			w := newPacketWorld(t, nil)
			w.packets.plain = plain
			to := w.serveUDP(echoing)
			conn := w.dialUDP(to)
			for _, size := range []int{1, 0, 2, 1472, 1473, 2048, 2049, 9000, 65507, 3} {
				p := pattern(size)
				if answer := w.ask(conn, p); !bytes.Equal(answer, p) {
					t.Errorf("%d bytes came back as %d others", size, len(answer))
				}
			}
			if n := w.packets.dialled(); n != 1 {
				t.Errorf("%d sockets for one session", n)
			}
			const sum = 1 + 2 + 1472 + 1473 + 2048 + 2049 + 9000 + 65507 + 3
			w.eventually("the last one is counted", func() bool { return w.nat.Flows()[0].Received == sum && w.nat.Flows()[0].Sent == sum })
			f := w.nat.Flows()[0]
			if f.Protocol != "udp" || f.Direction != Out || f.State != Established || f.Destination != to || f.Sent != sum || f.Received != sum {
				t.Errorf("flow: %+v, want %d bytes each way", f, sum)
			}
		})
	}
}

// TestUDPOrder: datagrams of a session keep their order both ways. The window keeps sockets' buffers from overflowing.
func TestUDPOrder(t *testing.T) {
	w := newPacketWorld(t, nil)
	conn := w.dialUDP(w.serveUDP(echoing))
	w.ask(conn, []byte("first")) // the guest's stack itself may reorder what waits for ARP
	const count, window = 2000, 8
	for next, sent := 0, 0; next < count; next++ {
		for ; sent < min(next+window, count); sent++ {
			if _, err := conn.Write(binary.BigEndian.AppendUint32(nil, uint32(sent))); err != nil {
				t.Fatal(err)
			}
		}
		var p [4]byte
		if _, err := conn.Read(p[:]); err != nil || binary.BigEndian.Uint32(p[:]) != uint32(next) {
			t.Fatalf("datagram %d is number %d (%v)", next, binary.BigEndian.Uint32(p[:]), err)
		}
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

// TestUDPServerSpeaksLater: the peer may send whenever it likes while the session lives, many for one.
func TestUDPServerSpeaksLater(t *testing.T) {
	w := newPacketWorld(t, nil)
	peer, to, from := w.peer()
	conn := w.dialUDP(to)
	if _, err := conn.Write([]byte("subscribe")); err != nil {
		t.Fatal(err)
	}
	guest := from()
	w.clock.advance(100 * time.Second) // quiet, but not for long enough
	for i := range 10 {
		if _, err := peer.WriteToUDPAddrPort([]byte{byte(i)}, guest); err != nil {
			t.Fatal(err)
		}
		var p [10]byte
		if n, err := conn.Read(p[:]); err != nil || n != 1 || p[0] != byte(i) {
			t.Fatalf("datagram %d: %v, %v", i, p[:n], err)
		}
		w.clock.advance(100 * time.Second)
	}
}

func TestUDPExpires(t *testing.T) {
	w := newPacketWorld(t, nil)
	conn := w.dialUDP(w.serveUDP(echoing))
	w.ask(conn, []byte("one"))
	w.clock.advance(119 * time.Second)
	w.ask(conn, []byte("two")) // begins the 120 s anew
	w.clock.advance(119 * time.Second)
	if n := len(w.nat.Flows()); n != 1 {
		t.Fatalf("%d flows 119 s after the last datagram", n)
	}
	w.clock.advance(time.Second)
	e := w.await(FlowClosed, 1)
	if e.Reason != ReasonIdle || e.Flow.Sent != 6 || e.Flow.Received != 6 || e.Duration != 239*time.Second {
		t.Errorf("event %+v", e)
	}
	if n := w.packets.open(); n != 0 {
		t.Errorf("%d sockets are open", n)
	}
	if answer := w.ask(conn, []byte("three")); string(answer) != "three" || w.packets.dialled() != 2 {
		t.Errorf("after the end: %q, %d dials", answer, w.packets.dialled())
	}
}

// TestUDPNeverExpires: a day of silence.
func TestUDPNeverExpires(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.UDPIdle = -1 })
	w.ask(w.dialUDP(w.serveUDP(echoing)), []byte("one"))
	w.clock.advance(24 * time.Hour)
	if n := len(w.nat.Flows()); n != 1 {
		t.Errorf("%d flows", n)
	}
}

// TestUDPRefusedByHost: nobody is there, so the guest gets ECONNREFUSED; when somebody is, the same session works.
func TestUDPRefusedByHost(t *testing.T) {
	for name, plain := range map[string]bool{"readiness": false, "plain connections": true} {
		t.Run(name, func(t *testing.T) {
			w := newPacketWorld(t, nil)
			w.packets.plain = plain
			free, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
			if err != nil {
				t.Fatal(err)
			}
			at := free.LocalAddr().String()
			free.Close()
			conn := w.dialUDP(netip.AddrPortFrom(remote, netip.MustParseAddrPort(at).Port()))
			for range 3 {
				_, err := w.tryAsk(conn, []byte("anybody?"))
				w.wantRefused(err)
			}
			w.serveUDPAt(at, echoing)
			if answer := w.ask(conn, []byte("now?")); string(answer) != "now?" {
				t.Errorf("answer %q", answer)
			}
			if n := w.packets.dialled(); n != 1 {
				t.Errorf("%d dials; a refusal does not end a session", n)
			}
		})
	}
}

// TestUDPNotDialled: what the guest is told when there can be no socket.
func TestUDPNotDialled(t *testing.T) {
	tests := []struct {
		name   string
		err    error
		reason Reason
		kind   EventKind
		code   byte // of ICMP's destination unreachable
	}{
		{"denied", denial{}, ReasonPolicy, FlowDenied, 3},
		{"no route", &net.OpError{Op: "dial", Err: syscall.ENETUNREACH}, ReasonUnreachable, FlowFailed, 0},
		{"no host", &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, ReasonUnreachable, FlowFailed, 1},
		{"no descriptors", &net.OpError{Op: "dial", Err: syscall.EMFILE}, ReasonError, FlowFailed, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			codes := make(chan byte, 1)
			w := newPacketWorld(t, func(s *settings) { s.guest.Impair.Keep = unreachables(codes) })
			w.packets.refuse = func(netip.AddrPort) error { return test.err }
			if _, err := w.dialUDP(netip.AddrPortFrom(remote, 9)).Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if e := w.await(test.kind, 1); e.Reason != test.reason || !errors.Is(e.Err, test.err) {
				t.Errorf("event %+v", e)
			}
			select {
			case code := <-codes:
				if code != test.code {
					t.Errorf("code %d, want %d", code, test.code)
				}
			case <-time.After(patience):
				t.Error("the guest is not told")
			}
		})
	}
}

// unreachables passes every frame, and tells the codes of ICMP's destination unreachable.
func unreachables(codes chan<- byte) func([]byte, bool) bool {
	return func(frame []byte, toGuest bool) bool {
		const ethernet, ip = 14, 20
		if toGuest && len(frame) >= ethernet+ip+8 && frame[12] == 8 && frame[13] == 0 && frame[ethernet+9] == 1 && frame[ethernet+ip] == 3 {
			codes <- frame[ethernet+ip+1]
		}
		return true
	}
}

// TestUDPGuestRefuses: the guest's program is gone, so the session ends and the peer's datagrams find no socket.
func TestUDPGuestRefuses(t *testing.T) {
	w := newPacketWorld(t, nil)
	peer, to, from := w.peer()
	conn := w.dialUDP(to)
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	guest := from()
	conn.Close()
	if _, err := peer.WriteToUDPAddrPort([]byte("too late"), guest); err != nil {
		t.Fatal(err)
	}
	if e := w.await(FlowClosed, 1); e.Reason != ReasonGuestReset {
		t.Errorf("reason %v (%v)", e.Reason, e.Err)
	}
	if n := w.packets.open(); n != 0 {
		t.Errorf("%d sockets are open", n)
	}
}

func TestUDPPolicyChanges(t *testing.T) {
	w := newPacketWorld(t, nil)
	conn := w.dialUDP(w.serveUDP(echoing))
	w.ask(conn, []byte("hello"))
	w.packets.cut()
	if e := w.await(FlowClosed, 1); e.Reason != ReasonPolicy {
		t.Errorf("reason %v (%v)", e.Reason, e.Err)
	}
	_, err := w.readUDP(conn)
	w.wantRefused(err)
}

func TestUDPCut(t *testing.T) {
	w := newPacketWorld(t, nil)
	w.ask(w.dialUDP(w.serveUDP(echoing)), []byte("hello"))
	if !w.nat.CutFlow(w.nat.Flows()[0].ID) {
		t.Error("no such flow")
	}
	if e := w.await(FlowClosed, 1); e.Reason != ReasonCut {
		t.Errorf("reason %v", e.Reason)
	}
}

// TestUDPLimit: more sessions than the limit. What is in use stays, what has been quiet gives way.
func TestUDPLimit(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.Limits.UDPFlows = 50 })
	to := w.serveUDP(echoing)
	first := w.dialUDP(to)
	w.ask(first, []byte("first"))
	for range 49 {
		w.ask(w.dialUDP(to), []byte("x"))
	}
	for range 20 { // a flood in no time
		_, err := w.tryAsk(w.dialUDP(to), []byte("x"))
		w.wantRefused(err)
	}
	var limit *LimitError
	if e := w.await(FlowFailed, 20); e.Reason != ReasonLimit || !errors.As(e.Err, &limit) || limit.Limit != "udp flows" {
		t.Errorf("event %+v", e)
	}
	if n := len(w.nat.Flows()); n != 50 {
		t.Errorf("%d flows", n)
	}
	w.clock.advance(evictAfter)
	w.ask(first, []byte("still here"))
	for range 1000 { // like a resolver: a port for each question, some seconds after the others
		w.clock.advance(evictAfter / 40)
		w.ask(w.dialUDP(to), []byte("x"))
		w.ask(first, []byte("in use"))
	}
	if n := len(w.nat.Flows()); n > 50 || w.packets.open() > 50 {
		t.Errorf("%d flows, %d sockets", n, w.packets.open())
	}
	if e := w.await(FlowClosed, 900); e.Reason != ReasonLimit {
		t.Errorf("reason %v", e.Reason)
	}
	if flows := w.nat.Flows(); flows[0].ID != 1 {
		t.Errorf("the session in use has ended; the oldest is %+v", flows[0])
	}
}

// TestUDPThousandSessions: a thousand over the limit, all at once.
func TestUDPThousandSessions(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.Limits.UDPFlows = 100 })
	to := w.serveUDP(func([]byte) []byte { return nil })
	for i := 0; i < 10_000 && len(w.events.list(FlowFailed)) < 1000; i++ { // the guest's own stack may lose some
		if _, err := w.dialUDP(to).Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	w.await(FlowFailed, 1000)
	if n := len(w.nat.Flows()); n != 100 || w.packets.dialled() != 100 {
		t.Errorf("%d flows, %d sockets were made", n, w.packets.dialled())
	}
}

func TestUDPIntercept(t *testing.T) {
	ended := make(chan error, 2)
	w := newPacketWorld(t, func(s *settings) {
		s.Intercept = func(network string, to netip.AddrPort) func(context.Context, net.Conn) {
			if network != "udp" || to.Port() != 53 {
				return nil
			}
			return func(ctx context.Context, conn net.Conn) {
				defer conn.Close()
				p := make([]byte, 512)
				for {
					n, err := conn.Read(p)
					if err != nil {
						ended <- ctx.Err()
						return
					}
					_, _ = conn.Write(append([]byte("answer to "), p[:n]...))
				}
			}
		}
	})
	to := netip.MustParseAddrPort("198.51.100.1:53") // any server is this one
	conn := w.dialUDP(to)
	for _, question := range []string{"one", "two"} {
		if answer := w.ask(conn, []byte(question)); string(answer) != "answer to "+question {
			t.Errorf("%q", answer)
		}
	}
	w.eventually("the answers are counted", func() bool {
		f := w.nat.Flows()[0]
		return f.Intercepted && f.Sent == 6 && f.Received == 26
	})
	w.clock.advance(120 * time.Second)
	if e := w.await(FlowClosed, 1); e.Reason != ReasonIdle {
		t.Errorf("reason %v", e.Reason)
	}
	if err := <-ended; err == nil {
		t.Error("the function's context goes on")
	}
	if n := w.packets.dialled(); n != 0 {
		t.Errorf("%d sockets were made for a flow that was taken", n)
	}
	w.ask(conn, []byte("three")) // is open when Run ends
}

// TestUDPSendLimit: datagrams above the limit wait a little, then are dropped and counted.
func TestUDPSendLimit(t *testing.T) {
	var mu sync.Mutex
	bytes := 0
	w := newPacketWorld(t, func(s *settings) { s.SendLimit = 100_000 })
	conn := w.dialUDP(w.serveUDP(func(p []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		bytes += len(p)
		return nil
	}))
	const datagrams = 400
	sent := func() (n uint64) {
		for _, f := range w.nat.Flows() {
			n += f.Sent
		}
		dropped, _ := w.nat.Dropped()
		return n/1000 + dropped
	}
	waits := func() uint64 { return uint64(w.nat.send.delayed.Load()) / 1000 }
	for i := range datagrams { // 200 kB/s for 2 s
		if _, err := conn.Write(pattern(1000)); err != nil {
			t.Fatal(err)
		}
		w.eventually("the datagram has arrived at the limit", func() bool { return sent()+waits() == uint64(i+1) })
		w.clock.advance(5 * time.Millisecond)
	}
	w.clock.advance(time.Second)
	w.eventually("every datagram was sent or dropped", func() bool { return sent() == datagrams })
	w.eventually("all that was sent has arrived", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return bytes == int(w.nat.Flows()[0].Sent)
	})
	dropped, _ := w.nat.Dropped()
	if got := w.nat.Flows()[0].Sent; got < 195_000 || got > 235_000 || dropped == 0 {
		t.Errorf("%d bytes passed in 2 s at 100 kB/s, %d datagrams were dropped", got, dropped)
	}
}

// TestUDPIPv6: the same with IPv6 in the guest.
func TestUDPIPv6(t *testing.T) {
	w := newPacketWorld(t, staticIPv6)
	to := netip.AddrPortFrom(netip.MustParseAddr("2001:db8::7"), w.serveUDPAt("[::1]:0", echoing).Port())
	conn := w.dialUDP(to)
	for _, size := range []int{1, 1452, 9000, 65507} {
		if p := pattern(size); !bytes.Equal(w.ask(conn, p), p) {
			t.Errorf("%d bytes did not come back", size)
		}
	}
	w.packets.refuse = func(netip.AddrPort) error { return denial{} }
	_, err := w.tryAsk(w.dialUDP(to), []byte("denied"))
	w.wantRefused(err)
}

// TestUDPGoroutines: a session has two, and none when it has expired.
func TestUDPGoroutines(t *testing.T) {
	w := newPacketWorld(t, nil)
	to := w.serveUDP(echoing)
	w.ask(w.dialUDP(to), []byte("x"))
	before := runtime.NumGoroutine()
	const sessions = 200
	for range sessions {
		w.ask(w.dialUDP(to), []byte("x"))
	}
	if n := runtime.NumGoroutine() - before; n > 2*sessions+2 {
		t.Errorf("%d goroutines for %d sessions", n, sessions)
	}
	w.eventually("none is left", func() bool {
		w.clock.advance(DefaultUDPIdle) // again for those that counted their last datagram after the time moved
		return runtime.NumGoroutine() <= before && w.packets.open() == 0
	})
}

// TestUDPMemory: 500 sessions at rest, after datagrams of all sizes.
func TestUDPMemory(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.Limits.UDPFlows = 1000 })
	to := w.serveUDP(echoing)
	before := heapInUse()
	const sessions = 500
	for range sessions {
		conn := w.dialUDP(to)
		w.ask(conn, pattern(20_000))
	}
	perSession, most := (heapInUse()-before)/sessions, 24<<10
	t.Logf("%d bytes of heap a session, with the guest's end of it", perSession)
	if _, ok := any((*netstack.PacketConn)(nil)).(datagramReader); !ok {
		most += maxDatagram
	}
	if perSession > most {
		t.Errorf("%d bytes a session", perSession)
	}
}

package nat

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"agentvm/netstack"
)

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
		t.Error("the function's context continues")
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
	// On a busy host those that only carry a datagram take a moment to end.
	w.eventually("two for each session", func() bool { return runtime.NumGoroutine()-before <= 2*sessions+2 })
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

package netstack_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestCloseWithoutRun frees everything of a network that was never used (goleak looks).
func TestCloseWithoutRun(t *testing.T) {
	n, err := netstack.New(netstack.Config{})
	mustDo(t, err)
	for range 2 {
		mustDo(t, n.Close())
	}
}

// TestCloseEndsAccept: a handshake that the guest never completes does not keep the network.
func TestCloseEndsAccept(t *testing.T) {
	n := newNetwork(t, netstack.Config{DisableIPv6: true})
	ended := make(chan error, 1)
	n.HandleTCP(4, func(r *netstack.TCPRequest) {
		_, err := r.Accept()
		ended <- err
	})
	peer := netstacktest.StartPeer(t)
	runOn(t, n, peer.Host())
	peer.SendSegment(t, netstacktest.Segment{Source: netip.AddrPortFrom(guestIP, 9), Destination: server, Flags: syn, Window: 99})
	peer.Expect(t, "SYN-ACK", func(s netstacktest.Segment) bool { return s.Flags == syn|ack })
	n.Close()
	if err := <-ended; err == nil {
		t.Error("Accept of a handshake that was not completed succeeded")
	}
}

// TestAcceptFails: the guest resets during the handshake.
func TestAcceptFails(t *testing.T) {
	n := newNetwork(t, netstack.Config{DisableIPv6: true})
	ended := make(chan error, 1)
	n.HandleTCP(4, func(r *netstack.TCPRequest) {
		_, err := r.Accept()
		ended <- err
	})
	peer := netstacktest.StartPeer(t)
	runOn(t, n, peer.Host())
	s := netstacktest.Segment{Source: netip.AddrPortFrom(guestIP, 9), Destination: server, Flags: syn, Window: 99}
	peer.SendSegment(t, s)
	peer.Expect(t, "SYN-ACK", func(s netstacktest.Segment) bool { return s.Flags == syn|ack })
	s.Seq, s.Flags = 1, rst
	peer.SendSegment(t, s)
	if err := <-ended; err == nil {
		t.Error("Accept succeeded after the guest's RST")
	}
	if got := netstack.FlowCount(n); got != 0 {
		t.Errorf("%d flows are left", got)
	}
}

// TestOrphans: connections that were closed here and never by the guest are bounded in number and time.
func TestOrphans(t *testing.T) {
	clock := faketime.NewManualClock()
	peer, n, conns := newPeer(t, netstack.Config{Clock: clock})
	for port := range uint16(300) {
		h := handshake(t, peer, conns, 10_000+port, 1000, nil)
		mustDo(t, h.conn.Close())
	}
	if got := netstack.FlowCount(n); got > 256 {
		t.Errorf("%d connections wait for the guest's FIN", got)
	}
	for range 20 {
		clock.Advance(20 * time.Second)
	}
	eventually(t, "all are forgotten", func() bool {
		clock.Advance(10 * time.Second)
		return netstack.FlowCount(n) == 0 && netstack.EndpointCount(n) == 0
	})
}

// TestKeepAlive: a guest that is gone ends the connection after the probes, one that answers keeps it for a day.
func TestKeepAlive(t *testing.T) {
	clock := faketime.NewManualClock()
	peer, n, conns := newPeer(t, netstack.Config{Clock: clock})
	h := handshake(t, peer, conns, 4000, 1000, nil)
	mustDo(t, h.conn.SetKeepAlive(10*time.Minute, time.Minute, 3))
	probes := 0
	for range 24 * 60 {
		sent := n.Stats().FramesToGuest
		clock.Advance(time.Minute)
		if n.Stats().FramesToGuest == sent {
			continue
		}
		probes++
		peer.Expect(t, "a probe", func(s netstacktest.Segment) bool { return s.Seq == h.ack-1 })
		h.send(netstacktest.Segment{Flags: ack})
		h.send(netstacktest.Segment{Flags: ack, Seq: h.seq - 1, Payload: []byte{0}}) // old: is answered, after the answer
		peer.Expect(t, "an answer", func(s netstacktest.Segment) bool { return s.Seq == h.ack })
	}
	if probes < 24*5 || probes > 24*7 { // an answer that is late, by this clock, moves the next one by some minutes
		t.Errorf("%d probes in a day, want about one each ten minutes", probes)
	}
	if got := h.conn.State(); got != "ESTABLISHED" {
		t.Fatalf("state %s after an idle day with an answering guest", got)
	}
	clock.Advance(14 * time.Minute)
	eventually(t, "the connection is given up", func() bool {
		clock.Advance(time.Minute)
		return h.conn.State() == "CLOSED"
	})
	wantDone(t, h.conn)
	if _, err := h.conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("Read: %v, want ETIMEDOUT", err)
	}
}

// TestGuestThatWasAway: what a guest did not take for minutes, because the host had no time for it, it gets within seconds when it is back,
// whether data is lost or its window is closed; and the connection is still there.
func TestGuestThatWasAway(t *testing.T) {
	for name, window := range map[string]uint16{"loss": 65535, "closed window": 0} {
		t.Run(name, func(t *testing.T) {
			clock := faketime.NewManualClock()
			peer, n, conns := newPeer(t, netstack.Config{Clock: clock})
			h := handshake(t, peer, conns, 4000, 1000, nil)
			h.window = window
			h.send(netstacktest.Segment{Flags: ack})
			if _, err := h.conn.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			for range 5 * 60 {
				clock.Advance(time.Second)
			}
			// The timer is set again after a frame was sent, so a step of the clock can come before that, and then the next one counts.
			for range 10 {
				sent := n.Stats().FramesToGuest
				for steps := 0; n.Stats().FramesToGuest == sent; steps++ {
					if steps == 5 {
						t.Fatal("it is not sent again within 20 s")
					}
					clock.Advance(4 * time.Second)
					for end := time.Now().Add(2 * time.Second); n.Stats().FramesToGuest == sent && time.Now().Before(end); {
						time.Sleep(time.Millisecond)
					}
				}
			}
			if got := h.conn.State(); got != "ESTABLISHED" {
				t.Errorf("state %s", got)
			}
		})
	}
}

// TestParallelFlows opens many connections at once.
func TestParallelFlows(t *testing.T) {
	const flows = 500
	n, g := pair(t, netstack.Config{DisableIPv6: true}, netstacktest.Config{DisableIPv6: true})
	n.HandleTCP(flows, func(r *netstack.TCPRequest) {
		if c, err := r.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	})
	connect(t, n, g)
	ctx := within(t)
	var group sync.WaitGroup
	for i := range flows {
		group.Go(func() {
			c, err := g.Dial(ctx, server)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			want := pattern(5000, byte(i))
			go func() {
				c.Write(want)
				c.CloseWrite()
			}()
			if got, err := io.ReadAll(c); err != nil || string(got) != string(want) {
				t.Errorf("flow %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	group.Wait()
}

// TestPortsAgain: the guest uses the same port for one connection after the other.
func TestPortsAgain(t *testing.T) {
	peer, n, conns := newPeer(t, netstack.Config{})
	for i := range uint32(20) {
		h := handshake(t, peer, conns, 4000, 1000+i*100_000, nil)
		mustDo(t, h.conn.CloseWrite()) // the gateway closes first: TIME_WAIT is its own
		peer.Expect(t, "FIN", func(s netstacktest.Segment) bool { return s.Flags&fin != 0 })
		h.ack++
		h.send(netstacktest.Segment{Flags: fin | ack})
		peer.Expect(t, "last acknowledgement", func(s netstacktest.Segment) bool { return s.Ack == h.seq+1 })
		wantDone(t, h.conn)
		h.conn.Close()
		eventually(t, "the endpoint is gone", func() bool { return netstack.EndpointCount(n) == 0 })
	}
}

// TestGoroutines: a connection costs no goroutine.
func TestGoroutines(t *testing.T) {
	n, g := pair(t, netstack.Config{DisableIPv6: true}, netstacktest.Config{DisableIPv6: true})
	conns := accepting(n)
	connect(t, n, g)
	dial(t, g, server)
	t.Cleanup((<-conns).Abort)
	before := runtime.NumGoroutine()
	for range 50 {
		dial(t, g, server)
		c := <-conns
		_ = c.Done()
		t.Cleanup(c.Abort)
	}
	eventually(t, "no more goroutines than before", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// TestCloseWhileBusy closes a network under load: everything ends.
func TestCloseWhileBusy(t *testing.T) {
	n, err := netstack.New(netstack.Config{DisableIPv6: true})
	mustDo(t, err)
	g := netstacktest.Start(t, netstacktest.Config{DisableIPv6: true})
	n.HandleTCP(64, func(r *netstack.TCPRequest) {
		if c, err := r.Accept(); err == nil {
			io.Copy(c, c)
		}
	})
	n.HandleUDP(func(r *netstack.UDPRequest) bool { c, err := r.Accept(); return err == nil && c != nil })
	ran := make(chan error, 1)
	go func() { ran <- n.Run(context.Background(), g.Link()) }()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for ctx.Err() == nil {
				short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
				if c, err := g.Dial(short, server); err == nil {
					c.Write(make([]byte, 100_000))
					c.Abort()
				}
				stop()
			}
		})
	}
	time.Sleep(100 * time.Millisecond)
	mustDo(t, n.Close())
	if err := <-ran; err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run: %v", err)
	}
	cancel()
	group.Wait()
}

// TestCloseRacesWithAccept closes while handshakes begin: whatever is first, Close returns.
func TestCloseRacesWithAccept(t *testing.T) {
	for i := range 200 {
		n, err := netstack.New(netstack.Config{DisableIPv6: true})
		mustDo(t, err)
		n.HandleTCP(4, func(r *netstack.TCPRequest) {
			if c, err := r.Accept(); err == nil {
				c.Close()
			}
		})
		peer := netstacktest.StartPeer(t)
		ran := make(chan error, 1)
		go func() { ran <- n.Run(context.Background(), peer.Host()) }()
		peer.SendSegment(t, netstacktest.Segment{Source: netip.AddrPortFrom(guestIP, 9), Destination: server, Flags: syn, Window: 99})
		time.Sleep(time.Duration(i) * time.Microsecond)
		closed := make(chan error, 1)
		go func() { closed <- n.Close() }()
		select {
		case <-closed:
		case <-within(t).Done():
			t.Fatal("Close does not return")
		}
		<-ran
	}
}

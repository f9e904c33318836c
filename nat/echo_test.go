package nat

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// icmpOf tells the echo replies and the unreachables that the guest's card gets, without their IP headers. It is for
// settings.guest.Impair.Keep.
func icmpOf(to chan<- []byte) func([]byte, bool) bool {
	return func(frame []byte, toGuest bool) bool {
		const ethernet, ip4, ip6 = 14, 20, 40
		if !toGuest || len(frame) < ethernet+ip4+8 {
			return true
		}
		switch packet := frame[ethernet:]; {
		case packet[0]>>4 == 4 && packet[9] == 1 && (packet[ip4] == 0 || packet[ip4] == 3):
			to <- bytes.Clone(packet[ip4:])
		case packet[0]>>4 == 6 && packet[6] == 58 && (packet[ip6] == 129 || packet[ip6] == 1):
			to <- bytes.Clone(packet[ip6:])
		}
		return true
	}
}

func staticIPv6(s *settings) {
	s.guest.DisableIPv6 = false
	s.guest.Address6, s.guest.Gateway6 = netip.MustParsePrefix("fd5a:94ef:e40c::3/64"), netip.MustParseAddr("fd5a:94ef:e40c::1")
}

// briefly is how long a test waits for what must not happen.
const briefly = 50 * time.Millisecond

func TestEcho(t *testing.T) {
	silent := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	prohibited, noHost, noNetwork := []byte{13, 1}, []byte{1, 3}, []byte{0, 0} // ICMP's code, and ICMPv6's
	tests := []struct {
		name    string
		ping    func(context.Context) error
		advance time.Duration // after the request
		kind    EventKind     // 0: no event
		reason  Reason
		codes   []byte // of the error that the guest gets; nil: none
	}{
		{name: "answers", ping: func(context.Context) error { return nil }},
		{"silent", silent, echoPatience, FlowFailed, ReasonTimeout, nil},
		{"denied", func(context.Context) error { return denial{} }, 0, FlowDenied, ReasonPolicy, prohibited},
		{"denied while it waits", func(ctx context.Context) error { <-ctx.Done(); return denial{} }, echoPatience, FlowDenied, ReasonPolicy, prohibited},
		{"no host", func(context.Context) error { return syscall.EHOSTUNREACH }, 0, FlowFailed, ReasonUnreachable, noHost},
		{"no network", func(context.Context) error { return syscall.ENETUNREACH }, 0, FlowFailed, ReasonUnreachable, noNetwork},
		{"no way to find out", func(context.Context) error { return errors.ErrUnsupported }, 0, FlowFailed, ReasonError, nil},
	}
	for family, to := range map[string]netip.Addr{"IPv4": remote, "IPv6": netip.MustParseAddr("2001:db8::7")} {
		for _, test := range tests {
			t.Run(test.name+" "+family, func(t *testing.T) {
				asked, answered := make(chan []byte, 1), make(chan []byte, 1)
				w := newPacketWorld(t, func(s *settings) {
					staticIPv6(s)
					s.guest.Impair.Keep = icmpOf(answered)
				})
				w.packets.answer = func(ctx context.Context, at netip.Addr, payload []byte) error {
					if at != to {
						t.Errorf("ping of %v", at)
					}
					asked <- payload
					return test.ping(ctx)
				}
				payload := pattern(1000)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error, 1)
				go func() { done <- w.guest.Ping(ctx, to, 0x1234, payload) }()
				if got := <-asked; !bytes.Equal(got, payload) {
					t.Errorf("the host was asked to send %d bytes", len(got))
				}
				w.clock.advance(test.advance)
				if test.kind == 0 {
					if err := <-done; err != nil {
						t.Error(err)
					}
					if reply := <-answered; binary.BigEndian.Uint16(reply[6:]) != 0x1234 || !bytes.Equal(reply[8:], payload) {
						t.Errorf("reply % x", reply[:8])
					}
				} else {
					if test.codes != nil {
						code := test.codes[0]
						if to.Is6() {
							code = test.codes[1]
						}
						if got := <-answered; got[0] != 3 && got[0] != 1 || got[1] != code {
							t.Errorf("the guest got ICMP type %d, code %d; want unreachable, code %d", got[0], got[1], code)
						}
					}
					e := w.await(test.kind, 1)
					if e.Reason != test.reason || e.Flow.Protocol != "icmp" || e.Flow.Destination.Addr() != to {
						t.Errorf("event %+v", e)
					}
					select {
					case err := <-done:
						t.Errorf("the guest's ping ended: %v", err)
					case <-time.After(briefly):
					}
				}
				cancel()
			})
		}
	}
}

func TestEchoSizes(t *testing.T) {
	w := newPacketWorld(t, nil)
	w.packets.answer = func(context.Context, netip.Addr, []byte) error { return nil }
	for i, size := range []int{0, 1, 56, 1472} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := w.guest.Ping(ctx, remote, uint16(i), pattern(size)); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		cancel()
	}
}

// pingMany sends n echo requests whose answers are not read.
func (w *packetWorld) pingMany(n int) {
	ctx, cancel := context.WithCancel(w.Context())
	cancel()
	for i := range n {
		_ = w.guest.Ping(ctx, remote, uint16(i), []byte("flood")) // sends, then finds ctx ended
	}
}

func TestEchoFlood(t *testing.T) {
	var pings, now, most atomic.Int64
	release := make(chan struct{})
	w := newPacketWorld(t, func(s *settings) { s.Limits.EchoesPerSecond, s.Limits.PendingEchoes = 100, 10 })
	use := func(name string) (use LimitUse) {
		for _, u := range w.nat.LimitUse() {
			if u.Limit == name {
				use = u
			}
		}
		return use
	}
	w.packets.answer = func(context.Context, netip.Addr, []byte) error {
		pings.Add(1)
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		<-release
		return nil
	}
	w.ask(w.dialUDP(w.serveUDP(echoing)), []byte("ARP")) // until it is answered, the guest keeps few packets
	w.pingMany(500)
	w.eventually("all are decided about", func() bool {
		return use("echoes per second").Refused == 400 && use("pending echoes").Refused == 90
	})
	w.eventually("all that are allowed have been sent", func() bool { return pings.Load() >= 10 })
	if pings.Load() != 10 {
		t.Errorf("%d pings at once, want 10", pings.Load())
	}
	close(release)
	w.eventually("all have been answered", func() bool { return use("pending echoes").Used == 0 })
	w.pingMany(10) // the second is used up
	w.eventually("all are decided about", func() bool { return use("echoes per second").Refused == 410 })
	w.clock.advance(time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := w.guest.Ping(ctx, remote, 1, []byte("polite")); err != nil {
		t.Errorf("a second later: %v", err)
	}
	if n := most.Load(); n > 10 {
		t.Errorf("%d at once", n)
	}
}

// TestEchoFloodHoldsLittle floods destinations that do not answer with large requests: the host holds the few that wait, whatever the guest sends.
func TestEchoFloodHoldsLittle(t *testing.T) {
	const requests, size = 2000, 1400
	var held atomic.Int64
	w := newPacketWorld(t, nil)
	w.packets.answer = func(ctx context.Context, _ netip.Addr, payload []byte) error {
		held.Add(int64(len(payload)))
		<-ctx.Done()
		return context.Cause(ctx)
	}
	use := func(name string) (use LimitUse) {
		for _, u := range w.nat.LimitUse() {
			if u.Limit == name {
				use = u
			}
		}
		return use
	}
	w.ask(w.dialUDP(w.serveUDP(echoing)), []byte("ARP")) // until it is answered, the guest keeps few packets
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(w.Context())
	cancel()
	for i := range requests {
		_ = w.guest.Ping(ctx, remote, uint16(i), make([]byte, size)) // sends, then finds ctx ended
	}
	pending := func() LimitUse { return use("pending echoes") }
	w.eventually("all are decided about", func() bool {
		p := pending()
		return uint64(p.Used)+p.Refused+use("echoes per second").Refused == requests && held.Load() == int64(p.Used*size)
	})
	if p := pending(); p.Used != p.Maximum || p.Maximum != 32 {
		t.Errorf("%d of %d wait", p.Used, p.Maximum)
	}
	w.eventually("the others have no goroutine", func() bool { return runtime.NumGoroutine()-before <= 4*32 })
	w.clock.advance(echoPatience)
	w.eventually("nothing waits", func() bool { return pending().Used == 0 })
}

// TestEchoEndsWithRun: requests that wait for an answer do not keep Run.
func TestEchoEndsWithRun(t *testing.T) {
	w := newPacketWorld(t, nil)
	var asked sync.WaitGroup
	asked.Add(5)
	w.packets.answer = func(ctx context.Context, _ netip.Addr, _ []byte) error {
		asked.Done()
		<-ctx.Done()
		return ctx.Err()
	}
	w.pingMany(5)
	asked.Wait()
	w.stop()
	w.within("Run to return", w.stopped)
	for _, e := range w.events.list(FlowFailed) {
		if e.Reason != ReasonShutdown {
			t.Errorf("reason %v", e.Reason)
		}
	}
}

// TestEchoCountsForLimits: echo requests pay for their bytes.
func TestEchoCountsForLimits(t *testing.T) {
	var pings atomic.Int64
	w := newPacketWorld(t, func(s *settings) { s.SendLimit = 1000 })
	w.packets.answer = func(context.Context, netip.Addr, []byte) error { pings.Add(1); return nil }
	for i := range 4 {
		go w.guest.Ping(t.Context(), remote, uint16(i), pattern(1400))
	}
	w.eventually("two have gone, by the burst, and two wait", func() bool { return pings.Load() == 2 && w.nat.send.waits() == 2 })
	w.clock.advance(1500 * time.Millisecond)
	w.eventually("then the next has gone", func() bool { return pings.Load() == 3 })
	w.clock.advance(1500 * time.Millisecond)
	w.eventually("and then the last", func() bool { return pings.Load() == 4 })
}

package nat

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestTCPDialFails has the host's answers to a dial that does not succeed, and what the guest sees of them.
func TestTCPDialFails(t *testing.T) {
	system := func(err error) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", err)}
	}
	cases := []struct {
		name   string
		err    error
		guest  error
		kind   EventKind
		reason Reason
	}{
		{"refused", system(syscall.ECONNREFUSED), syscall.ECONNREFUSED, FlowFailed, ReasonRefused},
		{"denied", fmt.Errorf("dial: %w", denial{}), syscall.ECONNREFUSED, FlowDenied, ReasonPolicy},
		{"no network", system(syscall.ENETUNREACH), syscall.ENETUNREACH, FlowFailed, ReasonUnreachable},
		{"no host", system(syscall.EHOSTUNREACH), syscall.EHOSTUNREACH, FlowFailed, ReasonUnreachable},
		{"the system's time-out", system(syscall.ETIMEDOUT), syscall.EHOSTUNREACH, FlowFailed, ReasonTimeout},
		{"another error", system(syscall.EMFILE), syscall.ECONNREFUSED, FlowFailed, ReasonError},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, nil)
			w.egress.instead = func(context.Context, netip.AddrPort, netip.AddrPort) (net.Conn, error) { return nil, c.err }
			to := netip.AddrPortFrom(remote, 80)
			if _, err := w.tryDial(to); !errors.Is(err, c.guest) {
				t.Errorf("the guest's dial ended with %v, want %v", err, c.guest)
			}
			event := w.await(c.kind, 1)
			if event.Reason != c.reason || !errors.Is(event.Err, c.err) || event.Flow.Destination != to || event.Flow.State != Closed {
				t.Errorf("event %+v, want reason %q", event, c.reason)
			}
			w.eventually("nothing is left", func() bool { return len(w.nat.Flows()) == 0 && w.taken() == 0 })
		})
	}
}

// taken is how much is taken of all limits.
func (w *world) taken() (n int) {
	for _, u := range w.nat.LimitUse() {
		n += u.Used
	}
	return n
}

// TestTCPRefused dials a port of the host without a listener.
func TestTCPRefused(t *testing.T) {
	w := newWorld(t, nil)
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(remote, listener.Addr().(*net.TCPAddr).AddrPort().Port())
	listener.Close()
	if _, err := w.tryDial(to); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the guest's dial ended with %v", err)
	}
	if event := w.await(FlowFailed, 1); event.Reason != ReasonRefused {
		t.Errorf("event %+v", event)
	}
}

// silent makes the host never answer: dials last until their context ends.
func (w *world) silent() (begun, ended chan struct{}) {
	begun, ended = make(chan struct{}, 1000), make(chan struct{}, 1000)
	w.egress.instead = func(ctx context.Context, _, _ netip.AddrPort) (net.Conn, error) {
		begun <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return nil, ctx.Err()
	}
	return begun, ended
}

// startDial dials in the background.
func (w *world) startDial(to netip.AddrPort) (result chan error) {
	result = make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err := w.guest.Dial(ctx, to)
		if err == nil {
			conn.Close()
		}
		result <- err
	}()
	return result
}

func TestTCPSilentPeer(t *testing.T) {
	w := newWorld(t, nil)
	begun, ended := w.silent()
	result := w.startDial(netip.AddrPortFrom(remote, 80))
	<-begun
	w.isState(SynSent)
	w.clock.advance(DefaultDialTimeout - time.Second)
	if len(ended) > 0 {
		t.Error("the dial ended before its time")
	}
	w.clock.advance(time.Second)
	if err := <-result; !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("the guest's dial ended with %v", err)
	}
	if event := w.await(FlowFailed, 1); event.Reason != ReasonTimeout || event.Duration != DefaultDialTimeout {
		t.Errorf("event %+v", event)
	}
}

// TestTCPNotBeforeTheHost checks that no SYN-ACK precedes the host's connection.
func TestTCPNotBeforeTheHost(t *testing.T) {
	w := newWorld(t, nil)
	to := w.serve(func(c *net.TCPConn) { c.Read(make([]byte, 1)) })
	dialling, answer := make(chan struct{}), make(chan struct{})
	w.egress.instead = func(context.Context, netip.AddrPort, netip.AddrPort) (net.Conn, error) {
		close(dialling)
		<-answer
		return nil, nil
	}
	result := w.startDial(to)
	<-dialling
	w.isState(SynSent)
	w.clock.advance(3 * time.Second)
	select {
	case err := <-result:
		t.Fatalf("the guest's dial ended, with %v, before the host's", err)
	case <-time.After(50 * time.Millisecond):
	}
	close(answer)
	if err := <-result; err != nil {
		t.Error(err)
	}
	if event := w.await(FlowOpened, 1); event.DialTime != 3*time.Second {
		t.Errorf("it took %v, want 3s", event.DialTime)
	}
}

// TestTCPGuestGivesUp has a guest that is gone when the host's connection stands at last.
func TestTCPGuestGivesUp(t *testing.T) {
	w := newWorld(t, nil)
	reset := make(chan error, 1)
	to := w.serve(func(c *net.TCPConn) {
		_, err := c.Read(make([]byte, 1))
		reset <- err
	})
	dialling, answer := make(chan struct{}), make(chan struct{})
	w.egress.instead = func(context.Context, netip.AddrPort, netip.AddrPort) (net.Conn, error) {
		close(dialling)
		<-answer
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() {
		_, err := w.guest.Dial(ctx, to)
		result <- err
	}()
	<-dialling
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(answer)
	if err := <-reset; !isAny(err, resets) {
		t.Errorf("the host's connection ended with %v, want a reset", err)
	}
	if event := w.await(FlowFailed, 1); event.Reason != ReasonGuestReset {
		t.Errorf("event %+v", event)
	}
}

// TestTCPHandshakeNeverEnds has a guest that never answers the SYN-ACK. That must not keep Run, or CutFlow, waiting.
func TestTCPHandshakeNeverEnds(t *testing.T) {
	for _, how := range []string{"cut", "shutdown"} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, func(s *settings) { s.guest.Impair.Keep = dropAcknowledgements })
			w.silentlyStart()
			w.isState(SynReceived)
			reason := ReasonShutdown
			if how == "cut" {
				reason = ReasonCut
				w.nat.CutFlow(w.nat.Flows()[0].ID)
			} else {
				w.stop()
				w.within("NAT.Run to return", w.stopped)
			}
			if event := w.await(FlowFailed, 1); event.Reason != reason {
				t.Errorf("event %+v", event)
			}
			if w.egress.open() != 0 || len(w.nat.Flows()) != 0 || w.taken() != 0 {
				t.Error("something is left")
			}
		})
	}
}

// silentlyStart begins a connection whose end the test does not wait for.
func (w *world) silentlyStart() {
	to := w.serve(func(c *net.TCPConn) { c.Read(make([]byte, 1)) })
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if conn, err := w.guest.Dial(ctx, to); err == nil {
			conn.Abort()
		}
	}()
	w.Cleanup(func() {
		cancel()
		<-ended
	})
}

// dropAcknowledgements keeps the guest's TCP segments from the network, except SYN.
func dropAcknowledgements(frame []byte, toGuest bool) bool {
	const ethernet, ipv4, tcpFlags = 14, 20, 13
	if toGuest || len(frame) < ethernet+ipv4+tcpFlags+1 || frame[ethernet+9] != 6 {
		return true
	}
	return frame[ethernet+ipv4+tcpFlags]&0x02 != 0 // SYN
}

func TestTCPShutdown(t *testing.T) {
	t.Run("while the host is dialled", func(t *testing.T) {
		w := newWorld(t, nil)
		begun, _ := w.silent()
		result := w.startDial(netip.AddrPortFrom(remote, 80))
		<-begun
		w.stop()
		w.within("NAT.Run to return", w.stopped)
		if event := w.await(FlowFailed, 1); event.Reason != ReasonShutdown {
			t.Errorf("event %+v", event)
		}
		w.guest.Close()
		<-result
	})
	t.Run("of open flows", func(t *testing.T) {
		w := newWorld(t, nil)
		_, host := w.pair()
		w.await(FlowOpened, 1)
		w.stop()
		w.within("NAT.Run to return", w.stopped)
		if event := w.await(FlowClosed, 1); event.Reason != ReasonShutdown {
			t.Errorf("event %+v", event)
		}
		if _, err := host.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server's connection ended with %v", err)
		}
	})
	t.Run("then nothing begins", func(t *testing.T) {
		w := newWorld(t, nil)
		w.stop()
		w.within("NAT.Run to return", w.stopped)
		if _, err := w.nat.openFlow(flowSpec{protocol: "tcp", limit: &w.nat.limits.tcpFlows}); !errors.Is(err, errEnded) {
			t.Errorf("error %v", err)
		}
		if w.taken() != 0 {
			t.Error("a limit is taken")
		}
	})
}

// TestCutFlowWhileDialling cuts a flow whose host connection comes nevertheless: the guest is refused, and both ends are
// gone.
func TestCutFlowWhileDialling(t *testing.T) {
	w := newWorld(t, nil)
	reset := make(chan error, 1)
	to := w.serve(func(c *net.TCPConn) {
		_, err := c.Read(make([]byte, 1))
		reset <- err
	})
	dialling, answer := make(chan struct{}), make(chan struct{})
	w.egress.instead = func(_ context.Context, _, to netip.AddrPort) (net.Conn, error) {
		close(dialling)
		<-answer
		return w.egress.loopback(context.Background(), to.Port()) // too late to be cancelled
	}
	result := w.startDial(to)
	<-dialling
	w.nat.CutFlow(w.nat.Flows()[0].ID)
	close(answer)
	if err := <-result; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the guest's dial ended with %v", err)
	}
	if err := <-reset; !isAny(err, resets) {
		t.Errorf("the host's connection ended with %v, want a reset", err)
	}
	if event := w.await(FlowFailed, 1); event.Reason != ReasonCut {
		t.Errorf("event %+v", event)
	}
}

package nat

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
)

func TestTCPFlowLimit(t *testing.T) {
	w := newWorld(t, func(s *settings) { s.Limits.TCPFlows = 5 })
	to := w.serve(func(c *net.TCPConn) { io.Copy(c, c) })
	var conns []net.Conn
	for i := range 5 {
		conns = append(conns, w.dial(to))
		w.await(FlowOpened, i+1)
	}
	if warning := w.await(LimitWarning, 1); warning.Limit.Limit != "tcp flows" || warning.Limit.Used != 4 {
		t.Errorf("warning %+v", warning)
	}
	for range 3 {
		if _, err := w.tryDial(to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the guest's dial above the limit ended with %v", err)
		}
	}
	refused := w.await(FlowFailed, 3)
	var limit *LimitError
	if refused.Reason != ReasonLimit || !errors.As(refused.Err, &limit) || limit.Maximum != 5 {
		t.Errorf("event %+v", refused)
	}
	for _, c := range conns {
		c.Close()
	}
	w.await(FlowClosed, 5)
	conn := w.dial(to)
	conn.Close()
	w.await(FlowClosed, 6)
	if w.taken() != 0 {
		t.Errorf("limits are taken when nothing is open: %+v", w.nat.LimitUse())
	}
}

func TestTCPPendingDialLimit(t *testing.T) {
	w := newWorld(t, func(s *settings) { s.Limits.PendingDials = 3 })
	begun, _ := w.silent()
	to := netip.AddrPortFrom(remote, 80)
	var results []chan error
	for range 3 {
		results = append(results, w.startDial(to))
		<-begun
	}
	for range 3 {
		if err := <-w.startDial(to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the guest's dial above the limit ended with %v", err)
		}
	}
	if event := w.await(FlowFailed, 3); event.Reason != ReasonLimit {
		t.Errorf("event %+v", event)
	}
	w.clock.advance(DefaultDialTimeout)
	for _, r := range results {
		if err := <-r; !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("a dial below the limit ended with %v", err)
		}
	}
	w.await(FlowFailed, 6)
	if w.taken() != 0 {
		t.Errorf("limits are taken when nothing is open: %+v", w.nat.LimitUse())
	}
}

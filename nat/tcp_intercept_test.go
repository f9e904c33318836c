package nat

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
)

// intercept leads port 53 to f.
func intercept(f func(context.Context, net.Conn)) func(*settings) {
	return func(s *settings) {
		s.Intercept = func(network string, to netip.AddrPort) func(context.Context, net.Conn) {
			if network == "tcp" && to.Port() == 53 {
				return f
			}
			return nil
		}
	}
}

func TestInterceptTCP(t *testing.T) {
	local := make(chan net.Addr, 1)
	w := newWorld(t, intercept(func(_ context.Context, c net.Conn) {
		local <- c.LocalAddr()
		io.Copy(c, c)
		c.Close()
	}))
	to := netip.AddrPortFrom(remote, 53)
	conn := w.dial(to)
	exchange(t, conn, conn, 1000)
	if event := w.await(FlowOpened, 1); !event.Flow.Intercepted {
		t.Errorf("event %+v", event)
	}
	if got := <-local; got.String() != to.String() {
		t.Errorf("the function's connection is at %v, want %v", got, to)
	}
	conn.CloseWrite()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the guest's connection ended with %v", err)
	}
	event := w.await(FlowClosed, 1)
	if event.Reason != ReasonDone || event.Flow.Sent != 1000 || event.Flow.Received != 1000 {
		t.Errorf("event %+v", event)
	}
	if w.egress.dials != 0 {
		t.Error("a connection was dialled")
	}
}

// TestInterceptTCPKept has a function that gives the connection to another goroutine and returns, as a listener does.
func TestInterceptTCPKept(t *testing.T) {
	conns := make(chan net.Conn, 1)
	w := newWorld(t, intercept(func(_ context.Context, c net.Conn) { conns <- c }))
	guest := w.dial(netip.AddrPortFrom(remote, 53))
	kept := <-conns
	exchange(t, guest, kept, 100)
	exchange(t, kept, guest, 100)
	if len(w.nat.Flows()) != 1 {
		t.Error("the flow is gone while its connection is open")
	}
	kept.Close()
	w.await(FlowClosed, 1)
	guest.Close()
}

func TestInterceptTCPEnds(t *testing.T) {
	cases := []struct {
		name   string
		end    func(w *world, guest interface{ Abort() })
		reason Reason
	}{
		{"cut", func(w *world, _ interface{ Abort() }) { w.nat.CutFlow(w.nat.Flows()[0].ID) }, ReasonCut},
		{"idle", func(w *world, _ interface{ Abort() }) { w.clock.advance(DefaultTCPIdle) }, ReasonIdle},
		{"shutdown", func(w *world, _ interface{ Abort() }) { w.stop() }, ReasonShutdown},
		{"reset by the guest", func(w *world, guest interface{ Abort() }) { guest.Abort() }, ReasonGuestReset},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			failed, cancelled := make(chan error, 1), make(chan struct{})
			w := newWorld(t, intercept(func(ctx context.Context, c net.Conn) {
				defer c.Close()
				_, err := c.Read(make([]byte, 1))
				failed <- err
				if !errors.Is(err, syscall.ECONNRESET) {
					<-ctx.Done()
				}
				close(cancelled)
			}))
			guest := w.dial(netip.AddrPortFrom(remote, 53))
			w.await(FlowOpened, 1)
			c.end(w, guest)
			if err := <-failed; err == nil || errors.Is(err, io.EOF) {
				t.Errorf("the function's connection ended with %v", err)
			}
			w.within("the function to return", cancelled)
			if event := w.await(FlowClosed, 1); event.Reason != c.reason {
				t.Errorf("event %+v", event)
			}
		})
	}
}

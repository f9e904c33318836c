package nat

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
)

// TestTCPOverIPv6 has a guest with an address by router advertisement.
func TestTCPOverIPv6(t *testing.T) {
	w := newWorld(t, func(s *settings) { s.guest.DisableIPv6 = false })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	source, err := w.guest.Address6(ctx)
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	accepted := make(chan *net.TCPConn, 1)
	to := w.serve(func(c *net.TCPConn) {
		accepted <- c
		<-over
	})
	defer close(over)
	to = netip.AddrPortFrom(netip.MustParseAddr("2001:db8::7"), to.Port())
	guest, host := w.dial(to), <-accepted
	defer guest.Close()
	guest.SetDeadline(time.Now().Add(patience))
	host.SetDeadline(time.Now().Add(patience))
	var both sync.WaitGroup
	both.Go(func() { transfer(t, guest, host, 1<<20, 1) })
	both.Go(func() { transfer(t, host, guest, 1<<20, 2) })
	both.Wait()
	if n, err := guest.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("%d bytes and %v behind the end", n, err)
	}
	event := w.await(FlowClosed, 1)
	if event.Reason != ReasonDone || event.Flow.Source.Addr() != source || event.Flow.Destination != to {
		t.Errorf("event %+v", event)
	}
}

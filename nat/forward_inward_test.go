package nat

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
)

// doors is a Config.Inward that can be closed.
type doors struct {
	closed atomic.Bool
	asked  atomic.Int64
}

func (d *doors) inward(protocol string, port uint16) error {
	d.asked.Add(1)
	if d.closed.Load() || port != 80 && port != 53 {
		return &net.OpError{Op: "forward", Net: protocol, Err: syscall.EACCES}
	}
	return nil
}

// A port that is not to be reached is not listened for.
func TestForwardInwardRefuses(t *testing.T) {
	var d doors
	w := newPacketWorld(t, func(s *settings) { s.Inward, s.Limits.Forwards = d.inward, 1 })
	for _, text := range []string{"0:81", "0:54/udp", "[::1]:0:81"} {
		f, err := ParseForward(text)
		if err != nil {
			t.Fatal(err)
		}
		if at, err := w.nat.Forward(context.Background(), f); !errors.Is(err, syscall.EACCES) || at != nil {
			t.Errorf("%s: %v, %v", text, at, err)
		}
	}
	w.serveGuest(80, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w.forward("0:80") // refusals have taken none of the limit
}

// It is asked again for each connection, and what it refuses the guest does not see.
func TestForwardInwardIsAskedEachTime(t *testing.T) {
	var d doors
	w := newPacketWorld(t, func(s *settings) { s.Inward = d.inward })
	var seen atomic.Int64
	w.serveGuest(80, func(c net.Conn) {
		seen.Add(1)
		_, _ = io.Copy(c, c)
	})
	w.serveGuestUDP(53)
	tcp, udp := w.forward("0:80"), w.forward("0:53/udp")
	open := w.connect(tcp)
	if _, err := open.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(open, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	d.closed.Store(true)
	w.wantNoConnection(tcp)
	if e := w.await(FlowDenied, 1); e.Reason != ReasonPolicy || e.Flow.Direction != In || !errors.Is(e.Err, syscall.EACCES) {
		t.Errorf("event %+v", e)
	}
	program := w.openUDP(udp)
	if _, err := program.Write([]byte("anybody?")); err != nil {
		t.Fatal(err)
	}
	if e := w.await(FlowDenied, 2); e.Reason != ReasonPolicy || e.Flow.Protocol != "udp" {
		t.Errorf("event %+v", e)
	}
	if seen.Load() != 1 {
		t.Errorf("the guest saw %d connections", seen.Load())
	}
	d.closed.Store(false)
	if answer := w.ask(program, []byte("now?")); string(answer) != "now?" {
		t.Errorf("%q", answer)
	}
	w.connect(tcp)
}

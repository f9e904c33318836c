package nat

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"
)

// serveGuestUDP runs a server in the guest that echoes datagrams.
func (w *packetWorld) serveGuestUDP(port uint16) {
	w.Helper()
	socket, err := w.guest.ListenUDP(guestAt(port))
	if err != nil {
		w.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p := make([]byte, 1<<16)
		for {
			n, from, err := socket.ReadFrom(p)
			if err != nil {
				return
			}
			_, _ = socket.WriteTo(p[:n], from)
		}
	}()
	w.Cleanup(func() {
		socket.Close()
		<-done
	})
}

// openUDP makes a socket of a program of the host.
func (w *packetWorld) openUDP(at netip.AddrPort) *net.UDPConn {
	w.Helper()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at))
	if err != nil {
		w.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	w.Cleanup(func() { conn.Close() })
	return conn
}

func TestForwardUDP(t *testing.T) {
	for _, text := range []string{"0:53/udp", "[::1]:0:53/udp"} {
		t.Run(text, func(t *testing.T) {
			w := newPacketWorld(t, nil)
			w.serveGuestUDP(53)
			at := w.forward(text)
			programs := []*net.UDPConn{w.openUDP(at), w.openUDP(at), w.openUDP(at)}
			for _, size := range []int{1, 0, 1472, 1473, 9000, 65507} {
				for i, program := range programs {
					p := append(pattern(size), byte(i))[:size]
					if answer := w.ask(program, p); !bytes.Equal(answer, p) {
						t.Errorf("%d bytes came back as %d others", size, len(answer))
					}
				}
			}
			if flows := w.nat.Flows(); len(flows) != 3 || flows[0].Direction != In || flows[0].Source != addressOf(programs[0].LocalAddr()) {
				t.Errorf("flows: %+v", flows)
			}
			w.clock.advance(DefaultUDPIdle)
			if e := w.await(FlowClosed, 3); e.Reason != ReasonIdle {
				t.Errorf("event %+v", e)
			}
			w.ask(programs[0], []byte("again"))
		})
	}
}

// TestForwardUDPGuestRefuses: the session ends; the next datagram begins another.
func TestForwardUDPGuestRefuses(t *testing.T) {
	w := newPacketWorld(t, nil)
	program := w.openUDP(w.forward("0:53/udp"))
	if _, err := program.Write([]byte("anybody?")); err != nil {
		t.Fatal(err)
	}
	if e := w.await(FlowClosed, 1); e.Reason != ReasonGuestReset {
		t.Errorf("event %+v", e)
	}
	w.serveGuestUDP(53)
	if answer := w.ask(program, []byte("now?")); string(answer) != "now?" {
		t.Errorf("%q", answer)
	}
}

func TestForwardUDPLimit(t *testing.T) {
	w := newPacketWorld(t, func(s *settings) { s.Limits.ForwardFlows = 3 })
	w.serveGuestUDP(53)
	at := w.forward("0:53/udp")
	for range 3 {
		w.ask(w.openUDP(at), []byte("x"))
	}
	fourth := w.openUDP(at)
	w.ask(fourth, []byte("the quietest gives way"))
	if e := w.await(FlowClosed, 1); e.Reason != ReasonLimit || e.Flow.ID != 1 {
		t.Errorf("event %+v", e)
	}
}

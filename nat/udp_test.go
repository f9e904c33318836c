package nat

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
)

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

// TestUDPRefusedByHost: no program listens, so the guest gets ECONNREFUSED; when one does, the same session works.
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

// TestUDPNotDialled: what the guest receives when there can be no socket.
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

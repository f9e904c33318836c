package netstack_test

import (
	"bytes"
	"io"
	"net/netip"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// Flags, shorter.
const (
	fin, syn, rst, psh, ack = netstacktest.FIN, netstacktest.SYN, netstacktest.RST, netstacktest.PSH, netstacktest.ACK
)

// handMade is a connection whose guest's end is the test.
type handMade struct {
	t        *testing.T
	peer     *netstacktest.Peer
	from, to netip.AddrPort
	seq, ack uint32 // next to send, next to receive
	window   uint16
	conn     *netstack.Conn
}

func newPeer(t *testing.T, c netstack.Config) (*netstacktest.Peer, *netstack.Network, <-chan *netstack.Conn) {
	t.Helper()
	c.DisableIPv6 = true
	n := newNetwork(t, c)
	conns := accepting(n)
	peer := netstacktest.StartPeer(t)
	runOn(t, n, peer.Host())
	return peer, n, conns
}

// handshake opens a connection with the given initial sequence number and SYN options.
func handshake(t *testing.T, peer *netstacktest.Peer, conns <-chan *netstack.Conn, port uint16, isn uint32, options []byte) *handMade {
	t.Helper()
	h := &handMade{t: t, peer: peer, from: netip.AddrPortFrom(guestIP, port), to: server, seq: isn, window: 65535}
	h.send(netstacktest.Segment{Flags: syn, Options: options})
	answer := peer.Expect(t, "SYN-ACK", func(s netstacktest.Segment) bool { return s.Flags == syn|ack && s.Destination == h.from })
	if answer.Ack != isn+1 {
		t.Fatalf("SYN-ACK acknowledges %d, want %d", answer.Ack, isn+1)
	}
	h.seq, h.ack = isn+1, answer.Seq+1
	h.send(netstacktest.Segment{Flags: ack})
	select {
	case h.conn = <-conns:
	case <-within(t).Done():
		t.Fatal("the handshake did not end")
	}
	t.Cleanup(h.conn.Abort)
	return h
}

// send fills in what the segment has not.
func (h *handMade) send(s netstacktest.Segment) {
	h.t.Helper()
	s.Source, s.Destination = h.from, h.to
	if s.Seq == 0 {
		s.Seq = h.seq
	}
	if s.Ack == 0 && s.Flags&ack != 0 {
		s.Ack = h.ack
	}
	s.Window = h.window
	h.peer.SendSegment(h.t, s)
}

// data sends a piece of what begins at the connection's sequence number.
func (h *handMade) data(all []byte, from, to int) {
	h.send(netstacktest.Segment{Flags: ack | psh, Seq: h.seq + uint32(from), Payload: all[from:to]})
}

// acknowledged waits until the network has acknowledged up to n bytes from the connection's sequence number.
func (h *handMade) acknowledged(n int) {
	h.t.Helper()
	h.peer.Expect(h.t, "acknowledgement", func(s netstacktest.Segment) bool {
		return s.Flags&ack != 0 && s.Ack == h.seq+uint32(n)
	})
}

// collect receives n bytes of the network's, in whatever order, and acknowledges each segment.
func (h *handMade) collect(n int) []byte {
	h.t.Helper()
	got := make([]byte, 0, n)
	for len(got) < n {
		s := h.peer.Expect(h.t, "data", func(s netstacktest.Segment) bool { return len(s.Payload) > 0 })
		old := int32(h.ack - s.Seq) // bytes that are known: probes of a closed window repeat one
		if old < 0 {
			h.t.Fatalf("data at %d, want %d", s.Seq, h.ack)
		}
		if fresh := s.Payload[min(int(old), len(s.Payload)):]; len(fresh) > 0 {
			got, h.ack = append(got, fresh...), h.ack+uint32(len(fresh))
		}
		h.send(netstacktest.Segment{Flags: ack})
	}
	return got
}

func (h *handMade) wantRead(want []byte) {
	h.t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(h.conn, got); err != nil || !bytes.Equal(got, want) {
		h.t.Errorf("read %d bytes, %v; they differ from what was sent", len(got), err)
	}
}

// TestSynAckOnlyAfterAccept: nothing is sent before, repeated SYNs are one request, and Accept waits for the guest's ACK.
func TestSynAckOnlyAfterAccept(t *testing.T) {
	n := newNetwork(t, netstack.Config{DisableIPv6: true})
	requests := make(chan *netstack.TCPRequest, 8)
	decided := make(chan struct{})
	accepted := make(chan error, 1)
	n.HandleTCP(4, func(r *netstack.TCPRequest) {
		requests <- r
		<-decided
		_, err := r.Accept()
		accepted <- err
	})
	peer := netstacktest.StartPeer(t)
	runOn(t, n, peer.Host())
	s := netstacktest.Segment{Source: netip.AddrPortFrom(guestIP, 4000), Destination: server, Seq: 77, Flags: syn, Window: 1000}
	for range 3 {
		peer.SendSegment(t, s)
	}
	r := <-requests
	if r.Source != s.Source || r.Destination != s.Destination {
		t.Errorf("request from %v to %v, want %v and %v", r.Source, r.Destination, s.Source, s.Destination)
	}
	peer.Quiet(t, 50*time.Millisecond)
	close(decided)
	answer := peer.Expect(t, "SYN-ACK", func(s netstacktest.Segment) bool { return s.Flags == syn|ack })
	select {
	case err := <-accepted:
		t.Errorf("Accept returned %v before the guest's ACK", err)
	case <-time.After(20 * time.Millisecond):
	}
	s.Flags, s.Seq, s.Ack = ack, 78, answer.Seq+1
	peer.SendSegment(t, s)
	if err := <-accepted; err != nil {
		t.Error(err)
	}
	if len(requests) > 0 {
		t.Error("the repeated SYN made a second request")
	}
}

// TestPendingLimit: SYNs beyond the limit are dropped and the guest's repetition succeeds later.
func TestPendingLimit(t *testing.T) {
	n := newNetwork(t, netstack.Config{DisableIPv6: true})
	entered, leave := make(chan struct{}, 16), make(chan struct{})
	n.HandleTCP(2, func(r *netstack.TCPRequest) {
		entered <- struct{}{}
		<-leave
		r.Reset()
	})
	peer := netstacktest.StartPeer(t)
	runOn(t, n, peer.Host())
	open := func(port uint16) {
		peer.SendSegment(t, netstacktest.Segment{Source: netip.AddrPortFrom(guestIP, port), Destination: server, Flags: syn, Window: 1000})
	}
	for port := range uint16(5) {
		open(5000 + port)
	}
	<-entered
	<-entered
	peer.Quiet(t, 30*time.Millisecond)
	if len(entered) > 0 {
		t.Error("more requests than the limit")
	}
	close(leave)
	for range 2 {
		peer.Expect(t, "RST", func(s netstacktest.Segment) bool { return s.Flags&rst != 0 })
	}
	open(5004)
	peer.Expect(t, "RST", func(s netstacktest.Segment) bool { return s.Flags&rst != 0 && s.Destination.Port() == 5004 })
}

// TestDisorder: segments twice, in the wrong order and overlapping.
func TestDisorder(t *testing.T) {
	peer, _, conns := newPeer(t, netstack.Config{})
	h := handshake(t, peer, conns, 4000, 1000, nil)
	all := pattern(5000, 1)
	h.data(all, 1000, 2000) // ahead
	h.data(all, 4000, 5000)
	h.data(all, 4000, 5000) // twice
	h.data(all, 0, 1000)
	h.acknowledged(2000)
	h.data(all, 500, 1500)  // old
	h.data(all, 1900, 3000) // overlaps what is there
	h.data(all, 2700, 4100)
	h.acknowledged(5000)
	h.wantRead(all)
}

// TestSequenceWrap crosses 2^32 in both directions. The network's initial sequence number is a hash of the flow plus a
// number that counts up every 64 ns: a first connection tells how far the clock has to go.
func TestSequenceWrap(t *testing.T) {
	clock := faketime.NewManualClock()
	peer, n, conns := newPeer(t, netstack.Config{Clock: clock})
	first := handshake(t, peer, conns, 4000, 0xfffff000, nil)
	isn := first.ack - 1
	first.conn.Abort()
	peer.Expect(t, "RST", func(s netstacktest.Segment) bool { return s.Flags&rst != 0 })
	eventually(t, "the endpoint is gone", func() bool { return netstack.EndpointCount(n) == 0 })
	clock.Advance(time.Duration(uint32(0xfffff000-isn)) * 64)
	h := handshake(t, peer, conns, 4000, 0xfffff000, nil)
	if got := h.ack - 1; got != 0xfffff000 {
		t.Fatalf("initial sequence number %#x, want 0xfffff000", got)
	}
	up, down := pattern(16<<10, 2), pattern(16<<10, 3)
	for at := 0; at < len(up); at += 1024 {
		h.data(up, at, at+1024)
	}
	h.wantRead(up)
	h.seq += uint32(len(up))
	go h.conn.Write(down)
	if got := h.collect(len(down)); !bytes.Equal(got, down) {
		t.Error("the bytes behind the wrap differ")
	}
	h.send(netstacktest.Segment{Flags: fin | ack})
	if _, err := h.conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("Read: %v, want io.EOF", err)
	}
}

// TestZeroWindow: a window of nothing stops the writer, probes continue, and an opened window lets it continue.
func TestZeroWindow(t *testing.T) {
	clock := faketime.NewManualClock()
	peer, _, conns := newPeer(t, netstack.Config{Clock: clock})
	h := handshake(t, peer, conns, 4000, 1000, nil)
	h.window = 0
	h.shut()
	all := pattern(3000, 4)
	go h.conn.Write(all)
	eventually(t, "the bytes wait", func() bool { return h.conn.Unacked() > 0 })
	peer.Quiet(t, 30*time.Millisecond)
	for range 3 {
		clock.Advance(30 * time.Second)
		peer.Expect(t, "a probe", func(s netstacktest.Segment) bool { return s.Seq == h.ack-1 || s.Seq == h.ack })
		h.send(netstacktest.Segment{Flags: ack})
		time.Sleep(5 * time.Millisecond)
	}
	if got := h.conn.Unacked(); got == 0 || got > len(all) {
		t.Errorf("%d bytes unacknowledged", got)
	}
	h.window = 65535
	h.send(netstacktest.Segment{Flags: ack})
	if got := h.collect(len(all)); !bytes.Equal(got, all) {
		t.Error("the bytes differ")
	}
}

// shut tells the network a window, with a byte whose acknowledgement shows that it has arrived.
func (h *handMade) shut() {
	h.t.Helper()
	h.data([]byte{'x'}, 0, 1)
	h.wantRead([]byte{'x'})
	h.acknowledged(1)
	h.seq++
}

// TestOptions: a SYN may say anything in its options.
func TestOptions(t *testing.T) {
	tests := map[string][]byte{
		"none":                  nil,
		"NOPs":                  bytes.Repeat([]byte{1}, 40),
		"unknown":               {254, 4, 1, 2, 77, 6, 1, 2, 3, 4},
		"length zero":           {2, 0, 5, 0xb4},
		"length beyond the end": {3, 200},
		"MSS of zero":           {2, 4, 0, 0},
		"MSS of one":            {2, 4, 0, 1},
		"MSS twice":             {2, 4, 5, 0xb4, 2, 4, 1, 0},
		"window scale of 255":   {3, 3, 255},
		"timestamp cut off":     {8, 10, 1, 2, 3},
		"SACK permitted, twice": {4, 2, 4, 2},
		"SACK blocks in a SYN":  {5, 10, 0, 0, 0, 1, 0, 0, 0, 9},
		"end first":             {0, 2, 4, 5, 0xb4},
	}
	port := uint16(4000)
	for name, options := range tests {
		port++
		t.Run(name, func(t *testing.T) {
			peer, _, conns := newPeer(t, netstack.Config{})
			syn := netstacktest.Segment{Source: netip.AddrPortFrom(guestIP, port), Destination: server, Seq: 1, Flags: syn, Window: 65535, Options: options}
			peer.SendSegment(t, syn)
			select { // malformed ones may be ignored, but then no harm is done
			case frame := <-frames(peer):
				if s, ok := netstacktest.ParseSegment(frame); !ok || s.Flags != netstacktest.SYN|ack {
					t.Fatalf("answer %v", s)
				}
			case <-time.After(100 * time.Millisecond):
				t.Log("ignored")
			}
			h := handshake(t, peer, conns, 3999, 1000, nil) // others are served
			h.data([]byte("alive"), 0, 5)
			h.wantRead([]byte("alive"))
		})
	}
}

func frames(p *netstacktest.Peer) <-chan []byte {
	c := make(chan []byte, 1)
	go func() {
		if frame := p.Next(patience); frame != nil {
			c <- frame
		}
	}()
	return c
}

// TestReset: a RST ends the connection only with the right sequence number (RFC 5961, section 3.2).
func TestReset(t *testing.T) {
	peer, _, conns := newPeer(t, netstack.Config{})
	h := handshake(t, peer, conns, 4000, 1000, nil)
	h.send(netstacktest.Segment{Flags: rst, Seq: h.seq - 100})
	h.data([]byte("alive"), 0, 5)
	h.wantRead([]byte("alive"))
	h.seq += 5
	h.send(netstacktest.Segment{Flags: rst, Seq: h.seq})
	wantDone(t, h.conn)
}

// TestStray: segments of no connection are answered with RST.
func TestStray(t *testing.T) {
	peer, _, _ := newPeer(t, netstack.Config{})
	for _, flags := range []header.TCPFlags{ack, fin | ack, syn | ack, psh | ack} {
		s := netstacktest.Segment{Source: netip.AddrPortFrom(guestIP, 4000), Destination: server, Seq: 5, Ack: 9, Flags: flags, Window: 100}
		peer.SendSegment(t, s)
		answer := peer.Expect(t, "RST", func(s netstacktest.Segment) bool { return s.Flags&rst != 0 })
		if answer.Seq != 9 {
			t.Errorf("RST of %v at %d, want 9", flags, answer.Seq)
		}
	}
}

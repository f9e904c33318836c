package netstack_test

import (
	"encoding/binary"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/faketime"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestTailLostTwice: the last bytes of a connection come again until the guest has them, also when they were lost while other losses
// were being repaired, and once more when they were repeated. The guest is a receiver as Linux is one, with selective acknowledgements.
func TestTailLostTwice(t *testing.T) {
	clock := faketime.NewManualClock()
	peer, _, conns := newPeer(t, netstack.Config{Clock: clock})
	h := handshake(t, peer, conns, 4000, 1000, []byte{2, 4, 5, 0xb4, 4, 2}) // a maximum segment size of 1460, SACK permitted
	const (
		segment = 1460 - 36 // gVisor keeps room for four SACK blocks
		window  = 11        // segments that may be under way after the first one is acknowledged: 10, and one more
		tail    = 284
	)
	write := func(n int) {
		t.Helper()
		if _, err := h.conn.Write(pattern(n, 6)); err != nil {
			t.Fatal(err)
		}
	}
	begin := h.ack
	comes := func(at, size int) { // what begins with segment number at
		t.Helper()
		peer.Expect(t, "data", func(s netstacktest.Segment) bool { return s.Seq == begin+uint32(at*segment) && len(s.Payload) == size })
	}
	acknowledge := func(until int, blocks ...[2]int) { // segments before until, and those of blocks
		t.Helper()
		clock.Advance(time.Millisecond)
		options := []byte{1, 1, 5, byte(2 + 8*len(blocks))}
		for _, b := range blocks {
			options = binary.BigEndian.AppendUint32(options, begin+uint32(b[0]*segment))
			options = binary.BigEndian.AppendUint32(options, begin+uint32(b[1]*segment))
		}
		if len(blocks) == 0 {
			options = nil
		}
		h.send(netstacktest.Segment{Flags: ack, Ack: begin + uint32(until*segment), Options: options})
	}
	write(segment)
	comes(0, segment)
	acknowledge(1) // gVisor repairs no loss fast before that
	begin += segment
	eventually(t, "the first segment is acknowledged", func() bool { return h.conn.Unacked() == 0 })
	write(window*segment + tail)
	for i := range window {
		comes(i, segment)
	}
	// Lost: 0, 2 and, sent as the repair begins, the tail.
	acknowledge(0, [2]int{1, 2})
	for i := 4; i <= window; i++ {
		acknowledge(0, [2]int{3, i}, [2]int{1, 2})
	}
	comes(0, segment)
	comes(window, tail)
	acknowledge(2, [2]int{3, window})
	comes(2, segment)
	acknowledge(window)
	eventually(t, "all but the tail is acknowledged", func() bool { return h.conn.Unacked() == tail })
	for range 5 {
		clock.Advance(3 * time.Second) // the longest that the network waits
		comes(window, tail)
	}
	h.send(netstacktest.Segment{Flags: ack, Ack: begin + window*segment + tail})
	eventually(t, "everything is acknowledged", func() bool { return h.conn.Unacked() == 0 })
}

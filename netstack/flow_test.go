package netstack_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestWatermarks: a writer whose guest does not read stops at the high mark and continues at the low one.
func TestWatermarks(t *testing.T) {
	tests := []struct{ high, low int }{{16 << 10, 4 << 10}, {16 << 10, 0}, {64 << 10, 64<<10 - 1}, {5000, 2500}, {1, 0}}
	for _, test := range tests {
		here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
		here.SetWatermarks(test.high, test.low)
		fill(t, here)
		if got := here.Unacked(); got > test.high || got <= test.low {
			t.Errorf("%+v: a stalled writer has %d bytes unacknowledged", test, got)
		}
		released := make(chan error, 1)
		here.SetWriteDeadline(time.Time{})
		go func() {
			_, err := here.Write([]byte("on"))
			released <- err
		}()
		if !blocked(released) {
			t.Fatalf("%+v: Write went on above the low mark", test)
		}
		go io.Copy(io.Discard, guest)
		if err := <-released; err != nil {
			t.Errorf("%+v: %v", test, err)
		}
		eventually(t, "all is acknowledged", func() bool { return here.Unacked() == 0 })
		here.Abort()
	}
}

// fill writes until the writer stalls: nothing more is taken for a second, though the guest has something to acknowledge.
func fill(t *testing.T, c *netstack.Conn) (written int) {
	t.Helper()
	for empty := 0; empty < 10; {
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, err := c.Write(make([]byte, 1<<20))
		written += n
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if empty++; n > 0 || c.Unacked() == 0 {
			empty = 0
		}
	}
	return written
}

// blocked says whether nothing comes for some time.
func blocked(c <-chan error) bool {
	select {
	case err := <-c:
		_ = err
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

// TestSlowReader: what a guest does not read is bounded on our side, and arrives complete later.
func TestSlowReader(t *testing.T) {
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
	here.SetWatermarks(16<<10, 4<<10)
	want := pattern(4<<20, 6)
	written := make(chan error, 1)
	go func() {
		_, err := here.Write(want)
		written <- err
		here.CloseWrite()
	}()
	if !blocked(written) {
		t.Fatal("4 MiB were taken while the guest reads nothing")
	}
	eventually(t, "the writer stalls", func() bool { return here.Unacked() > 4<<10 })
	if got := here.Unacked(); got > 16<<10 {
		t.Errorf("%d bytes are held, want at most the high mark", got)
	}
	var got bytes.Buffer
	for buffer := make([]byte, 64<<10); ; {
		n, err := guest.Read(buffer)
		got.Write(buffer[:n])
		if err != nil {
			break
		}
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes arrived, want %d and the same", got.Len(), len(want))
	}
}

// TestUnreadGuest: what is not read here closes the guest's window.
func TestUnreadGuest(t *testing.T) {
	_, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
	guest.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	n, err := guest.Write(make([]byte, 64<<20))
	if err == nil || n > 16<<20 {
		t.Errorf("the guest could write %d bytes, %v", n, err)
	}
}

// TestIdleConnectionsAreSmall measures what a connection costs here when nothing moves, after some bytes have.
func TestIdleConnectionsAreSmall(t *testing.T) {
	const conns, limit = 400, 40 << 10
	n, g := pair(t, netstack.Config{DisableIPv6: true}, netstacktest.Config{DisableIPv6: true})
	accepted := accepting(n)
	connect(t, n, g)
	before := heap()
	var keep []any
	for range conns {
		guest := dial(t, g, server)
		here := <-accepted
		t.Cleanup(here.Abort)
		mustWrite(t, guest, "request")
		mustDo(t, readFull(here, 7))
		mustWrite(t, here, "answer")
		mustDo(t, readFull(guest, 6))
		keep = append(keep, here, guest)
	}
	each := (heap() - before) / conns
	t.Logf("%d bytes for both ends of an idle connection", each)
	if each/2 > limit {
		t.Errorf("an idle connection costs about %d bytes, want at most %d", each/2, limit)
	}
	runtime.KeepAlive(keep)
}

func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// settle waits until nothing is left of connections but the guest's TIME_WAIT.
func settle(t *testing.T, n *netstack.Network) {
	t.Helper()
	eventually(t, "all connections have ended", func() bool {
		return netstack.FlowCount(n) == 0 && netstack.EndpointCount(n) == 0
	})
}

// TestManyShortConnections: memory and tables are flat afterwards, and the guest can use its ports again at once.
func TestManyShortConnections(t *testing.T) {
	count := 10_000
	if testing.Short() || raceEnabled {
		count = 1000
	}
	n, g := pair(t, netstack.Config{DisableIPv6: true}, netstacktest.Config{DisableIPv6: true})
	n.HandleTCP(64, func(r *netstack.TCPRequest) {
		if c, err := r.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	})
	connect(t, n, g)
	wait := tcpip.TCPTimeWaitTimeoutOption(0) // or its own memory would be measured
	if err := g.Stack.SetTransportProtocolOption(tcp.ProtocolNumber, &wait); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background() // one for each would be what is measured
	refused := 0
	short := func() {
		c, err := g.Dial(ctx, server)
		for ; errors.Is(err, syscall.ECONNREFUSED) && refused < 1+count/1000; refused++ {
			// Without TIME_WAIT this guest uses, now and then, a port again within the microseconds in which the
			// gateway forgets the last connection of that port, and gVisor refuses.
			c, err = g.Dial(ctx, server)
		}
		mustDo(t, err)
		mustWrite(t, c, "x")
		mustDo(t, c.CloseWrite())
		wantBytes(t, c, "x")
		mustDo(t, c.Close())
	}
	for range 100 {
		short()
	}
	settle(t, n)
	before := heap()
	for range count {
		short()
	}
	settle(t, n)
	grown := heap() - before
	t.Logf("%d connections left %d bytes", count, grown)
	if grown > 1<<20 {
		t.Errorf("%d connections left %d bytes", count, grown)
	}
}

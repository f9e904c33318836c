package nat

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"agentvm/netstack/netstacktest"
)

// noise is n reproducible bytes, and their SHA-256 after all were read.
type noise struct {
	io.Reader
	sum interface{ Sum([]byte) []byte }
}

func newNoise(n int64, seed byte) *noise {
	sum := sha256.New()
	source := rand.NewChaCha8([32]byte{seed})
	return &noise{Reader: io.TeeReader(io.LimitReader(source, n), sum), sum: sum}
}

// transfer sends noise over one connection, ended by FIN, and compares what arrives.
func transfer(t testing.TB, to, from tcpEnd, n int64, seed byte) {
	t.Helper()
	data, arrived := newNoise(n, seed), sha256.New()
	sent := make(chan error, 1)
	go func() {
		_, err := io.Copy(onlyWriter{to}, data)
		to.CloseWrite()
		sent <- err
	}()
	got, err := io.Copy(arrived, onlyReader{from})
	if sendErr := <-sent; err != nil || sendErr != nil || got != n {
		t.Errorf("%d of %d bytes arrived; receiving ended with %v, sending with %v", got, n, err, sendErr)
		return
	}
	if !bytes.Equal(arrived.Sum(nil), data.sum.Sum(nil)) {
		t.Errorf("the %d bytes that arrived are others than those that were sent", n)
	}
}

// onlyReader and onlyWriter keep io.Copy from using splice(2) and the like.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

func TestTCPTransfers(t *testing.T) {
	sizes := []int64{0, 1, 1000, smallBuffer, smallBuffer + 1, DefaultHighMark, 1 << 20, 8 << 20}
	marks := []struct{ high, low int }{{0, 0}, {1 << 20, 256 << 10}, {2, 1}, {1500, 100}}
	for _, m := range marks {
		for _, n := range sizes {
			if m.high > 0 && n > int64(m.high)*500 {
				continue // that many round trips take too long
			}
			t.Run(fmt.Sprintf("%d bytes, marks %d and %d", n, m.high, m.low), func(t *testing.T) {
				w := newWorld(t, func(s *settings) { s.HighMark, s.LowMark = m.high, m.low })
				guest, host := w.pair()
				var both sync.WaitGroup
				both.Go(func() { transfer(t, guest, host, n, 1) })
				both.Go(func() { transfer(t, host, guest, n, 2) })
				both.Wait()
				event := w.await(FlowClosed, 1)
				if event.Reason != ReasonDone || event.Flow.Sent != uint64(n) || event.Flow.Received != uint64(n) {
					t.Errorf("event %+v", event)
				}
			})
		}
	}
}

func TestTCPBadLink(t *testing.T) {
	cases := map[string]netstacktest.Impairment{
		"loss":       {Loss: 0.02},
		"duplicates": {Duplicate: 0.2},
		"reordered":  {Reorder: 0.1},
		"all":        {Loss: 0.01, Duplicate: 0.05, Reorder: 0.05, Delay: time.Millisecond},
	}
	for name, impair := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(s *settings) {
				impair.Seed = 4
				s.guest.Impair = impair
				s.HighMark, s.LowMark = 256<<10, 64<<10
			})
			guest, host := w.pair()
			var both sync.WaitGroup
			both.Go(func() { transfer(t, guest, host, 1<<20, 1) })
			both.Go(func() { transfer(t, host, guest, 1<<20, 2) })
			both.Wait()
			if event := w.await(FlowClosed, 1); event.Reason != ReasonDone {
				t.Errorf("event %+v", event)
			}
		})
	}
}

// stalled waits until a flow carries nothing any more.
func (w *world) stalled(carried func(Flow) uint64) uint64 {
	w.Helper()
	last, since := uint64(0), time.Now()
	w.eventually("the flow stalls", func() bool {
		flows := w.nat.Flows()
		if len(flows) == 0 {
			w.Fatal("the flow has ended")
		}
		if now := carried(flows[0]); now != last {
			last, since = now, time.Now()
		}
		return last > 0 && time.Since(since) > 300*time.Millisecond
	})
	return last
}

// TestTCPSlowReader has a server of 64 MB and a guest that does not read. What the host holds is bounded by the marks;
// when the guest reads at last, it gets everything.
func TestTCPSlowReader(t *testing.T) {
	const size, guestBuffer = 64 << 20, 32 << 10
	for _, high := range []int{DefaultHighMark, 1 << 20} {
		t.Run(fmt.Sprintf("high mark %d", high), func(t *testing.T) {
			w := newWorld(t, func(s *settings) { s.HighMark, s.LowMark = high, high/4 })
			guest, host := w.pair()
			guest.Endpoint.SocketOptions().SetReceiveBufferSize(guestBuffer, true)
			w.await(FlowOpened, 1)
			before := heapInUse()
			data, sent := newNoise(size, 1), make(chan error, 1)
			go func() {
				_, err := io.Copy(onlyWriter{host}, data)
				host.CloseWrite()
				sent <- err
			}()
			taken := w.stalled(func(f Flow) uint64 { return f.Received })
			// What the guest has acknowledged is in its buffer, twice as large as asked for; the rest is below the mark.
			if limit := uint64(2*guestBuffer + high); taken > limit {
				t.Errorf("%d bytes were taken for a guest that does not read; the marks allow %d", taken, limit)
			}
			// One piece from the host waits besides, in a buffer of at most the high mark; the guest's own stack is in
			// this process too. gVisor's packets are twice their payload at worst.
			if grown, limit := heapInUse()-before, 2*(2*guestBuffer+high)+min(largeBuffer, high)+256<<10; grown > limit {
				t.Errorf("the heap grew by %d bytes, more than %d", grown, limit)
			}
			arrived := sha256.New()
			guest.SetDeadline(time.Now().Add(3 * patience))
			host.SetDeadline(time.Now().Add(3 * patience))
			if n, err := io.Copy(arrived, guest); n != size || err != nil {
				t.Errorf("%d bytes arrived: %v", n, err)
			}
			if err := <-sent; err != nil || !bytes.Equal(arrived.Sum(nil), data.sum.Sum(nil)) {
				t.Errorf("sending ended with %v, or other bytes arrived than were sent", err)
			}
		})
	}
}

// TestTCPServerNeverReads has a guest that sends to a server that takes nothing: the guest's window closes.
func TestTCPServerNeverReads(t *testing.T) {
	w := newWorld(t, nil)
	guest, _ := w.pair()
	w.await(FlowOpened, 1)
	before := heapInUse()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		io.Copy(onlyWriter{guest}, zeros{})
	}()
	w.stalled(func(f Flow) uint64 { return f.Sent })
	// The guest's send buffer, the stack's receive buffer and its packets; the rest is in the kernel.
	if grown := heapInUse() - before; grown > 24<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	w.nat.CutFlow(w.nat.Flows()[0].ID)
	w.within("the guest's write to end", sent)
}

// TestTCPDirectionsAreSeparate has a server that writes without reading: what the guest sends waits, and that keeps
// nothing from coming to it.
func TestTCPDirectionsAreSeparate(t *testing.T) {
	w := newWorld(t, nil)
	guest, host := w.pair()
	w.await(FlowOpened, 1)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		io.Copy(onlyWriter{guest}, zeros{})
	}()
	w.stalled(func(f Flow) uint64 { return f.Sent })
	go host.Write(make([]byte, 4<<20))
	if _, err := io.CopyN(io.Discard, guest, 4<<20); err != nil {
		t.Error(err)
	}
	guest.Abort()
	w.within("the guest's write to end", sent)
}

// TestTCPZeroWindow has a host that ends its stream, or resets, while the guest's window is closed.
func TestTCPZeroWindow(t *testing.T) {
	const size = 1 << 20
	start := func(t *testing.T) (*world, *netstacktest.Conn, *net.TCPConn) {
		w := newWorld(t, nil)
		guest, host := w.pair()
		guest.Endpoint.SocketOptions().SetReceiveBufferSize(8<<10, true)
		w.await(FlowOpened, 1)
		go func() {
			host.Write(make([]byte, size))
			host.Close()
		}()
		w.stalled(func(f Flow) uint64 { return f.Received })
		return w, guest, host
	}
	t.Run("FIN", func(t *testing.T) {
		_, guest, _ := start(t)
		if n, err := io.Copy(io.Discard, guest); n != size || err != nil {
			t.Errorf("%d of %d bytes arrived: %v", n, size, err)
		}
	})
	t.Run("the guest resets", func(t *testing.T) {
		w, guest, _ := start(t)
		guest.Abort()
		if event := w.await(FlowClosed, 1); event.Reason != ReasonGuestReset {
			t.Errorf("event %+v", event)
		}
	})
	t.Run("the policy changes", func(t *testing.T) {
		w, _, _ := start(t)
		w.nat.Recheck()
		if len(w.nat.Flows()) != 1 {
			t.Error("the flow has ended before the policy has changed")
		}
		w.egress.deny()
		w.nat.Recheck()
		if event := w.await(FlowClosed, 1); event.Reason != ReasonPolicy {
			t.Errorf("event %+v", event)
		}
	})
	t.Run("idle", func(t *testing.T) {
		w, _, _ := start(t)
		w.clock.advance(DefaultTCPIdle)
		if event := w.await(FlowClosed, 1); event.Reason != ReasonIdle {
			t.Errorf("event %+v", event)
		}
	})
}

// short is one connection with a request and its answer; who says who closes first.
func (w *world) short(guest *netstacktest.Conn, hostFirst bool) error {
	defer guest.Close()
	guest.SetDeadline(time.Now().Add(patience))
	first := byte('g')
	if hostFirst {
		first = 'h'
	}
	if _, err := guest.Write([]byte{first}); err != nil {
		return err
	}
	if _, err := io.ReadFull(guest, make([]byte, 100)); err != nil {
		return err
	}
	if hostFirst {
		if n, err := guest.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			return fmt.Errorf("%d bytes and %v behind the answer", n, err)
		}
	}
	return nil
}

// answer is short's server.
func answer(c *net.TCPConn) {
	c.SetDeadline(time.Now().Add(patience))
	who := make([]byte, 1)
	if _, err := io.ReadFull(c, who); err != nil {
		return
	}
	c.Write(make([]byte, 100))
	if who[0] == 'g' {
		c.Read(who)
	}
}

// rush does n short connections, so many at once.
func (w *world) rush(n, parallel int) {
	w.Helper()
	to := w.serve(answer)
	var all sync.WaitGroup
	turns := make(chan int)
	for range parallel {
		all.Go(func() {
			for i := range turns {
				guest, err := w.tryDial(to)
				if err == nil {
					err = w.short(guest, i%2 == 0)
				}
				if err != nil {
					w.Errorf("connection %d: %v", i, err)
				}
			}
		})
	}
	for i := range n {
		turns <- i
	}
	close(turns)
	all.Wait()
}

func TestTCPShortConnections(t *testing.T) {
	w := newWorld(t, nil)
	w.rush(1000, 1)
	w.await(FlowClosed, 1000)
	w.nothingLeft()
}

// nothingLeft checks that all flows have ended in order and nothing is held for them.
func (w *world) nothingLeft() {
	w.Helper()
	for _, e := range w.events.list(FlowClosed) {
		if e.Reason != ReasonDone {
			w.Errorf("event %+v", e)
		}
	}
	if len(w.nat.Flows()) != 0 || w.taken() != 0 || w.egress.open() != 0 {
		w.Errorf("%d flows, limits %+v, %d connections are left", len(w.nat.Flows()), w.nat.LimitUse(), w.egress.open())
	}
}

func TestTCPParallel(t *testing.T) {
	const flows = 500
	// With small frames this is a test of how two stacks in one process recover from each other's load.
	w := newWorld(t, func(s *settings) { s.guest.MTU = 65520 })
	to := w.serve(func(c *net.TCPConn) { io.Copy(c, c) })
	var all sync.WaitGroup
	open := make(chan struct{})
	for i := range flows {
		all.Go(func() {
			guest, err := w.tryDial(to)
			if err != nil {
				t.Error(err)
				return
			}
			defer guest.Close()
			<-open
			guest.SetDeadline(time.Now().Add(3 * patience))
			transfer(t, guest, guest, 20_000, byte(i))
		})
	}
	w.await(FlowOpened, flows)
	if n := len(w.nat.Flows()); n != flows {
		t.Errorf("%d flows are open, want %d", n, flows)
	}
	close(open)
	all.Wait()
	w.await(FlowClosed, flows)
	w.nothingLeft()
}

// TestTCPTenThousand checks that connections that have ended leave nothing behind.
func TestTCPTenThousand(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds")
	}
	w := newWorld(t, nil)
	// The guest is in this process too: its old connections must not be taken for ours. It still must not use a port
	// again while our side has not heard of its end.
	short := tcpip.TCPTimeWaitTimeoutOption(time.Second)
	if err := w.guest.Stack.SetTransportProtocolOption(tcp.ProtocolNumber, &short); err != nil {
		t.Fatal(err)
	}
	const round = 2000
	thousands := func(n int) {
		for range n {
			w.rush(round, 20)
			w.await(FlowClosed, round)
			w.nothingLeft()
			w.events.forget()
		}
	}
	thousands(1)
	time.Sleep(2 * time.Second) // for TIME_WAIT; too short would only make the comparison easier by what is left of it
	goroutines, descriptors, heap := runtime.NumGoroutine(), openDescriptors(), heapInUse()
	thousands(4)
	if n := openDescriptors(); n > descriptors+10 {
		t.Errorf("%d descriptors, %d before", n, descriptors)
	}
	w.eventually("no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines+30 })
	// 256 bytes of each connection would be 2 MB.
	w.eventually("the heap is what it was", func() bool {
		time.Sleep(100 * time.Millisecond)
		return heapInUse() < heap+2<<20
	})
}

// openDescriptors counts this process's, where it can.
func openDescriptors() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}

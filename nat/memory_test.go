package nat

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/host/budget"
	"agentvm/netstack"
)

// deafHost is a connection to a server that never reads, and sends without end, or nothing.
type deafHost struct {
	sends  bool
	once   sync.Once
	closed chan struct{}
}

func (h *deafHost) Read(p []byte) (int, error) {
	if h.sends {
		select {
		case <-h.closed:
			return 0, net.ErrClosed
		default:
			return len(p), nil
		}
	}
	<-h.closed
	return 0, net.ErrClosed
}

func (h *deafHost) Write([]byte) (int, error) { <-h.closed; return 0, net.ErrClosed }

// WriteBuffers is what egress' connections have.
func (h *deafHost) WriteBuffers(*net.Buffers) (int64, error) { <-h.closed; return 0, net.ErrClosed }

func (h *deafHost) Close() error { h.once.Do(func() { close(h.closed) }); return nil }

func (h *deafHost) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (h *deafHost) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (h *deafHost) SetDeadline(time.Time) error      { return nil }
func (h *deafHost) SetReadDeadline(time.Time) error  { return nil }
func (h *deafHost) SetWriteDeadline(time.Time) error { return nil }

// TestMemoryOfStalledFlows has a guest that opens as many connections as it can, sends into all of them what is never read, and
// reads nothing of what half of the servers send. What it makes the host hold is what the budget says; beyond it a connection
// is refused, and afterwards everything is given back.
func TestMemoryOfStalledFlows(t *testing.T) {
	const limit, tries = 64 << 20, 600
	memory := budget.New(limit, nil)
	w := newWorld(t, func(s *settings) { s.Memory, s.HighMark, s.LowMark = memory, 256<<10, 64<<10 })
	var dials atomic.Int32
	w.egress.instead = func(context.Context, netip.AddrPort, netip.AddrPort) (net.Conn, error) {

		return &deafHost{sends: dials.Add(1)%2 == 0, closed: make(chan struct{})}, nil
	}
	before := heapInUse()
	var sent atomic.Int64
	var sending sync.WaitGroup
	var conns []io.Closer
	refused := 0
	for range tries {
		conn, err := w.tryDial(netip.AddrPortFrom(remote, 80))
		if errors.Is(err, syscall.ECONNREFUSED) {
			refused++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		conn.Endpoint.SocketOptions().SetSendBufferSize(8<<10, true) // the guest is in this process, too
		conn.Endpoint.SocketOptions().SetReceiveBufferSize(8<<10, true)
		sending.Go(func() {
			for piece := make([]byte, 4<<10); ; {
				n, err := conn.Write(piece)
				sent.Add(int64(n))
				if err != nil {
					return
				}
			}
		})
	}
	// Everything that can be sent is, when nothing has moved for a while. Less than that is not what this test is about.
	w.eventually("the guest has sent much", func() bool { return sent.Load() >= int64(len(conns))*24<<10 })
	for quiet, last := 0, int64(0); quiet < 20; time.Sleep(20 * time.Millisecond) {
		if now := sent.Load(); now == last {
			quiet++
		} else {
			quiet, last = 0, now
		}
	}
	use := memory.Use()
	if use.Used > limit || use.Used < limit*3/4 {
		t.Errorf("%d connections count as %d bytes", len(conns), use.Used)
	}
	if refused == 0 || len(conns) < tries/3 || use.Refused != uint64(refused) {
		t.Errorf("%d connections were accepted, %d refused, of which the budget knows %d", len(conns), refused, use.Refused)
	}
	failed, reason := w.await(FlowFailed, 1), (*LimitError)(nil)
	if failed.Reason != ReasonLimit || !errors.As(failed.Err, &reason) || reason.Limit != MemoryLimit || reason.Maximum != limit {
		t.Errorf("event %+v", failed)
	}
	grown, ofTheGuest := heapInUse()-before, len(conns)*48<<10
	t.Logf("%d connections, %d MiB sent, %d MiB of heap, %d MiB of budget", len(conns), sent.Load()>>20, grown>>20, use.Used>>20)
	if grown > limit+ofTheGuest {
		t.Errorf("%d connections make the host hold %d MiB", len(conns), grown>>20)
	}
	for _, f := range w.nat.Flows() {
		w.nat.CutFlow(f.ID)
	}
	w.eventually("everything is given back", func() bool { return memory.Use().Used == 0 })
	sending.Wait()
	for _, c := range conns {
		c.Close()
	}
}

// TestMemoryGrowsWithUse: a connection whose ends keep up gets more memory, in a VM that has many others, and gives it back.
func TestMemoryGrowsWithUse(t *testing.T) {
	memory := budget.New(64<<20, nil)
	memory.Charge(12 << 20) // of others: no connection begins with much any more
	w := newWorld(t, func(s *settings) { s.Memory, s.HighMark, s.LowMark = memory, 256<<10, 64<<10 })
	others := memory.Use().Used
	guest, host := w.pair()
	guest.SetDeadline(time.Now().Add(3 * patience))
	host.SetDeadline(time.Now().Add(3 * patience))
	w.await(FlowOpened, 1)
	if begins := memory.Use().Used - others; begins != netstack.FlowMemory {
		t.Errorf("it begins with %d bytes", begins)
	}
	const size = 16 << 20
	for _, way := range [][2]net.Conn{{guest, host}, {host, guest}} {
		done := make(chan error, 1)
		go func() { _, err := io.CopyN(onlyWriter{way[0]}, zeros{}, size); done <- err }()
		if _, err := io.CopyN(io.Discard, way[1], size); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if grown := memory.Use().Used - others; grown < netstack.FlowMemory+1<<20 {
		t.Errorf("after %d MiB each way it has %d bytes", size>>20, grown)
	}
	guest.Close()
	host.Close()
	w.await(FlowClosed, 1)
	w.eventually("everything is given back", func() bool { return memory.Use().Used == others })
}

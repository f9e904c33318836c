package nat

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"testing"
	"time"
)

// benchWorld is as vm sets it up where throughput counts: large frames, offload, and marks to match.
func benchWorld(b *testing.B) *world {
	return newWorld(b, func(s *settings) {
		s.Clock = nil
		s.guest.MTU, s.guest.Header = 65520, true
		s.HighMark, s.LowMark = 1<<20, 256<<10
	})
}

// BenchmarkTCPConnect is the time from the guest's connect to its end, to a server on loopback; the median is reported too.
func BenchmarkTCPConnect(b *testing.B) {
	w := benchWorld(b)
	to := w.serve(func(c *net.TCPConn) { c.Read(make([]byte, 1)) })
	var times []time.Duration
	for b.Loop() {
		begin := time.Now()
		conn := w.dial(to)
		times = append(times, time.Since(begin))
		conn.Close()
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "µs-median")
}

const benchChunk = 64 << 10

func BenchmarkTCPDownload(b *testing.B) {
	w := benchWorld(b)
	b.SetBytes(benchChunk)
	to := w.serve(func(c *net.TCPConn) { io.Copy(onlyWriter{c}, zeros{}) })
	guest := w.dial(to)
	defer guest.Abort()
	data := make([]byte, benchChunk)
	for b.Loop() {
		if _, err := io.ReadFull(guest, data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTCPUpload(b *testing.B) {
	w := benchWorld(b)
	b.SetBytes(benchChunk)
	to := w.serve(func(c *net.TCPConn) { io.Copy(io.Discard, onlyReader{c}) })
	guest := w.dial(to)
	defer guest.Abort()
	data := make([]byte, benchChunk)
	for b.Loop() {
		if _, err := guest.Write(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTCPLoopback is the kernel's loopback alone, to compare with.
func BenchmarkTCPLoopback(b *testing.B) {
	w := benchWorld(b)
	b.SetBytes(benchChunk)
	to := w.serve(func(c *net.TCPConn) { io.Copy(onlyWriter{c}, zeros{}) })
	conn, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", to.Port()))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	data := make([]byte, benchChunk)
	for b.Loop() {
		if _, err := io.ReadFull(conn, data); err != nil {
			b.Fatal(err)
		}
	}
}

// memory is heap and stacks in use. A collection halves the stacks that are too large, so it takes some.
func memory() int {
	for range 6 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// idleFlows opens 500 flows that have carried something both ways, and returns what each costs: all of them, and the
// guest's and the server's ends, which are in this process.
func idleFlows(t testing.TB) int {
	const flows, size = 500, 20_000
	w := newWorld(t, nil)
	answer := make([]byte, size)
	to := w.serve(func(c *net.TCPConn) {
		io.Copy(io.Discard, io.LimitReader(onlyReader{c}, size))
		c.Write(answer)
		c.Read(make([]byte, 1))
	})
	before := memory()
	for i := range flows {
		guest := w.dial(to)
		t.Cleanup(func() { guest.Close() })
		if _, err := guest.Write(answer); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, guest, size); err != nil {
			t.Fatal(err)
		}
		w.await(FlowOpened, i+1)
	}
	time.Sleep(5 * linger) // large buffers are let go
	return (memory() - before) / flows
}

// TestTCPIdleMemory holds 64 KiB for a flow that waits, with both peers of it.
func TestTCPIdleMemory(t *testing.T) {
	each := idleFlows(t)
	t.Logf("%d bytes for each of 500 idle flows, guest's and server's ends included", each)
	if each > 64<<10 {
		t.Errorf("an idle flow costs %d bytes", each)
	}
}

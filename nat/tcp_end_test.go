package nat

import (
	"errors"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// bothReset wants RST on both sides and an event with the reason.
func (w *world) bothReset(guest, host net.Conn, reason Reason) FlowEvent {
	w.Helper()
	for name, c := range map[string]net.Conn{"guest": guest, "host": host} {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			w.Errorf("the %s's connection ended with %v, want a reset", name, err)
		}
	}
	event := w.await(FlowClosed, 1)
	if event.Reason != reason {
		w.Errorf("event %+v, want reason %q", event, reason)
	}
	return event
}

func exchange(t testing.TB, from, to net.Conn, n int) {
	t.Helper()
	if _, err := from.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(to, make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

// counted waits until a flow has carried so much, so that the clock may move.
func (w *world) counted(sent, received uint64) {
	w.Helper()
	w.eventually("the bytes are counted", func() bool {
		f := w.nat.Flows()
		return len(f) == 1 && f[0].Sent == sent && f[0].Received == received
	})
}

func TestTCPIdle(t *testing.T) {
	w := newWorld(t, nil)
	guest, host := w.pair()
	w.await(FlowOpened, 1)
	w.clock.advance(200 * time.Second)
	exchange(t, guest, host, 10)
	w.counted(10, 0)
	w.clock.advance(200 * time.Second)
	exchange(t, host, guest, 20)
	w.counted(10, 20)
	w.clock.advance(DefaultTCPIdle - time.Second)
	if flows := w.nat.Flows(); len(flows) != 1 || flows[0].State != Established {
		t.Fatalf("flows %+v a second before the end", flows)
	}
	w.clock.advance(time.Second)
	event := w.bothReset(guest, host, ReasonIdle)
	if event.Duration != 400*time.Second+DefaultTCPIdle || event.Flow.Sent != 10 || event.Flow.Received != 20 {
		t.Errorf("event %+v", event)
	}
}

// TestTCPIdleHalfClosed has flows that end although one side never closes.
func TestTCPIdleHalfClosed(t *testing.T) {
	for _, who := range []string{"guest", "host"} {
		t.Run(who, func(t *testing.T) {
			w := newWorld(t, nil)
			guest, host := w.pair()
			w.await(FlowOpened, 1)
			if who == "guest" {
				guest.CloseWrite()
				w.isState(FinWait)
			} else {
				host.CloseWrite()
				w.isState(CloseWait)
			}
			w.clock.advance(DefaultTCPIdle)
			if event := w.await(FlowClosed, 1); event.Reason != ReasonIdle {
				t.Errorf("event %+v", event)
			}
		})
	}
}

// TestTCPIdleForADay opens flows and lets 24 hours pass: nothing is left of them.
func TestTCPIdleForADay(t *testing.T) {
	const flows = 100
	w := newWorld(t, nil)
	to := w.serve(func(c *net.TCPConn) { io.Copy(io.Discard, c) })
	round := func(n int) {
		for range flows {
			w.Cleanup(func(c net.Conn) func() { return func() { c.Close() } }(w.dial(to)))
		}
		w.await(FlowOpened, n)
		for range 24 {
			w.clock.advance(time.Hour)
		}
		w.await(FlowClosed, n)
	}
	round(flows)
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	for i := 2; i <= 4; i++ {
		round(i * flows)
	}
	for _, e := range w.events.list(FlowClosed) {
		if e.Reason != ReasonIdle {
			t.Errorf("event %+v", e)
		}
	}
	if n := w.clock.pending(); n != 0 {
		t.Errorf("%d timers are left", n)
	}
	if len(w.nat.Flows()) != 0 || w.taken() != 0 {
		t.Errorf("flows are left: %+v", w.nat.Flows())
	}
	w.eventually("no goroutine is left", func() bool { return runtime.NumGoroutine() <= goroutines+10 })
	// The guest's 300 connections of these rounds are the test's and cost it a few KiB each.
	if grown := heapInUse() - heap; grown > 300*24<<10 {
		t.Errorf("the heap grew by %d bytes in 300 flows", grown)
	}
}

func TestTCPNeverIdle(t *testing.T) {
	w := newWorld(t, func(s *settings) { s.TCPIdle = -1 })
	guest, host := w.pair()
	w.await(FlowOpened, 1)
	w.clock.advance(24 * time.Hour)
	exchange(t, guest, host, 10)
	exchange(t, host, guest, 10)
}

func TestTCPPolicyChange(t *testing.T) {
	nothing := make(chan error)
	close(nothing)
	// What each does returns how the guest's writing ended.
	cases := map[string]func(guest, host net.Conn) <-chan error{
		"while nothing moves": func(net.Conn, net.Conn) <-chan error { return nothing },
		"while the guest sends": func(guest, host net.Conn) <-chan error {
			ended := make(chan error, 1)
			go func() {
				_, err := io.Copy(guest, zeros{})
				ended <- err
			}()
			io.CopyN(io.Discard, host, 100<<10)
			return ended
		},
		"while the host sends": func(guest, host net.Conn) <-chan error {
			go io.Copy(host, zeros{})
			io.CopyN(io.Discard, guest, 100<<10)
			return nothing
		},
		"after the guest's FIN": func(guest, host net.Conn) <-chan error {
			guest.(interface{ CloseWrite() error }).CloseWrite()
			io.ReadAll(host)
			return nothing
		},
	}
	for name, before := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			guest, host := w.pair()
			w.await(FlowOpened, 1)
			writing := before(guest, host)
			w.egress.deny()
			_, read := io.Copy(io.Discard, guest)
			write := <-writing
			if !errors.Is(errors.Join(read, write), syscall.ECONNRESET) { // a stack tells it to one of them
				t.Errorf("the guest's reading ended with %v, writing with %v", read, write)
			}
			if event := w.await(FlowClosed, 1); event.Reason != ReasonPolicy || !denied(event.Err) {
				t.Errorf("event %+v", event)
			}
		})
	}
}

// zeros is endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestCutFlow(t *testing.T) {
	w := newWorld(t, nil)
	guest, host := w.pair()
	w.await(FlowOpened, 1)
	id := w.nat.Flows()[0].ID
	if w.nat.CutFlow(id + 1) {
		t.Error("a flow was cut that does not exist")
	}
	if !w.nat.CutFlow(id) {
		t.Error("the flow was not found")
	}
	w.bothReset(guest, host, ReasonCut)
	if w.nat.CutFlow(id) {
		t.Error("the flow was cut twice")
	}
}

// TestFlowSnapshot checks what Flows says of one flow.
func TestFlowSnapshot(t *testing.T) {
	w := newWorld(t, nil)
	opened := w.clock.Now()
	guest, host := w.pair()
	w.await(FlowOpened, 1)
	w.clock.advance(time.Second)
	exchange(t, guest, host, 3)
	exchange(t, host, guest, 4)
	w.counted(3, 4)
	f := w.nat.Flows()[0]
	if f.Protocol != "tcp" || f.Direction != Out || f.State != Established || f.Intercepted {
		t.Errorf("flow %+v", f)
	}
	if f.Source.String() != guest.LocalAddr().String() || f.Destination.String() != guest.RemoteAddr().String() {
		t.Errorf("flow %+v, want %v to %v", f, guest.LocalAddr(), guest.RemoteAddr())
	}
	if !f.Opened.Equal(opened) || !f.LastActive.Equal(opened.Add(time.Second)) {
		t.Errorf("opened %v, active %v, want %v and a second later", f.Opened, f.LastActive, opened)
	}
}

// heapInUse is what is allocated after a collection.
func heapInUse() int {
	runtime.GC()
	runtime.GC() // pools keep what they had for one cycle
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

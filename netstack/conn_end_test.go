package netstack_test

import (
	"errors"
	"io"
	"runtime"
	"syscall"
	"testing"
	"time"

	"agentvm/netstack"
	"agentvm/netstack/netstacktest"
)

// TestStalledWriterAfterGuestsFIN has a guest that has said all it wants to say, and does not read yet.
func TestStalledWriterAfterGuestsFIN(t *testing.T) {
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
	here.SetWatermarks(64<<10, 16<<10)
	if err := guest.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	fill(t, here)
	if here.Unacked() == 0 {
		t.Error("a stalled writer has nothing unacknowledged")
	}
	here.SetWriteDeadline(time.Time{})
	released := make(chan error, 1)
	go func() {
		_, err := here.Write([]byte("on"))
		released <- err
	}()
	if !blocked(released) {
		t.Fatal("Write went on above the low mark")
	}
	go io.Copy(io.Discard, guest)
	if err := <-released; err != nil {
		t.Error(err)
	}
}

// TestWriteKeepsNothing lets go of the caller's memory.
func TestWriteKeepsNothing(t *testing.T) {
	here, guest, _ := connected(t, netstack.Config{}, netstacktest.Config{}, server)
	freed := make(chan struct{})
	func() {
		buffer := make([]byte, 4096)
		runtime.AddCleanup(&buffer[0], func(struct{}) { close(freed) }, struct{}{})
		if _, err := here.Write(buffer); err != nil {
			t.Fatal(err)
		}
	}()
	if _, err := io.ReadFull(guest, make([]byte, 4096)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the buffer is freed", func() bool {
		runtime.GC()
		select {
		case <-freed:
			return true
		default:
			return false
		}
	})
	runtime.KeepAlive(here)
}

// TestAbortOfIdleReaderIsNoEnd aborts while a ReadTo is about to wait: the guest must not take that for an orderly end.
func TestAbortOfIdleReaderIsNoEnd(t *testing.T) {
	n, g := pair(t, netstack.Config{}, netstacktest.Config{})
	conns := accepting(n)
	connect(t, n, g)
	for i := range 400 {
		guest := dial(t, g, server)
		here := <-conns
		if _, err := guest.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		taken := make(chan struct{}, 1)
		go func() {
			for {
				if _, err := here.ReadTo(signal(taken), 1<<16); err != nil {
					return
				}
			}
		}()
		<-taken
		for start := time.Now(); time.Since(start) < time.Duration(i%100)*100*time.Nanosecond; { // meet it at every moment
		}
		here.Abort()
		if _, err := io.Copy(io.Discard, guest); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("the guest read an orderly end: %v", err)
		}
		guest.Close()
	}
}

// signal is a writer that says when it was called.
type signal chan<- struct{}

func (s signal) Write(p []byte) (int, error) {
	s <- struct{}{}
	return len(p), nil
}

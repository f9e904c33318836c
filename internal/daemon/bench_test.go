package daemon

import (
	"testing"
	"time"

	"agentvm/internal/daemon/daemonrpc"
)

// BenchmarkExec measures a job that ends at once, its output and its end, which is what a daemon adds to a program.
func BenchmarkExec(b *testing.B) {
	c := startInside(b, Config{}, timing{}, nil).connect(b)
	for b.Loop() {
		j := start(b, c, daemonrpc.JobOptions{}, "echo", "a")
		if _, err := Follow(b.Context(), j, Streams{}, 0); err != nil {
			b.Fatal(err)
		}
		j.Release()
	}
}

// BenchmarkConnect finds a daemon, connects, does the handshake and leaves.
func BenchmarkConnect(b *testing.B) {
	d := startInside(b, Config{}, timing{stateCheck: time.Second}, nil)
	for b.Loop() {
		c, err := d.store.Connect(b.Context(), "dev")
		if err != nil {
			b.Fatal(err)
		}
		if err := c.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOutput is the throughput of a program's output to its client.
func BenchmarkOutput(b *testing.B) {
	const size = 16 << 20
	b.SetBytes(size)
	c := startInside(b, Config{}, timing{}, nil).connect(b)
	for b.Loop() {
		j := start(b, c, daemonrpc.JobOptions{}, "flood", "16777216")
		if o, err := Follow(b.Context(), j, Streams{}, 0); err != nil || o.Next != size || o.Lost > 0 {
			b.Fatalf("%+v, %v", o, err)
		}
		j.Release()
	}
}

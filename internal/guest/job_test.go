//go:build linux

package guest

import (
	"testing"
	"time"

	"agentvm/internal/guest/guestrpc"
)

// On a busy machine the exit may be known long before the goroutine that reads the output runs.
func TestExitDoesNotOvertakeOutput(t *testing.T) {
	out, in := quietPipe(t)
	j := newJob(&outputs{})
	j.open, j.streams[0].file = 1, out // as if being read by a goroutine that does not run
	if _, err := in.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	j.end(guestrpc.ExitStatus{})
	long := time.Now().Add(10 * quietTime)
	if d, wait, ok := j.take(long, 0); ok || wait != quietTime {
		t.Fatalf("take = %+v, %v, %v with output in the pipe", d, wait, ok)
	}
	if _, err := out.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	if d, _, ok := j.take(long.Add(quietTime), 0); !ok || d.Exit == nil {
		t.Errorf("take = %+v, %v when the pipe is empty and quiet", d, ok)
	}
}

func TestRestAfter(t *testing.T) {
	for _, tt := range []struct {
		name string
		n    int
		last time.Duration
		want time.Duration
		echo bool // no input has come since the last read
	}{
		{"first line", 80, 0, 2 * time.Millisecond, false},
		{"a conversation", 80, pace, pace, false},
		{"an echo of a paste", 80, pace, 2 * pace, true},
		{"such an echo for long", 80, maxReadDelay, maxReadDelay, true},
		{"a stream of stdio buffers", stdioSize, pace, 2 * pace, false},
		{"such a stream for long", 2 * stdioSize, maxReadDelay, maxReadDelay, false},
		{"enough", gatherSize, 8 * time.Millisecond, 8 * time.Millisecond, false},
		{"more than enough", 2 * gatherSize, 8 * time.Millisecond, 4 * time.Millisecond, false},
		{"a full pipe", readSize, time.Millisecond, 0, false},
		{"a full pipe after a rest", readSize, 4 * time.Millisecond, time.Millisecond, false},
		{"nothing", 0, 0, 2 * time.Millisecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := readDelay(tt.n, tt.last, !tt.echo); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

package vm_test

import (
	"io"
	"slices"
	"testing"
	"time"

	"agentvm/vm"
)

// BenchmarkColdStart is a machine from nothing to the output of a command, with compiled code in the cache but not in the
// process. docs/measurements/specification.md has the limits of these numbers.
func BenchmarkColdStart(b *testing.B) {
	c := config(b)
	c.Memory = vm.DefaultMemory
	for b.Loop() {
		v, err := vm.Start(limited(b), c)
		if err != nil {
			b.Fatal(err)
		}
		wantOutput(b, v, "echo hi", "hi\n")
		v.Close()
	}
}

// BenchmarkExecTrue is a fresh process each time.
func BenchmarkExecTrue(b *testing.B) {
	v := sharedVM(b)
	ctx := limited(b)
	var times []time.Duration
	for b.Loop() {
		began := time.Now()
		r, err := v.Run(ctx, vm.Command{Args: []string{"/bin/true"}})
		if err != nil || r.ExitCode != 0 {
			b.Fatal(r, err)
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkOutput is a command that writes 200,000 lines, 1.3 MB.
func BenchmarkOutput(b *testing.B) {
	v := sharedVM(b)
	b.SetBytes(1288895)
	for b.Loop() {
		if _, err := v.Run(limited(b), vm.Command{Line: "seq 1 200000", Stdout: io.Discard}); err != nil {
			b.Fatal(err)
		}
	}
}

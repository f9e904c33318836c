package snapshot

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"agentvm/vm"
)

// samples are times of one thing.
type samples []time.Duration

func (s *samples) since(began time.Time) { *s = append(*s, time.Since(began)) }

// report gives the benchmark the percentiles in milliseconds.
func (s samples) report(b *testing.B, what string) {
	slices.Sort(s)
	for _, p := range []int{50, 95, 99} {
		at := s[min(len(s)*p/100, len(s)-1)]
		b.ReportMetric(float64(at.Microseconds())/1000, what+"-p"+string(rune('0'+p/10))+string(rune('0'+p%10))+"-ms")
	}
}

// BenchmarkStart is vm.Start of a VM that has a base, and its first command.
func BenchmarkStart(b *testing.B) {
	c := config(b)
	c.Memory = vm.DefaultMemory
	start(b, c).Close() // leaves the base
	var ready, first samples
	for b.Loop() {
		began := time.Now()
		v, err := vm.Start(limited(b), c)
		if err != nil {
			b.Fatal(err)
		}
		ready.since(began)
		output(b, v, "true")
		first.since(began)
		v.Close()
	}
	ready.report(b, "ready")
	first.report(b, "exec")
}

// BenchmarkFork is a fork of a VM that runs, and its first command.
func BenchmarkFork(b *testing.B) {
	v := start(b, config(b))
	output(b, v, "true")
	var ready, first samples
	for b.Loop() {
		began := time.Now()
		list, err := v.Fork(limited(b), 1, vm.ForkOptions{})
		if err != nil {
			b.Fatal(err)
		}
		ready.since(began)
		output(b, list[0], "true")
		first.since(began)
		list[0].Close()
	}
	ready.report(b, "ready")
	first.report(b, "exec")
}

// BenchmarkSnapshot writes a VM of 256 MiB to a file, and restores it.
func BenchmarkSnapshot(b *testing.B) {
	c := config(b)
	v := start(b, c)
	output(b, v, "true")
	path := filepath.Join(b.TempDir(), "saved.snap")
	var written, restored samples
	for b.Loop() {
		began := time.Now()
		if _, err := v.Snapshot(limited(b), path, vm.SnapshotOptions{}); err != nil {
			b.Fatal(err)
		}
		written.since(began)
		began = time.Now()
		r, err := vm.Restore(limited(b), path, vm.Config{StoreDir: c.StoreDir}, vm.RestoreOptions{})
		if err != nil {
			b.Fatal(err)
		}
		restored.since(began)
		r.Close()
	}
	written.report(b, "write")
	restored.report(b, "restore")
}

// BenchmarkPause is a pause and the resumption.
func BenchmarkPause(b *testing.B) {
	v := start(b, config(b))
	var paused, resumed samples
	for b.Loop() {
		began := time.Now()
		if err := v.Pause(limited(b)); err != nil {
			b.Fatal(err)
		}
		paused.since(began)
		began = time.Now()
		if err := v.Resume(limited(b)); err != nil {
			b.Fatal(err)
		}
		resumed.since(began)
	}
	paused.report(b, "pause")
	resumed.report(b, "resume")
}

// forkMemory is what an idle fork may add to the memory of its process, in bytes. Of that, the streams to the host are 5 MB,
// which a VM that does not use them does not touch.
const forkMemory = 12 << 20

// TestMemoryOfForks counts what 100 forks of a VM with 256 MiB take that do nothing.
func TestMemoryOfForks(t *testing.T) {
	v := start(t, config(t))
	output(t, v, "seq 1 100000 >/root/file; sha256sum /root/file")
	forks(t, v, 1, vm.ForkOptions{})[0].Close() // what the first fork costs the VM itself
	before := proportionalSize(t)
	const n = 100
	began := time.Now()
	list := forks(t, v, n, vm.ForkOptions{})
	t.Log(n, "forks took", time.Since(began))
	for _, f := range list {
		output(t, f, "test -s /root/file")
	}
	t.Log("each has answered after", time.Since(began))
	each := (proportionalSize(t) - before) / n
	t.Logf("an idle fork takes %.2f MB", float64(each)/1e6)
	if each > forkMemory {
		t.Errorf("an idle fork takes %d bytes, want at most %d", each, forkMemory)
	}
	if entries, err := os.ReadDir("/proc/self/fd"); err != nil || len(entries) > 200 {
		t.Errorf("%d files are open (%v): forks are to have none of their own", len(entries), err)
	}
}

//go:build unix

package wasi

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/tetratelabs/wazero"
	"go.uber.org/goleak"

	"agentvm/internal/test/leaktest"
)

// cpuTime returns the processor time that this process has used.
func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// newHotGuest returns a guest and the calls that a machine makes all the time; "nothing" only returns an errno.
func newHotGuest(tb testing.TB) (g *guest, calls []hotCall) {
	g = newGuest(tb, Config{})
	g.sys.SetFile(5, NewStream(64))
	vec, _ := g.iovec(16)
	n := g.alloc(8)
	return g, []hotCall{
		{"nothing", "proc_raise", procRaise, []uint64{0}},
		{"fd_read_again", "fd_read", onFile(fdRead), []uint64{5, vec, 1, n}},
		{"clock_monotonic", "clock_time_get", clockTimeGet, []uint64{1, 0, n}},
		{"clock_realtime", "clock_time_get", clockTimeGet, []uint64{0, 0, n}},
		{"random_8", "random_get", randomGet, []uint64{n, 8}},
	}
}

type hotCall struct {
	name, function string
	call           hostFunc
	params         []uint64
}

// BenchmarkHostCall measures calls from Go into the guest and from there to the host. cpu-ns/op is processor time, for
// a computer that does other things.
func BenchmarkHostCall(b *testing.B) {
	g, calls := newHotGuest(b)
	for _, c := range calls {
		b.Run(c.name, func(b *testing.B) {
			f := g.mod.ExportedFunction(c.function)
			benchmark(b, c, func(stack []uint64) {
				if err := f.CallWithStack(g.ctx, stack); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkHostFunction measures this package's part of a call: all but wazero's way into Go and back.
func BenchmarkHostFunction(b *testing.B) {
	g, calls := newHotGuest(b)
	for _, c := range calls {
		b.Run(c.name, func(b *testing.B) {
			benchmark(b, c, func(stack []uint64) { c.call.Call(g.ctx, g.mod, stack) })
		})
	}
}

// benchmark repeats a call and reports processor time.
func benchmark(b *testing.B, c hotCall, call func(stack []uint64)) {
	stack := make([]uint64, 8)
	b.ReportAllocs()
	start := cpuTime(b)
	for b.Loop() {
		copy(stack, c.params)
		call(stack)
	}
	b.ReportMetric(float64(cpuTime(b)-start)/float64(b.N), "cpu-ns/op")
}

// The machine's calls must not allocate: they are made between any two slices.
func TestHotCallsDoNotAllocate(t *testing.T) {
	g := newGuest(t, Config{})
	g.sys.SetFile(5, NewStream(64))
	vec, _ := g.iovec(16, 16)
	n := g.alloc(64)
	ctx := context.Background()
	stack := make([]uint64, 8)
	for _, c := range []struct {
		function string
		params   []uint64
	}{
		{"fd_read", []uint64{5, vec, 2, n}},
		{"fd_write", []uint64{5, vec, 2, n}},
		{"fd_filestat_get", []uint64{5, n}},
		{"fd_sync", []uint64{5}},
		{"clock_time_get", []uint64{1, 0, n}},
		{"random_get", []uint64{n, 8}},
	} {
		f := g.mod.ExportedFunction(c.function)
		got := testing.AllocsPerRun(100, func() {
			copy(stack, c.params)
			if err := f.CallWithStack(g.ctx, stack); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 {
			t.Errorf("%s allocates %v times", c.function, got)
		}
	}
	if got := testing.AllocsPerRun(100, func() { _ = g.sys.Wait(ctx, time.Microsecond) }); got != 0 {
		t.Errorf("Wait allocates %v times", got)
	}
}

// Ten idle systems together take less than 2 % of a core: five guests blocked in poll_oneoff for their standard input and
// a long timer, and five machines whose runner waits.
func TestIdleSystemsAreIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("takes two seconds")
	}
	defer leaktest.None(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(context.Background())
	rt := wazero.NewRuntimeWithConfig(ctx, runtimeConfig())
	defer rt.Close(context.Background())
	if _, err := Instantiate(ctx, rt); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	for range 5 {
		g := instantiateGuest(t, rt, Config{})
		g.sys.SetFile(0, NewStream(64))
		go func() { ended <- g.pollForever(ctx) }()
		go func() { ended <- g.sys.Wait(ctx, -1) }()
	}
	const period = 2 * time.Second
	start := cpuTime(t)
	time.Sleep(period)
	used := cpuTime(t) - start
	cancel()
	for range 10 {
		if err := <-ended; err == nil {
			t.Error("a wait ended without a reason")
		}
	}
	if limit := period / 50; used > limit {
		t.Errorf("used %v of processor time in %v, limit %v", used, period, limit)
	}
	t.Logf("used %v of processor time in %v", used, period)
}

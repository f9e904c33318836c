package wasi

import "testing"

// The machine's paths: what they cost beyond wazero's own call is measured against sched of proc_raise, which does
// nothing but the call.
func BenchmarkHostCall(b *testing.B) {
	g := newGuest(b, Config{})
	g.sys.SetFile(5, NewStream(64))
	vec, _ := g.iovec(16)
	n := g.alloc(8)
	for _, c := range []struct {
		name, function string
		params         []uint64
	}{
		{"nothing", "proc_raise", []uint64{0}},
		{"fd_read_again", "fd_read", []uint64{5, vec, 1, n}},
		{"clock_monotonic", "clock_time_get", []uint64{1, 0, n}},
		{"clock_realtime", "clock_time_get", []uint64{0, 0, n}},
		{"random_8", "random_get", []uint64{n, 8}},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := g.mod.ExportedFunction(c.function)
			stack := make([]uint64, 8)
			b.ReportAllocs()
			for b.Loop() {
				copy(stack, c.params)
				if err := f.CallWithStack(g.ctx, stack); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

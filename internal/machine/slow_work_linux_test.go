package machine_test

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"agentvm/internal/machine"
)

// slowWork is what takes much longer than an instruction: testdata/hostile/slow.c has it by number.
var slowWork = []string{
	"code that is not decoded", "code that changes", "TLB misses", "flushes of the TLB", "refills of the TLB", "exceptions", "clock",
	"instructions in two pages", "device registers", "cbo.zero", "flushes of a page", "address spaces", "timer",
}

// TestSliceOfSlowWork: a program that was fast, and so has long slices, is slow. Its slices end all the same, where they took up to ten
// seconds. Time is the processor's, for others may use it, too.
func TestSliceOfSlowWork(t *testing.T) {
	const bound = 25 * time.Millisecond // half a millisecond of slow work, and a budget of instructions between it
	for number, name := range slowWork {
		t.Run(name, func(t *testing.T) {
			program := buildHostile(t, "slow.c", "-DWORK="+strconv.Itoa(number))
			m, err := testProgram(t).NewMachine(t.Context(), machine.Config{Memory: bareMemory, MachineMode: true})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			loadELF(t, m, program)
			var longest, all time.Duration
			var retired, slices uint64
			for slow := 0; slow < 50; {
				began, before := processorTime(t), m.Retired()
				if err := m.Slice(1_000_000); err != nil {
					t.Fatal(err)
				}
				took := processorTime(t) - began
				if before > 80_000_000 || m.Retired()-before < 500_000 && before > 35_000_000 { // the program is slow by now
					slow++
					longest, all = max(longest, took), all+took
					retired, slices = retired+m.Retired()-before, slices+1
				}
			}
			t.Logf("a slice took up to %v, its %d instructions %.0f ns each", longest, retired/slices, float64(all)/float64(retired))
			if longest > bound {
				t.Errorf("a slice took %v, want at most %v", longest, bound)
			}
		})
	}
}

func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

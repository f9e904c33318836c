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

// slowArm64Work is that of testdata/hostile/slow_arm64.c.
var slowArm64Work = []string{
	"code that is not decoded", "code that changes", "TLB misses", "flushes of the TLB", "refills of the TLB", "exceptions", "clock", "data in two pages",
	"device registers", "dc zva", "flushes of a page", "address spaces", "timers", "tables that point to themselves", "waits", "calls of PSCI",
	"interrupt controller", "interrupts", "floating point", "structures", "a timer that is due", "stacks and PAN", "cryptography", "exclusive accesses",
	"vectors", "scalar floating point", "checksums and divisions",
}

// TestSliceOfSlowWork: a program that was fast, and so has long slices, is slow. Its slices end all the same, where they took up to ten
// seconds. Time is the processor's, for others may use it, too.
func TestSliceOfSlowWork(t *testing.T) {
	for number, name := range slowWork {
		t.Run(name, func(t *testing.T) {
			program := buildHostile(t, "slow.c", "-DWORK="+strconv.Itoa(number))
			sliceOfSlowWork(t, testProgram(t), program, 0, 35_000_000, 50)
		})
	}
}

func TestSliceOfSlowArm64Work(t *testing.T) {
	p, program := arm64Program(t), buildHostileArm64(t, "slow_arm64.c")
	for number, name := range slowArm64Work {
		t.Run(name, func(t *testing.T) { sliceOfSlowWork(t, p, program, number, 4_000_000, 10) })
	}
}

// sliceOfSlowWork looks at so many slices of a program that is fast for some instructions, less than `fast`.
func sliceOfSlowWork(t *testing.T, p *machine.Program, program []byte, argument int, fast uint64, slices int) {
	t.Helper()
	const bound = 25 * time.Millisecond // half a millisecond of slow work, and a budget of instructions between it
	m, err := p.NewMachine(t.Context(), machine.Config{Memory: bareMemory, MachineMode: true})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	loadELF(t, m, program, argument)
	var longest, all time.Duration
	var retired uint64
	for slow := 0; slow < slices; {
		began, before := processorTime(t), m.Retired()
		if err := m.Slice(1_000_000); err != nil {
			t.Fatal(err)
		}
		took := processorTime(t) - began
		if before > 2*fast+10_000_000 || m.Retired()-before < 500_000 && before > fast { // the program is slow by now
			slow++
			longest, all = max(longest, took), all+took
			retired += m.Retired() - before
		}
	}
	t.Logf("a slice took up to %v, its %d instructions %.0f ns each", longest, retired/uint64(slices), float64(all)/float64(retired))
	if longest > bound {
		t.Errorf("a slice took %v, want at most %v", longest, bound)
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

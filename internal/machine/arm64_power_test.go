package machine

import (
	"encoding/binary"
	"testing"
	"time"
)

// arm64Begin has a machine begin with these words, and x0 = 1.
func arm64Begin(t *testing.T, words ...uint32) *Machine {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a machine")
	}
	m, err := arm64TestProgram(t).NewMachine(t.Context(), Config{Memory: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	ram, err := m.ram()
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range words {
		binary.LittleEndian.PutUint32(ram[4*i:], w)
	}
	m.markRAM(0, uint64(4*len(words)))
	if err := m.enterAt(RAMBase, 1); err != nil {
		t.Fatal(err)
	}
	return m
}

// A timer whose interrupt is disabled ends no wait: the host would be asked for ever whether it is due, which it is.
func TestArm64TimerOfNoInterrupt(t *testing.T) {
	const cntvCTL, wfi, back = 0xd51be320, 0xd503207f, 0x17ffffff // msr cntv_ctl_el0, x0; wfi; b -4
	m := arm64Begin(t, cntvCTL, wfi, back)
	for range 3 {
		reason, err := m.slice(1000)
		if err != nil {
			t.Fatal(err)
		}
		if reason != reasonIdle || m.result.DeadlineNS != noDeadline {
			t.Errorf("the machine stops for %v until %d, want it to wait without end", reason, m.result.DeadlineNS)
		}
	}
}

func TestArm64Reset(t *testing.T) {
	m := arm64Begin(t, 0x52800120, 0x72b08000, 0xd4000002) // hvc with w0 = 0x84000009
	if exit, err := m.Run(t.Context()); err != nil || exit.Reason != Reboot {
		t.Errorf("Run() = %v, %v, want a reboot", exit, err)
	}
}

// An exception whose handler cannot be fetched raises another one, for ever, and so does an illegal state: slices end all the same.
func TestArm64ExceptionsEndTheSlice(t *testing.T) {
	const msrSPSR, msrELR, eret, movELR = 0xd5184000, 0xd5184021, 0xd69f03e0, 0x10000001                               // msr spsr_el1, x0; msr elr_el1, x1; eret; adr x1, .
	for name, words := range map[string][]uint32{"undefined": {0}, "illegal state": {movELR, msrELR, msrSPSR, eret}} { // x0 = 1 is no mode
		m := arm64Begin(t, words...)
		watchdog := time.AfterFunc(time.Minute, func() { panic(name + ": a slice does not end") })
		for range 3 {
			if _, err := m.slice(100_000); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		watchdog.Stop()
	}
}

func TestArm64StepIsExact(t *testing.T) {
	const add, back = 0x91000400, 0x17ffffff // add x0, x0, 1; b -4
	m := arm64Begin(t, add, back)
	for _, budget := range []int64{1, 2, 3, 1000, 16384, 16385, 50_000} {
		before := m.Retired()
		if _, stopped, err := m.Step(budget); stopped || err != nil || m.Retired()-before != uint64(budget) {
			t.Fatalf("Step(%d) executed %d instructions, stopped %t, %v", budget, m.Retired()-before, stopped, err)
		}
	}
	hart, ok := m.memory.Read(m.layout.Hart, 8)
	if x0 := binary.LittleEndian.Uint64(hart); !ok || x0 != 1+(m.Retired()+1)/2 {
		t.Errorf("x0 is %d after %d instructions", x0, m.Retired())
	}
}

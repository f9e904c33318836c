package machine

import (
	"encoding/binary"
	"testing"
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

package emulator_test

import (
	"testing"

	"agentvm/emulator"
)

var lockstep = emulator.Config{Memory: 64 << 20, Deterministic: true, Rand: zeros{}}

// A restored machine does what its original does, instruction by instruction.
func TestRestoredMachineEqualsItsOriginal(t *testing.T) {
	w := bootWorker(t, lockstep, "work=1")
	w.advance(5_000_000)
	i := w.capture()
	copied := restoreWorker(t, lockstep, i)
	for millions := range 100 {
		if w.hash() != copied.hash() {
			t.Fatalf("they differ after %d million instructions", millions)
		}
		w.advance(1_000_000)
		copied.advance(1_000_000)
	}
}

// Package qemutest has the condition for tests that boot a machine in QEMU. It is for tests only.
package qemutest

import (
	"os"
	"os/exec"
	"testing"
)

// Need skips a test where QEMU is missing, or in short mode, but never in CI.
func Need(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a machine")
	}
	if _, err := exec.LookPath("qemu-system-riscv64"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("qemu-system-riscv64 is missing; on Debian: apt install qemu-system-misc")
		}
		t.Skip("needs qemu-system-riscv64 (Debian: qemu-system-misc)")
	}
}

//go:build linux && !riscv64

package guest

// handleReserved does nothing on other processors than the guest's, where this process is never PID 1.
func handleReserved(...uintptr) {}

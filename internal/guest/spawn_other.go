//go:build linux && !riscv64 && !arm64

package guest

import "syscall"

// forkAndExec serves tests on other processors than guests have.
func forkAndExec(path string, args []string, attr *syscall.ProcAttr) (int, error) {
	return syscall.ForkExec(path, args, attr)
}

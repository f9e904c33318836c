//go:build linux && !riscv64

package guest

import "syscall"

// forkAndExec serves tests on other processors than the guest's.
func forkAndExec(path string, args []string, attr *syscall.ProcAttr) (int, error) {
	return syscall.ForkExec(path, args, attr)
}

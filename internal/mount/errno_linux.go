package mount

import "syscall"

// hostErrno is the identity: amd64, arm64 and riscv64 hosts share the guest's numbers.
func hostErrno(e syscall.Errno) errno { return errno(e) }

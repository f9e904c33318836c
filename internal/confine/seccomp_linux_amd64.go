package confine

import "golang.org/x/sys/unix"

// deniedHere are the system calls that only this processor has.
var deniedHere = []uint32{
	unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_MKNOD, unix.SYS_USELIB, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_KEXEC_FILE_LOAD,
}

//go:build linux

package guest

import (
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentvm/rpc"
)

// ignoreChildSignals sets SIGCHLD back to its default, which is to do nothing: the reaper waits in wait4, and Go's own
// handler would only cost an interruption per child. (SIG_IGN would make children vanish without a status.)
func ignoreChildSignals() {
	var action [4]uint64 // handler SIG_DFL, no flags, empty mask
	_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(syscall.SIGCHLD), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0)
}

// noNewPrivileges holds for every thread, and so for everything started from now on.
func noNewPrivileges() error {
	_, _, errno := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno != 0 {
		return os.NewSyscallError("set no_new_privs", errno)
	}
	return nil
}

func guestInfo() (rpc.GuestInfo, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return rpc.GuestInfo{}, os.NewSyscallError("uname", err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return rpc.GuestInfo{}, os.NewSyscallError("read the clock", err)
	}
	return rpc.GuestInfo{Release: unix.ByteSliceToString(name.Release[:]), Boot: time.Duration(now.Nano())}, nil
}

package lockfile

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

const noFollow = 0 // there is no such flag

// lockOpen locks a byte that no file has, because Windows keeps others from reading what is locked.
func lockOpen(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	at := windows.Overlapped{Offset: 0xffff_fffe, OffsetHigh: 0x7fff_ffff}
	var failed error
	err = raw.Control(func(handle uintptr) {
		failed = windows.LockFileEx(windows.Handle(handle), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	})
	if err != nil {
		return err
	}
	if errors.Is(failed, windows.ERROR_LOCK_VIOLATION) || errors.Is(failed, windows.ERROR_IO_PENDING) {
		return ErrHeld
	}
	return os.NewSyscallError("LockFileEx", failed)
}

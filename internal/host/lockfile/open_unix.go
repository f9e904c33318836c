//go:build unix

package lockfile

import (
	"os"

	"golang.org/x/sys/unix"
)

// noFollow makes open fail when a name is a link.
const noFollow = unix.O_NOFOLLOW

func lockOpen(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for {
			if failed = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB); failed != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	if failed == unix.EWOULDBLOCK {
		return ErrHeld
	}
	return os.NewSyscallError("flock", failed)
}

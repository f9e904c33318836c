//go:build unix

package guestfs

import (
	"errors"
	"os"
	"syscall"

	"agentvm/internal/host/hostfile"
)

// hasStagingLocks reports whether locks distinguish what a killed copy has left from what another copy works on.
const hasStagingLocks = true

// tryLock locks a file for this process until it is closed, or the process ends. The error is errors.ErrUnsupported where the file
// system has no locks.
func tryLock(file *os.File) (bool, error) {
	err := hostfile.Control(file, func(fd int) error { return syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB) })
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		return false, nil
	case errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.EOPNOTSUPP):
		return false, errors.ErrUnsupported
	}
	return false, os.NewSyscallError("flock", err)
}

// canKeepOwners reports whether the host's files have owners by number.
const canKeepOwners = true

//go:build unix

package guestfs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// hasStagingLocks reports whether locks distinguish what a killed copy has left from what another copy works on.
const hasStagingLocks = true

// tryLock locks a file for this process until it is closed, or the process ends. The error is errors.ErrUnsupported where the file
// system has no locks.
func tryLock(file *os.File) (bool, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return false, err
	}
	var locked error
	if err := raw.Control(func(fd uintptr) { locked = syscall.Flock(int(fd), syscall.LOCK_EX|syscall.LOCK_NB) }); err != nil {
		return false, err
	}
	switch {
	case locked == nil:
		return true, nil
	case errors.Is(locked, syscall.EWOULDBLOCK):
		return false, nil
	case errors.Is(locked, syscall.ENOSYS), errors.Is(locked, syscall.EINVAL), errors.Is(locked, syscall.ENOLCK), errors.Is(locked, syscall.EOPNOTSUPP):
		return false, errors.ErrUnsupported
	}
	return false, os.NewSyscallError("flock", locked)
}

// canKeepOwners reports whether the host's files have owners by number.
const canKeepOwners = true

func statOf(info fs.FileInfo) hostStat {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return hostStat{}
	}
	return hostStat{hostFile{uint64(st.Dev), st.Ino}, uint64(st.Nlink), Owner{UID: st.Uid, GID: st.Gid}}
}

package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reflink makes a new file that shares its blocks with from (ioctl_ficlone(2): btrfs, xfs, overlays of these). The error is
// errors.ErrUnsupported, and there is no file, where that cannot be.
func reflink(from *os.File, to string) error {
	file, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = control(file, func(target int) error {
		return control(from, func(source int) error { return unix.IoctlFileClone(target, source) })
	})
	if err == nil {
		err = file.Sync()
	} else if cannotClone(err) {
		err = errors.ErrUnsupported
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

// cannotClone says whether an error is the file system's way of having no such operation, or none between these two files.
func cannotClone(err error) bool {
	for _, no := range []error{unix.EOPNOTSUPP, unix.ENOTTY, unix.EXDEV, unix.EINVAL, unix.ENOSYS, unix.EPERM} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// control calls f with a file's descriptor.
func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

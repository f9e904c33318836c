package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reflink makes a new file that shares its blocks with from (clonefile(2): APFS). The error is errors.ErrUnsupported, and there
// is no file, where that cannot be.
func reflink(from *os.File, to string) error {
	raw, err := from.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.Fclonefileat(int(fd), unix.AT_FDCWD, to, 0) })
	if err == nil {
		err = failed
	}
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EXDEV) {
		return errors.ErrUnsupported
	}
	if err != nil {
		return err
	}
	if err := durable(to); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

func durable(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Chmod(0o600), file.Sync(), file.Close())
}

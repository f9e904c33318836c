//go:build !windows

package disk

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// openLayer opens a disk's file, its manifest too. It does not wait when the name is a FIFO's.
func openLayer(path string, flags int) (*os.File, error) {
	return os.OpenFile(path, flags|syscall.O_NONBLOCK, 0o600)
}

// nextData finds the next part of a file that is not a hole. It moves the file's position, which is not used otherwise.
func nextData(file *os.File, offset int64) (start, length int64, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var end int64
	failed := raw.Control(func(fd uintptr) {
		if start, err = unix.Seek(int(fd), offset, unix.SEEK_DATA); err == nil {
			end, err = unix.Seek(int(fd), start, unix.SEEK_HOLE)
		}
	})
	switch {
	case failed != nil:
		return 0, 0, failed
	case errors.Is(err, unix.ENXIO):
		return 0, 0, nil
	case err != nil:
		return 0, 0, errors.ErrUnsupported
	}
	return start, end - start, nil
}

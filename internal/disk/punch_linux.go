package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// punch makes a part of file read as zeros and take no room.
func punch(file *os.File, offset, length int64) error {
	return control(file, func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	})
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

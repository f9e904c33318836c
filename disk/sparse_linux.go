package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// makeSparse does nothing: files are.
func makeSparse(*os.File) {}

// punch makes a part of file read as zeros and take no room.
func punch(file *os.File, offset, length int64) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var punched error
	err = raw.Control(func(fd uintptr) {
		punched = unix.Fallocate(int(fd), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
	})
	return errors.Join(err, punched)
}

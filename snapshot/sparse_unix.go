//go:build !windows

package snapshot

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// makeSparse does nothing: files are, where the file system can.
func makeSparse(*os.File) {}

// nextData returns the first part of a file at or after offset that is no hole; its length is 0 when there is none. The error
// is errors.ErrUnsupported where the system does not say.
func nextData(file *os.File, offset int64) (start, length int64, err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var end int64
	control := raw.Control(func(fd uintptr) {
		// Nobody uses the file's own position, so that these need no lock.
		if start, err = unix.Seek(int(fd), offset, unix.SEEK_DATA); err == nil {
			end, err = unix.Seek(int(fd), start, unix.SEEK_HOLE)
		}
	})
	switch {
	case control != nil:
		return 0, 0, control
	case errors.Is(err, unix.ENXIO):
		return 0, 0, nil
	case err != nil:
		return 0, 0, errors.ErrUnsupported // a device, or a file system that cannot
	}
	return start, end - start, nil
}

// allocated is how many bytes a file takes on the disk.
func allocated(info os.FileInfo) int64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(stat.Blocks) * 512
	}
	return info.Size()
}

// syncDirectory makes names in a directory durable.
func syncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

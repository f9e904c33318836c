//go:build unix

package machine

import (
	"os"

	"golang.org/x/sys/unix"
)

// unlinkedFile makes a temporary file without a name: it goes with its last descriptor and mapping.
func unlinkedFile() (*source, error) {
	file, err := os.CreateTemp("", "agentvm-image-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(file.Name()); err != nil {
		file.Close()
		return nil, err
	}
	return newSource(file, file.Close), nil
}

// duplicate opens the same file once more, whatever became of its name.
func duplicate(file *os.File) (*os.File, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, dupErr := -1, error(nil)
	if err := raw.Control(func(old uintptr) { fd, dupErr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("fcntl", dupErr)
	}
	return os.NewFile(uintptr(fd), file.Name()), nil
}

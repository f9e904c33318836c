package machine

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// newImageFile makes a temporary file that goes when it is closed; one stays when the process is ended before.
func newImageFile() (*source, error) {
	file, err := os.CreateTemp("", "agentvm-image-")
	if err != nil {
		return nil, err
	}
	return newSource(file, func() error { return errors.Join(file.Close(), os.Remove(file.Name())) }), nil
}

// duplicate opens the same file once more, whatever became of its name.
func duplicate(file *os.File) (*os.File, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var handle windows.Handle
	var dupErr error
	self := windows.CurrentProcess()
	if err := raw.Control(func(old uintptr) {
		dupErr = windows.DuplicateHandle(self, windows.Handle(old), self, &handle, 0, false, windows.DUPLICATE_SAME_ACCESS)
	}); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, os.NewSyscallError("DuplicateHandle", dupErr)
	}
	return os.NewFile(uintptr(handle), file.Name()), nil
}

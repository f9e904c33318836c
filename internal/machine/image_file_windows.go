package machine

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/windows"

	"agentvm/internal/host/atomicfile"
)

// newImageFile makes a temporary file that goes when it is closed. It removes those of processes that were ended before.
func newImageFile() (*source, error) {
	file, err := atomicfile.Create(filepath.Join(os.TempDir(), "agentvm-image"))
	if err != nil {
		return nil, err
	}
	return newSource(file.File, file.Discard), nil
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

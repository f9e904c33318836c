package disk

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// openLayer opens a disk's file so that other VMs that share it can remove their names of it meanwhile.
func openLayer(path string, flags int) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(path)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	access, create := uint32(windows.GENERIC_READ), uint32(windows.OPEN_EXISTING)
	if flags&(os.O_WRONLY|os.O_RDWR) != 0 {
		access |= windows.GENERIC_WRITE
	}
	if flags&os.O_EXCL != 0 {
		create = windows.CREATE_NEW
	}
	share := uint32(windows.FILE_SHARE_READ | windows.FILE_SHARE_WRITE | windows.FILE_SHARE_DELETE)
	handle, err := windows.CreateFile(name, access, share, nil, create, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(handle), path), nil
}

// nextData is not supported on Windows: files are read to their end.
func nextData(*os.File, int64) (start, length int64, err error) {
	return 0, 0, errors.ErrUnsupported
}

// hostBoot returns 0, because this system does not identify its boots.
func hostBoot() uint64 { return 0 }

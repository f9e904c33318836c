package disk

import (
	"os"

	"golang.org/x/sys/windows"
)

// makeSparse lets NTFS leave out what was never written; other file systems refuse, and keep the whole file.
func makeSparse(file *os.File) {
	var returned uint32
	_ = windows.DeviceIoControl(windows.Handle(file.Fd()), windows.FSCTL_SET_SPARSE, nil, 0, nil, 0, &returned, nil)
}

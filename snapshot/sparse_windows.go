package snapshot

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// makeSparse lets NTFS leave out what is never written; other file systems refuse, and keep the whole file.
func makeSparse(file *os.File) {
	var returned uint32
	_ = windows.DeviceIoControl(windows.Handle(file.Fd()), windows.FSCTL_SET_SPARSE, nil, 0, nil, 0, &returned, nil)
}

// nextData is not asked on Windows: files are read to their end.
func nextData(*os.File, int64) (start, length int64, err error) {
	return 0, 0, errors.ErrUnsupported
}

// allocated is not asked either: the size stands for it.
func allocated(info os.FileInfo) int64 { return info.Size() }

// syncDirectory does nothing: NTFS keeps a journal of names.
func syncDirectory(string) error { return nil }

package hostfile

import (
	"io/fs"
	"os"
	"syscall"
	"time"
)

// Of returns what the host tells about a file that package os has looked at.
func Of(info fs.FileInfo) Stat {
	st := unknown(info)
	if data, ok := info.Sys().(*syscall.Win32FileAttributeData); ok {
		st.Accessed = time.Unix(0, data.LastAccessTime.Nanoseconds())
	}
	return st
}

// SetTimes sets the times of an open file, which must be open for writing.
func SetTimes(file *os.File, accessed, modified time.Time) error {
	a, m := syscall.NsecToFiletime(accessed.UnixNano()), syscall.NsecToFiletime(modified.UnixNano())
	return syscall.SetFileTime(syscall.Handle(file.Fd()), nil, &a, &m)
}

// Touch sets the times of a file of the store to the current time.
func Touch(path string) error {
	now := time.Now()
	return os.Chtimes(path, now, now)
}

package wasi

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// platformStat fills in what fs.FileInfo has no methods for.
func platformStat(st *Filestat, info fs.FileInfo) {
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	st.Dev, st.Ino, st.Nlink = uint64(sys.Dev), sys.Ino, uint64(sys.Nlink)
	st.Atim = uint64(max(sys.Atimespec.Nano(), 0))
	st.Ctim = uint64(max(sys.Ctimespec.Nano(), 0))
}

// platformErrno maps numbers that only this platform has.
func platformErrno(syscall.Errno) (Errno, bool) { return 0, false }

// setFileTimes sets the times of an open file; this platform's call has microseconds.
func setFileTimes(f *os.File, atim, mtim int64) error {
	return unix.Futimes(int(f.Fd()), []unix.Timeval{unix.NsecToTimeval(atim), unix.NsecToTimeval(mtim)})
}

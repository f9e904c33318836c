package wasi

import (
	"io/fs"
	"syscall"
)

// platformStat fills in what fs.FileInfo has no methods for.
func platformStat(st *Filestat, info fs.FileInfo) {
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	st.Dev, st.Ino, st.Nlink = uint64(sys.Dev), sys.Ino, uint64(sys.Nlink)
	st.Atim = uint64(max(sys.Atim.Nano(), 0))
	st.Ctim = uint64(max(sys.Ctim.Nano(), 0))
}

// platformErrno maps numbers that only this platform has.
func platformErrno(syscall.Errno) (Errno, bool) { return 0, false }

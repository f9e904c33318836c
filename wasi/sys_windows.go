package wasi

import (
	"io/fs"
	"syscall"
)

// platformStat fills in the access time; inode and device are not in what os.Stat returns and stay zero.
func platformStat(st *Filestat, info fs.FileInfo) {
	if sys, ok := info.Sys().(*syscall.Win32FileAttributeData); ok {
		st.Atim = uint64(max(sys.LastAccessTime.Nanoseconds(), 0))
	}
}

// windowsErrnos maps the system's own numbers (winerror.h).
var windowsErrnos = map[syscall.Errno]Errno{
	2:    ErrnoNoent,    // ERROR_FILE_NOT_FOUND
	3:    ErrnoNoent,    // ERROR_PATH_NOT_FOUND
	4:    ErrnoMfile,    // ERROR_TOO_MANY_OPEN_FILES
	5:    ErrnoAcces,    // ERROR_ACCESS_DENIED
	6:    ErrnoBadf,     // ERROR_INVALID_HANDLE
	17:   ErrnoXdev,     // ERROR_NOT_SAME_DEVICE
	19:   ErrnoRofs,     // ERROR_WRITE_PROTECT
	32:   ErrnoBusy,     // ERROR_SHARING_VIOLATION
	80:   ErrnoExist,    // ERROR_FILE_EXISTS
	87:   ErrnoInval,    // ERROR_INVALID_PARAMETER
	112:  ErrnoNospc,    // ERROR_DISK_FULL
	123:  ErrnoInval,    // ERROR_INVALID_NAME
	131:  ErrnoInval,    // ERROR_NEGATIVE_SEEK
	145:  ErrnoNotempty, // ERROR_DIR_NOT_EMPTY
	183:  ErrnoExist,    // ERROR_ALREADY_EXISTS
	206:  ErrnoNametoolong,
	267:  ErrnoNotdir, // ERROR_DIRECTORY
	1314: ErrnoPerm,   // ERROR_PRIVILEGE_NOT_HELD
}

// platformErrno maps numbers that only this platform has.
func platformErrno(host syscall.Errno) (Errno, bool) {
	errno, ok := windowsErrnos[host]
	return errno, ok
}

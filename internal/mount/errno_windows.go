package mount

import (
	"syscall"

	"golang.org/x/sys/windows"
)

var hostErrnos = map[syscall.Errno]errno{
	windows.ERROR_ACCESS_DENIED:          errAccess,
	windows.ERROR_SHARING_VIOLATION:      errBusy,
	windows.ERROR_LOCK_VIOLATION:         errBusy,
	windows.ERROR_INVALID_HANDLE:         errBadFile,
	windows.ERROR_NOT_ENOUGH_MEMORY:      errNoMemory,
	windows.ERROR_OUTOFMEMORY:            errNoMemory,
	windows.ERROR_NOT_SAME_DEVICE:        errCrossDevice,
	windows.ERROR_DIRECTORY:              errNotDir,
	windows.ERROR_DIR_NOT_EMPTY:          errNotEmpty,
	windows.ERROR_INVALID_NAME:           errInvalid,
	windows.ERROR_INVALID_PARAMETER:      errInvalid,
	windows.ERROR_TOO_MANY_OPEN_FILES:    errManyFiles,
	windows.ERROR_DISK_FULL:              errNoSpace,
	windows.ERROR_HANDLE_DISK_FULL:       errNoSpace,
	windows.ERROR_WRITE_PROTECT:          errReadOnly,
	windows.ERROR_TOO_MANY_LINKS:         errManyLinks,
	windows.ERROR_FILENAME_EXCED_RANGE:   errNameTooLong,
	windows.ERROR_BUFFER_OVERFLOW:        errNameTooLong,
	windows.ERROR_CANT_RESOLVE_FILENAME:  errLoop,
	windows.ERROR_PRIVILEGE_NOT_HELD:     errPerm,
	windows.ERROR_NOT_SUPPORTED:          errNotSupported,
	windows.ERROR_DISK_QUOTA_EXCEEDED:    errQuota,
	windows.ERROR_FILE_TOO_LARGE:         errFileTooBig,
	windows.ERROR_CURRENT_DIRECTORY:      errBusy,
	windows.ERROR_DELETE_PENDING:         errNoEntry,
	windows.ERROR_NO_UNICODE_TRANSLATION: errBadSequence,
	// Package os returns these invented numbers itself.
	syscall.EISDIR:  errIsDir,
	syscall.ENOTDIR: errNotDir,
	syscall.EINVAL:  errInvalid,
	syscall.ELOOP:   errLoop,
	syscall.EEXIST:  errExist,
	syscall.ENOENT:  errNoEntry,
	syscall.EPERM:   errPerm,
	syscall.EACCES:  errAccess,
	syscall.ENOTSUP: errNotSupported,
	syscall.ENOSYS:  errNotSupported,
	syscall.EXDEV:   errCrossDevice,
}

func hostErrno(e syscall.Errno) errno {
	if n, ok := hostErrnos[e]; ok {
		return n
	}
	return generalErrno(e)
}

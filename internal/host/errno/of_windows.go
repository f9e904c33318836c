package errno

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// extra are what Windows itself reports (winerror.h), and the names of package syscall that are not in Linux's table.
var extra = map[syscall.Errno]Errno{
	windows.ERROR_FILE_NOT_FOUND:         ENOENT,
	windows.ERROR_PATH_NOT_FOUND:         ENOENT,
	windows.ERROR_FILE_EXISTS:            EEXIST,
	windows.ERROR_ALREADY_EXISTS:         EEXIST,
	windows.ERROR_ACCESS_DENIED:          EACCES,
	windows.ERROR_SHARING_VIOLATION:      EBUSY,
	windows.ERROR_LOCK_VIOLATION:         EBUSY,
	windows.ERROR_INVALID_HANDLE:         EBADF,
	windows.ERROR_NOT_ENOUGH_MEMORY:      ENOMEM,
	windows.ERROR_OUTOFMEMORY:            ENOMEM,
	windows.ERROR_NOT_SAME_DEVICE:        EXDEV,
	windows.ERROR_DIRECTORY:              ENOTDIR,
	windows.ERROR_DIR_NOT_EMPTY:          ENOTEMPTY,
	windows.ERROR_INVALID_NAME:           EINVAL,
	windows.ERROR_INVALID_PARAMETER:      EINVAL,
	windows.ERROR_NEGATIVE_SEEK:          EINVAL,
	windows.ERROR_TOO_MANY_OPEN_FILES:    EMFILE,
	windows.ERROR_DISK_FULL:              ENOSPC,
	windows.ERROR_HANDLE_DISK_FULL:       ENOSPC,
	windows.ERROR_WRITE_PROTECT:          EROFS,
	windows.ERROR_TOO_MANY_LINKS:         EMLINK,
	windows.ERROR_FILENAME_EXCED_RANGE:   ENAMETOOLONG,
	windows.ERROR_BUFFER_OVERFLOW:        ENAMETOOLONG,
	windows.ERROR_CANT_RESOLVE_FILENAME:  ELOOP,
	windows.ERROR_PRIVILEGE_NOT_HELD:     EPERM,
	windows.ERROR_NOT_SUPPORTED:          EOPNOTSUPP,
	windows.ERROR_DISK_QUOTA_EXCEEDED:    EDQUOT,
	windows.ERROR_FILE_TOO_LARGE:         EFBIG,
	windows.ERROR_CURRENT_DIRECTORY:      EBUSY,
	windows.ERROR_DELETE_PENDING:         ENOENT,
	windows.ERROR_NO_UNICODE_TRANSLATION: EILSEQ,
	windows.ERROR_BUSY:                   EBUSY,
	windows.ERROR_COMMITMENT_LIMIT:       ENOMEM,
	windows.ERROR_IO_DEVICE:              EIO,
	windows.ERROR_NOT_ENOUGH_QUOTA:       ENOMEM,
	windows.ERROR_NO_SYSTEM_RESOURCES:    ENOMEM,
	windows.ERROR_SEM_TIMEOUT:            ETIMEDOUT,
	windows.ERROR_WORKING_SET_QUOTA:      ENOMEM,
	syscall.ENOTSUP:                      EOPNOTSUPP,
}

//go:build unix && !linux

package mount

import "syscall"

var hostErrnos = map[syscall.Errno]errno{
	syscall.EPERM:        errPerm,
	syscall.ENOENT:       errNoEntry,
	syscall.EIO:          errIO,
	syscall.ENXIO:        errNoAddress,
	syscall.EBADF:        errBadFile,
	syscall.ENOMEM:       errNoMemory,
	syscall.EACCES:       errAccess,
	syscall.EBUSY:        errBusy,
	syscall.EEXIST:       errExist,
	syscall.EXDEV:        errCrossDevice,
	syscall.ENOTDIR:      errNotDir,
	syscall.EISDIR:       errIsDir,
	syscall.EINVAL:       errInvalid,
	syscall.ENFILE:       errTableFull,
	syscall.EMFILE:       errManyFiles,
	syscall.EFBIG:        errFileTooBig,
	syscall.ENOSPC:       errNoSpace,
	syscall.EROFS:        errReadOnly,
	syscall.EMLINK:       errManyLinks,
	syscall.ENAMETOOLONG: errNameTooLong,
	syscall.ENOTEMPTY:    errNotEmpty,
	syscall.ELOOP:        errLoop,
	syscall.EILSEQ:       errBadSequence,
	syscall.ENOTSUP:      errNotSupported,
	syscall.EOPNOTSUPP:   errNotSupported,
	syscall.ESTALE:       errStale,
	syscall.EDQUOT:       errQuota,
}

func hostErrno(e syscall.Errno) errno {
	if n, ok := hostErrnos[e]; ok {
		return n
	}
	return generalErrno(e)
}

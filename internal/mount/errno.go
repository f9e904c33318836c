package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// errno is an error number as Rlerror carries it: Linux' generic numbers, whatever the host's are.
type errno uint32

// Numbers from Linux' include/uapi/asm-generic/errno-base.h and errno.h.
const (
	errPerm         errno = 1
	errNoEntry      errno = 2
	errIO           errno = 5
	errNoAddress    errno = 6
	errBadFile      errno = 9
	errNoMemory     errno = 12
	errAccess       errno = 13
	errBusy         errno = 16
	errExist        errno = 17
	errCrossDevice  errno = 18
	errNotDir       errno = 20
	errIsDir        errno = 21
	errInvalid      errno = 22
	errTableFull    errno = 23
	errManyFiles    errno = 24
	errFileTooBig   errno = 27
	errNoSpace      errno = 28
	errReadOnly     errno = 30
	errManyLinks    errno = 31
	errNameTooLong  errno = 36
	errNotEmpty     errno = 39
	errLoop         errno = 40
	errBadSequence  errno = 84
	errNotSupported errno = 95
	errStale        errno = 116
	errQuota        errno = 122
)

func (e errno) Error() string { return fmt.Sprintf("errno %d", uint32(e)) }

// toErrno translates an error of the host to the guest's number. What the host cannot name is an I/O error.
func (s *Server) toErrno(err error) errno {
	var own errno
	var host syscall.Errno
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &host):
		return hostErrno(host)
	case errors.Is(err, s.escapes):
		// Only a link that was swapped in during the call gets here: an ordinary one ends the walk.
		return errAccess
	case errors.Is(err, os.ErrClosed):
		return errBadFile
	}
	return generalErrno(err)
}

// generalErrno knows the errors that Go itself describes.
func generalErrno(err error) errno {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errNoEntry
	case errors.Is(err, fs.ErrExist):
		return errExist
	case errors.Is(err, fs.ErrPermission):
		return errAccess
	case errors.Is(err, fs.ErrInvalid):
		return errInvalid
	case errors.Is(err, errors.ErrUnsupported):
		return errNotSupported
	}
	return errIO
}

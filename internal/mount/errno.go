package mount

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"agentvm/internal/errno"
)

// toErrno translates an error of the host to the guest's number. What the host cannot name is an I/O error.
func (s *Server) toErrno(err error) errno.Errno {
	var own errno.Errno
	var host syscall.Errno
	switch {
	case errors.As(err, &own):
		return own
	case errors.As(err, &host):
		if n := errno.Of(host); n != 0 {
			return n
		}
		return generalErrno(host)
	case errors.Is(err, s.escapes):
		// Only a link that was swapped in during the call gets here: an ordinary one ends the walk.
		return errno.EACCES
	case errors.Is(err, os.ErrClosed):
		return errno.EBADF
	}
	return generalErrno(err)
}

// generalErrno knows the errors that Go itself describes.
func generalErrno(err error) errno.Errno {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errno.ENOENT
	case errors.Is(err, fs.ErrExist):
		return errno.EEXIST
	case errors.Is(err, fs.ErrPermission):
		return errno.EACCES
	case errors.Is(err, fs.ErrInvalid):
		return errno.EINVAL
	case errors.Is(err, errors.ErrUnsupported):
		return errno.EOPNOTSUPP
	}
	return errno.EIO
}

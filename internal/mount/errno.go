package mount

import (
	"errors"
	"io/fs"
	"os"

	"agentvm/internal/errno"
)

// toErrno translates an error of the host to the number that Rlerror carries. What the host cannot name is an I/O error.
func (s *Server) toErrno(err error) errno.Errno {
	if number := errno.In(err); number != 0 {
		return number
	}
	switch {
	case errors.Is(err, s.escapes):
		// Only a link that was swapped in during the call gets here: an ordinary one ends the walk.
		return errno.EACCES
	case errors.Is(err, os.ErrClosed):
		return errno.EBADF
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

// Package shortage distinguishes errors of a host that lacks a resource, or is busy, from those of a file that is wrong. A file that
// cannot be read for lack of a descriptor may be readable a moment later: it must not count as damaged, and not be removed.
package shortage

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"agentvm/internal/host/errno"
)

// Is reports whether err is of a kind that passes, or that the user can end without giving up the file: no descriptors, memory, room or
// permission, a device that does not answer, a lock that another process has, a context that has ended.
func Is(err error) bool {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	_, known := advice[errno.In(err)]
	return known
}

// Advice returns what the user can do about such an error, or nothing.
func Advice(err error) string { return advice[errno.In(err)] }

// advice has the errors of a shortage, with what the user can do about it. Where that is nothing, waiting helps.
var advice = map[errno.Errno]string{
	errno.EMFILE: manyFiles, errno.ENFILE: allFiles, errno.ENOSPC: fullDisk, errno.EDQUOT: quota, errno.ENOMEM: memory, errno.EIO: device,
	errno.ENOBUFS: memory, errno.EAGAIN: "", errno.EINTR: "", errno.EBUSY: "", errno.ETXTBSY: "", errno.ENOLCK: "", errno.ESTALE: "",
	errno.ETIMEDOUT: "",
}

const (
	manyFiles = "this process may have no more files open: raise the limit (ulimit -n)"
	allFiles  = "the host may have no more files open: end some programs"
	fullDisk  = "the disk is full: free some space"
	quota     = "the disk's quota is used up: free some space"
	memory    = "there is no memory left: end some programs"
	device    = "the disk does not answer as it should: look at the system's log"
)

package wasi

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// hostErrnos maps the host's numbers that have a namesake in preview 1. The names exist on all hosts, on Windows as
// numbers of package syscall's own.
var hostErrnos = map[syscall.Errno]Errno{
	syscall.E2BIG: ErrnoTooBig, syscall.EACCES: ErrnoAcces, syscall.EAGAIN: ErrnoAgain, syscall.EBADF: ErrnoBadf,
	syscall.EBUSY: ErrnoBusy, syscall.EDQUOT: ErrnoDquot, syscall.EEXIST: ErrnoExist, syscall.EFAULT: ErrnoFault,
	syscall.EFBIG: ErrnoFbig, syscall.EILSEQ: ErrnoIlseq, syscall.EINTR: ErrnoIntr, syscall.EINVAL: ErrnoInval,
	syscall.EIO: ErrnoIo, syscall.EISDIR: ErrnoIsdir, syscall.ELOOP: ErrnoLoop, syscall.EMFILE: ErrnoMfile,
	syscall.EMLINK: ErrnoMlink, syscall.ENAMETOOLONG: ErrnoNametoolong, syscall.ENFILE: ErrnoNfile,
	syscall.ENODEV: ErrnoNodev, syscall.ENOENT: ErrnoNoent, syscall.ENOMEM: ErrnoNomem, syscall.ENOSPC: ErrnoNospc,
	syscall.ENOSYS: ErrnoNosys, syscall.ENOTDIR: ErrnoNotdir, syscall.ENOTEMPTY: ErrnoNotempty,
	syscall.ENOTSUP: ErrnoNotsup, syscall.ENOTTY: ErrnoNotty, syscall.ENXIO: ErrnoNxio, syscall.EOVERFLOW: ErrnoOverflow,
	syscall.EPERM: ErrnoPerm, syscall.EPIPE: ErrnoPipe, syscall.EROFS: ErrnoRofs, syscall.ESPIPE: ErrnoSpipe,
	syscall.ESTALE: ErrnoStale, syscall.ETIMEDOUT: ErrnoTimedout, syscall.ETXTBSY: ErrnoTxtbsy, syscall.EXDEV: ErrnoXdev,
	syscall.ECONNRESET: ErrnoConnreset, syscall.ECONNABORTED: ErrnoConnaborted, syscall.ENOTCONN: ErrnoNotconn,
}

// errnoOf returns the number that a guest sees for an error of the host; what has no number of its own is ErrnoIo.
func errnoOf(err error) Errno {
	if err == nil {
		return ErrnoSuccess
	}
	var own Errno
	if errors.As(err, &own) {
		return own
	}
	var host syscall.Errno
	if errors.As(err, &host) {
		if errno, ok := platformErrno(host); ok {
			return errno
		}
		if errno, ok := hostErrnos[host]; ok {
			return errno
		}
	}
	return errnoOfKind(err)
}

// errnoOfKind maps errors that are not numbers.
func errnoOfKind(err error) Errno {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ErrnoNoent
	case errors.Is(err, fs.ErrExist):
		return ErrnoExist
	case errors.Is(err, fs.ErrPermission):
		return ErrnoAcces
	case errors.Is(err, os.ErrClosed), errors.Is(err, io.ErrClosedPipe):
		return ErrnoBadf
	case errors.Is(err, fs.ErrInvalid):
		return ErrnoInval
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return ErrnoTimedout
	case escapes(err):
		return ErrnoPerm
	}
	return ErrnoIo
}

// escapes says whether err is os.Root's refusal to leave its directory. Package os does not export that error, so its
// text is compared; a test holds the text.
func escapes(err error) bool {
	var pathErr *fs.PathError
	var linkErr *os.LinkError
	switch {
	case errors.As(err, &pathErr):
		err = pathErr.Err
	case errors.As(err, &linkErr):
		err = linkErr.Err
	}
	return strings.Contains(err.Error(), "path escapes from parent")
}

package wasi

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"agentvm/internal/host/errno"
)

// linuxErrnos maps Linux's numbers, and so those of every host, to their namesakes in preview 1.
var linuxErrnos = map[errno.Errno]Errno{
	errno.E2BIG: ErrnoTooBig, errno.EACCES: ErrnoAcces, errno.EAGAIN: ErrnoAgain, errno.EBADF: ErrnoBadf, errno.EBUSY: ErrnoBusy,
	errno.EDQUOT: ErrnoDquot, errno.EEXIST: ErrnoExist, errno.EFAULT: ErrnoFault, errno.EFBIG: ErrnoFbig, errno.EILSEQ: ErrnoIlseq,
	errno.EINTR: ErrnoIntr, errno.EINVAL: ErrnoInval, errno.EIO: ErrnoIo, errno.EISDIR: ErrnoIsdir, errno.ELOOP: ErrnoLoop,
	errno.EMFILE: ErrnoMfile, errno.EMLINK: ErrnoMlink, errno.ENAMETOOLONG: ErrnoNametoolong, errno.ENFILE: ErrnoNfile,
	errno.ENODEV: ErrnoNodev, errno.ENOENT: ErrnoNoent, errno.ENOMEM: ErrnoNomem, errno.ENOSPC: ErrnoNospc, errno.ENOSYS: ErrnoNosys,
	errno.ENOTDIR: ErrnoNotdir, errno.ENOTEMPTY: ErrnoNotempty, errno.EOPNOTSUPP: ErrnoNotsup, errno.ENOTTY: ErrnoNotty,
	errno.ENXIO: ErrnoNxio, errno.EOVERFLOW: ErrnoOverflow, errno.EPERM: ErrnoPerm, errno.EPIPE: ErrnoPipe, errno.EROFS: ErrnoRofs,
	errno.ESPIPE: ErrnoSpipe, errno.ESTALE: ErrnoStale, errno.ETIMEDOUT: ErrnoTimedout, errno.ETXTBSY: ErrnoTxtbsy, errno.EXDEV: ErrnoXdev,
	errno.ECONNRESET: ErrnoConnreset, errno.ECONNABORTED: ErrnoConnaborted, errno.ENOTCONN: ErrnoNotconn,
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
	if number, ok := linuxErrnos[errno.In(err)]; ok {
		return number
	}
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

package capnprpc

import (
	"errors"
	"strings"
	"syscall"

	"agentvm/internal/capnprpc/streamwire"
)

// LinuxFailure gives err Linux's number for the errno found in it, by name. Only a daemon needs it, which may run on another system
// than Linux.
func LinuxFailure(err error) error {
	var own *Error
	var number syscall.Errno
	if err == nil || errors.As(err, &own) || !errors.As(err, &number) {
		return err
	}
	e := &Error{Kind: KindSystem, Message: err.Error()}
	for linux, here := range hostErrno {
		if here == number {
			e.Errno = linux
		}
	}
	return e
}

// Kind says what sort of failure an Error is.
type Kind uint16

// The kinds of failure.
const (
	KindSystem  = Kind(streamwire.FailureKind_system)  // a system call in the guest failed: see Errno
	KindInvalid = Kind(streamwire.FailureKind_invalid) // the request makes no sense
	KindState   = Kind(streamwire.FailureKind_state)   // right request at the wrong time
	KindLimit   = Kind(streamwire.FailureKind_limit)   // a limit in the guest is reached
)

// Error is a failure reported by the guest. errors.Is(err, syscall.ENOENT) and errors.Is(err, fs.ErrNotExist) hold on
// every host system: Errno is Linux's number and is translated by the error's name.
type Error struct {
	Kind    Kind
	Errno   int32 // Linux number (asm-generic/errno.h); 0: none
	Message string
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns this system's syscall.Errno of the same name, or nil.
func (e *Error) Unwrap() error {
	if n, ok := hostErrno[e.Errno]; ok {
		return n
	}
	return nil
}

// ErrClosed is returned by every call on a client or connection that is closed or lost. The reason, when there is one,
// is in Client.Err.
var ErrClosed = errors.New("connection to the guest is closed")

// hostErrno maps Linux's numbers (asm-generic, as on riscv64) to this system's errors of the same name. It holds the
// names that Go's syscall package has on Linux, macOS and Windows alike.
var hostErrno = map[int32]syscall.Errno{
	1: syscall.EPERM, 2: syscall.ENOENT, 3: syscall.ESRCH, 4: syscall.EINTR, 5: syscall.EIO, 6: syscall.ENXIO,
	7: syscall.E2BIG, 8: syscall.ENOEXEC, 9: syscall.EBADF, 10: syscall.ECHILD, 11: syscall.EAGAIN,
	12: syscall.ENOMEM, 13: syscall.EACCES, 14: syscall.EFAULT, 15: syscall.ENOTBLK, 16: syscall.EBUSY,
	17: syscall.EEXIST, 18: syscall.EXDEV, 19: syscall.ENODEV, 20: syscall.ENOTDIR, 21: syscall.EISDIR,
	22: syscall.EINVAL, 23: syscall.ENFILE, 24: syscall.EMFILE, 25: syscall.ENOTTY, 26: syscall.ETXTBSY,
	27: syscall.EFBIG, 28: syscall.ENOSPC, 29: syscall.ESPIPE, 30: syscall.EROFS, 31: syscall.EMLINK,
	32: syscall.EPIPE, 33: syscall.EDOM, 34: syscall.ERANGE, 35: syscall.EDEADLK, 36: syscall.ENAMETOOLONG,
	37: syscall.ENOLCK, 38: syscall.ENOSYS, 39: syscall.ENOTEMPTY, 40: syscall.ELOOP, 42: syscall.ENOMSG,
	43: syscall.EIDRM, 61: syscall.ENODATA, 62: syscall.ETIME, 71: syscall.EPROTO, 74: syscall.EBADMSG,
	75: syscall.EOVERFLOW, 84: syscall.EILSEQ, 87: syscall.EUSERS, 88: syscall.ENOTSOCK, 89: syscall.EDESTADDRREQ,
	90: syscall.EMSGSIZE, 91: syscall.EPROTOTYPE, 92: syscall.ENOPROTOOPT, 93: syscall.EPROTONOSUPPORT,
	94: syscall.ESOCKTNOSUPPORT, 95: syscall.EOPNOTSUPP, 96: syscall.EPFNOSUPPORT, 97: syscall.EAFNOSUPPORT,
	98: syscall.EADDRINUSE, 99: syscall.EADDRNOTAVAIL, 100: syscall.ENETDOWN, 101: syscall.ENETUNREACH,
	102: syscall.ENETRESET, 103: syscall.ECONNABORTED, 104: syscall.ECONNRESET, 105: syscall.ENOBUFS,
	106: syscall.EISCONN, 107: syscall.ENOTCONN, 108: syscall.ESHUTDOWN, 109: syscall.ETOOMANYREFS,
	110: syscall.ETIMEDOUT, 111: syscall.ECONNREFUSED, 112: syscall.EHOSTDOWN, 113: syscall.EHOSTUNREACH,
	114: syscall.EALREADY, 115: syscall.EINPROGRESS, 116: syscall.ESTALE, 122: syscall.EDQUOT,
	125: syscall.ECANCELED,
}

// FailureOf reads a wire failure; nil when there is none.
func FailureOf(f streamwire.Failure, err error) error {
	if err != nil {
		return err
	}
	if !f.IsValid() {
		return nil
	}
	reason, err := f.Reason()
	if err != nil {
		return err
	}
	return &Error{Kind: Kind(f.Kind()), Errno: f.Errno(), Message: bounded(reason)}
}

// maxReason bounds, in bytes, the message of an error that comes from the peer: callers may keep errors for long.
const maxReason = 64 << 10

// bounded cuts a reason to maxReason, when it is sent and when it arrives.
func bounded(reason string) string {
	if len(reason) > maxReason {
		return strings.ToValidUTF8(reason[:maxReason], "") + " ..."
	}
	return reason
}

// SetFailure writes err to the wire. In the guest, which is Linux, its errno needs no translation; a daemon calls LinuxFailure first.
func SetFailure(f streamwire.Failure, err error) error {
	kind, errno := KindInvalid, int32(0)
	var own *Error
	var number syscall.Errno
	switch {
	case errors.As(err, &own):
		kind, errno = own.Kind, own.Errno
	case errors.As(err, &number):
		kind, errno = KindSystem, int32(number)
	}
	f.SetKind(streamwire.FailureKind(kind))
	f.SetErrno(errno)
	return f.SetReason(bounded(err.Error()))
}

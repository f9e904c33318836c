package capnprpc

import (
	"errors"
	"strings"
	"syscall"

	"agentvm/internal/guest/capnprpc/streamwire"
	"agentvm/internal/host/errno"
)

// LinuxFailure gives err Linux's number for the errno found in it, by name. Only a daemon needs it, which may run on another system
// than Linux.
func LinuxFailure(err error) error {
	var own *Error
	var number syscall.Errno
	if err == nil || errors.As(err, &own) || !errors.As(err, &number) {
		return err
	}
	return &Error{Kind: KindSystem, Errno: errno.Of(number), Message: err.Error()}
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
	Errno   errno.Errno // 0: none
	Message string
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns this system's syscall.Errno of the same name, or nil.
func (e *Error) Unwrap() error {
	if n := e.Errno.Host(); n != 0 {
		return n
	}
	return nil
}

// ErrClosed is returned by every call on a client or connection that is closed or lost. The reason, when there is one,
// is in Client.Err.
var ErrClosed = errors.New("connection to the guest is closed")

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
	return &Error{Kind: Kind(f.Kind()), Errno: errno.Errno(f.Errno()), Message: bounded(reason)}
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
	kind, n := KindInvalid, errno.Errno(0)
	var own *Error
	var number syscall.Errno
	switch {
	case errors.As(err, &own):
		kind, n = own.Kind, own.Errno
	case errors.As(err, &number):
		kind, n = KindSystem, errno.Errno(number)
	}
	f.SetKind(streamwire.FailureKind(kind))
	f.SetErrno(int32(n))
	return f.SetReason(bounded(err.Error()))
}

// Package errno has Linux's error numbers, which the guest's kernel and the protocols to it use whatever system the host is, and their
// translation to and from the host's own numbers of the same names. WASI numbers errors differently; those are package wasi's.
package errno

import (
	"errors"
	"fmt"
	"syscall"
)

// Errno is one of Linux's error numbers, as all architectures have them that share include/uapi/asm-generic/errno.h, riscv64 among them.
type Errno int32

// The numbers whose names Go's package syscall has on Linux, macOS and Windows alike.
const (
	EPERM           Errno = 1
	ENOENT          Errno = 2
	ESRCH           Errno = 3
	EINTR           Errno = 4
	EIO             Errno = 5
	ENXIO           Errno = 6
	E2BIG           Errno = 7
	ENOEXEC         Errno = 8
	EBADF           Errno = 9
	ECHILD          Errno = 10
	EAGAIN          Errno = 11
	ENOMEM          Errno = 12
	EACCES          Errno = 13
	EFAULT          Errno = 14
	ENOTBLK         Errno = 15
	EBUSY           Errno = 16
	EEXIST          Errno = 17
	EXDEV           Errno = 18
	ENODEV          Errno = 19
	ENOTDIR         Errno = 20
	EISDIR          Errno = 21
	EINVAL          Errno = 22
	ENFILE          Errno = 23
	EMFILE          Errno = 24
	ENOTTY          Errno = 25
	ETXTBSY         Errno = 26
	EFBIG           Errno = 27
	ENOSPC          Errno = 28
	ESPIPE          Errno = 29
	EROFS           Errno = 30
	EMLINK          Errno = 31
	EPIPE           Errno = 32
	EDOM            Errno = 33
	ERANGE          Errno = 34
	EDEADLK         Errno = 35
	ENAMETOOLONG    Errno = 36
	ENOLCK          Errno = 37
	ENOSYS          Errno = 38
	ENOTEMPTY       Errno = 39
	ELOOP           Errno = 40
	ENOMSG          Errno = 42
	EIDRM           Errno = 43
	ENODATA         Errno = 61
	ETIME           Errno = 62
	EPROTO          Errno = 71
	EBADMSG         Errno = 74
	EOVERFLOW       Errno = 75
	EILSEQ          Errno = 84
	EUSERS          Errno = 87
	ENOTSOCK        Errno = 88
	EDESTADDRREQ    Errno = 89
	EMSGSIZE        Errno = 90
	EPROTOTYPE      Errno = 91
	ENOPROTOOPT     Errno = 92
	EPROTONOSUPPORT Errno = 93
	ESOCKTNOSUPPORT Errno = 94
	EOPNOTSUPP      Errno = 95
	EPFNOSUPPORT    Errno = 96
	EAFNOSUPPORT    Errno = 97
	EADDRINUSE      Errno = 98
	EADDRNOTAVAIL   Errno = 99
	ENETDOWN        Errno = 100
	ENETUNREACH     Errno = 101
	ENETRESET       Errno = 102
	ECONNABORTED    Errno = 103
	ECONNRESET      Errno = 104
	ENOBUFS         Errno = 105
	EISCONN         Errno = 106
	ENOTCONN        Errno = 107
	ESHUTDOWN       Errno = 108
	ETOOMANYREFS    Errno = 109
	ETIMEDOUT       Errno = 110
	ECONNREFUSED    Errno = 111
	EHOSTDOWN       Errno = 112
	EHOSTUNREACH    Errno = 113
	EALREADY        Errno = 114
	EINPROGRESS     Errno = 115
	ESTALE          Errno = 116
	EDQUOT          Errno = 122
	ECANCELED       Errno = 125
)

func (e Errno) Error() string { return fmt.Sprintf("errno %d", int32(e)) }

// Host returns the host's error of the same name, or 0 if there is none.
func (e Errno) Host() syscall.Errno { return hosts[e] }

var hosts = map[Errno]syscall.Errno{
	EPERM: syscall.EPERM, ENOENT: syscall.ENOENT, ESRCH: syscall.ESRCH, EINTR: syscall.EINTR, EIO: syscall.EIO, ENXIO: syscall.ENXIO,
	E2BIG: syscall.E2BIG, ENOEXEC: syscall.ENOEXEC, EBADF: syscall.EBADF, ECHILD: syscall.ECHILD, EAGAIN: syscall.EAGAIN,
	ENOMEM: syscall.ENOMEM, EACCES: syscall.EACCES, EFAULT: syscall.EFAULT, ENOTBLK: syscall.ENOTBLK, EBUSY: syscall.EBUSY,
	EEXIST: syscall.EEXIST, EXDEV: syscall.EXDEV, ENODEV: syscall.ENODEV, ENOTDIR: syscall.ENOTDIR, EISDIR: syscall.EISDIR,
	EINVAL: syscall.EINVAL, ENFILE: syscall.ENFILE, EMFILE: syscall.EMFILE, ENOTTY: syscall.ENOTTY, ETXTBSY: syscall.ETXTBSY,
	EFBIG: syscall.EFBIG, ENOSPC: syscall.ENOSPC, ESPIPE: syscall.ESPIPE, EROFS: syscall.EROFS, EMLINK: syscall.EMLINK, EPIPE: syscall.EPIPE,
	EDOM: syscall.EDOM, ERANGE: syscall.ERANGE, EDEADLK: syscall.EDEADLK, ENAMETOOLONG: syscall.ENAMETOOLONG, ENOLCK: syscall.ENOLCK,
	ENOSYS: syscall.ENOSYS, ENOTEMPTY: syscall.ENOTEMPTY, ELOOP: syscall.ELOOP, ENOMSG: syscall.ENOMSG, EIDRM: syscall.EIDRM,
	ENODATA: syscall.ENODATA, ETIME: syscall.ETIME, EPROTO: syscall.EPROTO, EBADMSG: syscall.EBADMSG, EOVERFLOW: syscall.EOVERFLOW,
	EILSEQ: syscall.EILSEQ, EUSERS: syscall.EUSERS, ENOTSOCK: syscall.ENOTSOCK, EDESTADDRREQ: syscall.EDESTADDRREQ,
	EMSGSIZE: syscall.EMSGSIZE, EPROTOTYPE: syscall.EPROTOTYPE, ENOPROTOOPT: syscall.ENOPROTOOPT, EPROTONOSUPPORT: syscall.EPROTONOSUPPORT,
	ESOCKTNOSUPPORT: syscall.ESOCKTNOSUPPORT, EOPNOTSUPP: syscall.EOPNOTSUPP, EPFNOSUPPORT: syscall.EPFNOSUPPORT,
	EAFNOSUPPORT: syscall.EAFNOSUPPORT, EADDRINUSE: syscall.EADDRINUSE, EADDRNOTAVAIL: syscall.EADDRNOTAVAIL, ENETDOWN: syscall.ENETDOWN,
	ENETUNREACH: syscall.ENETUNREACH, ENETRESET: syscall.ENETRESET, ECONNABORTED: syscall.ECONNABORTED, ECONNRESET: syscall.ECONNRESET,
	ENOBUFS: syscall.ENOBUFS, EISCONN: syscall.EISCONN, ENOTCONN: syscall.ENOTCONN, ESHUTDOWN: syscall.ESHUTDOWN,
	ETOOMANYREFS: syscall.ETOOMANYREFS, ETIMEDOUT: syscall.ETIMEDOUT, ECONNREFUSED: syscall.ECONNREFUSED, EHOSTDOWN: syscall.EHOSTDOWN,
	EHOSTUNREACH: syscall.EHOSTUNREACH, EALREADY: syscall.EALREADY, EINPROGRESS: syscall.EINPROGRESS, ESTALE: syscall.ESTALE,
	EDQUOT: syscall.EDQUOT, ECANCELED: syscall.ECANCELED,
}

// winsock has the numbers that Windows's sockets fail with (winsock2.h, WSAE...). No other system has numbers as high.
var winsock = map[syscall.Errno]Errno{
	10013: EACCES, 10048: EADDRINUSE, 10049: EADDRNOTAVAIL, 10050: ENETDOWN, 10051: ENETUNREACH, 10053: ECONNABORTED, 10054: ECONNRESET,
	10057: ENOTCONN, 10058: ESHUTDOWN, 10060: ETIMEDOUT, 10061: ECONNREFUSED, 10064: EHOSTDOWN, 10065: EHOSTUNREACH,
}

// In returns the number that err wraps: an Errno, or Linux's number for a syscall.Errno, those of Windows's sockets included. It is 0 when
// there is neither, and when Linux has none.
func In(err error) Errno {
	var own Errno
	var host syscall.Errno
	switch {
	case errors.As(err, &own):
		return own
	case !errors.As(err, &host):
		return 0
	}
	if number, ok := winsock[host]; ok {
		return number
	}
	return Of(host)
}

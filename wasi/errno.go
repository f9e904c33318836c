package wasi

import "strconv"

// Errno is an error number of WASI preview 1 (witx "errno"). The zero value is success. It is what the guest receives;
// as a Go error it carries the specification's name and a short description.
type Errno uint16

// The numbers of preview 1, in the specification's order.
const (
	ErrnoSuccess        Errno = iota // 0: no error
	ErrnoTooBig                      // 1: argument list too long
	ErrnoAcces                       // 2: permission denied
	ErrnoAddrinuse                   // 3: address in use
	ErrnoAddrnotavail                // 4: address not available
	ErrnoAfnosupport                 // 5: address family not supported
	ErrnoAgain                       // 6: resource temporarily unavailable
	ErrnoAlready                     // 7: connection already in progress
	ErrnoBadf                        // 8: bad file descriptor
	ErrnoBadmsg                      // 9: bad message
	ErrnoBusy                        // 10: device or resource busy
	ErrnoCanceled                    // 11: operation canceled
	ErrnoChild                       // 12: no child processes
	ErrnoConnaborted                 // 13: connection aborted
	ErrnoConnrefused                 // 14: connection refused
	ErrnoConnreset                   // 15: connection reset
	ErrnoDeadlk                      // 16: resource deadlock would occur
	ErrnoDestaddrreq                 // 17: destination address required
	ErrnoDom                         // 18: argument out of domain
	ErrnoDquot                       // 19: disk quota exceeded
	ErrnoExist                       // 20: file exists
	ErrnoFault                       // 21: bad address
	ErrnoFbig                        // 22: file too large
	ErrnoHostunreach                 // 23: host is unreachable
	ErrnoIdrm                        // 24: identifier removed
	ErrnoIlseq                       // 25: illegal byte sequence
	ErrnoInprogress                  // 26: operation in progress
	ErrnoIntr                        // 27: interrupted
	ErrnoInval                       // 28: invalid argument
	ErrnoIo                          // 29: input/output error
	ErrnoIsconn                      // 30: socket is connected
	ErrnoIsdir                       // 31: is a directory
	ErrnoLoop                        // 32: too many levels of symbolic links
	ErrnoMfile                       // 33: too many open files
	ErrnoMlink                       // 34: too many links
	ErrnoMsgsize                     // 35: message too large
	ErrnoMultihop                    // 36: multihop attempted
	ErrnoNametoolong                 // 37: file name too long
	ErrnoNetdown                     // 38: network is down
	ErrnoNetreset                    // 39: connection aborted by network
	ErrnoNetunreach                  // 40: network unreachable
	ErrnoNfile                       // 41: too many open files in system
	ErrnoNobufs                      // 42: no buffer space available
	ErrnoNodev                       // 43: no such device
	ErrnoNoent                       // 44: no such file or directory
	ErrnoNoexec                      // 45: exec format error
	ErrnoNolck                       // 46: no locks available
	ErrnoNolink                      // 47: link has been severed
	ErrnoNomem                       // 48: out of memory
	ErrnoNomsg                       // 49: no message of the desired type
	ErrnoNoprotoopt                  // 50: protocol not available
	ErrnoNospc                       // 51: no space left on device
	ErrnoNosys                       // 52: function not supported
	ErrnoNotconn                     // 53: socket not connected
	ErrnoNotdir                      // 54: not a directory
	ErrnoNotempty                    // 55: directory not empty
	ErrnoNotrecoverable              // 56: state not recoverable
	ErrnoNotsock                     // 57: not a socket
	ErrnoNotsup                      // 58: operation not supported
	ErrnoNotty                       // 59: inappropriate ioctl for device
	ErrnoNxio                        // 60: no such device or address
	ErrnoOverflow                    // 61: value too large
	ErrnoOwnerdead                   // 62: previous owner died
	ErrnoPerm                        // 63: operation not permitted
	ErrnoPipe                        // 64: broken pipe
	ErrnoProto                       // 65: protocol error
	ErrnoProtonosupport              // 66: protocol not supported
	ErrnoPrototype                   // 67: wrong protocol type
	ErrnoRange                       // 68: result too large
	ErrnoRofs                        // 69: read-only file system
	ErrnoSpipe                       // 70: invalid seek
	ErrnoSrch                        // 71: no such process
	ErrnoStale                       // 72: stale file handle
	ErrnoTimedout                    // 73: timed out
	ErrnoTxtbsy                      // 74: text file busy
	ErrnoXdev                        // 75: cross-device link
	ErrnoNotcapable                  // 76: capabilities insufficient
)

// errnoTexts has the specification's name and a description for each number.
var errnoTexts = [...]struct{ name, text string }{
	ErrnoSuccess:        {"ESUCCESS", "no error"},
	ErrnoTooBig:         {"E2BIG", "argument list too long"},
	ErrnoAcces:          {"EACCES", "permission denied"},
	ErrnoAddrinuse:      {"EADDRINUSE", "address in use"},
	ErrnoAddrnotavail:   {"EADDRNOTAVAIL", "address not available"},
	ErrnoAfnosupport:    {"EAFNOSUPPORT", "address family not supported"},
	ErrnoAgain:          {"EAGAIN", "resource temporarily unavailable"},
	ErrnoAlready:        {"EALREADY", "connection already in progress"},
	ErrnoBadf:           {"EBADF", "bad file descriptor"},
	ErrnoBadmsg:         {"EBADMSG", "bad message"},
	ErrnoBusy:           {"EBUSY", "device or resource busy"},
	ErrnoCanceled:       {"ECANCELED", "operation canceled"},
	ErrnoChild:          {"ECHILD", "no child processes"},
	ErrnoConnaborted:    {"ECONNABORTED", "connection aborted"},
	ErrnoConnrefused:    {"ECONNREFUSED", "connection refused"},
	ErrnoConnreset:      {"ECONNRESET", "connection reset"},
	ErrnoDeadlk:         {"EDEADLK", "resource deadlock would occur"},
	ErrnoDestaddrreq:    {"EDESTADDRREQ", "destination address required"},
	ErrnoDom:            {"EDOM", "argument out of domain"},
	ErrnoDquot:          {"EDQUOT", "disk quota exceeded"},
	ErrnoExist:          {"EEXIST", "file exists"},
	ErrnoFault:          {"EFAULT", "bad address"},
	ErrnoFbig:           {"EFBIG", "file too large"},
	ErrnoHostunreach:    {"EHOSTUNREACH", "host is unreachable"},
	ErrnoIdrm:           {"EIDRM", "identifier removed"},
	ErrnoIlseq:          {"EILSEQ", "illegal byte sequence"},
	ErrnoInprogress:     {"EINPROGRESS", "operation in progress"},
	ErrnoIntr:           {"EINTR", "interrupted"},
	ErrnoInval:          {"EINVAL", "invalid argument"},
	ErrnoIo:             {"EIO", "input/output error"},
	ErrnoIsconn:         {"EISCONN", "socket is connected"},
	ErrnoIsdir:          {"EISDIR", "is a directory"},
	ErrnoLoop:           {"ELOOP", "too many levels of symbolic links"},
	ErrnoMfile:          {"EMFILE", "too many open files"},
	ErrnoMlink:          {"EMLINK", "too many links"},
	ErrnoMsgsize:        {"EMSGSIZE", "message too large"},
	ErrnoMultihop:       {"EMULTIHOP", "multihop attempted"},
	ErrnoNametoolong:    {"ENAMETOOLONG", "file name too long"},
	ErrnoNetdown:        {"ENETDOWN", "network is down"},
	ErrnoNetreset:       {"ENETRESET", "connection aborted by network"},
	ErrnoNetunreach:     {"ENETUNREACH", "network unreachable"},
	ErrnoNfile:          {"ENFILE", "too many open files in system"},
	ErrnoNobufs:         {"ENOBUFS", "no buffer space available"},
	ErrnoNodev:          {"ENODEV", "no such device"},
	ErrnoNoent:          {"ENOENT", "no such file or directory"},
	ErrnoNoexec:         {"ENOEXEC", "exec format error"},
	ErrnoNolck:          {"ENOLCK", "no locks available"},
	ErrnoNolink:         {"ENOLINK", "link has been severed"},
	ErrnoNomem:          {"ENOMEM", "out of memory"},
	ErrnoNomsg:          {"ENOMSG", "no message of the desired type"},
	ErrnoNoprotoopt:     {"ENOPROTOOPT", "protocol not available"},
	ErrnoNospc:          {"ENOSPC", "no space left on device"},
	ErrnoNosys:          {"ENOSYS", "function not supported"},
	ErrnoNotconn:        {"ENOTCONN", "socket not connected"},
	ErrnoNotdir:         {"ENOTDIR", "not a directory"},
	ErrnoNotempty:       {"ENOTEMPTY", "directory not empty"},
	ErrnoNotrecoverable: {"ENOTRECOVERABLE", "state not recoverable"},
	ErrnoNotsock:        {"ENOTSOCK", "not a socket"},
	ErrnoNotsup:         {"ENOTSUP", "operation not supported"},
	ErrnoNotty:          {"ENOTTY", "inappropriate ioctl for device"},
	ErrnoNxio:           {"ENXIO", "no such device or address"},
	ErrnoOverflow:       {"EOVERFLOW", "value too large"},
	ErrnoOwnerdead:      {"EOWNERDEAD", "previous owner died"},
	ErrnoPerm:           {"EPERM", "operation not permitted"},
	ErrnoPipe:           {"EPIPE", "broken pipe"},
	ErrnoProto:          {"EPROTO", "protocol error"},
	ErrnoProtonosupport: {"EPROTONOSUPPORT", "protocol not supported"},
	ErrnoPrototype:      {"EPROTOTYPE", "wrong protocol type"},
	ErrnoRange:          {"ERANGE", "result too large"},
	ErrnoRofs:           {"EROFS", "read-only file system"},
	ErrnoSpipe:          {"ESPIPE", "invalid seek"},
	ErrnoSrch:           {"ESRCH", "no such process"},
	ErrnoStale:          {"ESTALE", "stale file handle"},
	ErrnoTimedout:       {"ETIMEDOUT", "timed out"},
	ErrnoTxtbsy:         {"ETXTBSY", "text file busy"},
	ErrnoXdev:           {"EXDEV", "cross-device link"},
	ErrnoNotcapable:     {"ENOTCAPABLE", "capabilities insufficient"},
}

// String returns the specification's name, for instance "ENOENT".
func (e Errno) String() string {
	if int(e) >= len(errnoTexts) {
		return "errno " + strconv.Itoa(int(e))
	}
	return errnoTexts[e].name
}

// Error returns the name and a description, for instance "ENOENT: no such file or directory".
func (e Errno) Error() string {
	if int(e) >= len(errnoTexts) {
		return e.String()
	}
	return errnoTexts[e].name + ": " + errnoTexts[e].text
}

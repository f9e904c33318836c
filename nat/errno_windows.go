package nat

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// What dialling and connections fail with: Winsock's numbers, and those that package netstack uses on every system.
var (
	refusals         = []error{syscall.ECONNREFUSED, windows.WSAECONNREFUSED}
	netUnreachables  = []error{syscall.ENETUNREACH, windows.WSAENETUNREACH, windows.WSAENETDOWN}
	hostUnreachables = []error{syscall.EHOSTUNREACH, windows.WSAEHOSTUNREACH, windows.WSAEHOSTDOWN}
	resets           = []error{
		syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED, syscall.ETIMEDOUT, syscall.ENOTCONN,
		windows.WSAECONNRESET, windows.WSAECONNABORTED, windows.WSAETIMEDOUT, windows.WSAENOTCONN, windows.WSAESHUTDOWN,
	}
)

// What listening fails with. Windows says "access denied" for a port that another program has for itself.
var (
	portsTaken       = []error{syscall.EADDRINUSE, windows.WSAEADDRINUSE, windows.WSAEACCES}
	addressesMissing = []error{syscall.EADDRNOTAVAIL, windows.WSAEADDRNOTAVAIL}
)

//go:build !windows

package nat

import "syscall"

// What dialling and connections fail with.
var (
	refusals         = []error{syscall.ECONNREFUSED}
	netUnreachables  = []error{syscall.ENETUNREACH, syscall.ENETDOWN}
	hostUnreachables = []error{syscall.EHOSTUNREACH, syscall.EHOSTDOWN}
	resets           = []error{syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED, syscall.ETIMEDOUT, syscall.ENOTCONN}
)

// What listening fails with.
var (
	portsTaken       = []error{syscall.EADDRINUSE}
	addressesMissing = []error{syscall.EADDRNOTAVAIL}
)

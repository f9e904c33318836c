//go:build !windows

package nat

import "syscall"

// What listening fails with.
var (
	portsTaken       = []error{syscall.EADDRINUSE}
	addressesMissing = []error{syscall.EADDRNOTAVAIL}
)

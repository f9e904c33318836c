package nat

import (
	"syscall"

	"golang.org/x/sys/windows"
)

// What listening fails with. Windows says "access denied" for a port that another program has for itself.
var (
	portsTaken       = []error{syscall.EADDRINUSE, windows.WSAEADDRINUSE, windows.WSAEACCES}
	addressesMissing = []error{syscall.EADDRNOTAVAIL, windows.WSAEADDRNOTAVAIL}
)

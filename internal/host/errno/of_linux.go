package errno

import "syscall"

// Of returns Linux's number for an error number of the host, or 0 if Linux has none. This host's are Linux's.
func Of(host syscall.Errno) Errno { return Errno(host) }

//go:build linux && !amd64

package confine

import "golang.org/x/sys/unix"

// deniedHere are the system calls that not every processor has.
var deniedHere = []uint32{unix.SYS_KEXEC_FILE_LOAD}

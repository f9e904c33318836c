//go:build unix

package unixsocket

import "syscall"

// limitMode sets the mode of a socket before it has a path, which Linux gives to the file: a confined process may change no file by its name. Other
// systems refuse.
func limitMode(fd uintptr) { _ = syscall.Fchmod(int(fd), mode) }

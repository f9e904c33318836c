//go:build unix

package vm

import "golang.org/x/sys/unix"

// maxOpenFiles is how many files this process may have open, as far as it needs them.
func maxOpenFiles() uint64 {
	const enough = 1 << 16
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return enough
	}
	return min(uint64(limit.Cur), enough)
}

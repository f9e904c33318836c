//go:build unix

package translations

import "golang.org/x/sys/unix"

// available is how many bytes the user may still write where a folder is.
func available(dir string) (uint64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return uint64(st.Bavail) * uint64(st.Bsize), err
}

package mount

import (
	"os"

	"golang.org/x/sys/unix"
)

// hostSearch opens a directory only to pass through it.
const hostSearch = unix.O_RDONLY | unix.O_NONBLOCK

// openBeneath opens a path below a directory without following links.
func openBeneath(root int, name string, flags int, perm uint32) (int, error) {
	return walkBeneath(root, name, flags, perm)
}

// mknodAt makes nothing: macOS has no call for it that takes a descriptor of the directory.
func mknodAt(int, string, uint32) error { return unix.EPERM }

// chmodAt changes the mode of a name that is not a link.
func chmodAt(dir int, name string, mode uint32) error {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EOPNOTSUPP
	}
	return unix.Fchmodat(dir, name, mode, unix.AT_SYMLINK_NOFOLLOW)
}

// born returns when what a name itself means was made, in nanoseconds since 1970; 0 where the file system does not keep that.
func (s *Server) born(name string) (born int64) {
	_ = s.inParent(name, func(dir int, base string) error {
		var st unix.Stat_t
		err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
		born = st.Btim.Nano()
		return err
	})
	return born
}

// hold holds nothing: a birth time is always there.
func (s *Server) hold(string, attr) *os.File { return nil }

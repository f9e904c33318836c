package mount

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"agentvm/internal/host/hostfile"
)

// hostSearch opens a directory only to pass through it.
const hostSearch = unix.O_PATH

// openBeneath opens a path below a directory without following links: in one call where the kernel (5.6) and whatever
// filters its calls let us.
func openBeneath(root int, name string, flags int, perm uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags),
		Mode:    uint64(perm),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_CREAT == 0 {
		how.Mode = 0
	}
	fd := -1
	err := hostfile.Uninterrupted(func() (err error) {
		fd, err = unix.Openat2(root, name, &how)
		return err
	})
	switch err {
	case unix.ENOSYS, unix.EPERM, unix.EAGAIN:
		return walkBeneath(root, name, flags, perm)
	}
	return fd, err
}

// mknodAt makes a FIFO, or a socket at which no program listens.
func mknodAt(dir int, name string, mode uint32) error { return unix.Mknodat(dir, name, mode, 0) }

// chmodAt changes the mode of a name that is not a link. Kernels before 6.6 have no call for that: there a descriptor of the file
// itself is named through /proc.
func chmodAt(dir int, name string, mode uint32) error {
	err := unix.Fchmodat(dir, name, mode, unix.AT_SYMLINK_NOFOLLOW)
	if err != unix.EOPNOTSUPP && err != unix.EPERM {
		return err
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return unix.EOPNOTSUPP
	}
	return unix.Fchmodat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), mode, 0)
}

// born returns when what a name itself means was made, in nanoseconds since 1970; 0 where the file system does not keep that.
func (s *Server) born(name string) (born int64) {
	_ = s.inParent(name, func(dir int, base string) error {
		var st unix.Statx_t
		err := unix.Statx(dir, base, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BTIME, &st)
		if err == nil && st.Mask&unix.STATX_BTIME != 0 {
			born = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
		}
		return err
	})
	return born
}

// hold opens what a name itself means so that its inode is not given to another file, or returns nil. a is what is there.
func (s *Server) hold(name string, a attr) *os.File {
	file, err := s.open(name, unix.O_PATH, 0)
	if err != nil {
		return nil
	}
	if now, err := file.Stat(); err != nil || s.attrOf(now, name).identity() != a.identity() {
		file.Close()
		return nil
	}
	return file
}

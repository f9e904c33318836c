//go:build linux

package files

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

// maxDirs bounds the directories whose times and permissions are set at the end. Those of others are set at once, and their times
// change again when a file is made in them later.
const maxDirs = 1 << 16

// Unpack reads a tar archive into dir, which is made when it is missing.
//
// Names lead nowhere but below dir: leading slashes are dropped, ".." is refused, and so is an entry below a symbolic link
// that leads out of dir (EXDEV). What exists is replaced, except directories: those stay, with their own permissions, owner
// and times, and a symbolic link to a directory stays where the archive has a directory. Owners are kept by number when
// the service runs as root. Devices are made, and blocks of zeros become holes. A file appears whole, under its name by one rename: an
// archive that breaks off leaves the files that came before. A hostile archive can do
// no more to the guest than root can do below dir, and uses the guest's time and space.
func (s *Service) Unpack(ctx context.Context, r io.Reader, dir string, o guestrpc.UnpackOptions) error {
	fd, err := s.tree.open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if isErrno(err, unix.ENOENT) {
		if err = s.MakeDir(dir, 0o755, true); err == nil {
			fd, err = s.tree.open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		}
	}
	if err != nil {
		return err
	}
	u := &unpacker{
		below: tree{fd: fd, resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS},
		ctx:   ctx, o: o, block: make([]byte, blockSize), last: -1, chown: os.Geteuid() == 0,
	}
	if sameFile(fd, s.tree.fd) { // nothing leads out of /, and absolute links are allowed
		u.below.resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	}
	defer u.close()
	return errors.Join(u.run(tar.NewReader(r)), u.finishDirs())
}

func sameFile(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

type unpacker struct {
	ctx   context.Context
	below tree
	o     guestrpc.UnpackOptions
	block []byte
	chown bool
	dirs  []pendingDir
	// last is the open directory of the previous entry, named lastDir; -1: none. Most entries are in the same directory.
	last    int
	lastDir string
}

// pendingDir is a directory that was made and still needs its times and permissions.
type pendingDir struct {
	name   string
	header meta
}

// meta is what an entry says about its file, except for the content.
type meta struct {
	mode     uint32
	uid, gid int
	times    []unix.Timespec
}

func (u *unpacker) run(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the archive: %w", err)
		}
		if err := u.ctx.Err(); err != nil {
			return err
		}
		if err := u.entry(h, r); err != nil {
			return fmt.Errorf("unpack %q: %w", h.Name, err)
		}
	}
}

// inside returns the clean name of an entry below the directory; "." is the directory itself.
func inside(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EXDEV, Message: "the name leads out of the directory"}
		}
	}
	return path.Clean("./" + name), nil
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name, err := inside(h.Name)
	if err != nil || name == "." || h.Typeflag == tar.TypeXGlobalHeader {
		return err
	}
	dir, err := u.dirOf(name)
	if err != nil {
		return err
	}
	base, m := path.Base(name), u.metaOf(h)
	switch h.Typeflag {
	case tar.TypeDir:
		return u.dir(dir, name, base, m)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return u.regular(dir, base, content, m)
	case tar.TypeSymlink:
		return u.special(dir, base, m, func() error { return unix.Symlinkat(h.Linkname, dir, base) })
	case tar.TypeLink:
		return u.link(dir, base, h.Linkname, m)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return u.special(dir, base, m, func() error { return makeNode(dir, base, h) })
	default:
		return &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("kind of entry %q not supported", h.Typeflag)}
	}
}

func makeNode(dir int, name string, h *tar.Header) error {
	kind := uint32(unix.S_IFIFO)
	switch h.Typeflag {
	case tar.TypeChar:
		kind = unix.S_IFCHR
	case tar.TypeBlock:
		kind = unix.S_IFBLK
	}
	return unix.Mknodat(dir, name, kind|0o600, int(unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))))
}

func (u *unpacker) metaOf(h *tar.Header) meta {
	m := meta{mode: uint32(h.Mode & 0o7777), uid: -1, gid: -1}
	if u.chown {
		m.uid, m.gid = h.Uid, h.Gid
		if u.o.Owner != nil {
			m.uid, m.gid = int(u.o.Owner.UID), int(u.o.Owner.GID)
		}
	}
	modified := unix.NsecToTimespec(h.ModTime.UnixNano())
	m.times = []unix.Timespec{{Nsec: unix.UTIME_NOW}, modified}
	return m
}

// dirOf opens the directory of an entry, and makes it when it is missing.
func (u *unpacker) dirOf(name string) (int, error) {
	up := path.Dir(name)
	if u.last >= 0 && up == u.lastDir {
		return u.last, nil
	}
	fd, err := u.below.open(up, unix.O_PATH|unix.O_DIRECTORY, 0)
	if isErrno(err, unix.ENOENT) {
		if err = u.makeParents(up); err == nil {
			fd, err = u.below.open(up, unix.O_PATH|unix.O_DIRECTORY, 0)
		}
	}
	if err != nil {
		return -1, err
	}
	u.closeLast()
	u.last, u.lastDir = fd, up
	return fd, nil
}

// makeParents makes a directory for which the archive has no entry. The caller's open has refused names that are too long.
func (u *unpacker) makeParents(name string) error {
	up := path.Dir(name)
	dir, err := u.below.open(up, unix.O_PATH|unix.O_DIRECTORY, 0)
	if isErrno(err, unix.ENOENT) && up != "." {
		if err = u.makeParents(up); err == nil {
			dir, err = u.below.open(up, unix.O_PATH|unix.O_DIRECTORY, 0)
		}
	}
	if err != nil {
		return err
	}
	defer closeFD(dir)
	if err := unix.Mkdirat(dir, path.Base(name), 0o755); err != nil && err != unix.EEXIST {
		return &os.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return nil
}

// closeLast closes the directory of the previous entry.
func (u *unpacker) closeLast() {
	if u.last >= 0 {
		closeFD(u.last)
	}
	u.last = -1
}

func (u *unpacker) close() {
	u.closeLast()
	closeFD(u.below.fd)
}

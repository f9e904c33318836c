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

	"agentvm/rpc"
)

// maxDirs bounds the directories whose times and permissions are set at the end; further ones are set at once, and their
// times are those of the unpacking when something comes into them later.
const maxDirs = 1 << 16

// Unpack reads a tar archive into dir, which is made when it is missing.
//
// Names lead nowhere but below dir: leading slashes are dropped, ".." is refused, and so is an entry below a symbolic link
// that leads out of dir (EXDEV). What exists is replaced, except directories: those stay, with their own permissions, owner
// and times, and a symbolic link to a directory stays where the archive has a directory. Owners are kept by number when
// the service runs as root. Devices are made. The archive of a hostile guest can do to the guest what root can do below
// dir, and no more; time and space are its own.
func (s *Service) Unpack(ctx context.Context, r io.Reader, dir string, o rpc.UnpackOptions) error {
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
	if same(fd, s.tree.fd) { // nothing leads out of /, and absolute links are meant
		u.below.resolve = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS
	}
	defer u.close()
	return errors.Join(u.run(tar.NewReader(r)), u.finishDirs())
}

func same(a, b int) bool {
	var x, y unix.Stat_t
	return unix.Fstat(a, &x) == nil && unix.Fstat(b, &y) == nil && x.Dev == y.Dev && x.Ino == y.Ino
}

type unpacker struct {
	ctx   context.Context
	below tree
	o     rpc.UnpackOptions
	block []byte
	chown bool
	dirs  []made
	// last is the directory of the entry before, named lastDir; -1: none. Most entries are in the same.
	last    int
	lastDir string
}

// made is a directory that was made and is not finished.
type made struct {
	name   string
	header meta
}

// meta is what an entry says about its file but for the content.
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

// inside is the name of an entry below the directory; "." is the directory itself.
func inside(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", &rpc.Error{Kind: rpc.KindInvalid, Errno: int32(unix.EXDEV), Message: "the name leads out of the directory"}
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
		return u.link(dir, base, h.Linkname)
	case tar.TypeChar, tar.TypeBlock, tar.TypeFifo:
		return u.special(dir, base, m, func() error { return makeNode(dir, base, h) })
	default:
		return &rpc.Error{Kind: rpc.KindInvalid, Errno: int32(unix.EINVAL), Message: fmt.Sprintf("kind of entry %q not supported", h.Typeflag)}
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
	u.forget()
	u.last, u.lastDir = fd, up
	return fd, nil
}

// makeParents makes a directory that the archive has no entry for. The kernel has refused names that are too long.
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

// forget drops the directory of the entry before.
func (u *unpacker) forget() {
	if u.last >= 0 {
		closeFD(u.last)
	}
	u.last = -1
}

func (u *unpacker) close() {
	u.forget()
	closeFD(u.below.fd)
}

//go:build linux

package files

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/errno"
)

const (
	// blockSize is how many bytes of a file are copied at once: as many as a message carries.
	blockSize = 256 << 10
	// maxLinks bounds the files with several names that a packer remembers; others are packed once for each name.
	maxLinks = 1 << 16
	// maxWarnings bounds Summary.Warnings and TornFiles.
	maxWarnings = 16
)

// Pack writes a tar archive; see guestrpc.FilesClient.Pack. It leaves out sockets and files that vanish meanwhile, and fills files
// that shrink with zeros, each with a warning.
func (s *Service) Pack(ctx context.Context, w io.Writer, paths []string, o guestrpc.PackOptions) (guestrpc.Summary, error) {
	buffered := bufio.NewWriterSize(w, blockSize)
	p := &packer{
		ctx: ctx, tree: s.tree, w: tar.NewWriter(buffered), o: o, block: make([]byte, blockSize), links: make(map[fileID]string), torn: s.torn(),
	}
	for _, name := range paths {
		if err := p.addPath(name); err != nil {
			return p.summary, err
		}
	}
	return p.summary, errors.Join(p.w.Close(), buffered.Flush())
}

type fileID struct{ dev, ino uint64 }

type packer struct {
	ctx     context.Context
	tree    tree
	w       *tar.Writer
	o       guestrpc.PackOptions
	block   []byte
	links   map[fileID]string
	torn    func(fd int, st *unix.Stat_t) bool
	device  uint64 // of the path, with OneFileSystem
	summary guestrpc.Summary
}

// node is a file that will be packed, and is not open yet.
type node struct {
	name  string // in the archive
	path  string // for messages
	st    unix.Stat_t
	open  func(flags int) (int, error)
	link  func() string // the target of a symbolic link
	depth int
}

func (p *packer) addPath(name string) error {
	full, inside, err := p.locate(name)
	if err != nil {
		return err
	}
	fd, err := p.tree.handle(full, p.o.FollowPaths)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	n := node{
		name: inside, path: full, link: func() string { return targetOf(fd, "") },
		open: func(flags int) (int, error) { return unix.Open(procName(fd), flags, 0) },
	}
	if err := unix.Fstat(fd, &n.st); err != nil {
		return &os.PathError{Op: "stat", Path: full, Err: err}
	}
	p.device = n.st.Dev
	return p.add(n)
}

// locate returns the full path of name and its name in the archive.
func (p *packer) locate(name string) (full, inside string, err error) {
	if p.o.Dir == "" {
		if _, inside = split(name); inside == "" || inside == "." || inside == ".." {
			inside = "."
		}
		return name, inside, nil
	}
	inside = path.Clean(name)
	if name == "" || strings.HasPrefix(inside, "/") || inside == ".." || strings.HasPrefix(inside, "../") {
		return "", "", &capnprpc.Error{Kind: capnprpc.KindInvalid, Errno: errno.EINVAL, Message: fmt.Sprintf("pack: %q does not lead into %s", name, p.o.Dir)}
	}
	return p.o.Dir + "/" + name, inside, nil
}

func (p *packer) warn(format string, args ...any) {
	if len(p.summary.Warnings) < maxWarnings {
		p.summary.Warnings = append(p.summary.Warnings, fmt.Sprintf(format, args...))
	}
}

// add packs a file and what is below it.
func (p *packer) add(n node) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	header := &tar.Header{
		Name: n.name, Mode: int64(n.st.Mode & 0o7777), Uid: int(n.st.Uid), Gid: int(n.st.Gid),
		ModTime: time.Unix(n.st.Mtim.Unix()), Format: tar.FormatPAX,
	}
	switch n.st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return p.addDir(n, header)
	case unix.S_IFREG:
		return p.addRegular(n, header)
	case unix.S_IFLNK:
		header.Typeflag, header.Linkname = tar.TypeSymlink, n.link()
		if header.Linkname == "" {
			p.warn("%s: vanished", n.path)
			return nil
		}
	case unix.S_IFCHR, unix.S_IFBLK:
		if p.o.Layer && n.st.Mode&unix.S_IFMT == unix.S_IFCHR && n.st.Rdev == 0 {
			header.Name, header.Typeflag = path.Join(path.Dir(n.name), whiteout+path.Base(n.name)), tar.TypeReg
			return p.header(header)
		}
		header.Typeflag = tar.TypeChar
		if n.st.Mode&unix.S_IFMT == unix.S_IFBLK {
			header.Typeflag = tar.TypeBlock
		}
		header.Devmajor, header.Devminor = int64(unix.Major(n.st.Rdev)), int64(unix.Minor(n.st.Rdev))
	case unix.S_IFIFO:
		header.Typeflag = tar.TypeFifo
	default:
		if !p.o.Layer { // an image has none
			p.warn("%s: a socket", n.path)
		}
		return nil
	}
	return p.header(header)
}

func (p *packer) header(h *tar.Header) error {
	p.summary.Entries++
	return p.w.WriteHeader(h)
}

func (p *packer) addDir(n node, header *tar.Header) error {
	if n.depth > maxDepth {
		return errTooDeep
	}
	header.Typeflag, header.Name = tar.TypeDir, n.name+"/"
	other := p.o.OneFileSystem && n.st.Dev != p.device
	fd := -1
	if !other {
		var err error
		if fd, err = n.open(unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC); err != nil {
			return p.unreadable(n, err)
		}
	}
	opaque := p.attributes(fd, header)
	if err := p.header(header); err != nil || other {
		if fd >= 0 {
			closeFD(fd)
		}
		return err
	}
	dir := os.NewFile(uintptr(fd), n.path)
	defer func() { _ = dir.Close() }()
	if opaque {
		if err := p.header(&tar.Header{Typeflag: tar.TypeReg, Name: n.name + "/" + opaqueMark, ModTime: header.ModTime, Format: tar.FormatPAX}); err != nil {
			return err
		}
	}
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if err := p.addBelow(n, fd, name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// unreadable is an error for a path that the caller named, and a warning for a file below one.
func (p *packer) unreadable(n node, err error) error {
	if n.depth == 0 {
		return &os.PathError{Op: "open", Path: n.path, Err: err}
	}
	p.warn("%s: %v", n.path, err)
	return nil
}

func (p *packer) addBelow(up node, dir int, name string) error {
	n := node{
		name: name, path: up.path + "/" + name, depth: up.depth + 1,
		open: func(flags int) (int, error) { return unix.Openat(dir, name, flags|unix.O_NOFOLLOW, 0) },
		link: func() string { return targetOf(dir, name) },
	}
	if up.name != "." {
		n.name = up.name + "/" + name
	}
	if err := unix.Fstatat(dir, name, &n.st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return p.unreadable(n, err)
	}
	return p.add(n)
}

func (p *packer) addRegular(n node, header *tar.Header) error {
	id := fileID{n.st.Dev, n.st.Ino}
	if n.st.Nlink > 1 {
		if first, known := p.links[id]; known {
			header.Typeflag, header.Linkname = tar.TypeLink, first
			return p.header(header)
		}
	}
	fd, err := n.open(unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC)
	if err != nil {
		return p.unreadable(n, err)
	}
	f, err := regular(fd, n.path)
	if err != nil {
		return p.unreadable(n, err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Fstat(fd, &n.st); err != nil {
		return p.unreadable(n, err)
	}
	if p.torn(fd, &n.st) {
		if p.summary.Torn++; len(p.summary.TornFiles) < maxWarnings {
			p.summary.TornFiles = append(p.summary.TornFiles, path.Clean(n.path))
		}
	}
	header.Typeflag, header.Size = tar.TypeReg, n.st.Size
	p.attributes(fd, header)
	if err := p.header(header); err != nil {
		return err
	}
	if n.st.Nlink > 1 && len(p.links) < maxLinks {
		p.links[id] = n.name
	}
	return p.content(n, f)
}

// Names in layers of images (OCI image specification, layer.md, "Whiteouts"): a prefix says that the rest is removed, and a file that of what
// lies below nothing in the directory is left. Overlayfs says the former by a device 0:0 and the latter by an attribute.
const (
	whiteout        = ".wh."
	opaqueMark      = ".wh..wh..opq"
	opaqueAttribute = "trusted.overlay.opaque"
	// maxAttributes bounds the names of a file's attributes, in bytes, and each value, as Linux does (limits.h).
	maxAttributes = 64 << 10
)

// attributes adds the extended attributes that an image may have, for a layer, and reports whether a directory is opaque.
func (p *packer) attributes(fd int, header *tar.Header) (opaque bool) {
	if !p.o.Layer || fd < 0 {
		return false
	}
	names := make([]byte, maxAttributes)
	n, err := unix.Flistxattr(fd, names)
	if err != nil {
		return false
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name != opaqueAttribute && name != "security.capability" && !strings.HasPrefix(name, "user.") {
			continue
		}
		value := make([]byte, maxAttributes)
		n, err := unix.Fgetxattr(fd, name, value)
		switch {
		case err != nil:
		case name == opaqueAttribute:
			opaque = string(value[:n]) == "y"
		default:
			if header.PAXRecords == nil {
				header.PAXRecords = map[string]string{}
			}
			header.PAXRecords["SCHILY.xattr."+name] = string(value[:n])
		}
	}
	return opaque
}

// content writes exactly as many bytes as the header says.
func (p *packer) content(n node, f *os.File) error {
	left := n.st.Size
	ended := false
	for left > 0 {
		if err := p.ctx.Err(); err != nil {
			return err
		}
		b := p.block[:min(left, blockSize)]
		if !ended {
			got, err := io.ReadFull(f, b)
			if err != nil {
				p.warn("%s: has changed while it was read: %v", n.path, err)
				ended = true
			}
			clear(b[got:])
		} else {
			clear(b)
		}
		if _, err := p.w.Write(b); err != nil {
			return err
		}
		p.summary.Bytes += int64(len(b))
		left -= int64(len(b))
	}
	return nil
}

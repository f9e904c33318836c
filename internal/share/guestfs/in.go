package guestfs

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/hostfile"
)

// CopyTo copies a file or a directory from the host into the guest. Where guestPath is a directory, or ends with a slash,
// the copy goes into it under its own name; a hostPath that ends with "/." means what is in that directory. Directories
// that exist are kept and files in them replaced.
//
// A single file is replaced as by WriteFile. Of a tree, permissions, times, symbolic links and several names of a file (hard
// links; not from Windows) are kept, symbolic links as they are, wherever they lead. Blocks of zeros become holes. Owners are
// those of the options, and set-user-ID bits are dropped, unless CopyOptions.KeepOwners. Devices, FIFOs and sockets are left
// out. After an error a part of a tree may be there, but no half of a file.
func (f *Files) CopyTo(ctx context.Context, hostPath, guestPath string, o CopyOptions) (CopyStats, error) {
	if o.KeepOwners && !canKeepOwners {
		return CopyStats{}, fmt.Errorf("copy into the guest: %w: files of this system have no owners by number to keep", errors.ErrUnsupported)
	}
	info, err := os.Stat(hostPath)
	if err != nil {
		return CopyStats{}, fmt.Errorf("copy into the guest: %w", err)
	}
	to, err := f.destination(ctx, hostPath, guestPath)
	if err != nil {
		return CopyStats{}, err
	}
	o.guard = f.guard
	m := newMeter(o)
	if info.IsDir() {
		err = f.treeIn(ctx, hostPath, to, info, m)
	} else {
		err = f.fileIn(ctx, hostPath, to, m)
	}
	if err != nil {
		err = fmt.Errorf("copy %s into the guest: %w", hostPath, err)
	}
	return m.copied, err
}

// destination returns the path in the guest that the copy gets.
func (f *Files) destination(ctx context.Context, hostPath, guestPath string) (string, error) {
	info, err := f.Stat(ctx, guestPath)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	case isContents(hostPath) || !info.IsDir() && !strings.HasSuffix(guestPath, "/"):
		return guestPath, nil
	}
	absolute, err := filepath.Abs(hostPath)
	if err != nil {
		return "", err
	}
	name := filepath.Base(absolute)
	if checkName(name) != nil || name == string(filepath.Separator) {
		return guestPath, nil
	}
	return path.Join(guestPath, name), nil
}

// isContents reports whether a path means what is in a directory.
func isContents(hostPath string) bool {
	p := filepath.ToSlash(hostPath)
	return p == "." || strings.HasSuffix(p, "/.")
}

// openFlags open a FIFO that has replaced a file without waiting for its other end.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

// fileIn copies one file.
func (f *Files) fileIn(ctx context.Context, hostPath, to string, m *meter) error {
	place, err := m.options.place(hostPath)
	if err != nil {
		return err
	}
	defer place.Close()
	if !place.Type.IsRegular() {
		return fmt.Errorf("%w: not a regular file or a directory", fs.ErrInvalid)
	}
	file, err := place.OpenFile(os.O_RDONLY, 0, false)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: not a regular file or a directory", fs.ErrInvalid)
	}
	if m.options.KeepOwners {
		return f.fileWithOwner(ctx, file, info, to, m)
	}
	if err := m.begin(filepath.Base(hostPath), info.Size()); err != nil {
		return err
	}
	err = f.with(ctx, "write", to, func(c *guestrpc.FilesClient) error {
		o, err := c.OpenFile(ctx, to, guestrpc.OpenOptions{Atomic: true, Mode: hostPermissions(info)})
		if err != nil {
			return err
		}
		_, err = o.ReadFrom(ctx, io.TeeReader(file, m), 0)
		if err == nil {
			err = o.Commit(ctx)
		}
		if err == nil && m.options.Owner != (Owner{}) {
			err = c.Lchown(ctx, to, m.options.Owner.UID, m.options.Owner.GID)
		}
		return errors.Join(err, o.Close())
	})
	if err == nil {
		m.report()
	}
	return err
}

// fileWithOwner copies one file as an archive: only Unpack sets a file's owner and set-user-ID bits before the file has its
// name.
func (f *Files) fileWithOwner(ctx context.Context, file *os.File, info fs.FileInfo, to string, m *meter) error {
	dir, name := path.Split(path.Clean(to))
	if _, err := f.Stat(ctx, dir); err != nil {
		return err // unpacking would make it
	}
	return f.unpackFrom(ctx, dir, m, func(p *treePacker) error { return p.content(file, info, p.describe(name, info)) })
}

// hostPermissions returns the permissions that a copy gets. Windows has none.
func hostPermissions(info fs.FileInfo) fs.FileMode {
	switch {
	case runtime.GOOS != "windows":
		return info.Mode().Perm()
	case info.IsDir():
		return 0o755
	}
	return 0o644
}

// treeIn copies what is in a directory as an archive, which the guest unpacks while the host packs it.
func (f *Files) treeIn(ctx context.Context, hostPath, to string, info fs.FileInfo, m *meter) error {
	place, err := m.options.place(hostPath)
	if err != nil {
		return err
	}
	defer place.Close()
	root, err := place.Root()
	if err != nil {
		return err
	}
	defer root.Close()
	if err := f.makeTop(ctx, to, info, m.options); err != nil {
		return err
	}
	return f.unpackFrom(ctx, to, m, func(p *treePacker) error {
		p.root = root
		return p.dir(".")
	})
}

// unpackFrom has the guest unpack into dir what pack writes meanwhile.
func (f *Files) unpackFrom(ctx context.Context, dir string, m *meter, pack func(*treePacker) error) error {
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := packTree(ctx, w, m, pack)
		_ = w.CloseWithError(err) // nil: the end
		packed <- err
	}()
	err := f.with(ctx, "unpack into", dir, func(c *guestrpc.FilesClient) error {
		var o guestrpc.UnpackOptions
		if !m.options.KeepOwners {
			owner := m.options.Owner
			o.Owner = &owner
		}
		return c.Unpack(ctx, dir, r, o)
	})
	_ = r.CloseWithError(errUnpacked)
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, errUnpacked) {
		return packErr // it is the cause of the guest's error
	}
	return err
}

// makeTop creates the directory that the copy goes into.
func (f *Files) makeTop(ctx context.Context, to string, info fs.FileInfo, o CopyOptions) error {
	_, err := f.Stat(ctx, to)
	if err == nil {
		return f.MkdirAll(ctx, to, hostPermissions(info)) // an error when it is not a directory
	}
	owner, mode := o.Owner, hostPermissions(info)
	if o.KeepOwners {
		owner, mode = ownerOf(info), mode|info.Mode()&(fs.ModeSetgid|fs.ModeSticky)
	}
	if up := path.Dir(path.Clean(to)); up != "/" && mode != mode.Perm() {
		if err = f.MkdirAll(ctx, up, mode.Perm()); err != nil { // its parents do not get the set-group-ID and sticky bits
			return err
		}
	}
	if err = f.MkdirAll(ctx, to, mode); err != nil || owner == (Owner{}) {
		return err
	}
	return f.with(ctx, "change the owner of", to, func(c *guestrpc.FilesClient) error { return c.Lchown(ctx, to, owner.UID, owner.GID) })
}

var errUnpacked = errors.New("the archive is not read any more")

// packTree writes an archive. pack adds its entries.
func packTree(ctx context.Context, w io.Writer, m *meter, pack func(*treePacker) error) error {
	buffered := bufio.NewWriterSize(w, copyBlock)
	p := &treePacker{ctx: ctx, meter: m, w: tar.NewWriter(buffered), block: make([]byte, copyBlock), links: make(map[hostFile]string)}
	if err := pack(p); err != nil {
		return err
	}
	return errors.Join(p.w.Close(), buffered.Flush())
}

// maxLinks bounds the files with several names that a treePacker remembers; each name of further ones becomes a file.
const maxLinks = 1 << 16

// treePacker packs a directory of the host. It does not leave the directory, even when others change it meanwhile.
type treePacker struct {
	ctx   context.Context
	root  *os.Root
	meter *meter
	w     *tar.Writer
	block []byte
	links map[hostFile]string // the first name of files that have several
}

// hostFile identifies a file of the host while it exists.
type hostFile struct{ device, file uint64 }

// dir packs the entries of a directory, in the order in which the host lists them.
func (p *treePacker) dir(name string) error {
	d, err := p.root.Open(name)
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		if err := p.entry(path.Join(name, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// entry packs what a name is now.
func (p *treePacker) entry(name string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	info, err := p.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return err
	}
	h := p.describe(name, info)
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := p.header(h); err != nil {
			return err
		}
		return p.dir(name)
	case info.Mode().IsRegular():
		return p.file(name)
	case info.Mode().Type() == fs.ModeSymlink:
		target, err := p.root.Readlink(name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, filepath.ToSlash(target)
		return p.header(h)
	}
	return p.meter.skip(name, "is a "+kindOf(info.Mode()))
}

// describe returns an entry's header except for its kind.
func (p *treePacker) describe(name string, info fs.FileInfo) *tar.Header {
	h := &tar.Header{Name: name, Mode: int64(hostPermissions(info)), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if p.meter.options.KeepOwners {
		owner := ownerOf(info)
		h.Uid, h.Gid = int(owner.UID), int(owner.GID)
		if info.Mode().Type() != fs.ModeSymlink {
			h.Mode = int64(guestrpc.ModeToLinux(info.Mode()) & 0o7777)
		}
	}
	return h
}

// ownerOf returns the numbers of the host's owner.
func ownerOf(info fs.FileInfo) Owner {
	host := hostfile.Of(info)
	return Owner{UID: host.UID, GID: host.GID}
}

func (p *treePacker) header(h *tar.Header) error {
	if err := p.meter.begin(h.Name, h.Size); err != nil {
		return err
	}
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	p.meter.report()
	return nil
}

// file packs a regular file, or another name of one that was packed. It looks at the open file: another file may have taken the
// name since the directory was read.
func (p *treePacker) file(name string) error {
	f, err := p.root.OpenFile(name, openFlags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return p.meter.skip(name, "changed while it was copied")
	}
	h, host := p.describe(name, info), hostfile.Of(info)
	if host.Links > 1 {
		file := hostFile{host.Device, host.Inode}
		if first, known := p.links[file]; known {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return p.header(h)
		}
		if len(p.links) < maxLinks {
			p.links[file] = name
		}
	}
	return p.content(f, info, h)
}

// content packs a regular file with its present length: what is appended meanwhile is left out, and a file that shrinks is an error.
func (p *treePacker) content(f *os.File, info fs.FileInfo, h *tar.Header) error {
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if err := p.meter.begin(h.Name, h.Size); err != nil {
		return err
	}
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(io.MultiWriter(p.w, p.meter), struct{ io.Reader }{io.LimitReader(f, h.Size)}, p.block)
	if err == nil && n < h.Size {
		err = fmt.Errorf("%s became shorter while it was copied: try again", h.Name)
	}
	p.meter.report()
	return err
}

// kindOf names a kind of file that is not copied.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeDevice != 0:
		return "device"
	case mode&fs.ModeNamedPipe != 0:
		return "FIFO"
	case mode&fs.ModeSocket != 0:
		return "socket"
	}
	return "file of an unknown kind"
}

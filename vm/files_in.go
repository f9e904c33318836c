package vm

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

	"agentvm/rpc"
)

// CopyIn copies a file or a directory of the host's into the guest. Where guestPath is a directory, or ends with a slash,
// the copy goes into it under its own name; a hostPath that ends with "/." means what is in that directory. Directories
// that exist are kept and files in them replaced.
//
// A single file is replaced as by WriteFile. Of a tree, permissions, times and symbolic links are kept, links as they are,
// wherever they lead; set-user-ID bits are not, and several names of a file become several files. Devices, FIFOs and sockets are
// left out. After an error a part of a tree may be there.
func (f *Files) CopyIn(ctx context.Context, hostPath, guestPath string, o CopyOptions) (Copied, error) {
	info, err := os.Stat(hostPath)
	if err != nil {
		return Copied{}, fmt.Errorf("copy into the guest: %w", err)
	}
	to, err := f.destination(ctx, hostPath, guestPath)
	if err != nil {
		return Copied{}, err
	}
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

// destination is the path in the guest that the copy gets.
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

// isContents says whether a path means what is in a directory.
func isContents(hostPath string) bool {
	p := filepath.ToSlash(hostPath)
	return p == "." || strings.HasSuffix(p, "/.")
}

// openFlags let nobody wait for a FIFO that has taken a file's place.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

// fileIn copies one file.
func (f *Files) fileIn(ctx context.Context, hostPath, to string, m *meter) error {
	file, err := os.OpenFile(hostPath, openFlags, 0)
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
	if err := m.begin(filepath.Base(hostPath), info.Size()); err != nil {
		return err
	}
	err = f.with(ctx, "write", to, func(c *rpc.FilesClient) error {
		o, err := c.OpenFile(ctx, to, rpc.OpenOptions{Atomic: true, Mode: hostPermissions(info)})
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
		m.tell()
	}
	return err
}

// hostPermissions are those of a copy. Windows knows none.
func hostPermissions(info fs.FileInfo) fs.FileMode {
	switch {
	case runtime.GOOS != "windows":
		return info.Mode().Perm()
	case info.IsDir():
		return 0o755
	}
	return 0o644
}

// treeIn copies what is in a directory: as an archive, which the guest unpacks while it is made.
func (f *Files) treeIn(ctx context.Context, hostPath, to string, info fs.FileInfo, m *meter) error {
	root, err := os.OpenRoot(hostPath)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := f.makeTop(ctx, to, info, m.options.Owner); err != nil {
		return err
	}
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := packTree(ctx, w, root, m)
		_ = w.CloseWithError(err) // nil: the end
		packed <- err
	}()
	err = f.with(ctx, "unpack into", to, func(c *rpc.FilesClient) error {
		owner := m.options.Owner
		return c.Unpack(ctx, to, r, rpc.UnpackOptions{Owner: &owner})
	})
	_ = r.CloseWithError(errUnpacked)
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, errUnpacked) {
		return packErr // it is the cause, and on this side
	}
	return err
}

// makeTop makes the directory that the copy goes into.
func (f *Files) makeTop(ctx context.Context, to string, info fs.FileInfo, owner Owner) error {
	_, err := f.Stat(ctx, to)
	if err == nil {
		return f.MkdirAll(ctx, to, hostPermissions(info)) // an error when it is none
	}
	if err = f.MkdirAll(ctx, to, hostPermissions(info)); err != nil || owner == (Owner{}) {
		return err
	}
	return f.Chown(ctx, to, owner)
}

var errUnpacked = errors.New("the archive is not read any more")

// packTree writes an archive of what is in root.
func packTree(ctx context.Context, w io.Writer, root *os.Root, m *meter) error {
	buffered := bufio.NewWriterSize(w, copyBlock)
	p := &treePacker{ctx: ctx, root: root, meter: m, w: tar.NewWriter(buffered), block: make([]byte, copyBlock)}
	if err := p.dir("."); err != nil {
		return err
	}
	return errors.Join(p.w.Close(), buffered.Flush())
}

// treePacker packs a directory of the host's. It stays inside, whoever changes the directory meanwhile.
type treePacker struct {
	ctx   context.Context
	root  *os.Root
	meter *meter
	w     *tar.Writer
	block []byte
}

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

func (p *treePacker) entry(name string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	info, err := p.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it went meanwhile
	}
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Mode: int64(hostPermissions(info)), ModTime: info.ModTime(), Format: tar.FormatPAX}
	switch {
	case info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
		if err := p.header(h); err != nil {
			return err
		}
		return p.dir(name)
	case info.Mode().IsRegular():
		return p.file(h)
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

func (p *treePacker) header(h *tar.Header) error {
	if err := p.meter.begin(h.Name, h.Size); err != nil {
		return err
	}
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	p.meter.tell()
	return nil
}

// file packs a regular file as it is now: what is appended meanwhile is left out, and one that shrinks is an error.
func (p *treePacker) file(h *tar.Header) error {
	f, err := p.root.OpenFile(h.Name, openFlags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return p.meter.skip(h.Name, "changed while it was copied")
	}
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
	p.meter.tell()
	return err
}

// kindOf names what is not copied.
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

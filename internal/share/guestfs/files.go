// Package guestfs moves files into and out of a guest, through its file service: single files, trees as archives, and walks. Whatever the
// guest sends is checked and limited before it gets to the host's disk: see unpacker and staging.
package guestfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/hostpath"
)

// FileInfo is what the guest reports about a file.
type FileInfo = guestrpc.FileInfo

// Owner is a user and a group of the guest, by number.
type Owner = guestrpc.Owner

// MaxReadFile is the size in bytes of the largest file that ReadFile returns; longer ones are read by ReadTo.
const MaxReadFile = 256 << 20

// Files reads and writes the files of a guest, as its root user.
//
// Paths of the guest are absolute and have slashes. The guest's errors satisfy errors.Is(err, fs.ErrNotExist) and the
// like. Whatever the guest answers, the memory and disk that it takes on the host are bounded: beyond a bound the error is a
// *LimitError. What it reports about its files may be untrue.
//
//	host ── Files ── guestrpc.FilesClient ── bulk port, a connection of its own ── the supervisor's file service
//
// Methods may be called from several goroutines, and run concurrently.
type Files struct {
	open    func(context.Context) (*guestrpc.FilesClient, error)
	explain func(error) error
	guard   *hostpath.Guard // nil: every link on the host is followed
	note    func(doing, path string, err error)
}

// New returns the files of a guest behind a client, which stays the caller's: what a VM's FilesClient returns, or a daemon's.
func New(c *guestrpc.FilesClient) *Files {
	return NewLazy(func(context.Context) (*guestrpc.FilesClient, error) { return c, nil }, func(err error) error { return err })
}

// Client returns the client behind f, which stays its owner's. It is a function, since programs that use package vm know no clients.
func Client(ctx context.Context, f *Files) (*guestrpc.FilesClient, error) { return f.open(ctx) }

// Guarded returns Files whose CopyTo and CopyFrom refuse paths on the host that lead through links which guests may have made.
func Guarded(f *Files, guard *hostpath.Guard) *Files { return &Files{f.open, f.explain, guard, f.note} }

// Noted returns Files that call note after each operation that changes the guest's files, or has failed to.
func Noted(f *Files, note func(doing, path string, err error)) *Files {
	return &Files{f.open, f.explain, f.guard, note}
}

// NewLazy returns the files of a guest whose client open returns, each time one of them is used. The client stays open's. explain
// returns the cause of an error of the client, or the error itself.
func NewLazy(open func(context.Context) (*guestrpc.FilesClient, error), explain func(error) error) *Files {
	return &Files{open: open, explain: explain}
}

// with calls do with the client and adds the path to its error.
func (f *Files) with(ctx context.Context, doing, path string, do func(*guestrpc.FilesClient) error) error {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return fmt.Errorf("%s %.200q in the guest: %w: want an absolute path", doing, path, fs.ErrInvalid)
	}
	c, err := f.open(ctx)
	if err != nil {
		return fmt.Errorf("%s %s in the guest: %w", doing, path, err)
	}
	err = do(c)
	if f.note != nil && !slices.Contains([]string{"read", "stat", "list", "pack"}, doing) {
		f.note(doing, path, err)
	}
	if err != nil {
		return fmt.Errorf("%s %s in the guest: %w", doing, path, f.explain(err))
	}
	return nil
}

// ReadFile returns a file's content, at most MaxReadFile bytes.
func (f *Files) ReadFile(ctx context.Context, path string) ([]byte, error) {
	var b bytes.Buffer
	if _, err := f.ReadTo(ctx, path, &capped{w: &b, limit: Limit{"bytes of a file", MaxReadFile}}); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// ReadTo writes a file's content to w and returns its length. A guest can make it endless: an error of w ends it.
func (f *Files) ReadTo(ctx context.Context, path string, w io.Writer) (n int64, err error) {
	err = f.with(ctx, "read", path, func(c *guestrpc.FilesClient) (err error) { n, err = c.ReadFile(ctx, path, w); return err })
	return n, err
}

// WriteFile replaces or creates a file: a reader in the guest finds the old content or the new one, also after a
// crash. A mode of 0 keeps the permissions and the owner of the file that is replaced; a new one then has 0600. A symbolic
// link at path is replaced.
func (f *Files) WriteFile(ctx context.Context, path string, data []byte, mode fs.FileMode) error {
	return f.WriteFrom(ctx, path, bytes.NewReader(data), mode)
}

// WriteFrom is WriteFile with the content of r. After an error of r the file is unchanged.
func (f *Files) WriteFrom(ctx context.Context, path string, r io.Reader, mode fs.FileMode) error {
	return f.with(ctx, "write", path, func(c *guestrpc.FilesClient) error { return c.WriteFile(ctx, path, r, mode) })
}

// Stat returns what the guest reports about a file, or about the one that a symbolic link leads to.
func (f *Files) Stat(ctx context.Context, path string) (info FileInfo, err error) {
	err = f.with(ctx, "stat", path, func(c *guestrpc.FilesClient) (err error) { info, err = c.Stat(ctx, path); return err })
	return info, err
}

// Lstat is Stat of a symbolic link itself.
func (f *Files) Lstat(ctx context.Context, path string) (info FileInfo, err error) {
	err = f.with(ctx, "stat", path, func(c *guestrpc.FilesClient) (err error) { info, err = c.Lstat(ctx, path); return err })
	return info, err
}

// List returns a directory's entries by name, without "." and "..". There are at most MaxList.
func (f *Files) List(ctx context.Context, path string) ([]FileInfo, error) {
	return f.list(ctx, path, MaxList)
}

// MaxList is how many entries List returns, and Walk keeps, at most.
const MaxList = 1 << 20

func (f *Files) list(ctx context.Context, path string, limit int) (list []FileInfo, err error) {
	err = f.with(ctx, "list", path, func(c *guestrpc.FilesClient) (err error) { list, err = c.List(ctx, path, limit); return err })
	if errors.Is(err, guestrpc.ErrTooMany) {
		err = &LimitError{Limit{"entries of directories", int64(limit)}, path}
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b FileInfo) int { return strings.Compare(a.Name, b.Name) })
	for i, e := range list {
		if checkName(e.Name) != nil || i > 0 && list[i-1].Name == e.Name {
			return nil, fmt.Errorf("list %s in the guest: it tells of a file named %.80q, which it cannot have", path, e.Name)
		}
	}
	return list, nil
}

// checkName refuses a name that no file in Linux can have.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("%.80q is no name of a file", name)
	}
	return nil
}

// Remove removes a file or an empty directory.
func (f *Files) Remove(ctx context.Context, path string) error {
	return f.with(ctx, "remove", path, func(c *guestrpc.FilesClient) error { return c.Remove(ctx, path) })
}

// RemoveAll removes path and what is below it, following no links. It is not an error when nothing is there.
func (f *Files) RemoveAll(ctx context.Context, path string) error {
	return f.with(ctx, "remove", path, func(c *guestrpc.FilesClient) error { return c.RemoveAll(ctx, path) })
}

// MkdirAll makes a directory and its parents. It is not an error when it exists.
func (f *Files) MkdirAll(ctx context.Context, path string, mode fs.FileMode) error {
	return f.with(ctx, "make directory", path, func(c *guestrpc.FilesClient) error { return c.MkdirAll(ctx, path, mode) })
}

// Rename renames a file within a file system. It replaces a file that has the new name.
func (f *Files) Rename(ctx context.Context, from, to string) error {
	return f.with(ctx, "rename", from, func(c *guestrpc.FilesClient) error { return c.Rename(ctx, from, to) })
}

// Symlink makes a symbolic link at path.
func (f *Files) Symlink(ctx context.Context, target, path string) error {
	return f.with(ctx, "make link", path, func(c *guestrpc.FilesClient) error { return c.Symlink(ctx, target, path) })
}

// Chmod sets permissions. It follows symbolic links.
func (f *Files) Chmod(ctx context.Context, path string, mode fs.FileMode) error {
	return f.with(ctx, "change permissions of", path, func(c *guestrpc.FilesClient) error { return c.Chmod(ctx, path, mode) })
}

// Chown sets user and group. It follows symbolic links.
func (f *Files) Chown(ctx context.Context, path string, owner Owner) error {
	return f.with(ctx, "change the owner of", path, func(c *guestrpc.FilesClient) error {
		return c.Chown(ctx, path, owner.UID, owner.GID)
	})
}

// ExtractTar unpacks a tar archive into a directory, which is made when it is missing. The guest unpacks it, so the archive
// can harm only the guest. After an error a part of it may be there. When it returns, r is not read any more: a Read that
// blocks delays it.
func (f *Files) ExtractTar(ctx context.Context, dir string, r io.Reader) error {
	return f.with(ctx, "unpack into", dir, func(c *guestrpc.FilesClient) error { return c.Unpack(ctx, dir, r, guestrpc.UnpackOptions{}) })
}

// CreateTar writes a tar archive of paths and what is below them, each under its last name, without what is mounted below. The
// guest makes the archive, so it may contain anything. It can be endless: an error of w ends it.
//
// What is left out, or changes meanwhile, counts as skipped.
func (f *Files) CreateTar(ctx context.Context, paths []string, w io.Writer) (s CopyStats, err error) {
	if len(paths) == 0 {
		return s, fmt.Errorf("pack: %w: no paths", fs.ErrInvalid)
	}
	for _, p := range paths {
		if !path.IsAbs(p) {
			return s, fmt.Errorf("pack %.200q in the guest: %w: want an absolute path", p, fs.ErrInvalid)
		}
	}
	err = f.with(ctx, "pack", paths[0], func(c *guestrpc.FilesClient) error {
		packed, err := c.Pack(ctx, w, paths, guestrpc.PackOptions{OneFileSystem: true})
		s = CopyStats{Entries: packed.Entries, Bytes: packed.Bytes, Skipped: int64(len(packed.Warnings)), Reasons: packed.Warnings, Torn: packed.Torn, TornFiles: packed.TornFiles}
		return err
	})
	return s, err
}

// Walk calls fn for root and everything below it, by name, a directory before its entries. It calls it as fs.WalkDir calls an fs.WalkDirFunc:
// for a directory that cannot be listed a second time, with err; an error from fn ends the walk, except for fs.SkipDir, which leaves out the
// directory (or the rest of the one that the file is in), and fs.SkipAll, which ends it without an error. Links are not followed, except at
// root. The guest can invent directories without end: fn or ctx has to end such a walk. The
// entries of all directories on the way to the present place are kept, at most MaxList.
func (f *Files) Walk(ctx context.Context, root string, fn func(path string, info FileInfo, err error) error) error {
	w := walk{files: f, ctx: ctx, fn: fn, left: MaxList}
	info, err := f.Stat(ctx, root)
	if err != nil {
		err = fn(root, info, err)
	} else {
		err = w.visit(root, info)
	}
	if errors.Is(err, fs.SkipDir) || errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

type walk struct {
	files *Files
	ctx   context.Context
	fn    func(path string, info FileInfo, err error) error
	left  int // entries that may still be kept
}

func (w *walk) visit(name string, info FileInfo) error {
	if len(name) > maxPath {
		return &LimitError{Limit{"bytes in a path", maxPath}, name}
	}
	err := w.fn(name, info, nil)
	if !info.IsDir() || err != nil {
		if info.IsDir() && err == fs.SkipDir {
			err = nil
		}
		return err
	}
	list, err := w.files.list(w.ctx, name, max(w.left, 1))
	if err != nil {
		if err = w.fn(name, info, err); err == fs.SkipDir {
			err = nil
		}
		return err
	}
	w.left -= len(list)
	defer func() { w.left += len(list) }()
	for _, e := range list {
		if err := w.visit(path.Join(name, e.Name), e); err != nil {
			if err == fs.SkipDir {
				break
			}
			return err
		}
	}
	return nil
}

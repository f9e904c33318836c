package guestfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"agentvm/internal/guest/guestrpc"
	"agentvm/internal/host/sparsefile"
)

// CopyFrom copies a file or a directory of the guest to the host. Where hostPath is a directory, or ends with a slash, the
// copy goes into it under its own name; a guestPath that ends with "/." means what is in that directory. Directories that
// exist are kept and files in them replaced.
//
// Nothing is put in its place before everything has arrived. Until then it is in a temporary directory beside it, whose name begins
// with ".agentvm-copy-"; the next copy to the same place removes what a killed process has left. Then a file, or a new directory, is
// put in its place by one rename; what goes into an existing directory is renamed file by file.
//
// Permissions and times are kept, and symbolic links that lead to places below what is copied. Left out are other links,
// devices, FIFOs, sockets, what is mounted below, set-user-ID bits and the permission of others to write. A link at guestPath
// itself is followed. Owners become the caller.
func (f *Files) CopyFrom(ctx context.Context, guestPath, hostPath string, o CopyOptions) (CopyStats, error) {
	info, err := f.Stat(ctx, guestPath)
	if err != nil {
		return CopyStats{}, err
	}
	o.guard = f.guard
	m := newMeter(o)
	to, err := hostDestination(guestPath, hostPath)
	if err == nil {
		if info.IsDir() {
			err = f.treeOut(ctx, guestPath, to, info, m)
		} else {
			err = f.fileOut(ctx, guestPath, to, m)
			if info.Torn {
				m.copied.Torn, m.copied.TornFiles = 1, []string{guestPath}
			}
		}
	}
	if err != nil {
		err = fmt.Errorf("copy %s from the guest: %w", guestPath, err)
	}
	return m.copied, err
}

// hostDestination returns the path on the host that the copy gets.
func hostDestination(guestPath, hostPath string) (string, error) {
	if hostPath == "" {
		return "", fmt.Errorf("%w: no path on the host", fs.ErrInvalid)
	}
	info, err := os.Stat(hostPath)
	into := err == nil && info.IsDir() || os.IsPathSeparator(hostPath[len(hostPath)-1])
	if !into || strings.HasSuffix(guestPath, "/.") {
		return filepath.Clean(hostPath), nil
	}
	name := path.Base(path.Clean(guestPath))
	if name == "/" {
		return filepath.Clean(hostPath), nil
	}
	if _, err := splitName(name); err != nil {
		return "", err
	}
	return filepath.Join(hostPath, name), nil
}

// fileOut copies one file.
func (f *Files) fileOut(ctx context.Context, guestPath, to string, m *meter) error {
	info, err := os.Lstat(to)
	if err == nil && !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink {
		return fmt.Errorf("%s exists and is no regular file", to)
	}
	s, err := stage(filepath.Dir(to), m.options)
	if err != nil {
		return err
	}
	err = f.fileTo(ctx, guestPath, s, m)
	if err == nil {
		err = s.dir.Rename(s.name, filepath.Base(to))
	}
	return errors.Join(err, s.discard())
}

// fileTo writes a file of the guest to the staging directory. The guest may lie about its size: the meter counts what arrives.
func (f *Files) fileTo(ctx context.Context, guestPath string, s *staging, m *meter) error {
	return f.with(ctx, "read", guestPath, func(c *guestrpc.FilesClient) error {
		from, err := c.Open(ctx, guestPath)
		if err != nil {
			return err
		}
		defer func() { _ = from.Close() }()
		if err := m.begin(path.Base(guestPath), from.Info().Size); err != nil {
			return err
		}
		file, err := s.dir.OpenFile(s.name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = from.WriteTo(ctx, io.MultiWriter(m, &sparsefile.File{File: file}), 0)
		if err == nil {
			err = file.Chmod(permissions(int64(from.Info().Mode.Perm())))
		}
		if err = errors.Join(err, file.Close()); err != nil {
			return err
		}
		m.report()
		t := modified(from.Info().Modified)
		return s.dir.Chtimes(s.name, t, t)
	})
}

// treeOut copies what is in a directory.
func (f *Files) treeOut(ctx context.Context, guestPath, to string, info FileInfo, m *meter) error {
	there, err := os.Stat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f.freshTree(ctx, guestPath, to, info, m)
	case err != nil:
		return err
	case !there.IsDir():
		return fmt.Errorf("%s exists and is no directory", to)
	}
	s, err := stage(to, m.options)
	if err != nil {
		return err
	}
	dirs, err := f.unpackTo(ctx, guestPath, s, m)
	if err == nil {
		err = s.merge(dirs)
	}
	return errors.Join(err, s.discard())
}

// freshTree copies to a directory that does not exist yet.
func (f *Files) freshTree(ctx context.Context, guestPath, to string, info FileInfo, m *meter) error {
	s, err := stage(filepath.Dir(to), m.options)
	if err != nil {
		return err
	}
	dirs, err := f.unpackTo(ctx, guestPath, s, m)
	if err == nil {
		if len(dirs) == 0 || dirs[0].name != "." {
			dirs = append([]madeDir{{".", 0o700 | permissions(int64(info.Mode.Perm())), modified(info.Modified)}}, dirs...)
		}
		base := filepath.Base(to)
		if err = s.dir.Rename(s.name, base); err == nil {
			err = finishDirs(s.dir, base, dirs)
		}
	}
	return errors.Join(err, s.discard())
}

// unpackTo unpacks into the staging directory what the guest packs.
func (f *Files) unpackTo(ctx context.Context, guestPath string, s *staging, m *meter) ([]madeDir, error) {
	if err := s.dir.Mkdir(s.name, 0o700); err != nil {
		return nil, err
	}
	root, err := s.dir.OpenRoot(s.name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	r, w := io.Pipe()
	var packed guestrpc.Summary
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		err := f.with(ctx, "pack", guestPath, func(c *guestrpc.FilesClient) error {
			var err error
			packed, err = c.Pack(ctx, w, []string{"."}, guestrpc.PackOptions{Dir: guestPath, OneFileSystem: true})
			return err
		})
		_ = w.CloseWithError(err) // nil: the end
		ended <- err
	}()
	dirs, err := unpackArchive(ctx, root, r, m)
	_ = r.CloseWithError(errUnpackerEnded)
	if err != nil {
		cancel() // the guest need not answer
	}
	packErr := <-ended
	if err == nil || packErr != nil && errors.Is(err, packErr) {
		err = packErr
	}
	m.copied.Torn, m.copied.TornFiles = packed.Torn, packed.TornFiles
	return dirs, err
}

var errUnpackerEnded = errors.New("the archive is not taken any more")

// finishDirs sets the permissions and times of directories, of the outer ones last, since changes to inner ones change their times.
func finishDirs(root *os.Root, below string, dirs []madeDir) error {
	for i := len(dirs) - 1; i >= 0; i-- {
		name := filepath.Join(below, filepath.FromSlash(dirs[i].name))
		if err := errors.Join(root.Chmod(name, dirs[i].mode), root.Chtimes(name, dirs[i].modified, dirs[i].modified)); err != nil {
			return err
		}
	}
	return nil
}

// merge moves what is in the staging directory into the directory that contains it.
func (s *staging) merge(dirs []madeDir) error {
	kept := map[string]bool{".": true}
	if err := s.mergeDir(".", kept); err != nil {
		return err
	}
	var fresh []madeDir
	for _, d := range dirs {
		if !kept[d.name] {
			fresh = append(fresh, d)
		}
	}
	return finishDirs(s.dir, ".", fresh)
}

// mergeDir moves a directory's entries. Directories that exist on both sides are merged and recorded in kept. It
// follows no links.
func (s *staging) mergeDir(name string, kept map[string]bool) error {
	d, err := s.dir.Open(filepath.Join(s.name, name))
	if err != nil {
		return err
	}
	entries, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		if err := s.mergeEntry(path.Join(name, e.Name()), e.IsDir(), kept); err != nil {
			return err
		}
	}
	return nil
}

// mergeEntry moves one entry. A directory never replaces a file, nor a file a directory.
func (s *staging) mergeEntry(name string, isDir bool, kept map[string]bool) error {
	there, err := s.dir.Lstat(name)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && isDir && there.IsDir():
		kept[name] = true
		return s.mergeDir(name, kept)
	case err == nil && isDir:
		return fmt.Errorf("%.200q exists and is no directory", name)
	case err == nil && there.IsDir():
		return fmt.Errorf("%.200q exists and is a directory", name)
	}
	return s.dir.Rename(filepath.Join(s.name, name), name)
}

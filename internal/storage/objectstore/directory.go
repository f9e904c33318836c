package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"agentvm/internal/host/atomicfile"
)

// directory is a store in the file system, which may be shared by several hosts.
type directory struct{ root string }

func openDirectory(u *url.URL) (driver, error) {
	place := u.Path
	if runtime.GOOS == "windows" { // file:///C:/x
		place = strings.TrimPrefix(place, "/")
	}
	if u.Host != "" || !filepath.IsAbs(filepath.FromSlash(place)) || u.RawQuery != "" {
		return nil, errors.New("a directory is written file:///PATH")
	}
	return &directory{filepath.FromSlash(place)}, nil
}

// open opens the directory. Links in it lead nowhere outside.
func (d *directory) open() (*os.Root, error) {
	if err := os.MkdirAll(d.root, 0o700); err != nil {
		return nil, err
	}
	return os.OpenRoot(d.root)
}

// with calls do with the directory.
func (d *directory) with(do func(*os.Root) error) error {
	root, err := d.open()
	if err != nil {
		return err
	}
	return errors.Join(do(root), root.Close())
}

func (d *directory) get(_ context.Context, key string, limit int64) (b []byte, err error) {
	err = d.with(func(root *os.Root) error {
		f, err := root.Open(filepath.FromSlash(key))
		if err != nil {
			return err
		}
		defer f.Close()
		b, err = readAll(f, -1, limit)
		return err
	})
	return b, err
}

func (d *directory) put(_ context.Context, key string, content []byte) error {
	return d.with(func(root *os.Root) error {
		dir, name := path.Split(key)
		if err := root.MkdirAll(filepath.FromSlash(path.Clean(dir)), 0o700); err != nil {
			return err
		}
		folder, err := root.OpenRoot(filepath.FromSlash(path.Clean(dir)))
		if err != nil {
			return err
		}
		return errors.Join(atomicfile.WriteIn(folder, name, content, 0o600), folder.Close())
	})
}

func (d *directory) head(_ context.Context, key string) (o Object, err error) {
	err = d.with(func(root *os.Root) error {
		info, err := root.Stat(filepath.FromSlash(key))
		if err == nil {
			o = Object{key, info.Size(), info.ModTime()}
		}
		return err
	})
	return o, err
}

func (d *directory) list(ctx context.Context, prefix, _ string) (page []Object, _ string, err error) {
	err = d.with(func(root *os.Root) error {
		return fs.WalkDir(root.FS(), path.Dir(prefix+"x"), func(key string, entry fs.DirEntry, err error) error {
			if err == nil {
				err = ctx.Err()
			}
			if errors.Is(err, fs.ErrNotExist) {
				return nil // there is none, or it was removed meanwhile
			}
			if err != nil || !entry.Type().IsRegular() || atomicfile.IsTemporary(entry.Name()) || !strings.HasPrefix(key, prefix) {
				return err
			}
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil {
				page = append(page, Object{key, info.Size(), info.ModTime()})
			}
			return err
		})
	})
	return page, "", err
}

func (d *directory) remove(_ context.Context, key string) error {
	return d.with(func(root *os.Root) error { return root.Remove(filepath.FromSlash(key)) })
}

// readAll reads size bytes, or if that is not known up to the end, and no more than limit.
func readAll(r io.Reader, size, limit int64) ([]byte, error) {
	if size > limit {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, size)
	}
	if size >= 0 {
		b := make([]byte, size)
		_, err := io.ReadFull(r, b)
		return b, err
	}
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = ErrTooLarge
	}
	return b, err
}

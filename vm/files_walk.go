package vm

import (
	"context"
	"errors"
	"io/fs"
	"path"
)

// WalkFunc is called by Walk for each file, as an fs.WalkDirFunc is: a directory that cannot be listed comes a second time,
// with err. An error from it ends the walk, except for fs.SkipDir, which leaves out the directory (or the rest of the one that
// the file is in), and fs.SkipAll, which ends it without an error.
type WalkFunc func(path string, info FileInfo, err error) error

// Walk calls fn for root and everything below it, by name, a directory before its entries. Links are not followed, except at
// root. The guest can invent directories without end: fn or ctx has to end such a walk. The
// entries of all directories on the way to the present place are kept, at most MaxList.
func (f *Files) Walk(ctx context.Context, root string, fn WalkFunc) error {
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
	fn    WalkFunc
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

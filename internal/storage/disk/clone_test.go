package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// written makes a disk with data in three places, the last block among them.
func written(t *testing.T, size int64) string {
	t.Helper()
	path := newDisk(t, size)
	d := open(t, path)
	for _, at := range []int64{30<<20 + 512, 50 << 20, size - blockSize} {
		if _, err := d.WriteAt(bytes.Repeat([]byte("disk"), blockSize/4), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func checkClone(t *testing.T, from, to string) {
	t.Helper()
	a, b := open(t, from), open(t, to)
	if a.Size() != b.Size() {
		t.Fatalf("%d bytes, want %d", b.Size(), a.Size())
	}
	x, y := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); at < a.Size(); at += int64(len(x)) {
		if _, err := a.ReadAt(x, at); err != nil {
			t.Fatal(err)
		}
		if _, err := b.ReadAt(y, at); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(x, y) {
			t.Fatalf("different between %d and %d", at, at+1<<20)
		}
	}
	info, err := os.Stat(to)
	if err != nil || info.Mode().Perm()&0o077 != 0 && os.PathSeparator == '/' {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	a.Close()
	b.Close()
}

func TestClone(t *testing.T) {
	from := written(t, 128<<20)
	to := filepath.Join(t.TempDir(), "clone.img")
	if err := Clone(t.Context(), from, to); err != nil {
		t.Fatal(err)
	}
	checkClone(t, from, to)
	if n, of := allocated(t, to), allocated(t, from); n > of+1<<20 {
		t.Errorf("the clone takes %d bytes, its original %d", n, of)
	}
	d := open(t, to)
	if _, err := d.WriteAt([]byte("changed"), 50<<20); err != nil {
		t.Fatal(err)
	}
	d.Close()
	p := make([]byte, 7)
	original := open(t, from)
	if _, err := original.ReadAt(p, 50<<20); err != nil || string(p) != "diskdis" {
		t.Errorf("the original has %q, %v after a write to its clone", p, err)
	}
}

// TestCloneCopies does without the file system's help, of a disk that knows its holes and of a reader that does not.
func TestCloneCopies(t *testing.T) {
	from := written(t, MinSize)
	d := open(t, from)
	defer d.Close()
	for name, r := range map[string]io.ReaderAt{"disk": d, "reader": onlyReader{d}, "disk in pieces": pieces{d}} {
		t.Run(name, func(t *testing.T) {
			to := filepath.Join(t.TempDir(), "clone.img")
			if err := CloneFrom(t.Context(), r, d.Size(), to); err != nil {
				t.Fatal(err)
			}
			x, y := make([]byte, d.Size()), make([]byte, d.Size())
			clone := open(t, to)
			if err := errors.Join(readAt(d, x), readAt(clone, y)); err != nil || !bytes.Equal(x, y) {
				t.Errorf("the clone differs: %v", err)
			}
			if n, of := allocated(t, to), allocated(t, from); n > of+1<<20 {
				t.Errorf("the clone takes %d bytes, its original %d", n, of)
			}
		})
	}
}

func readAt(r io.ReaderAt, p []byte) error {
	_, err := r.ReadAt(p, 0)
	return err
}

type onlyReader struct{ io.ReaderAt }

// pieces has data in parts of odd sizes, as a file system with small blocks may.
type pieces struct{ io.ReaderAt }

func (pieces) NextData(offset int64) (int64, int64, error) {
	if offset >= MinSize {
		return 0, 0, nil
	}
	return offset, min(100_001, MinSize-offset), nil
}

func TestCloneRefuses(t *testing.T) {
	from, dir := written(t, MinSize), t.TempDir()
	to := filepath.Join(dir, "clone.img")
	var inUse *InUseError
	d := open(t, from)
	if err := Clone(t.Context(), from, to); !errors.As(err, &inUse) {
		t.Errorf("of a disk in use: %v", err)
	}
	if err := d.clone(t.Context(), to); err != nil {
		t.Errorf("of a disk of the caller's own: %v", err)
	}
	if err := d.clone(t.Context(), to); !errors.Is(err, fs.ErrExist) {
		t.Errorf("to a disk that is there: %v", err)
	}
	var invalid *InvalidError
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, []byte("no disk"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.img")
	if err := Clone(t.Context(), other, missing); !errors.As(err, &invalid) {
		t.Errorf("of a file that is none: %v", err)
	}
	if err := Clone(t.Context(), filepath.Join(dir, "nothing"), missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, err := range map[string]error{
		"zeros":     CloneFrom(t.Context(), zeros{}, MinSize, missing),
		"too short": CloneFrom(t.Context(), strings.NewReader("short"), MinSize, missing),
		"cut":       CloneFrom(t.Context(), io.NewSectionReader(d, 0, 40<<20), MinSize, missing),
		"cancelled": CloneFrom(cancelled, d, MinSize, missing),
	} {
		if err == nil {
			t.Errorf("%s: cloned", name)
		}
		if name == "cancelled" && !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled: %v", err)
		}
	}
	if _, err := os.Lstat(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failure left a file: %v", err)
	}
}

type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

// Clone makes a copy of a disk that no VM uses, and returns when it is durable. When the disk is in use the error is an *InUseError.
func Clone(ctx context.Context, from, to string) error {
	d, err := Open(from)
	if err != nil {
		return fmt.Errorf("clone: %w", err)
	}
	return errors.Join(d.clone(ctx, to), d.Close())
}

func (d *Disk) clone(ctx context.Context, to string) error {
	f, err := d.Freeze()
	if err != nil {
		return err
	}
	err = f.At()
	kept, done := f.Done(ctx)
	if err = errors.Join(err, done); err != nil || kept == nil {
		return err
	}
	return errors.Join(kept.Clone(ctx, to), kept.Close())
}

// Remove deletes a disk that no VM uses. When it is in use the error is an *InUseError; when there is none, fs.ErrNotExist.
func Remove(path string) error {
	if _, err := os.Stat(path); err != nil && restoreRaw(path) != nil {
		return fmt.Errorf("remove disk: %w", err)
	}
	lock, err := acquire(path)
	if err != nil {
		return err
	}
	if err := errors.Join(removeFiles(path), lock.Remove()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove disk: %w", err)
	}
	return nil
}

// TestReplace: a disk gets the contents of one that was frozen in one step. When that fails it has its own.
func TestReplace(t *testing.T) {
	path := written(t, 128<<20)
	d := open(t, path)
	frozen := freeze(t, d)
	kept := filepath.Join(t.TempDir(), "kept.img")
	if err := errors.Join(frozen.Keep(t.Context(), kept, true), frozen.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.WriteAt([]byte("later"), 50<<20); err != nil {
		t.Fatal(err)
	}
	saved, err := OpenFrozen(kept)
	if err != nil {
		t.Fatal(err)
	}
	defer saved.Close()
	var used *InUseError
	if err := saved.Replace(t.Context(), path); !errors.As(err, &used) {
		t.Errorf("of an open disk: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	content := func(path string) string {
		t.Helper()
		d := open(t, path)
		defer d.Close()
		b := make([]byte, 5)
		if _, err := d.ReadAt(b, 50<<20); err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := saved.Replace(ctx, path); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if got := content(path); got != "later" {
		t.Errorf("after a failure it has %q", got)
	}
	layer := filepath.Join(layersDir(path), saved.stack[0].id)
	for name, damage := range map[string]func() error{
		"as it was":      func() error { return nil },
		"lost layer":     func() error { return os.Remove(layer) },
		"another layer":  func() error { return errors.Join(os.Remove(layer), os.WriteFile(layer, []byte("damaged"), 0o600)) },
		"emptied":        func() error { return os.Truncate(path, 0) },
		"missing":        func() error { return os.Remove(path) },
		"without layers": func() error { return os.RemoveAll(layersDir(path)) },
	} {
		if err := damage(); err != nil {
			t.Fatal(err)
		}
		if err := saved.Replace(t.Context(), path); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := content(path); got != "diskd" {
			t.Errorf("%s: it has %q", name, got)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(layersDir(path), "*.new")); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

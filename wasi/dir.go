package wasi

import (
	"os"
	"sort"
)

// dir is a directory: what it contains is reached through its root only.
type dir struct {
	root     *os.Root
	readonly bool
	entries  []os.DirEntry // sorted by name; read when the guest asks for cookie 0
}

// newDir returns a directory that owns root.
func newDir(root *os.Root, readonly bool) *dir { return &dir{root: root, readonly: readonly} }

// Stat describes the directory itself.
func (d *dir) Stat() (Filestat, Errno) {
	info, err := d.root.Stat(".")
	if err != nil {
		return Filestat{}, errnoOf(err)
	}
	return filestatOf(info), ErrnoSuccess
}

// SetTimes sets the directory's own times.
func (d *dir) SetTimes(atim, mtim int64) Errno {
	if d.readonly {
		return ErrnoRofs
	}
	return errnoOf(setPathTimes(d.root, ".", atim, mtim, true))
}

// Close closes the directory.
func (d *dir) Close() error { return d.root.Close() }

// load reads the entries. Sorting makes the order, and so the cookies, the same on every host and every reading.
func (d *dir) load() Errno {
	f, err := d.root.Open(".")
	if err != nil {
		return errnoOf(err)
	}
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return errnoOf(err)
	}
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name() < entries[j].Name() })
	d.entries = entries
	return ErrnoSuccess
}

// entry returns the name, kind and inode of entry i; 0 and 1 are the directory and its parent. The parent is said to be
// the directory itself, as at a root: what lies outside is none of the guest's business.
func (d *dir) entry(i uint64) (name string, typ Filetype, ino uint64) {
	if i < 2 {
		st, _ := d.Stat()
		return ".."[:i+1], FiletypeDirectory, st.Ino
	}
	e := d.entries[i-2]
	if info, err := d.root.Lstat(e.Name()); err == nil {
		st := filestatOf(info)
		return e.Name(), st.Type, st.Ino
	}
	return e.Name(), filetypeOf(e.Type()), 0 // removed since it was listed
}

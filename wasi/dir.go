package wasi

import (
	"os"
)

// dir is a directory: what it contains is reached through its root only.
type dir struct {
	root     *os.Root
	readonly bool
}

func newDir(root *os.Root, readonly bool) *dir { return &dir{root: root, readonly: readonly} }

// Stat describes the directory itself.
func (d *dir) Stat() (Filestat, Errno) {
	info, err := d.root.Stat(".")
	if err != nil {
		return Filestat{}, errnoOf(err)
	}
	return filestatOf(info), ErrnoSuccess
}

// Close closes the directory.
func (d *dir) Close() error { return d.root.Close() }

package wasi

import (
	"os"
	"time"
)

// Windows has no calls relative to an open directory outside of os.Root; what needs two roots is refused.

// removeEntry removes an empty directory, or anything else.
func removeEntry(l location, directory bool) error {
	info, err := l.root.Lstat(l.path)
	if err != nil {
		return err
	}
	if info.IsDir() != directory {
		return map[bool]Errno{true: ErrnoNotdir, false: ErrnoIsdir}[directory]
	}
	return l.root.Remove(l.path)
}

// renameEntry moves an entry within a root.
func renameEntry(from, to location) error {
	if from.root != to.root {
		return ErrnoXdev
	}
	return from.root.Rename(from.path, to.path)
}

// linkEntry makes a hard link within a root.
func linkEntry(from, to location) error {
	if from.root != to.root {
		return ErrnoXdev
	}
	return from.root.Link(from.path, to.path)
}

// setPathTimes sets a file's times; those of a symbolic link itself cannot be set.
func setPathTimes(root *os.Root, path string, atim, mtim int64, follow bool) error {
	if info, err := root.Lstat(path); err == nil && !follow && info.Mode()&os.ModeSymlink != 0 {
		return ErrnoNotsup
	}
	return root.Chtimes(path, time.Unix(0, atim), time.Unix(0, mtim))
}

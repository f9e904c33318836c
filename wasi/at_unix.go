//go:build unix

package wasi

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The calls of this file work on one name in an open directory, which os.Root found. They exist because os.Root lacks
// them (two roots, unlink apart from rmdir, times of a link) or differs from POSIX (rename onto an empty directory).
// location.split keeps ".." away from them, and none follows a symbolic link, so they stay inside.

// withParent calls f with the directory that contains the entry and the entry's name.
func withParent(l location, f func(dirfd int, base string) error) error {
	parent, base, _ := l.split()
	d, err := l.root.OpenFile(parent, os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	return f(int(d.Fd()), base)
}

// withParents is withParent for two entries.
func withParents(a, b location, f func(aDir int, aBase string, bDir int, bBase string) error) error {
	return withParent(a, func(aDir int, aBase string) error {
		return withParent(b, func(bDir int, bBase string) error { return f(aDir, aBase, bDir, bBase) })
	})
}

// removeEntry removes an empty directory, or anything else.
func removeEntry(l location, directory bool) error {
	flags := 0
	if directory {
		flags = unix.AT_REMOVEDIR
	}
	return withParent(l, func(dirfd int, base string) error { return unix.Unlinkat(dirfd, base, flags) })
}

// renameEntry moves an entry, replacing the target as POSIX allows.
func renameEntry(from, to location) error {
	return withParents(from, to, unix.Renameat)
}

// linkEntry makes a hard link.
func linkEntry(from, to location) error {
	return withParents(from, to, func(aDir int, aBase string, bDir int, bBase string) error {
		return unix.Linkat(aDir, aBase, bDir, bBase, 0)
	})
}

// setPathTimes sets a file's times, or those of a symbolic link itself.
func setPathTimes(root *os.Root, path string, atim, mtim int64, follow bool) error {
	l := location{dir: &dir{root: root}, path: path}
	if _, _, special := l.split(); special || follow {
		return root.Chtimes(path, time.Unix(0, atim), time.Unix(0, mtim))
	}
	times := []unix.Timespec{unix.NsecToTimespec(atim), unix.NsecToTimespec(mtim)}
	return withParent(l, func(dirfd int, base string) error {
		return unix.UtimesNanoAt(dirfd, base, times, unix.AT_SYMLINK_NOFOLLOW)
	})
}

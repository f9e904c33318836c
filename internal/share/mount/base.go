package mount

import (
	"fmt"
	"io/fs"
	"strings"
)

// BaseAttribute is the extended attribute that has a file's Base. The overlay of a copy-on-write mount copies it with the file, so that
// the copy says of which file, and of which state of it, it is one.
const BaseAttribute = "trusted.agentvm.base"

// Base is one state of one file of the host. Two of the same file are equal when nothing has changed it in between, except within a step
// of the clock from which the host takes the times of files, of some milliseconds.
type Base struct {
	Inode        uint64
	Size         uint64
	MTime, CTime int64  // nanoseconds since 1970
	Mode         uint32 // Linux' st_mode without set-uid and set-gid
	// Copied is, of a file of the host that was made of the guest's copy, when that copy had last been modified (nanoseconds since 1970); 0: the
	// guest's copy was made of the host's file, and has its time.
	Copied int64
	Path   string // below the mount; empty when it has more than maxBasePath bytes
}

// maxBasePath bounds the path of a base: a file system of the guest keeps an extended attribute in at most one block.
const maxBasePath = 1024

func baseOf(a attr, path string) Base {
	v := a.version()
	if len(path) > maxBasePath {
		path = ""
	}
	return Base{Inode: a.ino, Size: v.size, MTime: v.mtime, CTime: v.ctime, Mode: a.mode, Path: path}
}

// String is the attribute's value, which ParseBase reads.
func (b Base) String() string {
	return fmt.Sprintf("1 %d %d %d %d %o %d %s", b.Inode, b.Size, b.MTime, b.CTime, b.Mode, b.Copied, b.Path)
}

// ParseBase reads a base, which may come from a hostile guest; ok is false for what is none.
func ParseBase(text string) (b Base, ok bool) {
	head, path, found := cutFields(text, 7)
	if !found || len(path) > maxBasePath {
		return Base{}, false
	}
	if n, err := fmt.Sscanf(head, "1 %d %d %d %d %o %d", &b.Inode, &b.Size, &b.MTime, &b.CTime, &b.Mode, &b.Copied); n != 6 || err != nil {
		return Base{}, false
	}
	b.Path = path
	return b, b.String() == text
}

// cutFields cuts text after n fields, each followed by a space.
func cutFields(text string, n int) (head, rest string, found bool) {
	at := 0
	for range n {
		i := strings.IndexByte(text[at:], ' ')
		if i < 0 {
			return "", "", false
		}
		at += i + 1
	}
	return text[:at-1], text[at:], true
}

// SameFile says whether nothing has changed the file, whatever its path. A directory's times change with the names in it, which are no
// part of the comparison: of directories only the mode is compared.
func (b Base) SameFile(other Base) bool {
	if b.Mode&modeTypeMask == modeDir {
		return b.Mode == other.Mode
	}
	b.Path, other.Path, b.Copied, other.Copied = "", "", 0, 0
	return b == other
}

// FileMode is the mode in the form of package fs, of regular files, directories and links; other types are irregular.
func (b Base) FileMode() fs.FileMode {
	mode := hostMode(b.Mode)
	switch b.Mode & modeTypeMask {
	case modeRegular:
		return mode
	case modeDir:
		return mode | fs.ModeDir
	case modeSymlink:
		return mode | fs.ModeSymlink
	}
	return mode | fs.ModeIrregular
}

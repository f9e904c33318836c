package guestrpc

import (
	"fmt"
	"io/fs"
	"math"

	"agentvm/internal/guest/capnprpc"
	"agentvm/internal/guest/guestrpc/guestwire"
)

// Linux's bounds, in bytes, of a name and of a link's target.
const (
	maxName   = 255
	maxTarget = 4096
)

func (i FileInfo) write(w guestwire.FileInfo) error {
	w.SetMode(ModeToLinux(i.Mode))
	w.SetSize(uint64(i.Size))
	w.SetUid(i.UID)
	w.SetGid(i.GID)
	w.SetLinks(i.Links)
	w.SetInode(i.Inode)
	w.SetTorn(i.Torn)
	modified, err := w.NewModified()
	if err != nil {
		return err
	}
	WriteTime(modified, i.Modified)
	if err := w.SetName([]byte(i.Name)); err != nil || i.Target == "" {
		return err
	}
	return w.SetTarget([]byte(i.Target))
}

// readFileInfo refuses what no file can have, which bounds what a hostile guest makes the host keep.
// readFileInfo refuses names that no file can have, which bounds what a hostile guest makes the host keep.
func readFileInfo(w guestwire.FileInfo) (i FileInfo, err error) {
	name, err := w.Name()
	if err != nil {
		return i, err
	}
	target, err := w.Target()
	if err != nil {
		return i, err
	}
	if len(name) > maxName || len(target) > maxTarget {
		return i, fmt.Errorf("the guest tells of a file whose name has %d bytes and whose target has %d", len(name), len(target))
	}
	modified, err := w.Modified()
	if err != nil {
		return i, err
	}
	return FileInfo{
		Name: string(name), Mode: ModeFromLinux(w.Mode()), Size: clampSize(w.Size()), Modified: ReadTime(modified),
		UID: w.Uid(), GID: w.Gid(), Links: w.Links(), Inode: w.Inode(), Target: string(target), Torn: w.Torn(),
	}, nil
}

func readEntries(list guestwire.FileInfo_List, err error) ([]FileInfo, error) {
	return capnprpc.ReadList(list, err, maxEntries, readFileInfo)
}

func clampSize(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// kinds are the types of st_mode (Linux, include/uapi/linux/stat.h).
var kinds = []struct {
	linux uint32
	mode  fs.FileMode
}{
	{0o100000, 0},
	{0o040000, fs.ModeDir},
	{0o120000, fs.ModeSymlink},
	{0o060000, fs.ModeDevice},
	{0o020000, fs.ModeDevice | fs.ModeCharDevice},
	{0o010000, fs.ModeNamedPipe},
	{0o140000, fs.ModeSocket},
}

var special = []struct {
	linux uint32
	mode  fs.FileMode
}{{0o4000, fs.ModeSetuid}, {0o2000, fs.ModeSetgid}, {0o1000, fs.ModeSticky}}

// ModeFromLinux decodes st_mode. An unknown type becomes fs.ModeIrregular; no type means a regular file.
func ModeFromLinux(n uint32) fs.FileMode {
	mode := fs.FileMode(n & 0o777)
	for _, s := range special {
		if n&s.linux != 0 {
			mode |= s.mode
		}
	}
	if n&0o170000 == 0 {
		return mode
	}
	for _, k := range kinds {
		if n&0o170000 == k.linux {
			return mode | k.mode
		}
	}
	return mode | fs.ModeIrregular
}

// ModeToLinux encodes st_mode. fs.ModeIrregular becomes no type.
func ModeToLinux(mode fs.FileMode) uint32 {
	n := uint32(mode.Perm())
	for _, s := range special {
		if mode&s.mode != 0 {
			n |= s.linux
		}
	}
	for _, k := range kinds {
		if mode.Type() == k.mode {
			return n | k.linux
		}
	}
	return n
}

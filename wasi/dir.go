package wasi

import (
	"context"
	"os"
	"sort"

	"github.com/tetratelabs/wazero/api"
)

// dir is a directory, and owns root: what it contains is reached through its root only.
type dir struct {
	root     *os.Root
	readonly bool
	entries  []os.DirEntry // sorted by name; read when the guest asks for cookie 0
}

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

// direntSize is the size of witx "dirent", which the name follows without a NUL.
const direntSize = 24

// fdReaddir fills the buffer with entries from the cookie on. An entry that does not fit is cut, so that a full buffer
// means "there is more" and the guest asks again with the cookie of the last entry it has whole.
func fdReaddir(_ context.Context, s *System, mod api.Module, stack []uint64) Errno {
	d, errno := s.lookupDir(uint32(stack[0]), RightFdReaddir)
	if errno != ErrnoSuccess {
		return errno
	}
	buf, ok := view(mod, uint32(stack[1]), uint32(stack[2]))
	if !ok {
		return ErrnoFault
	}
	cookie := stack[3]
	if cookie == 0 || d.entries == nil {
		if errno := d.load(); errno != ErrnoSuccess {
			return errno
		}
	}
	used := d.fill(buf, cookie)
	return putUint32(mod, uint32(stack[4]), uint32(used))
}

// fill encodes entries from number i on until the buffer is full or the directory ends.
func (d *dir) fill(buf []byte, i uint64) int {
	used := 0
	for ; used < len(buf) && i < uint64(len(d.entries))+2; i++ {
		name, typ, ino := d.entry(i)
		var head [direntSize]byte
		le.PutUint64(head[0:], i+1)
		le.PutUint64(head[8:], ino)
		le.PutUint32(head[16:], uint32(len(name)))
		head[20] = byte(typ)
		used += copy(buf[used:], head[:])
		used += copy(buf[used:], name)
	}
	return used
}

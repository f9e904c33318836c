package wasi

import (
	"context"

	"github.com/tetratelabs/wazero/api"
)

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

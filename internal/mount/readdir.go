package mount

import (
	"errors"
	"io"
	"os"

	"agentvm/internal/errno"
)

// maxListings limits the memory of all directory listings of a session, in bytes.
const maxListings = 64 << 20

// readdir answers Treaddir: fid[4] offset[8] count[4]. Offset 0 takes a listing of the names; an entry's offset is its
// place in that listing, so it stays right while the directory changes. Names that vanished since are left out.
func (c *session) readdir(q *request) error {
	id, offset, count := q.in.u32(), q.in.u64(), q.in.u32()
	f, open, err := c.openFid(q, id)
	if err != nil {
		return err
	}
	if !open.dir {
		return errno.ENOTDIR
	}
	open.mu.Lock()
	defer open.mu.Unlock()
	if offset == 0 || open.names == nil {
		if err := c.list(open); err != nil {
			return err
		}
	}
	const fixed = headerSize + 4
	limit := int(min(count, c.msize-fixed))
	c.reserve(q, fixed+limit)
	q.out.u32(0)
	if err := c.entries(&q.out, f.node, open, offset, fixed+limit); err != nil {
		return err
	}
	body := encoder{buf: q.out.buf[:headerSize]}
	body.u32(uint32(len(q.out.buf) - fixed))
	return nil
}

// list reads all names. "." and ".." come first, because v9fs shows what the server sends and adds nothing.
func (c *session) list(open *openFile) error {
	if _, err := open.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	c.files.listings.Add(-open.bytes)
	c.memory.give(open.bytes)
	open.names, open.bytes = []string{".", ".."}, 0
	if open.covered {
		return nil
	}
	for {
		names, err := open.file.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !c.account(open, names) {
			return errno.ENOMEM
		}
		open.names = append(open.names, names...)
	}
}

// account charges names to the session and says whether there was room.
func (c *session) account(open *openFile, names []string) bool {
	var bytes int64
	for _, name := range names {
		bytes += int64(len(name)) + 32 // the string, its header and slack of append
	}
	if !c.memory.take(bytes) {
		return false
	}
	open.bytes += bytes
	return c.files.listings.Add(bytes) <= maxListings
}

// entries encodes qid[13] offset[8] type[1] name[s] from an offset on, as many as end before limit.
func (c *session) entries(out *encoder, dir *node, open *openFile, offset uint64, limit int) error {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	start := len(out.buf)
	for i := offset; i < uint64(len(open.names)); i++ {
		name := open.names[i]
		if len(out.buf)+qidSize+8+1+2+len(name) > limit {
			if len(out.buf) == start {
				return errno.EINVAL // not even one fits
			}
			return nil
		}
		a, err := c.entry(dir, name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, errno.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		out.qid(a.qid)
		out.u64(i + 1)
		out.u8(uint8(a.mode & modeTypeMask >> 12)) // a DT_ value
		out.str(name)
	}
	return nil
}

// entry looks at one name without following it. The root's parent is the root: nothing outside it shows, not even an
// inode number. The caller holds tree.names.
func (c *session) entry(dir *node, name string) (attr, error) {
	var path string
	var err error
	switch {
	case name == ".." && dir.parent != nil:
		path, err = dir.parent.path()
	case name == "." || name == "..":
		path, err = dir.path()
	default:
		path, err = c.seePath(dir, name)
	}
	if err != nil {
		return attr{}, err
	}
	return c.server.lstat(path)
}

package mount

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"agentvm/internal/errno"
)

// Open flags of 9P2000.L, which are Linux' generic O_ values (include/net/9p/9p.h, P9_DOTL_*).
const (
	openAccess    = 0o3
	openExclusive = 0o200
	openTruncate  = 0o1000
	openAppend    = 0o2000
	openDataSync  = 0o10000
	openDirectory = 0o200000
	openSync      = 0o4000000
)

// hostFlags translates the flags that mean something here; access mode 3 is refused by the caller.
func hostFlags(flags uint32) int {
	host := [...]int{os.O_RDONLY, os.O_WRONLY, os.O_RDWR}[flags&openAccess]
	for _, m := range []struct {
		guest uint32
		host  int
	}{
		{openExclusive, os.O_EXCL},
		{openTruncate, os.O_TRUNC},
		{openAppend, os.O_APPEND},
		{openDataSync | openSync, os.O_SYNC},
	} {
		if flags&m.guest != 0 {
			host |= m.host
		}
	}
	return host
}

// notRegular is the error for what cannot be opened: the guest has its own FIFOs, sockets and devices.
func notRegular(a attr) error {
	switch {
	case a.isDir():
		return errno.EISDIR
	case a.isSymlink():
		return errno.ELOOP
	}
	return errno.ENXIO
}

// openRegular opens a regular file. The name may become a FIFO or device between the caller's look and the open:
// that does not block, and is refused afterwards.
func (s *Server) openRegular(path string, flags int, perm fs.FileMode) (*os.File, error) {
	file, err := s.open(path, flags|hostNonblock, perm)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = notRegular(s.attrOf(info, path))
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func (s *Server) openDir(path string) (*os.File, error) {
	return s.open(path, os.O_RDONLY|hostDirectory|hostNonblock, 0)
}

// lopen answers Tlopen: fid[4] flags[4].
func (c *session) lopen(q *request) error {
	id, flags := q.in.u32(), q.in.u32()
	f, err := c.fid(q, id)
	if err != nil {
		return err
	}
	if flags&openAccess == openAccess {
		return errno.EINVAL
	}
	if c.server.config.ReadOnly && flags&(openAccess|openTruncate) != 0 {
		return errno.EROFS
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open != nil {
		return errno.EINVAL
	}
	a, err := c.openNode(f, flags)
	if err != nil {
		return err
	}
	q.out.qid(a.qid)
	q.out.u32(0) // iounit: whatever fits a message
	return nil
}

// openNode opens the fid's name. The caller holds f.mu.
func (c *session) openNode(f *fid, flags uint32) (attr, error) {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := f.node.path()
	if err != nil {
		return attr{}, err
	}
	a, err := c.server.lstat(path)
	if err != nil {
		return attr{}, err
	}
	switch {
	case a.isDir() && flags&(openAccess|openTruncate) != 0:
		return attr{}, errno.EISDIR
	case !a.isDir() && !a.isRegular():
		return attr{}, notRegular(a)
	case !a.isDir() && flags&openDirectory != 0:
		return attr{}, errno.ENOTDIR
	}
	if flags&(openAccess|openTruncate) != 0 {
		if err := c.server.protects(path); err != nil {
			return attr{}, err
		}
	}
	f.open, err = c.openFile(path, a.isDir(), flags&^openExclusive)
	if err == nil {
		f.open.covered = c.server.masks.find(path) == standsCovered
		c.tree.addOpen(f.node, f.open)
	}
	return a, err
}

// openFile opens what exists, within the session's limit.
func (c *session) openFile(path string, dir bool, flags uint32) (*openFile, error) {
	return c.limited(&openFile{path: path, dir: dir, writable: flags&openAccess != 0, append: flags&openAppend != 0},
		func() (*os.File, error) {
			if dir {
				return c.server.openDir(path)
			}
			return c.server.openRegular(path, hostFlags(flags), 0)
		})
}

// createAttempts is how often a file may come and go, by other sessions and programs, while it is being created.
const createAttempts = 16

// createFile opens a file and makes it if there is none. It is made exclusively, since otherwise a link in its place would be
// followed, and the mode of what is there already does not matter. The host's umask applies.
func (c *session) createFile(path string, flags, mode uint32) (*openFile, error) {
	return c.limited(&openFile{path: path, writable: flags&openAccess != 0, append: flags&openAppend != 0},
		func() (*os.File, error) {
			for attempt := 1; ; attempt++ {
				file, err := c.server.openRegular(path, hostFlags(flags)|os.O_CREATE|os.O_EXCL, hostMode(mode))
				if flags&openExclusive != 0 || !errors.Is(err, fs.ErrExist) {
					return file, err
				}
				file, err = c.server.openRegular(path, hostFlags(flags), 0)
				if attempt == createAttempts || !errors.Is(err, fs.ErrNotExist) {
					return file, err
				}
			}
		})
}

func (c *session) limited(open *openFile, call func() (*os.File, error)) (*openFile, error) {
	if err := c.files.acquire(); err != nil {
		return nil, err
	}
	var err error
	if open.file, err = call(); err != nil {
		c.files.release()
		return nil, err
	}
	return open, nil
}

// lcreate answers Tlcreate: fid[4] name[s] flags[4] mode[4] gid[4]. The fid then is the new, open file.
func (c *session) lcreate(q *request) error {
	id, name, flags, mode := q.in.u32(), q.in.str(), q.in.u32(), q.in.u32()
	q.in.u32() // gid
	f, err := c.fid(q, id)
	if err != nil {
		return err
	}
	dir, err := c.dir(q, id, name)
	if err != nil {
		return err
	}
	_, err = f.opened()
	if err == nil || flags&openAccess == openAccess {
		return errno.EINVAL
	}
	created, a, err := c.createIn(dir, name, flags, mode)
	if err != nil {
		return err
	}
	if err := c.fids.replace(id, f, created); err != nil {
		created.refs = 1
		c.putFid(created)
		return err
	}
	q.held = append(q.held, f) // the table's reference
	q.out.qid(a.qid)
	q.out.u32(0)
	return nil
}

func (c *session) createIn(dir *node, name string, flags, mode uint32) (*fid, attr, error) {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := c.makePath(dir, name)
	if err != nil {
		return nil, attr{}, err
	}
	// What exists and is no regular file must not be opened, and a link not followed.
	if a, err := c.server.lstat(path); err == nil && flags&openExclusive == 0 && !a.isRegular() {
		return nil, attr{}, notRegular(a)
	}
	open, err := c.createFile(path, flags, mode)
	if err != nil {
		return nil, attr{}, err
	}
	c.server.noteMade(path)
	a, err := c.statOpen(open)
	if err != nil {
		c.closeFile(open)
		return nil, attr{}, err
	}
	n, err := c.tree.child(dir, name)
	if err != nil {
		c.closeFile(open)
		return nil, attr{}, err
	}
	n.dir.Store(false)
	c.tree.addOpen(n, open)
	return &fid{node: n, open: open}, a, nil
}

// read answers Tread: fid[4] offset[8] count[4]. The file is read straight into the reply.
func (c *session) read(q *request) error {
	id, offset, count := q.in.u32(), q.in.u64(), q.in.u32()
	_, open, err := c.openFid(q, id)
	switch {
	case err != nil:
		return err
	case open.dir:
		return errno.EISDIR
	case int64(offset) < 0:
		return errno.EINVAL
	}
	const fixed = headerSize + 4
	n := int(min(count, c.msize-fixed))
	c.reserve(q, fixed+n)
	data := (*q.reply)[fixed : fixed+n]
	got, err := open.file.ReadAt(data, int64(offset))
	if err != nil && !errors.Is(err, io.EOF) && got == 0 {
		return err
	}
	q.out.u32(uint32(got))
	q.out.buf = q.out.buf[:fixed+got]
	return nil
}

// write answers Twrite: fid[4] offset[8] count[4] data[count]. A file opened for appending ignores the offset, as
// pwrite does on Linux, so that two writers of one log do not overwrite each other.
func (c *session) write(q *request) error {
	id, offset := q.in.u32(), q.in.u64()
	data := q.in.take(int(q.in.u32()))
	_, open, err := c.openFid(q, id)
	switch {
	case err != nil:
		return err
	case !open.writable:
		return errno.EBADF
	case int64(offset) < 0:
		return errno.EINVAL
	}
	var n int
	if open.append {
		n, err = open.file.Write(data)
	} else {
		n, err = open.file.WriteAt(data, int64(offset))
	}
	if n == 0 && err != nil {
		return err
	}
	q.out.u32(uint32(n))
	return nil
}

// fsync answers Tfsync: fid[4] datasync[4]. Early dialects leave datasync out.
func (c *session) fsync(q *request) error {
	id := q.in.u32()
	if len(q.in.rest) > 0 {
		q.in.u32()
	}
	_, open, err := c.openFid(q, id)
	if err != nil {
		return err
	}
	return hostSync(open)
}

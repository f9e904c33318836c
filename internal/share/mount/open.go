package mount

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"agentvm/internal/host/errno"
)

// Open flags of FUSE, which are Linux' generic O_ values (include/uapi/asm-generic/fcntl.h).
const (
	// maxData bounds what one request reads or writes, in bytes: what a chain of 256 buffers of a page holds beside the headers.
	maxData = 252 * 4096

	openAccess    = 0o3
	accessRead    = 0 // of openAccess
	accessWrite   = 1
	openExclusive = 0o200
	openTruncate  = 0o1000
	openAppend    = 0o2000
	openDataSync  = 0o10000
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
// that does not block, and is refused afterwards. The attributes are those of what is open.
func (s *Server) openRegular(path string, flags int, perm fs.FileMode) (*os.File, attr, error) {
	file, err := s.open(path, flags|hostNonblock, perm)
	if err != nil {
		return nil, attr{}, err
	}
	var a attr
	info, err := file.Stat()
	if err == nil {
		if a = s.attrOf(info, path); !a.isRegular() {
			err = notRegular(a)
		}
	}
	if err != nil {
		file.Close()
		return nil, attr{}, err
	}
	return file, a, nil
}

func (s *Server) openDir(path string) (*os.File, error) {
	return s.open(path, os.O_RDONLY|hostDirectory|hostNonblock, 0)
}

// Flags of FUSE_OPEN's and FUSE_OPENDIR's replies.
const (
	openKeepCache = 1 << 1 // what the guest has in its page cache is still right
	openCacheDir  = 1 << 3 // the guest may keep the listing in its page cache
)

// open answers FUSE_OPEN: flags[4] open_flags[4].
func (c *session) open(q *request) error {
	flags, _ := q.in.u32(), q.in.u32()
	if err := q.in.end(); err != nil {
		return err
	}
	if flags&openAccess == openAccess {
		return errno.EINVAL
	}
	if c.server.config.ReadOnly && flags&(openAccess|openTruncate) != 0 {
		return errno.EROFS
	}
	if flags&openTruncate != 0 {
		c.tree.beginChange(q.node)
	}
	open, a, err := c.openNode(q.node, false, flags&^openExclusive)
	if flags&openTruncate != 0 {
		c.tree.endChange(q.node, a, err == nil)
	}
	if err != nil {
		return err
	}
	var reply uint32
	if c.tree.fresh(q.node, a) {
		reply = openKeepCache
	}
	c.replyOpen(q, q.node, open, reply)
	return nil
}

// opendir answers FUSE_OPENDIR: flags[4] open_flags[4].
func (c *session) opendir(q *request) error {
	q.in.take(4 + 4)
	if err := q.in.end(); err != nil {
		return err
	}
	open, _, err := c.openNode(q.node, true, 0)
	if err != nil {
		return err
	}
	c.replyOpen(q, q.node, open, c.listingFlags(q.node, open))
	return nil
}

// replyOpen appends a struct fuse_open_out: fh[8] open_flags[4] padding[4].
func (c *session) replyOpen(q *request, n *node, open *openFile, flags uint32) {
	q.out.u64(c.handles.add(c.tree.addOpen(n, open), open))
	q.out.u32(flags)
	q.out.u32(0)
}

// openNode opens what a node's name means.
func (c *session) openNode(n *node, dir bool, flags uint32) (*openFile, attr, error) {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	if n.kind == modeRegular && !dir && flags&(openAccess|openTruncate) == 0 {
		if open, a, err := c.openKnown(n, flags); err == nil {
			return open, a, nil
		}
	}
	path, a, err := c.find(n)
	switch {
	case err != nil:
		return nil, a, err
	case dir && !a.isDir():
		return nil, a, errno.ENOTDIR
	case !dir && !a.isRegular():
		return nil, a, notRegular(a)
	}
	if flags&(openAccess|openTruncate) != 0 {
		if err := c.protects(n); err != nil {
			return nil, a, err
		}
		c.server.noteInstruction(path)
	}
	open, now, err := c.openFile(path, dir, flags)
	if err != nil {
		return nil, a, err
	}
	if flags&openTruncate != 0 {
		a = now
	}
	return open, a, nil
}

// openKnown opens for reading what was a regular file when it was last looked at, by its first name, and looks at what is open. That takes half of the
// calls that it takes to look at the name before. After an error the caller has to look.
func (c *session) openKnown(n *node, flags uint32) (*openFile, attr, error) {
	path, err := n.path()
	if err != nil {
		return nil, attr{}, err
	}
	open, a, err := c.openFile(path, false, flags)
	if err != nil {
		return nil, a, err
	}
	if a = c.server.withBorn(a, path); !c.tree.isStill(n, a) {
		c.closeFile(open)
		return nil, a, errno.ESTALE
	}
	return open, a, nil
}

// openFile opens what exists, within the session's limit. The attributes are a regular file's.
func (c *session) openFile(path string, dir bool, flags uint32) (open *openFile, a attr, err error) {
	covered := c.server.masks.find(path) == standsCovered
	open, err = c.limited(&openFile{path: path, dir: dir, access: flags & openAccess, writable: flags&openAccess != 0, append: flags&openAppend != 0, covered: covered},
		func() (file *os.File, err error) {
			if dir {
				return c.server.openDir(path)
			}
			file, a, err = c.server.openRegular(path, hostFlags(flags), 0)
			return file, err
		})
	return open, a, err
}

// createAttempts is how often a file may come and go, by other sessions and programs, while it is being created.
const createAttempts = 16

// createFile opens a file and makes it if there is none. It is made exclusively, since otherwise a link in its place would be
// followed, and the mode of what is there already does not matter.
func (c *session) createFile(path string, flags, mode uint32) (open *openFile, a attr, created bool, err error) {
	open, err = c.limited(&openFile{path: path, access: flags & openAccess, writable: flags&openAccess != 0, append: flags&openAppend != 0},
		func() (file *os.File, err error) {
			for attempt := 1; ; attempt++ {
				file, a, err = c.server.openRegular(path, hostFlags(flags)|os.O_CREATE|os.O_EXCL, hostMode(mode))
				if flags&openExclusive != 0 || !errors.Is(err, fs.ErrExist) {
					created = err == nil
					return file, err
				}
				file, a, err = c.server.openRegular(path, hostFlags(flags), 0)
				if attempt == createAttempts || !errors.Is(err, fs.ErrNotExist) {
					return file, err
				}
			}
		})
	return open, a, created, err
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

// create answers FUSE_CREATE: flags[4] mode[4] umask[4] open_flags[4] name\0. The reply is an entry and an open file.
func (c *session) create(q *request) error {
	flags, mode, _, _ := q.in.u32(), q.in.u32(), q.in.u32(), q.in.u32()
	name := q.in.str()
	if err := errors.Join(q.in.end(), q.inDir(name)); err != nil {
		return err
	}
	if flags&openAccess == openAccess {
		return errno.EINVAL
	}
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := c.makePath(q.node, name)
	if err != nil {
		return err
	}
	// What exists and is not a regular file must not be opened, and a link not followed.
	if a, err := c.server.lstat(path); err == nil && flags&openExclusive == 0 && !a.isRegular() {
		return notRegular(a)
	}
	expected := c.events.expect(q.node, name, eventMade)
	noteMade := c.server.making(path)
	open, a, created, err := c.createFile(path, flags, mode)
	if err != nil {
		expected(err, identity{})
		return err
	}
	a, err = c.createdFile(open, a, created, path, mode, noteMade)
	expected(err, a.identity())
	if err != nil {
		c.closeFile(open)
		return err
	}
	c.server.noteInstruction(path)
	n, err := c.tree.lookedUp(q.node, name, a)
	if err != nil {
		c.closeFile(open)
		return err
	}
	c.tree.made(n, a)
	c.tellEntry(&q.out, q.node, n, a)
	c.replyOpen(q, n, open, 0)
	return nil
}

// createdFile returns the attributes of a file that create has opened and that had those of a. A new one gets its mode, to which the guest's umask has
// been applied and the host's must not be.
func (c *session) createdFile(open *openFile, a attr, created bool, path string, mode uint32, noteMade func() error) (attr, error) {
	if !created { // another session or program has made it meanwhile
		return a, c.server.protects(path)
	}
	if err := noteMade(); err != nil {
		return attr{}, errors.Join(err, c.server.unlink(path, false))
	}
	if a.hasMode(mode) || open.file.Chmod(hostMode(mode)) != nil { // some file systems have no modes
		return a, nil
	}
	return c.statOpen(open)
}

// read answers FUSE_READ: fh[8] offset[8] size[4] read_flags[4] lock_owner[8] flags[4] padding[4]. The file is read straight into the reply.
func (c *session) read(q *request) error {
	id, offset, count := q.in.u64(), q.in.u64(), q.in.u32()
	q.in.take(4 + 8 + 4 + 4)
	open, err := c.opened(q, id)
	switch {
	case err != nil:
		return err
	case open.dir:
		return errno.EISDIR
	case int64(offset) < 0:
		return errno.EINVAL
	}
	n := int(min(count, maxData))
	c.reserve(q, replyHeader+n)
	got, err := open.file.ReadAt((*q.reply)[replyHeader:replyHeader+n], int64(offset))
	if err != nil && !errors.Is(err, io.EOF) && got == 0 {
		return err
	}
	q.out.buf = q.out.buf[:replyHeader+got]
	return nil
}

// write answers FUSE_WRITE: fh[8] offset[8] size[4] write_flags[4] lock_owner[8] flags[4] padding[4] data[size]. A file opened for
// appending ignores the offset, as pwrite does on Linux, so that two writers of one log do not overwrite each other.
func (c *session) write(q *request) error {
	id, offset, size := q.in.u64(), q.in.u64(), q.in.u32()
	q.in.take(4 + 8 + 4 + 4)
	data := q.in.take(int(size))
	open, err := c.opened(q, id)
	switch {
	case err != nil:
		return err
	case !open.writable:
		return errno.EBADF
	case int64(offset) < 0:
		return errno.EINVAL
	}
	var n int
	c.tree.beginChange(q.handle.node)
	if open.append {
		n, err = open.file.Write(data)
	} else {
		n, err = open.file.WriteAt(data, int64(offset))
	}
	c.endWrite(q.handle.node, open)
	if n == 0 && err != nil {
		return err
	}
	q.out.u32(uint32(n))
	q.out.u32(0)
	return nil
}

// endWrite notes what the guest has made of a file, so that it does not hear of that.
func (c *session) endWrite(n *node, open *openFile) {
	var a attr
	err := errors.ErrUnsupported
	if c.events != nil {
		a, err = c.statOpen(open)
	}
	c.tree.endChange(n, a, err == nil)
}

// fsync answers FUSE_FSYNC and FUSE_FSYNCDIR: fh[8] flags[4] padding[4].
func (c *session) fsync(q *request) error {
	id := q.in.u64()
	q.in.take(4 + 4)
	open, err := c.opened(q, id)
	if err != nil {
		return err
	}
	return hostSync(open)
}

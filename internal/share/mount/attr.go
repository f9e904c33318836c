package mount

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"agentvm/internal/host/errno"
	"agentvm/internal/host/hostfile"
)

// overflowID is the owner, in the guest, of what the host process's user does not own: Linux's "nobody".
const overflowID = 65534

// attr is what getattr tells about a file.
type attr struct {
	ino   uint64
	mode  uint32 // Linux' st_mode
	size  uint64
	mtime time.Time
	host  hostAttr
	plain bool  // it is known to have no extended attributes
	born  int64 // of a file with several names: when it was made, in nanoseconds since 1970, or 0
}

// hostAttr is what the host's own stat structure adds.
type hostAttr struct {
	hostfile.Stat
	owned bool // by the host process's user
}

func (a attr) identity() identity { return identity{a.host.Device, a.host.Inode} }

func (a attr) version() version {
	return version{a.size, a.mtime.UnixNano(), a.host.Changed.UnixNano()}
}

// hasMode says whether the permissions are those that a guest has asked for.
func (a attr) hasMode(mode uint32) bool {
	const bits = 0o777 | modeSticky
	return !hostModes || a.mode&bits == mode&bits
}

func (a attr) isDir() bool     { return a.mode&modeTypeMask == modeDir }
func (a attr) isRegular() bool { return a.mode&modeTypeMask == modeRegular }
func (a attr) isSymlink() bool { return a.mode&modeTypeMask == modeSymlink }

// lstat looks at what a path itself names.
func (s *Server) lstat(path string) (attr, error) {
	info, err := s.stat(path)
	if err != nil {
		return attr{}, err
	}
	return s.withBorn(s.attrOf(info, path), path), nil
}

// withBorn is a with the time of birth, which tells the hard links of one file from a later file with the inode's number.
func (s *Server) withBorn(a attr, path string) attr {
	if a.host.Links > 1 && !a.isDir() {
		a.born = s.born(path)
	}
	return a
}

// attrOf translates what package os says; path is only for hosts without inode numbers.
func (s *Server) attrOf(info fs.FileInfo, path string) attr {
	host := hostStat(info, path)
	host.owned = s.user < 0 || int(host.UID) == s.user
	mode := linuxType(info.Mode()) | hostPermissions(info.Mode())
	if info.Mode()&fs.ModeSticky != 0 {
		mode |= modeSticky
	}
	return attr{
		ino:   s.inode(host.Device, host.Inode),
		mode:  mode,
		size:  uint64(info.Size()),
		mtime: info.ModTime(),
		host:  host,
	}
}

// inode numbers files by the host's inode, which is stable over renames and restarts. Files of another file system mounted
// below the root could have the same inode number, so theirs is mixed with the device.
func (s *Server) inode(dev, ino uint64) uint64 {
	if dev == s.rootDev {
		return ino
	}
	// The 64-bit finalizer of MurmurHash3: a bijection, so only the sum can collide.
	x := dev*0x9E3779B97F4A7C15 + ino
	x = (x ^ x>>33) * 0xFF51AFD7ED558CCD
	x = (x ^ x>>33) * 0xC4CEB9FE1A85EC53
	return x ^ x>>33
}

// stat looks at what a node's name means, else at any open file of a removed name.
func (c *session) stat(n *node) (attr, error) {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	open := c.tree.opened(n, false)
	if open != nil && !c.tree.byName {
		return c.statOpen(open)
	}
	_, a, err := c.find(n)
	if errno.In(err) == errno.ENOENT && open != nil {
		return c.statOpen(open)
	}
	if number := errno.In(err); number == errno.ENOENT || number == errno.ESTALE {
		if origin, copied := c.tree.origin(n); copied {
			return origin, nil
		}
	}
	return a, err
}

// find returns the path and the attributes of a node's name: ESTALE where it means another file by now, and ENOENT for what the guest has
// removed. names must be held.
func (c *session) find(n *node) (string, attr, error) {
	path, err := n.path()
	var a attr
	if err == nil {
		if a, err = c.lookAgain(n, path); err == nil {
			return path, a, nil
		}
	}
	for _, p := range c.tree.places(n)[1:] { // a program of the host may have removed the first one
		if other, invalid := p.path(); invalid == nil {
			if a, invalid := c.lookAgain(n, other); invalid == nil {
				return other, a, nil
			}
		}
	}
	return path, a, err
}

// lookAgain returns the attributes of a node by one of its names.
func (c *session) lookAgain(n *node, path string) (attr, error) {
	a, err := c.server.lstat(path)
	if err == nil && n.parent != nil && !c.tree.isStill(n, a) {
		err = errno.ESTALE
	}
	return a, err
}

// protects is EROFS for a change of a node of which any name is protected. What was removed no program of the host finds. names must be held.
func (c *session) protects(n *node) error {
	if c.server.protection == nil || n.gone.Load() {
		return nil
	}
	for _, p := range c.tree.places(n) {
		path := "."
		if p.parent != nil {
			var err error
			if path, err = p.path(); err != nil {
				continue
			}
		}
		if err := c.server.protects(path); err != nil {
			return err
		}
	}
	return nil
}

func (c *session) statOpen(open *openFile) (attr, error) {
	info, err := open.file.Stat()
	if err != nil {
		return attr{}, err
	}
	return c.server.attrOf(info, open.path), nil
}

const (
	// validTime is how long the guest may use attributes and names without asking: what the host changes is seen within it, and by
	// the next open at once.
	validTime = time.Second
)

// getattr answers FUSE_GETATTR: getattr_flags[4] dummy[4] fh[8].
func (c *session) getattr(q *request) error {
	q.in.take(4 + 4 + 8)
	if err := q.in.end(); err != nil {
		return err
	}
	return c.replyAttr(q)
}

// replyAttr appends a struct fuse_attr_out: attr_valid[8] attr_valid_nsec[4] dummy[4] and the attributes.
func (c *session) replyAttr(q *request) error {
	a, err := c.stat(q.node)
	if err != nil {
		return err
	}
	c.tree.tell(q.node, a)
	c.tree.names.RLock()
	seconds, nanoseconds := validity(c.attrTime(q.node, a))
	c.tree.names.RUnlock()
	q.out.u64(seconds)
	q.out.u32(nanoseconds)
	q.out.u32(0)
	c.server.encode(&q.out, a)
	return nil
}

// encodeEntry appends a struct fuse_entry_out: nodeid[8] generation[8] entry_valid[8] attr_valid[8] and their nanoseconds [4 each], and the
// attributes.
func (c *session) encodeEntry(out *encoder, id uint64, a attr, name, attributes time.Duration) {
	nameSeconds, nameNanoseconds := validity(name)
	seconds, nanoseconds := validity(attributes)
	out.u64(id)
	out.u64(0)
	out.u64(nameSeconds)
	out.u64(seconds)
	out.u32(nameNanoseconds)
	out.u32(nanoseconds)
	c.server.encode(out, a)
}

func (s *Server) encode(out *encoder, a attr) {
	uid, gid := uint32(overflowID), uint32(overflowID)
	if a.host.owned {
		uid, gid = s.config.UID, s.config.GID
	}
	out.attr(a, uid, gid)
}

// lookup answers FUSE_LOOKUP: name\0. A name that is missing is not remembered, even where the directory is watched: a
// file that the host has made is found at once.
func (c *session) lookup(q *request) error {
	name := q.in.str()
	if err := errors.Join(q.in.end(), q.inDir(name)); err != nil {
		return err
	}
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := c.seePath(q.node, name)
	if err != nil {
		return err
	}
	a, err := c.server.lstat(path)
	a.plain = err == nil && c.saysPlain() && c.server.isPlain(path)
	if errno.In(err) == errno.ENOENT {
		if n, told := c.tree.ghost(q.node, name); n != nil {
			c.encodeEntry(&q.out, n.id, told, 0, 0)
			return nil
		}
	}
	if err != nil {
		return err
	}
	return c.replyEntry(q, q.node, name, a)
}

// replyEntry tells the guest of a name. names must be held.
func (c *session) replyEntry(q *request, dir *node, name string, a attr) error {
	n, err := c.tree.lookedUp(dir, name, a)
	if err != nil {
		return err
	}
	c.tellEntry(&q.out, dir, n, a)
	return nil
}

// tellEntry encodes an entry of a directory, for as long as it is valid. A directory is watched from then on. names must be held.
func (c *session) tellEntry(out *encoder, dir, n *node, a attr) {
	if c.events != nil && a.isDir() {
		if path, err := n.path(); err == nil && !c.events.watch(n, path) {
			c.encodeEntry(out, n.id, a, c.nameTime(dir, a), validTime) // it may have changed before it was watched
			return
		}
	}
	c.encodeEntry(out, n.id, a, c.nameTime(dir, a), c.attrTime(n, a))
}

// nameTime is how long a name in a directory is valid.
func (c *session) nameTime(dir *node, a attr) time.Duration {
	if !dir.watched() || a.host.Device != c.server.rootDev {
		return validTime
	}
	return watchedTime
}

// attrTime is how long the attributes of a node are valid. What has several names may change by another one, in a directory that is not
// watched; and what is open may have no name any more. names must be held.
func (c *session) attrTime(n *node, a attr) time.Duration {
	switch {
	case a.host.Device != c.server.rootDev, n.parent != nil && !n.parent.watched(), n.gone.Load(), n.strayed.Load():
	case a.isDir() && n.watched(), !a.isDir() && a.host.Links == 1:
		return watchedTime
	}
	return validTime
}

// Bits of FUSE_SETATTR's valid field.
const (
	setMode     = 1 << 0
	setSize     = 1 << 3
	setATime    = 1 << 4
	setMTime    = 1 << 5
	setATimeNow = 1 << 7
	setMTimeNow = 1 << 8
)

// change is a decoded FUSE_SETATTR. Owners are accepted and ignored: the host's user owns everything that the guest makes.
type change struct {
	valid        uint32
	mode         fs.FileMode
	size         uint64
	atime, mtime time.Time // zero: leave alone
}

// decodeChange reads valid[4] padding[4] fh[8] size[8] lock_owner[8] atime[8] mtime[8] ctime[8] and their nanoseconds [4 each] mode[4]
// unused[4] uid[4] gid[4] unused[4].
func decodeChange(in *decoder) change {
	ch := change{valid: in.u32()}
	in.take(4 + 8)
	ch.size = in.u64()
	in.take(8)
	atime, mtime, _ := int64(in.u64()), int64(in.u64()), in.u64()
	atimeNS, mtimeNS, _ := int64(in.u32()), int64(in.u32()), in.u32()
	ch.mode = hostMode(in.u32())
	in.take(4 + 4 + 4 + 4)
	ch.atime = pickTime(ch.valid, setATime, setATimeNow, time.Unix(atime, atimeNS))
	ch.mtime = pickTime(ch.valid, setMTime, setMTimeNow, time.Unix(mtime, mtimeNS))
	return ch
}

// pickTime is the given time, the current one when the second bit is set, or zero.
func pickTime(valid, set, setNow uint32, given time.Time) time.Time {
	switch {
	case valid&set == 0:
		return time.Time{}
	case valid&setNow != 0:
		return time.Now()
	}
	return given
}

// hostMode keeps permissions and the sticky bit. A set-uid file made by the guest would run as the host's user
// for anybody on the host, so those bits are dropped.
func hostMode(mode uint32) fs.FileMode {
	m := fs.FileMode(mode & 0o777)
	if mode&modeSticky != 0 {
		m |= fs.ModeSticky
	}
	return m
}

// setattr answers FUSE_SETATTR.
func (c *session) setattr(q *request) error {
	ch := decodeChange(&q.in)
	if err := q.in.end(); err != nil {
		return err
	}
	c.tree.beginChange(q.node)
	err := c.change(q.node, ch)
	a, after := c.stat(q.node)
	c.tree.endChange(q.node, a, after == nil)
	if err != nil {
		return err
	}
	return c.replyAttr(q)
}

func (c *session) change(n *node, ch change) error {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, a, err := c.find(n)
	if err == nil {
		if refused := errors.Join(c.server.masks.refusesChange(path), c.protects(n)); refused != nil {
			return refused
		}
	}
	if open := c.tree.opened(n, false); open != nil {
		if err != nil { // the host has moved it: it is what it was when it was opened
			if err := c.server.protects(open.path); err != nil {
				return err
			}
		}
		return c.changeOpen(n, open, path, ch)
	}
	if err != nil {
		return err
	}
	return c.changePath(n, path, a, ch)
}

// changeOpen applies a change through a descriptor, which works for removed files.
func (c *session) changeOpen(n *node, open *openFile, path string, ch change) error {
	if ch.valid&setSize != 0 {
		target := open
		if !open.writable {
			target = c.tree.opened(n, true)
		}
		if err := c.truncate(target, path, ch.size); err != nil {
			return err
		}
	}
	if ch.valid&setMode != 0 {
		if err := open.file.Chmod(ch.mode); err != nil {
			return err
		}
	}
	if ch.atime.IsZero() && ch.mtime.IsZero() {
		return nil
	}
	a, err := c.statOpen(open)
	if err != nil {
		return err
	}
	return hostfile.SetTimes(open.file, orTime(ch.atime, a.host.Accessed), orTime(ch.mtime, a.mtime))
}

// changePath applies a change by name. The caller holds tree.names.
func (c *session) changePath(n *node, path string, a attr, ch change) error {
	if a.isSymlink() {
		return c.changeLink(path, a, ch)
	}
	if ch.valid&setSize != 0 {
		if !a.isRegular() {
			return notRegular(a)
		}
		if err := c.truncate(c.tree.opened(n, true), path, ch.size); err != nil {
			return err
		}
	}
	if ch.valid&setMode != 0 {
		if err := c.server.chmod(path, ch.mode); err != nil {
			return err
		}
	}
	if ch.atime.IsZero() && ch.mtime.IsZero() {
		return nil
	}
	return c.server.setTimes(path, orTime(ch.atime, a.host.Accessed), orTime(ch.mtime, a.mtime))
}

// changeLink can only set the times of a symbolic link; its mode means nothing on Linux.
func (c *session) changeLink(name string, a attr, ch change) error {
	if ch.valid&(setSize|setMode) != 0 {
		return errno.EOPNOTSUPP
	}
	if ch.atime.IsZero() && ch.mtime.IsZero() {
		return nil
	}
	return c.server.setTimes(name, orTime(ch.atime, a.host.Accessed), orTime(ch.mtime, a.mtime))
}

// orTime returns the second time where the guest has left the first alone: hosts set both at once.
func orTime(t, other time.Time) time.Time {
	if t.IsZero() {
		return other
	}
	return t
}

// truncate uses an open file if there is one, because a file can be open for writing that its mode protects.
func (c *session) truncate(open *openFile, path string, size uint64) error {
	if int64(size) < 0 {
		return errno.EFBIG
	}
	if open != nil {
		return open.file.Truncate(int64(size))
	}
	if path == "" {
		return errno.ENOENT
	}
	file, _, err := c.server.openRegular(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(int64(size)), file.Close())
}

// readlink answers FUSE_READLINK.
func (c *session) readlink(q *request) error {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, _, err := c.find(q.node)
	if err != nil {
		return err
	}
	target, err := c.server.readTarget(path)
	if err != nil {
		return err
	}
	if len(target) > maxPath {
		return errno.ENAMETOOLONG
	}
	q.out.buf = append(q.out.buf, hostTarget(target)...)
	return nil
}

// statfs answers FUSE_STATFS with a struct fuse_statfs_out: blocks[8] bfree[8] bavail[8] files[8] ffree[8] bsize[4] namelen[4] frsize[4]
// padding[4] spare[24].
func (c *session) statfs(q *request) error {
	st, err := hostStatFS(c.server.dir)
	if err != nil {
		return err
	}
	for _, v := range []uint64{st.blocks, st.free, st.available, st.files, st.filesFree} {
		q.out.u64(v)
	}
	for _, v := range []uint32{st.blockSize, 255, st.blockSize, 0} {
		q.out.u32(v)
	}
	q.out.buf = append(q.out.buf, make([]byte, 24)...)
	return nil
}

// fileSystem is what df shows; blocks are blockSize bytes.
type fileSystem struct {
	blockSize               uint32
	blocks, free, available uint64
	files, filesFree        uint64
}

package mount

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"agentvm/internal/errno"
	"agentvm/internal/hostfile"
)

// overflowID is the owner, in the guest, of what the host process's user does not own: Linux's "nobody".
const overflowID = 65534

// attr is what getattr tells about a file.
type attr struct {
	qid   qid
	mode  uint32 // Linux' st_mode
	size  uint64
	mtime time.Time
	host  hostAttr
}

// hostAttr is what the host's own stat structure adds.
type hostAttr struct {
	hostfile.Stat
	owned bool // by the host process's user
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
	return s.attrOf(info, path), nil
}

// attrOf translates what package os says; path is only for hosts without inode numbers.
func (s *Server) attrOf(info fs.FileInfo, path string) attr {
	host := hostStat(info, path)
	mode := linuxType(info.Mode()) | hostPermissions(info.Mode())
	if info.Mode()&fs.ModeSticky != 0 {
		mode |= modeSticky
	}
	return attr{
		qid:   s.qidOf(host, info),
		mode:  mode,
		size:  uint64(info.Size()),
		mtime: info.ModTime(),
		host:  host,
	}
}

// qidOf numbers files by inode, which is stable over renames and restarts. Files of another file system mounted
// below the root could have the same inode number, so theirs is mixed with the device.
func (s *Server) qidOf(host hostAttr, info fs.FileInfo) qid {
	return qid{kind: qidKind(info.Mode()), version: qidVersion(info), path: s.qidPath(host.Device, host.Inode)}
}

func (s *Server) qidPath(dev, ino uint64) uint64 {
	if dev == s.rootDev {
		return ino
	}
	// The 64-bit finalizer of MurmurHash3: a bijection, so only the sum can collide.
	x := dev*0x9E3779B97F4A7C15 + ino
	x = (x ^ x>>33) * 0xFF51AFD7ED558CCD
	x = (x ^ x>>33) * 0xC4CEB9FE1A85EC53
	return x ^ x>>33
}

// qidVersion changes with the contents. It is never 0, which v9fs takes for "must not be cached or mapped".
func qidVersion(info fs.FileInfo) uint32 {
	t := info.ModTime()
	return uint32(t.Unix())<<8 ^ uint32(t.Nanosecond()) ^ uint32(info.Size()) | 1
}

// stat looks at an open fid's file, else at its name, else at any open file of a removed name.
func (c *session) stat(f *fid) (attr, error) {
	if open, err := f.opened(); err == nil {
		return c.statOpen(open)
	}
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := f.node.path()
	if err == nil {
		return c.server.lstat(path)
	}
	if open := c.tree.opened(f.node, false); open != nil {
		return c.statOpen(open)
	}
	return attr{}, err
}

func (c *session) statOpen(open *openFile) (attr, error) {
	info, err := open.file.Stat()
	if err != nil {
		return attr{}, err
	}
	return c.server.attrOf(info, open.path), nil
}

// statsBasic is P9_STATS_BASIC: everything but birth time, generation and data version.
const statsBasic = 0x7ff

// getattr answers Tgetattr: fid[4] request_mask[8].
func (c *session) getattr(q *request) error {
	id, mask := q.in.u32(), q.in.u64()
	f, err := c.fid(q, id)
	if err != nil {
		return err
	}
	a, err := c.stat(f)
	if err != nil {
		return err
	}
	q.out.u64(mask & statsBasic)
	c.server.encodeAttr(&q.out, a)
	return nil
}

// encodeAttr appends the body of Rgetattr behind its mask: qid[13] mode[4] uid[4] gid[4] and fifteen numbers of 8 bytes, with times as
// seconds and nanoseconds (Linux, fs/9p and net/9p/client.c, p9_client_getattr_dotl).
func (s *Server) encodeAttr(out *encoder, a attr) {
	uid, gid := uint32(overflowID), uint32(overflowID)
	if a.host.owned {
		uid, gid = s.config.UID, s.config.GID
	}
	out.qid(a.qid)
	out.u32(a.mode)
	out.u32(uid)
	out.u32(gid)
	out.u64(a.host.Links)
	out.u64(0) // rdev: device numbers of the host mean nothing in the guest
	out.u64(a.size)
	out.u64(a.host.BlockSize)
	out.u64(a.host.Blocks)
	out.time(a.host.Accessed)
	out.time(a.mtime)
	out.time(a.host.Changed)
	out.time(time.Unix(0, 0)) // birth time
	out.u64(0)                // generation
	out.u64(0)                // data version
}

// Bits of Tsetattr's valid field.
const (
	setMode     = 0x001
	setSize     = 0x008
	setATime    = 0x010
	setMTime    = 0x020
	setATimeVal = 0x080
	setMTimeVal = 0x100
)

// change is a decoded Tsetattr. Owners are accepted and ignored: the host's user owns everything that the guest makes.
type change struct {
	valid        uint32
	mode         fs.FileMode
	size         uint64
	atime, mtime time.Time // zero: leave alone
}

func decodeChange(in *decoder) change {
	ch := change{valid: in.u32()}
	ch.mode = hostMode(in.u32())
	in.u32() // uid
	in.u32() // gid
	ch.size = in.u64()
	atime := time.Unix(int64(in.u64()), int64(in.u64()))
	mtime := time.Unix(int64(in.u64()), int64(in.u64()))
	ch.atime = pickTime(ch.valid, setATime, setATimeVal, atime)
	ch.mtime = pickTime(ch.valid, setMTime, setMTimeVal, mtime)
	return ch
}

// pickTime is the given time, the current one when only the first bit is set, or zero.
func pickTime(valid, set, setValue uint32, given time.Time) time.Time {
	switch {
	case valid&set == 0:
		return time.Time{}
	case valid&setValue == 0:
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

// setattr answers Tsetattr: fid[4] valid[4] mode[4] uid[4] gid[4] size[8] atime[8+8] mtime[8+8].
func (c *session) setattr(q *request) error {
	id := q.in.u32()
	ch := decodeChange(&q.in)
	f, err := c.fid(q, id)
	if err != nil {
		return err
	}
	open, _ := f.opened() // before tree.names, which Tlopen takes while it holds the fid
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := f.node.path()
	if err == nil {
		if refused := errors.Join(c.server.masks.refusesChange(path), c.server.protects(path)); refused != nil {
			return refused
		}
	}
	if open == nil && err != nil {
		open = c.tree.opened(f.node, false)
	}
	if open != nil {
		return c.changeOpen(f, open, path, ch)
	}
	if err != nil {
		return err
	}
	return c.changePath(f, path, ch)
}

// changeOpen applies a change through a descriptor, which works for removed files.
func (c *session) changeOpen(f *fid, open *openFile, path string, ch change) error {
	if ch.valid&setSize != 0 {
		target := open
		if !open.writable {
			target = c.tree.opened(f.node, true)
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
func (c *session) changePath(f *fid, path string, ch change) error {
	a, err := c.server.lstat(path)
	if err != nil {
		return err
	}
	if a.isSymlink() {
		return c.changeLink(path, a, ch)
	}
	if ch.valid&setSize != 0 {
		if !a.isRegular() {
			return notRegular(a)
		}
		if err := c.truncate(c.tree.opened(f.node, true), path, ch.size); err != nil {
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
	file, err := c.server.openRegular(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Truncate(int64(size)), file.Close())
}

// readlink answers Treadlink: fid[4].
func (c *session) readlink(q *request) error {
	id := q.in.u32()
	f, err := c.fid(q, id)
	if err != nil {
		return err
	}
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := f.node.path()
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
	q.out.str(hostTarget(target))
	return nil
}

// statfs answers Tstatfs: fid[4].
func (c *session) statfs(q *request) error {
	id := q.in.u32()
	if _, err := c.fid(q, id); err != nil {
		return err
	}
	st, err := hostStatFS(c.server.dir)
	if err != nil {
		return err
	}
	q.out.u32(0x01021997) // V9FS_MAGIC
	q.out.u32(st.blockSize)
	for _, v := range []uint64{st.blocks, st.free, st.available, st.files, st.filesFree, 0} {
		q.out.u64(v)
	}
	q.out.u32(255)
	return nil
}

// fileSystem is what df shows; blocks are blockSize bytes.
type fileSystem struct {
	blockSize               uint32
	blocks, free, available uint64
	files, filesFree        uint64
}

package mount

import (
	"errors"
	"hash/maphash"
	"io"
	"os"
	"strings"
	"time"

	"agentvm/internal/host/errno"
)

// maxListings limits the memory of all directory listings of a session, in bytes.
const maxListings = 64 << 20

// readdir answers FUSE_READDIR and FUSE_READDIRPLUS: fh[8] offset[8] size[4], and what FUSE_READ has. Offset 0 takes a listing of the names; an entry's
// offset is its place in that listing, so it stays right while the directory changes. Names that vanished since are left out.
func (c *session) readdir(q *request) error {
	id, offset, count := q.in.u64(), q.in.u64(), q.in.u32()
	q.in.take(4 + 8 + 4 + 4)
	open, err := c.opened(q, id)
	if err != nil {
		return err
	}
	if !open.dir {
		return errno.ENOTDIR
	}
	open.mu.Lock()
	defer open.mu.Unlock()
	if offset == 0 && !open.early || open.names == nil {
		if err := c.list(q.handle.node, open); err != nil {
			return err
		}
	}
	open.early = false
	limit := replyHeader + int(min(count, maxData))
	c.reserve(q, limit)
	return c.entries(&q.out, q.handle.node, open, offset, limit, q.op == opReaddirplus)
}

// maxKept is how many names a directory may have whose listing the guest keeps from one opendir to the next, because opendir reads them then.
const maxKept = 1024

// listing is what the listings of a directory that the guest's kernel may have have in common.
type listing struct {
	of    version // before the first of them was read
	at    time.Time
	names int
	sum   uint64 // of the names, where they are at most maxKept
	stale bool   // one of them is of another version or has other names, or may be
}

// listingFlags says, as flags of FUSE_OPENDIR's reply, whether the guest may keep a listing, and whether to use what it has: of a watched directory that
// is as it was when it was listed, for as long as it may use the entries' attributes too. It then has pages of the listing and may lack others, which it
// asks this open directory for, so that is listed now: offsets count in what is there at opendir.
func (c *session) listingFlags(n *node, open *openFile) uint32 {
	if c.events == nil || open.covered || !n.watched() {
		return 0
	}
	a, err := c.statOpen(open)
	if err != nil || !c.tree.isListed(n, a.version()) || c.list(n, open) != nil {
		return openCacheDir
	}
	if !c.tree.isListed(n, a.version()) { // some file systems, as /proc, give a directory no other time when its names change
		return openCacheDir
	}
	open.early = true
	return openCacheDir | openKeepCache
}

// isListed says whether all listings that the guest's kernel may have are of this version. If not, the kernel forgets them with the reply; directories
// that are open may still have it keep older ones.
func (t *tree) isListed(n *node, now version) bool {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	l := n.listing
	if l != nil && !l.stale && l.of == now && l.names <= maxKept && time.Since(l.at) < watchedTime {
		return true
	}
	if n.listing = nil; len(n.open) > 0 {
		n.listing = &listing{stale: true}
	}
	return false
}

// noteListing notes a listing that the guest's kernel may keep.
func (t *tree) noteListing(n *node, l *listing) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	if n.listing == nil {
		n.listing = l
	} else if n.listing.of != l.of || n.listing.sum != l.sum || l.stale {
		n.listing.stale = true
	}
}

// list reads all names. "." and ".." come first, because the kernel shows what the server sends and adds nothing.
func (c *session) list(n *node, open *openFile) error {
	if _, err := open.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	a, err := c.statOpen(open)
	if err != nil {
		return err
	}
	l := &listing{of: a.version(), at: time.Now(), stale: a.version().recent()}
	defer func() {
		if l.names = len(open.names); l.names <= maxKept {
			l.sum = maphash.String(c.tree.seed, strings.Join(open.names, "/"))
		}
		c.tree.noteListing(n, l)
	}()
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

// entrySize and direntSize are the sizes in bytes of struct fuse_entry_out and of struct fuse_dirent without its name.
const (
	entrySize  = 40 + attrSize
	direntSize = 24
)

// entries encodes names from an offset on, as many as end before limit: of plus a struct fuse_entry_out, and ino[8] off[8] namelen[4]
// type[4] name, padded to 8 bytes.
func (c *session) entries(out *encoder, dir *node, open *openFile, offset uint64, limit int, plus bool) error {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	start := len(out.buf)
	fixed := direntSize
	if plus {
		fixed += entrySize
	}
	for i := offset; i < uint64(len(open.names)); i++ {
		name := open.names[i]
		if len(out.buf)+fixed+(len(name)+7)&^7 > limit {
			if len(out.buf) == start {
				return errno.EINVAL // not even one fits
			}
			return nil
		}
		a, err := c.entry(dir, open, name)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, errno.ENOENT) {
			continue
		}
		if err != nil {
			return err
		}
		if plus {
			if n := c.entryNode(dir, name, a); n != nil {
				c.tellEntry(out, dir, n, a)
			} else {
				c.encodeEntry(out, 0, a, 0, 0)
			}
		}
		out.u64(a.ino)
		out.u64(i + 1)
		out.u32(uint32(len(name)))
		out.u32(a.mode & modeTypeMask >> 12) // a DT_ value
		out.buf = append(out.buf, name...)
		out.buf = append(out.buf, make([]byte, -len(name)&7)...)
	}
	return nil
}

// entryNode gives the guest's kernel a reference to what a name means, or nil: then it looks the name up when it wants to.
func (c *session) entryNode(dir *node, name string, a attr) *node {
	if name == "." || name == ".." || checkName(name) != nil {
		return nil
	}
	n, err := c.tree.lookedUp(dir, name, a)
	if err != nil {
		return nil
	}
	return n
}

// entry looks at one name without following it. The root's parent is the root: nothing outside it shows, not even an
// inode number. The caller holds tree.names.
func (c *session) entry(dir *node, open *openFile, name string) (attr, error) {
	if name == "." || name == ".." {
		if name == ".." && dir.parent != nil {
			dir = dir.parent
		}
		path, err := dir.path()
		if err != nil {
			return attr{}, err
		}
		return c.server.lstat(path)
	}
	path, err := c.seePath(dir, name)
	if err != nil {
		return attr{}, err
	}
	info, err := c.server.statIn(open.file, path)
	if err != nil {
		return attr{}, err
	}
	a := c.server.withBorn(c.server.attrOf(info, path), path)
	a.plain = c.saysPlain() && c.server.isPlainIn(open.file, path)
	return a, nil
}

package mount

import (
	"math"
	"slices"
	"sync"

	"agentvm/internal/host/errno"
)

// rangeLocks are the locks of bytes that programs of a session's guest have taken with fcntl(2), as sqlite does. Between programs of a system such
// a lock belongs to the program, not to an open file; the host's are those of an open file (F_OFD_SETLK), since all programs of all guests of this
// process are one program to the host. So each program that has locked a file gets an open file of the host for its locks: the first one that which
// it has opened, another one, which has inherited it, its own.
//
//	guest: program ── file ──► lockOwner ──► open file of the host ──► ranges
//
// The locks of a program end with its first close of the file (FUSE_FLUSH); of what the guest's kernel does not flush, with the last.
type rangeLocks struct {
	// mu is held during the host's call, which does not wait: a lock must not come to a program that has just closed the file.
	mu     sync.Mutex
	owners map[lockKey]*lockOwner
	count  int // ranges
}

// lastByte is the offset of the last byte that a file can have.
const lastByte = math.MaxInt64

// maxRangeLocks is how many ranges a session may have locked, which the host's kernel keeps; ENOLCK beyond it.
const maxRangeLocks = 1024

// lockKey is a program, by the number that the guest's kernel gives it, and a file.
type lockKey struct {
	file    identity
	program uint64
}

// lockOwner is a program that has locked a file, or has asked who has.
type lockOwner struct {
	key    lockKey
	pid    uint32
	open   *openFile // of the guest; the locks end with it at the latest
	own    *openFile // has the locks; open, or one that only this owner has
	ranges []lockedRange
}

// lockedRange is from the byte start to the byte end, both included.
type lockedRange struct {
	start, end uint64
	kind       uint32
}

// lock takes or gives up a lock, or EAGAIN.
func (l *rangeLocks) lock(c *session, h *handle, r lockRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, err := l.owner(c, h, r)
	if err != nil {
		return err
	}
	if r.kind == lockWrite && o.own.access == accessRead || r.kind == lockRead && o.own.access == accessWrite {
		return errno.ENOLCK // it has first locked the file by a descriptor that may not: to the host, another open file would be another program
	}
	ranges := withRange(o.ranges, lockedRange{r.start, r.end, r.kind})
	if count := l.count + len(ranges) - len(o.ranges); count > maxRangeLocks && len(ranges) > len(o.ranges) {
		return errno.ENOLCK
	}
	if err := hostLockRange(o.own.file, lockedRange{r.start, r.end, r.kind}); err != nil {
		return err
	}
	l.count += len(ranges) - len(o.ranges)
	o.ranges, o.pid = ranges, r.pid
	return nil
}

// test returns a lock that keeps a program from taking one, and the process of this guest that has it, or 0; kind lockNone: there is none.
func (l *rangeLocks) test(c *session, h *handle, r lockRequest) (found lockedRange, pid uint32, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o, err := l.owner(c, h, r)
	if err != nil {
		return lockedRange{}, 0, err
	}
	found, err = hostTestRange(o.own.file, lockedRange{r.start, r.end, r.kind})
	if err != nil || found.kind == lockNone {
		return found, 0, err
	}
	for _, other := range l.owners {
		if other != o && other.key.file == o.key.file && slices.ContainsFunc(other.ranges, func(r lockedRange) bool { return r.start <= found.start && found.start <= r.end }) {
			pid = other.pid
		}
	}
	return found, pid, nil
}

// owner returns the owner of a request, a new one if need be.
func (l *rangeLocks) owner(c *session, h *handle, r lockRequest) (*lockOwner, error) {
	a, err := c.statOpen(h.open)
	if err != nil {
		return nil, err
	}
	key := lockKey{a.identity(), r.owner}
	if o := l.owners[key]; o != nil {
		return o, nil
	}
	o := &lockOwner{key: key, open: h.open, own: h.open}
	if h.open.locker != nil {
		another, a, err := c.openNode(h.node, false, h.open.access)
		if err != nil {
			return nil, errno.ENOLCK // it has no name any more
		}
		if a.identity() != key.file {
			c.closeFile(another)
			return nil, errno.ENOLCK
		}
		o.own = another
	}
	o.own.locker = o
	if l.owners == nil {
		l.owners = make(map[lockKey]*lockOwner)
	}
	l.owners[key] = o
	return o, nil
}

// drop ends an owner's locks.
func (l *rangeLocks) drop(c *session, o *lockOwner) {
	delete(l.owners, o.key)
	l.count -= len(o.ranges)
	o.own.locker = nil
	if o.own != o.open {
		c.closeFile(o.own)
	} else if len(o.ranges) > 0 {
		_ = hostLockRange(o.own.file, lockedRange{0, lastByte, lockNone}) // the file is about to be closed if that fails
	}
}

// flush ends the locks of a program that closes a file.
func (l *rangeLocks) flush(c *session, open *openFile, program uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.owners) == 0 {
		return
	}
	if a, err := c.statOpen(open); err == nil {
		if o := l.owners[lockKey{a.identity(), program}]; o != nil {
			l.drop(c, o)
		}
	}
}

// end ends the locks that were taken through an open file, which is about to be closed.
func (l *rangeLocks) end(c *session, open *openFile) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.owners {
		if o.open == open {
			l.drop(c, o)
		}
	}
}

// withRange returns what is locked after one more range, which replaces what others have of it.
func withRange(ranges []lockedRange, added lockedRange) []lockedRange {
	var after []lockedRange
	for _, r := range ranges {
		if r.end < added.start || r.start > added.end {
			after = append(after, r)
			continue
		}
		if r.start < added.start {
			after = append(after, lockedRange{r.start, added.start - 1, r.kind})
		}
		if r.end > added.end {
			after = append(after, lockedRange{added.end + 1, r.end, r.kind})
		}
	}
	if added.kind != lockNone {
		after = append(after, added)
	}
	return after
}

// testLock answers FUSE_GETLK, of the same form as FUSE_SETLK: start[8] end[8] type[4] pid[4].
func (c *session) testLock(q *request) error {
	r, _, err := c.lockRequest(q)
	switch {
	case err != nil:
		return err
	case r.flock || r.kind == lockNone:
		return errno.EINVAL
	}
	found, pid, err := c.ranges.test(c, q.handle, r)
	if err != nil {
		return err
	}
	q.out.u64(found.start)
	q.out.u64(found.end)
	q.out.u32(found.kind)
	q.out.u32(pid)
	return nil
}

// flush answers FUSE_FLUSH, a close of a file by a program: fh[8] unused[4] padding[4] lock_owner[8].
func (c *session) flush(q *request) error {
	id := q.in.u64()
	q.in.take(4 + 4)
	program := q.in.u64()
	if c.flags()&flagRangeLocks == 0 {
		return errno.ENOSYS // and the kernel asks no more
	}
	open, err := c.opened(q, id)
	if err != nil {
		return err
	}
	c.ranges.flush(c, open, program)
	return nil
}

package mount

import (
	"errors"
	"sync"
	"time"

	"agentvm/internal/host/errno"
)

// Locks that programs of the guest take with flock(2) are the host's, so that other VMs and programs of the host respect them. A lock belongs to
// an open file and ends with it: with the guest's last close, and with the session. rangeLocks has those of fcntl(2).
const (
	lockRead, lockWrite, lockNone = 0, 1, 2 // F_RDLCK, F_WRLCK, F_UNLCK

	lockIsFlock = 1 << 0 // of FUSE_SETLK's lk_flags

	// maxLockWaits bounds the requests of a session that wait for a lock (ENOLCK beyond it).
	maxLockWaits = 256
	// A request that waits asks again after lockDelay, and at longest after lockMaxDelay: a blocking call of the host could not be ended.
	lockDelay, lockMaxDelay = time.Millisecond, 50 * time.Millisecond
)

// lockWaits are the requests of a session that wait for a lock.
type lockWaits struct {
	mu      sync.Mutex
	waiting map[uint64]chan struct{} // closed: give up
	early   [16]uint64               // interrupts of requests that did not wait, maybe not yet
	next    int
}

// begin says whether there is room for one more; its end must be called then.
func (w *lockWaits) begin(unique uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.waiting) >= maxLockWaits || w.waiting[unique] != nil {
		return false
	}
	if w.waiting == nil {
		w.waiting = make(map[uint64]chan struct{})
	}
	interrupted := make(chan struct{})
	w.waiting[unique] = interrupted
	for i, early := range w.early {
		if early == unique && unique != 0 {
			w.early[i] = 0
			closeOnce(interrupted)
		}
	}
	return true
}

func (w *lockWaits) end(unique uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, unique)
}

// interrupted is closed when the request shall give up; nil where begin had no room.
func (w *lockWaits) interrupted(unique uint64) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting[unique]
}

// interrupt ends a request that waits. One that is not there may still come: interrupts overtake requests.
func (w *lockWaits) interrupt(unique uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if interrupted := w.waiting[unique]; interrupted != nil {
		closeOnce(interrupted)
		return
	}
	w.early[w.next%len(w.early)] = unique
	w.next++
}

func (w *lockWaits) interruptAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, interrupted := range w.waiting {
		closeOnce(interrupted)
	}
}

// closeOnce: the caller holds the lock of all who close.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// lock answers FUSE_SETLK and FUSE_SETLKW: fh[8], a lock (lockRequest). The reply is empty or, where the guest's kernel can take it, flags[4] as
// those of an open: what it has of the contents is right, or others have written since.
func (c *session) lock(q *request) error {
	r, open, err := c.lockRequest(q)
	if err != nil {
		return err
	}
	if r.kind != lockNone {
		if err := c.lockable(q.node); err != nil {
			return err
		}
	}
	try := func() error { return c.ranges.lock(c, q.handle, r) }
	if r.flock {
		try = func() error { return hostLock(open.file, r.kind) }
	}
	err = try()
	if q.op == opSetlkw && errors.Is(err, errno.EAGAIN) {
		err = c.waitForLock(q.unique, try)
	}
	if err != nil || r.kind == lockNone || !c.replies {
		return err
	}
	var flags uint32
	if a, err := c.statOpen(open); err == nil && c.tree.fresh(q.node, a) {
		flags = openKeepCache
	}
	q.out.u32(flags)
	return nil
}

// lockRequest is what a message says of a lock. start and end are offsets of bytes, both of which belong to it.
type lockRequest struct {
	owner, start, end uint64
	kind, pid         uint32
	flock             bool
}

// lockRequest decodes fh[8] owner[8] start[8] end[8] type[4] pid[4] lk_flags[4] padding[4].
func (c *session) lockRequest(q *request) (r lockRequest, open *openFile, err error) {
	id := q.in.u64()
	r = lockRequest{owner: q.in.u64(), start: q.in.u64(), end: q.in.u64(), kind: q.in.u32(), pid: q.in.u32()}
	r.flock = q.in.u32()&lockIsFlock != 0
	q.in.take(4)
	kinds := uint32(flagRangeLocks)
	if r.flock {
		kinds = flagFileLocks
	}
	if c.flags()&kinds == 0 {
		return r, nil, errno.ENOSYS
	}
	open, err = c.opened(q, id)
	switch {
	case err != nil:
		return r, nil, err
	case r.kind > lockNone || open.dir || !r.flock && (r.start > r.end || r.end > lastByte) || q.node != q.handle.node:
		return r, nil, errno.EINVAL
	}
	return r, open, nil
}

// waitForLock tries until it succeeds or the request is interrupted.
func (c *session) waitForLock(unique uint64, try func() error) error {
	interrupted := c.locks.interrupted(unique)
	if interrupted == nil {
		return errno.ENOLCK
	}
	err := error(errno.EAGAIN)
	for delay := lockDelay; errors.Is(err, errno.EAGAIN); delay = min(2*delay, lockMaxDelay) {
		select {
		case <-interrupted:
			return errno.EINTR
		case <-time.After(delay):
		}
		err = try()
	}
	return err
}

// lockable refuses locks of what the guest cannot change: programs of the host would wait for it.
func (c *session) lockable(n *node) error {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	return c.protects(n)
}

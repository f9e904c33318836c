package mount

import (
	"errors"
	"sync"
	"time"

	"agentvm/internal/errno"
)

// Locks that programs of the guest take with flock(2) are the host's, so that other VMs and programs of the host respect them. A lock belongs to
// an open file and ends with it: with the guest's last close, and with the session. Those of fcntl(2) stay in the guest's kernel.
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

// lock answers FUSE_SETLK and FUSE_SETLKW: fh[8] owner[8] start[8] end[8] type[4] pid[4] lk_flags[4] padding[4].
func (c *session) lock(q *request) error {
	id := q.in.u64()
	q.in.take(8 + 8 + 8)
	kind := q.in.u32()
	q.in.take(4)
	flags := q.in.u32()
	q.in.take(4)
	if c.flags()&flagFileLocks == 0 {
		return errno.ENOSYS
	}
	open, err := c.opened(q, id)
	switch {
	case err != nil:
		return err
	case flags&lockIsFlock == 0 || kind > lockNone || open.dir:
		return errno.EINVAL
	}
	if kind != lockNone {
		if err := c.lockable(q.node); err != nil {
			return err
		}
	}
	err = hostLock(open.file, kind)
	if q.op == opSetlk || !errors.Is(err, errno.EAGAIN) {
		return err
	}
	interrupted := c.locks.interrupted(q.unique)
	if interrupted == nil {
		return errno.ENOLCK
	}
	delay := lockDelay
	for errors.Is(err, errno.EAGAIN) {
		select {
		case <-interrupted:
			return errno.EINTR
		case <-time.After(delay):
		}
		delay = min(2*delay, lockMaxDelay)
		err = hostLock(open.file, kind)
	}
	return err
}

// lockable refuses locks of what the guest cannot change: programs of the host would wait for it.
func (c *session) lockable(n *node) error {
	c.tree.names.RLock()
	defer c.tree.names.RUnlock()
	path, err := n.path()
	if err != nil {
		return nil // removed: no program of the host finds it
	}
	return c.server.protects(path)
}

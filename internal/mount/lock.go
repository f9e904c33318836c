package mount

import "agentvm/internal/errno"

// Tgetlock's and Tlock's lock types, and Rlock's status.
const (
	lockUnlock  = 2 // P9_LOCK_TYPE_UNLCK
	lockSuccess = 0 // P9_LOCK_SUCCESS
)

// lockArgs is the common part of the two lock requests.
type lockArgs struct {
	id            uint32
	kind          uint8
	start, length uint64
	pid           uint32
	client        string
}

// lock answers Tlock: fid[4] type[1] flags[4] start[8] length[8] proc_id[4] client_id[s]. v9fs settles locks between the
// guest's processes before it asks, and the guest is the only client of a session, so there is never a conflict.
func (c *session) lock(q *request) error {
	args := lockArgs{id: q.in.u32(), kind: q.in.u8()}
	q.in.u32() // flags
	if err := c.checkLock(q, &args); err != nil {
		return err
	}
	q.out.u8(lockSuccess)
	return nil
}

// getlock answers Tgetlock: fid[4] type[1] start[8] length[8] proc_id[4] client_id[s]. Nothing is ever in the way.
func (c *session) getlock(q *request) error {
	args := lockArgs{id: q.in.u32(), kind: q.in.u8()}
	if err := c.checkLock(q, &args); err != nil {
		return err
	}
	if len(args.client) > 256 {
		return errno.EINVAL
	}
	q.out.u8(lockUnlock)
	q.out.u64(args.start)
	q.out.u64(args.length)
	q.out.u32(args.pid)
	q.out.str(args.client)
	return nil
}

// checkLock decodes the rest and wants an open file.
func (c *session) checkLock(q *request, args *lockArgs) error {
	args.start, args.length = q.in.u64(), q.in.u64()
	args.pid, args.client = q.in.u32(), q.in.str()
	f, err := c.fid(q, args.id)
	if err != nil {
		return err
	}
	if args.kind > lockUnlock {
		return errno.EINVAL
	}
	_, err = f.opened()
	return err
}

// xattr answers Txattrwalk and Txattrcreate: there are no extended attributes, which also keeps the guest from setting
// security attributes on host files.
func (c *session) xattr(*request) error { return errno.EOPNOTSUPP }

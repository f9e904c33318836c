package mount

import "encoding/binary"

// directConn is a connection, as wasi.StreamHost, whose guest's writes can be answered at once.
type directConn interface {
	Direct(room int, direct func(message []byte, answer func([]byte)) bool)
}

// serveDirect answers a request in the guest's own call, and returns true, if it can without a wait: then no other goroutine has to wake up
// for it, and none for the reply, which took longer than the request. The whole guest stands still meanwhile. So it does that only for
// what the host most likely has in its memory, in directories of file systems that are this host's own, and leaves the rest to the loop.
func (c *session) serveDirect(message []byte, answer func([]byte)) bool {
	if len(message) < requestHeader || len(message) > smallBuffer || int(binary.LittleEndian.Uint32(message)) != len(message) {
		return false
	}
	if !c.turn.TryLock() {
		return false
	}
	defer c.turn.Unlock()
	if c.events == nil || !c.sendMu.TryLock() { // a larger reply may be half sent
		return false
	}
	defer c.sendMu.Unlock()
	q := c.request(message[:requestHeader], message[requestHeader:])
	if !c.isDirect(q) {
		c.end(q)
		return false
	}
	c.answerBy(q, answer)
	return true
}

// isDirect says whether a request is one that serveDirect answers.
func (c *session) isDirect(q *request) bool {
	switch q.op {
	case opForget, opBatchForget:
		return true
	}
	if q.node == nil || !c.tree.names.TryRLock() {
		return false
	}
	defer c.tree.names.RUnlock()
	if !c.isOwnDevice(q.node) || q.node.gone.Load() { // the last close of what was removed may take long
		return false
	}
	in := q.in // the operation decodes it again
	switch q.op {
	case opGetattr, opRelease, opReleasedir, opFlush:
		return true
	case opOpen:
		return in.u32()&openTruncate == 0
	case opCreate:
		return in.u32()&openExclusive != 0
	case opLookup: // another file system may be mounted at what the host has not been asked for yet
		n := c.tree.lookup(q.node, in.str())
		return n != nil && c.isOwnDevice(n)
	}
	return false
}

// isOwnDevice says whether a node is of the mounted directory's own file system. names must be held.
func (c *session) isOwnDevice(n *node) bool { return n.parent == nil || n.file.dev == c.server.rootDev }

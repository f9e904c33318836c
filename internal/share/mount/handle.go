package mount

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"agentvm/internal/host/budget"
	"agentvm/internal/host/errno"
)

// handle is an open file or directory. The table holds one reference and each request that uses it another, so that a FUSE_RELEASE
// during a request is harmless.
type handle struct {
	node *node // with a reference
	open *openFile
	refs int // guarded by the table's mu
}

// openFile is a file or directory open on the host.
type openFile struct {
	file     *os.File
	path     string // when it was opened
	access   uint32 // of the flags it was opened with
	writable bool
	append   bool
	dir      bool
	covered  bool // it is shown as empty

	mu    sync.Mutex
	names []string // the listing that readdir's offsets count in
	early bool     // names are from opendir, and not asked for yet
	bytes int64    // what names costs

	locker *lockOwner // whose fcntl(2) locks this open file has; guarded by rangeLocks.mu
}

// openFiles counts what a session holds open, and the memory of its directory listings.
type openFiles struct {
	limit    int64
	process  *budget.Share // see Config.Descriptors
	count    atomic.Int64
	listings atomic.Int64
}

// acquire counts a file that is about to be opened; ENFILE protects the host's own descriptors.
func (o *openFiles) acquire() error {
	if o.count.Add(1) > o.limit || !o.process.Take(1) {
		o.count.Add(-1)
		return errno.ENFILE
	}
	return nil
}

func (o *openFiles) release() {
	o.count.Add(-1)
	o.process.Give(1)
}

type handleTable struct {
	mu      sync.Mutex
	handles map[uint64]*handle
	last    uint64
}

// newHandleTable returns a table whose handles are numbered from first on.
func newHandleTable(first uint64) *handleTable {
	return &handleTable{handles: make(map[uint64]*handle), last: first - 1}
}

// add returns the number of a new handle, which takes over a reference to its node.
func (t *handleTable) add(n *node, open *openFile) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last++
	t.handles[t.last] = &handle{node: n, open: open, refs: 1}
	return t.last
}

// put gives a reference back; the last one closes the file.
func (t *handleTable) put(c *session, h *handle) {
	t.mu.Lock()
	h.refs--
	last := h.refs == 0
	t.mu.Unlock()
	if !last {
		return
	}
	c.ranges.end(c, h.open)
	c.tree.dropOpen(h.node, h.open)
	if h.open.writable {
		c.tree.noteClose(h.node)
	}
	c.closeFile(h.open)
	c.tree.release(h.node)
}

func (t *handleTable) closeAll(c *session) {
	for _, h := range t.handles {
		t.put(c, h)
	}
	clear(t.handles)
}

// opened finds the open file of a request, which must have been decoded to its end, and holds it until the request is done.
func (c *session) opened(q *request, id uint64) (*openFile, error) {
	if err := q.in.end(); err != nil {
		return nil, err
	}
	t := c.handles
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.handles[id]
	if h == nil || q.handle != nil {
		return nil, errno.EBADF
	}
	h.refs++
	q.handle = h
	return h.open, nil
}

// releaseFile answers FUSE_RELEASE and FUSE_RELEASEDIR: fh[8] flags[4] release_flags[4] lock_owner[8].
func (c *session) releaseFile(q *request) error {
	id := q.in.u64()
	q.in.take(4 + 4 + 8)
	if err := q.in.end(); err != nil {
		return err
	}
	t := c.handles
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.handles[id]
	if h == nil {
		return errno.EBADF
	}
	delete(t.handles, id)
	q.handle = h // the table's reference
	return nil
}

// closeFile gives back what the open file has taken of the session's limits.
func (c *session) closeFile(o *openFile) {
	o.file.Close()
	c.files.listings.Add(-o.bytes)
	c.memory.give(o.bytes)
	c.files.release()
}

// checkName refuses whatever is not one plain path element of the host.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return errno.EINVAL
	case len(name) > 255:
		return errno.ENAMETOOLONG
	}
	return hostName(name)
}

// inDir checks that the request's node is a directory in which name can be.
func (q *request) inDir(name string) error {
	if !q.node.dir.Load() {
		return errno.ENOTDIR
	}
	return checkName(name)
}

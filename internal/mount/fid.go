package mount

import (
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"agentvm/internal/errno"
)

// fid is the guest's handle on a name. The table holds one reference and each request that uses it another, so that a
// Tclunk during a request is harmless. Its node never changes: Tlcreate and Twalk onto the same number put a new fid there.
type fid struct {
	node *node
	refs int // guarded by the table's mu

	mu   sync.Mutex
	open *openFile
}

// opened returns the open file, or EBADF before Tlopen.
func (f *fid) opened() (*openFile, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open == nil {
		return nil, errno.EBADF
	}
	return f.open, nil
}

// openFile is a file or directory open on the host.
type openFile struct {
	file     *os.File
	path     string // when it was opened
	writable bool
	append   bool
	dir      bool
	covered  bool // it is shown as empty

	mu    sync.Mutex
	names []string // the listing that readdir's offsets count in
	bytes int64    // what names costs
}

// openFiles counts what a session holds open, and the memory of its directory listings.
type openFiles struct {
	limit    int64
	count    atomic.Int64
	listings atomic.Int64
}

// acquire counts a file that is about to be opened; ENFILE protects the host's own descriptors.
func (o *openFiles) acquire() error {
	if o.count.Add(1) > o.limit {
		o.count.Add(-1)
		return errno.ENFILE
	}
	return nil
}

func (o *openFiles) release() { o.count.Add(-1) }

// fidTable has a session's fids by the numbers that the guest chose.
type fidTable struct {
	mu     sync.Mutex
	fids   map[uint32]*fid
	limit  int
	memory *sessionMemory
}

func newFidTable(limit int, memory *sessionMemory) *fidTable {
	return &fidTable{fids: make(map[uint32]*fid), limit: limit, memory: memory}
}

// get adds a reference, which the caller drops.
func (t *fidTable) get(id uint32) (*fid, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.fids[id]
	if f == nil {
		return nil, errno.EBADF
	}
	f.refs++
	return f, nil
}

// add puts a fid at a free number.
func (t *fidTable) add(id uint32, f *fid) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case id == noFid || t.fids[id] != nil:
		return errno.EINVAL
	case len(t.fids) >= t.limit:
		return errno.ENFILE
	case !t.memory.take(fidMemory):
		return errno.ENOMEM
	}
	f.refs = 1
	t.fids[id] = f
	return nil
}

// replace puts a fid at the number of another, whose table reference passes to the caller.
func (t *fidTable) replace(id uint32, old, f *fid) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fids[id] != old {
		return errno.EBADF
	}
	f.refs = 1
	t.fids[id] = f
	return nil
}

// remove frees the number; the table's reference passes to the caller.
func (t *fidTable) remove(id uint32) (*fid, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.fids[id]
	if f == nil {
		return nil, errno.EBADF
	}
	delete(t.fids, id)
	return f, nil
}

// drop gives a reference back and reports whether it was the last.
func (t *fidTable) drop(f *fid) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.refs--
	if f.refs == 0 {
		t.memory.give(fidMemory)
	}
	return f.refs == 0
}

// fid finds a fid and holds it until the request's reply is sent. The request must have been decoded to its end.
func (c *session) fid(q *request, id uint32) (*fid, error) {
	if err := q.in.end(); err != nil {
		return nil, err
	}
	f, err := c.fids.get(id)
	if err == nil {
		q.held = append(q.held, f)
	}
	return f, err
}

// openFid is fid for one that must have an open file.
func (c *session) openFid(q *request, id uint32) (*fid, *openFile, error) {
	f, err := c.fid(q, id)
	if err != nil {
		return nil, nil, err
	}
	open, err := f.opened()
	return f, open, err
}

// dir finds a fid that must be a directory, for a request about a name in it.
func (c *session) dir(q *request, id uint32, name string) (*node, error) {
	f, err := c.fid(q, id)
	if err != nil {
		return nil, err
	}
	if !f.node.dir.Load() {
		return nil, errno.ENOTDIR
	}
	return f.node, checkName(name)
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

// putFid gives a reference back; the last one closes the file.
func (c *session) putFid(f *fid) {
	if !c.fids.drop(f) {
		return
	}
	if f.open != nil {
		c.tree.dropOpen(f.node, f.open)
		c.closeFile(f.open)
	}
	c.tree.release(f.node)
}

// closeFile gives back what the open file has taken of the session's limits.
func (c *session) closeFile(o *openFile) {
	o.file.Close()
	c.files.listings.Add(-o.bytes)
	c.memory.give(o.bytes)
	c.files.release()
}

// closeFids ends all fids. No request may be running.
func (c *session) closeFids() {
	for _, f := range c.fids.fids {
		c.putFid(f)
	}
	clear(c.fids.fids)
}

// clunk answers Tclunk: fid[4].
func (c *session) clunk(q *request) error {
	id := q.in.u32()
	if err := q.in.end(); err != nil {
		return err
	}
	f, err := c.fids.remove(id)
	if err != nil {
		return err
	}
	q.held = append(q.held, f)
	return nil
}

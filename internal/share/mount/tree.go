package mount

import (
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentvm/internal/host/errno"
)

// maxPath limits the length in bytes of a path below the root, as PATH_MAX would.
const maxPath = 4095

// tree holds the names that the guest's kernel knows, so that a rename moves everything below it at once. A name lives as long as the
// kernel, which counts the replies that named a node and gives them back with FUSE_FORGET, an open file, or something below it refers to it.
//
//	root (1) ── src (2) ── main.go (3)
//	         └─ tmp (4)
//
// A node is one file: when a name comes to mean another file, by a program of the host, the name gets a new node, and the hard links of one file
// have one node, since the guest's kernel has its pages by the node. Not so below an overlay (Config.Bases), which keeps what it has once found and
// answers ESTALE ever after when that is gone: there a node is one name, as long as it is of one type.
//
// Lock order: names, then nodes. names is held for reading during each host call that uses a path, so that the path
// stays right; rename and remove take it for writing. That is the one place with host calls under a lock.
type tree struct {
	names  sync.RWMutex // parent, name and gone of each node: written under both locks, read under either
	nodes  sync.Mutex   // guards the other fields of each node, byID and last
	root   *node
	byID   map[uint64]*node   // with the kernel's references
	byFile map[identity]*node // the last that was found of each; of what has one name, the only one
	others int                // names of nodes besides their first
	last   uint64             // the highest number that was given
	limit  int
	byName bool // nodes are names
	seed   maphash.Seed
	memory *sessionMemory

	forgotten func(*node) // is called, with nodes held, when a node ends; nil: nothing
}

// node is a file with the names of it that the guest's kernel has looked up. A directory has one.
type node struct {
	place                // the first name; the root has none
	others   []place     // a file's further names
	gone     atomic.Bool // removed or replaced by the guest; what is below it is gone too
	dir      atomic.Bool // what the last lookup found
	id       uint64
	refs     int      // the kernel's together count as one
	lookups  uint64   // the kernel's references
	kind     uint32   // of its mode; it does not change
	born     int64    // of a file that had several names when it was found; see attr
	file     identity // written while names is held for writing, or before the node is in the tree
	told     version  // of the attributes that the guest has
	read     version  // of the contents at the last open; zero: it was not opened
	copied   bool     // by an overlay, which has read its Base
	doubtful bool     // the contents may have changed, or may yet change, without another version
	listing  *listing // of a directory; nil: the guest's kernel has none
	children map[string]*node
	open     []*openFile // keeps an unlinked file within reach

	strayed  atomic.Bool  // the host has moved the file away, or removed it
	watch    atomic.Int32 // the watchID of a directory; unwatchable, or 0: it was not tried
	changing int          // calls of this guest that change the file and are under way
	own      version      // after the last of them; zero: there was none
	closed   bool         // this guest has closed a file that was open for writing
}

// place is a name in a directory.
type place struct {
	parent *node
	name   string
}

// watched says whether the guest learns of changes in a directory.
func (n *node) watched() bool { return n.watch.Load() > 0 }

// identity is a file of the host, whatever its name.
type identity struct{ dev, ino uint64 }

// version changes with the contents of a file: its size in bytes, and when the contents and the inode last changed, in nanoseconds since 1970.
type version struct {
	size         uint64
	mtime, ctime int64
}

// recent says whether the file has changed so short a time ago that it can change again without another version: hosts take the times of
// files from a clock with steps of up to 10 ms, and of 2 s on FAT, whose times have no nanoseconds.
func (v version) recent() bool {
	step := 20 * time.Millisecond
	if v.mtime%int64(time.Second) == 0 && v.ctime%int64(time.Second) == 0 {
		step = 2 * time.Second
	}
	return time.Since(time.Unix(0, max(v.mtime, v.ctime))) < step
}

// newTree returns a tree of the root alone, which stays: it has a reference of its own. Its nodes are numbered from first on; limit bounds
// their number.
func newTree(first uint64, limit int, memory *sessionMemory) *tree {
	root := &node{id: rootID, refs: 1, lookups: 1}
	root.dir.Store(true)
	return &tree{root: root, byID: map[uint64]*node{rootID: root}, byFile: make(map[identity]*node), last: first - 1, limit: limit, memory: memory, seed: maphash.MakeSeed()}
}

// get returns the node of a number with a reference for the caller.
func (t *tree) get(id uint64) (*node, error) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n := t.byID[id]
	if n == nil {
		return nil, errno.ESTALE
	}
	n.refs++
	return n, nil
}

// lookedUp returns the node of a file that was found at a name, with a reference of the kernel's. names must be held.
func (t *tree) lookedUp(parent *node, name string, a attr) (*node, error) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n := parent.children[name]
	if n != nil && !t.isStill(n, a) {
		t.dropLocked(n, place{parent, name})
		n = nil
	}
	if n == nil {
		if len(t.byID)+t.others >= t.limit {
			return nil, errno.ENFILE
		}
		if !t.memory.take(nodeMemory) {
			return nil, errno.ENOMEM
		}
		if parent.children == nil {
			parent.children = make(map[string]*node)
		}
		if n = t.linkedLocked(a); n != nil {
			n.others, n.born = append(n.others, place{parent, name}), a.born
			t.others++
		} else {
			t.last++
			n = &node{place: place{parent, name}, id: t.last, file: a.identity(), born: a.born, kind: a.mode & modeTypeMask}
			t.byID[n.id] = n
			t.byFile[n.file] = n
		}
		parent.children[name] = n
		parent.refs++
	}
	if n.lookups++; n.lookups == 1 {
		n.refs++
	}
	n.dir.Store(a.isDir())
	n.tell(a)
	return n, nil
}

// linkedLocked returns the node of another name of a file, or nil.
func (t *tree) linkedLocked(a attr) *node {
	if t.byName || a.isDir() || a.host.Links < 2 {
		return nil
	}
	n := t.byFile[a.identity()]
	if n == nil || n.parent == nil || n.gone.Load() || !t.isStill(n, a) {
		return nil
	}
	return n
}

// dropLocked takes a name from a node. One without any is gone.
func (t *tree) dropLocked(n *node, p place) {
	if p.parent.children[p.name] == n {
		delete(p.parent.children, p.name)
	}
	i := slices.Index(n.others, p)
	switch {
	case i < 0 && len(n.others) == 0: // it keeps its place, below which there may be others that are gone with it
		n.gone.Store(true)
		return
	case i < 0:
		n.place, i = n.others[0], 0
	}
	n.others = slices.Delete(n.others, i, i+1)
	t.others--
	t.memory.give(nodeMemory)
	t.releaseLocked(p.parent)
}

// isStill says whether a node is the one of what was found at its name.
func (t *tree) isStill(n *node, a attr) bool {
	if n.kind != a.mode&modeTypeMask {
		return false
	}
	return t.byName || n.file == a.identity() && (n.born == 0 || a.born == 0 || n.born == a.born)
}

// ghost returns the node of a name that the kernel has, with a reference of the kernel's and what was last told of it, where nothing is any
// more. An overlay must find it again, see tree; calls about the node itself say that it is gone.
func (t *tree) ghost(parent *node, name string) (n *node, a attr) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	if n = parent.children[name]; !t.byName || n == nil || n.lookups == 0 {
		return nil, attr{}
	}
	n.lookups++
	return n, n.lastTold()
}

// lastTold, of a node in a locked tree, is about what the guest has of its attributes.
func (n *node) lastTold() (a attr) {
	a = attr{ino: n.file.ino, mode: n.kind | 0o555, size: n.told.size, mtime: time.Unix(0, n.told.mtime)}
	a.host.Changed, a.host.Accessed, a.host.Links, a.host.BlockSize, a.host.owned = time.Unix(0, n.told.ctime), a.mtime, 1, 4096, true
	return a
}

// origin returns the attributes of a node of which an overlay has made a copy: it asks for them whenever the copy's are asked for.
func (t *tree) origin(n *node) (a attr, copied bool) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	return n.lastTold(), n.copied
}

func (t *tree) noteCopied(n *node) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.copied = true
}

func (t *tree) forgetFile(n *node) {
	if t.byFile[n.file] == n {
		delete(t.byFile, n.file)
	}
}

// setFile has a node be of another file. names must be held for writing.
func (t *tree) setFile(n *node, file identity) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	t.forgetFile(n)
	n.file = file
	t.byFile[file] = n
}

// otherName returns the number and the directory's of another node of a file than one that may be nil, or zeros. names must be held.
func (t *tree) otherName(n *node, file identity) (id, parent uint64) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	if other := t.byFile[file]; other != nil && other != n && other.parent != nil {
		return other.id, other.parent.id
	}
	return 0, 0
}

// tell, of a node in a locked tree, notes that the guest's kernel gets attributes. When the size or the time of the contents is another one than before, the kernel
// forgets what it has read (FUSE_AUTO_INVAL_DATA).
func (n *node) tell(a attr) {
	now := a.version()
	if n.told.size == now.size && n.told.mtime == now.mtime && n.told.ctime != now.ctime {
		n.doubtful = true
	}
	n.told, n.doubtful = now, n.doubtful || now.recent()
}

func (t *tree) tell(n *node, a attr) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.tell(a)
}

// fresh notes an open and says whether what the guest's kernel has of the file is right. If not, the kernel forgets it.
func (t *tree) fresh(n *node, a attr) bool {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	now := a.version()
	n.read = now
	if n.told == now && !n.doubtful {
		return true
	}
	n.told, n.doubtful = now, now.recent()
	return false
}

// lastOpened returns the version of a file's contents at its last open, or zero.
func (t *tree) lastOpened(n *node) version {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	return n.read
}

// beginChange and endChange are before and after a call with which this guest changes a file. ok: a is what it is then.
func (t *tree) beginChange(n *node) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.changing++
}

func (t *tree) endChange(n *node, a attr, ok bool) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.changing--
	if ok {
		n.own = a.version()
	}
}

// made notes that this guest has made the file.
func (t *tree) made(n *node, a attr) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.own = a.version()
}

// isOwn says whether what is there is how this guest has left it, or is about to change.
func (t *tree) isOwn(n *node, a attr) (own, settled bool) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	now := a.version()
	return n.own == now || now.ctime < n.own.ctime, n.changing == 0
}

// noteClose notes that this guest closes a file that was open for writing; ownClose asks for that, once.
func (t *tree) noteClose(n *node) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.closed = true
}

func (t *tree) ownClose(n *node) bool {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	closed := n.closed
	n.closed = false
	return closed
}

// forget gives references of the kernel's back.
func (t *tree) forget(id, count uint64) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n := t.byID[id]
	if n == nil || n.parent == nil || n.lookups == 0 {
		return
	}
	if n.lookups -= min(count, n.lookups); n.lookups == 0 {
		t.releaseLocked(n)
	}
}

// release drops a reference.
func (t *tree) release(n *node) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	t.releaseLocked(n)
}

func (t *tree) releaseLocked(n *node) {
	for n != nil {
		if n.refs--; n.refs > 0 {
			return
		}
		for len(n.others) > 0 {
			t.dropLocked(n, n.others[len(n.others)-1])
		}
		n.detach()
		delete(t.byID, n.id)
		t.forgetFile(n)
		t.memory.give(nodeMemory)
		if t.forgotten != nil {
			t.forgotten(n)
		}
		n = n.parent
	}
}

// end gives back what the nodes cost.
func (t *tree) end() { t.memory.give(nodeMemory * int64(len(t.byID)-1+t.others)) }

// detach takes the node out of its first parent's children, where a newer node of the same name may be.
func (n *node) detach() {
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
}

// places returns the names of a node. names must be held.
func (t *tree) places(n *node) []place {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	return append([]place{n.place}, n.others...)
}

// path returns the path below the mount, or ENOENT when the guest removed it; of a file with several names, the first one's. names must be held.
func (n *node) path() (string, error) {
	if n.parent == nil {
		return ".", nil
	}
	if n.gone.Load() {
		return "", errno.ENOENT
	}
	return n.place.path()
}

func (p place) path() (string, error) {
	names, length, n := []string{p.name}, len(p.name)+1, p.parent
	for ; n.parent != nil; n = n.parent {
		if n.gone.Load() {
			return "", errno.ENOENT
		}
		names = append(names, n.name)
		length += len(n.name) + 1
	}
	if length > maxPath {
		return "", errno.ENAMETOOLONG
	}
	slices.Reverse(names)
	return strings.Join(names, "/"), nil
}

// childPath is path for a name in a directory.
func (n *node) childPath(name string) (string, error) {
	dir, err := n.path()
	if err != nil || dir == "." {
		return name, err
	}
	if len(dir)+1+len(name) > maxPath {
		return "", errno.ENAMETOOLONG
	}
	return dir + "/" + name, nil
}

// below reports whether n is other or inside it. names must be held.
func (n *node) below(other *node) bool {
	for ; n != nil; n = n.parent {
		if n == other {
			return true
		}
	}
	return false
}

// lookup returns the node of a name if something keeps it alive.
func (t *tree) lookup(parent *node, name string) *node {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	return parent.children[name]
}

// remove marks a name as gone. names must be held for writing.
func (t *tree) remove(parent *node, name string) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	if n := parent.children[name]; n != nil {
		t.dropLocked(n, place{parent, name})
	}
}

// move gives a node another name in place of one of its names. names must be held for writing, and the new name must be free.
func (t *tree) move(n *node, from, to place) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	if from.parent.children[from.name] == n {
		delete(from.parent.children, from.name)
	}
	if i := slices.Index(n.others, from); i >= 0 {
		n.others[i] = to
	} else {
		n.place = to
	}
	if to.parent.children == nil {
		to.parent.children = make(map[string]*node)
	}
	to.parent.children[to.name] = n
	to.parent.refs++
	t.releaseLocked(from.parent)
}

// addOpen and dropOpen keep the list of a node's open files. addOpen returns the node with a reference for the handle.
func (t *tree) addOpen(n *node, f *openFile) *node {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.open = append(n.open, f)
	n.refs++
	return n
}

func (t *tree) dropOpen(n *node, f *openFile) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.open = slices.DeleteFunc(n.open, func(other *openFile) bool { return other == f })
}

// opened returns an open file of the node, a writable one if asked for, or nil.
func (t *tree) opened(n *node, writable bool) *openFile {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	for _, f := range n.open {
		if f.writable || !writable {
			return f
		}
	}
	return nil
}

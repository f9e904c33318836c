package mount

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"agentvm/internal/errno"
)

// maxPath limits the length in bytes of a path below the root, as PATH_MAX would.
const maxPath = 4095

// tree holds the names that fids refer to, shared between fids of the same name, so that a rename moves everything below
// it at once. A name lives as long as a fid refers to it or to something below it.
//
//	root ── src ── main.go   (fids 7, 9)
//	     └─ tmp              (fid 4)
//
// Lock order: names, then nodes. names is held for reading during each host call that uses a path, so that the path
// stays right; rename and remove take it for writing. That is the one place with host calls under a lock.
type tree struct {
	names sync.RWMutex // parent, name and gone of each node: written under both locks, read under either
	nodes sync.Mutex   // guards refs, children and open of each node, and count
	root  *node
	count int
	limit int
}

// node is a name in a directory. A file with several names has a node for each.
type node struct {
	parent   *node
	name     string
	gone     bool        // removed or replaced by the guest; what is below it is gone too
	dir      atomic.Bool // what the last walk found
	refs     int
	children map[string]*node
	open     []*openFile // keeps an unlinked file within reach
}

// newTree returns a tree of the root alone, which stays: it has a reference of its own. limit bounds the other names.
func newTree(limit int) *tree {
	t := &tree{root: &node{refs: 1}, limit: limit}
	t.root.dir.Store(true)
	return t
}

// child returns the node of a name with a reference for the caller.
func (t *tree) child(parent *node, name string) (*node, error) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	if n := parent.children[name]; n != nil {
		n.refs++
		return n, nil
	}
	if t.count >= t.limit {
		return nil, errno.ENFILE
	}
	if parent.children == nil {
		parent.children = make(map[string]*node)
	}
	n := &node{parent: parent, name: name, refs: 1}
	parent.children[name] = n
	parent.refs++
	t.count++
	return n, nil
}

// hold adds a reference.
func (t *tree) hold(n *node) *node {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.refs++
	return n
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
		n.detach()
		t.count--
		n = n.parent
	}
}

// detach takes the node out of its parent's children, where a newer node of the same name may be.
func (n *node) detach() {
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
}

// path returns the path below the mount, or ENOENT when the guest removed it. names must be held.
func (n *node) path() (string, error) {
	if n.parent == nil {
		return ".", nil
	}
	var names []string
	length := 0
	for ; n.parent != nil; n = n.parent {
		if n.gone {
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

// lookup returns the node of a name if some fid keeps it alive.
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
		n.gone = true
		n.detach()
	}
}

// move gives a node a new place. names must be held for writing, and the new place must be free.
func (t *tree) move(n, parent *node, name string) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.detach()
	old := n.parent
	n.parent, n.name = parent, name
	if parent.children == nil {
		parent.children = make(map[string]*node)
	}
	parent.children[name] = n
	parent.refs++
	t.releaseLocked(old)
}

// addOpen and dropOpen keep the list of a node's open files.
func (t *tree) addOpen(n *node, f *openFile) {
	t.nodes.Lock()
	defer t.nodes.Unlock()
	n.open = append(n.open, f)
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

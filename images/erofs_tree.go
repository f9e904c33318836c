package images

import (
	"errors"
	"fmt"
	"strings"
)

// node is one inode of the disk being built. Several directory entries may name one node (hard links).
type node struct {
	mode      uint16 // type and permission bits
	layout    uint8
	machine   uint16 // e_machine when the file is an ELF program, else 0
	uid, gid  uint32
	mtimeNsec uint32
	mtime     int64
	nlink     uint32
	device    uint32
	block     uint32   // first data block of a plain or inline file or directory
	size      uint64   // bytes; of a directory, its entries
	slot      uint64   // inode number (nid), once placed
	xattrs    []byte   // encoded attributes with their header; nil without any
	inline    []byte   // data that follow the inode: a file's last bytes, a symlink's target, a directory's last block
	chunks    []uint32 // block of each chunk, for a file with holes

	layer    int   // the last layer that had an entry of this name or, for a directory, below it
	parent   *node // of a directory; the root is its own parent
	children map[string]*node
	names    []string // a directory's entries in disk order, once laid out
}

func newDir(parent *node) *node {
	return &node{mode: typeDir | 0o755, parent: parent, children: map[string]*node{}}
}

func (n *node) isDir() bool { return n.mode&typeMask == typeDir }

// union is the inode field whose meaning depends on the type and layout.
func (n *node) union() uint32 {
	switch {
	case n.layout == layoutChunked:
		return chunkBits | chunkIndexes
	case n.mode&typeMask == typeChar || n.mode&typeMask == typeBlock:
		return n.device
	}
	return n.block
}

// maxComponent is the longest name of a file in its directory, in bytes.
const maxComponent = 255

var errEmptyName = errors.New("empty name")

// splitPath checks a name of an archive and returns its components. Leading slashes and "." components mean
// nothing: an archive is always unpacked relative to its own root. ".." is refused, never resolved.
func splitPath(name string, maxLen int) ([]string, error) {
	if name == "" {
		return nil, errEmptyName
	}
	if len(name) > maxLen {
		return nil, fmt.Errorf("name of %d bytes is longer than the limit of %d", len(name), maxLen)
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, errors.New("name contains a NUL byte")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
		case part == "..":
			return nil, fmt.Errorf("name %.200q contains \"..\"", name)
		case len(part) > maxComponent:
			return nil, fmt.Errorf("name component of %d bytes is longer than 255", len(part))
		default:
			parts = append(parts, part)
		}
	}
	return parts, nil
}

// directory returns the directory at parts. Missing ones are made, and given to missing with their names first. It never follows a
// symlink, because an entry below one would land in another directory than its name says.
func (n *node) directory(parts []string, missing func(n *node, name string) error) (*node, error) {
	for i, part := range parts {
		child := n.children[part]
		if child == nil {
			child = newDir(n)
			if err := missing(child, part); err != nil {
				return nil, err
			}
			n.children[part] = child
		}
		if !child.isDir() {
			what := "a file"
			if child.mode&typeMask == typeSymlink {
				what = "a symbolic link"
			}
			return nil, fmt.Errorf("%.200q is %s, not a directory", strings.Join(parts[:i+1], "/"), what)
		}
		n = child
	}
	return n, nil
}

// find returns the node at parts without following links, or nil.
func (n *node) find(parts []string) *node {
	for _, part := range parts {
		if n = n.children[part]; n == nil {
			return nil
		}
	}
	return n
}

// put makes dir's entry name refer to n. The last entry of a name wins: a node that it replaces loses a link, and a
// replaced directory also its whole subtree.
func (dir *node) put(name string, n *node) {
	if old := dir.children[name]; old != nil {
		old.unlink()
	}
	n.nlink++
	dir.children[name] = n
}

// unlink takes one link from n and, when n is a directory, from everything below.
func (n *node) unlink() {
	n.nlink--
	for _, child := range n.children {
		child.unlink()
	}
}

// touch notes that a layer has an entry in the directory dir, or for it.
func (dir *node) touch(layer int) {
	for ; dir.layer != layer; dir = dir.parent {
		dir.layer = layer
	}
}

// hide removes what the layers below the given one have of that name in dir.
func (dir *node) hide(name string, layer int) {
	switch child := dir.children[name]; {
	case child == nil:
	case child.layer != layer:
		child.unlink()
		delete(dir.children, name)
	case child.isDir():
		child.hideBelow(layer)
	}
}

// hideBelow removes all that the layers below the given one have in dir.
func (dir *node) hideBelow(layer int) {
	for name := range dir.children {
		dir.hide(name, layer)
	}
}

// follow resolves path inside the tree as the guest would, through symlinks, and returns nil when it leads nowhere.
func (root *node) follow(path string) *node { return root.followFrom(root, path) }

// followFrom is follow for a path that is relative to the directory n.
func (root *node) followFrom(n *node, path string) *node {
	parts := strings.Split(path, "/")
	for hops := 0; len(parts) > 0; {
		part := parts[0]
		parts = parts[1:]
		switch {
		case part == "" || part == ".":
			continue
		case !n.isDir():
			return nil
		case part == "..":
			n = n.parent
			continue
		}
		child := n.children[part]
		if child == nil {
			return nil
		}
		if child.mode&typeMask != typeSymlink {
			n = child
			continue
		}
		if hops++; hops > 40 {
			return nil
		}
		target := string(child.inline)
		if strings.HasPrefix(target, "/") {
			n = root
		}
		parts = append(strings.Split(target, "/"), parts...)
	}
	return n
}

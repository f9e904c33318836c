package imagebuild

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/patternmatcher"

	"agentvm/images"
)

// tree is a file system that steps copy from, or look into: the context, or what the layers of an image make together.
type tree struct {
	root  *node
	layer int // the number of the one that was added last
}

// node is a file of a tree.
type node struct {
	header   tar.Header // its Name is of no meaning
	children map[string]*node
	open     func() (io.ReadCloser, error) // of a regular file
	layer    int                           // which has put it here last
}

// hide removes what layers before this one have below a directory.
func (n *node) hide(layer int) {
	for name, child := range n.children {
		if child.layer != layer {
			delete(n.children, name)
		} else if child.isDir() {
			child.hide(layer)
		}
	}
}

func (n *node) isDir() bool { return n.header.Typeflag == tar.TypeDir }

func newDir() *node {
	return &node{header: tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}, children: map[string]*node{}}
}

func newTree() *tree { return &tree{root: newDir()} }

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// resolve follows the symbolic links of a path, and returns where it leads and what is there; nil when nothing is. The last name's own link
// is followed too when last is set.
func (t *tree) resolve(name string, last bool) (string, *node, error) {
	links := 0
	at, n := "", t.root
	left := split(name)
	for len(left) > 0 {
		part := left[0]
		left = left[1:]
		if part == ".." {
			at = strings.TrimPrefix(path.Dir("/"+at), "/")
			_, n, _ = t.resolve(at, true)
			continue
		}
		var next *node
		if n != nil && n.isDir() {
			next = n.children[part]
		}
		if next != nil && next.header.Typeflag == tar.TypeSymlink && (last || len(left) > 0) {
			if links++; links > maxLinks {
				return "", nil, fmt.Errorf("%s: too many symbolic links", name)
			}
			if strings.HasPrefix(next.header.Linkname, "/") {
				at, n = "", t.root
			}
			left = append(split(next.header.Linkname), left...)
			continue
		}
		if n != nil && !n.isDir() {
			return "", nil, fmt.Errorf("%s: not a directory", "/"+at)
		}
		at, n = path.Join(at, part), next
	}
	return at, n, nil
}

// split returns the parts of a path, without empty ones and ".".
func split(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(s string) bool { return s == "" || s == "." })
}

// put puts a node at a path, making the directories above.
func (t *tree) put(name string, n *node) {
	parts := split(name)
	if len(parts) == 0 {
		t.root.header = n.header
		return
	}
	at := t.root
	for _, part := range parts[:len(parts)-1] {
		next := at.children[part]
		if next == nil || !next.isDir() {
			next = newDir()
			at.children[part] = next
		}
		at = next
	}
	last := parts[len(parts)-1]
	if before := at.children[last]; n.isDir() && before != nil && before.isDir() {
		before.header, before.layer = n.header, t.layer
		return
	}
	n.layer = t.layer
	at.children[last] = n
}

// remove removes what is at a path.
func (t *tree) remove(name string) {
	at := t.root
	parts := split(name)
	for i, part := range parts {
		if at == nil || !at.isDir() {
			return
		}
		if i == len(parts)-1 {
			delete(at.children, part)
			return
		}
		at = at.children[part]
	}
}

// names returns the names in a directory, sorted.
func (n *node) names() []string { return slices.Sorted(maps.Keys(n.children)) }

// walk calls visit for a node and what is below it, each directory before what is in it, with paths below name.
func (n *node) walk(name string, visit func(string, *node) error) error {
	if err := visit(name, n); err != nil {
		return err
	}
	for _, child := range n.names() {
		if err := n.children[child].walk(path.Join(name, child), visit); err != nil {
			return err
		}
	}
	return nil
}

// glob returns the paths that a pattern of COPY matches (path.Match), sorted.
func (t *tree) glob(pattern string) ([]string, error) {
	if _, err := path.Match(pattern, ""); err != nil {
		return nil, err
	}
	found := []string{""}
	for _, part := range split(pattern) {
		var next []string
		for _, at := range found {
			if !strings.ContainsAny(part, `*?[\`) {
				next = append(next, path.Join(at, part))
				continue
			}
			_, n, err := t.resolve(at, true)
			if err != nil || n == nil {
				continue
			}
			for _, name := range n.names() {
				if ok, _ := path.Match(part, name); ok {
					next = append(next, path.Join(at, name))
				}
			}
		}
		found = next
	}
	return slices.DeleteFunc(found, func(at string) bool {
		_, n, err := t.resolve(at, true)
		return err != nil || n == nil
	}), nil
}

// readContext lists the files of a directory that ignore does not leave out. Links are kept as links, and lead out of nowhere: the
// directory is an os.Root.
func readContext(ctx context.Context, root *os.Root, ignore []string) (*tree, error) {
	matcher, err := patternmatcher.New(ignore)
	if err != nil {
		return nil, fmt.Errorf(".dockerignore: %w", err)
	}
	t := newTree()
	var walk func(dir string) error
	walk = func(dir string) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		f, err := root.Open(path.Join(".", dir))
		if err != nil {
			return err
		}
		entries, err := f.ReadDir(-1)
		_ = f.Close()
		if err != nil {
			return err
		}
		for _, entry := range entries {
			name := path.Join(dir, entry.Name())
			ignored, err := matcher.MatchesOrParentMatches(name)
			if err != nil {
				return err
			}
			if entry.IsDir() {
				if ignored && !matcher.Exclusions() {
					continue
				}
				if !ignored {
					if err := t.addFile(root, name); err != nil {
						return err
					}
				}
				if err := walk(name); err != nil {
					return err
				}
				continue
			}
			if !ignored {
				if err := t.addFile(root, name); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return t, walk("")
}

func (t *tree) addFile(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = root.Readlink(name); err != nil {
			return err
		}
	}
	header, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return nil // a socket: no image has one
	}
	n := &node{header: tar.Header{
		Typeflag: header.Typeflag, Linkname: header.Linkname, Mode: header.Mode & 0o7777, Size: header.Size, ModTime: header.ModTime,
		Devmajor: header.Devmajor, Devminor: header.Devminor,
	}}
	switch n.header.Typeflag {
	case tar.TypeDir:
		n.children = map[string]*node{}
	case tar.TypeReg:
		n.open = func() (io.ReadCloser, error) { return root.Open(name) }
	}
	t.put(name, n)
	return nil
}

// maxNodes bounds how many files a tree may have, as images.Limits does.
const maxNodes = 2_000_000

// addArchive puts a layer on top of a tree (OCI image specification, layer.md). The plain archive is kept in spool, from where its files are read.
func (t *tree) addArchive(ctx context.Context, archive io.Reader, spool *os.File) error {
	at := &offset{r: io.TeeReader(archive, spool)}
	begin, err := spool.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	in := tar.NewReader(at)
	t.layer++
	for count := 0; ; count++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return fmt.Errorf("damaged layer: %w", err)
		}
		if count > maxNodes {
			return fmt.Errorf("%w: more than %d files in a layer", images.ErrLimit, maxNodes)
		}
		t.addEntry(header, spool, begin+at.n)
	}
	_, err = io.Copy(io.Discard, at)
	return err
}

func (t *tree) addEntry(header *tar.Header, spool *os.File, data int64) {
	name := strings.TrimPrefix(path.Clean("/"+header.Name), "/")
	dir, base := path.Split(name)
	if where, _, err := t.resolve(dir, true); err == nil { // below a link it goes where the link leads
		name = path.Join(where, base)
	}
	switch removed, ok := strings.CutPrefix(base, ".wh."); {
	case base == ".wh..wh..opq":
		if _, n, err := t.resolve(dir, true); err == nil && n != nil && n.isDir() {
			n.hide(t.layer)
		}
		return
	case ok:
		t.remove(path.Join(path.Dir(name), removed))
		return
	}
	n := &node{header: *header}
	switch header.Typeflag {
	case tar.TypeDir:
		n.children = map[string]*node{}
	case tar.TypeReg:
		n.open = func() (io.ReadCloser, error) { return io.NopCloser(io.NewSectionReader(spool, data, header.Size)), nil }
	case tar.TypeLink:
		_, target, err := t.resolve(header.Linkname, false)
		if err != nil || target == nil || target.isDir() {
			return
		}
		n = target
	}
	t.put(name, n)
}

// offset counts what was read.
type offset struct {
	r io.Reader
	n int64
}

func (o *offset) Read(p []byte) (int, error) {
	n, err := o.r.Read(p)
	o.n += int64(n)
	return n, err
}

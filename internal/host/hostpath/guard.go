package hostpath

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Guard knows the directories that guests may change, or could change earlier. The zero value knows none. It is not safe for concurrent use.
type Guard struct {
	roots  []root
	mounts func() mountTable
}

// root is a directory that guests may change.
type root struct {
	id    fileID
	born  int64 // step.born
	path  string
	where string // location.canonical
	boot  string
}

func (g *Guard) table() mountTable {
	if g.mounts == nil {
		g.mounts = sync.OnceValue(readMounts)
	}
	return g.mounts()
}

// Add adds a directory that a guest may change from now on.
func (g *Guard) Add(p *Place) {
	g.roots = append(g.roots, root{p.id(), p.born, p.Real, p.where().canonical(g.table()), p.Boot})
}

func (p *Place) where() location { return locate(p.dir, p.Real) }

// Check refuses a path that has led through a link in a directory that guests may change.
func (g *Guard) Check(p *Place) error {
	for _, l := range p.links {
		for _, r := range g.roots {
			if r.has(l.in, func() string { return l.where.canonical(g.table()) }) {
				return &LinkError{Path: p.Path, Link: l.path, Target: l.target, Root: r.path}
			}
		}
	}
	return nil
}

// has reports whether the last of some directories is the root or below it.
func (r root) has(way []step, where func() string) bool {
	if r.boot == boot() && slices.ContainsFunc(way, func(s step) bool { return s.id == r.id && r.mayBe(s) }) {
		return true
	}
	if r.boot != boot() && slices.ContainsFunc(way, func(s step) bool { return s.id.file == r.id.file }) && isBelow(pathOf(way), r.path) {
		return true // the numbers of devices may have changed
	}
	return r.where != "" && r.boot == boot() && isBelow(where(), r.where)
}

// mayBe reports whether a directory with the root's number was born when the root was. An overlay that copies a directory up gives it another
// birth, but leaves it at its place (where).
func (r root) mayBe(s step) bool { return r.born == 0 || s.born == 0 || r.born == s.born }

func pathOf(way []step) string {
	names := []string{string(filepath.Separator)}
	for _, s := range way {
		names = append(names, s.name)
	}
	return filepath.Join(names...)
}

func isBelow(path, dir string) bool {
	_, found := cutDir(path, dir)
	return found
}

// cutDir returns the part of a path behind a directory that it is below; empty for the directory itself.
func cutDir(path, dir string) (rest string, found bool) {
	if path == dir {
		return "", true
	}
	if !strings.HasSuffix(dir, string(filepath.Separator)) {
		dir += string(filepath.Separator)
	}
	return strings.CutPrefix(path, dir)
}

// Within reports whether p is in the directory dir, and returns where, slash-separated: "." when it is dir. It sees through links and
// bind mounts.
func (g *Guard) Within(p, dir *Place) (rel string, inside bool) {
	if dir.dir == nil {
		return "", false
	}
	if p.dir != nil && p.id() == dir.id() {
		return ".", true
	}
	way := append(slices.Clone(p.above), step{p.id(), p.born, p.base})
	for i, s := range p.above {
		if s.id == dir.id() {
			return slashed(way[i+1:]), true
		}
	}
	outer := dir.where().canonical(g.table())
	inner := p.canonical(g.table())
	if outer == "" || inner == "" {
		return "", false
	}
	rel, inside = cutDir(inner, outer)
	switch {
	case !inside:
		return "", false
	case rel == "":
		return ".", true
	}
	return rel, true
}

// canonical returns the place in its file system of the file that p is, or will be.
func (p *Place) canonical(table mountTable) string {
	if p.dir != nil || p.parent == nil {
		return p.where().canonical(table)
	}
	dir := locate(p.parent, filepath.Dir(p.Real)).canonical(table)
	if dir == "" {
		return ""
	}
	return strings.TrimSuffix(dir, "/") + "/" + p.base
}

func slashed(way []step) string {
	var names []string
	for _, s := range way {
		names = append(names, s.name)
	}
	return strings.Join(names, "/")
}

// Exposed returns the directory that has p and that guests may change, or "".
func (g *Guard) Exposed(p *Place) string {
	way := p.above
	if p.dir != nil {
		way = append(slices.Clone(way), step{p.id(), p.born, p.base})
	}
	for _, r := range g.roots {
		if r.has(way, func() string { return p.canonical(g.table()) }) {
			return r.path
		}
	}
	return ""
}

// Open is the function Open with the guard's check.
func (g *Guard) Open(path string, was Identity) (*Place, error) { return g.checked(Open(path, was)) }

// OpenNew is the function OpenNew with the guard's check.
func (g *Guard) OpenNew(path string, was Identity) (*Place, error) {
	return g.checked(OpenNew(path, was))
}

func (g *Guard) checked(p *Place, err error) (*Place, error) {
	if err != nil {
		return nil, err
	}
	if err := g.Check(p); err != nil {
		p.Close()
		return nil, fmt.Errorf("%s: %w", p.Path, err)
	}
	return p, nil
}

// ReadFile reads a file of at most limit bytes.
func (g *Guard) ReadFile(path string, was Identity, limit int64) ([]byte, error) {
	place, err := g.OpenNew(path, was)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	return place.ReadAll(limit)
}

// OpenFile opens a file with flags of package os, and makes it when they have O_CREATE.
func (g *Guard) OpenFile(path string, was Identity, flags int, perm fs.FileMode) (*os.File, error) {
	place, err := g.OpenNew(path, was)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	return place.OpenFile(flags, perm, true)
}

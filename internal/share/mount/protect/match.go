// Package protect lists the names of the host whose files a guest must not change, because programs of the host execute or obey them by
// themselves, and recognizes git's directories. It looks at names alone; package mount looks at what is there.
package protect

import (
	"slices"
	"strings"
	"sync"
)

// tree leads from a name to those that follow it.
type tree struct {
	ends    bool             // what is here is protected, with all below
	frees   bool             // it is not
	below   map[string]*tree // by Fold
	endings []ending         // names with "*"
}

type ending struct {
	text string
	tree *tree
}

func (t *tree) add(name string, end func(*tree)) {
	for element := range strings.SplitSeq(name, "/") {
		folded := Fold(element)
		if text, found := strings.CutPrefix(folded, "*"); found {
			t.endings = append(t.endings, ending{text, &tree{}})
			t = t.endings[len(t.endings)-1].tree
			continue
		}
		if t.below == nil {
			t.below = make(map[string]*tree)
		}
		if t.below[folded] == nil {
			t.below[folded] = &tree{}
		}
		t = t.below[folded]
	}
	end(t)
}

// next appends where a folded name leads.
func (t *tree) next(to []*tree, folded string) []*tree {
	if found := t.below[folded]; found != nil {
		to = append(to, found)
	}
	for _, e := range t.endings {
		if strings.HasSuffix(folded, e.text) {
			to = append(to, e.tree)
		}
	}
	if strings.IndexByte(folded, '~') < 0 {
		return to
	}
	for name, found := range t.below {
		if isShort(folded, name) {
			to = append(to, found)
		}
	}
	return to
}

// Standing is how a path relates to the names of a list.
type Standing int

// A path is free, above a name of the list, or one of them or below one.
const (
	Free Standing = iota
	Above
	Listed
)

// State is a place in the host's paths: how far the names of a list have come there. It does not change.
type State struct {
	root   *tree
	at     []*tree // from each of the last elements on
	listed bool    // for good
	free   bool    // below dependencies
}

func newState(rows []Row, free []Row) State {
	root := &tree{}
	for _, r := range rows {
		for _, name := range r.Names {
			root.add(name, func(t *tree) { t.ends = true })
		}
	}
	for _, r := range free {
		for _, name := range r.Names {
			root.add(name, func(t *tree) { t.frees = true })
		}
	}
	return State{root: root}
}

// NewState is the state of the host's root for Protected, and of one for Instructions.
var (
	NewState        = sync.OnceValue(func() State { return newState(Protected, unprotected) })
	NewInstructions = sync.OnceValue(func() State { return newState(Instructions, nil) })
)

// Walk is the state of a slash-separated path from s on. "." and empty elements lead nowhere.
func (s State) Walk(path string) State {
	for element := range strings.SplitSeq(path, "/") {
		if element == "" || element == "." {
			continue
		}
		if s = s.step(element); s.listed {
			return s
		}
	}
	return s
}

func (s State) step(element string) State {
	if s.free {
		return s
	}
	folded := foldFile(element)
	var at []*tree
	for _, t := range s.at {
		before := len(at)
		at = t.next(at, folded)
		if t.ends && len(at) == before {
			return State{root: s.root, listed: true}
		}
	}
	if element == dependencies && s.Standing() != Listed {
		return State{root: s.root, free: true}
	}
	at = s.root.next(at, folded)
	// What frees a name takes the protection of those above it.
	at = slices.DeleteFunc(at, func(t *tree) bool { return t.frees })
	return State{root: s.root, at: at}
}

// dependencies is where package managers put the packages of others, with whatever is in them. No program is started there, and so nothing is
// listed below it; but no name elsewhere may come to mean what is there.
const dependencies = "node_modules"

// Dependencies says whether the place is in a directory of packages, below which nothing is listed.
func (s State) Dependencies() bool { return s.free }

// Entered is the state of a directory that is mounted: what is above it makes no packages of what is in it.
func (s State) Entered() State {
	s.free = false
	return s
}

// NamesDependencies says whether a path, as a link's target, leads through a directory of packages.
func NamesDependencies(path string) bool {
	return slices.ContainsFunc(strings.FieldsFunc(path, func(r rune) bool { return r == '/' || r == '\\' }), func(e string) bool { return Fold(e) == dependencies })
}

// Standing says how the place stands.
func (s State) Standing() Standing {
	if s.listed {
		return Listed
	}
	standing := Free
	for _, t := range s.at {
		switch {
		case t.ends:
			return Listed
		case len(t.below)+len(t.endings) > 0:
			standing = Above
		}
	}
	return standing
}

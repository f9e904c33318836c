package hostpath

import (
	"path"
	"slices"
	"strings"
)

// maxNames bounds the mounts that Names looks at.
const maxNames = 1 << 14

// Names returns the paths by which programs of the host may reach the directory besides Real, because its file system, or a part of it, is
// mounted at several places; the last one is where it is in its file system. below has the same of what is mounted below it, by the
// slash-separated path from it.
func (p *Place) Names() (names []string, below map[string][]string) {
	table := readMounts()
	own := p.where().canonical(table)
	if own == "" {
		return nil, nil
	}
	names = namesOf(own, p.Real, table)
	below = make(map[string][]string)
	for _, m := range table {
		rel, found := cutDir(m.point, p.Real)
		if !found || rel == "" || len(below) >= maxNames {
			continue
		}
		below[rel] = append(below[rel], namesOf(m.device+path.Join("/", m.root), m.point, table)...)
	}
	return names, below
}

// namesOf lists the paths to a place in a file system, but one.
func namesOf(canonical, real string, table mountTable) (names []string) {
	for _, m := range table {
		rest, found := cutDir(canonical, m.device+path.Join("/", m.root))
		if name := path.Join(m.point, rest); found && name != real && !slices.Contains(names, name) && len(names) < maxNames {
			names = append(names, name)
		}
	}
	return append(names, canonical[strings.IndexByte(canonical, '/'):])
}

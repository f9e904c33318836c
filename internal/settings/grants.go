package settings

import (
	"path/filepath"
	"slices"
	"strings"

	"agentvm/internal/share/mount"
)

// Grants are what a project file gives its VMs, by the keys of All, in a form that can be kept and compared with a later file's: the host's
// paths are absolute and without links, and settings of which no value gives more than another are left out. So are the values of variables.
type Grants map[string][]string

// Grants returns what the file gives. The path that real returns for another has no links.
func (f *File) Grants(real func(path string) string) Grants {
	g := make(Grants)
	for _, s := range All() {
		if list := f.Values[s.Key]; len(list) > 0 && !s.harmless {
			g[s.Key] = slices.Clone(list)
		}
	}
	dir := real(filepath.Dir(f.Path))
	for i, mask := range g["masks"] {
		g["masks"][i] = escapePath.Replace(filepath.Join(dir, filepath.FromSlash(mask)))
	}
	for i, text := range g["mounts"] {
		if m, err := mount.Parse(text); err == nil {
			m.HostPath = escapePath.Replace(real(m.HostPath))
			g["mounts"][i] = m.String()
		}
	}
	if file := g["ca-cert"]; file != nil {
		file[0] = real(file[0])
	}
	if g["env"] = slices.DeleteFunc(g["env"], func(kv string) bool { return strings.Contains(kv, "=") }); len(g["env"]) == 0 {
		delete(g, "env")
	}
	return g
}

// A path without its links may have a colon, which a mount's text cannot.
var (
	escapePath   = strings.NewReplacer("%", "%25", ":", "%3A")
	unescapePath = strings.NewReplacer("%25", "%", "%3A", ":")
)

// Beyond returns what g gives that before did not, one text for each difference.
func (g Grants) Beyond(before Grants) (list []string) {
	for _, s := range All() {
		if s.harmless {
			continue
		}
		beyond := s.beyond
		if beyond == nil {
			beyond = anyChange
		}
		for _, what := range beyond(change{s.Key, before, g}) {
			list = append(list, s.Key+": "+what)
		}
	}
	return list
}

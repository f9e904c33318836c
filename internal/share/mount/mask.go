package mount

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/protect"
)

// maxMasks limits the masks of a mount.
const maxMasks = 1024

// masks is the tree of names that lead to what the guest must not see. It does not change after NewServer.
//
//	.git ── hooks*        * masked: hidden with all below it
//	.env*                 .git is above a mask: what replaces it could show or plant what the mask hides
//
// Masks are names, not files, because a mask holds before its file exists. So a name above one must keep to mean the same
// directory: it is never renamed, replaced, or made a link.
type masks struct {
	masked  bool
	covered bool              // shown as an empty directory that stays what it is: another mount is there
	below   map[string]*masks // by protect.Fold
	short   bool              // the host knows 8.3 names
}

// standing is how a path relates to the masks.
type standing int

const (
	standsFree standing = iota
	standsAbove
	standsCovered
	standsMasked
)

// CleanMask checks a mask: a slash-separated path below the mount, without "..". The file need not exist.
func CleanMask(mask string) (string, error) {
	switch {
	case mask == "":
		return "", errors.New("the mask is empty")
	case strings.ContainsRune(mask, 0):
		return "", errors.New("the mask contains a NUL byte")
	case path.IsAbs(mask):
		return "", fmt.Errorf("the mask %q is absolute: masks are relative to the mount", mask)
	case len(mask) > maxPath:
		return "", fmt.Errorf("the mask is longer than %d bytes", maxPath)
	}
	for element := range strings.SplitSeq(mask, "/") {
		if element == ".." {
			return "", fmt.Errorf("the mask %q contains ..", mask)
		}
		if err := hostName(element); err != nil && element != "" && element != "." {
			return "", fmt.Errorf("the mask %q has a name that this host cannot have: %q", mask, element)
		}
	}
	if mask = path.Clean(mask); mask == "." {
		return "", errors.New("the mask is the whole mount")
	}
	return mask, nil
}

// newMasks builds the tree. What a mask leads to by links in the directory is masked too.
func newMasks(dir string, list, covered []string) (*masks, error) {
	if len(list) > maxMasks {
		return nil, fmt.Errorf("%d masks; at most %d", len(list), maxMasks)
	}
	m := &masks{short: runtime.GOOS == "windows"}
	for _, text := range list {
		mask, err := CleanMask(text)
		if err != nil {
			return nil, err
		}
		m.at(mask).masked = true
		if real := resolveMask(dir, mask); real != "" {
			m.at(real).masked = true
		}
	}
	for _, name := range covered {
		m.at(name).covered = true
	}
	return m, nil
}

// at is the place of a path in the tree.
func (m *masks) at(mask string) *masks {
	at := m
	for element := range strings.SplitSeq(mask, "/") {
		if at.below == nil {
			at.below = make(map[string]*masks)
		}
		name := protect.Fold(element)
		if at.below[name] == nil {
			at.below[name] = &masks{}
		}
		at = at.below[name]
	}
	return at
}

// resolveMask follows the links on the way to a mask, as far as there is something. It returns "" for what is outside.
func resolveMask(dir, mask string) string {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return ""
	}
	for head, tail := mask, ""; head != "."; head, tail = path.Dir(head), path.Join(path.Base(head), tail) {
		real, err := filepath.EvalSymlinks(filepath.Join(root, filepath.FromSlash(head)))
		if err != nil {
			continue
		}
		rel, err := filepath.Rel(root, real)
		rel = path.Join(filepath.ToSlash(rel), tail)
		if err != nil || rel == "." || !filepath.IsLocal(filepath.FromSlash(rel)) {
			return ""
		}
		return rel
	}
	return ""
}

// find says where a path below the mount stands.
func (m *masks) find(name string) standing {
	if len(m.below) == 0 || name == "." {
		return standsFree
	}
	at := m
	for element := range strings.SplitSeq(name, "/") {
		if at.covered {
			return standsMasked // all below it
		}
		if m.short && len(at.below) > 0 && shortName().MatchString(element) {
			return standsMasked
		}
		if at = at.below[protect.Fold(element)]; at == nil {
			return standsFree
		}
		if at.masked {
			return standsMasked
		}
	}
	if at.covered {
		return standsCovered
	}
	return standsAbove
}

// hides is ENOENT for a path that the guest must not see.
func (m *masks) hides(name string) error {
	if m.find(name) == standsMasked {
		return errno.ENOENT
	}
	return nil
}

// refusesNew is the error of a path where the guest must not make anything.
func (m *masks) refusesNew(name string) error {
	switch m.find(name) {
	case standsMasked:
		return errno.EACCES
	case standsCovered:
		return errno.EEXIST
	}
	return nil
}

// refusesChange is EBUSY for a directory where another mount is: it is neither changed nor removed by this one.
func (m *masks) refusesChange(name string) error {
	if m.find(name) == standsCovered {
		return errno.EBUSY
	}
	return nil
}

// refusesLink is EACCES for a path that must not come to mean another file.
func (m *masks) refusesLink(name string) error {
	if m.find(name) != standsFree {
		return errno.EACCES
	}
	return nil
}

// shortName matches the names that Windows makes up for files with longer ones, such as GIT~1.
var shortName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[^.~]{1,6}~[0-9]{1,6}(\.[^.]{0,3})?$`) })

// makePath is childPath for a name that is about to be made.
func (c *session) makePath(dir *node, name string) (string, error) {
	p, err := dir.childPath(name)
	if err != nil {
		return "", err
	}
	return p, errors.Join(c.server.masks.refusesNew(p), c.server.protects(p))
}

// seePath is childPath for a name that must be there.
func (c *session) seePath(dir *node, name string) (string, error) {
	p, err := dir.childPath(name)
	if err != nil {
		return "", err
	}
	return p, c.server.masks.hides(p)
}

package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"agentvm/internal/host/errno"
	"agentvm/internal/host/hostpath"
	"agentvm/internal/share/mount/protect"
)

// DefaultProtected is Config.Protected where the user names nothing: it turns on the protection of what package protect lists.
var DefaultProtected = []string{"agentvm.toml"}

// protection keeps a guest from changing what the host executes later: the names that package protect lists, by the paths of the host, what the
// user names, and git's repositories at any depth. A repository that was there keeps its configuration and hooks, and none is made within it.
// Where there was none the guest may make one, which is its own.
//
// What cannot be known counts as protected: of the errors of the host only that there is nothing means that there is nothing. Another session or
// program may change the tree between a look and the call that follows it. No look decides about a name that is listed, since that keeps its
// name; where looks decide there is a second one after the call, which undoes it (see making and move).
type protection struct {
	guard *Guard
	owned bool   // the guard is of this server alone
	names *masks // protected by the user
	free  *masks // unprotected, with all below
	bases []base // the paths of the host that lead to the mounted directory
	below map[string][]base
}

// base is a path of the host that leads to the mounted directory, or to one below it where another file system is.
type base struct {
	path         string // slash-separated
	state        protect.State
	instructions protect.State
	repositories []string // where in a repository's directory the base is, of those above it; "" is the directory itself
}

// newProtection is nil where nothing is protected.
func newProtection(config Config, place *hostpath.Place) (*protection, error) {
	if config.ReadOnly || len(config.Protected) == 0 || slices.Contains(config.Unprotected, ".") {
		return nil, nil
	}
	names, err := newMasks(place.Real, config.Protected, nil)
	if err != nil {
		return nil, err
	}
	free, err := newMasks(place.Real, config.Unprotected, nil)
	if err != nil {
		return nil, err
	}
	p := &protection{guard: config.Guard, names: names, free: free, below: make(map[string][]base)}
	if p.guard == nil {
		p.guard, p.owned = NewGuard(config.Logger), true
	}
	others, below := place.Names()
	for _, name := range append([]string{place.Real}, others...) {
		p.bases = append(p.bases, newBase(name))
	}
	for rel, names := range below {
		for _, name := range names {
			p.below[rel] = append(p.below[rel], newBase(name))
		}
	}
	return p, nil
}

func newBase(name string) base {
	name = filepath.ToSlash(name)
	b := base{path: name, state: protect.NewState().Walk(name).Entered(), instructions: protect.NewInstructions().Walk(name)}
	for _, r := range protect.Repositories(name) {
		if r.Named || mayBeRepository(func(part string) error { _, err := os.Lstat(path.Join(r.Path, part)); return err }) {
			b.repositories = append(b.repositories, r.Rest)
		}
	}
	return b
}

// missing says whether an error means that there is nothing.
func missing(err error) bool {
	number := errno.In(err)
	return number == errno.ENOENT || number == errno.ENOTDIR || number == 0 && errors.Is(err, fs.ErrNotExist)
}

// mayBeRepository says whether a directory is one of git's, or that it cannot be known. look looks at a name in it.
func mayBeRepository(look func(part string) error) bool {
	has := func(part string) bool { return !missing(look(part)) }
	return has("HEAD") && (has("commondir") || has("objects") && has("refs"))
}

func (s *Server) mayBeRepository(dir string) bool {
	return mayBeRepository(func(part string) error { _, err := s.lstat(path.Join(dir, part)); return err })
}

// isHosts says whether a directory may be a repository's that the guest has not made.
func (s *Server) isHosts(dir string) bool { return s.mayBeRepository(dir) && !s.isMade(dir) }

// isMade says whether the guest itself has made a repository's directory, or the file .git that says where it is.
func (s *Server) isMade(name string) bool {
	a, err := s.lstat(name)
	return err == nil && s.hasMade(name, a)
}

func (s *Server) hasMade(name string, a attr) bool {
	return s.protection.guard.hasMade(a.identity(), func() int64 { return s.born(name) })
}

func (s *Server) noteMade(name string) {
	if a, err := s.lstat(name); err == nil {
		s.protection.guard.noteMade(a.identity(), s.born(name), func() *os.File { return s.hold(name, a) })
	}
}

// forgetMade forgets what is removed, for the host may give its inode to a repository of its own.
func (s *Server) forgetMade(a attr) {
	if s.protection != nil {
		s.protection.guard.forgetMade(a.identity())
	}
}

// basesOf yields the paths of the host for a path below the mount: a base and what follows it.
func (p *protection) basesOf(name string) func(yield func(base, string) bool) {
	return func(yield func(base, string) bool) {
		for _, b := range p.bases {
			if !yield(b, name) {
				return
			}
		}
		if len(p.below) == 0 {
			return
		}
		for end := 0; end < len(name); {
			if next := strings.IndexByte(name[end:], '/'); next < 0 {
				end = len(name)
			} else {
				end += next
			}
			for _, b := range p.below[name[:end]] {
				if !yield(b, strings.TrimPrefix(name[end:], "/")) {
					return
				}
			}
			end++
		}
	}
}

// standing says how a path stands to the names that package protect lists.
func (p *protection) standing(name string) protect.Standing {
	standing := protect.Free
	for b, rest := range p.basesOf(name) {
		standing = max(standing, b.state.Walk(rest).Standing())
	}
	return standing
}

// inDependencies says whether a path is in a directory of packages, by all its names.
func (p *protection) inDependencies(name string) bool {
	for b, rest := range p.basesOf(name) {
		if !b.state.Walk(rest).Dependencies() {
			return false
		}
	}
	return true
}

// opened says whether the user has opened a path.
func (p *protection) opened(name string) bool { return p.free.find(name) == standsMasked }

// repositories lists the repositories that are not the guest's and that a path leads through, or to, with what follows in each.
func (s *Server) repositories(name string) (found []string) {
	for b, rest := range s.protection.basesOf(name) {
		for _, above := range b.repositories {
			found = append(found, path.Join(above, rest))
		}
	}
	for _, r := range protect.Repositories(name) {
		switch {
		case r.Named && r.Rest == "": // it is what is asked about
		case r.Named && !s.isMade(r.Path), !r.Named && s.isHosts(r.Path):
			found = append(found, r.Rest)
		}
	}
	return found
}

// inRepository says whether a directory is, or may be, in a repository that the guest has not made.
func (s *Server) inRepository(dir string) bool {
	if s.belowRepository(dir) {
		return true
	}
	for ; ; dir = path.Dir(dir) {
		repository := path.Join(dir, ".git")
		if _, err := s.lstat(repository); !missing(err) && !s.isMade(repository) || s.isHosts(dir) {
			return true
		}
		if dir == "." {
			return false
		}
	}
}

// belowRepository is inRepository for what is above the mount, or above what is mounted below it.
func (s *Server) belowRepository(dir string) bool {
	for b := range s.protection.basesOf(dir) {
		if len(b.repositories) > 0 {
			return true
		}
		for above := path.Dir(b.path); ; above = path.Dir(above) {
			look := func(part string) error { _, err := os.Lstat(path.Join(above, part)); return err }
			if !missing(look(".git")) || mayBeRepository(look) {
				return true
			}
			if above == path.Dir(above) {
				break
			}
		}
	}
	return false
}

// isProtected says whether a guest may not change or make what has a path.
func (s *Server) isProtected(name string) bool {
	p := s.protection
	if p == nil || p.opened(name) {
		return false
	}
	if p.names.find(name) == standsMasked || p.standing(name) == protect.Listed {
		return true
	}
	for _, rest := range s.repositories(name) {
		if file, _ := protect.Guards(rest); file {
			return true
		}
	}
	base := path.Base(name)
	if !protect.IsGit(base) && protect.GitPart(base) == "" {
		return false
	}
	a, err := s.lstat(name)
	switch {
	case missing(err):
		return (protect.IsGit(base) || s.completes(name)) && s.inRepository(path.Dir(name))
	case err != nil:
		return true
	}
	return protect.IsGit(base) && !a.isDir() && !s.hasMade(name, a) // a file that says where the repository is
}

// completes says whether a new name of GitParts makes its directory one of git's.
func (s *Server) completes(name string) bool {
	part := protect.GitPart(path.Base(name))
	return mayBeRepository(func(other string) error {
		if other == part {
			return nil
		}
		_, err := s.lstat(path.Join(path.Dir(name), other))
		return err
	})
}

// holds says whether a name must stay, because of what is below it or because git knows its repository by it. Regular files in the repositories of
// submodules and worktrees come and go, as git's locks do.
func (s *Server) holds(name string, regular bool) bool {
	p := s.protection
	if p.opened(name) {
		return false
	}
	if p.names.find(name) == standsAbove || p.standing(name) == protect.Above {
		return true
	}
	for _, rest := range s.repositories(name) {
		if _, directory := protect.Guards(rest); directory && !(regular && strings.Contains(rest, "/")) {
			return true
		}
	}
	if protect.IsGit(path.Base(name)) {
		a, err := s.lstat(name)
		return !missing(err) && (err != nil || !s.hasMade(name, a))
	}
	return false
}

// holdsPart is holds for the names by which git knows a repository.
func (s *Server) holdsPart(name string) bool {
	return protect.GitPart(path.Base(name)) != "" && !s.protection.opened(name) && s.isHosts(path.Dir(name))
}

// protects is EROFS for a change of what is protected.
func (s *Server) protects(name string) error {
	if !s.isProtected(name) {
		return nil
	}
	return s.refuseChange(name)
}

// protectsRemoval is EROFS for the removal of what is protected.
func (s *Server) protectsRemoval(name string) error {
	if s.protection != nil && s.holdsPart(name) {
		return s.refuseChange(name)
	}
	return s.protects(name)
}

// refuseChange is EROFS, and tells of the first change of each thing that is protected, up to a limit.
func (s *Server) refuseChange(name string) error {
	p := s.protection
	open := name // the name that would allow it
	for _, r := range protect.Repositories(name) {
		if file, _ := protect.Guards(r.Rest); file && strings.Contains(r.Rest, "/") {
			first, _, _ := strings.Cut(r.Rest, "/")
			open = path.Join(r.Path, first)
			break
		}
	}
	host := path.Join(filepath.ToSlash(s.config.Dir), name)
	if p.guard.tell(path.Join(filepath.ToSlash(s.config.Dir), open)) {
		s.log.Warn("the guest was kept from changing a file that programs of the host execute or obey by themselves",
			"path", host, "to allow it", fmt.Sprintf("--unprotected %s", open))
	}
	return errno.EROFS
}

// protectsPlace is EROFS where a new name, for a file that is not a directory, would come to mean what is to be a directory of the host, as
// a symbolic link does that leads to one of the guest.
func (s *Server) protectsPlace(name string, regular bool) error {
	if s.protection == nil || !s.holds(name, regular) {
		return nil
	}
	return s.refuseChange(name)
}

// protectsLink is protectsPlace for a symbolic link, which also must not give what is in a directory of packages, where nothing is listed, a name
// elsewhere.
func (s *Server) protectsLink(name, target string) error {
	if p := s.protection; p != nil && protect.NamesDependencies(target) && !p.inDependencies(name) && !p.opened(name) {
		return s.refuseChange(name)
	}
	return s.protectsPlace(name, false)
}

// making is called before a name is made. done is called afterwards: it notes what the guest has made of its own, and is an error for a name that
// makes its directory a repository within one of the host, as two sessions can that each make half of it. The caller then removes the name.
func (s *Server) making(name string) (done func() error) {
	nothing := func() error { return nil }
	if s.protection == nil {
		return nothing
	}
	base, dir := path.Base(name), path.Dir(name)
	if protect.IsGit(base) {
		return func() error {
			s.noteMade(name)
			return nil
		}
	}
	if protect.GitPart(base) == "" || s.protection.opened(name) || s.mayBeRepository(dir) {
		return nothing
	}
	return func() error {
		switch {
		case !s.mayBeRepository(dir):
			return nil
		case dir == "." && s.belowRepository(dir), dir != "." && s.inRepository(path.Dir(dir)):
			return s.refuseChange(name)
		}
		s.noteMade(dir)
		return nil
	}
}

// noteInstruction notes that the guest writes a file with instructions for agents.
func (s *Server) noteInstruction(name string) {
	if s.protection == nil {
		return
	}
	for b, rest := range s.protection.basesOf(name) {
		if b.instructions.Walk(rest).Standing() == protect.Listed {
			s.protection.guard.noteWritten(path.Join(filepath.ToSlash(s.config.Dir), name))
			return
		}
	}
}

// close frees what belongs to the server.
func (p *protection) close() error {
	if p == nil || !p.owned {
		return nil
	}
	return p.guard.Close()
}

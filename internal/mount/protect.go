package mount

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"agentvm/internal/errno"
)

// DefaultProtected are the paths of a writable mount, besides those of git repositories, that a guest reads and does not change: what
// programs of the host execute by themselves, without anybody who asks for it. Programs of agents read theirs for servers and hooks that they
// start. docs/guide/mounts.md has the whole list.
var DefaultProtected = []string{
	".envrc", ".vscode/tasks.json", ".vscode/settings.json", ".vscode/launch.json", ".idea",
	".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".profile", ".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout",
	".config/fish", ".config/git", ".config/autostart", ".config/systemd", ".gitconfig", ".ssh", ".local/bin", "bin/.envrc",
	".mcp.json", ".claude/settings.json", ".claude/settings.local.json", ".claude/hooks", ".codex", ".cursor/mcp.json", ".cursor/hooks.json", ".vscode/mcp.json",
}

const (
	maxMadeRepositories = 4096  // that are remembered as the guest's own
	maxLookThrough      = 10000 // entries of a directory that moves
	maxSameContent      = 1 << 20
	maxTold             = 8 // paths
)

// protection keeps a guest from changing what the host executes later. It is about names, as masks are, and about git's repositories at
// any depth: a repository that was there keeps its configuration and hooks, and none is made within it. Where there was none the guest may
// make one, which is its own.
type protection struct {
	names    *masks // protected
	free     *masks // unprotected, with all below
	enclosed bool   // the mount is in a repository of the host

	mu   sync.Mutex
	made map[[2]uint64]bool // what this guest has made with the name .git, by device and inode
	told map[string]bool
}

// newProtection is nil where nothing is protected.
func newProtection(config Config, dir string) (*protection, error) {
	if config.ReadOnly || len(config.Protected) == 0 || slices.Contains(config.Unprotected, ".") {
		return nil, nil
	}
	names, err := newMasks(dir, config.Protected, nil)
	if err != nil {
		return nil, err
	}
	free, err := newMasks(dir, config.Unprotected, nil)
	if err != nil {
		return nil, err
	}
	p := &protection{names: names, free: free, made: make(map[[2]uint64]bool), told: make(map[string]bool)}
	for above := filepath.Dir(dir); ; above = filepath.Dir(above) {
		if _, err := os.Lstat(filepath.Join(above, ".git")); err == nil {
			p.enclosed = true
		}
		if above == filepath.Dir(above) {
			return p, nil
		}
	}
}

// gitFiles are names in a repository's directory that say what git executes, or where else it reads that.
var gitFiles = []string{"config", "config.worktree", "hooks", "commondir", "gitdir"}

// gitPath says where a path is in a repository's directory: repository is the path of its .git, and rest what follows, folded.
func gitPath(p string) (repository string, rest []string, found bool) {
	elements := strings.Split(p, "/")
	for i, element := range elements {
		folded := foldName(element)
		if folded == ".git" || strings.HasPrefix(folded, "git~") {
			for _, e := range elements[i+1:] {
				rest = append(rest, foldName(e))
			}
			return strings.Join(elements[:i+1], "/"), rest, true
		}
	}
	return "", nil, false
}

// guards says of a path in a repository's directory whether what is there is protected, and whether a directory there has to keep its
// name because of what is below it.
func guards(rest []string) (file, directory bool) {
	if len(rest) == 0 {
		return false, true
	}
	if slices.Contains(gitFiles, rest[0]) {
		return true, true
	}
	if rest[0] != "modules" && rest[0] != "worktrees" {
		return false, false
	}
	return slices.ContainsFunc(rest[1:], func(e string) bool { return slices.Contains(gitFiles, e) }), true
}

// isMade says whether the guest itself has made a repository's directory, or the file .git that says where it is.
func (s *Server) isMade(repository string) bool {
	a, err := s.lstat(repository)
	return err == nil && s.protection.hasMade(a)
}

func (p *protection) hasMade(a attr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made[[2]uint64{a.host.Device, a.host.Inode}]
}

// noteMade notes a .git that the guest has just made.
func (s *Server) noteMade(name string) {
	p := s.protection
	if p == nil || foldName(path.Base(name)) != ".git" {
		return
	}
	a, err := s.lstat(name)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.made) < maxMadeRepositories {
		p.made[[2]uint64{a.host.Device, a.host.Inode}] = true
	}
}

// forgetMade forgets what is removed, for the host may give its inode to a repository of its own.
func (s *Server) forgetMade(a attr) {
	if p := s.protection; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.made, [2]uint64{a.host.Device, a.host.Inode})
	}
}

// inRepository says whether a directory is in a repository that the guest has not made.
func (s *Server) inRepository(dir string) bool {
	if s.protection.enclosed {
		return true
	}
	for ; ; dir = path.Dir(dir) {
		repository := path.Join(dir, ".git")
		if _, err := s.lstat(repository); err == nil && !s.isMade(repository) {
			return true
		}
		if dir == "." {
			return false
		}
	}
}

// isProtected says whether a guest may not change, remove or make what has a path.
func (s *Server) isProtected(name string) bool {
	p := s.protection
	if p == nil || p.free.find(name) == standsMasked {
		return false
	}
	if p.names.find(name) == standsMasked {
		return true
	}
	repository, rest, found := gitPath(name)
	if !found {
		return false
	}
	if len(rest) > 0 {
		file, _ := guards(rest)
		return file && !s.isMade(repository)
	}
	a, err := s.lstat(repository)
	if err != nil { // it is to be made
		return s.inRepository(path.Dir(repository))
	}
	return !a.isDir() && !p.hasMade(a) // a file that says where the repository is
}

// protects is EROFS for a change of what is protected.
func (s *Server) protects(name string) error {
	if !s.isProtected(name) {
		return nil
	}
	return s.refuseChange(name)
}

// refuseChange is EROFS, and tells of the first change of each thing that is protected, up to a limit.
func (s *Server) refuseChange(name string) error {
	p := s.protection
	open := name // the name that would allow it
	if repository, rest, found := gitPath(name); found && len(rest) > 1 {
		open = strings.Join(strings.Split(name, "/")[:strings.Count(repository, "/")+2], "/")
	}
	p.mu.Lock()
	tell := len(p.told) < maxTold && !p.told[open]
	if tell {
		p.told[open] = true
	}
	p.mu.Unlock()
	if tell {
		s.log.Warn("the guest was kept from changing a file that programs of the host execute or obey by themselves",
			"path", path.Join(filepath.ToSlash(s.config.Dir), name), "to allow it", fmt.Sprintf("--unprotected %s", open))
	}
	return errno.EROFS
}

// protectsPlace is EROFS where a new name, for a file that is no directory, would come to mean what is to be a directory of the host, as
// a symbolic link does that leads to one of the guest.
func (s *Server) protectsPlace(name string, regular bool) error {
	if s.protection == nil || !s.holds(name, regular) {
		return nil
	}
	return s.refuseChange(name)
}

// keepsContent says whether a move would replace a protected file by one with the same content. git writes its configuration anew also
// where nothing in it changes, as when a branch is removed that was never configured. Such a move is done by removing the new file: the
// protected one is not touched.
func (s *Server) keepsContent(oldPath, newPath string) bool {
	if s.protection == nil || s.isProtected(oldPath) || !s.isProtected(newPath) {
		return false
	}
	read := func(name string) ([]byte, bool) {
		file, err := s.openRegular(name, os.O_RDONLY, 0)
		if err != nil {
			return nil, false
		}
		defer file.Close()
		content, err := io.ReadAll(io.LimitReader(file, maxSameContent+1))
		return content, err == nil && len(content) <= maxSameContent
	}
	was, ok := read(newPath)
	if !ok {
		return false
	}
	is, ok := read(oldPath)
	return ok && bytes.Equal(was, is)
}

// protectsMove is EROFS for a move that would take something protected away, or put something in its place; EXDEV where that cannot be
// known, which has programs copy.
func (s *Server) protectsMove(oldPath, newPath string) error {
	if s.protection == nil {
		return nil
	}
	a, err := s.lstat(oldPath)
	if err != nil {
		return err
	}
	for _, name := range []string{oldPath, newPath} {
		if s.isProtected(name) || s.holds(name, a.isRegular()) {
			return s.refuseChange(name)
		}
	}
	if !a.isDir() {
		return nil
	}
	left := maxLookThrough
	switch found := s.hasRepository(oldPath, s.inRepository(path.Dir(newPath)), &left); {
	case found != "":
		return s.refuseChange(found)
	case left <= 0:
		return errno.EXDEV
	}
	return nil
}

// holds says whether a name must stay because of what is below it. Regular files in the repositories of submodules and worktrees come and go,
// as git's locks do.
func (s *Server) holds(name string, regular bool) bool {
	p := s.protection
	if p.free.find(name) == standsMasked {
		return false
	}
	if p.names.find(name) == standsAbove {
		return true
	}
	repository, rest, found := gitPath(name)
	if !found {
		return false
	}
	_, directory := guards(rest)
	if regular && len(rest) > 1 {
		return false
	}
	if _, err := s.lstat(repository); err != nil {
		return false // isProtected has decided
	}
	return directory && !s.isMade(repository)
}

// hasRepository is the path of a repository below a directory, "" without one: any when the directory moves into one, else one that the
// guest has not made.
func (s *Server) hasRepository(dir string, any bool, left *int) string {
	if s.protection.free.find(dir) == standsMasked {
		return ""
	}
	file, err := s.openDir(dir)
	if err != nil {
		return ""
	}
	defer file.Close()
	for *left > 0 {
		entries, err := file.ReadDir(256)
		for _, e := range entries {
			*left--
			name := path.Join(dir, e.Name())
			if foldName(e.Name()) == ".git" {
				if any || !s.isMade(name) {
					return name
				}
				continue
			}
			if !e.IsDir() {
				continue
			}
			if found := s.hasRepository(name, any, left); found != "" {
				return found
			}
		}
		if err == io.EOF || err != nil {
			return ""
		}
	}
	return ""
}

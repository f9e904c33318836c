package mount

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path"

	"agentvm/internal/host/errno"
	"agentvm/internal/share/mount/protect"
)

const (
	maxLookThrough = 10000 // entries of a directory that moves
	maxSameContent = 1 << 20
)

// keepsContent says whether a move would replace a protected file by one with the same content. git writes its configuration anew also
// where nothing in it changes, as when a branch is removed that was never configured. Such a move is done by removing the new file: the
// protected one is not touched.
func (s *Server) keepsContent(oldPath, newPath string) bool {
	if s.protection == nil || s.isProtected(oldPath) || !s.isProtected(newPath) {
		return false
	}
	read := func(name string) ([]byte, bool) {
		file, _, err := s.openRegular(name, os.O_RDONLY, 0)
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
// known, which has programs copy: so that each name is decided about where it comes to be.
func (s *Server) protectsMove(oldPath, newPath string) error {
	p := s.protection
	if p == nil {
		return nil
	}
	a, err := s.lstat(oldPath)
	if err != nil {
		return err
	}
	for _, name := range []string{oldPath, newPath} {
		// git replaces HEAD by a file that it has locked.
		if s.isProtected(name) || s.holds(name, a.isRegular()) || s.holdsPart(name) && !(name == newPath && a.isRegular() && path.Base(name) == "HEAD") {
			return s.refuseChange(name)
		}
	}
	switch {
	case a.isSymlink():
		target, err := s.readTarget(oldPath)
		if err != nil {
			return errno.EXDEV
		}
		return s.protectsLink(newPath, target)
	case !a.isDir():
		return nil
	}
	into := s.inRepository(path.Dir(newPath))
	found, err := s.lookThrough(oldPath, newPath, into)
	switch {
	case found != "":
		return s.refuseChange(found)
	case err != nil:
		return errno.EXDEV
	case into && !s.inRepository(path.Dir(oldPath)), p.inDependencies(oldPath) && !p.inDependencies(newPath):
		// Another session may be about to make there what could not be made here.
		return errno.EXDEV
	}
	return nil
}

// movedProtected looks once more, after a directory has moved, for what other sessions and programs may have made in it meanwhile.
func (s *Server) movedProtected(newPath string) error {
	if s.protection == nil {
		return nil
	}
	found, err := s.lookThrough(newPath, newPath, s.inRepository(path.Dir(newPath)))
	if found != "" {
		return s.refuseChange(found)
	}
	if err != nil {
		return errno.EXDEV
	}
	return nil
}

// undoMove gives a directory its old name back, or another one beside that.
func (s *Server) undoMove(oldPath, newPath string) {
	if _, err := s.lstat(oldPath); missing(err) {
		if s.rename(newPath, oldPath) == nil {
			return
		}
	}
	for _, beside := range []string{oldPath, path.Base(oldPath)} {
		if s.rename(newPath, temporaryName(0, beside)) == nil {
			return
		}
	}
	s.log.Error("a directory was moved while others changed it, and could not be moved back: look at what is there before you use it", "path", path.Join(s.config.Dir, newPath))
}

var errUnknown = errors.New("it cannot be known what is in the directory")

// lookThrough returns the path of something protected below a directory, that is at oldPath and may come to be at newPath, "" without. into says
// that there it is in a repository of the host: then any repository is, else one that the guest has not made. An error means that not all was seen.
func (s *Server) lookThrough(oldPath, newPath string, into bool) (found string, err error) {
	left := maxLookThrough
	return s.look(oldPath, newPath, into, &left)
}

func (s *Server) look(oldPath, newPath string, into bool, left *int) (string, error) {
	p := s.protection
	if p.opened(oldPath) && p.opened(newPath) {
		return "", nil
	}
	file, err := s.openDir(oldPath)
	if err != nil {
		return "", err
	}
	defer file.Close()
	parts := make(map[string]bool)
	for {
		entries, err := file.ReadDir(256)
		for _, e := range entries {
			if *left--; *left < 0 {
				return "", errUnknown
			}
			was, is := path.Join(oldPath, e.Name()), path.Join(newPath, e.Name())
			if protect.IsGit(e.Name()) {
				if into || !s.isMade(was) {
					return was, nil
				}
				continue
			}
			if s.lists(was, false) || s.lists(is, !e.IsDir()) {
				return was, nil
			}
			if part := protect.GitPart(e.Name()); part != "" {
				parts[part] = true
			}
			if !e.IsDir() {
				continue
			}
			if found, err := s.look(was, is, into, left); found != "" || err != nil {
				return found, err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
	}
	here := mayBeRepository(func(part string) error {
		if parts[part] {
			return nil
		}
		return errno.ENOENT
	})
	if here && (into || !s.isMade(oldPath)) {
		return oldPath, nil
	}
	return "", nil
}

// lists says whether a path is protected by its name, or, if it is of no directory, in the way of one.
func (s *Server) lists(name string, inTheWay bool) bool {
	p := s.protection
	if p.opened(name) {
		return false
	}
	user, standing := p.names.find(name), p.standing(name)
	return user == standsMasked || standing == protect.Listed || inTheWay && (user == standsAbove || standing == protect.Above)
}

package hostpath

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
)

// Socket is a Unix socket of the host. Its server may come and go, so each connection looks up its name in the directory
// that was opened at first. It must be closed.
type Socket struct {
	path  string
	place *Place // nil: its directory was missing too
	find  func() (*Place, error)
	// exposed reports that machines can change the directory. Then only the first socket is accepted.
	exposed bool
}

// OpenSocket opens the place of a socket, which may be missing, as OpenNew does. It follows a link at its name only where
// guests cannot make one.
func (g *Guard) OpenSocket(path string, was Identity) (*Socket, error) {
	s := &Socket{path: path}
	find := func() (*Place, error) { return g.OpenNew(path, was) }
	place, err := find()
	if errors.Is(err, fs.ErrNotExist) && !errors.As(err, new(*ChangedError)) {
		s.find = find
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.place, s.exposed = place, g.Exposed(place) != ""
	return s, nil
}

// Place returns where the socket is; nil while its directory is missing.
func (s *Socket) Place() *Place { return s.place }

// Missing reports that there is no socket now.
func (s *Socket) Missing() bool {
	_, release, err := s.Address()
	if err == nil {
		release()
	}
	return err != nil
}

// Address returns the address to connect to until release is called: on Linux that of the socket itself, elsewhere its path after a
// check.
func (s *Socket) Address() (address string, release func(), err error) {
	place := s.place
	if place == nil {
		if place, err = s.find(); err != nil {
			return "", nil, err
		}
		defer place.Close()
	}
	if place.parent == nil || place.magic {
		return "", nil, fmt.Errorf("%s: not a socket", s.path)
	}
	found, err := lookup(entry{file: place.parent}, filepath.Dir(place.Real), place.base)
	if err != nil {
		return "", nil, err
	}
	release = func() {
		for _, f := range found.files() {
			f.Close()
		}
	}
	switch {
	case found.mode.Type() == fs.ModeSymlink:
		err = &LinkError{Path: s.path, Link: place.Real, Target: found.target}
	case found.mode.Type() != fs.ModeSocket:
		err = &fs.PathError{Op: "connect", Path: place.Real, Err: syscall.ECONNREFUSED}
	case s.exposed && (place.Missing || found.id != place.id()):
		err = fmt.Errorf("%s: it is not the socket that was there at first, and machines can change names there", s.path)
	}
	if err != nil {
		release()
		return "", nil, err
	}
	return addressOf(found, place.Real), release, nil
}

// Close closes the socket's place.
func (s *Socket) Close() error { return s.place.Close() }
